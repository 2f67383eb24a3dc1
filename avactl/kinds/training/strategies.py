"""Which frameworks can do which strategy, and which roles and settings belong to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from avactl.diagnostics import Diagnostic, Note
from avactl.diagnostics.suggest import one_of
from avactl.kinds.program import Item
from avactl.kinds.training.mpi import MOST_WORKERS

_NAMES = {"pytorch": "PyTorch", "tensorflow": "TensorFlow", "mxnet": "MXNet", "caffe": "Caffe"}

_UNSUPPORTED: dict[tuple[str, str], tuple[str, str]] = {
    ("caffe", "parameterServer"): ("Caffe has no parameter server", "use `single`, or `mpi` with an MPI build of it"),
    ("caffe", "allReduce"): (
        "Caffe spreads over the GPUs of one machine only",
        "use `single`, or `mpi` with an MPI build of it",
    ),
    ("mxnet", "allReduce"): (
        "MXNet reduces over machines by Horovod or its parameter server",
        "use `mpi` with Horovod, or `parameterServer`",
    ),
}
"""Pairs that make no sense: why, and the remedy."""
_ELASTIC = ("pytorch",)
"""Frameworks with a rendezvous of their own for workers that come and go."""


def strategy_problems(item: Item) -> Iterator[Diagnostic]:
    """What does not fit together in a job's strategy, framework and roles."""
    spec = item.spec
    unsupported = _unsupported(item)
    if unsupported is not None:
        yield unsupported
    yield from _misplaced(item)
    match spec.strategy:
        case "single":
            yield from _one(
                item, ("spec", "workers", "replicas"), spec.workers.replicas, "strategy `single` has one pod"
            )
        case "parameterServer":
            yield from _parameter_server(item)
        case "mpi":
            yield from _mpi(item)
        case "elastic":
            yield from _elastic(item)
    if spec.evaluator is not None:
        yield from _one(item, ("spec", "evaluator", "replicas"), spec.evaluator.replicas, "there is one evaluator")


def _unsupported(item: Item) -> Diagnostic | None:
    framework, strategy = item.spec.framework, item.spec.strategy
    if strategy == "elastic" and framework not in _ELASTIC:
        why = f"workers that come and go are there for {one_of(_ELASTIC)} only, not yet for `{framework}`"
        hint = "use `parameterServer` or `mpi`" if framework in ("mxnet", "caffe") else "use `allReduce`"
    elif (framework, strategy) in _UNSUPPORTED:
        why, hint = _UNSUPPORTED[framework, strategy]
    elif framework == "mxnet" and strategy == "parameterServer" and item.spec.consistency == "ssp":
        return Diagnostic(
            "unsupported-strategy",
            "MXNet's KVStore is synchronous (`bsp`) or asynchronous (`asp`), and nothing between",
            item.span("spec", "consistency"),
            hint="write `bsp` or `asp`",
        )
    else:
        return None
    # PyTorch is the default: a job that does not say otherwise may have forgotten its framework.
    said = "framework" in item.spec.model_fields_set
    notes = (Note(item.span("spec", "framework"), f"framework {framework}"),) if said else ()
    return Diagnostic(
        "unsupported-strategy", f"strategy `{strategy}`: {why}", item.span("spec", "strategy"), hint=hint, notes=notes
    )


def _misplaced(item: Item) -> Iterator[Diagnostic]:
    """Roles and settings that would be left out without a word."""
    spec = item.spec
    strategy = spec.strategy
    if strategy != "parameterServer":
        for key in ("servers", "consistency", "staleness"):
            if key in spec.model_fields_set and getattr(spec, key) is not None:
                yield _wrong(item, key, "parameterServer")
    if strategy != "mpi":
        for key in ("launcher", "slotsPerWorker"):
            name = "slots_per_worker" if key == "slotsPerWorker" else key
            if getattr(spec, name) is not None:
                yield _wrong(item, key, "mpi")
    if strategy != "elastic":
        given = [key for key in ("min", "max") if getattr(spec.workers, key) is not None]
        if given:
            yield Diagnostic(
                "wrong-strategy",
                f"{' and '.join(f'`{key}`' for key in given)} {'belong' if len(given) > 1 else 'belongs'} to strategy "
                f"`elastic`, and the job is `{strategy}`",
                item.span("spec", "workers", given[0], key=True),
                hint="write `replicas: …`, or `strategy: elastic`",
                notes=_strategy_note(item),
            )
    if spec.evaluator is not None and (
        spec.framework != "tensorflow" or strategy not in ("parameterServer", "allReduce")
    ):
        framework = _NAMES.get(spec.framework, spec.framework)
        yield Diagnostic(
            "wrong-strategy",
            "an evaluator is there with TensorFlow and strategy `parameterServer` or `allReduce` only; "
            f"the job is {framework}, `{strategy}`",
            item.span("spec", "evaluator", key=True),
            hint="remove it, or run it as a job of its own on the same checkpoint",
        )


