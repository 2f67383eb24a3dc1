"""Where files go and what they begin with; the stream."""

from __future__ import annotations

import copy

import yaml

from avactl.apply.files.contents import object_text, stream
from avactl.apply.files.paths import object_path
from avactl.compiler import compile_tree
from avactl.program.manifest import Manifest
from avactl.program.program import Item
from avactl.spec.repository.tree import MemoryTree

SPECS = """\
apiVersion: avactl.dev/v1
kind: Cluster
metadata: {name: main}
---
apiVersion: avactl.dev/v1
kind: Team
metadata: {name: vision}
---
apiVersion: avactl.dev/v1
kind: TrainingJob
metadata: {name: net, team: vision}
spec: {image: "registry.example.com/net:1"}
"""
RESULT = compile_tree(MemoryTree({"specs/a.yaml": SPECS}))
JOB = next(item for item in RESULT.program.items if item.kind == "TrainingJob")
CLUSTER = next(item for item in RESULT.program.items if item.kind == "Cluster")


def path(kind: str, name: str, namespace: str = "", version: str = "v1", team: bool = True) -> str:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    body = {"apiVersion": version, "kind": kind, "metadata": metadata}
    return object_path(Manifest(JOB if team else CLUSTER, "main", body))


def test_places() -> None:
    assert path("Job", "net", "ns", "batch/v1") == "main/vision/ns/job-net.yaml"
    assert path("Namespace", "vision", team=False) == "main/_platform/_cluster/namespace-vision.yaml"
    assert path("PriorityClass", "a.b", version="scheduling.k8s.io/v1") == "main/vision/_cluster/priorityclass-a.b.yaml"


def test_no_kind_or_group_leaves_the_directory() -> None:
    for kind, version in (("../../x", "example.com/v1"), ("X", "a./../../v1")):
        assert path(kind, "a", "ns", version).count("/") == 3


def test_no_two_objects_share_a_path() -> None:
    paths = [
        path("Role", "system:node", "ns"),
        path("Role", "system-node", "ns"),
        path("Role", "System-node", "ns"),
        path("Role", "SYSTEM-node", "ns"),
        path("Role", "a" * 253, "ns"),
        path("Role", "a" * 252, "ns"),
        path("Service", "web", "ns"),
        path("Service", "web", "ns", "serving.knative.dev/v1"),
        path("Service", "web", "con"),
    ]
    assert len({each.lower() for each in paths}) == len(paths)
    assert all(len(part) < 255 and part.rstrip(" .") == part for each in paths for part in each.split("/"))
    assert "main/vision/con/" not in paths[-1]


def test_every_object_of_a_compile_has_its_own() -> None:
    paths = [object_path(manifest) for manifest in RESULT.manifests]
    assert len(set(paths)) == len(paths) > 5


def test_the_comment_names_the_spec_and_cannot_be_left() -> None:
    document = copy.copy(JOB.doc)
    document.file = "specs\n/a.yaml"  # refused as a path of a spec, and escaped all the same
    manifest = next(m for m in RESULT.manifests if m.item is JOB)
    text = object_text(Manifest(Item(document, JOB.resource), manifest.cluster, manifest.body))
    assert text.startswith("# TrainingJob vision/net, from specs?/a.yaml\napiVersion: ")


def test_the_stream_is_the_objects_in_apply_order() -> None:
    documents = list(yaml.safe_load_all("".join(stream(RESULT.manifests))))
    assert documents == [manifest.body for manifest in RESULT.manifests]
    assert documents[0]["kind"] == "Namespace"
