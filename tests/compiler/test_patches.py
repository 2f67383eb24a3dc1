"""Patches: each need of docs/expressing.md, strategic merge, JSON Patch, provenance in the diff, limits by path."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from avactl.change.diff.compare import compare
from avactl.change.diff.json_output import render_json
from avactl.change.diff.text import render_text
from avactl.compiler import compile_tree
from avactl.compiler.driver import compile_change
from avactl.compiler.incremental.compile import compile_cached
from avactl.compiler.patches.merge import PatchError, json_patched, strategic_merge
from avactl.contracts.pod_annotations import RUN_DIGEST
from avactl.program import kubernetes_schema
from avactl.spec.repository.tree import DirTree, MemoryTree
from avactl.spec.schema.base import JsonOperation
from tests.conftest import ROOT
from tests.kinds.compiling import apply
from tests.kinds.test_pod_settings import PLATFORM, SPECS, steps
from tools.controlplane import KubeClient

TEXT = (ROOT / "docs/expressing.md").read_text()
NEEDS = {
    need: (kind, yaml.safe_load(patch), sets)
    for need, kind, patch, sets in re.findall(
        r"^\| ([^|]+) \| (\w+) \| `(.+)` \| `([^`]+)` \|$",
        TEXT[TEXT.index("## Patches") : TEXT.index("## Manifests as they are")],
        re.MULTILINE,
    )
}


def files(kind: str, patches: list[Any], **more: Any) -> dict[str, bytes]:
    spec = {
        "apiVersion": "avactl.dev/v1",
        "kind": kind,
        "metadata": {"name": "one", "team": "vision"},
        "spec": {**SPECS[kind], **more},
        **({"patches": patches} if patches else {}),
    }
    platform = "\n---\n".join(f"apiVersion: avactl.dev/v1\n{part.strip()}" for part in PLATFORM.split("\n---\n"))
    return {"platform.yaml": platform.encode(), "teams/one.yaml": yaml.safe_dump(spec, sort_keys=False).encode()}


def bodies(kind: str, patches: list[Any], **more: Any) -> list[Any]:
    result = compile_tree(MemoryTree(files(kind, patches, **more)))
    assert result.ok, [problem.message for problem in result.diagnostics]
    return [manifest.body for manifest in result.manifests]


def test_the_page_has_the_needs() -> None:
    assert len(NEEDS) >= 8


@pytest.mark.parametrize("need", NEEDS)
def test_each_need_of_the_page_sets_what_it_says(need: str) -> None:
    kind, patch, sets = NEEDS[need]
    plain = {step for body in bodies(kind, []) for step in steps(body)}
    new = {step for body in bodies(kind, [patch]) for step in steps(body)} - plain
    assert any(sets in f"{path} {value}" for path, value in new)


def test_the_api_server_takes_the_patched_objects(kube: KubeClient, namespace: str) -> None:
    for kind in SPECS:
        patches = [patch for of, patch, _ in NEEDS.values() if of == kind]
        result = compile_tree(MemoryTree(files(kind, patches)))
        mine = [manifest for manifest in result.manifests if manifest.item.kind == kind]
        for manifest in mine:
            manifest.body["metadata"] |= {"namespace": namespace, "name": f"{kind.lower()}-{manifest.name}"}
        apply(kube, mine)


POD = kubernetes_schema.resolve_reference({"ref": "io.k8s.api.core.v1.PodSpec"})


def test_lists_are_merged_by_their_keys() -> None:
    pod = {
        "containers": [{"name": "a", "image": "a:1", "env": [{"name": "X", "value": "1"}], "args": ["1", "2"]}],
        "volumes": [{"name": "v", "emptyDir": {}}],
        "tolerations": [{"key": "a"}],
    }
    patch = {
        "containers": [{"name": "a", "env": [{"name": "Y", "value": "2"}], "args": ["3"]}, {"name": "b"}],
        "volumes": [{"name": "v", "configMap": {"name": "c"}}],
        "tolerations": [{"key": "b"}],
        "hostname": None,
    }
    found = strategic_merge(POD, pod, patch)
    assert [each["name"] for each in found["containers"]] == ["a", "b"]
    assert found["containers"][0]["env"] == [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]
    assert found["containers"][0]["args"] == ["3"]
    assert found["volumes"] == [{"name": "v", "configMap": {"name": "c"}}]  # a volume has one source
    assert found["tolerations"] == [{"key": "b"}]  # no merge key: replaced
    gone = strategic_merge(POD, pod, {"containers": [{"name": "a", "$patch": "delete"}], "volumes": None})
    assert gone == {"containers": [], "tolerations": [{"key": "a"}]}
    assert pod["volumes"]
    with pytest.raises(PatchError, match="no entry with `name: x`"):
        strategic_merge(POD, pod, {"containers": [{"name": "x", "$patch": "delete"}]})


def test_programs_of_followers_are_containers_too() -> None:
    pod = {"containers": [{"name": "follower"}], "initContainers": [{"name": "worker", "image": "a:1"}]}
    found = strategic_merge(POD, pod, {"containers": [{"name": "worker", "imagePullPolicy": "Always"}]})
    assert found["containers"] == [{"name": "follower"}]
    assert found["initContainers"] == [{"name": "worker", "image": "a:1", "imagePullPolicy": "Always"}]


def test_operations_of_rfc_6902() -> None:
    def of(op: str, path: str, value: Any = None) -> JsonOperation:
        return JsonOperation.model_validate({"op": op, "path": path, "value": value})

    target = {"a": {"b/c": [1, 2]}}
    assert json_patched(target, [of("add", "/a/b~1c/-", 3), of("add", "/a/b~1c/0", 0)]) == {"a": {"b/c": [0, 1, 2, 3]}}
    assert json_patched(target, [of("remove", "/a/b~1c/0"), of("replace", "/a/b~1c/0", 9)]) == {"a": {"b/c": [9]}}
    assert json_patched(target, [of("test", "/a/b~1c", [1, 2])]) == target
    for wrong in (of("replace", "/x", 1), of("remove", "/a/b~1c/7"), of("add", "/a/b~1c/x", 1), of("test", "/a", 1)):
        with pytest.raises(PatchError):
            json_patched(target, [wrong])


PATCH = {"target": {"kind": "Job"}, "merge": {"spec": {"template": {"spec": {"enableServiceLinks": True}}}}}


def test_a_patched_job_is_a_new_run_of_all_roles() -> None:
    more = {"strategy": "mpi", "workers": {"replicas": 2}}
    only = {**PATCH, "target": {"kind": "Job", "role": "worker"}}

    def runs(patches: list[Any]) -> set[str]:
        jobs = [body for body in bodies("TrainingJob", patches, **more) if body["kind"] == "Job"]
        holders = [each for job in jobs for each in (job["metadata"], job["spec"]["template"]["metadata"])]
        assert len(holders) == 4
        return {each["annotations"][RUN_DIGEST.name] for each in holders}

    assert len(runs([])) == len(runs([only])) == 1
    assert runs([]) != runs([only])


def test_the_diff_shows_patched_values_as_the_users_own() -> None:
    base, head = MemoryTree(files("TrainingJob", [])), MemoryTree(files("TrainingJob", [PATCH]))
    for before, after in ((base, head), (head, base)):
        diff = compare(*compile_change(before, after))
        text = render_text(diff)
        line = files("TrainingJob", [PATCH])["teams/one.yaml"].decode().splitlines().index("- target:") + 1
        assert f"(patch teams/one.yaml:{line})" in text
        assert f'"patch":"teams/one.yaml:{line}"' in render_json(diff).replace(": ", ":")


def test_a_new_spec_shows_its_patches() -> None:
    given = files("TrainingJob", [PATCH])
    diff = compare(*compile_change(MemoryTree({"platform.yaml": given["platform.yaml"]}), MemoryTree(given)))
    line = given["teams/one.yaml"].decode().splitlines().index("- target:") + 1
    assert f"patches Job (teams/one.yaml:{line})" in render_text(diff)


def test_incremental_compiles_apply_and_refuse_them(tmp_path: Path) -> None:
    for name, data in files("TrainingJob", [PATCH]).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)

    def compiled() -> Any:
        return compile_cached(DirTree(tmp_path), lambda m: f"{m.kind}-{m.name}", lambda m: str(m.body))

    first, again = compiled(), compiled()
    assert first.ok
    assert first.files == again.files
    assert "'enableServiceLinks': True" in first.texts(["Job-one-worker"])["Job-one-worker"]
    wrong = {**PATCH, "target": {"kind": "Job", "role": "none"}}
    (tmp_path / "teams/one.yaml").write_bytes(files("TrainingJob", [wrong])["teams/one.yaml"])
    assert [problem.code for problem in compiled().diagnostics] == ["patch-without-target"]


EVERYONE = {
    "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname", "namespaceSelector": {}, "labelSelector": {}},
    "weight": 1,
}
PODS = {"Job": "TrainingJob", "Deployment": "ServingDeployment", "HorizontalPodAutoscaler": "ServingDeployment"}


def volume(**source: Any) -> dict[str, Any]:
    return {"spec": {"volumes": [{"name": "x", **source}]}}


@pytest.mark.parametrize(
    ("kind", "merge"),
    [
        (
            "Deployment",
            {"spec": {"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [EVERYONE]}}}},
        ),
        ("Job", {"spec": {"nodeSelector": {"avactl.dev/gpu": None}}}),
        ("Job", {"spec": {"nodeSelector": {"avactl.dev/gpu": "H100"}}}),
        ("Job", {"spec": {"nodeSelector": {"node-role.kubernetes.io/control-plane": ""}}}),
        ("Job", {"metadata": {"annotations": {"devices.crio.io": "/dev/mem"}}}),
        ("Job", {"metadata": {"annotations": {"io.kubernetes.cri-o.Devices": "/dev/mem"}}}),
        ("Job", {"metadata": {"labels": {"job-name": "other"}}}),
        ("Job", volume(projected={"sources": [{"serviceAccountToken": {"path": "token"}}]})),
        (
            "Job",
            volume(
                projected={
                    "sources": [
                        {
                            "podCertificate": {
                                "signerName": "kubernetes.io/kube-apiserver-client-pod",
                                "keyType": "ED25519",
                            }
                        }
                    ]
                }
            ),
        ),
        (
            "Job",
            volume(
                ephemeral={
                    "volumeClaimTemplate": {
                        "spec": {
                            "accessModes": ["ReadWriteOnce"],
                            "volumeName": "pv",
                            "resources": {"requests": {"storage": "1Gi"}},
                        }
                    }
                }
            ),
        ),
    ],
)
def test_escapes_of_the_tenancy(kind: str, merge: dict[str, Any]) -> None:
    patch = {"target": {"kind": kind}, "merge": {"spec": {"template": merge}}}
    result = compile_tree(MemoryTree(files(PODS[kind], [patch])))
    assert [problem.code for problem in result.diagnostics] == ["patch-not-allowed"]


def test_the_most_replicas_are_those_of_the_spec() -> None:
    patch = {"target": {"kind": "HorizontalPodAutoscaler"}, "merge": {"spec": {"maxReplicas": 1000}}}
    result = compile_tree(MemoryTree(files("ServingDeployment", [patch], replicas={"min": 1, "max": 2})))
    assert [problem.code for problem in result.diagnostics] == ["patch-not-allowed"]


@pytest.mark.parametrize(
    "patch",
    [
        {"merge": {"spec": {"template": {"spec": {"containers": [{"name": "worker", "image": "miner:latest"}]}}}}},
        {"jsonPatch": [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "miner:latest"}]},
    ],
)
def test_policies_see_the_images_of_patches(patch: dict[str, Any]) -> None:
    tree = MemoryTree(
        {
            **files("TrainingJob", [{"target": {"kind": "Job"}, **patch}], image=f"a@sha256:{'0' * 64}"),
            "avactl.yaml": b"policies: {images-pinned: error}",
        }
    )
    assert "policy/images-pinned" in [problem.id for problem in compile_tree(tree).diagnostics]


def serving(*terms: Any) -> Any:
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    pod = {
        "affinity": {"podAntiAffinity": {key: [{"topologyKey": "kubernetes.io/hostname", **term} for term in terms]}}
    }
    return {"target": {"kind": "Deployment"}, "merge": {"spec": {"template": {"spec": pod}}}}


def of_run(path: str, value: Any) -> Any:
    return {"target": {"kind": "Job"}, "jsonPatch": [{"op": "add", "path": f"/spec/template/{path}", "value": value}]}


@pytest.mark.parametrize(
    ("kind", "patch", "code"),
    [
        ("ServingDeployment", serving({"namespaceSelector": {}}), "patch-not-allowed"),
        ("ServingDeployment", serving({}, {"namespaces": ["nlp"]}), "patch-not-allowed"),
        ("TrainingJob", of_run("metadata/annotations/io.kubernetes.cri-o.Devices", "/dev/mem"), "patch-not-allowed"),
        ("TrainingJob", of_run("spec/tolerations", [None]), "patch-invalid"),
        ("TrainingJob", of_run("spec/containers/0/env/-", None), "patch-invalid"),
        ("TrainingJob", of_run("spec/containers/-", None), "patch-invalid"),
        ("TrainingJob", of_run("spec/containers/0/resources/requests/cpu", "many"), "patch-invalid"),
    ],
)
def test_what_only_the_platforms_account_could_do_is_refused(kind: str, patch: Any, code: str) -> None:
    result = compile_tree(MemoryTree(files(kind, [patch])))
    assert {problem.code for problem in result.diagnostics} == {code}


def test_services_may_stay_away_from_pods_of_their_own_namespace() -> None:
    assert bodies("ServingDeployment", [serving({"labelSelector": {"matchLabels": {"a": "b"}}})])


@pytest.mark.parametrize(("patches", "codes"), [("[]", ["not-owner"]), ("[Service]", ["not-owner"]), ("[Job]", [])])
def test_owners_limit_them_by_path(patches: str, codes: list[str]) -> None:
    config = f"""
owners:
  - {{path: "*", teams: ["*"], kinds: ["*"]}}
  - {{path: /teams/, teams: [vision], patches: {patches}}}
"""
    tree = MemoryTree({**files("TrainingJob", [PATCH]), "avactl.yaml": config.encode()})
    assert [problem.code for problem in compile_tree(tree).diagnostics] == codes
