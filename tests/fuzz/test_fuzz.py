"""No input makes a traceback, a hang, or a problem that points nowhere.

1,650 cases, the same ones each time; `make soak` takes 120 times as many, others each time.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from avactl.compiler import compile_tree
from avactl.spec.repository.tree import MemoryTree
from tests.fuzz.properties import check
from tests.fuzz.strategies import WORLD, noise, repositories, texts

SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "soak"
PARTS = [pytest.param(part, marks=[pytest.mark.slow] if part else []) for part in range(12)]
"""Each form is cut into so many tests, so that workers share them; `make test` runs the first of each form."""


def fuzz(count: int, part: int, files: st.SearchStrategy[Mapping[str, bytes]]) -> None:
    """Check `count` repositories; each part gets others."""

    @seed(random.getrandbits(64) if SOAK else part)
    @settings(
        max_examples=count * (10 if SOAK else 1),
        database=None,
        deadline=None,  # the time of a case is asserted by `check`, in CPU seconds
        suppress_health_check=list(HealthCheck),
    )
    @given(files)
    def run(case: Mapping[str, bytes]) -> None:
        check(case)

    test: Callable[[], None] = run
    test()


def one_file(name: str) -> Callable[[bytes], Mapping[str, bytes]]:
    return lambda data: {name: data}


def test_the_world_itself_is_right() -> None:
    assert compile_tree(MemoryTree({"world.yaml": WORLD})).diagnostics == ()


@pytest.mark.parametrize("part", PARTS)
def test_exchanged_values(part: int) -> None:
    fuzz(500, part, repositories(gently=True))


@pytest.mark.parametrize("part", PARTS)
def test_changed_specs(part: int) -> None:
    fuzz(330, part, repositories(gently=False))


@pytest.mark.parametrize("part", PARTS)
def test_changed_text(part: int) -> None:
    fuzz(410, part, texts().map(one_file("spec.yaml")))


@pytest.mark.parametrize("part", PARTS)
def test_noise(part: int) -> None:
    fuzz(330, part, noise.map(one_file("spec.yaml")))


@pytest.mark.parametrize("part", PARTS)
def test_noise_as_settings(part: int) -> None:
    settings_file = st.one_of(
        noise, noise.map(lambda data: b"include: [" + data), noise.map(lambda d: b"exclude: " + d)
    )
    fuzz(80, part, settings_file.map(lambda data: {"avactl.yaml": data, "spec.yaml": WORLD[:200]}))
