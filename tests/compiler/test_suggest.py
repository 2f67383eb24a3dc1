"""Suggestions for misspelt words: the same as by comparing with each known word, at a cost that is linear."""

from __future__ import annotations

import difflib
import random
from collections import Counter
from typing import Any

import pytest

from avactl.compiler import compile_tree
from avactl.diagnostics import suggest
from avactl.diagnostics.suggest import MAX_COMPARED, WordIndex, closest_word, did_you_mean
from avactl.spec.repository.tree import MemoryTree

TEAM = "apiVersion: avactl.dev/v1\nkind: Team\nmetadata: {name: team-NUMBER}\nspec: {members: {groups: [all]}}\n---\n"
QUOTA = (
    TEAM.replace("Team", "Quota")
    .replace("name: team-", "name: gpus, team: teem-")
    .replace("members: {groups: [all]}", "cluster: main")
)


def _by_comparing_all(word: str, known: list[str]) -> str | None:
    folded = {suggest._fold_word(each): each for each in known}
    wanted = suggest._fold_word(word)
    near = [wanted] if wanted in folded else difflib.get_close_matches(wanted, folded, n=1, cutoff=0.6)
    if near or len(wanted) < 3:
        return folded[near[0]] if near else None
    longer = [each for each in folded if each.startswith(wanted) or wanted.startswith(each)]
    return folded[longer[0]] if len(longer) == 1 else None


@pytest.mark.parametrize("seed", range(20))
def test_the_suggestion_is_that_of_all_comparisons(seed: int) -> None:
    chance = random.Random(seed)

    def word(most: int) -> str:
        return "".join(chance.choice("abcde-_B1") for _ in range(chance.randint(0, most)))

    for _ in range(40):
        by_fold = {suggest._fold_word(each): each for each in (word(8) for _ in range(chance.randint(0, 30)))}
        known, wanted = list(by_fold.values()), word(9)
        assert closest_word(wanted, known) == _by_comparing_all(wanted, known), (wanted, known)


@pytest.mark.parametrize("wrong", ["teem-{}", "team-{}x", "tam-{}", "taem-{}", "Team_{}"])
def test_a_word_is_found_among_many(wrong: str) -> None:
    index = WordIndex(f"team-{number:04d}" for number in range(3000))
    for number in range(0, 3000, 311):
        assert index.closest(wrong.format(f"{number:04d}")) == f"team-{number:04d}"


def test_a_word_is_not_suggested_for_itself() -> None:
    index = WordIndex(["vision", "audio"])
    assert index.closest("visoin") == "vision"
    assert index.closest("visoin", without="vision") is None
    assert did_you_mean("visoin", index, "teams", without="vision") == "teams: `audio`"


def test_many_misspelt_references_cost_few_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 600 references is to a team that does not exist, among 300 that do."""
    counts: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def counted(*args: Any) -> Any:
            counts[name] += 1
            return real(*args)

        monkeypatch.setattr(owner, name, counted)

    for name in ("ratio", "quick_ratio", "real_quick_ratio"):
        count(difflib.SequenceMatcher, name)
    count(suggest, "_fold_word")
    files = {"main.yaml": b"apiVersion: avactl.dev/v1\nkind: Cluster\nmetadata: {name: main}\nspec: {}\n"}
    for number in range(300):
        text = TEAM + QUOTA + QUOTA.replace("gpus", "more")
        files[f"teams/{number}.yaml"] = text.replace("NUMBER", f"{number:04d}").encode()
    found = [each for each in compile_tree(MemoryTree(files)).diagnostics if each.severity == "error"]
    assert len(found) == 300
    assert all(each.message.startswith("nothing refers to Team `team-") for each in found)
    assert sum(counts[name] for name in counts if name.endswith("ratio")) < 600 * 10
    assert counts["_fold_word"] < 300 + 600 * 5, "the names are indexed once"


def test_comparisons_of_one_word_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    class Matcher(difflib.SequenceMatcher[str]):
        def ratio(self) -> float:
            compared.append(self)
            return super().ratio()

    monkeypatch.setattr(suggest, "SequenceMatcher", Matcher)
    chance = random.Random(1)
    letters = list("abcdefghij")
    index = WordIndex("".join(chance.sample(letters, len(letters))) for _ in range(5000))
    index.closest("acegibdfhj")
    assert len(compared) <= MAX_COMPARED
