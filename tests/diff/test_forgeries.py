"""Every change of a compiled object is named in the comment or in its artifact, and every right in the comment."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from avactl.change.diff import Diff
from avactl.change.diff.rights.model import Scope
from avactl.change.diff.rights.objects import of_object
from avactl.change.diff.rights.text import compare_rights, list_rights
from avactl.change.review.comment import Artifact, compose, whole
from avactl.change.review.comparison import Sides, review_of
from avactl.diagnostics.text import render_text
from avactl.program.manifest import Manifest
from tests.diff.forgeries import OBJECTS, PODS, Forgery, daemon_set, forgeries
from tests.diff.sides import PLATFORM
from tests.review.scenarios import compiled

FORGERIES = list(forgeries())
ARTIFACT = Artifact("avactl-diff.txt", "https://example.com/run#artifacts")


def sides_of(forgery: Forgery) -> Sides:
    before, after = compiled(forgery.base), compiled(forgery.head)
    for each in (before, after):
        assert each.ok, render_text(each.diagnostics, lambda path: None)
    return Sides(review_of(before, after, "1111111", "2222222"), after, ".")


def test_there_are_two_hundred() -> None:
    assert len({forgery.name for forgery in FORGERIES}) >= 200


@pytest.mark.parametrize("part", range(8))
def test_no_forgery_passes(part: int) -> None:
    missed = []
    for forgery in FORGERIES[part::8]:
        sides = sides_of(forgery)
        comment = compose(sides.review, ".", sides.source, limit=65_000, artifact=ARTIFACT)
        assert len(comment.encode()) <= 65_000
        record = whole(sides.review, sides.source)
        assert sides.review.diff is not None
        rights = bullets(comment)
        missed += [f"{forgery.name}: {word} in no line of the comment" for word in forgery.words if word not in rights]
        missed += [
            f"{forgery.name}: {leaf} not in the artifact" for leaf in leaves(sides.review.diff) if leaf not in record
        ]
    assert missed == []


ODD: tuple[Any, ...] = (1, "x", True, [], [1], [[]], {}, {1: 2}, {"name": []}, None)


@pytest.mark.parametrize("name", [*PODS, *OBJECTS])
def test_rights_of_manifests_that_are_none(name: str) -> None:
    """A base with errors is compared, too: no value makes the diff fail, and none hides its object's other rights."""
    body = daemon_set(PODS[name][0]) if name in PODS else OBJECTS[name][0]
    item = next(item for item in compiled({"platform.yaml": PLATFORM}).program.items if item.kind == "Cluster")
    for path in paths(body):
        if path[:1] not in (("apiVersion",), ("kind",)) and path != ("metadata",) and path[:2] != ("metadata", "name"):
            for odd in ODD:
                changed = copy.deepcopy(body)
                inside: Any = changed
                for step in path[:-1]:
                    inside = inside[step]
                inside[path[-1]] = odd
                found = list(of_object(Scope(Manifest(item, "main", changed), compiled=False)))
                compare_rights(found, [])
                list_rights(found)


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, inner in pairs for place in ((*path, key), *paths(inner, (*path, key)))]


def bullets(comment: str) -> str:
    """The comment without the folded objects and specs: its bullets, and the folded lines of commands."""
    kept, inside = [], False
    for line in comment.splitlines():
        if line.startswith("<details><summary>"):
            inside = line.endswith(("objects</summary>", "object</summary>", "spec</summary>"))
        if not inside:
            kept.append(line)
        if line == "</details>":
            inside = False
    return "\n".join(kept)


def leaves(diff: Diff) -> set[str]:
    """The values that differ, as texts of one line."""
    found: set[str] = set()
    for intent in diff.intents:
        for change in intent.objects:
            if change.op in ("created", "deleted") and change.manifest is not None:
                found |= set(texts(change.manifest.body))
            for field in change.fields:
                found |= {*texts(field.old), *texts(field.new)}
    return found


def texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for key, inner in value.items() for text in (key, *texts(inner))]
    if isinstance(value, list):
        return [text for inner in value for text in texts(inner)]
    return (
        [line for line in str(value).splitlines() if '"' not in line and "\\" not in line]
        if isinstance(value, str)
        else []
    )
