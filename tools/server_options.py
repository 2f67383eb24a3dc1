"""Writes the command-line options of vLLM and SGLang by release, from the sources on the package index.

`python -m tools.server_options` when a release is out; only releases that the table lacks are downloaded. An option is
any literal `--name` in the modules that make the command line: rather one too many than a valid one that is refused.
"""

from __future__ import annotations

import ast
import html
import io
import json
import os
import re
import sys
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urljoin

OUTPUT = Path(__file__).resolve().parent.parent / "avactl" / "kinds" / "serving" / "runtimes" / "options"
_OPTIONS = re.compile(r"""(?<![\w-])--(?:no-)?([a-z][a-z0-9]*(?:[-_][a-z0-9]+)*)""").findall
_NUMBERS = re.compile(r"[0-9]+").findall


class _Server(NamedTuple):
    name: str
    modules: re.Pattern[str]
    first: tuple[int, ...]
    """First release of the table."""
    parts: int
    """Numbers of a version that name a release: options of its later patches count as its own."""


SERVERS = (
    _Server("vllm", re.compile(r"vllm/(engine/arg_utils|entrypoints/.*|utils/.*argparse.*)\.py"), (0, 4), 2),
    _Server(
        "sglang", re.compile(r"(python/)?sglang/(launch_server|srt/.*(server_args|arg_groups).*)\.py"), (0, 4, 2), 3
    ),
)
ALWAYS = {"host", "port", "api-key", "served-model-name", "chat-template", "tensor-parallel-size", "trust-remote-code"}
"""Options of every release: one that lacks them has its command line in other modules."""


def main() -> None:
    """Write the table of each server."""
    OUTPUT.mkdir(exist_ok=True)
    for server in SERVERS:
        path = OUTPUT / f"{server.name}.json"
        known: dict[str, list[str]] = json.loads(path.read_text()) if path.exists() else {}
        by_release = {release: set(names) for release, names in _expand(known).items()}
        for release, url in _releases(server).items():
            if release not in by_release:
                by_release[release] = _options_of(server, url)
                print(f"{server.name} {release}: {len(by_release[release])} options", file=sys.stderr)
        path.write_text(json.dumps(_compact(by_release), indent=1) + "\n")


def _releases(server: _Server) -> dict[str, str]:
    """Return the URL of the latest source distribution of each release."""
    index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
    page = _read(f"{index}/{server.name}/").decode()
    link = re.compile(rf'<a href="([^"]+)"[^>]*>{server.name}-([0-9.]+(?:\.post[0-9]+)?)\.tar\.gz</a>')
    urls = {
        _numbers(version): urljoin(f"{index}/{server.name}/", html.unescape(url)) for url, version in link.findall(page)
    }
    latest = {numbers[: server.parts]: urls[numbers] for numbers in sorted(urls) if numbers >= server.first}
    return {".".join(map(str, release)): url for release, url in latest.items()}


def _options_of(server: _Server, url: str) -> set[str]:
    found: set[str] = set()
    with tarfile.open(fileobj=io.BytesIO(_read(url))) as archive:
        for member in archive:
            source = member.name.partition("/")[2]
            file = archive.extractfile(member) if member.isfile() and server.modules.fullmatch(source) else None
            if file is not None:
                text = file.read().decode(errors="replace")
                found.update(name.replace("_", "-") for name in _OPTIONS(text))
                found.update(name.replace("_", "-") for name in _fields(text))
    if lacking := ALWAYS - found:
        sys.exit(f"{url} lacks {', '.join(sorted(lacking))}: mend the modules of {server.name}")
    return found


def _fields(text: str) -> Iterator[str]:
    """Yield the fields of dataclasses that a loop makes options of."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef) and node.name.endswith("Args"):
            for part in node.body:
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                    yield part.target.id


def _compact(by_release: dict[str, set[str]]) -> dict[str, list[str]]:
    """Return the options that each release adds (`+name`) and removes (`-name`), in the order of releases."""
    before: set[str] = set()
    changes = {}
    for release in sorted(by_release, key=_numbers):
        now = by_release[release]
        changes[release] = sorted([*(f"+{name}" for name in now - before), *(f"-{name}" for name in before - now)])
        before = now
    return changes


def _expand(changes: dict[str, list[str]]) -> dict[str, set[str]]:
    names: set[str] = set()
    found = {}
    for release in sorted(changes, key=_numbers):
        names = names.difference(each[1:] for each in changes[release] if each[0] == "-")
        names = names.union(each[1:] for each in changes[release] if each[0] == "+")
        found[release] = names
    return found


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, _NUMBERS(version)))


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=300) as answer:
        data: bytes = answer.read()
        return data


if __name__ == "__main__":
    main()
