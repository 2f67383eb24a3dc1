"""TrainingJob specs from the pods of their roles."""

from __future__ import annotations

from typing import Any, NamedTuple

from avactl.diagnostics import Span
from avactl.spec.documents.document import Path
from avactl.workbench.importer.launchers import starts_alone
from avactl.workbench.importer.model import Body, ImportedSpec, ImportReader
from avactl.workbench.importer.sources.context import Context
from avactl.workbench.importer.sources.contracts import UnmetContract
from avactl.workbench.importer.sources.metadata import keep_metadata
from avactl.workbench.importer.sources.pods import Pod, read_pod

_COMPUTE_KEYS = ("cpu", "memory", "gpus", "gpu", "pool", "sharedMemory", "rdma")
_ROLE_LABELS = {"workers": "worker", "servers": "server"}
"""Key of a role in the spec → its component in the objects."""
_LAUNCHER_WORDS = ("torchrun", "torch.distributed", "accelerate", "deepspeed", "horovodrun", "mpirun", "mpiexec")


class ImportedRole(NamedTuple):
    """Pods of one role."""

    key: str
    replicas: int
    pod: Pod
    path: Path
    """Path of the pod template."""


def read_role(reader: ImportReader, key: str, replicas: Any, path: Path, main: tuple[str, ...] = ()) -> ImportedRole:
    """Read the pods of a role at a path of the source."""
    count = replicas if isinstance(replicas, int) and not isinstance(replicas, bool) else 1
    return ImportedRole(key, count, read_pod(reader, path, main), path)


def make_training_job(
    context: Context,
    reader: ImportReader,
    roles: list[ImportedRole],
    *,
    framework: str,
    strategy: str,
    name: str = "",
    **more: Any,
) -> ImportedSpec:
    """Return the TrainingJob of the given roles; the first one's image, command and settings are the job's."""
    given = reader.given
    replaced = given.group == "kubeflow.org"  # the operator gives its own policy to the pods
    lead = next((role for role in roles if role.key in ("launcher", "workers")), roles[0])
    first = lead.pod
    if strategy == "allReduce" and sum(role.replicas for role in roles) == 1:
        strategy = "single"
    body: Body = {"framework": framework, "strategy": strategy, "image": first.image}
    for key in ("command", "args"):
        if getattr(first, key):
            body[key] = getattr(first, key)
    body["env"] = dict(first.env)
    body |= first.user
    spec = context.spec("TrainingJob", reader, body, name)
    own: dict[str, Body] = {}
    for role in roles:
        pod = role.pod
        part: Body = {"replicas": role.replicas} if role.replicas != 1 or role.key != "workers" else {}
        part |= {key: pod.compute[key] for key in _COMPUTE_KEYS if pod.compute.get(key)}
        if role.key != "workers" and part.pop("rdma", None):
            reader.lose(pod.paths["workers", "rdma"], "only workers have RDMA NICs", "")
        if role is not lead:
            _write_role_differences(reader, role, lead, part, body)
        own[role.key] = part
        for to, path in pod.paths.items():
            place = (role.key, *to[1:]) if to[0] == "workers" else to
            if to[0] == "pod" and len(roles) > 1:
                place = (role.key, *to)
            spec.origins.setdefault(("spec", *place), (given, path))
        for label, group in _patch_targets(role, strategy, framework):
            for patch, path in pod.patches({"kind": "Job", "role": label}, label, group):
                spec.origins["patches", len(spec.patches)] = (given, path)
                spec.patches.append(patch)
        policy = reader.given.get(*role.path, "spec", "restartPolicy")
        if policy == "OnFailure" and not replaced:
            at = (*role.path, "spec", "restartPolicy")
            reader.note(at, "a failed pod is replaced by a new one, not restarted in its place", "")
        if "runAsUser" not in pod.user:
            reader.note(
                pod.paths["image",],
                f"processes run as user {body.get('runAsUser', 1000)}, and not as the user of the image",
                "set `runAsUser`; 0, root, needs `podSecurity: baseline`",
            )
        if pod.settings.get("serviceAccountName"):
            context.accounts[str(spec.team)].add(pod.settings["serviceAccountName"])
    keep_metadata(reader, spec, "Job")
    if len(roles) == 1:
        body["pod"] = first.settings
    else:
        for role in roles:
            if role.pod.settings:
                own[role.key]["pod"] = role.pod.settings
    body |= own
    body |= {key: value for key, value in more.items() if value is not None}
    _note_differences(reader, lead, framework, strategy, body)
    spec.spec = {key: value for key, value in body.items() if value not in (None, {}, [])}
    return spec


