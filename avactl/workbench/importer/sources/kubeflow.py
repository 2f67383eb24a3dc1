"""Jobs of Kubeflow's training operator and of Kubeflow Trainer → TrainingJobs."""

from __future__ import annotations

from typing import Any

from avactl.kinds.training.mpi import CONFIG as MPI_CONFIG
from avactl.spec.documents.document import Path
from avactl.workbench.importer.model import Body, GivenValue, ImportedSpec, ImportReader
from avactl.workbench.importer.sources.context import Context
from avactl.workbench.importer.sources.contracts import (
    drop_ssh_options,
    job_names,
    mpi_contract,
    pytorch_contract,
)
from avactl.workbench.importer.sources.metadata import CARRIED, take_common
from avactl.workbench.importer.sources.training import (
    ImportedRole,
    format_seconds,
    make_training_job,
    read_role,
    want_same_program,
)

_DEFAULT_RETRIES = 3
_POLICY_NOTES = {
    "cleanPodPolicy": ("pods end with the job, and are kept with it for their logs", "set `ttl`"),
    "schedulingPolicy": ("all pods of a job form one gang, in the queue of the team's quota", "set `priority`"),
    "managedBy": ("avactl's objects have no other controller", ""),
}


def _replica_paths(reader: ImportReader, key: str) -> dict[str, Path]:
    """Return the paths of the replica specs, by role."""
    found = reader.given.get("spec", key)
    return (
        {str(role): ("spec", key, role) for role, part in found.items() if isinstance(part, dict)}
        if isinstance(found, dict)
        else {}
    )


def _read_role(reader: ImportReader, key: str, path: Path, main: tuple[str, ...]) -> ImportedRole:
    role = read_role(reader, key, reader.take(*path, "replicas"), (*path, "template"), main)
    policy = reader.take(*path, "restartPolicy")
    if policy == "ExitCode":
        reader.lose((*path, "restartPolicy"), "a failure counts whatever its exit code is", "set `retries`")
    return role


def _run(reader: ImportReader, replicas: str) -> Body:
    """Return the keys of a spec for a run policy, and the policies of the roles in `replicas`."""
    at: Path = ("spec", "runPolicy")
    backoff = reader.take(*at, "backoffLimit")
    paths = _replica_paths(reader, replicas).values()
    policies = {reader.given.get(*path, "restartPolicy") for path in paths}
    if policies == {"Never"}:
        retries = 0
        if backoff:
            reader.lose((*at, "backoffLimit"), "pods with `restartPolicy: Never` are not restarted", "set `retries`")
    elif isinstance(backoff, int):
        retries = min(backoff, 1000)
        if retries != backoff:
            reader.lose((*at, "backoffLimit"), f"a job has at most {retries} retries", "")
    else:
        retries = _DEFAULT_RETRIES
    for path in paths:
        if reader.given.get(*path, "restartPolicy") in ("Never", "ExitCode"):
            continue
        if isinstance(backoff, int):
            why = "a failed pod is replaced by a new one, not restarted in its place"
        else:
            why = f"restarts have no limit; the spec says {retries}, and a failed pod is replaced by a new one"
        reader.note((*path, "restartPolicy"), why, "set `retries`")
    made: Body = {
        "timeout": format_seconds(reader.take(*at, "activeDeadlineSeconds")),
        "ttl": format_seconds(reader.take(*at, "ttlSecondsAfterFinished")),
        "retries": retries,
        "suspended": True if reader.take(*at, "suspend") else None,
    }
    for key, (why, remedy) in _POLICY_NOTES.items():
        if reader.given.get(*at, key) not in (None, {}, ""):
            reader.lose((*at, key), why, remedy)
    return made


def _same_machines(reader: ImportReader, one: ImportedRole, other: ImportedRole, what: str) -> None:
    """Record that two roles of the source become one group of equal pods."""
    for key in ("cpu", "memory", "gpus", "gpu", "sharedMemory"):
        first, second = one.pod.compute.get(key), other.pod.compute.get(key)
        if first != second:
            at = other.pod.paths.get(("workers", key))
            why = f"{what}: they are equal, with `{key}: {first}`"
            _tell(reader, at, other, why, "add them as `workerGroups`")
    want_same_program(reader, one, other)
    if one.pod.user != other.pod.user:
        _tell(reader, None, other, f"{what}: they have the same user", "")
    if one.pod.settings != other.pod.settings:
        _tell(reader, None, other, f"{what}: they have the same pod settings", "check `pod`")


def _tell(reader: ImportReader, at: Path | None, role: ImportedRole, why: str, remedy: str) -> None:
    """Record a loss; without a path of its own, the comparison shows which values differ."""
    if at is not None:
        reader.lose(at, why, remedy)
    else:
        reader.note((*role.path, "spec"), why, remedy)


