"""Commands on a branch that is made to run programs through git: none of them runs."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.cli.running import Run
from tests.hostile_repository import HostileRepository
from tests.review.forges import FakeGitHub, serving
from tests.review.test_command import github_env

COMMANDS = {
    "validate": ("validate", "specs"),
    "diff": ("diff", "specs", "--base", "main"),
    "diff of revisions": ("diff", "specs", "--base", "main", "--head", "topic", "--merge-base"),
    "plan": ("plan", "specs", "--base", "main"),
    "stacks": ("stacks", "specs", "--base", "main"),
    "stacks of revisions": ("stacks", "specs", "--base", "main", "--head", "topic"),
    "ci comment": ("ci", "comment", "specs", "--base", "main"),
    "publish": ("render", "specs", "--publish", "rendered"),
    "publish here": ("render", "specs", "--publish", "rendered", "--no-push"),
    "run": ("run", "specs/jobs.yaml", "--base", "main"),
    "reconcile": ("reconcile", "specs", "--once", "--dry-run", "--kubeconfig", "../kubeconfig"),
    "reconcile a branch": ("reconcile", "specs", "--branch", "topic", "--dry-run", "--kubeconfig", "../kubeconfig"),
}
REMOTES = ("ssh://git@example.com/x.git", "ext::sh -c touch% {canaries}/ext", "git://example.com/x.git")
TOLD = {
    "validate": "",
    "diff": "retries 3 → 7",
    "diff of revisions": "retries 3 → 7",
    "plan": "",
    "stacks": "main",
    "stacks of revisions": "main",
    "ci comment": "comment created",
    "publish": "objects",
    "publish here": "objects",
    "run": "retries 3 → 7",
    "reconcile": "",
    "reconcile a branch": "",
}
KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "c",
    "users": [{"name": "u", "user": {"token": "t"}}],
    "clusters": [{"name": "c", "cluster": {"server": "SERVER"}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
}


REFUSED = "no cluster for tests"


class _Refusing(BaseHTTPRequestHandler):
    """An API server that refuses everybody: one that does not answer is asked again for some seconds."""

    def do_GET(self) -> None:
        body = json.dumps({"kind": "Status", "reason": "Forbidden", "message": REFUSED}).encode()
        self.send_response(403)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """The URL of a cluster that is no help."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: str) -> HostileRepository:
    for name in list(os.environ):
        if name.startswith(("GITHUB_", "GITLAB_", "CI_", "GH_", "GIT_")):
            monkeypatch.delenv(name)
    (tmp_path / "kubeconfig").write_text(json.dumps(KUBECONFIG).replace("SERVER", cluster))
    found = HostileRepository(tmp_path / "repository")
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(tmp_path / "forge.git")], check=True)
    found.git("remote", "add", "origin", str(tmp_path / "forge.git"))
    return found


def run(avactl: Run, repository: HostileRepository, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command at the top of the repository; `ci comment` in a pipeline, with a forge that answers."""
    with serving(FakeGitHub()) as forge:
        env = github_env(forge, repository.root.parent) if command == "ci comment" else {}
        if command == "run":
            names = ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL")
            env = dict.fromkeys(names, "ann@example.com")
        return avactl(*COMMANDS[command], cwd=repository.root, **env)


def want_success(command: str, done: subprocess.CompletedProcess[str]) -> None:
    if command.startswith("reconcile"):  # git was read: the cluster is asked
        assert REFUSED in done.stdout + done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert TOLD[command] in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_a_bare_repository_in_the_specs(avactl: Run, repository: HostileRepository, command: str) -> None:
    repository.plant_bare_repository(REMOTES[0])
    done = run(avactl, repository, command)
    assert repository.ran == []
    want_success(command, done)


@pytest.mark.parametrize("remote", REMOTES)
def test_a_bare_repository_with_any_remote(avactl: Run, repository: HostileRepository, remote: str) -> None:
    repository.plant_bare_repository(remote.format(canaries=repository.canaries))
    done = run(avactl, repository, "diff")
    assert repository.ran == []
    want_success("diff", done)


@pytest.mark.parametrize("command", COMMANDS)
def test_programs_of_the_user_s_settings(avactl: Run, repository: HostileRepository, command: str) -> None:
    repository.use_drivers()
    done = run(avactl, repository, command)
    assert repository.ran == []
    want_success(command, done)


@pytest.mark.parametrize("remote", REMOTES)
@pytest.mark.parametrize("command", ["diff", "diff of revisions", "plan", "stacks", "ci comment"])
def test_a_partial_clone_is_not_completed(
    avactl: Run, repository: HostileRepository, command: str, remote: str
) -> None:
    repository.become_partial(remote.format(canaries=repository.canaries))
    done = run(avactl, repository, command)
    assert repository.ran == []
    assert done.returncode == 3
    assert done.stderr.splitlines() == [
        "avactl: specs is in a partial clone that lacks objects of this revision, and avactl does not fetch them",
        "        `git fetch --refetch --no-filter` completes the clone",
    ]
