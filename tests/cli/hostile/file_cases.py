"""Repositories with links, pipes and devices, and with YAML that is large, deep or odd."""

from __future__ import annotations

import os
from typing import Any

from tests.cli.hostile.case import Hostile, Site
from tests.diff.sides import HEAD, job

BOTH = ("validate", "comment of revisions")


def link(
    name: str,
    target: str,
    told: str = "is a symbolic link to no file of the repository",
    code: int = 1,
    commands: tuple[str, ...] = BOTH,
) -> Hostile:
    return Hostile(
        f"link {name} to {target}", told=told, code=code, build=lambda site: site.link(name, target), commands=commands
    )


def manifest(path: str, *links: tuple[str, str], files: dict[str, str | bytes] | None = None) -> Hostile:
    """A dataset whose list of objects is a file that is not the repository's."""
    text = (
        "kind: Dataset\nmetadata: {name: cats}\nspec: {tier: read, size: 1Gi, "
        f"versions: [{{name: v1, manifest: {path!r}}}]}}\n"
    )

    def build(site: Site) -> None:
        for name, target in links:
            site.link(name, target)

    specs = {"data.yaml": HEAD + text, **(files or {})}
    return Hostile(f"manifest {path} {dict(links)}", specs, build=build, told="manifest", commands=BOTH)


def make_device(site: Site) -> None:
    os.mkfifo(site.specs / "pipe.yaml")
    os.mkfifo(site.specs / "pipe.py")
    site.link("zero.yaml", "/dev/zero")
    site.link("terminal.yaml", "/dev/tty")


def pipe_as_settings(site: Site) -> None:
    (site.specs / "avactl.yaml").unlink()
    os.mkfifo(site.specs / "avactl.yaml")


def many_links(site: Site) -> None:
    """Each link leads to two of the next: a walk that follows them never ends."""
    for level in range(30):
        site.link(f"l{level}/a", f"../l{level + 1}")
        site.link(f"l{level}/b", f"../l{level + 1}")
        site.link(f"l{level}.yaml", f"l{level + 1}.yaml")


def yaml(name: str, content: str | bytes, told: str, code: int = 1, commands: tuple[str, ...] = BOTH) -> Hostile:
    return Hostile(name, {"evil.yaml": content}, told, code, commands=commands)


def bomb(of: str) -> str:
    lines = [f"a0: &a0 {of}"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    return "\n".join(lines) + "\n"


MERGES = "a0: &a0 {k0: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}], k{n}: 1}}\n" for n in range(1, 12)
)


def broken(**fields: Any) -> str:
    return HEAD + job("evil", **fields)


def output(name: str, target: str, command: str, code: int = 0, told: str = "") -> Hostile:
    """A link in the place of a file or directory that the caller writes."""
    return Hostile(
        f"{command} through link {name} to {target}",
        told=told,
        code=code,
        commands=(command,),
        build=lambda site: site.link(f"../{name}", target),
    )


OWNERS = "owners: [{path: '" + "*a" * 200 + "', teams: []}, {path: '" + "/**/*a*a" * 100 + "', teams: []}]\n"

