"""How git is started: where, by whom, how far it reaches, and how much it may write."""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from avactl.spec.repository import git as module
from avactl.spec.repository import git_tree
from avactl.spec.repository.git import (
    GitAccess,
    GitCommandError,
    GitError,
    git_work_tree,
    init_bare,
    locate_repository,
    run_git,
    use_credentials,
)
from avactl.spec.repository.git_tree import GitTree
from avactl.spec.repository.tree_files import NOWHERE
from tests.diff.repository import Repository

SOURCES = Path(module.__file__).parents[3]
PROCESSES = {
    "avactl/spec/repository/git.py",
    "avactl/spec/python_files/sandbox_runner.py",
    "avactl/daemons/topology/commands.py",
    "avactl/cli/main.py",
    "avactl/datasets/pack/workers.py",
    "avactl/workbench/importer/shell.py",
    "avactl/workbench/local/pods.py",
    "avactl/workbench/local/process.py",
    "avactl/kube/exec_plugin.py",
}
"""Modules that start a program: git, Python for a spec file, nvidia-smi, Python for the command line itself and for the
workers of a pack, the parser of batch scripts, the pods of a local run and a look for their module, and the credential
programs of the user's kubeconfig."""


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    found = Repository(tmp_path / "repository")
    found.commit({"a.yaml": "a", "specs/b.yaml": "b"})
    return found


