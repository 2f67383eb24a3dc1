"""A hostile repository on disk, the commands that read it, and what they must not do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt

from tests import forked
from tests.hostile_repository import HostileRepository
from tools.waiting import patience

TOKENS = {
    "GITHUB_TOKEN": "ghs_PLANTEDplantedPLANTEDplanted0123456789",
    "GITLAB_TOKEN": "glpat-PLANTED-planted-0123",
    "AWS_SECRET_ACCESS_KEY": "plantedSecretAccessKeyOfTheCaller",
    "CALLER_VARIABLE": "planted-plain-value",
}
CANARY = "canary-5d1e-content"
"""Content of all files outside of the repository."""

COMMANDS = {
    "validate": ("validate", "specs"),
    "render": ("render", "specs", "-o", "../output/rendered"),
    "publish": ("render", "specs", "--publish", "rendered", "--no-push"),
    "diff": ("diff", "specs", "--base", "main"),
    "markdown": ("diff", "specs", "--base", "main", "--format", "markdown"),
    "plan": ("plan", "specs", "--base", "main"),
    "stacks": ("stacks", "specs", "--base", "main"),
    "revisions": ("stacks", "specs", "--base", "main", "--head", "topic"),
    "comment": ("ci", "comment", "specs", "--base", "main", "--dry-run"),
    "comment of revisions": ("ci", "comment", "specs", "--base", "main", "--head", "topic", "--dry-run"),
    "json": ("diff", "specs", "--base", "main", "--format", "json"),
    "plan as json": ("plan", "specs", "--base", "main", "--format", "json"),
    "print": ("render", "specs", "-o", "-"),
    "report": ("validate", "specs", "--format", "json"),
    "artifact": ("ci", "comment", "specs", "--base", "main", "--dry-run", "--artifact", "artifact.txt"),
    "artifact below": ("ci", "comment", "specs", "--base", "main", "--dry-run", "--artifact", "written/artifact.txt"),
    "graph": ("graph", "specs", "-o", "graph.svg"),
    "schemas": ("schema", "-o", "schemas"),
    "render here": ("render", "specs", "-o", "written"),
    "render below": ("render", "specs", "-o", "written/deep"),
    "option as revision": ("diff", "specs", "--base=--output=../outside/x", "--head=--upload-pack=touch ../outside/x"),
}
_WRITTEN = ("output", "cache", *(f"repository/{n}" for n in ("artifact.txt", "graph.svg", "schemas", "written")))
FILES = ("validate", "comment of revisions")
TEXT = ("diff", "comment of revisions", "render")
GIT = ("validate", "diff", "comment of revisions", "publish")


class Site(HostileRepository):
    """The repository beside a home, files that it must not reach, and a directory for output."""

    def __init__(self, directory: Path, template: Path) -> None:
        """Copy the repository of a `HostileRepository`: git takes longer to make one."""
        shutil.copytree(template, directory, dirs_exist_ok=True)
        self.root, self.canaries = directory / "repository", directory / "canaries"
        self.specs = self.root / "specs"
        self.outside, self.output = directory / "outside", directory / "output"
        for name in (
            "home/.netrc",
            "home/.ssh/id",
            "outside/secret",
            "outside/secret.yaml",
            "outside/avactl.yaml",
            "outside/secret.py",
            "outside/deep/secret.yaml",
            "outside/listing.jsonl",
        ):
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{CANARY}: 1\n")
            os.utime(path, (1, 2))  # `relatime` records the next read: the last is older than the last change
        for name in ("output", "tmp"):
            (directory / name).mkdir()

    def filled(self, text: str) -> str:
        """Put the site's paths in a text: OUTSIDE, and RAN, a file that a program leaves if it runs."""
        return text.replace("OUTSIDE", str(self.outside)).replace("RAN", str(self.canaries / "ran"))

    def add(self, files: Mapping[str, str | bytes]) -> None:
        """Write files below `specs`; a path that begins with `/` is from the repository's root."""
        for name, content in files.items():
            path = self.root / name[1:] if name.startswith("/") else self.specs / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else self.filled(content).encode())

    def link(self, name: str, target: str) -> None:
        path = self.specs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(self.filled(target))

    def state(self) -> dict[str, tuple[float, ...]]:
        """Mode, size, and times of change and last read (outside) of all files that no command may touch."""
        found = {}
        top = self.root.parent
        for directory, names, files in os.walk(top):
            place = Path(directory).relative_to(top)
            names[:] = [] if place.name == ".git" else [n for n in names if str(place / n) not in _WRITTEN]
            for name in (n for n in (*files, *names) if str(place / n) not in _WRITTEN):
                about = Path(directory, name).lstat()
                times = (about.st_mtime, about.st_atime * (place.parts[:1] in (("outside",), ("home",))))
                found[str(place / name)] = (about.st_mode, *((about.st_size, *times) if name in files else ()))
        return found

    def run(self, command: str, *, start: bool = True) -> subprocess.CompletedProcess[bytes]:
        """Run a command as its installed script, in the repository, with tokens in the environment.

        `start`: by a new interpreter, whose start the repository could change, too.
        """
        top = self.root.parent
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "SYSTEMROOT") if name in os.environ}
        env = (
            kept
            | TOKENS
            | {
                "HOME": str(top / "home"),
                "XDG_CACHE_HOME": str(top / "cache"),
                "TMPDIR": str(top / "tmp"),
                "GIT_AUTHOR_NAME": "a",
                "GIT_AUTHOR_EMAIL": "a@example.com",
                "GIT_COMMITTER_NAME": "a",
                "GIT_COMMITTER_EMAIL": "a@example.com",
            }
        )
        if not start:
            done = forked.run(COMMANDS[command], cwd=self.root, env=env, timeout=patience(), installed=True)
            return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.encode(), done.stderr.encode())
        return subprocess.run(
            [forked.INSTALLED, *COMMANDS[command]],  # `python -m` would import from the checkout
            cwd=self.root,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=patience(),
        )


