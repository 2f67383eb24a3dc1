"""Options have one meaning in all commands, and completion knows the repository."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from avactl.cli import completion
from avactl.cli.app import COMMANDS, load_command
from avactl.compiler import compile_tree
from avactl.diagnostics.codes import CODES
from avactl.program import registry
from avactl.program.explain import recursive
from avactl.program.explain.explain import explain_text
from avactl.spec.repository.tree import DirTree
from tests.cli.running import Run

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def _options(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, inner in getattr(command, "commands", {}).items():
        yield from _options(inner, f"{path} {name}")
    yield from ((path, option) for option in command.params)


OPTIONS = [pair for name in COMMANDS for pair in _options(load_command(name), name)]


def test_format_is_the_output_format_o_a_file_and_n_a_namespace() -> None:
    assert len(OPTIONS) > 150
    for path, option in OPTIONS:
        words = [*option.opts, *option.secondary_opts]
        assert not {"--output", "--json"} & {*words}, path
        if "-o" in words:
            assert words[0] == "--out", path
        if "-n" in words:
            assert words[0] == "--namespace", path
        if "--format" in words:
            assert "-f" in words, path


class _Context:
    def __init__(self, **params: Any) -> None:
        self.params = params


def test_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES / "ava" / "teams")
    assert completion.complete_cluster("") == ["serve", "train"]
    assert completion.complete_stack("train.v") == ["train.video", "train.vision"]
    assert completion.complete_pool("v1") == ["v100", "v100-debug", "v100-serve"]
    assert completion.complete_topic("Train") == ["TrainingJob"]
    assert completion.complete_topic("TrainingJob.spec.wo") == [
        "TrainingJob.spec.workerGroups",
        "TrainingJob.spec.workers.",
    ]
    assert completion.complete_topic("TrainingJob.spec.workers.li") == [
        "TrainingJob.spec.workers.link",
        "TrainingJob.spec.workers.linkPolicy",
    ]
    jobs = Path("vision/jobs.yaml")
    assert completion.names_in_file(_Context(file=jobs), "TrainingJob/r") == ["TrainingJob/resnet50"]
    assert completion.complete_edit(_Context(file=jobs, name="resnet50"), "spec.checkpoint.e") == [
        "spec.checkpoint.every"
    ]
    assert completion.complete_edit(_Context(file=jobs), "spec.ttl=") == []
    monkeypatch.chdir("/")
    assert completion.complete_cluster("") == []


def test_completion_in_the_shell(avactl: Run) -> None:
    words = {"_AVACTL_COMPLETE": "complete_bash", "COMP_WORDS": "avactl plan --cluster t", "COMP_CWORD": "3"}
    assert avactl(cwd=EXAMPLES / "ava", **words).stdout.split() == ["train"]


@pytest.mark.parametrize("code", sorted(CODES))
def test_explain_prints_the_documentation_of_a_code(code: str) -> None:
    lines = explain_text(code).splitlines()
    assert lines[0] == code
    assert len(lines) > 3
    assert lines[3].strip()
    assert not any(line.strip().startswith("## ") for line in lines)


def test_explain_recursive_has_all_fields_and_an_example_that_compiles() -> None:
    package = Path(recursive.__file__).parent
    result = compile_tree(DirTree(package, ["examples.yaml"]))
    assert result.diagnostics == ()
    for kind in registry.kind_names():
        text = recursive.recursive_text(kind)
        assert f"\nExample\n  apiVersion: avactl.dev/v1\n  kind: {kind}\n" in text
    assert "\n      cpuUtilization  integer from 1 to 100; default 70\n" in recursive.recursive_text(
        "ServingDeployment"
    )
    part = recursive.recursive_text("TrainingJob.spec.workers")
    assert part.startswith("TrainingJob.spec.workers  mapping\n  pod  mapping\n    labels  ")