def _patch_targets(role: ImportedRole, strategy: str, framework: str) -> list[tuple[str, str]]:
    """Return the components of a role's Jobs, and the list of containers that has the program.

    Pods that end with those of another role have it as a sidecar, beside the container that watches them.
    """
    label = _ROLE_LABELS.get(role.key, role.key)
    if role.key == "workers" and strategy == "parameterServer" and framework == "tensorflow":
        return [("chief", "containers"), *([("worker", "initContainers")] if role.replicas > 1 else [])]
    leads = role.key == "launcher" if strategy == "mpi" else role.key == "workers"
    return [(label, "containers" if leads else "initContainers")]


def _write_role_differences(
    reader: ImportReader, role: ImportedRole, lead: ImportedRole, part: Body, body: Body
) -> None:
    """Write what a role has for itself, and record what only the job can have."""
    pod = role.pod
    if pod.image != lead.pod.image:
        raise UnmetContract(f"{_place(reader, pod.paths['image',])}: all roles of a TrainingJob have one image")
    if (pod.command, pod.args) != (lead.pod.command, lead.pod.args):
        if role.key == "workers":
            # Workers of MPI wait for mpirun's daemons, in containers of avactl's own command.
            for key in ("command", "args"):
                if getattr(pod, key):
                    reader.lose(pod.paths[key,], "mpirun starts the processes of workers", "")
            for key in ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "ports"):
                if pod.container_patch.pop(key, None) is not None:
                    place = (*pod.paths["image",][:-1], key)
                    reader.lose(place, "it belongs to a program that workers do not run: mpirun starts theirs", "")
        else:
            part |= {key: getattr(pod, key) for key in ("command", "args") if getattr(pod, key)}
    for name, value in pod.env.items():
        if body["env"].setdefault(name, value) != value:
            raise UnmetContract(
                f"{_place(reader, pod.paths['env', name])}: all roles of a TrainingJob have the same variables"
            )
    for key, value in pod.user.items():
        if body.setdefault(key, value) != value:
            reader.lose(pod.paths[key,], f"all roles of a job have the same `{key}`: {body[key]}", "")


def want_same_program(reader: ImportReader, one: ImportedRole, other: ImportedRole) -> None:
    """Raise UnmetContract if two roles that become one group of workers run different programs."""
    for key, name in (("image", "image"), ("command", "command"), ("args", "arguments"), ("env", "variables")):
        if getattr(one.pod, key) != getattr(other.pod, key):
            at = other.pod.paths.get((key,), other.path)
            raise UnmetContract(
                f"{_place(reader, at)}: its pods do not have the {name} of those at {_place(reader, one.path)}; "
                "the workers of a TrainingJob are equal"
            )


def _place(reader: ImportReader, path: Path) -> Span:
    return reader.given.span(*path)


def _note_differences(reader: ImportReader, lead: ImportedRole, framework: str, strategy: str, body: Body) -> None:
    """Record what the spec does in another way, although it has a key for it."""
    image = lead.pod.paths.get(("image",), lead.path)
    words = " ".join((*lead.pod.command, *lead.pod.args))
    gpus = lead.pod.compute.get("gpus") or 0
    if (
        framework == "pytorch"
        and strategy == "allReduce"
        and gpus > 1
        and not any(each in words for each in _LAUNCHER_WORDS)
    ):
        at = lead.pod.paths["command",] if lead.pod.command else image
        reader.note(at, f"torchrun starts one process per GPU, {gpus} in each pod", "start them by `torchrun` yourself")


def framework_of_pods(reader: ImportReader, pod: Pod, pods: int, framework: str) -> str:
    """Return the framework of pods whose system sets no variables of torchrun: none if it starts in each pod alone."""
    words = [*pod.command, *pod.args]
    if pods == 1 or "PET_NNODES" in pod.env or not starts_alone(" ".join(words)):
        return framework
    at = pod.paths["command",] if starts_alone(" ".join(pod.command)) else pod.paths["args",]
    reader.note(at, f"torchrun starts in each of {pods} pods by itself, as before", f"join them: `--nnodes={pods}`")
    return "custom"


def framework_of(pod: Pod) -> str:
    """Return the framework that an image and command indicate."""
    words = " ".join((pod.image, *pod.command, *pod.args)).lower()
    if any(each in words for each in ("torch", "accelerate", "deepspeed")):
        return "pytorch"
    return "tensorflow" if "tensorflow" in words else "mxnet" if "mxnet" in words else "custom"


def format_seconds(value: Any) -> str | None:
    """Return seconds as a duration of a spec, or None."""
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        return None
    for unit, size in (("h", 3600), ("m", 60)):
        if value % size == 0:
            return f"{value // size}{unit}"
    return f"{value}s"