def _strategy_note(item: Item) -> tuple[Note, ...]:
    return (Note(item.span("spec", "strategy"), "the strategy"),) if "strategy" in item.spec.model_fields_set else ()


def _wrong(item: Item, key: str, strategy: str) -> Diagnostic:
    return Diagnostic(
        "wrong-strategy",
        f"`{key}` belongs to strategy `{strategy}`, and the job is `{item.spec.strategy}`",
        item.span("spec", key, key=True),
        hint=f"remove it, or write `strategy: {strategy}`",
        notes=_strategy_note(item),
    )


def _one(item: Item, path: tuple[str, ...], replicas: int, why: str) -> Iterator[Diagnostic]:
    if replicas != 1:
        hint = "write 1"
        if path[1] == "workers":
            hint += ", or choose how they work together: `strategy: allReduce`, `parameterServer` or `mpi`"
        yield Diagnostic("invalid-value", f"{'.'.join(path)}: {why}, got {replicas}", item.span(*path), hint=hint)


def _parameter_server(item: Item) -> Iterator[Diagnostic]:
    spec = item.spec
    if spec.servers is None:
        yield Diagnostic(
            "missing-key",
            "strategy `parameterServer` needs `servers`",
            item.span("spec", "strategy"),
            hint="add `servers: {replicas: 2, cpu: 8, memory: 32Gi}`, the pods that hold the parameters",
        )
    if spec.framework == "tensorflow" and spec.workers.replicas < 2:
        where = ("spec", "workers", "replicas") if "workers" in spec.model_fields_set else ("spec", "strategy")
        yield Diagnostic(
            "invalid-value",
            "spec.workers.replicas: the first worker is TensorFlow's chief, and it needs at least one beside it",
            item.span(*where),
            hint="write 2 or more",
        )
    if spec.consistency == "ssp":
        # MXNet has no `ssp` at all, which is said already.
        if spec.staleness is None and spec.framework != "mxnet":
            yield Diagnostic(
                "missing-key",
                "`consistency: ssp` needs `staleness`, the steps that the fastest worker may be ahead",
                item.span("spec", "consistency"),
                hint="add `staleness: 4`; 0 would be `bsp`",
            )
    elif spec.staleness is not None:
        yield Diagnostic(
            "wrong-strategy",
            f"`staleness` belongs to `consistency: ssp`, and the job has `{spec.consistency}`",
            item.span("spec", "staleness", key=True),
            hint="write `consistency: ssp`, or remove it",
        )


def _mpi(item: Item) -> Iterator[Diagnostic]:
    spec = item.spec
    if spec.launcher is not None:
        yield from _one(item, ("spec", "launcher", "replicas"), spec.launcher.replicas, "there is one launcher")
    if spec.workers.replicas > MOST_WORKERS:
        yield Diagnostic(
            "invalid-value",
            f"spec.workers.replicas: mpirun's commands for {spec.workers.replicas} workers do not fit into a ConfigMap",
            item.span("spec", "workers", "replicas"),
            hint=f"at most {MOST_WORKERS} pods: give each more slots, or use `allReduce`",
        )


def _elastic(item: Item) -> Iterator[Diagnostic]:
    workers: Any = item.spec.workers
    given = "replicas" in workers.model_fields_set
    if workers.min is None and workers.max is None:
        yield Diagnostic(
            "missing-key",
            "strategy `elastic` needs `min` and `max` of workers",
            item.span("spec", "strategy"),
            hint="add `workers: {min: 2, max: 8}`",
        )
        return
    least = workers.min or (workers.replicas if given else 1)
    most = workers.max or (workers.replicas if given else least)
    if least > most:
        key = "min" if workers.min is not None else "max"
        yield Diagnostic(
            "invalid-value",
            f"spec.workers: at least {least} and at most {most} workers",
            item.span("spec", "workers", key),
            hint="`min` is the fewest that may run, `max` the most",
        )
    elif given and not least <= workers.replicas <= most:
        yield Diagnostic(
            "invalid-value",
            f"spec.workers.replicas: {workers.replicas} is not between min {least} and max {most}",
            item.span("spec", "workers", "replicas"),
            hint="remove `replicas`: an elastic job starts with what is free",
        )
