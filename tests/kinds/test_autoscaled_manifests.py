"""Fields of manifests that a controller owns: left out of the objects for every engine, and said at the spec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from avactl.apply.files.contents import object_text
from avactl.apply.files.paths import object_path
from avactl.compiler import Compilation, compile_tree
from avactl.compiler.incremental.compile import compile_cached
from avactl.program.dependencies import dependencies
from avactl.spec.repository.tree import DirTree, MemoryTree
from tests.kinds.test_kubernetes_objects import WORKLOAD
from tests.kinds.test_pod_settings import PLATFORM


def workload(kind: str = "Deployment", replicas: int = 2, **metadata: str) -> dict[str, Any]:
    body: dict[str, Any] = yaml.safe_load(yaml.safe_dump(WORKLOAD))
    body["kind"] = kind
    body["metadata"] |= metadata
    body["spec"] |= {"replicas": replicas, **({"serviceName": "web"} if kind == "StatefulSet" else {})}
    return body


def autoscaler(kind: str = "Deployment", name: str = "web", **metadata: str) -> dict[str, Any]:
    target = {"apiVersion": "apps/v1", "kind": kind, "name": name}
    metadata = {"name": "scaler", **metadata}
    body = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": metadata}
    return {**body, "spec": {"scaleTargetRef": target, "minReplicas": 3, "maxReplicas": 10}}


def scaled_object(**target: str) -> dict[str, Any]:
    body = {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": "scaler"}}
    return {**body, "spec": {"scaleTargetRef": {"name": "web", **target}, "triggers": []}}


def spec_of(name: str, *bodies: dict[str, Any], team: str | None = "vision") -> dict[str, Any]:
    metadata = {"name": name, **({"team": team} if team else {})}
    spec: dict[str, Any] = {"objects": list(bodies)}
    if team is None:
        spec["namespace"] = "vision"
    return {"apiVersion": "avactl.dev/v1", "kind": "KubernetesObjects", "metadata": metadata, "spec": spec}


def files_of(*specs: dict[str, Any]) -> dict[str, str]:
    platform = "\n---\n".join(f"apiVersion: avactl.dev/v1\n{part.strip()}" for part in PLATFORM.split("\n---\n"))
    platform = platform.replace("podSecurity: baseline", "podSecurity: restricted")
    return {"platform.yaml": platform, "teams/own.yaml": yaml.safe_dump_all(specs)}


def compiled(*specs: dict[str, Any]) -> Compilation:
    result = compile_tree(MemoryTree(files_of(*specs)))
    assert result.ok, [f"{p.span} {p.message}" for p in result.diagnostics]
    return result


def replicas_of(result: Compilation, kind: str) -> tuple[Any, tuple[str, ...]]:
    (manifest,) = (m for m in result.manifests if (m.kind, m.name) == (kind, "web"))
    return manifest.body["spec"].get("replicas"), manifest.owned


def warnings(result: Compilation) -> list[str]:
    return [f"{p.span.file}:{p.span.line} {p.message}" for p in result.diagnostics if p.code == "without-effect"]


OWNED = (None, ("spec.replicas",))
CASES: dict[str, tuple[tuple[dict[str, Any], ...], str, tuple[Any, tuple[str, ...]]]] = {
    "beside": ((spec_of("own", workload(), autoscaler()),), "Deployment", OWNED),
    "in-another-spec": ((spec_of("own", workload()), spec_of("b", autoscaler(), team=None)), "Deployment", OWNED),
    "stateful-set": (
        (spec_of("own", workload("StatefulSet"), autoscaler("StatefulSet")),),
        "StatefulSet",
        OWNED,
    ),
    "keda": ((spec_of("own", workload()), spec_of("b", scaled_object(), team=None)), "Deployment", OWNED),
    "keda-from-zero": (
        (spec_of("own", workload(replicas=0)), spec_of("b", scaled_object(kind="Deployment"), team=None)),
        "Deployment",
        OWNED,
    ),
    # An autoscaler leaves zero alone, so this is how it is switched off.
    "switched-off": ((spec_of("own", workload(replicas=0), autoscaler()),), "Deployment", (0, ())),
    "another-kind": ((spec_of("own", workload(), autoscaler("StatefulSet")),), "Deployment", (2, ())),
    "another-name": ((spec_of("own", workload(), autoscaler(name="other")),), "Deployment", (2, ())),
    "another-namespace": (
        (spec_of("own", workload()), spec_of("b", autoscaler(namespace="elsewhere"), team=None)),
        "Deployment",
        (2, ()),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_replicas_are_the_autoscalers(case: str) -> None:
    specs, kind, expected = CASES[case]
    result = compiled(*specs)
    assert replicas_of(result, kind) == expected
    assert len(warnings(result)) == (expected == OWNED)
    (rendered,) = (object_text(m) for m in result.manifests if (m.kind, m.name) == (kind, "web"))
    assert ("replicas:" in rendered) == (expected[0] is not None)


def test_the_warning_stands_at_the_manifest() -> None:
    (said,) = warnings(compiled(spec_of("own", workload(), autoscaler())))
    text = "`replicas` is not applied: HorizontalPodAutoscaler scaler scales Deployment vision/web"
    place, _, message = said.partition(" ")
    assert message == text
    lines = yaml.safe_dump(spec_of("own", workload(), autoscaler())).splitlines()
    assert lines[int(place.rpartition(":")[2]) - 1].strip() == "replicas: 2"


SERVICE = {
    "apiVersion": "avactl.dev/v1",
    "kind": "ServingDeployment",
    "metadata": {"name": "web", "team": "vision"},
    "spec": {
        "model": {"name": "m", "version": "1", "url": "s3://models/m/1"},
        "runtime": {"name": "custom", "image": "a:1", "command": ["serve"], "port": 8080},
        "resources": {"cpu": "1", "memory": "1Gi"},
        "replicas": 2,
        "probe": {"path": "/health"},
    },
}


def test_an_imported_service_keeps_its_scaled_object() -> None:
    result = compiled(SERVICE, spec_of("b", scaled_object(), team=None))
    assert replicas_of(result, "Deployment") == OWNED
    assert ["`replicas` is not applied" in said for said in warnings(result)] == [True]


def test_a_scaled_object_depends_on_its_target() -> None:
    """KEDA's default is a Deployment; another kind of an operator with the same name is no autoscaler."""
    body = {**scaled_object(), "metadata": {"name": "scaler", "namespace": "vision"}}
    assert "Deployment vision/web" in map(str, dependencies(body))
    assert len(dependencies({**body, "apiVersion": "other.example.com/v1"})) == 1


