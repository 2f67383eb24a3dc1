"""Specs with the same prediction are one row of a plan, in text and in Markdown."""

from __future__ import annotations

import json

from avactl.change.plan.model import Cost, Effect, Plan, PlanEntry, PlannedOwner, PlannedPlace, PlanVerdict, Wait
from avactl.change.plan.output.groups import group_rows
from avactl.change.plan.output.json_output import render_json
from avactl.change.plan.output.markdown import LIMIT, render_markdown
from avactl.change.plan.output.text import render_text


def entry(name: str, pods: int = 1, verdict: PlanVerdict = PlanVerdict.STARTS, words: str = "") -> PlanEntry:
    waits = (Wait(verdict, pods, words),) if words else ()
    placed = 0 if words else pods
    places = () if words else (PlannedPlace("v100", 1),)
    owner = PlannedOwner("TrainingJob", "vision", name)
    cost = Cost({"V100": 8.0 * pods}, hours=2.0)
    return PlanEntry(owner, "train", "added", verdict, pods, placed, places, waits, cost=cost)


def test_equal_predictions_are_one_row() -> None:
    entries = [entry(f"fold-{number:02}") for number in range(20)]
    entries += [entry("big", pods=4), entry("late", verdict=PlanVerdict.QUOTA, words="late waits for its team")]
    entries += [entry("slow", verdict=PlanVerdict.QUOTA, words="slow waits for its team")]
    plan = Plan("train", "specs", tuple(entries))
    found = group_rows(plan)
    assert [len(row.entries) for row in found] == [2, 1, 20]
    assert found[0].details[0] == "* waits for its team"
    assert found[2].names.endswith("vision/fold-05, … 14 more")
    text = render_text([plan])
    assert "20 TrainingJobs" in text
    assert "1 each" in text
    assert "8 V100 each" in text
    assert text.count("pool v100, 1 machine") == 2
    markdown = render_markdown([plan])
    assert "| `20 TrainingJobs` | starts | 1 each | `vision/fold-00, " in markdown
    assert len(json.loads(render_json([plan]))["clusters"][0]["specs"]) == 23, "programs get each spec"


def test_many_different_predictions_are_cut_and_counted() -> None:
    plan = Plan("train", "specs", tuple(entry(f"job-{number}", pods=number + 1) for number in range(400)))
    text = render_markdown([plan])
    assert len(text.encode()) <= LIMIT
    assert text.count("<details>") == text.count("</details>") == 1
    shown = text.count("`TrainingJob vision/job-")
    assert f"… and {400 - shown} more specs; `avactl plan` shows all\n" in text


def test_equal_effects_on_others_are_one_row() -> None:
    def effect(name: str, pods: int = 1) -> Effect:
        return Effect(PlannedOwner("TrainingJob", "vision", name), "starts", pods, pods)

    plan = Plan("train", "specs", (), effects=(*(effect(f"vit-{number}") for number in range(31)), effect("llm", 8)))
    names = ", ".join(f"vision/vit-{number}" for number in range(6))
    text = render_text([plan], width=240)
    assert f"  31 TrainingJobs ({names}, … 25 more)   starts: 1 of 1 pod that were pending each\n" in text
    assert "  TrainingJob vision/llm " in text
    assert f"`31 TrainingJobs ({names}, … 25 more)` starts: 1 of 1 pod that were pending each" in render_markdown(
        [plan]
    )
    assert len(json.loads(render_json([plan]))["clusters"][0]["others"]) == 32, "programs get each spec"
