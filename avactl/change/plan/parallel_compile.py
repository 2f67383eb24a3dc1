"""Compile both sides of a plan in child processes while this one loads the snapshot."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from avactl.base import parallel
from avactl.compiler import compile_tree
from avactl.compiler.config import base_in_environment, owners_of

if TYPE_CHECKING:
    from avactl.change.plan.compiled_side import Side
    from avactl.spec.repository.tree import Tree

_CLUSTER = re.compile(rb'\{"cluster":"([a-z0-9.-]+)",')
"""Start of a snapshot file, whose keys are sorted."""


class GoneWrongError(Exception):
    """A child process could not compile its side, or neither side has the cluster; an ordinary compile reports why."""


def begin(
    base: Callable[[], Tree], head: Callable[[], Tree], tip: Callable[[], Tree], snapshot: bytes
) -> Callable[[], tuple[Side, Side]] | None:
    """Start compiling for the cluster of a snapshot; return a function that waits for the sides (GoneWrongError).

    None if there are too few cores, or if the file does not start like a snapshot. Call it before importing anything
    that starts threads, and after `parallel.allow`.
    """
    found = _CLUSTER.match(snapshot)
    if found is None:
        return None
    cluster = found[1].decode()
    # The head first: the work tree may change meanwhile, a git tree does not.
    after = parallel.begin_in_process(partial(_pack, head, cluster, tip))
    before = parallel.begin_in_process(partial(_pack, base, cluster))
    if before is None or after is None:
        return None
    return partial(_both, before, after)


def _pack(tree: Callable[[], Tree], cluster: str, tip: Callable[[], Tree] | None = None) -> bytes:
    """Compile and pickle one side; the `owners` of a `tip` apply, too. Raises GoneWrongError if it has errors."""
    own = tree()
    compilation = compile_tree(own if tip else base_in_environment(own), owners=owners_of(tip()) if tip else ())
    if not compilation.ok:
        raise GoneWrongError
    from avactl.change.plan.compiled_side import Side  # imports numpy, which starts threads

    return pickle.dumps(Side.of(compilation, cluster), pickle.HIGHEST_PROTOCOL)


def _both(before: Callable[[], bytes | None], after: Callable[[], bytes | None]) -> tuple[Side, Side]:
    packed = before(), after()
    sides: list[Side] = [pickle.loads(data) for data in packed if data is not None]  # noqa: S301 - our own processes
    if len(sides) < len(packed) or not any(side.known for side in sides):
        raise GoneWrongError
    return sides[0], sides[1]
