"""Strategies that each framework supports, and the roles and settings of each strategy."""

from __future__ import annotations

from collections.abc import Iterator

from avactl.diagnostics import Diagnostic, Note
from avactl.diagnostics.suggest import one_of
from avactl.kinds.training.addressing import mpi_implementation
from avactl.kinds.training.mpi import MAX_WORKERS
from avactl.kinds.training.roles import has_master, workers_of
from avactl.kinds.training.spec import TrainingJobSpec
from avactl.program.program import Item

_FRAMEWORK_NAMES = {"pytorch": "PyTorch", "tensorflow": "TensorFlow", "mxnet": "MXNet", "caffe": "Caffe"}

_UNSUPPORTED: dict[tuple[str, str], tuple[str, str]] = {
    ("caffe", "parameterServer"): ("Caffe has no parameter server", "use `single`, or `mpi` with an MPI build of it"),
    ("caffe", "allReduce"): (
        "Caffe only uses the GPUs of one machine",
        "use `single`, or `mpi` with an MPI build of it",
    ),
    ("mxnet", "allReduce"): (
        "MXNet reduces across machines with Horovod or its parameter server",
        "use `mpi` with Horovod, or `parameterServer`",
    ),
}
"""Unsupported pairs: the reason and the remedy."""
_WITHOUT_CLOCK = {"mxnet": "MXNet's KVStore", "tensorflow": "TensorFlow's parameter-server training"}
"""Frameworks whose parameter servers do not use the clock of the job master."""
_ELASTIC_FRAMEWORKS = ("pytorch", "tensorflow", "custom")
"""Frameworks whose workers may come and go, with the library of the job master."""


GROUPED = ("allReduce", "parameterServer", "mpi")
"""Strategies with several groups of workers."""


def strategy_problems(item: Item[TrainingJobSpec]) -> Iterator[Diagnostic]:
    """Yield conflicts between a job's strategy, framework and roles."""
    spec = item.spec
    unsupported = _unsupported_problem(item)
    if unsupported is not None:
        yield unsupported
    yield from _check_misplaced_keys(item)
    match spec.strategy:
        case "single":
            yield from _check_single_replica(
                item, ("spec", "workers", "replicas"), spec.workers.replicas, "strategy `single` uses one pod"
            )
        case "parameterServer":
            yield from _parameter_server(item)
        case "mpi":
            yield from _check_mpi(item)
        case "elastic":
            yield from _check_elastic(item)
    yield from _check_groups(item)
    if spec.evaluator is not None:
        yield from _check_single_replica(
            item, ("spec", "evaluator", "replicas"), spec.evaluator.replicas, "a job has one evaluator"
        )


def _unsupported_problem(item: Item[TrainingJobSpec]) -> Diagnostic | None:
    framework, strategy = item.spec.framework, item.spec.strategy
    if strategy == "elastic" and framework not in _ELASTIC_FRAMEWORKS:
        why = f"elastic workers are supported only for {one_of(_ELASTIC_FRAMEWORKS)}, not for `{framework}`"
        hint = "use `parameterServer` or `mpi`"
    elif (framework, strategy) in _UNSUPPORTED:
        why, hint = _UNSUPPORTED[framework, strategy]
    elif framework in _WITHOUT_CLOCK and strategy == "parameterServer" and item.spec.consistency == "ssp":
        return Diagnostic(
            "unsupported-strategy",
            f"{_WITHOUT_CLOCK[framework]} is synchronous (`bsp`) or asynchronous (`asp`); it does not support `ssp`",
            item.span("spec", "consistency"),
            hint="write `bsp` or `asp`; code that calls the clock of the job master has `framework: custom`",
        )
    else:
        return None
    # PyTorch is the default: a job that does not set it may have forgotten its framework.
    said = "framework" in item.spec.model_fields_set
    notes = (Note(item.span("spec", "framework"), f"framework {framework}"),) if said else ()
    return Diagnostic(
        "unsupported-strategy", f"strategy `{strategy}`: {why}", item.span("spec", "strategy"), hint=hint, notes=notes
    )


