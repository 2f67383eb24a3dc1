"""`avactl validate`: what is printed, in which form, and the exit code."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.running import Run, write

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CLUSTER = "apiVersion: avactl.dev/v1\nkind: Cluster\nmetadata: {name: main}\n"
TEAM = "apiVersion: avactl.dev/v1\nkind: Team\nmetadata: {name: vision}\nspec:\n  members: {groups: [a]}\n"
TYPO = "apiVersion: avactl.dev/v1\nkind: Team\nmetadata: {name: vision}\nspec:\n  membres: {groups: [a]}\n"


def test_examples_are_valid(avactl: Run) -> None:
    examples = sorted(p for p in EXAMPLES.iterdir() if p.is_dir())
    assert [example.name for example in examples] == [
        "ava",
        "datasets",
        "environments",
        "import",
        "modern",
        "pipelines",
        "platform",
        "promotion",
        "quickstart",
        "serving",
        "training",
        "two-clusters",
    ]
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


def test_a_file_that_follows_from_another_is_not_ok(tmp_path: Path, avactl: Run) -> None:
    """A renamed cause names five of its references."""
    rest = {
        f"teams__{n}": TYPO.replace("membres: {groups: [a]}", "clusters: [mains]").replace("vision", n)
        for n in "abcdefg"
    }
    write(tmp_path, avactl="{}\n", cluster=CLUSTER, **rest)
    shown = avactl("validate", "teams/g.yaml")
    assert shown.returncode == 1
    assert "unknown Cluster `mains`" in shown.stdout


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


JOB = """apiVersion: avactl.dev/v1
kind: TrainingJob
metadata: {name: net, team: vision}
spec:
  image: registry.example.com/train:1
  command: [python, train.py]
  code: {git: {url: "https://git.example.com/a.git", ref: REF}}
"""
PLATFORM = """apiVersion: avactl.dev/v1
kind: Cluster
metadata: {name: main}
spec: {images: {git: "registry.example.com/git@sha256:DIGEST"}}
---
apiVersion: avactl.dev/v1
kind: Team
metadata: {name: vision}
spec: {members: {groups: [vision]}}
""".replace("DIGEST", "a" * 64)


def test_commits_that_the_git_server_does_not_have(tmp_path: Path, avactl: Run) -> None:
    origin = tmp_path / "origin"
    author = ("-c", "user.name=Test", "-c", "user.email=test@example.com")
    for words in (("init", "-q", "-b", "main", str(origin)), ("-C", str(origin), "commit", "-qm1", "--allow-empty")):
        subprocess.run(["git", *author, *words], check=True)
    head = subprocess.run(["git", "-C", origin, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    there, gone = head.stdout.strip(), "4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d"
    local = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.{origin}.insteadOf"}
    local["GIT_CONFIG_VALUE_0"] = "https://git.example.com/a.git"
    jobs = {
        name: JOB.replace("REF", ref).replace("net", name) for name, ref in (("a", there), ("b", gone), ("c", "v1"))
    }
    write(tmp_path / "specs", platform=PLATFORM, **jobs)
    shown = avactl("validate", "--code", str(tmp_path / "specs"), **local)
    assert shown.returncode == 1, shown.stderr
    heads = [line for line in shown.stdout.splitlines() if line.startswith("error")]
    assert heads == [
        f"error[missing-revision]: https://git.example.com/a.git has no commit `{gone}`",
        "error[missing-revision]: https://git.example.com/a.git has no commit, tag or branch `v1`",
    ]
    assert f"specs/b.yaml:7:{JOB.splitlines()[6].index('REF') + 1}\n" in shown.stdout
    machine = avactl("validate", "--code", "--format=json", str(tmp_path / "specs"), **local)
    assert [each["code"] for each in json.loads(machine.stdout)] == ["missing-revision", "missing-revision"]
    # A server that does not answer is no problem of the specs.
    local["GIT_CONFIG_KEY_0"] = "url./nowhere.insteadOf"
    assert avactl("validate", "--code", str(tmp_path / "specs"), **local).returncode == 3
    assert avactl("validate", str(tmp_path / "specs")).returncode == 0


def test_files_that_are_not_read_are_named(tmp_path: Path, avactl: Run) -> None:
    team = TYPO.replace("membres", "members")
    write(tmp_path, cluster=CLUSTER, teams__a=team, drafts__b=TYPO, values="replicas: 3\n")
    write(tmp_path, avactl="include: [cluster.yaml, teams]\nexclude: [drafts/b.yaml]\n")
    assert avactl("validate").stdout.startswith("ok: 2 specs")  # excluded files were considered
    write(tmp_path, avactl="include: [cluster.yaml, teams]\n")
    shown = avactl("validate")
    assert shown.returncode == 0
    assert "this looks like a spec" in shown.stdout
    assert [entry["code"] for entry in json.loads(avactl("validate", "-f", "json").stdout)] == ["file-not-read"]
    assert "--> drafts/b.yaml:1:1" in shown.stdout
    assert "values.yaml" not in shown.stdout
    shown = avactl("validate", "drafts/b.yaml")
    assert shown.returncode == 1
    assert "`include` in avactl.yaml does not have it" in shown.stdout
    assert "ok" not in shown.stdout
    assert avactl("validate", "drafts").returncode == 1
    assert avactl("validate", "teams/a.yaml", "avactl.yaml").returncode == 0


def test_specs_in_json_are_named(tmp_path: Path, avactl: Run) -> None:
    write(tmp_path, cluster=CLUSTER)
    (tmp_path / "data.json").write_text('{"apiVersion": "example.com/v1"}')
    assert avactl("validate").stdout.startswith("ok: 1 spec of")
    (tmp_path / "team.json").write_text('{"apiVersion": "avactl.dev/v1", "kind": "Team", "metadata": {"name": "a"}}')
    (found,) = json.loads(avactl("validate", "-f", "json").stdout)
    assert (found["code"], found["file"], found["severity"]) == ("file-not-read", "team.json", "warning")
    assert "`team.yaml`" in found["hint"]
    write(tmp_path, avactl='exclude: ["*.json"]\n')
    assert avactl("validate").stdout.startswith("ok: 1 spec of")


@pytest.mark.parametrize("name", ["job.YAML", "job.yaml.txt", "job.Yml"])
def test_specs_with_another_suffix_are_named(name: str, tmp_path: Path, avactl: Run) -> None:
    write(tmp_path, cluster=CLUSTER)
    (tmp_path / name).write_text("no: spec\n")
    assert avactl("validate").stdout.startswith("ok: 1 spec of")
    (tmp_path / name).write_text(CLUSTER)
    (found,) = json.loads(avactl("validate", "-f", "json").stdout)
    assert (found["code"], found["file"], found["severity"]) == ("file-not-read", name, "warning")
    assert "`job.yaml`" in found["hint"]


def test_owners_of_no_file_are_named(tmp_path: Path, avactl: Run) -> None:
    write(tmp_path, cluster=CLUSTER, teams__a=TYPO.replace("membres", "members"))
    write(
        tmp_path,
        avactl="""owners:
  - {path: "*", teams: ["*"], kinds: ["*"]}
  - {path: /teams/, teams: ["*"], kinds: ["*"]}
  - {path: /team/, teams: [vision]}
