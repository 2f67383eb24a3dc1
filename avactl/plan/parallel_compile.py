"""Both sides of a plan, compiled in processes of their own while this one reads the snapshot and looks at what runs."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from avactl import parallel
from avactl.compiler import compile_tree

if TYPE_CHECKING:
    from avactl.plan.compiled_side import Side
    from avactl.source.tree import Tree

_CLUSTER = re.compile(rb'\{"cluster":"([a-z0-9.-]+)",')
"""How a snapshot begins: its keys are sorted."""


class GoneWrongError(Exception):
    """A side that another process could not make, or a cluster that neither has; what is wrong is told by a compile."""


def begin(
    base: Callable[[], Tree], head: Callable[[], Tree], snapshot: bytes
) -> Callable[[], tuple[Side, Side]] | None:
    """Begin to compile for the cluster of a snapshot; the sides, when they are asked for. Asking raises GoneWrongError.

    None where there are no cores for it, or the snapshot begins unlike one. To be called before anything that has
    threads is imported, and after `parallel.allow`.
    """
    found = _CLUSTER.match(snapshot)
    if found is None:
        return None
    cluster = found[1].decode()
    # The head first: the work tree may change meanwhile, and what git has does not.
    after = parallel.begin(partial(_pack, head, cluster))
    before = parallel.begin(partial(_pack, base, cluster))
    if before is None or after is None:
        return None
    return partial(_both, before, after)


def _pack(tree: Callable[[], Tree], cluster: str) -> bytes:
    """One side. Raises GoneWrongError where it has errors."""
    compilation = compile_tree(tree())
    if not compilation.ok:
        raise GoneWrongError
    from avactl.plan.compiled_side import Side  # it needs numpy, which has threads

    return pickle.dumps(Side.of(compilation, cluster), pickle.HIGHEST_PROTOCOL)


def _both(before: Callable[[], bytes | None], after: Callable[[], bytes | None]) -> tuple[Side, Side]:
    packed = before(), after()
    sides: list[Side] = [pickle.loads(data) for data in packed if data is not None]  # noqa: S301 - our own processes
    if len(sides) < len(packed) or not any(side.known for side in sides):
        raise GoneWrongError
    return sides[0], sides[1]