def program(path: Path, script: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def starts_programs(tree: ast.AST) -> bool:
    """Whether a module imports what starts programs, or calls it by the names of `os` and `asyncio`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and any(name.name in ("subprocess", "pty") for name in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and node.module in ("subprocess", "pty"):
            return True
        if isinstance(node, ast.Attribute) and node.attr.startswith(
            ("exec", "spawn", "popen", "posix_spawn", "system", "create_subprocess", "subprocess_")
        ):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if owner in ("os", "asyncio"):
                return True
    return False


def test_one_module_starts_git() -> None:
    found, named = set(), set()
    for package in ("avactl", "components/avactl_components"):
        for path in (SOURCES / package).rglob("*.py"):
            tree = ast.parse(path.read_bytes())
            if starts_programs(tree):
                place = path.relative_to(SOURCES).as_posix()
                found.add(place)
                if any(isinstance(node, ast.Constant) and node.value == "git" for node in ast.walk(tree)):
                    named.add(place)
    assert found == PROCESSES
    assert named == {"avactl/spec/repository/git.py"}


def test_where_a_directory_is(repository: Repository, tmp_path: Path) -> None:
    root = repository.root.resolve()
    assert locate_repository(root) == (root, "")
    assert locate_repository(root / "specs") == (root, "specs/")
    assert locate_repository(root / "gone" / "away") == (root, "gone/away/")
    repository.git("worktree", "add", "-q", str(tmp_path / "other"), "-b", "other")
    assert locate_repository(tmp_path / "other" / "specs") == ((tmp_path / "other").resolve(), "specs/")
    (root / "specs" / ".git").mkdir()  # empty: no repository
    assert locate_repository(root / "specs") == (root, "specs/")
    (tmp_path / "link").symlink_to(root / "specs")
    assert locate_repository(tmp_path / "link") == (root, "specs/")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(GitError, match="is not in a git repository"):
        locate_repository(tmp_path / "loop")


def test_a_bare_repository_is_never_found(repository: Repository, tmp_path: Path) -> None:
    subprocess.run(["git", "clone", "-q", "--bare", str(repository.root), str(tmp_path / "bare")], check=True)
    with pytest.raises(GitError, match="is not in a git repository"):
        run_git(tmp_path / "bare", "rev-parse", "HEAD")
    # Nor by a version of git that does not know safe.bareRepository, as it starts beside the `.git`.
    subprocess.run(["git", "clone", "-q", "--bare", str(repository.root), str(repository.root / "bare")], check=True)
    found = run_git(repository.root / "bare", "rev-parse", "--git-dir", "--is-bare-repository").split()
    assert found == [b".git", b"false"]
    init_bare(tmp_path / "own")
    assert run_git(tmp_path / "own", "rev-parse", "--is-bare-repository").strip() == b"true"
    assert not (tmp_path / "own" / ".git" / "hooks").exists()


def test_a_repository_of_another_user_is_refused(repository: Repository) -> None:
    other = {"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    with pytest.raises(GitError, match=r"git does not trust .*: another user owns it") as caught:
        run_git(repository.root, "rev-parse", "HEAD", environment=other)
    assert "safe.directory" in caught.value.hint
    trust = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    assert run_git(repository.root, "rev-parse", "HEAD", environment=other | trust)


def test_only_a_fetch_uses_the_user_s_own_ssh(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = tmp_path / "canary"
    monkeypatch.setenv("GIT_SSH_COMMAND", f"touch {canary} #")
    url = "ssh://git@example.com/x.git"
    for access in (GitAccess.READ, GitAccess.WRITE):
        with pytest.raises(GitCommandError, match="transport 'ssh' not allowed"):
            run_git(repository.root, "fetch", "--", url, access=access)
    assert not canary.exists()
    with pytest.raises(GitCommandError):
        run_git(repository.root, "fetch", "--", url, access=GitAccess.REMOTE)
    assert canary.exists()
    with pytest.raises(GitCommandError, match="transport 'ext' not allowed"):
        run_git(repository.root, "fetch", "--", "ext::sh -c true", access=GitAccess.REMOTE)


@contextmanager
def _serve_git(target: str = "") -> Iterator[tuple[str, list[str]]]:
    """Serve repositories that need a password, or redirect to `target`; yield the URL, and all `Authorization`s."""
    received: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            received.append(self.headers.get("Authorization", ""))
            self.send_response(302 if target else 401)
            self.send_header(
                "Location" if target else "WWW-Authenticate", f"{target}{self.path}" if target else "Basic"
            )
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", received
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("userinfo", ["", "git@"])
def test_credentials_go_to_the_repository_s_own_host(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, userinfo: str
) -> None:
    """A host that redirects, or one that has been taken over, does not choose who gets the daemon's token."""
    (tmp_path / "username").write_text("avactl")
    (tmp_path / "password").write_text("hunter2")
    for name, value in (("no_proxy", "*"), ("GIT_CONFIG_GLOBAL", os.devnull), ("GIT_CONFIG_COUNT", "0")):
        monkeypatch.setenv(name, value)
    for name in ("GIT_CONFIG_KEY_0", "GIT_CONFIG_VALUE_0"):
        monkeypatch.setenv(name, "")

    def fetch(url: str) -> str:
        monkeypatch.setenv("GIT_CONFIG_COUNT", "0")
        use_credentials(tmp_path, url)
        with pytest.raises(GitCommandError) as caught:
            run_git(repository.root, "fetch", "--", url, access=GitAccess.REMOTE)
        return caught.value.said

    with _serve_git() as (own, received):
        said = fetch(f"{own.replace('://', f'://{userinfo}')}/specs.git")
        assert any(received)
        assert "hunter2" not in said
    with _serve_git() as (other, received), _serve_git(other) as (own, _):
        said = fetch(f"{own.replace('://', f'://{userinfo}')}/specs.git")
        assert received
        assert not any(received)
        assert "hunter2" not in said


@pytest.mark.parametrize(
    "name",
    [
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_INDEX_FILE",
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_EXTERNAL_DIFF",
        "GIT_NAMESPACE",
        "GIT_CONFIG",
        "GIT_CONFIG_PARAMETERS",
        "GIT_REPLACE_REF_BASE",
    ],
)
def test_variables_of_a_hook_are_dropped(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, str(tmp_path / "nowhere"))
    repository.write({"a.yaml": "changed"})
    assert git_work_tree(repository.root, "status", "--porcelain") == b" M a.yaml\n"


def test_output_and_time_are_bounded(repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository.commit({"large": "x" * 3_000_000})
    with pytest.raises(GitError, match="git wrote more than 1 MiB"):
        run_git(repository.root, "cat-file", "blob", "HEAD:large", limit=1 << 20)
    assert len(run_git(repository.root, "cat-file", "blob", "HEAD:large")) == 3_000_000
    program(tmp_path / "bin" / "git", "exec sleep 600")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(module, "_TIMEOUT_S", 0.1)
    with pytest.raises(GitError, match="git did not finish"):
        run_git(repository.root, "status")


def test_git_is_not_taken_from_the_checkout(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(repository.root / "git", f"touch {tmp_path / 'canary'}")
    monkeypatch.chdir(repository.root)
    monkeypatch.setenv("PATH", f".{os.pathsep}{os.pathsep}{os.environ['PATH']}")
    assert len(run_git(repository.root, "rev-parse", "HEAD").strip()) == 40
    assert not (tmp_path / "canary").exists()


def test_a_filter_that_cannot_be_switched_off_is_told(repository: Repository) -> None:
    repository.git("config", "filter.a=b.clean", "false")
    with pytest.raises(GitError, match="the filter `a=b`"):
        git_work_tree(repository.root, "status")


def test_messages_steer_no_terminal(repository: Repository) -> None:
    error = GitError("a\x1b[31m\n\u202eb", "\x07c")
    assert (str(error), error.hint) == ("a�[31m��b", "�c")


def tree_of(repository: Repository, *entries: tuple[str, str, str]) -> str:
    """Commit a tree with entries that git itself would not write: mode, name, text."""
    data = b""
    for mode, name, text in entries:
        done = subprocess.run(
            ["git", "hash-object", "-w", "--stdin"],
            input=text.encode(),
            cwd=repository.root,
            check=True,
            capture_output=True,
        )
        data += f"{mode} {name}".encode() + b"\0" + bytes.fromhex(done.stdout.decode().strip())
    command = ["git", "hash-object", "-w", "-t", "tree", "--literally", "--stdin"]
    tree = subprocess.run(command, input=data, cwd=repository.root, check=True, capture_output=True).stdout
    return repository.git("commit-tree", "-m", "hostile", tree.decode().strip())


@pytest.mark.parametrize("names", [("..",), (".git",), (".GIT",), ("a.yaml", "a.yaml"), ("../x.yaml",), ("/x.yaml",)])
def test_a_tree_that_no_checkout_can_have_is_refused(repository: Repository, names: tuple[str, ...]) -> None:
    commit = tree_of(repository, *(("100644", name, f"{number}") for number, name in enumerate(names)))
    with pytest.raises(GitError, match="has a malformed tree"):
        GitTree(repository.root, commit)


def test_a_target_longer_than_any_path_leads_nowhere(repository: Repository) -> None:
    long = "x/../" * 2000 + "b.yaml"
    many = "x/../" * 700 + "b.yaml"
    entries = (("100644", "b.yaml", "b"), ("120000", "long.yaml", long), ("120000", "many.yaml", many))
    tree = GitTree(repository.root, tree_of(repository, *entries))
    assert tree.paths() == ["b.yaml"]
    assert tree.skipped == {"long.yaml": NOWHERE, "many.yaml": NOWHERE}


def test_content_beyond_what_is_kept_is_read_file_by_file(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_tree, "_MAX_CONTENT", 3)
    repository.commit({f"f{number}.yaml": f"{number}" for number in range(6)})
    tree = GitTree(repository.root, "HEAD")
    assert [tree.read(f"f{number}.yaml") for number in range(6)] == [b"0", b"1", b"2", b"3", b"4", b"5"]
