"""Progress in the output of scripts, which may be anything."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from avactl.workbench.step_progress import read


def line(**content: Any) -> str:
    return json.dumps({"avactl_progress": content})


def test_a_line_for_people() -> None:
    told = read(line(step=1200, steps=5000, records=256, speed=2.3, loss=0.412))
    assert str(told) == "step 1,200 of 5,000 (24%), loss 0.412, 589 records/s, 28 min left"
    assert str(read(line(step=7))) == "step 7"
    assert str(read(line(step=7, epoch=2, speed=0.5, acc=0.25))) == "step 7, epoch 2, acc 0.25, 0.5 steps/s"
    assert str(read(line(step=9, steps=6, epoch=2, epochs=2))) == "step 9 of 6 (100%), epoch 2 of 2"


@pytest.mark.parametrize(
    "before", ["", "INFO:root:", "[rank0]: ", "[1,0]<stdout>:", '{"level": "info", "text": ', "{{ \x1b[0m"]
)
def test_words_of_launchers_and_loggers_are_ignored(before: str) -> None:
    told = read(f"{before}{line(step=3, loss=0.5)} and more")
    assert told is not None
    assert (told.step, told.metric, told.metrics) == (3, "loss", {"loss": 0.5})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "step 3",
        '{"avactl_progress"',
        '{"avactl_progress": ',
        '{"avactl_progress": {"step": 3',
        line(),
        '{"avactl_progress": 3}',
        '{"avactl_progress": [3]}',
        '{"avactl_progress": null}',
        line(step="3"),
        line(step=-1),
        line(step=3.5),
        line(step=True),
        line(step=10**16),
        line(step=10**400),
        line(step=[3]),
        line(step=3, note="x" * 5000),
        '{"avactl_progress": ' + "[" * 100_000,
        '{"avactl_progress": {"step": NaN}}',
        '{"avactl_progress": {"step": ' + "9" * 4000 + "}}",
        "{" + " " * 100_000 + '"avactl_progress": {"step": 3}}',
    ],
)
def test_what_is_no_progress(text: str) -> None:
    assert read(text) is None


def test_values_are_bounded() -> None:
    told = read(
        '{"avactl_progress": {"step": 3, "steps": -4, "epoch": "1", "epochs": 1e3, "records": -5, "speed": Infinity, '
        '"loss": NaN, "big": 1e300, "huge": 1' + "0" * 500 + ', "flag": true, "none": null, "acc": 0.5}}'
    )
    assert told is not None
    assert told._asdict() == {
        "step": 3,
        "steps": 0,
        "epoch": 0,
        "epochs": 0,
        "records": 0.0,
        "speed": None,
        "metrics": {"acc": 0.5},
    }
    evil = "\x1b]0;owned\x07\n::error::" + "x" * 80
    told = read(line(step=3, **{f"{number}{evil}": number for number in range(20)}))
    assert told is not None
    assert len(told.metrics) == 8
    assert max(map(len, told.metrics)) <= 63
    assert str(told).isprintable()


_JSON = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just([1]), st.just({}))


@given(st.dictionaries(st.sampled_from(["step", "steps", "epoch", "epochs", "records", "speed", "loss"]), _JSON))
@example({"step": 1, "steps": 10**15, "speed": 5e-324})
@example({"step": 1, "steps": 2, "records": 1e15, "speed": 1e15})
def test_any_values(content: dict[str, Any]) -> None:
    told = read(line(**content))
    if told is not None:
        assert str(told).isprintable()
        numbers = [told.fraction, told.remaining, told.records_per_second, told.speed, *told.metrics.values()]
        assert all(math.isfinite(each) for each in numbers if each is not None)
