"""Run git; no other module starts it.

The branch under review is untrusted. git searches for its repository, and accepts any directory with `HEAD`, `objects`
and `refs`: a branch with such a directory would supply its own configuration, and with it commands for git to run.
Therefore this module locates the repository by its `.git`, and starts git there.

The configuration of the located repository belongs to the user. Programs that it names still do not run for read
access: hooks, filters, monitors, external diffs, and remotes that provide missing objects.

Sources: git-config(1) `safe.bareRepository`, git(1) "Environment Variables", SECURITY of gitattributes(5).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from time import monotonic
from typing import IO, NamedTuple

from avactl.base.errors import HintedError
from avactl.base.terminal import visible_text
from avactl.spec.repository.git_settings import credential_settings, settings_variables

MAX_OUTPUT = 128 * 1024 * 1024
"""Largest output of one command, in bytes: trees can name more files than fit into memory."""
_MAX_SAID = 64 * 1024
_TIMEOUT_S = 120.0
_REMOTE_SECONDS = 900.0


def mask_credentials(text: str) -> str:
    """Mask the user information of all URLs in a text; a password may contain `@`."""
    return re.sub(r"(://)[^/\s]+@", r"\1***@", text)


class GitError(HintedError):
    """A git command cannot be run or failed."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(visible_text(mask_credentials(message)), visible_text(hint))


