"""Inputs that are nearly right: specs with a few values changed, YAML text with a few bytes changed, and noise."""

from __future__ import annotations

import copy
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
WORLD = (Path(__file__).parent / "world.yaml").read_bytes()
DOCUMENTS: list[dict[str, Any]] = list(yaml.load_all(WORLD, yaml.CSafeLoader))
PLATFORM = ("Cluster", "MachineType", "NodePool", "Team")

WORDS = (
    "",
    " ",
    "a",
    "A",
    "main",
    "vision",
    "speech",
    "v100",
    "lab-box",
    "read",
    "imagenet",
    "v1",
    "GPU",
    "-",
    "..",
    "/",
    "../../etc",
    "/data",
    "~",
    "null",
    "true",
    "no",
    "0",
    "-1",
    "1e9",
    "0x10",
    "1_000",
    "16Gi",
    "16GB",
    "1.5",
    "500m",
    "Ei",
    "9999999Ei",
    "1h",
    "1h30",
    "10m5s",
    "99999999999d",
    "s3://",
    "s3://b/p",
    "s3://u:p@b/p",
    "https://x/y.git",
    "x" * 64,
    "x" * 300,
    "ünïcødé",
    "日本語",
    "\u202e\u0000\x07",
    "a\tb",
    "a\nb",
    "e\u0301",
    "😀",
    "\ufeff",
    "{}",
    "[]",
    "$(X)",
    "%s",
    "{0}",
    "sha256:",
    "img@sha256:00",
    "avactl.dev/v1",
    "v1",
    "apps/v1",
    "Job",
    "AKIAIOSFODNN7EXAMPLE",
    "kubernetes.io/x",
    "avactl.dev/x",
    "nvidia.com/gpu",
    "gpu",
    "cpu",
    "allReduce",
    "elastic",
    "mpi",
    "delete",
    "async",
)
NUMBERS = (0, 1, -1, 2, 3, 8, 16, 17, 64, 100_000, 100_001, 2**31, 2**63, 2**64, -(2**63), 10**30, 10**70)
FLOATS = (0.0, 0.5, 0.333, 1.0, 1.5, -0.1, 1e-9, 1e18, 1e300, float("inf"), float("nan"))

