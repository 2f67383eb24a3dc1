"""Writes the command-line options of model servers by release, from their sources: those of vLLM and SGLang on the
package index, those of the others in git.

`python -m tools.server_options [SERVER…]` when a release is out; of the package index, only releases that the table
lacks are downloaded. An option of vLLM or SGLang is any literal `--name` in the modules that make the command line:
rather one too many than a valid one that is refused.
"""

from __future__ import annotations

import ast
import html
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urljoin

OUTPUT = Path(__file__).resolve().parent.parent / "avactl" / "kinds" / "serving" / "runtimes" / "options"
_OPTIONS = re.compile(r"""(?<![\w-])--(?:no-)?([a-z][a-z0-9]*(?:[-_][a-z0-9]+)*)""").findall
_NUMBERS = re.compile(r"[0-9]+").findall


class _PackageServer(NamedTuple):
    """A server whose sources are on the package index."""

    name: str
    modules: re.Pattern[str]
    first: tuple[int, ...]
    """First release of the table."""
    parts: int
    """Numbers of a version that name a release: options of its later patches count as its own."""


class _GitServer(NamedTuple):
    """A server whose sources are in git, with a tag for each version."""

    name: str
    url: str
    files: tuple[str, ...]
    """Files that had the command line, the first one that a version has."""
    options: Callable[[str], list[str]]
    """Returns the options in the text of the file."""
    first: tuple[int, ...]
    always: frozenset[str]
    """Options of every release."""
    release: tuple[str, str] = ("", "")
    """File and pattern of the name of the release, in images; empty: the first two numbers of the version."""


PACKAGE_SERVERS = (
    _PackageServer("vllm", re.compile(r"vllm/(engine/arg_utils|entrypoints/.*|utils/.*argparse.*)\.py"), (0, 4), 2),
    _PackageServer(
        "sglang", re.compile(r"(python/)?sglang/(launch_server|srt/.*(server_args|arg_groups).*)\.py"), (0, 4, 2), 3
    ),
)
ALWAYS = {"host", "port", "api-key", "served-model-name", "chat-template", "tensor-parallel-size", "trust-remote-code"}
"""Options of every release: one that lacks them has its command line in other modules."""


def _clap_options(text: str) -> list[str]:
    """Return the options of a struct of the command line in Rust: those of its fields with `long`."""
    fields = re.findall(r"#\[clap\(([^\]]*)\)\]\s*(?:#\[[^\]]*\]\s*)*([a-z_]+):", text)
    return [field.replace("_", "-") for settings, field in fields if re.search(r"\blong\b", settings)]


GIT_SERVERS = (
    _GitServer(
        "tei",
        "https://github.com/huggingface/text-embeddings-inference",
        ("router/src/main.rs",),
        _clap_options,
        (1, 0),
        frozenset(("model-id", "max-batch-tokens", "hostname", "port")),
    ),
    _GitServer(
        "triton",
        "https://github.com/triton-inference-server/server",
        ("src/command_line_parser.cc", "src/main.cc"),
        re.compile(r"""\{\s*OPTION_[A-Z0-9_]+,\s*"([a-z0-9-]+)\"""").findall,
        (2, 24),
        frozenset(("model-repository", "http-port", "grpc-port", "metrics-port", "strict-readiness")),
        ("build.py", r"""(?:["']VERSION["']: \(\s*|"triton_container_version": )["']([0-9]{2}\.[0-9]{2})"""),
    ),
    _GitServer(
        "tensorflowServing",
        "https://github.com/tensorflow/serving",
        ("tensorflow_serving/model_servers/main.cc",),
        re.compile(r"""tensorflow::Flag\(\s*"([a-z_0-9]+)\"""").findall,
        (2, 0),
        frozenset(("port", "rest_api_port", "model_name", "model_base_path", "enable_batching")),
    ),
)


def main(chosen: list[str]) -> None:
    """Write the tables of all servers, or of the chosen ones."""
    OUTPUT.mkdir(exist_ok=True)
    for git_server in GIT_SERVERS:
        if not chosen or git_server.name in chosen:
            path, found = OUTPUT / f"{git_server.name}.json", _read_tags(git_server)
            path.write_text(json.dumps(_compact(found), indent=1) + "\n")
    for server in PACKAGE_SERVERS:
        if chosen and server.name not in chosen:
            continue
        path = OUTPUT / f"{server.name}.json"
        known: dict[str, list[str]] = json.loads(path.read_text()) if path.exists() else {}
        by_release = {release: set(names) for release, names in _expand(known).items()}
        for release, url in _releases(server).items():
            if release not in by_release:
                by_release[release] = _options_of(server, url)
                print(f"{server.name} {release}: {len(by_release[release])} options", file=sys.stderr)
        path.write_text(json.dumps(_compact(by_release), indent=1) + "\n")


def _read_tags(server: _GitServer) -> dict[str, set[str]]:
    """Return the options of each release of a server in git."""
    found: dict[str, set[str]] = {}
    with tempfile.TemporaryDirectory() as folder:

        def git(*words: str) -> str:
            done = subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True)
            return done.stdout if done.returncode == 0 else ""

        clone = ["git", "clone", "--quiet", "--bare", "--filter=blob:none", server.url, folder]
        subprocess.run(clone, check=True)
        tags = [tag for tag in git("tag").split() if re.fullmatch(r"v?[0-9]+\.[0-9]+\.[0-9]+", tag)]
        for tag in sorted(tags, key=_numbers):
            if _numbers(tag) < server.first:
                continue
            text = next(filter(None, (git("show", f"{tag}:{file}") for file in server.files)), "")
            options = set(server.options(text))
            if lacking := server.always - options:
                sys.exit(f"{tag} of {server.url} lacks {', '.join(sorted(lacking))}: mend the files of {server.name}")
            release = ".".join(map(str, _numbers(tag)[:2]))
            if server.release[0]:
                pattern = server.release[1].replace("VERSION", re.escape(tag.removeprefix("v")))
                release = re.findall(pattern, git("show", f"{tag}:{server.release[0]}"))[0]
            found[release] = options
    print(f"{server.name}: {len(found)} releases", file=sys.stderr)
    return found


def _releases(server: _PackageServer) -> dict[str, str]:
    """Return the URL of the latest source distribution of each release."""
    index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
    page = _read(f"{index}/{server.name}/").decode()
    link = re.compile(rf'<a href="([^"]+)"[^>]*>{server.name}-([0-9.]+(?:\.post[0-9]+)?)\.tar\.gz</a>')
    urls = {
        _numbers(version): urljoin(f"{index}/{server.name}/", html.unescape(url)) for url, version in link.findall(page)
    }
    latest = {numbers[: server.parts]: urls[numbers] for numbers in sorted(urls) if numbers >= server.first}
    return {".".join(map(str, release)): url for release, url in latest.items()}


def _options_of(server: _PackageServer, url: str) -> set[str]:
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
    main(sys.argv[1:])
