"""One step of synchronous training."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable

from avactl_worker.ring import Finished, Ring, RoundEnded

if TYPE_CHECKING:
    from avactl_worker.group import Group


class _Void(BaseException):
    """Ends the block of a step that is in the state already, or must be computed again."""


class Step:
    """A step. Its block ends early if the round ends, and is then run again if need be:

    with step:
        gradient = …
        weights -= rate * step.mean(gradient)
    """

    def __init__(self, group: Group, batch: Any, records: int, repeatable: bool) -> None:
        self._group, self._repeatable = group, repeatable
        self.number = group.step + 1
        """Steps that are in the state afterwards."""
        self.batch = batch
        """Records, in `Group.batches`."""
        self.records = records
        """Weight of this worker in `mean`; 0 if others have the last records of an epoch."""
        self.entered = self.applied = False
        self.metrics: dict[str, float] = {}
        self.tried: set[int] = set()
        """Rounds to whose sums this worker may have contributed."""
        self._sums = 0

    def __enter__(self) -> Step:
        self.entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            if not self._sums:
                raise RuntimeError("each step must call `step.mean` or `step.sum`: there all workers meet")
            self._group.applied()
            self.applied = True
            return False
        if isinstance(error, RoundEnded):
            self._group.leave(error)
        return isinstance(error, (RoundEnded, Finished, _Void))

    def report(self, **metrics: float) -> None:
        """Send metrics with the batch's records; the master averages them over an epoch."""
        self.metrics.update({name: float(value) for name, value in metrics.items()})

    def mean(self, values: Any) -> Any:
        """Return the mean over all workers, weighted by their records: arrays, numbers, or lists or dicts of them.

        Call it once a step, with everything: then a step whose round ends need not be computed again.
        """
        return self._reduce(values, self.records, mean=True)

    def sum(self, values: Any) -> Any:
        """Return the sum over all workers: arrays, numbers, or lists or dicts of them."""
        return self._reduce(values, 1, mean=False)

    def _reduce(self, values: Any, weight: float, mean: bool) -> Any:
        import numpy as np

        flat, restore = _flattened(values)
        if not self.records:
            flat = np.zeros_like(flat)  # others have this step's records
        elif mean:
            flat = flat * weight

        def run(links: Ring, total: float) -> Any:
            found = flat.copy()
            links.sum(found)
            return found / total if mean else found

        return restore(self.together(len(flat), weight, run))

    def together(self, count: int, weight: float, run: Callable[[Ring, float], Any]) -> Any:
        """Run a collective of `count` values, in the next round again if this one ends.

        Ends the block of the step if the values are of no use there.
        """
        while True:
            self.tried.add(self._group.revision)
            try:
                found = self._group.together(count, weight, run)
            except RoundEnded as why:
                if not self._repeatable or self._sums:
                    raise
                if not self._group.again(self, why):
                    raise _Void from None
                continue
            self._sums += 1
            return found


def _flattened(values: Any) -> Any:
    """Return one array of all values, and a function that gives such an array their form."""
    import numpy as np

    leaves: list[Any] = []

    def collect(part: Any) -> None:
        if isinstance(part, dict):
            for name in sorted(part):
                collect(part[name])
        elif isinstance(part, (list, tuple)):
            for each in part:
                collect(each)
        else:
            leaves.append(np.asarray(part))

    collect(values)
    wide = any(each.dtype not in (np.float16, np.float32) for each in leaves)
    kind = np.dtype(np.float64 if wide else np.float32)
    flat = np.concatenate([np.zeros(0), *(each.reshape(-1) for each in leaves)]).astype(kind)

    def restore(found: Any) -> Any:
        start = 0

        def form(part: Any) -> Any:
            nonlocal start
            if isinstance(part, dict):
                return {name: form(part[name]) for name in sorted(part)}
            if isinstance(part, (list, tuple)):
                return [form(each) for each in part]
            like = np.asarray(part)
            start += like.size
            own = like.dtype if like.dtype.kind == "f" else kind  # sums and means of integers are floats
            result = found[start - like.size : start].reshape(like.shape).astype(own, copy=False)
            return float(result) if isinstance(part, (int, float)) else result

        return form(values)

    return flat, restore