def _check_misplaced_keys(item: Item[TrainingJobSpec]) -> Iterator[Diagnostic]:
    """Yield roles and settings that would be ignored silently."""
    spec = item.spec
    strategy = spec.strategy
    if strategy != "parameterServer":
        for key in ("servers", "consistency", "staleness"):
            if key in spec.model_fields_set and getattr(spec, key) is not None:
                yield _misplaced_problem(item, key, "parameterServer")
    if strategy != "parameterServer" and spec.backup_workers:
        yield _misplaced_problem(item, "backupWorkers", "parameterServer")
    if strategy != "parameterServer" and spec.server_groups:
        yield _misplaced_problem(item, "serverGroups", "parameterServer")
    if strategy == "elastic" and spec.host_network is not None:
        yield Diagnostic(
            "wrong-strategy",
            "strategy `elastic` does not run in the host's network: its pods find each other by names of their own",
            item.span("spec", "hostNetwork", key=True),
            hint="remove it, or use `allReduce`",
            notes=_strategy_note(item),
        )
    if strategy not in GROUPED and spec.worker_groups:
        yield Diagnostic(
            "wrong-strategy",
            f"`workerGroups` require strategy {one_of(GROUPED)}, but the job uses `{strategy}`",
            item.span("spec", "workerGroups", key=True),
            hint="remove them, or use one of these strategies",
            notes=_strategy_note(item),
        )
    if not has_master(spec) and spec.master is not None:
        yield _misplaced_problem(item, "master", "elastic")
    if strategy != "elastic" and spec.stragglers is not None:
        yield _misplaced_problem(item, "stragglers", "elastic")
    if strategy != "allReduce" and spec.health_check is not None:
        yield _misplaced_problem(item, "healthCheck", "allReduce")
    if strategy != "mpi":
        for key in ("launcher", "mpi", "slotsPerWorker"):
            name = "slots_per_worker" if key == "slotsPerWorker" else key
            if getattr(spec, name) is not None:
                yield _misplaced_problem(item, key, "mpi")
    if strategy != "elastic":
        given = [key for key in ("min", "max") if getattr(spec.workers, key) is not None]
        if given:
            yield Diagnostic(
                "wrong-strategy",
                f"{' and '.join(f'`{key}`' for key in given)} {'require' if len(given) > 1 else 'requires'} strategy "
                f"`elastic`, but the job uses `{strategy}`",
                item.span("spec", "workers", given[0], key=True),
                hint="write `replicas: …`, or `strategy: elastic`",
                notes=_strategy_note(item),
            )
    if spec.evaluator is not None and (
        spec.framework != "tensorflow" or strategy not in ("parameterServer", "allReduce")
    ):
        framework = _FRAMEWORK_NAMES.get(spec.framework, spec.framework)
        yield Diagnostic(
            "wrong-strategy",
            "an evaluator requires TensorFlow and strategy `parameterServer` or `allReduce`; "
            f"the job uses {framework} and `{strategy}`",
            item.span("spec", "evaluator", key=True),
            hint="remove it, or run it as a separate job on the same checkpoints",
        )


def _strategy_note(item: Item[TrainingJobSpec]) -> tuple[Note, ...]:
    return (Note(item.span("spec", "strategy"), "the strategy"),) if "strategy" in item.spec.model_fields_set else ()


def _misplaced_problem(item: Item[TrainingJobSpec], key: str, strategy: str) -> Diagnostic:
    verb, them = ("require", "them") if key.endswith(("Groups", "Workers")) else ("requires", "it")
    return Diagnostic(
        "wrong-strategy",
        f"`{key}` {verb} strategy `{strategy}`, but the job uses `{item.spec.strategy}`",
        item.span("spec", key, key=True),
        hint=f"remove {them}, or write `strategy: {strategy}`",
        notes=_strategy_note(item),
    )


def _check_single_replica(
    item: Item[TrainingJobSpec], path: tuple[str, ...], replicas: int, why: str
) -> Iterator[Diagnostic]:
    if replicas != 1:
        hint = "write 1"
        if path[1] == "workers":
            hint += ", or use a distributed strategy: `strategy: allReduce`, `parameterServer` or `mpi`"
        yield Diagnostic("invalid-value", f"{'.'.join(path)}: {why}, got {replicas}", item.span(*path), hint=hint)


def _parameter_server(item: Item[TrainingJobSpec]) -> Iterator[Diagnostic]:
    spec = item.spec
    if spec.servers is None:
        yield Diagnostic(
            "missing-key",
            "strategy `parameterServer` needs `servers`",
            item.span("spec", "strategy"),
            hint="add `servers: {replicas: 2, cpu: 8, memory: 32Gi}` for the pods that hold the parameters",
        )
    elif spec.servers.parameters is not None and item.doc.get("spec", "servers", "replicas") is not None:
        yield Diagnostic(
            "conflicting-keys",
            "`replicas` and `parameters` exclude each other: `parameters` and `memory` give the number of servers",
            item.span("spec", "servers", "parameters", key=True),
            hint="remove one of them",
            notes=(Note(item.span("spec", "servers", "replicas", key=True), "`replicas`"),),
        )
    if spec.framework == "tensorflow" and workers_of(spec) < 2:
        where = ("spec", "workers", "replicas") if "workers" in spec.model_fields_set else ("spec", "strategy")
        yield Diagnostic(
            "invalid-value",
            "spec.workers.replicas: the first worker is TensorFlow's chief, which needs at least one other worker",
            item.span(*where),
            hint="write 2 or more",
        )
    if spec.consistency == "ssp":
        if spec.staleness is None and spec.framework not in _WITHOUT_CLOCK:
            yield Diagnostic(
                "missing-key",
                "`consistency: ssp` needs `staleness`, the maximum lead of the fastest worker in steps",
                item.span("spec", "consistency"),
                hint="add `staleness: 4`; 0 is the same as `bsp`",
            )
    elif spec.staleness is not None:
        yield Diagnostic(
            "wrong-strategy",
            f"`staleness` requires `consistency: ssp`, but the job uses `{spec.consistency}`",
            item.span("spec", "staleness", key=True),
            hint="write `consistency: ssp`, or remove `staleness`",
        )
    if spec.backup_workers:
        yield from _backup_workers(item)


