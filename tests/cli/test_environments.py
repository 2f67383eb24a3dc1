"""Environments on the command line, and the origin of values."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.cli.running import Run
from tests.conftest import ROOT
from tests.diff.repository import Repository

DOCS = (ROOT / "docs" / "environments.md").read_text()
JOBS = "teams/vision/jobs.yaml"


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "examples" / "environments", tmp_path / "specs"))


def test_validate_checks_every_environment(specs: Path, avactl: Run) -> None:
    shown = avactl("validate", cwd=specs)
    assert shown.stdout == (
        "ok: 5 specs of 5 kinds in environment staging\nok: 5 specs of 5 kinds in environment prod\n"
    )
    overlay = specs / "overlays/prod/vision.yaml"
    overlay.write_text(overlay.read_text().replace("replicas", "replica"))
    job = specs / JOBS
    job.write_text(job.read_text().replace("command", "comand"))
    shown = avactl("validate", "-f", "json", cwd=specs)
    assert shown.returncode == 1
    problems = [(each["file"], each["message"]) for each in json.loads(shown.stdout)]
    assert problems == [
        ("overlays/prod/vision.yaml", "`spec.workers` has no key `replica` (environment prod)"),
        (JOBS, "`spec` has no key `comand`"),
    ]
    assert avactl("validate", "--environment", "staging", cwd=specs).stdout.count("error[") == 1


def test_other_commands_say_which_environments_there_are(specs: Path, avactl: Run) -> None:
    for command in (["render", "-o", "out"], ["graph", "-o", "-"], ["secrets"], ["explain", "--origin", JOBS, "spec"]):
        shown = avactl(*command, cwd=specs)
        assert shown.returncode == 1
        assert "choose an environment: `staging` or `prod`" in shown.stderr
        assert "--environment staging" in shown.stderr
    assert not (specs / "out").exists()
    assert avactl("render", "-o", "out", "--environment", "prod", cwd=specs).returncode == 0
    assert [path.name for path in (specs / "out").iterdir() if path.is_dir()] == ["prod"]
    assert avactl("render", "-o", "out2", cwd=specs, AVACTL_ENVIRONMENT="staging").returncode == 0
    assert [path.name for path in (specs / "out2").iterdir() if path.is_dir()] == ["staging"]


def test_a_misspelt_environment(specs: Path, avactl: Run) -> None:
    assert "did you mean `prod`?" in avactl("render", "-o", "-", "--environment", "prd", cwd=specs).stderr


def test_diff_and_plan_compile_both_revisions_in_the_environment(specs: Path, avactl: Run, tmp_path: Path) -> None:
    git = Repository(specs)
    git.commit()
    overlay = specs / "overlays/prod/vision.yaml"
    overlay.write_text(overlay.read_text().replace("replicas: 8", "replicas: 6"))
    shown = avactl("diff", "--environment", "prod", "--no-objects", cwd=specs)
    assert shown.returncode == 0, shown.stderr
    assert "workers 8 → 6" in shown.stdout
    for path, there in (("overlays/prod", True), ("teams/vision", True), ("platform", False)):
        shown = avactl("diff", path, "--environment", "prod", "--no-objects", cwd=specs)
        assert ("workers 8 → 6" in shown.stdout) == there
    assert avactl("diff", "--environment", "staging", cwd=specs).stdout.startswith("no changes")
    assert "choose an environment" in avactl("diff", cwd=specs).stdout
    assert "resnet50" in avactl("plan", "--environment", "prod", cwd=specs).stdout
    assert "resnet50" not in avactl("plan", "--environment", "staging", cwd=specs).stdout


def test_the_origin_of_a_value_as_documented(specs: Path, avactl: Run) -> None:
    commands = re.findall(r"^\$ avactl (explain --origin .*)\n((?:.+\n)+?)```", DOCS, re.MULTILINE)
    assert commands
    for command, output in commands:
        assert avactl(*command.split(), cwd=specs).stdout == output


@pytest.mark.parametrize(
    ("arguments", "roles"),
    [
        (
            [JOBS, "spec.timeout", "--environment", "staging"],
            ["overlay", "team default", "platform default", "built-in default"],
        ),
        ([JOBS, "spec.timeout", "--environment", "prod"], ["team default", "platform default", "built-in default"]),
        ([JOBS, "spec.workers.cpu", "--environment", "prod"], ["template pytorch", "built-in default"]),
        ([JOBS, "spec.workers", "--environment", "prod"], ["overlay", "spec", "template pytorch"]),
        (["overlays/prod/vision.yaml", "metadata.labels.cost-center", "--environment", "prod"], ["team default"]),
        ([JOBS, "spec.priority", "--environment", "prod"], ["built-in default"]),
    ],
)
def test_origins(arguments: list[str], roles: list[str], avactl: Run) -> None:
    shown = avactl("explain", "--origin", *arguments, cwd=ROOT / "examples" / "environments")
    assert shown.returncode == 0, shown.stderr
    found = shown.stdout.splitlines()[2:]
    assert [line.endswith(role) for line, role in zip(found, roles, strict=True)] == [True] * len(roles)


def test_the_origin_of_an_entry_of_a_list(specs: Path, avactl: Run) -> None:
    job = specs / JOBS
    job.write_text(job.read_text() + '  pod: {sidecars: [{name: a, image: "r/a:1"}, {name: b, image: "r/b:1"}]}\n')
    overlay = specs / "overlays/prod/vision.yaml"
    added = '  pod: {sidecars: [{name: b, image: "r/b:2"}, {name: a, $patch: delete}]}\n  timeout: null\n'
    overlay.write_text(overlay.read_text() + added)
    shown = avactl("explain", "--origin", JOBS, "spec.pod.sidecars[0].image", "--environment", "prod", cwd=specs)
    assert shown.stdout == (
        "TrainingJob vision/resnet50 in environment prod\n"
        "spec.pod.sidecars[0].image: r/b:2\n"
        "  r/b:2  overlays/prod/vision.yaml:6:37  overlay\n"
        "  r/b:1  teams/vision/jobs.yaml:8:64     spec\n"
    )
    shown = avactl("explain", "--origin", JOBS, "spec.timeout", "--environment", "prod", cwd=specs)
    assert shown.stdout.splitlines()[1:3] == [
        "spec.timeout: none",
        "  removed  overlays/prod/vision.yaml:7:3    overlay",
    ]


def test_origins_that_do_not_exist(avactl: Run) -> None:
    root = ROOT / "examples" / "environments"
    shown = avactl("explain", "--origin", JOBS, "spec.prioriti", "--environment", "prod", cwd=root)
    assert (shown.returncode, "did you mean `priority`?" in shown.stderr) == (2, True)
    shown = avactl("explain", "--origin", "platform/teams.yaml", "spec", "--environment", "prod", cwd=root)
    assert "--name: `Team/vision` or `Quota/gpus`" in shown.stderr
    shown = avactl("explain", "--origin", JOBS, "spec..a", "--environment", "prod", cwd=root)
    assert "is not a path" in shown.stderr


def test_set_says_that_an_overlay_decides(specs: Path, avactl: Run) -> None:
    shown = avactl("set", JOBS, "spec.workers.replicas=2", cwd=specs)
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr == "note: in environment prod, overlays/prod/vision.yaml:5:23 decides spec.workers.replicas\n"
    assert avactl("set", JOBS, "spec.priority=high", cwd=specs).stderr == ""


def test_set_checks_specs_that_are_incomplete_by_themselves(specs: Path, avactl: Run) -> None:
    for file in (JOBS, "overlays/prod/vision.yaml", "platform/templates.yaml"):
        text = (specs / file).read_text()
        shown = avactl("set", file, "spec.workers.replicas=many", cwd=specs)
        assert (shown.returncode, (specs / file).read_text()) == (1, text)
        assert "spec.workers.replicas: expected an integer, got string `many`" in shown.stderr
        assert "missing-key" not in shown.stderr
        assert avactl("set", file, "spec.workers.replicas=3", cwd=specs).returncode == 0
