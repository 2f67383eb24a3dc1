"""`owners` in avactl.yaml: path patterns, teams and kinds, and that a change cannot widen its own rights."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from avactl.apply.files.paths import object_path
from avactl.compiler import compile_tree
from avactl.compiler.driver import compile_change
from avactl.compiler.incremental.compile import compile_cached
from avactl.diagnostics import Diagnostic
from avactl.policy.owners import CodeOwner, find
from avactl.spec.repository.tree import DirTree, MemoryTree
from avactl.workbench.scaffold import template_files
from tests.cli.running import Run
from tests.diff.repository import Repository
from tests.diff.sides import HEAD, PLATFORM, job

OWNERS = """owners:
- {path: "*", teams: ["*"], kinds: ["*"]}
- {path: /teams/vision/, teams: [vision]}
- {path: /teams/ads/, teams: [ads]}
"""
ADS = f"{HEAD}kind: Team\nmetadata: {{name: ads}}\n"
BASE = {"avactl.yaml": OWNERS, "platform.yaml": PLATFORM, "ads.yaml": ADS}
STOLEN = {"teams/ads/jobs.yaml": HEAD + job(team="vision")}
WIDER = OWNERS.replace("teams: [ads]", "teams: [ads, vision]")


def problems(files: dict[str, str]) -> list[str]:
    return told(compile_tree(MemoryTree(files)).diagnostics)


def told(found: tuple[Diagnostic, ...]) -> list[str]:
    return [f"{d.span} {d.message}" for d in found if d.code == "not-owner"]


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        # The examples of GitHub's documentation of CODEOWNERS.
        ("*", ["a.yaml", "x/y/z.yaml"], []),
        ("*.js", ["a.js", "x/a.js"], ["a.jsx"]),
        ("/build/logs/", ["build/logs/a", "build/logs/x/a"], ["x/build/logs/a", "build/logs"]),
        ("docs/*", ["docs/a.md"], ["docs/build-app/a.md", "x/docs/a.md"]),
        ("apps/", ["apps/a", "x/apps/y/a"], ["apps.yaml", "apps"]),
        ("**/logs", ["logs/a", "build/logs/a", "deeply/nested/logs/x/a"], ["xlogs/a"]),
        ("/apps/github", ["apps/github/a", "apps/github"], ["apps/github.yaml", "x/apps/github/a"]),
        # Others.
        ("teams/vision", ["teams/vision/a.yaml"], ["x/teams/vision/a.yaml", "teams/vision2/a.yaml"]),
        ("/*", ["a.yaml"], ["x/a.yaml"]),
        ("/teams/*/team.yaml", ["teams/a/team.yaml"], ["teams/team.yaml", "teams/a/b/team.yaml"]),
        ("/a/**/b.yaml", ["a/b.yaml", "a/x/y/b.yaml"], ["a/xb.yaml", "x/a/b.yaml"]),
        ("/a/**", ["a/b", "a/b/c"], ["ab", "x/a/b"]),
        ("team?.yaml", ["team1.yaml", "x/team2.yaml"], ["team.yaml", "team/.yaml"]),
        ("/a.b", ["a.b"], ["aXb"]),
    ],
)
def test_patterns_match_as_in_codeowners(pattern: str, inside: list[str], outside: list[str]) -> None:
    owners = (CodeOwner(path=pattern),)
    assert [path for path in inside if not find(owners, path)] == []
    assert [path for path in outside if find(owners, path)] == []


def test_the_last_match_wins() -> None:
    files = {**BASE, **STOLEN}
    assert problems(files) == ["teams/ads/jobs.yaml:3:27 teams/ads/jobs.yaml may not declare specs of team vision"]
    assert problems({**files, "avactl.yaml": OWNERS + '- {path: "*", teams: ["*"], kinds: ["*"]}\n'}) == []


_ENTRY = "TrainingJob: {spec: {env: {A: b}}, patches: PATCHES}"
_INHERITED = {
    "defaults of a team": ("Defaults", "metadata: {team: vision}", _ENTRY),
    "defaults of the platform": ("Defaults", "", _ENTRY),
    "a template of a team": (
        "TrainingJob",
        "template: true\nmetadata: {name: base, team: vision}\npatches: PATCHES",
        "env: {A: b}",
    ),
}


@pytest.mark.parametrize("patches", ["[]", "[{}]", "5", "[{target: 5}, 6]"])
@pytest.mark.parametrize("what", _INHERITED)
def test_nobody_sets_what_specs_of_others_inherit(what: str, patches: str) -> None:
    kind, head, spec = _INHERITED[what]
    text = f"{HEAD}kind: {kind}\n{head}\nspec: {{{spec}}}\n".replace("PATCHES", patches)
    files = {**BASE, "teams/vision/jobs.yaml": f"{HEAD}{job().rstrip()}\npatches: []\n"}
    assert problems({**files, "teams/vision/own.yaml": text}) == [] or "of the platform" in what
    (found,) = problems({**files, "teams/ads/own.yaml": text})
    assert found.startswith("teams/ads/own.yaml")
    assert "may not declare" in found


def test_python_specs_count_by_their_own_file() -> None:
    helper = (
        "from avactl.kinds import Dataset\n\ndef made(team):\n    return Dataset.model_validate({'kind': 'Dataset', "
    )
    helper += "'metadata': {'name': 'd', 'team': team}, 'spec': {'size': '1Gi', 'versions': [{'name': 'v1', "
    helper += "'url': 's3://imagenet/v2'}], 'secret': 's'}})\n\nspecs = []\n"
    files = {**BASE, "avactl.yaml": f"python: {{allow: true, timeout: 20s}}\n{OWNERS}", "helper.py": helper}
    call = "from helper import made\n\nspecs = [made('vision')]\n"
    assert problems({**files, "teams/vision/d.py": call}) == []
    (found,) = problems({**files, "teams/ads/d.py": call})
    assert found.endswith("teams/ads/d.py may not declare specs of team vision")


def test_a_change_cannot_widen_its_own_rights() -> None:
    base, head = MemoryTree(BASE), MemoryTree({**BASE, **STOLEN, "avactl.yaml": WIDER})
    assert told(compile_tree(head).diagnostics) == []
    for wider in (head, MemoryTree({**BASE, **STOLEN, "avactl.yaml": "{}\n"})):
        before, after = compile_change(base, wider)
        assert before.ok
        (found,) = told(after.diagnostics)
        assert found.endswith("may not declare specs of team vision by the `owners` before this change")
    # The head's own count as well: they apply once it is merged.
    _, after = compile_change(MemoryTree({**BASE, "avactl.yaml": WIDER}), MemoryTree({**BASE, **STOLEN}))
    assert [found for found in told(after.diagnostics) if "before" not in found]
    # A repository that gets its first `owners` has none before.
    assert compile_change(MemoryTree({**BASE, "avactl.yaml": "{}\n"}), MemoryTree(BASE))[1].ok


def test_diff_plan_and_comment_read_them_from_the_base(tmp_path: Path, avactl: Run) -> None:
    repository = Repository(tmp_path)
    repository.commit(BASE)
    repository.git("switch", "-q", "-c", "topic")
    repository.commit({**STOLEN, "avactl.yaml": WIDER})
    assert avactl("validate").returncode == 0
    for command in (["diff"], ["plan"], ["ci", "comment", "--dry-run", "--no-plan"]):
        done = avactl(*command, "--base", "main", "--head", "topic")
        assert done.returncode == 1, done.stdout
        assert "not-owner" in done.stdout + done.stderr
    assert (
        "warning[security-setting]: avactl.yaml decides what specs may do: "
        '`owners` - {"path": "/teams/ads/", "teams": ["ads"]}, + {"path": "/teams/ads/", "teams": ["ads", "vision"]}'
    ) in done.stdout


def test_changed_settings_are_in_diff_and_comment(tmp_path: Path, avactl: Run) -> None:
    repository = Repository(tmp_path)
    repository.commit({**BASE, "CODEOWNERS": "* @a\n"})
    files = {
        "avactl.yaml": f"{OWNERS}python: {{allow: true}}\n",
        "CODEOWNERS": "* @b\n",
        "policies/p.yaml": ("policy: p\nschema: {}\n"),
    }
    repository.commit(files)
    expected = [
        'avactl.yaml decides what specs may do: `python` + {"allow": true}',
        "CODEOWNERS decides what specs may do: changed",
        "policies/p.yaml decides what specs may do: added",
    ]
    shown = avactl("diff", "--base", "HEAD~1", "-f", "json")
    warnings = json.loads(shown.stdout)["warnings"]
    assert [warning["message"] for warning in warnings] == expected
    assert {warning["code"] for warning in warnings} == {"security-setting"}
    comment = avactl("ci", "comment", "--dry-run", "--base", "HEAD~1", "--head", "HEAD").stdout
    assert [line for line in expected if line not in comment] == []


def test_a_changed_program_is_named_though_it_computes_the_same(tmp_path: Path, avactl: Run) -> None:
    """By the clock, or by files of the machine, it can compute other specs where they are applied."""
    repository = Repository(tmp_path)
    plain = {"teams/ads/jobs.py": "from shared import base\n", "shared/base.py": "", "notes.txt": ""}
    repository.commit({**BASE, "avactl.yaml": f"{OWNERS}python: {{allow: true}}\n", **plain})
    bomb = "import os, time\nif time.time() > 2e9 or os.path.exists('/var/run/secrets'):\n    raise SystemExit\n"
    repository.commit({"shared/base.py": bomb, "teams/ads/more.py": "x = 1\n", "notes.txt": "x"})
    comment = avactl("ci", "comment", "--dry-run", "--base", "HEAD~1", "--head", "HEAD").stdout
    assert "programs that compute specs changed: shared/base.py, teams/ads/more.py" in comment
    assert "notes.txt" not in comment
    diff = avactl("diff", "--base", "HEAD~1", "-f", "json").stdout
    assert [warning["code"] for warning in json.loads(diff)["warnings"]] == ["security-setting"]


def test_a_cached_compile_notices_changed_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVACTL_CACHE_DIR", str(tmp_path / "cache"))
    root = tmp_path / "repo"
    (root / "teams/ads").mkdir(parents=True)

    def compiled(**changed: str) -> list[str]:
        for name, text in changed.items():
            (root / f"{name.replace('__', '/')}.yaml").write_text(text)
        found = compile_cached(DirTree(root), object_path).diagnostics
        assert found == compile_tree(DirTree(root)).diagnostics
        return told(found)

    stolen = STOLEN["teams/ads/jobs.yaml"]
    assert compiled(platform=PLATFORM, ads=ADS, avactl=WIDER, teams__ads__jobs=stolen) == []
    assert len(compiled(avactl=OWNERS)) == 1
    assert len(compiled()) == 1
    assert compiled(avactl=WIDER) == []
    assert len(compiled(avactl=OWNERS, teams__ads__jobs=stolen.replace("90", "91"))) == 1
    assert compiled(teams__ads__jobs="") == []
    assert len(compiled(teams__ads__jobs=stolen)) == 1


def test_policies_see_the_file_of_a_spec() -> None:
    policy = "policy: place\nkinds: [TrainingJob]\nschema: {properties: {file: {pattern: '^teams/'}}, required: [file]}"
    files = {"platform.yaml": PLATFORM, "policies/p.yaml": policy}
    assert compile_tree(MemoryTree({**files, "teams/j.yaml": HEAD + job()})).ok
    (found,) = compile_tree(MemoryTree({**files, "j.yaml": HEAD + job()})).diagnostics
    assert "'j.yaml' does not match" in found.message


def test_init_writes_owners_and_codeowners_that_agree() -> None:
    files = {path: data.decode() for path, data in template_files().items()}
    config = compile_tree(MemoryTree({p: t for p, t in files.items() if p.endswith(".yaml") and p[0] != "."}))
    assert config.ok, config.diagnostics
    paths = re.findall(r'path: "?([^",]+)', files["avactl.yaml"])
    lines = [line.split() for line in files["CODEOWNERS"].splitlines() if not line.startswith("#")]
    assert [line[0] for line in lines] == paths
    ours = {line[0]: line[1] for line in lines}
    # The platform reviews all files that may declare the specs of the platform.
    assert ours["*"] == ours["/teams/*/team.yaml"] != ours["/teams/vision/"]
    stolen = HEAD + "kind: Quota\nmetadata: {name: more, team: vision}\nspec: {gpus: [{gpu: A10, guaranteed: 2}]}\n"
    assert len(problems({**files, "teams/vision/quota.yaml": stolen})) == 1


MEMBERS = OWNERS + "- {path: /teams/vision/ann/, teams: [vision], members: [ann]}\n"


@pytest.mark.parametrize(
    ("whom", "said"),
    [
        ("member: ann", ""),
        ("member: bob", "3:43 teams/vision/ann/job.yaml may not declare specs of bob"),
        ("", "3:18 teams/vision/ann/job.yaml may not declare a TrainingJob without a member"),
    ],
)
def test_files_run_pods_for_their_members(whom: str, said: str) -> None:
    text = HEAD + job(team="vision").replace("team: vision", f"team: vision, {whom}" if whom else "team: vision")
    found = problems({**BASE, "avactl.yaml": MEMBERS, "teams/vision/ann/job.yaml": text})
    assert found == ([f"teams/vision/ann/job.yaml:{said}"] if said else [])
    # Other files of the team run pods for anybody, and for the team.
    assert problems({**BASE, "avactl.yaml": MEMBERS, "teams/vision/job.yaml": text}) == []


def test_a_change_adds_no_member_to_its_own_files() -> None:
    text = HEAD + job(team="vision").replace("team: vision", "team: vision, member: bob")
    wider = MEMBERS.replace("[ann]", "[ann, bob]")
    base = MemoryTree({**BASE, "avactl.yaml": MEMBERS})
    head = MemoryTree({**BASE, "avactl.yaml": wider, "teams/vision/ann/job.yaml": text})
    _, after = compile_change(base, head)
    (found,) = told(after.diagnostics)
    assert found.endswith("may not declare specs of bob by the `owners` before this change")


def test_the_user_of_a_workspace_is_its_member() -> None:
    text = (
        HEAD + "kind: Workspace\nmetadata: {name: w, team: vision}\n"
        "spec: {user: USER, image: 'registry.example.com/jupyter:1'}\n"
    )
    files = {**BASE, "avactl.yaml": MEMBERS}
    assert problems({**files, "teams/vision/ann/w.yaml": text.replace("USER", "ann")}) == []
    (found,) = problems({**files, "teams/vision/ann/w.yaml": text.replace("USER", "bob")})
    assert found.startswith("teams/vision/ann/w.yaml:4:14 ")