CASES = [
    output("artifact.txt", "OUTSIDE/secret", "artifact"),
    output("artifact.txt", "OUTSIDE/new", "artifact"),
    output("artifact.txt", "specs/jobs.yaml", "artifact"),
    output("written", "OUTSIDE", "artifact below", 3, "is a symbolic link"),
    output("graph.svg", "OUTSIDE/new", "graph"),
    output("schemas", "OUTSIDE", "schemas", 3, "is a symbolic link"),
    output("schemas/team.schema.json", "OUTSIDE/new", "schemas"),
    output("written", "OUTSIDE", "render here", 3, "is a symbolic link"),
    output("written", "OUTSIDE", "render below", 3, "is a symbolic link"),
    link("avactl.yaml", "../../outside/avactl.yaml", "", 1, ("validate", "diff")),
    link("evil.yaml", "../../outside/secret.yaml"),
    link("evil.yaml", "OUTSIDE/secret.yaml"),
    link("evil.py", "OUTSIDE/secret.py"),
    link("deep", "../../outside/deep", "", 0, ("validate", "diff", "comment of revisions", "publish")),
    link("policies", "OUTSIDE", "", 0),
    link("evil.yaml", "/proc/self/environ"),
    link("evil.yaml", "/proc/self/fd/0"),
    link("evil.yaml", "../.git/config"),
    link("evil.yaml", "evil.yaml"),
    Hostile("a chain of links", told="is a symbolic link to no file", build=many_links, commands=BOTH),
    Hostile("pipes and devices", told="zero.yaml", build=make_device, commands=("validate", "render")),
    Hostile("settings in a pipe", told="avactl.yaml", after=pipe_as_settings, commands=("validate",)),
    manifest("../../outside/listing.jsonl"),
    manifest("/etc/passwd"),
    manifest("../.git/config"),
    manifest(".env", files={".env": "TOKEN=x"}),
    manifest("list.jsonl", ("list.jsonl", "OUTSIDE/listing.jsonl")),
    manifest("lists/listing.jsonl", ("lists", "OUTSIDE")),
    manifest("list.jsonl", ("list.jsonl", "/proc/self/environ")),
    Hostile(
        "owners whose patterns backtrack",
        {"avactl.yaml": OWNERS, f"{'a' * 200}b.yaml": HEAD + job("evil")},
        "not-owner",
        commands=BOTH,
    ),
    yaml("alias bomb", bomb("x"), "yaml-alias-bomb"),
    yaml("bomb of merge keys", MERGES, "yaml-alias-bomb"),
    yaml("an alias of itself", "a: &a [*a]\n", "yaml-alias-bomb"),
    yaml("deep lists", "[" * 100_000, "yaml-depth"),
    yaml("deep mappings", "\n".join(" " * n + "a:" for n in range(2000)), "yaml-depth"),
    yaml("many documents", "---\n" * 300_000, "", 0),
    yaml("a huge scalar", f"{HEAD}kind: {'x' * 3_000_000}\n", "unknown"),
    yaml("a huge file", b"x" * 80_000_000, "file-too-large"),
    yaml("tags of Python", "a: !!python/object/apply:os.system ['touch RAN']\n", "yaml-tag"),
    yaml("tags of Ruby", "a: !ruby/object:Gem::Installer {i: x}\n", "yaml-tag"),
    yaml("duplicate keys", HEAD + "kind: Team\nkind: Cluster\n", "yaml-duplicate-key"),
    yaml("an integer of 5,000 digits", broken(retries="9" * 5000), "retries"),
    yaml("a quantity of 5,000 digits", broken(workers={"cpu": "9" * 5000, "memory": "1e-99999999"}), "cpu"),
    yaml(
        "plain numbers of 5,000 digits",
        f"{HEAD}kind: Team\nmetadata: {{name: {'9' * 5000}}}\n"
        f"spec: {{a: -{'9' * 5000}, b: 0x{'f' * 5000}, c: 1e{'9' * 5000}, d: 190:20:30.15, e: .nan}}\n",
        "name",
    ),
    yaml("half of a surrogate pair", HEAD + 'kind: "\\ud800"\nmetadata: {name: "\\udfff"}\n', "error"),
    yaml("bytes of zero", HEAD.encode() + b"kind: \0Team\n", "yaml-syntax"),
    yaml("escaped zeros", HEAD + 'kind: "Te\\0am"\nmetadata: {name: "a\\0b", team: vision}\n', "error"),
    yaml("marks and line endings", b"\xef\xbb\xbf" + broken(retries=-1).replace("\n", "\r\n").encode(), "crlf"),
    yaml("other line endings", HEAD + "kind: Team\x85metadata: {name: a}\u2028\n", "yaml-syntax"),
    yaml("bytes that are not UTF-8", b"kind: \xff\xfe\x1b[2J\n", "invalid-utf8"),
    yaml("text that runs backwards", f"{HEAD}kind: Team\nmetadata: {{name: 'a\u202e\u2066b'}}\nspec: {{}}\n", "error"),
    yaml("keys that are mappings", "{? {? [a] : b} : c, [d]: e}\n", "yaml-key"),
    yaml(
        "addresses that backtrack",
        broken(code={"git": f"ssh://{'a@' * 400_000}", "url": f"ssh://{'a:' * 400_000}"}),
        "error",
    ),
    yaml(
        "addresses of the reconciler that backtrack",
        f"{HEAD}kind: Cluster\nmetadata: {{name: other}}\n"
        f"spec: {{reconcile: {{mode: builtin, repository: '{'a.' * 400_000}@{'a.' * 400_000}'}}}}\n",
        "repository",
    ),
    yaml("a template", "{{ range .Values }}\nkind: {{ . }}\n{{ end }}\n", "error"),
]
