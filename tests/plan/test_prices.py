"""Prices of a cluster: what is refused, and what a diff says of them."""

from __future__ import annotations

from avactl.change.diff import compare
from avactl.kinds.cluster.facts import facts
from tests.kinds.compiling import unchecked
from tests.plan.test_plan import compile_, platform


def test_prices_of_gpus_that_are_not_there_are_refused() -> None:
    result = unchecked(platform(cluster="prices: {currency: EUR, gpus: {v100-32gb: 2, H100: 4, V100: 2.1}}"))
    assert [(problem.code, problem.hint) for problem in result.diagnostics] == [
        ("gpu-not-in-cluster", "did you mean `V100`?"),
        ("gpu-not-in-cluster", "it has `V100`"),
    ]


def test_a_diff_tells_of_them() -> None:
    one = compile_(platform(cluster="prices: {currency: EUR, gpus: {V100: 2}}"))
    other = compile_(platform(cluster="prices: {currency: EUR, gpus: {V100: 2.5}, cpu: 0.02}"))
    assert facts(one.program.cluster("main"), one.program)["prices"] == "V100 2 EUR per hour"
    changes = compare(one, other)
    assert [(fact.name, fact.new) for intent in changes.intents for fact in intent.facts] == [
        ("prices", "V100 2.5, core 0.02 EUR per hour")
    ]
    assert not [change for intent in changes.intents for change in intent.objects]