class UnknownRevisionError(GitError):
    """A revision that does not exist."""

    def __init__(self, revision: str, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.revision = revision


class GitCommandError(GitError):
    """A git command exited with `code`; `said` is its standard error, then its standard output."""

    def __init__(self, command: str, code: int, said: str) -> None:
        self.command, self.code, self.said = command, code, mask_credentials(said.strip())
        super().__init__(self.said.splitlines()[0].removeprefix("fatal: ") if self.said else f"git {command} failed")


class GitAccess(Enum):
    """Privileges of a git command."""

    READ = "read"
    """The repository's objects and its work tree. No network, and no program but git."""
    WRITE = "write"
    """Like READ; also writes objects and references, with the user's identity and signing key."""
    REMOTE = "remote"
    """Fetches and pushes, with the user's own credentials, proxies and SSH command."""


class GitLocation(NamedTuple):
    """A directory's position in a repository."""

    top: Path
    """The directory that contains `.git`."""
    prefix: str
    """Path of the directory from there, with a trailing `/`; empty at the top."""

    @property
    def pathspec(self) -> str:
        """Return the directory as a pathspec for commands run at the top."""
        return self.prefix or "."


_SAFE_SETTINGS = {
    "safe.bareRepository": "explicit",
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "log.showSignature": "false",  # runs gpg.program
    "submodule.recurse": "false",
    "protocol.ext.allow": "never",  # runs any command
    "protocol.fd.allow": "never",
    "i18n.commitEncoding": "UTF-8",
}

# All other variables that begin with GIT_ are dropped: hooks set some to another repository or index, and some name
# programs. User settings files and settings in variables stay, because CI passes `safe.directory` and credential
# helpers to git that way.
_KEPT_VARIABLES = r"GIT_CONFIG_(GLOBAL|SYSTEM|NOSYSTEM|COUNT|KEY_\d+|VALUE_\d+)|GIT_EXEC_PATH"
_KEPT_WRITING = rf"{_KEPT_VARIABLES}|GIT_(AUTHOR|COMMITTER)_(NAME|EMAIL|DATE)"
_KEPT_REMOTE = (
    rf"{_KEPT_VARIABLES}|GIT_(SSH|SSH_COMMAND|SSH_VARIANT|ASKPASS|ALLOW_PROTOCOL|PROXY_COMMAND)|"
    r"GIT_(SSL|HTTP|PROXY_SSL)_\w+"
)
_VARIABLES_BY_ACCESS = {GitAccess.READ: _KEPT_VARIABLES, GitAccess.WRITE: _KEPT_WRITING, GitAccess.REMOTE: _KEPT_REMOTE}


def locate_repository(directory: str | Path) -> GitLocation:
    """Find the repository of a directory by the nearest `.git` above. The directory need not exist. Raises GitError."""
    try:
        found = Path(directory).resolve()
    except (OSError, RuntimeError):  # a circular symbolic link
        raise _no_repository(directory) from None
    for top in (found, *found.parents):
        if _is_repository(top / ".git"):
            inside = found.relative_to(top).as_posix()
            return GitLocation(top, "" if inside == "." else f"{inside}/")
    raise _no_repository(directory)


def _is_repository(entry: Path) -> bool:
    """Return whether git takes a `.git` for a repository; a file names one elsewhere (worktrees, submodules)."""
    if entry.is_file():
        return True
    return os.path.lexists(entry / "HEAD") and (entry / "objects").is_dir() and (entry / "refs").is_dir()


def run_git(
    directory: str | Path,
    *arguments: str,
    data: bytes | None = None,
    access: GitAccess = GitAccess.READ,
    settings: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    limit: int = MAX_OUTPUT,
) -> bytes:
    """Run a git command at the top of the repository that a directory is in, and return its standard output.

    Paths in `arguments` are from the top, and literal. `environment` is added to what the access leaves. Raises
    GitError, and GitCommandError where git itself exits with an error.
    """
    top = locate_repository(directory).top
    fixed = {**(settings or {}), **_SAFE_SETTINGS}
    options = [option for name, value in fixed.items() for option in ("-c", f"{name}={value}")]
    command = ("--no-pager", "--literal-pathspecs", *options, *arguments)
    code, out, said = _start(top, command, data, access, environment or {}, limit)
    if code:
        text = (said + b"\n" + out).decode(errors="replace")
        if access is GitAccess.REMOTE:  # servers and their hooks write a part of it
            from avactl.diagnostics.redaction import redact_text  # its patterns take long to compile

            text = redact_text(mask_credentials(text))
        raise _classify_failure(directory, arguments[0], code, text)
    return out


def git_work_tree(directory: str | Path, *arguments: str) -> bytes:
    """Run a git command that compares files of the work tree, with the filters of all attributes off.

    A `.gitattributes` of the branch chooses which filter of the user's settings runs on which file. Line endings are
    still converted: git does that itself. Raises GitError.
    """
    off: dict[str, str] = {}
    for driver in _filter_drivers(directory):
        if "=" in driver:
            raise GitError(
                f"the filter `{driver}` in git's settings cannot be disabled",
                "rename the filter: its name must not contain `=`",
            )
        off |= {f"filter.{driver}.{program}": "" for program in ("clean", "smudge", "process")}
        off[f"filter.{driver}.required"] = "false"
    return run_git(directory, *arguments, settings=off)


def _filter_drivers(directory: str | Path) -> set[str]:
    """Return the names of all filter drivers that git's settings define."""
    try:
        listed = run_git(directory, "config", "--null", "--name-only", "--get-regexp", r"^filter\.")
    except GitCommandError as error:
        if error.code == 1:  # none is defined
            return set()
        raise
    names = listed.decode("utf-8", "surrogateescape").split("\0")
    return {name.removeprefix("filter.").rpartition(".")[0] for name in names if name.count(".") > 1}


def use_credentials(directory: Path, url: str) -> None:
    """Let git read user name and password from the files `username` and `password` of a directory, in this process."""
    known = int(os.environ.get("GIT_CONFIG_COUNT", "0") or 0)
    os.environ |= settings_variables(credential_settings(str(directory), url), known)


def init_bare(directory: Path) -> None:
    """Make `directory/.git` a repository without a work tree: below a `.git`, `locate` finds it. Raises GitError."""
    directory.mkdir(parents=True, exist_ok=True)
    # Without a template, which may contain hooks.
    arguments = ("init", "--quiet", "--bare", "--template=", "--", str(directory.resolve() / ".git"))
    code, _, said = _start(directory, arguments, None, GitAccess.WRITE, {}, MAX_OUTPUT)
    if code:
        raise _classify_failure(directory, "init", code, said.decode(errors="replace"))


def _no_repository(directory: str | Path) -> GitError:
    return GitError(
        f"{directory} is not in a git repository", "this command reads git commits: run `git init`, then commit"
    )


def _classify_failure(directory: str | Path, command: str, code: int, said: str) -> GitError:
    """Classify a failed command. git's messages are matched in English (LC_ALL=C)."""
    if "not a git repository" in said and "remote repository" not in said:
        return _no_repository(directory)
    if "dubious ownership" in said or "unsafe repository" in said:  # the second: before git 2.36
        message = f"git does not trust {directory}: another user owns it"
        return GitError(message, "to trust it, run `git config --global --add safe.directory DIR`")
    if "from promisor remote" in said or "lazy fetching disabled" in said:
        return GitError(
            f"{directory} is in a partial clone that lacks objects of this revision, and avactl does not fetch them",
            "`git fetch --refetch --no-filter` completes the clone",
        )
    return GitCommandError(command, code, said)


def _git_executable() -> str:
    """Return the path of git. A relative entry of PATH would lead into the checkout."""
    places = (place for place in os.environ.get("PATH", os.defpath).split(os.pathsep) if Path(place).is_absolute())
    found = shutil.which("git", path=os.pathsep.join(places))
    if found is None:
        raise GitError("git is not installed", "install git 2.29 or newer: revisions are read from its store")
    return found


def _git_environment(top: Path, access: GitAccess, more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command: the user's, with only those GIT_ variables that the access needs."""
    kept = re.compile(_VARIABLES_BY_ACCESS[access]).fullmatch
    env = {name: value for name, value in os.environ.items() if not name.upper().startswith("GIT_") or kept(name)}
    env |= {
        "LC_ALL": "C",  # texts are matched
        "GIT_CEILING_DIRECTORIES": str(top.parent),
        "GIT_NO_REPLACE_OBJECTS": "1",  # a commit's name stands for its own content
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
    }
    if access is not GitAccess.REMOTE:
        # A partial clone would fetch what it lacks. The first is known since git 2.45, the second to all versions.
        env |= {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none"}
    return {**env, **more}


def _start(
    directory: Path,
    arguments: tuple[str, ...],
    data: bytes | None,
    access: GitAccess,
    environment: Mapping[str, str],
    limit: int,
) -> tuple[int, bytes, bytes]:
    """Run git in a directory; return exit code, standard output and the start of standard error. Raises GitError."""
    command = [_git_executable(), *arguments]
    stdin = subprocess.DEVNULL if data is None else subprocess.PIPE
    try:
        process = subprocess.Popen(  # noqa: S603
            command,
            cwd=directory,
            env=_git_environment(directory, access, environment),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except (OSError, ValueError) as error:
        raise GitError(f"cannot start git: {getattr(error, 'strerror', None) or error}") from None
    return _read_outputs(process, data, limit, _REMOTE_SECONDS if access is GitAccess.REMOTE else _TIMEOUT_S)


def _read_outputs(
    process: subprocess.Popen[bytes], data: bytes | None, limit: int, seconds: float
) -> tuple[int, bytes, bytes]:
    """Wait for git and read both its outputs. Raises GitError on a timeout or if the output is too large."""
    out, said = bytearray(), bytearray()
    full = threading.Event()

    def read_output(pipe: IO[bytes]) -> None:
        while chunk := os.read(pipe.fileno(), 1 << 16):
            if len(out) + len(chunk) > limit:
                full.set()
                process.kill()
                return
            out.extend(chunk)

    def read_errors(pipe: IO[bytes]) -> None:
        while chunk := os.read(pipe.fileno(), 1 << 16):
            said.extend(chunk[: _MAX_SAID - len(said)])

    def write(pipe: IO[bytes]) -> None:
        with contextlib.suppress(OSError), pipe:
            pipe.write(data or b"")

    assert process.stdout is not None
    assert process.stderr is not None
    # Daemon threads, joined with a timeout: a program that outlives git, e.g. shared SSH, may keep a pipe open.
    output = threading.Thread(target=read_output, args=(process.stdout,), daemon=True)
    errors = threading.Thread(target=read_errors, args=(process.stderr,), daemon=True)
    threads = [output, errors]
    if process.stdin is not None:
        threads.append(threading.Thread(target=write, args=(process.stdin,), daemon=True))
    for thread in threads:
        thread.start()
    end = monotonic() + seconds
    try:
        output.join(seconds)
        process.wait(max(0.0, end - monotonic()))
    except subprocess.TimeoutExpired:
        raise GitError(f"git did not finish within {seconds:.0f} s") from None
    finally:
        if process.poll() is None:
            _stop_git(process)
    errors.join(1.0)
    for thread, pipe in ((output, process.stdout), (errors, process.stderr)):
        if not thread.is_alive():
            pipe.close()
    if full.is_set():
        raise GitError(f"git wrote more than {limit >> 20} MiB", "is this the intended repository?")
    return process.returncode, bytes(out), bytes(said)


def _stop_git(process: subprocess.Popen[bytes]) -> None:
    """Stop git with SIGTERM first, so that it stops the programs it has started."""
    process.terminate()
    try:
        process.wait(5.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
