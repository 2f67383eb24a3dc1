"""The glossary and the life of a value in docs/architecture.md name files that exist and say what is so."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import pytest

from avactl.base.object_identity import ObjectKey
from avactl.change.plan.workloads import WorkloadMaker, find_surroundings, find_workloads
from avactl.compiler import compile_tree
from avactl.kinds import TrainingJob
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.spec.repository.tree import DirTree
from tests.test_layout import ROOT

GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
TERMS, _, MODULES = GLOSSARY.partition("## Module names")
LIFE = re.search(r"^## The life of one value\n(.*?)^## ", (ROOT / "docs" / "architecture.md").read_text(), re.M | re.S)
PATH = re.compile(r"`((?:avactl|examples)/[^`]*)`")


def rows(text: str) -> list[list[str]]:
    """Return the cells of all table rows but the headings."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in found if row[0] not in ("term", "module")]


def life() -> str:
    assert LIFE is not None
    return LIFE[0]


def test_every_term_is_explained_once() -> None:
    terms = rows(TERMS)
    assert len(terms) > 40
    assert [row for row in terms if len(row) != 4 or not all(row)] == []
    assert len({row[0] for row in terms}) == len(terms)


def test_modules_that_are_explained_exist() -> None:
    named = [PATH.findall(row[0]) for row in rows(MODULES)]
    assert len(named) > 20
    assert [paths for paths in named if len(paths) != 1 or not (ROOT / paths[0]).exists()] == []
    assert len({paths[0] for paths in named}) == len(named)


@pytest.mark.parametrize("text", [GLOSSARY, life()], ids=["glossary", "life of a value"])
def test_files_that_are_named_exist(text: str) -> None:
    paths = PATH.findall(text)
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert [path for path in paths if ".." in PurePosixPath(path).parts] == []


def test_the_life_of_a_value_is_short() -> None:
    assert len(life().splitlines()) <= 40


def test_the_life_of_a_value_is_true() -> None:
    compilation = compile_tree(DirTree(ROOT / "examples" / "ava"))
    item = compilation.program.get_kind(TrainingJob, "resnet50", "vision")
    assert item.doc.file == "teams/vision/jobs.yaml"
    assert (item.doc.get("spec", "workers", "replicas"), item.spec.workers.replicas) == (4, 4)
    assert item.spec.workers.gpus == 8

    made = {each.kind: each.body for each in compilation.manifests if each.item is item}
    assert made["Job"]["spec"]["completions"] == made["Job"]["spec"]["parallelism"] == 4
    assert made["PodDisruptionBudget"]["spec"]["minAvailable"] == 4
    assert (made["ConfigMap"]["data"]["nnodes"], made["ConfigMap"]["data"]["world-size"]) == ("4", "32")
    assert made["Job"]["spec"]["template"]["metadata"]["annotations"]["avactl.dev/gang-size"] == "4"

    manifests = compilation.manifests
    job = find_workloads(manifests, "train")[ObjectKey("batch", "Job", "vision", "resnet50-worker")]
    maker = WorkloadMaker(find_surroundings(manifests, "train"), "2026-01-01T00:00:00Z", "a")
    gangs = [PodInfo(made.pod, 0.0) for made in maker.pods(job, range(4))]
    assert [(pod.gang, pod.gang_size, pod.index) for pod in gangs] == [("vision/resnet50", 4, i) for i in range(4)]