def webhook(**annotations: str) -> dict[str, Any]:
    client = {"caBundle": "Cg==", "service": {"name": "web", "namespace": "vision"}}
    hook = {"name": "a.example.com", "clientConfig": client, "sideEffects": "None", "admissionReviewVersions": ["v1"]}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "web", "annotations": annotations},
        "webhooks": [hook],
    }


@pytest.mark.parametrize("injected", [False, True])
def test_certificates_that_are_injected_are_left_out(injected: bool) -> None:
    notes = {"cert-manager.io/inject-ca-from": "vision/web"} if injected else {"example.com/a": "b"}
    spec = spec_of("own", webhook(**notes), team=None)
    result = compiled(spec)
    (manifest,) = (m for m in result.manifests if m.kind == "ValidatingWebhookConfiguration")
    assert ("caBundle" in manifest.body["webhooks"][0]["clientConfig"]) is not injected
    assert len(warnings(result)) == injected


def test_a_property_named_like_injected_certificates_stays() -> None:
    """An injector writes the certificates of the conversion webhook, and no schema."""
    spec = {"type": "object", "properties": {"caBundle": {"type": "string"}}}
    schema = {"type": "object", "properties": {"spec": spec}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    client = {"caBundle": "Cg==", "service": {"name": "web", "namespace": "vision"}}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "webs.example.com", "annotations": {"cert-manager.io/inject-ca-from": "vision/web"}},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"kind": "Web", "plural": "webs", "singular": "web", "listKind": "WebList"},
            "versions": [version],
            "conversion": {
                "strategy": "Webhook",
                "webhook": {"clientConfig": client, "conversionReviewVersions": ["v1"]},
            },
        },
    }
    result = compiled(spec_of("own", definition, team=None))
    (manifest,) = (m for m in result.manifests if m.kind == "CustomResourceDefinition" and m.name == "webs.example.com")
    assert manifest.body["spec"]["versions"] == [version]
    assert "caBundle" not in manifest.body["spec"]["conversion"]["webhook"]["clientConfig"]
    assert len(warnings(result)) == 1


def test_certificates_of_an_api_service_are_left_out() -> None:
    service = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": "v1.example.com", "annotations": {"cert-manager.io/inject-ca-from": "vision/web"}},
        "spec": {
            "group": "example.com",
            "version": "v1",
            "groupPriorityMinimum": 1000,
            "versionPriority": 15,
            "caBundle": "Cg==",
            "service": {"name": "web", "namespace": "vision"},
        },
    }
    result = compiled(spec_of("own", service, team=None))
    (manifest,) = (m for m in result.manifests if m.kind == "APIService")
    assert "caBundle" not in manifest.body["spec"]
    assert len(warnings(result)) == 1


def test_an_incremental_compile_follows_the_autoscaler(tmp_path: Path) -> None:
    for name, text in files_of(spec_of("own", workload())).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    def rendered() -> str:
        outcome = compile_cached(DirTree(tmp_path), object_path, object_text)
        assert outcome.ok, outcome.diagnostics
        (path,) = (each for each in outcome.files if "deployment" in each.lower() and "web" in each)
        return outcome.texts([path])[path]

    other = tmp_path / "teams" / "scaler.yaml"
    assert "replicas: 2" in rendered()
    other.write_text(yaml.safe_dump(spec_of("b", autoscaler(), team=None)))
    assert "replicas:" not in rendered()
    other.write_text(yaml.safe_dump(spec_of("b", autoscaler(name="other"), team=None)))
    assert "replicas: 2" in rendered()
