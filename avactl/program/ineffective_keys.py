"""The warning about a key of a spec that changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from avactl.diagnostics import Diagnostic
from avactl.program.program import Item
from avactl.program.workload import GpuCompute


def without_effect(item: Item, path: tuple[str | int, ...], why: str) -> Diagnostic:
    """Return a warning at the key `path[-1]`; `why` completes "has no effect here: …"."""
    return Diagnostic(
        "without-effect",
        f"`{path[-1]}` has no effect here: {why}",
        item.span(*path, key=True),
        severity="warning",
        hint="remove the key",
    )


def unused_model(item: Item, compute: GpuCompute, path: tuple[str | int, ...]) -> Iterator[Diagnostic]:
    """Yield a warning about a GPU model of pods without GPUs, unless the spec inherits it."""
    if compute.gpu is None or compute.gpus:
        return
    span = item.span(*path, "gpu", key=True)
    if span.file == item.doc.file:
        message = "`gpu` has no effect here: the pods have no GPUs"
        hint = "add their number, `gpus: 1`, or remove the key"
        yield Diagnostic("without-effect", message, span, severity="warning", hint=hint)
