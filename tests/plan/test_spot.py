"""Spot machines in plans: what runs there, and the price with and without."""

from __future__ import annotations

import pytest

from avactl.change.plan.model import PlanEntry
from avactl.change.plan.output.phrases import entry_details, format_price
from avactl.change.plan.planner import make_plan
from tests.kinds.compiling import compiled
from tests.kinds.specs import JOB, joined
from tests.kinds.test_spot import CHECKPOINT, ELASTIC, GANG, PLATFORM

PRICED = PLATFORM.replace("  daemons:", "  prices: {currency: EUR, gpus: {V100: 2}}\n  daemons:").replace(
    "capacity: spot,", "capacity: spot, price: 0.5,"
)


def planned(spec: str, platform: str = PRICED) -> PlanEntry:
    (entry,) = (
        entry
        for entry in make_plan(None, compiled(joined(platform, spec)), "main").entries
        if entry.owner.kind == "TrainingJob"
    )
    return entry


def test_surplus_workers_are_priced_and_told_as_reclaimable() -> None:
    entry = planned(ELASTIC + "  workers: {min: 2, max: 5, gpus: 8}\n  spot: allow\n  timeout: 10h\n")
    assert (entry.placed, entry.reclaimable) == (6, 3)  # with the master
    # 5 × 8 GPUs for 2 EUR; or 2 × 8 for 2 and 3 × 8 for 0.5.
    assert format_price(entry, "EUR") == "800.00 EUR at most (440.00 EUR on spot)"
    assert "3 pods on spot machines, which the provider may take back" in list(entry_details(entry))


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        ("never", "32.00 EUR per hour"),
        ("allow", "32.00 EUR per hour (8.00 EUR on spot)"),
        ("require", "8.00 EUR per hour"),
    ],
)
def test_a_gang(use: str, expected: str) -> None:
    entry = planned(GANG + f"  spot: {use}\n")
    assert format_price(entry, "EUR") == expected
    assert (entry.reclaimable == 2) is (use == "require")


def test_a_pool_has_a_price_of_its_own() -> None:
    dear = PRICED.replace("{name: firm}\nspec: {", "{name: firm}\nspec: {price: 3, ")
    assert format_price(planned(JOB + "  workers: {gpus: 1, pool: firm}\n", dear), "EUR") == "3.00 EUR per hour"
    assert format_price(planned(JOB + "  workers: {gpus: 1}\n", dear), "EUR") == "3.00 EUR per hour"
    only = PRICED.replace("prices: {currency: EUR, gpus: {V100: 2}}", "prices: {currency: EUR}")
    assert format_price(planned(JOB + "  workers: {gpus: 1}\n", only), "EUR") == ""
    assert (
        format_price(planned(JOB + CHECKPOINT + "  workers: {gpus: 1}\n  spot: require\n", only), "EUR")
        == "0.50 EUR per hour"
    )
