"""Processing jobs: the objects of `examples/datasets`, who waits for them, and what they read."""

from __future__ import annotations

import json
from typing import Any

from avactl.change.plan.workloads import find_workloads
from avactl.compiler import compile_tree
from avactl.spec.repository.tree import MemoryTree
from tests.example_trees import example_tree
from tests.kinds.compiling import DIGEST, body, codes, compiled, complete, names, unchecked
from tests.kinds.specs import SCHEDULED, joined

TEAM = """
kind: Team
metadata: {name: photos}
spec: {buckets: [{name: photos, url: "s3://photos", access: readWrite, secret: photos-s3}]}
"""
DATASET = """
kind: Dataset
metadata: {name: street, team: photos}
spec:
  size: 1Gi
  versions:
    - {name: raw, url: "s3://photos/raw"}
    - {name: square, url: "s3://photos/square/"}
    - {name: marked, url: "s3://photos/marked"}
"""
CLUSTER = SCHEDULED.replace("images: {", f"images: {{fetch: registry.example.com/rclone{DIGEST}, ")


def processing(name: str, source: str, target: str, more: str = "") -> str:
    return f"""
kind: ProcessingJob
metadata: {{name: {name}, team: photos}}
spec:
  dataset: street
  from: {source}
  to: {target}
  steps: [{{resize: {{width: 256}}}}, {{watermark: {{text: "$(HOME)"}}}}]
  image: registry.example.com/process{DIGEST}
{more}
"""


def job(name: str, dataset: str = "street", version: str = "square") -> str:
    return f"""
kind: TrainingJob
metadata: {{name: {name}, team: photos}}
spec:
  image: registry.example.com/train{DIGEST}
  command: [python, train.py]
  datasets: [{{name: {dataset}, version: {version}}}]
"""


def after(pod: dict[str, Any]) -> list[str]:
    notes = pod["spec"]["template"]["metadata"].get("annotations", {})
    found: list[str] = json.loads(notes.get("avactl.dev/after", "[]"))
    return found


def arguments(worker: dict[str, Any]) -> list[str]:
    found: list[str] = worker["spec"]["template"]["spec"]["containers"][0]["args"]
    return found


def test_the_example() -> None:
    result = compile_tree(example_tree("datasets"))
    assert result.diagnostics == ()
    worker = body(result, "Job", "street-square-worker", "photos", "lab")
    assert arguments(worker)[:2] == ["s3://photos/street/raw", "s3://photos/street/square"]
    assert worker["spec"]["parallelism"] == 8
    assert after(body(result, "Job", "street-classes-worker", "photos", "lab")) == ["street-square-worker"]


def test_versions_are_made_one_after_the_other() -> None:
    first, second = processing("first", "raw", "square"), processing("second", "square", "marked")
    result = compiled(joined(CLUSTER, TEAM, DATASET, second, first, job("old", version="raw"), job("new")))
    assert after(body(result, "Job", "first-worker", "photos")) == []
    assert after(body(result, "Job", "second-worker", "photos")) == ["first-worker"]
    assert after(body(result, "Job", "second-master", "photos")) == ["first-worker"]
    assert after(body(result, "Job", "new-worker", "photos")) == ["first-worker"]
    assert after(body(result, "Job", "old-worker", "photos")) == []
    # The labels of a version that was made are in its manifest.
    assert arguments(body(result, "Job", "second-worker", "photos"))[:2] == [
        "s3://photos/square.manifest/manifest.jsonl",
        "s3://photos/marked",
    ]
    assert "$$(HOME)" in arguments(body(result, "Job", "first-worker", "photos"))[3]


def test_the_job_stays_for_those_that_wait_for_it() -> None:
    cluster = CLUSTER.replace("spec:\n", "spec:\n  defaultJobTtl: 1h\n", 1)
    result = compiled(joined(cluster, TEAM, DATASET, processing("first", "raw", "square"), job("other", version="raw")))
    assert "ttlSecondsAfterFinished" not in body(result, "Job", "first-worker", "photos")["spec"]
    assert body(result, "Job", "other-worker", "photos")["spec"]["ttlSecondsAfterFinished"] == 3600


def test_a_list_of_the_repository() -> None:
    dataset = DATASET.replace('name: raw, url: "s3://photos/raw"', "name: raw, manifest: raw.jsonl")
    text = complete(joined(CLUSTER, TEAM, dataset, processing("first", "raw", "square")))
    lines = b'{"url": "s3://photos/raw/1.jpg", "labels": {"class": "cat"}}\n'
    result = compile_tree(MemoryTree({"a.yaml": text.encode(), "raw.jsonl": lines}))
    assert result.diagnostics == ()
    assert body(result, "ConfigMap", "first-source", "photos")["data"] == {"manifest.jsonl": lines.decode()}
    worker = body(result, "Job", "first-worker", "photos")
    assert arguments(worker)[0] == "/source/manifest.jsonl"
    (mount,) = [
        each for each in worker["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] if each["name"] == "source"
    ]
    assert mount["mountPath"] == "/source"


def test_it_counts_in_quotas_and_plans() -> None:
    quota = """
kind: Quota
metadata: {name: photos, team: photos}
spec: {cpu: "2", memory: 64Gi}
"""
    small = joined(CLUSTER, TEAM, DATASET, quota, processing("first", "raw", "square", "  workers: {min: 4, cpu: '2'}"))
    assert "quota-exceeded" in codes(unchecked(small))
    result = compiled(joined(CLUSTER, TEAM, DATASET, processing("first", "raw", "square")))
    assert "first-worker" in [each.name for each in find_workloads(result.manifests, "main")]
    assert names(result, "PodDisruptionBudget") == ["avactl-system/avactl-scheduler", "photos/first"]


def test_readers_of_other_namespaces_cannot_wait() -> None:
    other = "kind: Team\nmetadata: {name: vision}"
    shared = DATASET.replace("size: 1Gi", "size: 1Gi\n  sharedWith: [vision]")
    reader = job("reader", "photos/street").replace("team: photos", "team: vision")
    result = unchecked(joined(CLUSTER, TEAM, other, shared, processing("first", "raw", "square"), reader))
    assert codes(result) == ["other-cluster"]
    assert after(body(result, "Job", "reader-worker", "vision")) == []


def test_a_version_has_a_directory_of_its_own() -> None:
    """Of those of all datasets of the team, with the directory beside it."""
    other = """
kind: Dataset
metadata: {{name: other, team: photos}}
spec:
  size: 1Gi
  versions: [{{name: v1, url: "s3://photos/{}"}}]
"""
    specs = joined(CLUSTER, TEAM, DATASET, processing("make", "raw", "square"))
    for path in ("square", "square/part", "square.manifest", "square.manifest/x", ""):
        (problem,) = unchecked(joined(specs, other.format(path))).diagnostics
        assert "overlaps with that of Dataset photos/other" in problem.message
    for path in ("squares", "squar", "square.manifests", "Square", "a/square"):
        assert not unchecked(joined(specs, other.format(path))).diagnostics
    inside = DATASET.replace('"s3://photos/raw"', '"s3://photos/square/raw"')
    (problem,) = unchecked(joined(CLUSTER, TEAM, inside, processing("make", "raw", "square"))).diagnostics
    assert "overlaps with that of version `raw`" in problem.message
