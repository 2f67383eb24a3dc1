"""Each changed value of each object is named in all outputs, apart from every other value that it could have.

Texts, images and amounts that look alike are generated on purpose. What is printed decides the change: from one base,
two heads that differ have different outputs.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avactl.base.equality import is_same
from avactl.change.diff import compare
from avactl.change.diff.json_output import render_json
from avactl.change.diff.markdown import render_markdown
from avactl.change.diff.text import render_text
from avactl.compiler import Compilation
from avactl.program.manifest import Body, Manifest
from tests.conftest import SOAK
from tests.diff.sides import compiled, job, workspace

OWNERS = ("cdn", "evil", "w")
DIGEST = "registry.example.com/train@sha256:" + "1" * 63
TEXTS = (
    "",
    " ",
    "a",
    "a ",
    " a",
    "a\n",
    "a\tb",
    "a b",
    "a  b",
    "a\x01",
    "a\x02",
    "true",
    "null",
    "1",
    "1000m",
    "1Gi",
    "1024Mi",
    "a, b",
    "[]",
    "{}",
    '""',
    '"a"',
    "deadbeef",
    "cafebabe",
    "1" * 40,
    "1" * 39 + "2",
    DIGEST + "1",
    DIGEST + "2",
    "train:1",
    "registry.example.com/train:1",
    "registry.example.com/train:2",
    "https://cdn.example/x",
    "https://evil.example/x",
    "cdn",
    "evil",
    "cdn-worker",
    "evil-worker",
    "*-worker",
    "*",
    "1 GPU",
    "2 GPU",
    "a=1\nb=2\n",
    "a=1\nb=2 \n",
    "a=1\n# c\nb=2\n",
    "a=1\n# d\nb=2\n",
    "b=2\na=1\n",
    "a=1\nb=2",
    "a=true\nb=2\n",
    '{"a": 1}',
    '{"a": true}',
    '{"a": 1.0}',
    '{"a": 2, "a": 1}',
    '{"a": 1, "b": 2}',
    '{"b": 2, "a": 1}',
    '{"quota": "1"}',
    '{"quota": "1000m"}',
    "set -e\nrun\n",
    "set -e\nrun \n",
    "set -e\r\nrun\n",
)
WORDS = tuple(text for text in TEXTS if "\n" not in text.rstrip("\n"))
LEAVES = (*WORDS, None, True, False, 0, 1, 2, 1.0, 0.5)
AMOUNTS = ("1Gi", "2Gi", "1G", "1", "1100m", 2)
"""No two of them are equal."""
VALUES: dict[str, tuple[Any, ...]] = {"LEAF": LEAVES, "WORD": WORDS, "TEXT": TEXTS, "AMOUNT": AMOUNTS}


def objects(name: str) -> dict[str, Body]:
    """Return objects of a spec; `LEAF`, `WORD`, `TEXT` and `AMOUNT` are places for values."""
    metadata = {
        "name": f"{name}-worker",
        "namespace": "vision",
        "labels": {"cpu": "LEAF"},
        "annotations": {"x": "LEAF"},
    }
    container = {
        "name": "worker",
        "image": "WORD",
        "command": ["sh", "WORD"],
        "args": ["--x", "WORD", "--y"],
        "env": [{"name": "quota", "value": "TEXT"}, {"name": "URL", "value": "TEXT"}],
        "resources": {"requests": {"memory": "AMOUNT"}, "limits": {"memory": "AMOUNT"}},
    }
    template = {"metadata": {"annotations": {"example.com/commit": "TEXT"}}, "spec": {"containers": [container]}}
    nested = {"list": ["a", {"deep": [["LEAF"]]}], "limits": {"cpu": "LEAF"}, "replicas": "LEAF"}
    return {
        "Job": {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template}},
        "ConfigMap": {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {"quota": "TEXT", "a.json": "TEXT", "memory": "TEXT"},
        },
        "ResourceQuota": {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": metadata,
            "spec": {"hard": {"requests.cpu": "AMOUNT", "pods": "AMOUNT"}},
        },
        "Thing": {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": metadata, "spec": nested},
    }


Place = tuple[str, str, tuple[Any, ...]]
"""Spec, kind of an object, path."""


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, key))
    else:
        yield path, value


PLACES: dict[Place, tuple[Any, ...]] = {
    (owner, kind, path): VALUES[mark]
    for owner in OWNERS
    for kind, body in objects(owner).items()
    for path, mark in places(body)
    if mark in VALUES
}
KINDS = sorted({kind for _, kind, _ in PLACES})


@pytest.fixture(scope="module")
def repository() -> Compilation:
    """Two jobs, a workspace, and their objects, which the tests replace."""
    small: dict[str, Any] = {"strategy": "single", "workers": {"cpu": 1}}
    return compiled(job("cdn", **small), job("evil", **small), workspace("w"))


def with_values(repository: Compilation, kinds: list[str], values: dict[Place, Any]) -> Compilation:
    manifests = []
    for item in repository.program.items:
        if item.name in OWNERS and item.team == "vision":
            for kind in kinds:
                body = copy.deepcopy(objects(item.name)[kind])
                for (owner, of, path), value in values.items():
                    if (owner, of) == (item.name, kind):
                        put(body, path, value)
                manifests.append(Manifest(item, "main", body))
    return replace(repository, manifests=tuple(manifests))


def put(body: Any, path: tuple[Any, ...], value: Any) -> None:
    for step in path[:-1]:
        body = body[step]
    body[path[-1]] = value


@st.composite
def values_of(draw: st.DrawFn) -> tuple[list[str], dict[Place, Any], dict[Place, Any], dict[Place, Any]]:
    """Draw kinds of objects, the values of a base, and those of two heads, which differ from the base in few places."""
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=2, unique=True))
    mine = [place for place in PLACES if place[1] in kinds]
    shapes = sorted({place[1:] for place in mine}, key=str)
    # All specs have the same base, so that equal changes form groups.
    common = {shape: draw(st.sampled_from(PLACES[(OWNERS[0], *shape)])) for shape in shapes}
    base = {place: common[place[1:]] for place in mine}
    changed = draw(st.lists(st.sampled_from(shapes), min_size=1, max_size=2, unique=True))
    heads = [
        {
            **base,
            **{
                (owner, *shape): draw(st.sampled_from(PLACES[(owner, *shape)])) for shape in changed for owner in OWNERS
            },
        }
        for _ in range(2)
    ]
    return kinds, base, heads[0], heads[1]


@given(values_of())
@settings(max_examples=2000 if SOAK else 60)
def test_outputs_decide_what_changes(
    repository: Compilation, drawn: tuple[list[str], dict[Place, Any], dict[Place, Any], dict[Place, Any]]
) -> None:
    kinds, base, one, other = drawn
    before = with_values(repository, kinds, base)
    diffs = [compare(before, with_values(repository, kinds, head)) for head in (one, other)]
    for diff, head in zip(diffs, (one, other), strict=True):
        assert diff.empty == is_same(list(base.values()), list(head.values()))
        shown = json.loads(render_json(diff))
        for (owner, kind, _path), new in head.items():
            old = base[(owner, kind, _path)]
            if not is_same(old, new):
                (entry,) = [
                    o
                    for i in shown["intents"]
                    for o in i["objects"]
                    if (o["kind"], o["name"]) == (kind, f"{owner}-worker")
                ]
                pairs = [(field.get("old", ...), field.get("new", ...)) for field in entry["fields"]]
                assert not any(is_same(*pair) for pair in pairs)
                assert any(is_same(pair, (old, new)) for pair in pairs) or any(
                    ": " in f["path"] for f in entry["fields"]
                )
    assert (render_json(diffs[0]) == render_json(diffs[1])) == is_same(list(one.values()), list(other.values()))
    for render in (render_text, render_markdown):
        if render(diffs[0]) == render(diffs[1]):
            assert list(map(words, one.values())) == list(map(words, other.values())), render(diffs[0])


def words(value: Any) -> str:
    """Return a value as it is printed: a number as its text, a tab inside of a line as a blank, and without a newline
    at its end. These are told apart within one change only."""
    return value.replace("\t", " ").removesuffix("\n") if isinstance(value, str) else json.dumps(value)
