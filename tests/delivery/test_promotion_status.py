"""What `avactl delivery status` shows of promotions, as docs/promotions.md has it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from avactl.cli.cluster import delivery
from avactl.contracts.delivery import PROBLEM_KEY, PROMOTION_KEY, STATE_KEY, PromotionState
from avactl.contracts.document import dump
from avactl.contracts.names import CONFIG_LABEL, PROMOTION_CONFIG, PROMOTION_STATE
from avactl.daemons.delivery.status import promotion_entries
from tests.delivery.test_promotion_history import PLAN

DOCS = Path(__file__).resolve().parents[2] / "docs" / "promotions.md"
NOON = 1_767_268_800.0


def config_map(name: str, kind: str, data: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {CONFIG_LABEL: kind}}, "data": data}


def shown(state: PromotionState, monkeypatch: pytest.MonkeyPatch, problem: str = "") -> list[str]:
    plan = PLAN.replace(
        team="search",
        source=PLAN.source.replace(document="embed-staging"),
        target=PLAN.target.replace(document="embed", namespace="search", service="embed"),
    )
    maps = [
        config_map("promotion.search.embed", PROMOTION_CONFIG, {PROMOTION_KEY: dump(plan)}),
        config_map("promotion-state.search.embed", PROMOTION_STATE, {STATE_KEY: dump(state), PROBLEM_KEY: problem}),
    ]
    monkeypatch.setattr("time.time", lambda: NOON + 720)
    console = Console(file=io.StringIO(), width=200)
    console.print(delivery._lay_out_page({"pipelines": [], "promotions": promotion_entries(maps)}))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_the_table_of_the_documentation(monkeypatch: pytest.MonkeyPatch) -> None:
    state = PromotionState(phase="soaking", since=NOON, source="version 2", target="version 1")
    for line in shown(state, monkeypatch):
        assert line in DOCS.read_text().splitlines()


def test_a_link_or_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    held = PromotionState(phase="held", since=NOON, message="the pull request was closed")
    assert shown(held, monkeypatch)[1].split("  ")[-1] == "the pull request was closed"
    url = "https://github.com/example/specs/pull/7"
    proposed = PromotionState(phase="proposed", since=NOON, url=url)
    assert shown(proposed, monkeypatch)[1].endswith(url)
    assert shown(proposed, monkeypatch, "401 Unauthorized: the token is not valid")[1].endswith("is not valid")


def test_what_somebody_has_damaged_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    maps = [config_map("promotion.search.embed", PROMOTION_CONFIG, {PROMOTION_KEY: "{"})]
    (entry,) = promotion_entries(maps)
    assert entry["service"] == "search.embed"
    assert entry["problem"].startswith("invalid plan: it is not JSON")