def _backup_workers(item: Item[TrainingJobSpec]) -> Iterator[Diagnostic]:
    spec = item.spec
    count = workers_of(spec)
    if spec.framework in _WITHOUT_CLOCK:
        yield Diagnostic(
            "unsupported-strategy",
            f"{_WITHOUT_CLOCK[spec.framework]} waits for all workers or for none; it does not support `backupWorkers`",
            item.span("spec", "backupWorkers", key=True),
            hint="remove them; code that calls the clock of the job master has `framework: custom`",
        )
    elif spec.consistency != "bsp":
        yield Diagnostic(
            "wrong-strategy",
            "`backupWorkers` require `consistency: bsp`, but the job uses "
            f"`{spec.consistency}`, in which every gradient counts",
            item.span("spec", "backupWorkers", key=True),
            hint="write `consistency: bsp`, or remove `backupWorkers`",
            notes=(Note(item.span("spec", "consistency"), "the consistency"),),
        )
    elif spec.backup_workers >= count:
        yield Diagnostic(
            "invalid-value",
            f"spec.backupWorkers: {spec.backup_workers} of {count} worker{'s' * (count != 1)}: no gradient would count",
            item.span("spec", "backupWorkers"),
            hint=f"write at most {count - 1}" if count > 1 else "remove it, or add workers",
        )


def _check_groups(item: Item[TrainingJobSpec]) -> Iterator[Diagnostic]:
    """Yield groups with the name of another one, and groups whose command the index cannot be passed to."""
    spec = item.spec
    for field, key, role in (("worker_groups", "workerGroups", None), ("server_groups", "serverGroups", spec.servers)):
        groups = getattr(spec, field)
        command = (role.command if role is not None else None) or spec.command
        allowed = ("allReduce", "parameterServer") if role is None else ("parameterServer",)
        if groups and not command and spec.strategy in allowed:
            yield Diagnostic(
                "missing-key",
                f"`{key}` need `command`: a shell passes each pod's index to it, and the image's command is unknown",
                item.span("spec", key, key=True),
                hint="add `command: [python, train.py]`",
            )
        for index, group in enumerate(groups):
            before = next((at for at, other in enumerate(groups[:index]) if other.name == group.name), None)
            if before is not None:
                yield Diagnostic(
                    "duplicate-entry",
                    f"two {key} are named `{group.name}`",
                    item.span("spec", key, index, "name"),
                    hint="rename one of them",
                    notes=(Note(item.span("spec", key, before, "name"), "the other one"),),
                )


def _check_mpi(item: Item[TrainingJobSpec]) -> Iterator[Diagnostic]:
    spec = item.spec
    if spec.launcher is not None:
        yield from _check_single_replica(
            item, ("spec", "launcher", "replicas"), spec.launcher.replicas, "a job has one launcher"
        )
    several = {group.visible_gpus for group in (spec.workers, *spec.worker_groups)}
    if mpi_implementation(spec) == "intel" and spec.slots_per_worker is None and len(several) > 1:
        yield Diagnostic(
            "invalid-value",
            "spec.workerGroups: Intel MPI starts the same number of ranks on all hosts, but the groups have "
            f"{one_of(sorted(map(str, several)))} GPUs",
            item.span("spec", "workerGroups", key=True),
            hint="add `slotsPerWorker: …`, give all groups as many GPUs, or use MPICH or Open MPI",
        )
    if workers_of(spec) > MAX_WORKERS:
        yield Diagnostic(
            "invalid-value",
            f"spec.workers.replicas: mpirun's commands for {workers_of(spec)} workers do not fit into a ConfigMap",
            item.span("spec", "workers", "replicas"),
            hint=f"use at most {MAX_WORKERS} pods with more slots each, or use `allReduce`",
        )


def _check_elastic(item: Item[TrainingJobSpec]) -> Iterator[Diagnostic]:
    workers = item.spec.workers
    given = "replicas" in workers.model_fields_set
    if workers.min is None and workers.max is None:
        yield Diagnostic(
            "missing-key",
            "strategy `elastic` needs `min` and `max` in `workers`",
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
            f"spec.workers: `min` {least} is above `max` {most}",
            item.span("spec", "workers", key),
            hint="`min` and `max` are the bounds of the number of workers",
        )
    elif given and not least <= workers.replicas <= most:
        yield Diagnostic(
            "invalid-value",
            f"spec.workers.replicas: {workers.replicas} is not between min {least} and max {most}",
            item.span("spec", "workers", "replicas"),
            hint="remove `replicas`: an elastic job starts with the available capacity",
        )
