"""The base of a comment, in clones as the forges' runners make them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.running import Run
from tests.diff.repository import Repository
from tests.diff.sides import HEAD, PLATFORM, job
from tests.review.forges import TOKEN

_OTHER = HEAD + job("other")
_POLICY = """
policy: few-retries
kinds: [TrainingJob]
schema: {properties: {spec: {properties: {retries: {maximum: 8}}}}}
"""
_OWNERS = 'owners: [{path: "/teams/", teams: [vision]}, {path: "/*", teams: ["*"], kinds: ["*"]}]\n'


@pytest.fixture(autouse=True)
def no_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run in pipelines too."""
    for name in list(os.environ):
        if name.startswith(("GITHUB_", "GITLAB_", "GITEA_", "FORGEJO_", "CI_", "GH_")) or name == "CI":
            monkeypatch.delenv(name)


class Server(Repository):
    """A change from an old commit of a main branch that has gone on, and the forge's merge of both."""

    def __init__(self, root: Path, change: dict[str, str], meanwhile: dict[str, str]) -> None:
        super().__init__(root)
        self.git("config", "uploadpack.allowAnySHA1InWant", "true")
        self.old = self.commit({"platform.yaml": PLATFORM, "mine.yaml": HEAD + job("mine")})
        self.git("switch", "-q", "-c", "feature")
        self.change = self.commit(change)
        self.git("switch", "-q", "main")
        self.tip = self.commit(meanwhile)
        self.git("switch", "-q", "--detach", "main")
        self.git("merge", "-q", "--no-edit", "feature")
        self.merged = self.git("rev-parse", "HEAD")
        self.git("update-ref", "refs/pull/7/merge", self.merged)
        self.git("switch", "-q", "main")

    def clone(self, folder: Path, commit: str, depth: int = 0, *, branches: bool = True) -> Path:
        """Clone as a runner does: the commit, checked out, and with `branches` all branches."""
        clone = Repository(folder)
        clone.git("remote", "add", "origin", self.root.as_uri())
        specs = [commit, *(["+refs/heads/*:refs/remotes/origin/*"] if branches else [])]
        clone.git("fetch", "-q", *([f"--depth={depth}"] if depth else []), "origin", *specs)
        clone.git("checkout", "-q", "--detach", commit)
        return folder

    def github(self, folder: Path) -> dict[str, str]:
        """Variables of GitHub Actions; `base.sha` of the event is that of the last push to the branch."""
        pull = {"number": 7, "base": {"sha": self.old, "ref": "main"}, "head": {"sha": self.change, "ref": "feature"}}
        (folder / "event.json").write_text(json.dumps({"pull_request": pull}))
        return {
            "GITHUB_ACTIONS": "true",
            "CI": "true",
            "GITHUB_REPOSITORY": "acme/platform",
            "GITHUB_TOKEN": TOKEN,
            "GITHUB_REF": "refs/pull/7/merge",
            "GITHUB_EVENT_PATH": str(folder / "event.json"),
            "GITHUB_BASE_REF": "main",
        }

    def gitea(self, folder: Path, *, forgejo: bool = False) -> dict[str, str]:
        """Variables of Gitea Actions or Forgejo Actions: those of GitHub Actions, and the last commit of the change."""
        own = {"FORGEJO_ACTIONS": "true", "FORGEJO_TOKEN": TOKEN} if forgejo else {"GITEA_TOKEN": TOKEN}
        return self.github(folder) | {
            "GITEA_ACTIONS": "true",
            "GITHUB_REF": "refs/pull/7/head",
            "GITHUB_SHA": self.change,
            **own,
        }

    def gitlab(self, *, merged: bool) -> dict[str, str]:
        """Variables of GitLab CI. The base of the merge request's diff is as old as its branch."""
        more = {"CI_MERGE_REQUEST_SOURCE_BRANCH_SHA": self.change} if merged else {}
        return {
            "GITLAB_CI": "true",
            "CI": "true",
            "CI_PROJECT_ID": "42",
            "CI_MERGE_REQUEST_IID": "7",
            "CI_MERGE_REQUEST_DIFF_BASE_SHA": self.old,
            "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main",
            **more,
        }


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(
        tmp_path / "server",
        {"mine.yaml": HEAD + job("mine", retries=7)},
        {"other.yaml": _OTHER, "avactl.yaml": "policies: {images-pinned: warning}\n"},
    )


