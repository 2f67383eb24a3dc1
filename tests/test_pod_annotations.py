"""Pod annotations: one record each, from which limits, snapshots, policies, checks and documentation come."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from avactl.contracts.names import GROUP
from avactl.contracts.pod_annotations import (
    POD_ANNOTATIONS,
    AnnotationReader,
    PodAnnotation,
    read_by,
)
from tests.example_trees import EXAMPLES
from tests.startup import pods
from tests.test_layout import ROOT, tracked

PAGE = ROOT / "docs" / "pod-annotations.md"
HEAD = """\
# Pod annotations

avactl writes or reads these annotations of pods. This page comes from `avactl/contracts/pod_annotations.py`.

"Specs" means that avactl compiles the annotation; a manifest of a team cannot set it. On a running pod, no annotation
`avactl.dev/…` can change, except by an account that may bind pods (see [security](security.md)). The scheduler reports
a pod as unschedulable if a value that it reads is longer than shown.

"""


def page(annotations: tuple[PodAnnotation, ...]) -> str:
    rows: list[tuple[str, ...]] = [("annotation", "meaning", "values", "written by", "read by"), ("---",) * 5]
    for each in annotations:
        bound = f"at most {each.max_chars:,} characters" if AnnotationReader.SCHEDULER in each.readers else ""
        values = ", ".join(f"`{value}`" for value in each.values) or bound
        accounts = ("; ".join(sorted(who.value for who in whom)) for whom in (each.writers, each.readers))
        rows.append((f"`{each.name}`", each.meaning, values, *accounts))
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def test_the_page_shows_all_annotations(golden: Callable[[Path, str], None]) -> None:
    golden(PAGE, page(POD_ANNOTATIONS))


def test_names_are_unique() -> None:
    names = [each.name for each in POD_ANNOTATIONS]
    assert sorted({*names}) == sorted(names)


ADDED = '''
import json
from avactl.contracts import names, pod_annotations as contract
from avactl.contracts.pod_annotations import PodAnnotation, AnnotationReader, Writer

BOTH = frozenset({AnnotationReader.SCHEDULER, AnnotationReader.SNAPSHOT})
MEMBER = PodAnnotation("avactl.dev/colour", "colour", frozenset({Writer.MEMBER}), BOTH, 8, ("red", "blue"))
SPEC = PodAnnotation("avactl.dev/shape", "shape", frozenset({Writer.SPEC}), frozenset({AnnotationReader.DIFF}))
BINDING = PodAnnotation("avactl.dev/rack", "rack", frozenset({Writer.SCHEDULER_BINDING}), frozenset())
STATUS = PodAnnotation("avactl.dev/reason", "reason", frozenset({Writer.SCHEDULER_STATUS}), frozenset())
contract.POD_ANNOTATIONS += (MEMBER, SPEC, BINDING, STATUS)

from avactl.change.diff import objects
from avactl.change.plan.snapshot import loader
from avactl.compiler import compile_tree
from avactl.scheduler.objects.pod_info import read_pod
from avactl.spec.repository.tree import MemoryTree

def pod(value):
    notes = {MEMBER.name: value, SPEC.name: "round"}
    metadata = {"namespace": "a", "name": "p", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    spec = {"schedulerName": "avactl", "containers": [{"name": "c"}]}
    return {"metadata": {**metadata, "annotations": notes}, "spec": spec, "status": {}}

PLATFORM = """
apiVersion: avactl.dev/v1
kind: Cluster
metadata: {name: main}
spec:
  images: {avactl: "avactl@sha256:%s"}
  daemons: {scheduler: true}
---
apiVersion: avactl.dev/v1
kind: Team
metadata: {name: vision}
spec: {clusters: [main]}
---
apiVersion: avactl.dev/v1
kind: KubernetesObjects
metadata: {name: own, team: vision}
spec:
  cluster: main
  objects:
    - {apiVersion: v1, kind: ConfigMap, metadata: {name: c, annotations: {%s}}}
"""

def compiled(annotation):
    text = PLATFORM % ("a" * 64, f"{annotation}: red")
    return compile_tree(MemoryTree({"specs.yaml": text.encode()}))

result = compiled(MEMBER.name)
policies = {each.name: json.dumps(each.body) for each in result.manifests if each.kind == "ValidatingAdmissionPolicy"}
read = [read_pod(pod(value), 0.0) for value in ("red", "green", "red", "x" * 9)]
print(json.dumps({
    "refused": [each.shape.refused for each in read],
    "snapshot": loader.strip_objects({"pods": [pod("red")]})["pods"][0]["metadata"]["annotations"],
    "digest": SPEC.name in objects._DIGEST_KEYS,
    "problems": [[each.message for each in compiled(one.name).diagnostics] for one in (MEMBER, SPEC, BINDING)],
    "policies": {
        name: [one.name in text for one in (MEMBER, SPEC, BINDING, STATUS)] for name, text in policies.items()
    },
}))
'''


def test_another_annotation_is_one_record() -> None:
    done = subprocess.run([sys.executable, "-c", ADDED], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout)
    refused = found["refused"]
    assert (refused[0], refused[2]) == ("", "")
    assert refused[1] == "annotation avactl.dev/colour: `green` is not one of red, blue"
    assert refused[3] == "annotation avactl.dev/colour: its value has 9 characters; at most 8 are read"
    assert found["snapshot"] == {"avactl.dev/colour": "red"}
    assert found["digest"]
    member, spec, binding = found["problems"]
    assert member == []
    assert "avactl.dev/shape" in spec[0]
    assert "avactl.dev/rack" in binding[0]
    # Those of the scheduler are in the policy of teams' pods, which refuses them, and in the scheduler's own.
    assert found["policies"]["avactl-team-annotations"] == [False, False, True, True]
    assert found["policies"]["avactl-scheduler"] == [False, False, True, True]
    added = PodAnnotation("avactl.dev/new", "what it says", frozenset(), frozenset({AnnotationReader.SCHEDULER}), 7)
    assert "| `avactl.dev/new` | what it says | at most 7 characters |" in page((added,))


def test_every_annotation_of_compiled_pods_has_a_record() -> None:
    """Those of other groups come from specs and from serving runtimes."""
    known = {each.name for each in POD_ANNOTATIONS}
    found = {name for example in EXAMPLES for pod in pods(example) for name in pod.annotations}
    found = {name for name in found if name.startswith(f"{GROUP}/")}
    assert {f"{GROUP}/gang-size", f"{GROUP}/config-digest"} <= found
    assert found - known == set()


def test_only_the_table_spells_their_names() -> None:
    """Scripts of containers have to: the table knows no shell."""
    names = [each.name for each in POD_ANNOTATIONS if each.name.count("/") == 1]
    found = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in tracked("avactl/*.py", "avactl/**/*.py")
        if not path.match("contracts/pod_annotations.py")
        for name in names
        if f'"{name}"' in (text := path.read_text()) or f"'{name}'" in text
    }
    assert found == set()


def test_plans_read_what_constraints_read() -> None:
    """A plan would ignore others in silence."""
    unread = {
        each.name for each in read_by(AnnotationReader.CONSTRAINTS) if AnnotationReader.SNAPSHOT not in each.readers
    }
    assert unread == set()
