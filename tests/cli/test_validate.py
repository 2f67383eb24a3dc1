"""`avactl validate`: what is printed, in which form, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.running import Run, write

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CLUSTER = "apiVersion: avactl.dev/v1\nkind: Cluster\nmetadata: {name: main}\n"
TYPO = "apiVersion: avactl.dev/v1\nkind: Team\nmetadata: {name: vision}\nspec:\n  membres: {groups: [a]}\n"


def test_examples_are_valid(avactl: Run) -> None:
    examples = sorted(p for p in EXAMPLES.iterdir() if p.is_dir())
    assert [example.name for example in examples] == ["ava", "modern", "quickstart", "training"]
    for example in examples:
        shown = avactl("validate", str(example))
        assert shown.returncode == 0, shown.stdout
        assert shown.stdout.startswith("ok: ")


def test_text_has_place_caret_and_remedy(tmp_path: Path, avactl: Run) -> None:
    write(tmp_path, cluster=CLUSTER, teams__vision=TYPO)
    shown = avactl("validate")
    assert shown.returncode == 1
    assert shown.stdout == (
        "error[unknown-key]: `spec` has no key `membres`\n"
        "  --> teams/vision.yaml:5:3\n"
        "5 |   membres: {groups: [a]}\n"
        "  |   ^^^^^^^\n"
        "  = help: did you mean `members`?\n\n"
        "1 error\n"
    )


def test_json_is_the_documented_list(tmp_path: Path, avactl: Run) -> None:
    write(tmp_path, cluster=CLUSTER, team=TYPO)
    shown = avactl("validate", "--format", "json")
    assert shown.returncode == 1
    assert json.loads(shown.stdout) == [
        {
            "code": "unknown-key",
            "severity": "error",
            "file": "team.yaml",
            "line": 5,
            "column": 3,
            "message": "`spec` has no key `membres`",
            "hint": "did you mean `members`?",
        }
    ]
    write(tmp_path, team=TYPO.replace("membres", "members"))
    assert json.loads(avactl("validate", "--format", "json").stdout) == []


def test_sarif_and_github(tmp_path: Path, avactl: Run) -> None:
    write(tmp_path, cluster=CLUSTER, team=TYPO)
    sarif = json.loads(avactl("validate", "-f", "sarif").stdout)
    result = sarif["runs"][0]["results"][0]
    assert sarif["version"] == "2.1.0"
    assert result["ruleId"] == "unknown-key"
    assert result["locations"][0]["physicalLocation"]["region"] == {"startLine": 5, "startColumn": 3, "endColumn": 10}
    github = avactl("validate", "-f", "github").stdout
    assert github.startswith("::error file=team.yaml,line=5,col=3,endColumn=10,title=unknown-key::")


def test_paths_choose_what_is_told_but_the_whole_repository_is_read(tmp_path: Path, avactl: Run) -> None:
    write(tmp_path, avactl="", cluster=CLUSTER, teams__a=TYPO, teams__b=TYPO.replace("vision", "video"))
    shown = avactl("validate", "teams/a.yaml")
    assert shown.returncode == 1
    assert "teams/a.yaml:5:3" in shown.stdout
    assert "teams/b.yaml" not in shown.stdout
    assert "1 more in other files" in shown.stdout
    # From a directory below, places lead there from where the user stands.
    shown = avactl("validate", "a.yaml", cwd=tmp_path / "teams")
    assert "--> ../teams/a.yaml:5:3" in shown.stdout


def test_missing_path_is_wrong_usage(avactl: Run) -> None:
    shown = avactl("validate", "nowhere")
    assert shown.returncode == 2
    assert shown.stderr == "avactl: nowhere: no such file or directory\n"