def _merge(reader: ImportReader, roles: dict[str, ImportedRole], what: str) -> ImportedRole | None:
    """Return one group of workers for a leader and its workers. The larger group is the model of all."""
    present = [role for role in roles.values() if role.replicas]
    if not present:
        return None
    most = max(present, key=lambda role: role.replicas) if len(present) > 1 else present[0]
    for each in present:
        if each is not most:
            _same_machines(reader, most, each, what)
    return most._replace(replicas=sum(each.replicas for each in present))


def convert_pytorch_job(context: Context, reader: ImportReader) -> ImportedSpec | str:
    """Return the TrainingJob of a PyTorchJob."""
    take_common(reader, CARRIED)
    paths = _replica_paths(reader, "pytorchReplicaSpecs")
    roles = {name: _read_role(reader, "workers", path, ("pytorch",)) for name, path in paths.items()}
    workers = _merge(reader, roles, "the master is the first of the workers")
    if workers is None:
        return "it has no replicas"
    pytorch_contract(job_names(reader), workers.replicas).meet(reader, workers.pod)
    reader.take("spec", "nprocPerNode")
    per_node = reader.given.get("spec", "nprocPerNode")
    if per_node not in (None, "auto", "gpu", str(workers.pod.compute.get("gpus") or 1)):
        reader.lose(("spec", "nprocPerNode"), "there is one process per GPU, or one per pod without GPUs", "")
    if reader.given.get("spec", "elasticPolicy"):
        reader.lose(
            ("spec", "elasticPolicy"),
            f"the number of workers is fixed: {workers.replicas}",
            "use `strategy: elastic` with `min` and `max`, and the library of the job master",
        )
    spec = make_training_job(
        context, reader, [workers], framework="pytorch", strategy="allReduce", **_run(reader, "pytorchReplicaSpecs")
    )
    reader.lose_rest("a TrainingJob has no key for it", "")
    return spec


def convert_tf_job(context: Context, reader: ImportReader) -> ImportedSpec | str:
    """Return the TrainingJob of a TFJob."""
    take_common(reader, CARRIED)
    paths = _replica_paths(reader, "tfReplicaSpecs")
    keys = {"PS": "servers", "Ps": "servers", "Evaluator": "evaluator"}
    roles = {name: _read_role(reader, keys.get(name, "workers"), path, ("tensorflow",)) for name, path in paths.items()}
    workers = _merge(
        reader,
        {name: role for name, role in roles.items() if role.key == "workers"},
        "the chief is the first of the workers",
    )
    if workers is None:
        return "it has no workers"
    others = [role for role in roles.values() if role.key != "workers"]
    servers = any(role.key == "servers" for role in others)
    several = servers or others or workers.replicas > 1
    policy = reader.take("spec", "successPolicy")
    if policy == "AllWorkers":
        reader.lose(("spec", "successPolicy"), "the job ends with its chief or worker 0", "")
    if reader.given.get("spec", "enableDynamicWorker"):
        reader.lose(("spec", "enableDynamicWorker"), "the number of workers is fixed", "use `strategy: elastic`")
    spec = make_training_job(
        context,
        reader,
        [workers, *others],
        framework="tensorflow",
        strategy="parameterServer" if servers else "allReduce" if several else "single",
        **_run(reader, "tfReplicaSpecs"),
    )
    reader.lose_rest("a TrainingJob has no key for it", "")
    return spec


