"""Jobs of Volcano → TrainingJobs."""

from __future__ import annotations

from avactl.workbench.importer.model import ImportedSpec, ImportReader
from avactl.workbench.importer.sources.context import Context
from avactl.workbench.importer.sources.contracts import drop_ssh_options, job_names, volcano_contract
from avactl.workbench.importer.sources.metadata import CARRIED, take_common
from avactl.workbench.importer.sources.pods import SCHEDULER_NOTE
from avactl.workbench.importer.sources.training import (
    ImportedRole,
    format_seconds,
    framework_of,
    framework_of_pods,
    make_training_job,
    read_role,
    want_same_program,
)

_TASK_ROLES = {
    "ps": "servers",
    "server": "servers",
    "evaluator": "evaluator",
    "mpimaster": "launcher",
    "launcher": "launcher",
    "master": "workers",
    "chief": "workers",
    "worker": "workers",
    "mpiworker": "workers",
}
_PLUGIN_NOTES = {
    "svc": "the job has a headless Service of its own",
    "ssh": "mpirun needs no ssh",
    "env": "AVACTL_INDEX is the index of a pod",
    "pytorch": "torchrun's variables are set",
    "tensorflow": "TF_CONFIG is set",
    "mpi": "mpirun finds its hosts",
}


def convert_volcano_job(context: Context, reader: ImportReader) -> ImportedSpec | str:
    """Return the TrainingJob of a Volcano Job, or the reason why it stays a manifest."""
    given = reader.given
    tasks = given.get("spec", "tasks")
    if not isinstance(tasks, list) or not tasks or not all(isinstance(each, dict) for each in tasks):
        return "it has no tasks"
    names = [str(each.get("name") or "") for each in tasks]
    if len(tasks) > 1 and any(name not in _TASK_ROLES for name in names):
        return f"the roles of its tasks are not known: {', '.join(names)[:80]}"
    take_common(reader, CARRIED)
    plugins = given.get("spec", "plugins") or {}
    roles: list[ImportedRole] = []
    for index, name in enumerate(names):
        path = ("spec", "tasks", index)
        key = "workers" if len(tasks) == 1 else _TASK_ROLES[name]
        roles.append(read_role(reader, key, reader.take(*path, "replicas"), (*path, "template")))
        for each in ("name", "minAvailable", "maxRetry"):
            reader.take(*path, each)
        _read_policies(reader, (*path, "policies"))
    workers = [role for role in roles if role.key == "workers"]
    if not workers:
        return "it has no workers"
    model = max(workers, key=lambda role: role.replicas)
    for role in workers:
        if role is not model:
            want_same_program(reader, model, role)
            if (role.pod.compute, role.pod.settings) != (model.pod.compute, model.pod.settings):
                reader.note(role.path, "the master is the first of the workers, which are equal", "")
    merged = model._replace(replicas=sum(role.replicas for role in workers))
    others = [role for role in roles if role.key != "workers"]
    keys = {role.key for role in others}
    framework = (
        "tensorflow" if "tensorflow" in plugins else "pytorch" if "pytorch" in plugins else framework_of(model.pod)
    )
    framework = framework_of_pods(reader, merged.pod, merged.replicas, framework)
    strategy = "mpi" if "launcher" in keys else "parameterServer" if "servers" in keys else "allReduce"
    if strategy == "mpi":
        framework = "custom"
    if keys - ({"launcher"} if strategy == "mpi" else {"servers", "evaluator"}):
        return "its tasks are of several strategies"
    counts = {name: role.replicas for name, role in zip(names, roles, strict=True)}
    contract = volcano_contract(job_names(reader), counts, framework, strategy)
    for role in (merged, *others):
        if role.key == "launcher":
            drop_ssh_options(reader, role.pod)
        if strategy != "mpi" or role.key == "launcher":
            contract.meet(reader, role.pod)
    _read_scheduling(reader)
    for name in plugins:
        reader.take("spec", "plugins", name)
        if name not in _PLUGIN_NOTES:
            reader.lose(("spec", "plugins", name), "avactl has no such plugin", "")
        elif plugins[name]:
            reader.lose(("spec", "plugins", name), f"{_PLUGIN_NOTES[name]}; options of the plugin are not read", "")
    retries = reader.take("spec", "maxRetry")
    spec = make_training_job(
        context,
        reader,
        [
            *(role for role in others if role.key == "launcher"),
            merged,
            *(role for role in others if role.key != "launcher"),
        ],
        framework=framework,
        strategy=strategy,
        retries=retries if isinstance(retries, int) else 3,
        ttl=format_seconds(reader.take("spec", "ttlSecondsAfterFinished")),
    )
    reader.lose_rest("a TrainingJob has no key for it", "")
    return spec


def _read_policies(reader: ImportReader, path: tuple[str | int, ...]) -> None:
    if reader.given.get(*path):
        reader.lose(path, "failed pods are restarted one by one, and the job ends with its leader", "set `retries`")
    reader.take(*path)


def _read_scheduling(reader: ImportReader) -> None:
    given = reader.given
    if given.get("spec", "schedulerName") not in (None, "default-scheduler"):
        reader.lose(("spec", "schedulerName"), *SCHEDULER_NOTE)
    total = sum(each.get("replicas") or 1 for each in given.get("spec", "tasks"))
    least = given.get("spec", "minAvailable")
    if least is None or least == total:
        reader.take("spec", "minAvailable")
    else:
        reader.lose(
            ("spec", "minAvailable"),
            f"all {total} pods of a job start together",
            "use `strategy: elastic` with `min` and `max`",
        )
    if given.get("spec", "queue") not in (None, "default"):
        reader.lose(("spec", "queue"), "the quota of the team takes the place of queues", "write a Quota for the team")
    reader.take("spec", "queue")
    if given.get("spec", "priorityClassName"):
        reader.lose(
            ("spec", "priorityClassName"),
            "avactl has priority classes of its own",
            "set `priority: low`, `normal` or `high`",
        )
    _read_policies(reader, ("spec", "policies"))
    for index, volume in enumerate(given.get("spec", "volumes") or ()):
        reader.lose(("spec", "volumes", index), "volumes of all tasks are not read", "write it as `pod: {volumes: …}`")
        del volume
