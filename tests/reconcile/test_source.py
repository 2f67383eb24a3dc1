"""Where specs come from, and what the forge is told about them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from avactl.apply.reconcile.reporting import commit_status
from avactl.apply.reconcile.source import SourceBranch, SourceRevision, WorkingDirectory, without_credentials
from avactl.spec.repository.git import GitError
from avactl.spec.repository.tree import MemoryTree


def git(directory: Path, *arguments: str) -> str:
    command = ["git", "-C", str(directory), "-c", "user.name=T", "-c", "user.email=t@example.com", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    directory = tmp_path / "origin"
    (directory / "specs").mkdir(parents=True)
    git(directory, "init", "--quiet", "--initial-branch=main")
    commit(directory, "one")
    return directory


def commit(directory: Path, text: str) -> str:
    (directory / "specs" / "a.yaml").write_text(text)
    git(directory, "add", "--all")
    git(directory, "commit", "--quiet", "--message", text)
    return git(directory, "rev-parse", "HEAD")


def test_a_branch_is_fetched_and_followed_also_after_a_forced_push(repository: Path, tmp_path: Path) -> None:
    branch = SourceBranch(str(repository), "main", "specs", cache=tmp_path / "cache")
    first = branch.newest()
    assert first.tree.paths() == ["a.yaml"]
    assert first.tree.read("a.yaml") == b"one"
    second = commit(repository, "two")
    assert branch.newest().commit == second
    git(repository, "reset", "--hard", "--quiet", first.commit)
    third = commit(repository, "three")
    found = branch.newest()
    assert found.commit == third
    assert found.tree.read("a.yaml") == b"three"
    assert found.repository == first.repository == WorkingDirectory(repository / "specs").newest().repository


def test_specs_in_a_directory_with_a_name_that_git_uses(repository: Path, tmp_path: Path) -> None:
    (repository / "objects").mkdir()
    (repository / "objects" / "b.yaml").write_text("two")
    commit(repository, "one")
    assert SourceBranch(str(repository), "main", "objects", cache=tmp_path / "cache").newest().tree.paths() == [
        "b.yaml"
    ]


def test_a_working_directory_has_a_commit_only_while_it_is_clean(repository: Path) -> None:
    source = WorkingDirectory(repository / "specs")
    assert source.newest().commit == git(repository, "rev-parse", "HEAD")
    (repository / "specs" / "new.yaml").write_text("x")
    assert source.newest().commit == ""
    assert source.newest().repository


def test_what_git_cannot_reach_is_one_line_without_credentials(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(GitError, match="has no branch `nope`"):
        SourceBranch(str(repository), "nope", cache=tmp_path / "cache").newest()
    secret = "https://me:s3cr3t-t0ken@127.0.0.1:9/x.git"
    with pytest.raises(GitError) as error:
        SourceBranch(secret, "main", cache=tmp_path / "cache").newest()
    assert "s3cr3t" not in str(error.value)
    assert without_credentials(secret) == "https://127.0.0.1:9/x.git"
    assert not [path for path in (tmp_path / "cache").rglob("*") if "s3cr3t" in path.name]


class Forge:
    """A forge that takes statuses, after refusing as often as `failures` says."""

    def __init__(self) -> None:
        self.failures: list[int] = []
        self.location = ""
        """Target of redirects."""
        self.seen: list[tuple[str, str, dict[str, Any]]] = []
        forge = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                token = self.headers.get("Authorization") or self.headers.get("PRIVATE-TOKEN") or ""
                forge.seen.append((self.path, token, body))
                self.send_response(forge.failures.pop(0) if forge.failures else 201)
                self.send_header("Content-Length", "0")
                if forge.location:
                    self.send_header("Location", forge.location)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def forge(monkeypatch: pytest.MonkeyPatch) -> Iterator[Forge]:
    for name in list(os.environ):
        if name.startswith(("GITHUB_", "GH_", "GITLAB_", "GITEA_", "FORGEJO_", "CI_")):
            monkeypatch.delenv(name)
    forge = Forge()
    monkeypatch.setenv("GITHUB_API_URL", forge.url)
    monkeypatch.setenv("CI_API_V4_URL", f"{forge.url}/api/v4")
    thread = threading.Thread(target=forge.server.serve_forever)
    thread.start()
    yield forge
    forge.server.shutdown()
    thread.join()
    forge.server.server_close()


def revision(url: str) -> SourceRevision:
    return SourceRevision(MemoryTree({}), "c0ffee", "", url)


def test_the_status_of_a_commit(forge: Forge, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(commit_status.set_status(revision("https://github.com/acme/platform.git"), "train", "success", "fine"))
    assert forge.seen == []  # no token, no status
    monkeypatch.setenv("GITHUB_TOKEN", "t1")
    forge.failures = [502]
    asyncio.run(commit_status.set_status(revision("git@github.com:acme/platform.git"), "train", "failure", "x" * 300))
    path, token, body = forge.seen[-1]
    assert len(forge.seen) == 2  # sent again after 502
    assert (path, token) == ("/repos/acme/platform/statuses/c0ffee", "Bearer t1")
    assert (body["state"], body["context"], len(body["description"])) == ("failure", "avactl/train", 140)
    monkeypatch.delenv("GITHUB_TOKEN")
    monkeypatch.setenv("GITLAB_TOKEN", "t2")
    asyncio.run(commit_status.set_status(revision("https://gitlab.com/acme/ml/platform.git"), "train", "failure", "no"))
    path, token, body = forge.seen[-1]
    assert (path, token) == ("/api/v4/projects/acme%2Fml%2Fplatform/statuses/c0ffee", "t2")
    assert body["state"] == "failed"


@pytest.mark.parametrize("name", ["gitea", "forgejo"])
def test_the_status_of_a_commit_on_gitea(forge: Forge, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    variable = name.upper()
    monkeypatch.setenv("GITHUB_TOKEN", "of another forge")  # GITHUB_API_URL is set, too
    tell = commit_status.set_status(
        revision(f"ssh://git@{name}.example.com:2222/acme/platform.git"), "", "failure", "no"
    )
    asyncio.run(tell)
    assert forge.seen == []
    monkeypatch.setenv(f"{variable}_TOKEN", "t3")
    monkeypatch.setenv(f"{variable}_API_URL", f"{forge.url}/api/v1")
    tell = commit_status.set_status(revision(f"https://{name}.example.com:3000/acme/platform.git"), "", "failure", "no")
    asyncio.run(tell)
    ((path, token, body),) = forge.seen
    assert (path, token) == ("/api/v1/repos/acme/platform/statuses/c0ffee", "token t3")
    assert body == {"state": "failure", "context": "avactl/all clusters", "description": "no"}


def test_a_host_without_a_name_has_the_forge_of_the_pipeline(forge: Forge, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "https://git.example.com/acme/platform"
    monkeypatch.setenv("GITEA_TOKEN", "t3")
    asyncio.run(commit_status.set_status(revision(url), "", "success", "fine"))
    assert forge.seen == []  # the token goes nowhere without the root of the API
    for name in ("GITHUB_ACTIONS", "GITEA_ACTIONS"):
        monkeypatch.setenv(name, "true")
    asyncio.run(commit_status.set_status(revision(url), "", "success", "fine"))
    assert [(path, token) for path, token, _ in forge.seen] == [("/repos/acme/platform/statuses/c0ffee", "token t3")]


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_the_token_of_a_status_goes_to_no_other_origin(
    forge: Forge, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: int
) -> None:
    monkeypatch.setenv("GITLAB_TOKEN", "t2")
    elsewhere = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    forge.location, forge.failures = f"http://127.0.0.1:{elsewhere.server_port}/x", [status]
    asyncio.run(commit_status.set_status(revision("https://gitlab.com/acme/platform.git"), "train", "success", "fine"))
    assert "could not set the status of commit c0ffee: " in capsys.readouterr().err
    assert len(forge.seen) == 1
    with elsewhere:
        elsewhere.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            elsewhere.socket.accept()


@pytest.mark.parametrize("location", ["http://[::1", "mailto:x", "https://127.0.0.1:99999/x", ""])
def test_a_redirect_to_no_url_is_a_note(
    forge: Forge, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], location: str
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "t1")
    forge.location, forge.failures = location, [307] * 10
    asyncio.run(commit_status.set_status(revision("https://github.com/acme/platform"), "train", "success", "fine"))
    assert "could not set the status of commit c0ffee: " in capsys.readouterr().err
    assert {path for path, *_ in forge.seen} == {"/repos/acme/platform/statuses/c0ffee"}


def test_a_repository_that_has_moved_gets_its_status(forge: Forge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "t1")
    forge.location, forge.failures = "/repositories/7/statuses/c0ffee", [307]
    asyncio.run(commit_status.set_status(revision("https://github.com/acme/platform"), "train", "success", "fine"))
    assert [(path, token) for path, token, _ in forge.seen][1:] == [("/repositories/7/statuses/c0ffee", "Bearer t1")]


def test_a_refused_status_is_a_note(
    forge: Forge, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "t1")
    forge.failures = [403]
    asyncio.run(commit_status.set_status(revision("https://github.com/acme/platform"), "train", "success", "fine"))
    assert "could not set the status of commit c0ffee: 403" in capsys.readouterr().err
    assert len(forge.seen) == 1