def convert_mpi_job(context: Context, reader: ImportReader) -> ImportedSpec | str:
    """Return the TrainingJob of an MPIJob."""
    take_common(reader, CARRIED)
    paths = _replica_paths(reader, "mpiReplicaSpecs")
    if "Worker" not in paths or "Launcher" not in paths:
        return "it has no launcher and workers"
    launcher = _read_role(reader, "launcher", paths["Launcher"], ("launcher", "mpi-launcher", "mpi"))
    workers = _read_role(reader, "workers", paths["Worker"], ("worker", "mpi-worker", "mpi"))
    _take_hostfile(reader, launcher)
    more = _run(reader, "mpiReplicaSpecs")
    drop_ssh_options(reader, launcher.pod)
    hostfile = "" if reader.given.get("spec", "mpiImplementation") == "Intel" else f"{MPI_CONFIG}/hostfile"
    mpi_contract(job_names(reader), hostfile).meet(reader, launcher.pod)
    if reader.take("spec", "runLauncherAsWorker") is True:
        if launcher.pod.compute != workers.pod.compute:
            return "its launcher runs ranks with other resources than those of the workers"
        reader.note(
            ("spec", "runLauncherAsWorker"),
            "the launcher of avactl runs no ranks: it is small, and there is one worker more",
            "",
        )
        workers = workers._replace(replicas=workers.replicas + 1)
        launcher.pod.compute = {"cpu": "1", "memory": "2Gi"}
        launcher.pod.container_patch.pop("resources", None)
    slots = reader.take("spec", "slotsPerWorker")
    implementation = {"OpenMPI": None, "MPICH": "mpich", "Intel": "intel"}.get(reader.take("spec", "mpiImplementation"))
    for key in ("sshAuthMountPath", "launcherCreationPolicy"):
        if reader.given.get("spec", key) not in (None, "", False, "AtStartup"):
            reader.lose(("spec", key), "mpirun needs neither ssh nor keys; its pod starts with the workers", "")
        reader.take("spec", key)
    for pod in (launcher.pod, workers.pod):
        _no_ssh(reader, pod.settings, pod.paths)
    spec = make_training_job(
        context,
        reader,
        [launcher, workers],
        framework="custom",
        strategy="mpi",
        mpi={"implementation": implementation} if implementation else None,
        slotsPerWorker=slots if isinstance(slots, int) else None,
        **more,
    )
    reader.lose_rest("a TrainingJob has no key for it", "")
    return spec


def _take_hostfile(reader: ImportReader, launcher: ImportedRole) -> None:
    for words, key in ((launcher.pod.command, "command"), (launcher.pod.args, "args")):
        for index, word in enumerate(words):
            if word in ("--hostfile", "-hostfile", "-f", "--machinefile") and index + 1 < len(words):
                at = (*launcher.pod.paths[key,], index)
                reader.lose(at, "avactl's hostfile is known to mpirun by a variable", "")
                del words[index : index + 2]
                break


def _no_ssh(reader: ImportReader, settings: Body, paths: dict[Path, Path]) -> None:
    kept = []
    for index, volume in enumerate(settings.get("volumes") or ()):
        if str(volume.get("mountPath")).endswith("/.ssh"):
            reader.lose(paths["pod", "volumes", index], "mpirun needs no ssh", "")
        else:
            kept.append(volume)
    if "volumes" in settings:
        settings["volumes"] = kept
        if not kept:
            del settings["volumes"]


_TRAINER_RUNTIMES = {
    "torch": ("pytorch", "allReduce"),
    "deepspeed": ("pytorch", "mpi"),
    "mpi": ("custom", "mpi"),
    "mlx": ("custom", "mpi"),
    "tensorflow": ("tensorflow", "allReduce"),
    "jax": ("custom", "allReduce"),
}


_FRAMEWORK_LABEL = "trainer.kubeflow.org/framework"
_RUNTIME_SETTINGS = ("volumes", "nodeSelector", "tolerations", "affinity", "initContainers", "imagePullSecrets")


