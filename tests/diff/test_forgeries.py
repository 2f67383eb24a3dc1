"""Every change of a compiled object is named in the comment or in its artifact, and every right in the comment."""

from __future__ import annotations

from typing import Any

import pytest

from avactl.diagnostics.text import render_text
from avactl.diff import Diff
from avactl.review.comment import Artifact, compose, whole
from avactl.review.comparison import Sides, review_of
from tests.diff.forgeries import Forgery, forgeries
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
        missed += [f"{forgery.name}: {leaf} not in the artifact" for leaf in leaves(sides.review.diff)
                   if leaf not in record]  # fmt: skip
    assert missed == []


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
    return [line for line in str(value).splitlines() if '"' not in line and "\\" not in line] if isinstance(
        value, str) else []  # fmt: skip