""",
    )
    (found,) = json.loads(avactl("validate", "-f", "json").stdout)
    assert (found["code"], found["file"], found["line"], found["column"]) == ("without-effect", "avactl.yaml", 4, 12)
    assert "`/team/`" in found["message"]


def test_a_renamed_team_is_one_problem(tmp_path: Path, avactl: Run) -> None:
    job = "apiVersion: avactl.dev/v1\nkind: TrainingJob\nmetadata: {name: run-%s, team: vision}\nspec: {image: x}\n"
    other = TEAM.replace("vision", "speech")
    renamed = TEAM.replace("vision", "seeing")
    write(tmp_path, cluster=CLUSTER, team=renamed, other=other, **{f"job{number}": job % number for number in range(5)})
    write(tmp_path, speech=job.replace("vision", "speech") % 5)
    shown = avactl("validate").stdout
    assert "error[missing-reference]: unknown Team `vision` (×5)\n  --> job0.yaml:3:31\n" in shown
    assert "help: no spec names Team `seeing`: if that was `vision`, write the same name in both\n" in shown
    assert "= note: also at job1.yaml:3, job2.yaml:3, job3.yaml:3, job4.yaml:3\n" in shown
    assert shown.endswith("\n5 errors\n")


def test_problems_of_generated_specs_are_one(tmp_path: Path, avactl: Run) -> None:
    job = "apiVersion: avactl.dev/v1\nkind: TrainingJob\nmetadata: {name: run-%d, team: vision}\nspec: {imag: x}\n"
    write(tmp_path, cluster=CLUSTER, jobs="---\n".join(job % number for number in range(20)))
    shown = avactl("validate").stdout
    assert shown.count("unknown-key") == 1
    assert "error[unknown-key]: `spec` has no key `imag` (×20)\n  --> jobs.yaml:4:8\n" in shown
    assert "= note: also in lines 9, 14, 19, 24, 29, 34 and 13 more\n" in shown
    assert shown.endswith("\n20 errors\n")
    assert len(json.loads(avactl("validate", "-f", "json").stdout)) == 20, "other formats have them one by one"
    python = (
        "from avactl.kinds import Metadata, Quota\nfrom avactl.spec.platform.quota import QuotaSpec\n\n"
        "def specs():\n    for i in range(3):\n"
        "        yield Quota(metadata=Metadata(name=f'q{i}', team=f'none{i}'), spec=QuotaSpec(cpu='4'))\n"
    )
    (tmp_path / "jobs.yaml").unlink()
    write(tmp_path, avactl="python: {allow: true}\n")
    (tmp_path / "jobs.py").write_text(python)
    shown = avactl("validate").stdout
    assert "(×3)\n  --> jobs.py:6:" in shown, shown
