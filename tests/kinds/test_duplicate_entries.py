"""Entries with the keys of another one, which server-side apply refuses: an error at the spec that has them."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from avactl.compiler import compile_tree
from avactl.compiler.normalise import refusals
from avactl.program.kubernetes_schema import duplicate_violations
from avactl.spec.repository.tree import MemoryTree
from tests.kinds.test_autoscaled_manifests import files_of, spec_of
from tests.kinds.test_kubernetes_objects import POD, WORKLOAD
from tests.kinds.test_pod_settings import WORKLOADS, compiled


def service(*ports: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"ports": list(ports)}}


def deployment(pod: dict[str, Any] | None = None, **container: Any) -> dict[str, Any]:
    body: dict[str, Any] = yaml.safe_load(yaml.safe_dump(WORKLOAD))
    inside = body["spec"]["template"]["spec"]
    inside["containers"][0] |= container
    inside |= pod or {}
    return body


HTTP, ADMIN = {"name": "http", "containerPort": 8080}, {"name": "admin", "containerPort": 8080}
DUPLICATES: dict[str, tuple[dict[str, Any], str, str]] = {
    "ports": (
        service({"name": "http", "port": 80}, {"name": "web", "port": 80, "protocol": "TCP"}),
        "`80/TCP`",
        "spec.ports.1.port",
    ),
    "container-ports": (
        deployment(ports=[HTTP, ADMIN]),
        "`8080/TCP`",
        "spec.template.spec.containers.0.ports.1.containerPort",
    ),
    "pull-secrets": (
        deployment({"imagePullSecrets": [{"name": "a"}, {"name": "a"}]}),
        "`a`",
        "spec.template.spec.imagePullSecrets.1.name",
    ),
    "aliases": (
        deployment({"hostAliases": [{"ip": "10.0.0.1", "hostnames": [each]} for each in "ab"]}),
        "`10.0.0.1`",
        "spec.template.spec.hostAliases.1.ip",
    ),
    "env": (
        deployment(env=[{"name": "A", "value": "1"}, {"name": "B"}, {"name": "A", "value": "2"}]),
        "`A`",
        "spec.template.spec.containers.0.env.2.name",
    ),
    "finalizers": (
        {**service({"port": 80}), "metadata": {"name": "a", "finalizers": ["a/b", "a/b"]}},
        "`a/b`",
        "metadata.finalizers.1",
    ),
}


@pytest.mark.parametrize("case", DUPLICATES)
def test_manifests_say_where(case: str) -> None:
    body, word, path = DUPLICATES[case]
    spec = spec_of("own", body, team=None)
    result = compile_tree(MemoryTree(files_of(spec)))
    (problem,) = (each for each in result.diagnostics if each.severity == "error")
    assert problem.message.endswith(f": {word} is listed twice")
    (item,) = (each for each in result.program.items if each.kind == "KubernetesObjects")
    steps = [int(step) if step.isdigit() else step for step in path.split(".")]
    assert problem.span == item.span("spec", "objects", 0, *steps)


@pytest.mark.parametrize(
    "body",
    [
        service({"name": "a", "port": 53}, {"name": "b", "port": 53, "protocol": "UDP"}),
        deployment(ports=[HTTP, {**ADMIN, "protocol": "UDP"}]),
        # Lists that are replaced as a whole may repeat themselves.
        deployment(args=["-v", "-v"]),
        deployment({"tolerations": [{"key": "a"}, {"key": "a"}]}),
    ],
)
def test_entries_with_other_keys_are_accepted(body: dict[str, Any]) -> None:
    assert not list(duplicate_violations(body))


def test_pods_of_other_operators_are_checked() -> None:
    pods = {"workerTemplate": {"spec": {**POD, "imagePullSecrets": [{"name": "a"}, {"name": "a"}]}}}
    metadata = {"name": "a"}
    kind = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
    body = {**kind, "metadata": metadata, "spec": {"leaderWorkerTemplate": pods}}
    (violation,) = duplicate_violations(body)
    assert violation.message == "`a` is listed twice"


@pytest.mark.parametrize("kind", WORKLOADS)
def test_compiled_objects_are_checked(kind: str) -> None:
    aliases = [{"ip": "10.0.0.1", "hostnames": [each]} for each in "ab"]
    result = compiled(kind, {"pod": {"hostAliases": aliases}})
    (problem,) = (each for each in result.diagnostics if each.severity == "error")
    assert (problem.code, problem.message) == ("duplicate-entry", "`10.0.0.1` is listed twice")
    (item,) = (each for each in result.program.items if each.kind == kind)
    assert problem.span == item.span("spec", "pod", "hostAliases", 1, "ip")


def test_a_compiled_object_names_its_spec() -> None:
    """Where the spec writes the list in another form, the object and its field are named."""
    result = compiled("ServingDeployment", {})
    (manifest,) = (each for each in result.manifests if (each.kind, each.name) == ("Service", "one"))
    manifest.body["spec"]["ports"] *= 2
    (problem,) = refusals(manifest)
    assert "compiles to Service vision/one, in which" in problem.message
    assert problem.message.endswith("is listed twice: spec.ports[1].port")
