"""The ready-made policies: what each finds, where, and what it lets pass."""

from __future__ import annotations

import json
from typing import Any

import pytest

from avactl.compiler import compile_tree
from avactl.diagnostics import Diagnostic
from avactl.spec.repository.tree import MemoryTree
from tests.diff.sides import HEAD, PLATFORM, job

CLOSED = "spec:\n  egressAllowed: [10.0.0.0/8]\n  images:"


def problems(policies: str, *documents: str, platform: str = PLATFORM) -> list[Diagnostic]:
    text = "---\n".join(HEAD + document + "\n" for document in documents)
    files = {"avactl.yaml": f"policies: {policies}\n", "platform.yaml": platform, "specs.yaml": text}
    return list(compile_tree(MemoryTree(files)).diagnostics)


def told(found: list[Diagnostic], file: str = "specs.yaml") -> list[tuple[str, str]]:
    return [(d.id, d.message) for d in found if d.span.file == file and d.code == "policy"]


SERVICE = """kind: ServingDeployment
metadata: {name: s, team: vision}
spec:
  model: {name: resnet50, version: VERSION, url: "s3://models/7", secret: models-s3}
  runtime: {name: vllm, image: "example.com/serving"}
  resources: {cpu: 1, memory: 1Gi}
"""


def test_images_pinned() -> None:
    pinned = job("ok", image=f"example.com/train@sha256:{'0' * 64}")
    (found,) = problems("{images-pinned: error}", pinned, job())
    assert found.id == "policy/images-pinned"
    assert found.severity == "error"
    assert found.message == "image `example.com/train:1` is not pinned by digest: tags are mutable"
    assert (found.span.line, found.span.end_column - found.span.column) == (9, len("'example.com/train:1'"))
    assert "sha256" in found.hint


def test_versions_fixed() -> None:
    unversioned = job("b", datasets=[{"name": "imagenet", "mount": "/data"}])
    fixed = job("c", datasets=[{"name": "imagenet", "mount": "/data", "version": "v1"}])
    latest = job("a", image="localhost:5000/train:latest")
    service = SERVICE.replace("VERSION", "latest")
    found = told(problems("{versions-fixed: warning}", latest, unversioned, fixed, service))
    assert [message.split(",")[0].split(":")[0] for _, message in found] == [
        "image `localhost",
        "dataset imagenet has no version",
        "version `latest` of the model can change without a commit",
        "image `example.com/serving` has no tag and defaults to `latest`",
    ]


@pytest.mark.parametrize("policy", ["images-pinned", "versions-fixed"])
def test_images_of_patches_and_manifests(policy: str) -> None:
    pinned = f"example.com/train@sha256:{'0' * 64}"
    patch = {
        "target": {"kind": "Job"},
        "merge": {"spec": {"template": {"spec": {"containers": [{"name": "worker", "image": "example.com/other"}]}}}},
    }
    (found,) = problems(f"{{{policy}: error}}", f"{job('a', image=pinned).rstrip()}\npatches: [{json.dumps(patch)}]")
    assert "`example.com/other`" in found.message
    assert (found.span.file, found.span.line) == ("specs.yaml", 5)
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "x"},
        "spec": {"containers": [{"name": "main", "image": "example.com/other"}]},
    }
    spec = "kind: KubernetesObjects\nmetadata: {name: own}\nspec: {files: [m/a.json]}\n"
    files = {
        "avactl.yaml": f"policies: {{{policy}: error}}\nexclude: [m/]\n",
        "platform.yaml": PLATFORM,
        "specs.yaml": HEAD + spec,
        "m/a.json": json.dumps(manifest),
    }
    (found,) = compile_tree(MemoryTree(files)).diagnostics
    assert "`example.com/other`" in found.message


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "16 GPUs without a timeout and without a checkpoint"),
        ({"timeout": "6h"}, None),
        ({"timeout": "1d"}, "16 GPUs for 1d: 384 GPU-hours without a checkpoint"),
        ({"checkpoint": {"volume": "1Gi"}}, None),
        ({"suspended": True}, None),
        ({"strategy": "single", "workers": {"cpu": 1}}, None),
    ],
)
def test_checkpoints(fields: dict[str, Any], message: str | None) -> None:
    found = told(problems("{checkpoints: error}", job(**fields)))
    assert [text for _, text in found] == ([message] if message else [])


def test_checkpoints_with_another_bound() -> None:
    policies = "{checkpoints: {severity: warning, gpuHours: 384}}"
    assert told(problems(policies, job(timeout="1d"))) == []
    (found,) = (d for d in problems(policies, job(timeout="25h")) if d.code == "policy")
    assert found.severity == "warning"
    assert "at most 384 GPU-hours" in found.hint


def test_jobs_end() -> None:
    found = told(problems("{jobs-end: error}", job(), job("b", timeout="1d")))
    assert found == [("policy/jobs-end", "the job has no `timeout`: if it hangs, it keeps its GPUs")]


def test_services_redundant() -> None:
    service = SERVICE.replace("VERSION", '"7"')
    auto = service.replace("name: s,", "name: auto,") + "  replicas: {min: 1, max: 4}\n"
    two = service.replace("name: s,", "name: two,") + "  replicas: 2\n"
    found = problems("{services-redundant: error}", service, auto, two)
    assert [d.id for d in found] == ["policy/services-redundant"] * 2
    lines = "---\n".join(HEAD + document + "\n" for document in (service, auto, two)).split("\n")
    assert [lines[d.span.line - 1][d.span.column - 1 :] for d in found] == ["spec:", "1, max: 4}"]


def test_no_privileged() -> None:
    (found,) = problems("{no-privileged: error}", job())
    assert found.span.file == "platform.yaml"  # FUSE
    assert "more like it (DaemonSet avactl-cache/read-" in found.message
    assert problems("{no-privileged: {exempt: [read]}}", job()) == []


def test_egress_closed() -> None:
    (found,) = problems("{egress-closed: error}", job())
    assert "`egressAllowed: 0.0.0.0/0` (the default) lets" in found.message
    assert problems("{egress-closed: error}", job(), platform=PLATFORM.replace("spec:\n  images:", CLOSED)) == []
    opened = PLATFORM.replace("spec:\n  images:", CLOSED.replace("10.0.0.0/8", "10.0.0.0/8, '::/0'"))
    (found,) = problems("{egress-closed: error}", job(), platform=opened)
    assert (found.span.line, found.message[:22]) == (5, "`egressAllowed: ::/0` ")


def test_exempt_specs_are_not_looked_at() -> None:
    assert told(problems("{jobs-end: {exempt: [vision/j]}}", job(), job("k"))) == told(
        problems("{jobs-end: error}", job("k"))
    )


def test_a_policy_that_there_is_not_has_a_suggestion() -> None:
    (found,) = problems("{image-pinned: error}", job())
    assert found.code == "unknown-key"
    assert "`images-pinned`" in found.hint


def test_objects_are_not_handed_on_where_a_policy_forbids_them() -> None:
    files = {"avactl.yaml": "policies: {jobs-end: error}\n", "platform.yaml": PLATFORM, "specs.yaml": HEAD + job()}
    result = compile_tree(MemoryTree(files))
    assert not result.ok
    assert result.manifests == ()