def train_job(context: Context, reader: ImportReader) -> ImportedSpec | str:
    """Return the TrainingJob of a TrainJob. What it leaves open is in its runtime, which the import must have."""
    given = reader.given
    name = str(reader.take("spec", "runtimeRef", "name") or "")
    reader.take("spec", "runtimeRef")
    runtime = _find_runtime(context, given, name)
    known = str((runtime.get("metadata", "labels", _FRAMEWORK_LABEL) if runtime else "") or name)
    framework, strategy = next((found for word, found in _TRAINER_RUNTIMES.items() if word in known), ("", ""))
    trainer: Any = given.get("spec", "trainer")
    trainer = trainer if isinstance(trainer, dict) else {}
    defaults = _runtime_container(runtime)
    missing = [key for key in ("numNodes", "resourcesPerNode", "image") if not trainer.get(key)]
    if runtime is None and missing:
        return f"its runtime `{name}` is not part of the import, and the job leaves {', '.join(missing)} to it"
    image = trainer.get("image") or defaults.get("image")
    if not framework or not isinstance(image, str):
        return "its image or framework is not in its runtime"
    take_common(reader, CARRIED)
    own = trainer.get("resourcesPerNode")
    container = {
        "name": "worker",
        "image": image,
        "command": trainer.get("command") or defaults.get("command"),
        "args": trainer.get("args") or defaults.get("args"),
        "env": _merge_env(defaults.get("env"), trainer.get("env")),
        # The resources of a job take the place of those of its runtime, key by key.
        "resources": {**(defaults.get("resources") or {}), **(own if isinstance(own, dict) else {})},
    }
    if runtime is None:
        kind = given.get("spec", "runtimeRef", "kind") or "ClusterTrainingRuntime"
        why = f"its {kind} `{name}` is not part of the import: what it adds to the pods is not read"
        reader.note(("spec", "runtimeRef"), why, "import it, too")
    nodes = trainer.get("numNodes") or (runtime.get("spec", "mlPolicy", "numNodes") if runtime else None) or 1
    if runtime is not None and not trainer.get("numNodes"):
        reader.note(("spec", "runtimeRef"), f"`replicas: {nodes}` comes from the runtime", "")
    for key in _RUNTIME_SETTINGS:
        if runtime is not None and _runtime_pod(runtime).get(key):
            reader.note(("spec", "runtimeRef"), f"`{key}` of the pods of the runtime is not read", "write it as `pod`")
    # The pod stands in the trainer's keys, so it is read from a template made of them.
    made = dict(given.value)
    made["spec"] = {**given.value["spec"], "trainer": {**trainer, "pod": {"spec": {"containers": [container]}}}}
    reader.given = GivenValue(made, given.doc, given.path)
    at: Path = ("spec", "trainer")
    place: Path = (*at, "pod", "spec", "containers", 0)
    reader.aliases = {(*place, "resources"): (*at, "resourcesPerNode"), place: at, (*at, "pod"): at}
    reader.take("spec", "trainer", "numNodes")
    role = read_role(reader, "workers", nodes, ("spec", "trainer", "pod"))
    if strategy != "mpi":
        pytorch_contract(job_names(reader), role.replicas, by_torchrun=True).meet(reader, role.pod)
    for key in ("image", "command", "args", "env", "resourcesPerNode", "pod"):
        reader.take("spec", "trainer", key)
    processes = reader.take("spec", "trainer", "numProcPerNode")
    if processes not in (None, "auto", "gpu", role.pod.compute.get("gpus"), str(role.pod.compute.get("gpus"))):
        reader.lose(("spec", "trainer", "numProcPerNode"), "there is one process per GPU, or one per pod", "")
    for key, why, remedy in (
        (
            "initializer",
            "datasets and models are fetched by other kinds",
            "declare a Dataset, and mount it: `datasets`",
        ),
        ("podTemplateOverrides", "its settings are not read", "write them as `pod`"),
        ("labels", "labels of the pods are not read", "write `pod: {labels: …}`"),
        ("annotations", "annotations of the pods are not read", "write `pod: {annotations: …}`"),
    ):
        if given.get("spec", key):
            reader.lose(("spec", key), why, remedy)
    reader.take("spec", "managedBy")
    suspended = True if reader.take("spec", "suspend") else None
    if strategy == "mpi":
        launcher = ImportedRole("launcher", 1, role.pod, role.path)
        spec = make_training_job(
            context, reader, [launcher, role], framework=framework, strategy="mpi", suspended=suspended
        )
        spec.spec["launcher"] = {"cpu": "1", "memory": "2Gi", "replicas": 1}
    else:
        spec = make_training_job(context, reader, [role], framework=framework, strategy=strategy, suspended=suspended)
    reader.lose_rest("a TrainingJob has no key for it", "")
    return spec


def _find_runtime(context: Context, given: GivenValue, name: str) -> GivenValue | None:
    """Return the runtime of a TrainJob, if it is part of the import."""
    kind = str(given.get("spec", "runtimeRef", "kind") or "ClusterTrainingRuntime")
    return next(
        (
            each
            for each in context.objects
            if each.kind == kind
            and each.name == name
            and (kind != "TrainingRuntime" or each.namespace == given.namespace)
        ),
        None,
    )


def _runtime_pod(runtime: GivenValue) -> Body:
    """Return the pod template's spec of the trainer's replicated job."""
    jobs = runtime.get("spec", "template", "spec", "replicatedJobs")
    jobs = [each for each in jobs if isinstance(each, dict)] if isinstance(jobs, list) else []
    named = [each for each in jobs if each.get("name") in ("node", "trainer-node", "trainer")] or jobs[-1:]
    found: Any = named[0] if named else {}
    for key in ("template", "spec", "template", "spec"):
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _runtime_container(runtime: GivenValue | None) -> Body:
    containers = _runtime_pod(runtime).get("containers") if runtime is not None else None
    found = [each for each in containers or () if isinstance(each, dict)]
    return next((each for each in found if each.get("name") in ("node", "trainer")), found[0] if found else {})


def _merge_env(first: Any, second: Any) -> list[Any]:
    """Return variables of the runtime, and those of the job in their place."""
    ours = second if isinstance(second, list) else []
    named = {each.get("name") for each in ours if isinstance(each, dict)}
    theirs = first if isinstance(first, list) else []
    return [*(each for each in theirs if isinstance(each, dict) and each.get("name") not in named), *ours]
