"""KubernetesObjects: inline manifests, files and directories; ownership, rights of teams, diff, compiles."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from avactl.change.diff.compare import compare
from avactl.change.diff.text import render_text
from avactl.compiler import Compilation, compile_tree
from avactl.compiler.driver import compile_change
from avactl.compiler.incremental.compile import compile_cached
from avactl.kinds.kubernetes_objects.sources import MAX_OBJECTS
from avactl.program import kubernetes_schema
from avactl.spec.repository.tree import DirTree, MemoryTree
from tests.conftest import ROOT
from tests.kinds.compiling import apply
from tests.kinds.test_pod_settings import PLATFORM
from tools.controlplane import ControlPlane
from tools.waiting import wait_until

SECURITY = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONFIG = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": "1"}}
POD = {"containers": [{"name": "main", "image": "a:1", "securityContext": SECURITY}]}
WORKLOAD: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web", "labels": {"app.kubernetes.io/name": "web"}},
    "spec": {
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": POD},
    },
}
ROLE = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "own"}, "rules": []}
RULE = {
    "apiVersion": "monitoring.coreos.com/v1",
    "kind": "PrometheusRule",
    "metadata": {"name": "r"},
    "spec": {"groups": []},
}


def tree(spec: dict[str, Any], team: str | None = "vision", files: dict[str, Any] | None = None) -> MemoryTree:
    metadata = {"name": "own", **({"team": team} if team else {})}
    document = {"apiVersion": "avactl.dev/v1", "kind": "KubernetesObjects", "metadata": metadata, "spec": spec}
    platform = "\n---\n".join(f"apiVersion: avactl.dev/v1\n{part.strip()}" for part in PLATFORM.split("\n---\n"))
    platform = platform.replace("podSecurity: baseline", "podSecurity: restricted")
    more = {path: text if isinstance(text, str) else yaml.safe_dump(text) for path, text in (files or {}).items()}
    config = "exclude: [teams/manifests/]\n"
    return MemoryTree(
        {"platform.yaml": platform, "teams/own.yaml": yaml.safe_dump(document), "avactl.yaml": config, **more}
    )


def mine(result: Compilation) -> dict[str, dict[str, Any]]:
    assert result.ok, [f"{p.span} {p.message}" for p in result.diagnostics]
    return {f"{m.kind}/{m.name}": m.body for m in result.manifests if m.item.kind == "KubernetesObjects"}


def codes(result: Compilation) -> list[str]:
    return [problem.code for problem in result.diagnostics]


def test_inline_files_and_directories() -> None:
    two = "---\n# Source: chart\n" + yaml.safe_dump(WORKLOAD) + "---\n---\n" + yaml.safe_dump(RULE)
    files = {
        "teams/manifests/one.yaml": {
            "apiVersion": "v1",
            "kind": "List",
            "items": [{**CONFIG, "metadata": {"name": "b"}}],
        },
        "teams/manifests/chart/templates/two.yaml": two,
        "teams/manifests/chart/NOTES.txt": "hello",
    }
    spec = {"objects": [CONFIG], "files": ["manifests/one.yaml", "manifests/chart"], "namespace": "monitoring"}
    found = mine(compile_tree(tree(spec, None, files)))
    assert [*found] == ["ConfigMap/a", "ConfigMap/b", "Deployment/web", "PrometheusRule/r"]
    assert {body["metadata"]["namespace"] for body in found.values()} == {"monitoring"}
    assert {body["metadata"]["labels"]["app.kubernetes.io/managed-by"] for body in found.values()} == {"avactl"}
    assert found["Deployment/web"]["metadata"]["labels"]["app.kubernetes.io/name"] == "web"


def test_objects_of_teams_get_what_admission_requires() -> None:
    found = mine(compile_tree(tree({"objects": [WORKLOAD]})))
    body = found["Deployment/web"]
    assert (body["metadata"]["namespace"], body["metadata"]["labels"]["avactl.dev/team"]) == ("vision", "vision")
    pod = body["spec"]["template"]["spec"]
    assert pod["schedulerName"] == "avactl"
    assert pod["containers"][0]["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    assert "env" not in POD["containers"][0]


def changed(*path: str, value: Any) -> dict[str, Any]:
    body = yaml.safe_load(yaml.safe_dump(WORKLOAD))
    at = body
    for step in path[:-1]:
        at = at[int(step)] if isinstance(at, list) else at.setdefault(step, {})
    at[path[-1]] = value
    return dict(body)


TEMPLATE = ("spec", "template", "spec")
AFFINITY = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}, "namespaceSelector": {}}
        ]
    }
}
MAIN = (*TEMPLATE, "containers", "0")
ATTEMPTS = {
    "cluster role": ROLE,
    "network policy": {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "open"}},
    "custom kind": RULE,
    "other namespace": changed("metadata", "namespace", value="kube-system"),
    "owner": changed("metadata", "labels", value={"avactl.dev/team": "nlp"}),
    "pods of a job": changed("spec", "template", "metadata", "labels", "app.kubernetes.io/name", value="pipeline"),
    "pod of a service": {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "labels": {"app.kubernetes.io/name": "servingdeployment"}},
        "spec": POD,
    },
    "hook": changed("metadata", "annotations", value={"helm.sh/hook": "pre-install"}),
    "host network": changed(*TEMPLATE, "hostNetwork", value=True),
    "host process": changed(*TEMPLATE, "hostPID", value=True),
    "host path": changed(*TEMPLATE, "volumes", value=[{"name": "x", "hostPath": {"path": "/"}}]),
    "nfs": changed(*TEMPLATE, "volumes", value=[{"name": "x", "nfs": {"server": "a", "path": "/"}}]),
    "node": changed(*TEMPLATE, "nodeName", value="n"),
    "scheduler": changed(*TEMPLATE, "schedulerName", value="default-scheduler"),
    "runtime class": changed(*TEMPLATE, "runtimeClassName", value="kata"),
    "priority": changed(*TEMPLATE, "priorityClassName", value="avactl-serving"),
    "account": changed(*TEMPLATE, "serviceAccountName", value="admin"),
    "plugin of NRI": changed("spec", "template", "metadata", "annotations", value={"x.noderesource.dev/pod": "x"}),
    "account by its former key": changed(*TEMPLATE, "serviceAccount", value="train-follower"),
    "other teams' nodes": changed(*TEMPLATE, "affinity", value=AFFINITY),
    "runtime": changed("spec", "template", "metadata", "annotations", value={"devices.crio.io": "/dev/mem"}),
    "devices of a variable": changed(
        *MAIN,
        "env",
        value=[{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "x"}}}],
    ),
    "no profile of AppArmor": changed(
        *MAIN, "securityContext", value={**SECURITY, "appArmorProfile": {"type": "Unconfined"}}
    ),
    "labels of runs": {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "c"},
        "spec": {
            "schedule": "0 0 * * *",
            "jobTemplate": {
                "metadata": {"labels": {"avactl.dev/team": "nlp"}},
                "spec": {"template": {"spec": {**POD, "restartPolicy": "Never"}}},
            },
        },
    },
    "ephemeral": {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {**POD, "ephemeralContainers": [{"name": "e", "image": "a:1"}]},
    },
    "tolerations": changed(*TEMPLATE, "tolerations", value=[{"operator": "Exists"}]),
    "grace": changed(*TEMPLATE, "terminationGracePeriodSeconds", value=9999),
    "no grace": changed(*TEMPLATE, "terminationGracePeriodSeconds", value=0),
    "devices": changed(*MAIN, "env", value=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]),
    "host port": changed(*MAIN, "ports", value=[{"containerPort": 1, "hostPort": 1}]),
    "privileged": changed(*MAIN, "securityContext", value={**SECURITY, "privileged": True}),
    "root": changed(*MAIN, "securityContext", value={**SECURITY, "runAsUser": 0}),
    "no profile": changed(*MAIN, "securityContext", value={**SECURITY, "seccompProfile": {"type": "Unconfined"}}),
    "capability": changed(
        *MAIN, "securityContext", value={**SECURITY, "capabilities": {"drop": ["ALL"], "add": ["X"]}}
    ),
    "no context": changed(*MAIN, "securityContext", value={}),
    "node port": {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"type": "NodePort"}},
    "external": {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "s"},
        "spec": {"externalIPs": ["1.1.1.1"]},
    },
    "volume": {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "c"},
        "spec": {"volumeName": "v"},
    },
}


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_teams_may_have_what_their_members_may_create(attempt: str) -> None:
    assert {*codes(compile_tree(tree({"objects": [ATTEMPTS[attempt]]})))} == {"manifest-not-allowed"}


INVALID = {
    "admin access to devices": (
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": "devices", "labels": {"resource.kubernetes.io/admin-access": "true"}},
        },
        "manifest-not-allowed",
    ),
    "unknown key": (changed("spec", "replica", value=1), "manifest-invalid"),
    "wrong type": (changed("spec", "replicas", value="two"), "manifest-invalid"),
    "old version": ({**CONFIG, "apiVersion": "extensions/v1beta1", "kind": "Ingress"}, "manifest-invalid"),
    "unknown kind": ({**CONFIG, "kind": "ConfigMaps"}, "manifest-invalid"),
    "no name": ({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "a-"}}, "manifest-invalid"),
    "no kind": ({"apiVersion": "v1"}, "manifest-invalid"),
    "no namespace": (CONFIG, "manifest-invalid"),
    "kind of a path": ({**RULE, "kind": "../../../../x"}, "manifest-invalid"),
    "group of a path": ({**RULE, "apiVersion": "a./../../../v1"}, "manifest-invalid"),
    "name of a path": ({**RULE, "metadata": {"name": "../x", "namespace": "x"}}, "manifest-invalid"),
    "name of lines": ({**RULE, "metadata": {"name": "x\n::error::y", "namespace": "x"}}, "manifest-invalid"),
    "namespace of a path": ({**RULE, "metadata": {"name": "x", "namespace": ".."}}, "manifest-invalid"),
    "secret": (
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "x"}, "data": {"a": "YQ=="}},
        "credential-literal",
    ),
    "secret of a wrong type": (
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "s", "namespace": "x"},
            "stringData": {"pin": 12345678},
        },
        "credential-literal",
    ),
    "credential": (
        {**CONFIG, "metadata": {"name": "a", "namespace": "x"}, "data": {"password": "hunter2hunter2"}},
        "credential-literal",
    ),
}


@pytest.mark.parametrize("case", INVALID)
def test_manifests_that_are_refused_to_everyone(case: str) -> None:
    body, code = INVALID[case]
    assert codes(compile_tree(tree({"objects": [body]}, None))) == [code]


def test_policies_see_the_images_of_files() -> None:
    given = tree({"files": ["manifests"]}, files={"teams/manifests/web.yaml": WORKLOAD})
    config = b"exclude: [teams/manifests/]\npolicies: {images-pinned: error}\n"
    files = {path: given.read(path) for path in given.paths()}
    found = compile_tree(MemoryTree({**files, "avactl.yaml": config})).diagnostics
    assert [problem.id for problem in found if "a:1" in problem.message] == ["policy/images-pinned"]


EMPTY = {
    "container": changed(*TEMPLATE, "containers", value=[None]),
    "toleration": changed(*TEMPLATE, "tolerations", value=[None]),
    "volume": changed(*TEMPLATE, "volumes", value=[None]),
    "name": changed(*MAIN, "name", value=None),
}


@pytest.mark.parametrize("what", EMPTY)
def test_empty_entries_are_refused(what: str) -> None:
    assert codes(compile_tree(tree({"objects": [EMPTY[what]]}))) == ["manifest-invalid"]


HOSTILE = {
    "pods": changed("spec", "replicas", value=10**9),
    "fewer than none": changed("spec", "replicas", value=-1),
    "quantity": changed(*MAIN, "resources", value={"limits": {"cpu": "many"}}),
    "exponent": changed(*MAIN, "resources", value={"requests": {"memory": "1e999999999"}}),
    "no spec": changed("spec", value=None),
    "no pod": changed(*TEMPLATE, value=None),
    "autoscaler": {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"}},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_plan_could_not_read_is_refused(what: str) -> None:
    assert codes(compile_tree(tree({"objects": [HOSTILE[what]]}))) == ["manifest-invalid"]


def test_problems_of_one_manifest_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(kubernetes_schema, "closest_word", lambda word, _: asked.append(word))
    body = {**CONFIG, **{f"x{index}": 1 for index in range(1000)}}
    assert codes(compile_tree(tree({"objects": [body]}))) == ["manifest-invalid"] * 50
    assert len(asked) == 50


def test_keys_that_are_null_are_absent() -> None:
    found = mine(compile_tree(tree({"objects": [changed("spec", "replicas", value=None)]})))
    assert "replicas" not in found["Deployment/web"]["spec"]


@pytest.mark.parametrize(
    "amounts", [{"requests": {"memory": None}}, {"requests": {"cpu": "1"}, "limits": {"cpu": None}}]
)
def test_amounts_that_are_null_are_absent(amounts: dict[str, Any]) -> None:
    result = compile_tree(tree({"objects": [changed(*MAIN, "resources", value=amounts)]}))
    assert "internal-error" not in codes(result)


def test_problems_of_files_stand_in_them() -> None:
    files = {"teams/manifests/a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndatas: {}\n"}
    (problem,) = compile_tree(tree({"files": ["manifests"]}, files=files)).diagnostics
    assert (problem.span.file, problem.span.line) == ("teams/manifests/a.yaml", 4)
    assert problem.hint == "did you mean `data`?"
    assert codes(compile_tree(tree({"files": ["none", "none.yaml"]}))) == ["missing-reference"] * 2
    assert codes(compile_tree(tree({"objects": [CONFIG, CONFIG]}))) == ["duplicate-entry"]
    assert codes(compile_tree(tree({}))) == ["missing-key"]
    twice = {"files": ["manifests/a.yaml", "manifests", "manifests/a.yaml"]}
    assert codes(compile_tree(tree(twice, files={"teams/manifests/a.yaml": CONFIG}))) == ["duplicate-entry"] * 2


def test_a_spec_with_too_many_manifests_reads_no_further() -> None:
    many = {"apiVersion": "v1", "kind": "List", "items": [{}] * (MAX_OBJECTS + 1)}
    files = {"teams/manifests/a.json": json.dumps(many), "teams/manifests/b.yaml": "not: [yaml"}
    assert codes(compile_tree(tree({"files": ["manifests"]}, files=files))) == ["invalid-value"]


def test_the_diff_names_the_spec() -> None:
    files = {"teams/manifests/a.yaml": CONFIG}
    other = {"teams/manifests/a.yaml": {**CONFIG, "data": {"x": "2"}}}
    base, head = tree({"files": ["manifests"]}, files=files), tree({"files": ["manifests"]}, files=other)
    text = render_text(compare(*compile_change(base, head)))
    assert "KubernetesObjects vision/own" in text
    assert "ConfigMap vision/a x 1 → 2" in text
    gone = render_text(compare(*compile_change(base, tree({"objects": [WORKLOAD]}))))
    assert "ConfigMap vision/a" in gone


TEXT = (ROOT / "docs/expressing.md").read_text()
TEXT = TEXT[TEXT.index("## Manifests as they are") :]
NEEDS = re.findall(r"^\| ([^|]+) \| (platform|team) \| `(.+)` \| `([^`]+)` \|$", TEXT, re.MULTILINE)


@pytest.mark.parametrize(("need", "whose", "spec", "makes"), NEEDS, ids=[need for need, *_ in NEEDS])
def test_each_need_of_the_page_compiles(need: str, whose: str, spec: str, makes: str) -> None:
    found = mine(compile_tree(tree(yaml.safe_load(spec), "vision" if whose == "team" else None)))
    assert makes in found


def test_the_example_of_the_page_patches_a_chart() -> None:
    example = TEXT[TEXT.index("```yaml\n") + 8 :].partition("```")[0]
    empty = tree({})
    given = {path: empty.read(path) for path in empty.paths()}
    chart = yaml.safe_dump({**WORKLOAD, "metadata": {"name": "grafana"}}).encode()
    files = {
        **given,
        "teams/own.yaml": example.encode(),
        "teams/charts/grafana/a.yaml": chart,
        "avactl.yaml": b"exclude: [teams/charts]",
    }
    body = mine(compile_tree(MemoryTree(files)))["Deployment/grafana"]
    assert (body["spec"]["replicas"], body["metadata"]["namespace"]) == (2, "monitoring")


def test_incremental_compiles_follow_the_directory(tmp_path: Path) -> None:
    first = tree({"files": ["manifests"]}, files={"teams/manifests/a.yaml": CONFIG})
    for name in first.paths():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(first.read(name))

    def found() -> set[str]:
        result = compile_cached(DirTree(tmp_path), lambda m: f"{m.kind}-{m.name}", lambda m: str(m.body))
        assert result.ok, result.diagnostics
        return {path for path in result.files if path in ("ConfigMap-a", "ConfigMap-b", "Deployment-web")}

    assert found() == {"ConfigMap-a"}
    assert found() == {"ConfigMap-a"}
    (tmp_path / "teams/manifests/deep").mkdir()
    (tmp_path / "teams/manifests/deep/b.yaml").write_text(yaml.safe_dump({**CONFIG, "metadata": {"name": "b"}}))
    assert found() == {"ConfigMap-a", "ConfigMap-b"}
    (tmp_path / "teams/manifests/a.yaml").write_text(yaml.safe_dump(WORKLOAD))
    assert found() == {"Deployment-web", "ConfigMap-b"}
    (tmp_path / "teams/manifests/a.yaml").unlink()
    assert found() == {"ConfigMap-b"}


def test_a_null_in_a_config_map_is_left_out() -> None:
    result = compile_tree(tree({"objects": [{**CONFIG, "data": {"a": "1", "b": None}}]}))
    assert result.ok, result.diagnostics
    assert [m.body["data"] for m in result.manifests if m.item.kind == "KubernetesObjects"] == [{"a": "1"}]


def test_the_api_server_takes_them(new_plane: Callable[..., ControlPlane]) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}}
    result = compile_tree(tree({"objects": [WORKLOAD, CONFIG, service]}))
    plane = new_plane()
    with plane.client() as kube:
        apply(kube, result.manifests)
        account = {"name": "job-controller", "namespace": "kube-system"}
        kube.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
        kube.apply(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "vision"}}
        )
        template = mine(result)["Deployment/web"]["spec"]["template"]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "spec": template["spec"],
            "metadata": {**template["metadata"], "name": "check", "namespace": "vision"},
        }
        with plane.client(plane.service_account_token("kube-system", "job-controller")) as controller:
            probe = {**pod, "spec": {**pod["spec"], "nodeName": "x"}}
            wait_until(lambda: " node-name: " in controller.refusal(probe))
            controller.create(pod, dry_run=True)
    plane.close()


@pytest.mark.parametrize(
    ("team", "cluster", "answer"),
    [("vision", None, None), ("vision", "main", ["main"]), (None, None, ["main", "other"])],
)
def test_objects_of_a_team_on_two_clusters_name_one(
    team: str | None, cluster: str | None, answer: list[str] | None
) -> None:
    """As the other kinds of teams; the platform's go to all."""
    spec = {
        "objects": [CONFIG],
        **({"cluster": cluster} if cluster else {}),
        **({} if team else {"namespace": "vision"}),
    }
    metadata = {"name": "own", **({"team": team} if team else {})}
    document = {"apiVersion": "avactl.dev/v1", "kind": "KubernetesObjects", "metadata": metadata, "spec": spec}
    platform = "\n---\n".join(f"apiVersion: avactl.dev/v1\n{part.strip()}" for part in PLATFORM.split("\n---\n"))
    other = "apiVersion: avactl.dev/v1\nkind: Cluster\nmetadata: {name: other}\nspec: {}\n"
    result = compile_tree(MemoryTree({"a.yaml": platform, "b.yaml": other, "own.yaml": yaml.safe_dump(document)}))
    errors = [problem for problem in result.diagnostics if problem.severity == "error"]
    if answer is None:
        (problem,) = (each for each in errors if each.span.file == "own.yaml")
        assert problem.code == "ambiguous-reference"
        assert problem.message == "KubernetesObjects vision/own needs a cluster: team vision uses `main` or `other`"
        assert problem.hint == "add `cluster: main` under `spec`"
    else:
        assert not errors
        assert [m.cluster for m in result.manifests if m.item.kind == "KubernetesObjects"] == answer