@dataclass(frozen=True, slots=True)
class Hostile:
    """One repository."""

    name: str
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    """Content by path from `specs`."""
    told: str = ""
    """Part of the output of each command, which shows that the attack arrived."""
    code: int = 1
    build: Callable[[Site], object] | None = None
    """Further steps, before the commit of the files."""
    after: Callable[[Site], object] | None = None
    """Further steps after it."""
    commands: tuple[str, ...] = FILES


_CI_COMMAND = re.compile(r"^\s*::|##\[|##vso\[|section_(?:start|end):", re.MULTILINE)
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


_MARKUP = ("everyone", "evil.example", "alert(", "hidden", "/close", "Approved", "owned", "[x]", "tada", "**bold")
_HTML = re.compile(r"(?:</?details>|</?summary>|</?sub>|<br>|<!-- avactl [\w: ./-]*-->|\s)*").fullmatch


def markup(text: str) -> list[str]:
    """List the text from specs that a reader's browser would not show as code, and foreign HTML, links and images."""
    found = []
    ahead = MarkdownIt("commonmark").parse(text)
    while ahead:
        token = ahead.pop()
        ahead += token.children or []
        html = re.sub(r"<summary>[^<]*</summary>", "", token.content) if token.type.startswith("html") else ""
        if not _HTML(html):
            found.append(f"HTML {token.content!r}")
        elif token.type in ("image", "link_open"):
            found.append(f"{token.type} {token.attrs}")
        elif token.type in ("text", "html_block", "html_inline", "code_block"):
            found += [f"text {mark!r}" for mark in _MARKUP if mark in token.content]
    return found


def faults(site: Site, output: bytes, command: str) -> list[str]:
    """List all that a command's output and files must not contain."""
    printed = output.decode()
    found = [f"control character {match[0]!r}" for match in _CONTROL.finditer(printed)]
    found += [f"CI command {match[0]!r}" for match in _CI_COMMAND.finditer(printed)]
    found += [mark for mark in ("Traceback", "internal error") if mark in printed]
    found += markup(printed) if "comment" in command or command == "markdown" else []
    written = [path for path in site.output.rglob("*") if path.is_file()]
    found += [f"link {path}" for path in site.output.rglob("*") if path.is_symlink()]
    for text in (output, *(path.read_bytes() for path in written)):
        found += [name for name, token in TOKENS.items() if token.encode() in text]
        found += ["content of a file outside"] * (CANARY.encode() in text)
    return found