def _comment(avactl: Run, folder: Path, env: dict[str, str], code: int = 0) -> str:
    done = avactl("ci", "comment", "--dry-run", "--no-plan", cwd=folder, **env)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def _check(told: str, server: Server, *, merged: bool) -> None:
    """The change, and nothing that others have merged."""
    assert "### 1 intent changed" in told
    assert "vision/mine" in told
    assert "other" not in told
    assert "security-setting" not in told
    base, head = (server.tip, server.merged) if merged else (server.old, server.change)
    assert f"compared {base[:7]} with {head[:7]}" in told


@pytest.mark.parametrize("depth", [0, 2])
def test_a_merge_of_github_is_compared_with_its_first_parent(
    server: Server, avactl: Run, tmp_path: Path, depth: int
) -> None:
    folder = server.clone(tmp_path / "clone", server.merged, depth, branches=not depth)
    _check(_comment(avactl, folder, server.github(tmp_path)), server, merged=True)


def test_the_head_of_a_pull_request_is_compared_with_the_merge_base(
    server: Server, avactl: Run, tmp_path: Path
) -> None:
    folder = server.clone(tmp_path / "clone", server.change)
    _check(_comment(avactl, folder, server.github(tmp_path)), server, merged=False)


@pytest.mark.parametrize("merged", [True, False])
def test_pipelines_of_gitlab(server: Server, avactl: Run, tmp_path: Path, *, merged: bool) -> None:
    folder = server.clone(tmp_path / "clone", server.merged if merged else server.change)
    _check(_comment(avactl, folder, server.gitlab(merged=merged)), server, merged=merged)


@pytest.mark.parametrize("forgejo", [False, True])
def test_gitea_has_no_merge_of_a_change(server: Server, avactl: Run, tmp_path: Path, *, forgejo: bool) -> None:
    folder = server.clone(tmp_path / "clone", server.change)
    _check(_comment(avactl, folder, server.gitea(tmp_path, forgejo=forgejo)), server, merged=False)


@pytest.mark.parametrize("forge", ["github", "gitlab"])
def test_a_clone_without_the_base_says_what_is_missing(server: Server, avactl: Run, tmp_path: Path, forge: str) -> None:
    env = server.github(tmp_path) if forge == "github" else server.gitlab(merged=True)
    setting = "fetch-depth: 0" if forge == "github" else "GIT_DEPTH"
    folder = server.clone(tmp_path / "merged", server.merged, 1, branches=False)
    told = _comment(avactl, folder, env, 3)
    assert f"this clone has no revision `{server.tip}`" in told
    assert setting in told
    env = server.github(tmp_path) if forge == "github" else server.gitlab(merged=False)
    folder = server.clone(tmp_path / "change", server.change, 1, branches=False)
    told = _comment(avactl, folder, env, 3)
    assert "no revision `origin/main`" in told
    assert setting in told


def test_a_merge_by_the_author_is_none_of_the_forge(server: Server, avactl: Run, tmp_path: Path) -> None:
    """A branch into which its author has merged main, and one that takes the change of another for its parent."""
    server.git("switch", "-q", "feature")
    server.git("merge", "-q", "--no-edit", "main")
    server.change = server.git("rev-parse", "HEAD")
    told = _comment(avactl, server.clone(tmp_path / "clone", server.change), server.gitlab(merged=False))
    assert f"compared {server.tip[:7]} with {server.change[:7]}" in told
    assert "other" not in told


@pytest.mark.parametrize("forge", ["github", "gitlab"])
def test_a_fork_from_an_old_commit_is_judged_by_the_rules_of_today(avactl: Run, tmp_path: Path, forge: str) -> None:
    server = Server(
        tmp_path / "server",
        {"mine.yaml": HEAD + job("mine", retries=9)},
        {"policies/few-retries.yaml": _POLICY, "avactl.yaml": _OWNERS},
    )
    env = server.github(tmp_path) if forge == "github" else server.gitlab(merged=False)
    told = _comment(avactl, server.clone(tmp_path / "clone", server.change), env, 1)
    assert "policy/few-retries" in told
    assert "this is a policy of the base branch" in told

    server.git("switch", "-q", "feature")
    server.change = server.commit({"teams/x.yaml": HEAD + "kind: Team\nmetadata: {name: mallory}\n"})
    env = server.github(tmp_path) if forge == "github" else server.gitlab(merged=False)
    told = _comment(avactl, server.clone(tmp_path / "stolen", server.change), env, 1)
    assert "not-owner" in told
