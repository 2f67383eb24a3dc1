"""What is said of the engine's work, and what it does not need an engine to know."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from avactl.apply.pulumi import engine
from avactl.apply.pulumi.engine_report import EngineReport, report_lines, report_summary
from avactl.base.installation import install_command
from avactl.cli.app import app
from avactl.compiler import compile_tree
from avactl.compiler.rename import Candidate, content_leaves, match_renames
from avactl.spec.repository.tree import MemoryTree
from tests.pulumi.repository import compiled, files

JOB = "urn:pulumi:main.vision::avactl::avactl:kinds:TrainingJob$kubernetes:batch/v1:Job::vision/resnet-worker"
PARENT = "urn:pulumi:main.vision::avactl::avactl:kinds:TrainingJob::vision/resnet"


def event(operation: str, urn: str = JOB, old: Any = None, new: Any = None, diff: list[str] | None = None) -> Any:
    token = urn.split("::")[2].rpartition("$")[2]
    before, after = (inputs and SimpleNamespace(inputs=inputs, parent=PARENT) for inputs in (old, new))
    step = SimpleNamespace(op=operation, urn=urn, type=token, old=before, new=after, detailed_diff=diff, diffs=None)
    return SimpleNamespace(
        diagnostic_event=None, resource_pre_event=SimpleNamespace(metadata=step), res_outputs_event=None
    )


def complaint(text: str, urn: str | None = None) -> Any:
    said = SimpleNamespace(message=text, severity="error", urn=urn)
    return SimpleNamespace(diagnostic_event=said, resource_pre_event=None)


def report(*events: Any) -> EngineReport:
    result = EngineReport()
    for entry in events:
        result.take(entry)
    return result


def test_a_change_reads_as_the_spec_does() -> None:
    old = {"spec": {"parallelism": 2.0, "template": {"spec": {"containers": [{"image": "a:1"}]}}}}
    new = {"spec": {"parallelism": 4.0, "template": {"spec": {"containers": [{"image": "a:2"}]}}}}
    paths = ["spec.parallelism", "spec.template.spec.containers[0].image"]
    other = JOB.replace("resnet", "bert")
    found = report(
        event("create-replacement", old=old, new=new, diff=paths),
        event("replace", old=old, new=new, diff=paths),
        event("delete-replaced", old=old),
        event("same", JOB.replace("worker", "launcher"), old=old, new=new),
        event("same", PARENT, old=old, new=new),
        event("create", other, new=new),
    )
    assert report_lines(found) == [
        "~ TrainingJob vision/resnet",
        "    + Job vision/bert-worker",
        "    ± Job vision/resnet-worker  spec.parallelism 2 → 4, spec.template.spec.containers[0].image a:1 → a:2",
    ]
    assert report_summary(found) == "2 objects: 1 new, 1 replaced; 1 unchanged"


def test_digests_are_shown_only_where_nothing_else_has_changed() -> None:
    def job(run: str, completions: int) -> dict[str, Any]:
        return {"metadata": {"annotations": {"avactl.dev/run": run}}, "spec": {"completions": completions}}

    digest = 'metadata.annotations["avactl.dev/run"]'
    found = report(
        event("update", old=job("9bc2c9d2e7", 4), new=job("990e2e7423", 6), diff=[digest, "spec.completions"])
    )
    assert report_lines(found)[1:] == ["    ~ Job vision/resnet-worker  spec.completions 4 → 6"]
    found = report(event("update", old=job("9bc2c9d2e7", 4), new=job("990e2e7423", 4), diff=[digest]))
    assert report_lines(found)[1:] == [f"    ~ Job vision/resnet-worker  {digest} 9bc2c9d2e7 → 990e2e7423"]


def test_many_fields_are_counted_and_credentials_are_not_shown() -> None:
    token = "ghp_" + "a1B2" * 9
    old = {"data": {f"key.{index}": "a" for index in range(9)} | {"a/b": "x"}}
    new = {"data": {f"key.{index}": "b" for index in range(9)} | {"a/b": token}}
    found = report(event("update", old=old, new=new, diff=['data["a/b"]', *(f'data["key.{i}"]' for i in range(9))]))
    (line,) = report_lines(found)[1:]
    assert token not in line
    assert line.endswith('data["key.0"] a → b, data["key.1"] a → b, data["key.2"] a → b, … and 6 more')


def test_what_the_engine_complains_of_in_our_words() -> None:
    unprotect = "To unprotect the resource, remove the `protect` flag from the resource"
    found = report(
        complaint(
            f'<{{%reset%}}>unable to replace resource "{JOB}"\nas it is currently marked for protection. {unprotect}'
        ),
        complaint(f'resource "{JOB}" cannot be deleted\nbecause it is protected. {unprotect}'),
        complaint("<{%fg 1%}>jobs is forbidden<{%reset%}>\n", JOB),
        complaint("jobs is forbidden", JOB),
        complaint("preview failed"),
    )
    assert found.problems == [
        "Job vision/resnet-worker holds data, and this would replace it",
        "Job vision/resnet-worker holds data, and this would delete it",
        "Job vision/resnet-worker: jobs is forbidden",
    ]


def test_stacks_are_a_cluster_and_then_its_teams() -> None:
    compilation = compiled()
    assert [str(name) for name in engine.find_stacks(compilation, [])] == ["main", "main.vision"]
    assert engine.find_stacks(compilation, ["main.vision"]) == [("main", "vision")]
    assert engine.find_stacks(compilation, ["main.gone"]) == [("main", "gone")]  # loses its objects
    with pytest.raises(engine.WrongUseError) as caught:
        engine.find_stacks(compilation, ["man"])
    assert "did you mean `main`" in caught.value.hint


def test_what_another_engine_applies_is_no_stack() -> None:
    flux = compiled(("spec:\n  images:", "spec:\n  reconcile: {mode: flux}\n  images:"))
    assert engine.stack_names(flux) == []
    for asked in ([], ["main"], ["main.vision"]):
        with pytest.raises(
            engine.WrongUseError, match=r"cluster main is not applied through Pulumi: its `reconcile.mode` is flux"
        ):
            engine.find_stacks(flux, asked)


def test_the_context_of_a_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("contexts: [{name: main}, {name: west}]")
    one = compiled()
    assert engine.find_context(one, "main", tmp_path / "a") == "main"
    assert engine.find_context(one, "main", tmp_path / "a", "west") == "west"
    assert engine.find_context(one, "north", tmp_path / "a") is None
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    assert engine.find_context(one, "main", None) is None
    east = "{apiVersion: avactl.dev/v1, kind: Cluster, metadata: {name: east}}"
    two = compile_tree(MemoryTree(files(("  members:", "  clusters: [main]\n  members:")) | {"east.yaml": east}))
    assert two.ok, two.diagnostics
    with pytest.raises(engine.WrongUseError, match="no kubeconfig context is set for cluster east"):
        engine.find_context(two, "east", tmp_path / "a")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for path, text in files().items():
        (tmp_path / path).write_text(text)
    return tmp_path


@pytest.mark.parametrize("command", [["preview"], ["up", "--yes"]])
def test_without_the_engine_the_command_says_what_to_install(
    command: list[str], repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(repository))
    result = CliRunner().invoke(app, [*command, str(repository)])
    assert result.exit_code == 3
    assert "no `pulumi` on PATH" in result.output
    assert "https://www.pulumi.com/docs/install/" in result.output


def test_without_its_python_side_too(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(app, ["preview", str(repository)])
    assert result.exit_code == 3
    assert install_command("pulumi") in result.output


def test_up_asks_and_where_nobody_answers_wants_yes(repository: Path) -> None:
    result = CliRunner().invoke(app, ["up", str(repository)])
    assert result.exit_code == 2
    assert "add --yes" in result.output


def test_problems_in_specs_come_first(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(repository))
    (repository / "work.yaml").write_text(files()["work.yaml"].replace("storage: 20Gi", "storag: 20Gi"))
    result = CliRunner().invoke(app, ["up", "--yes", str(repository)])
    assert result.exit_code == 1
    assert "did you mean `storage`" in result.output


def candidates(**specs: dict[str, Any]) -> list[Candidate]:
    return [Candidate(name, "TrainingJob", content_leaves(spec, name)) for name, spec in specs.items()]


def test_renames_are_matched_by_content_best_first() -> None:
    base = {"image": "x", "workers": 4, "command": ["python", "train.py"], "args": ["--name", "NAME"]}

    def spec(name: str, **changes: Any) -> dict[str, Any]:
        return {**base, "args": ["--name", name], **changes}

    old = candidates(a=spec("a"), b=spec("b", workers=8), c={"image": "other"})
    new = candidates(d=spec("d", workers=8), e=spec("e"), f={"image": "new", "gpus": 1})
    assert match_renames(old, new) == {"d": "b", "e": "a"}
    assert match_renames(old[::-1], new[::-1]) == {"d": "b", "e": "a"}
    assert match_renames([old[0]._replace(group="Workspace")], new) == {}


def test_pulumi_does_not_wait_for_what_may_queue() -> None:
    notes = {
        m.kind: {k: v for k, v in m.body["metadata"].get("annotations", {}).items() if k.startswith("pulumi.com/")}
        for m in compiled().manifests
        if m.item.team
    }
    assert notes["Job"] == {"pulumi.com/waitFor": "jsonpath={.metadata.uid}"}
    assert notes["Deployment"]["pulumi.com/skipAwait"] == notes["Service"]["pulumi.com/skipAwait"] == "true"
    assert notes["NetworkPolicy"] == {}
    wait = ("metadata: {name: detector", 'metadata: {annotations: {pulumi.com/skipAwait: "false"}, name: detector')
    deployment = next(m for m in compiled(wait).manifests if m.kind == "Deployment")
    assert deployment.body["metadata"]["annotations"]["pulumi.com/skipAwait"] == "false"
    flux = compiled(("spec:\n  images:", "spec:\n  reconcile: {mode: flux}\n  images:"))
    assert {m.kind for m in flux.manifests} >= {"Job", "Deployment", "Service"}
    assert not any(re.search(r"pulumi\.com", str(m.body["metadata"])) for m in flux.manifests)


@pytest.mark.parametrize("name", ["anna", "resnet", "detector"])
def test_a_renamed_spec_with_object_name_compiles_to_the_same_objects(name: str) -> None:
    """All of them, byte for byte: a label or a selector that followed the new name would replace pods."""
    new = (f"metadata: {{name: {name}", f"metadata: {{name: other, objectName: {name}")
    assert [m.body for m in compiled(new).manifests] == [m.body for m in compiled().manifests]
    item = next(item for item in compiled(new).program.items if item.spec_name == "other")
    assert str(item).endswith(" vision/other")