scalars: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(WORDS),
    st.sampled_from(NUMBERS),
    st.sampled_from(FLOATS),
    st.sampled_from((None, True, False)),
    st.text(max_size=12),
)
keys = st.one_of(
    st.sampled_from(sorted({key for document in DOCUMENTS for key in (*document, *document["spec"])})),
    st.sampled_from(WORDS),
    st.text(max_size=8),
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=6
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values below the root."""
    found: list[tuple[Any, ...]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in items:
        found += [(*path, step), *_places(inner, (*path, step))]
    return found


def _by_key() -> dict[str, list[Any]]:
    """The values that stand at a key anywhere in this world, the examples and the invalid fixtures."""
    found: dict[str, list[Any]] = {}
    documents = list(DOCUMENTS)
    for file in sorted([*(ROOT / "examples").rglob("*.yaml"), *(ROOT / "tests/golden/invalid").rglob("*.yaml")]):
        if "files" not in file.parts:  # those are not YAML, or bombs
            with suppress(ValueError):  # a number of thousands of digits: `NUMBERS` and the noise have such
                documents += list(yaml.load_all(file.read_bytes(), yaml.CSafeLoader))
    for document in documents:
        for *parents, last in _places(document):
            if isinstance(last, str) and len(parents) < 8:
                value: Any = document
                for step in (*parents, last):
                    value = value[step]
                if value not in found.setdefault(last, []):
                    found[last].append(value)
    return found


@st.composite
def _nudged(draw: st.DrawFn, document: dict[str, Any]) -> dict[str, Any]:
    """A document with one to three of its values left out, or exchanged for one that stands at such a key elsewhere."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        places = [place for place in _places(document) if place[0] in ("spec", "metadata") and len(place) > 1]
        if not places:
            break
        *parents, last = draw(st.sampled_from(places))
        parent: Any = document
        for step in parents:
            parent = parent[step]
        match draw(st.sampled_from((0, 1, 2, 3, 3, 3))):
            case 0:
                del parent[last]
            case 1 if isinstance(parent, dict):
                # A key that the kind has and this document has not.
                other = draw(st.sampled_from([d for d in DOCUMENTS if d["kind"] == document["kind"]] or [document]))
                for key, value in other["spec"].items():
                    document.setdefault("spec", {}).setdefault(key, copy.deepcopy(value))
            case _ if isinstance(parent[last], bool):
                parent[last] = not parent[last]
            case 2 if isinstance(parent[last], int):
                parent[last] = draw(st.sampled_from((0, 1, 2, 3, 4, 8, 9, 16, 100)))
            case _ if last in BY_KEY:
                parent[last] = copy.deepcopy(draw(st.sampled_from(BY_KEY[last])))
    return document


@st.composite
def _mutated(draw: st.DrawFn, document: dict[str, Any]) -> dict[str, Any]:
    """A document with one to three of its values dropped, renamed, replaced, doubled or swapped."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        places = _places(document)
        if not places:
            break
        *parents, last = draw(st.sampled_from(places))
        parent: Any = document
        for step in parents:
            parent = parent[step]
        match draw(st.integers(0, 7)):
            case 0:
                del parent[last]
            case 1 if isinstance(parent, dict):
                parent[draw(keys)] = parent.pop(last)
            case 2 if isinstance(parent, list):
                parent.append(copy.deepcopy(parent[last]))
            case 3:
                *others, other = draw(st.sampled_from(places))
                found: Any = document
                for step in others:
                    found = found[step] if isinstance(found, dict | list) and _has(found, step) else {}
                if isinstance(found, dict | list) and _has(found, other):
                    parent[last] = copy.deepcopy(found[other])
            case 4:
                parent[last] = draw(values)
            case 5 if isinstance(parent, dict):
                parent[draw(keys)] = draw(values)
            case _:
                parent[last] = draw(scalars)
    return document


BY_KEY = _by_key()


def _has(value: Any, step: Any) -> bool:
    if isinstance(value, dict):
        return step in value
    return isinstance(step, int) and step < len(value)


@st.composite
def repositories(draw: st.DrawFn, gently: bool) -> dict[str, bytes]:
    """The world with one to three of its documents changed; gently, so that most pass validation, or not.

    Sometimes some of the other documents are missing.
    """
    change = _nudged if gently else _mutated
    chosen = draw(st.lists(st.sampled_from(range(len(DOCUMENTS))), min_size=1, max_size=3, unique=True))
    wanted = "all" if gently else draw(st.sampled_from(("all", "platform", "none")))
    rest = [
        document
        for index, document in enumerate(DOCUMENTS)
        if index not in chosen and (wanted == "all" or (wanted == "platform" and document["kind"] in PLATFORM))
    ]
    changed = [draw(change(DOCUMENTS[index])) for index in chosen]
    flow = draw(st.sampled_from((None, True, False)))
    text = yaml.dump_all(changed, Dumper=_Dumper, default_flow_style=flow, sort_keys=False, allow_unicode=True)
    files = {"changed.yaml": text.encode("utf-8", "replace")}
    if rest:
        files["rest.yaml"] = yaml.dump_all(rest, Dumper=yaml.CSafeDumper, sort_keys=False).encode()
    return files


class _Dumper(yaml.CSafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


SNIPPETS = (
    b"\t",
    b"\r\n",
    b"\r",
    b"\0",
    b"\xef\xbb\xbf",
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xe2\x80\xa8",
    b"\xc2\x85",
    b"\x07",
    b"\x1b[31m",
    "😀".encode(),
    "\u202e".encode(),
    b"---\n",
    b"...\n",
    b"\n---\n\n---\n",
    b"%YAML 1.1\n---\n",
    b"%TAG ! tag:x,2000:\n---\n",
    b"&a ",
    b"*a",
    b"*images",
    b"<<: *images\n",
    b"<<: 3\n",
    b"<<: [*images, *images]\n",
    b"&x [*x]",
    b"!!python/object/apply:os.system [id]",
    b"!!binary aGk=",
    b"!!str ",
    b"!!int x",
    b"!custom ",
    b"!!set {a}",
    b"? ",
    b"? [a]\n: b\n",
    b"? {a: b}\n: c\n",
    b": ",
    b"- ",
    b"-",
    b"[",
    b"]",
    b"{",
    b"}",
    b",",
    b"'",
    b'"',
    b"|\n",
    b">-\n",
    b"# ",
    b"@",
    b"`",
    b"%",
    b"[" * 70,
    b"{" * 70,
    b"[" * 3000,
    b"- " * 200,
    b"? " * 100,
    b"a: " * 3,
    b"{a: " * 100,
    b" " * 100,
    b"1" * 100,
    b"1" * 5000,
    b"0o777",
    b"0xdeadbeef",
    b".nan",
    b"-.inf",
    b"1e999",
    b"~",
    b"null",
    b"yes",
    b"2001-01-01",
    b"12:30:45",
    b"\\u0000",
    b'"\\ud800"',
    b'"\\x00"',
    b'"\\0"',
    b'"\\N"',
    b"a" * 2000,
    b"apiVersion: v1\n",
)

noise = st.one_of(
    st.binary(max_size=300),
    st.lists(st.sampled_from(SNIPPETS), max_size=20).map(b"".join),
    st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")),
)

_PARTS = WORLD.split(b"---\n")


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """The text of a few documents of the world with one to four stretches removed, doubled, moved or written over."""
    chosen = draw(st.lists(st.sampled_from(range(len(_PARTS))), min_size=1, max_size=3))
    text = b"---\n".join(_PARTS[index] for index in chosen)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.sampled_from((0, 0, 1, 2, 5, 20, 200))))
        piece = draw(st.one_of(st.sampled_from(SNIPPETS), st.binary(max_size=4)))
        match draw(st.integers(0, 3)):
            case 0:
                text = text[:start] + text[end:]
            case 1:
                text = text[:end] + text[start:]
            case 2:
                text = text[:start] + piece + text[start:]
            case _:
                text = text[:start] + piece + text[end:]
    return text
