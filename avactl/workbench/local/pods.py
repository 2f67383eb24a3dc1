"""Compiled Jobs → descriptions of processes: the commands and environments that their pods would have."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from avactl.base.terminal import count_text
from avactl.base.variable_references import expand_references
from avactl.contracts.pod_annotations import DEFAULT_CONTAINER, JOB_INDEX
from avactl.program.local_run import LocalRole, LocalRun
from avactl.program.manifest import Manifest
from avactl.program.program import Item
from avactl.workbench.local.addresses import MAX_PODS, AddressBlock, Translation, path_translator
from avactl.workbench.local.environment import resolve
from avactl.workbench.local.errors import LocalRunError, LocalUsageError
from avactl.workbench.local.volumes import make_volumes

Body = dict[str, Any]
ConfigMaps = dict[str, Mapping[str, str]]

_GRACE_PERIOD_S = 30
"""Kubernetes' default of terminationGracePeriodSeconds."""
_NODE_NAME = "localhost"
_INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "HYDRA_IFACE", "I_MPI_HYDRA_IFACE", "NCCL_SOCKET_IFNAME")
"""Variables with a network interface."""


class LocalPlace(NamedTuple):
    """Where a job runs."""

    checkout: Path
    """Directory of the code, which is also the working directory."""
    pods: Path
    """Directory of this run."""
    claims: Path
    """Directory of the volumes that outlive a run."""
    given: Mapping[str, str]
    """Mount paths with directories of the caller."""
    caller: Mapping[str, str]
    """The caller's environment."""


@dataclass(frozen=True, slots=True)
class LocalPod:
    """A process instead of a pod."""

    name: str
    role: str
    index: int
    leads: bool
    argv: list[str]
    env: dict[str, str]
    """Its whole environment."""
    own: dict[str, str]
    """The variables that its pod would have."""
    directory: str
    files: dict[Path, tuple[str, int]]
    """Texts and modes of files to write."""
    directories: list[Path]
    grace: float
    """Seconds between SIGTERM and SIGKILL."""
    linger: float
    stops_last: bool

    @property
    def label(self) -> str:
        return f"{self.role}-{self.index}"


class LocalJob(NamedTuple):
    """All processes of a job."""

    pods: list[LocalPod]
    retries: int
    """Restarts of each failed pod."""
    ignored: frozenset[int]
    """Exit codes of a pod that is restarted without being counted as failed."""
    most_failed: int
    """Pods that may fail for good."""
    first_pod_decides: bool
    timeout: float | None
    """Seconds that the run may take."""
    notes: list[str]
    """Differences to the cluster that a user should know."""


class _Role(NamedTuple):
    declared: LocalRole
    job: Body
    template: Body
    container: Body


def describe(
    item: Item, run: LocalRun, manifests: Iterable[Manifest], place: LocalPlace, block: AddressBlock
) -> LocalJob:
    """Return the processes of a job, with their environments on this machine.

    `manifests`: the job's objects. Raises LocalRunError for something that exists only in a cluster, LocalUsageError
    for more pods than a machine should run.
    """
    bodies = [manifest.body for manifest in manifests]
    jobs = {body["metadata"]["name"]: body for body in bodies if body["kind"] == "Job"}
    roles = [_make_role(declared, jobs[declared.job]) for declared in run.roles]
    count = sum(role.declared.replicas for role in roles)
    if count > MAX_PODS:
        raise LocalUsageError(
            f"{item} has {count} pods; one machine runs at most {MAX_PODS}", "use fewer: `--workers N`"
        )
    maps: ConfigMaps = {}
    for body in bodies:
        if body["kind"] == "ConfigMap":
            maps[body["metadata"]["name"]] = dict(body.get("data", {}))
    for (name, key), text in run.files.items():
        maps[name] = {**maps.get(name, {}), key: text}

    pods = [f"{role.declared.job}-{index}" for role in roles for index in range(role.declared.replicas)]
    addresses = {pod: block.address(number) for number, pod in enumerate(pods)}
    services = [body for body in bodies if body["kind"] == "Service"]
    resolved = {
        (role.declared.role, index): _pod_variables(role, index, run, maps, place, addresses)
        for role in roles
        for index in _pod_indexes(role)
    }
    texts = [value for variables in resolved.values() for value in variables.values()]
    texts += [text for data in maps.values() for text in data.values()]
    translation = Translation(addresses, _dns_names(roles, services, item.ns), _rendezvous_port(services), texts, block)

    found = []
    for role in roles:
        for index in _pod_indexes(role):
            variables = resolved[role.declared.role, index]
            found.append(_make_pod(role, index, variables, run, maps, place, translation))
    leading = roles[0]
    spec = leading.job["spec"]
    surplus = spec["completions"] - leading.declared.replicas
    return LocalJob(
        found,
        retries=spec.get("backoffLimitPerIndex", 0),
        ignored=frozenset(_ignored_exit_codes(spec)),
        most_failed=max(0, spec.get("maxFailedIndexes", 0) - surplus),
        first_pod_decides=run.first_pod_decides,
        timeout=run.timeout,
        notes=list(_run_notes(item, run, roles, place, translation, services)),
    )


def _make_role(declared: LocalRole, job: Body) -> _Role:
    template = job["spec"]["template"]
    wanted = template["metadata"]["annotations"].get(DEFAULT_CONTAINER.name, declared.role)
    containers = [*template["spec"].get("initContainers", ()), *template["spec"]["containers"]]
    return _Role(declared, job, template, next(each for each in containers if each["name"] == wanted))


def _ignored_exit_codes(job: Body) -> Iterator[int]:
    """Yield the exit codes that the Job's policy does not count."""
    for rule in job.get("podFailurePolicy", {}).get("rules", ()):
        if rule["action"] == "Ignore":
            yield from rule.get("onExitCodes", {}).get("values", ())


def _pod_indexes(role: _Role) -> range:
    return range(0 if role.declared.skipped else role.declared.replicas)


def _pod_variables(
    role: _Role, index: int, run: LocalRun, maps: ConfigMaps, place: LocalPlace, addresses: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of one pod, with names of the cluster."""
    metadata = role.template["metadata"]
    name = f"{role.declared.job}-{index}"
    fields = {
        "metadata": {
            "name": name,
            "namespace": role.job["metadata"].get("namespace", ""),
            "labels": metadata.get("labels", {}),
            "annotations": {**metadata["annotations"], JOB_INDEX.name: str(index)},
        },
        "spec": {
            "nodeName": _NODE_NAME,
            "serviceAccountName": role.template["spec"].get("serviceAccountName", ""),
        },
        "status": {"podIP": addresses[name], "hostIP": addresses[name]},
    }
    found = resolve(role.container, name, fields, maps, place.caller)
    # The home of the pod is the caller's, and so is the user.
    found.pop("USER", None)
    return {**run.env(role.declared.role, index), "HOSTNAME": name, **found}


def _dns_names(roles: list[_Role], services: list[Body], namespace: str) -> dict[str, str]:
    """DNS names of pods: below the headless Service of the job, and of Services that select one pod."""
    names: dict[str, str] = {}
    of_pods = {body["metadata"]["name"] for body in services}
    for role in roles:
        domain = role.template["spec"].get("subdomain")
        for index in range(role.declared.replicas):
            pod = f"{role.declared.job}-{index}"
            if domain:
                full = f"{pod}.{domain}.{namespace}.svc"
                names |= dict.fromkeys((full, full.removesuffix(".svc"), f"{pod}.{domain}"), pod)
            if pod in of_pods:
                names |= dict.fromkeys((pod, f"{pod}.{namespace}", f"{pod}.{namespace}.svc"), pod)
    return names


def _rendezvous_port(services: list[Body]) -> int | None:
    """Port of the rendezvous, which the job's Services publish."""
    named = [port for body in services for port in body["spec"].get("ports", ()) if port["name"] == "rendezvous"]
    return int(named[0]["port"]) if named else None


def _make_pod(
    role: _Role,
    index: int,
    variables: Mapping[str, str],
    run: LocalRun,
    maps: ConfigMaps,
    place: LocalPlace,
    translation: Translation,
) -> LocalPod:
    declared, spec, container = role.declared, role.template["spec"], role.container
    name = f"{declared.job}-{index}"
    given = {**place.given, **({run.checkout: str(place.checkout)} if run.checkout else {})}
    mounted = make_volumes(spec, container, place.pods / name, place.claims, maps, given, translation.text)
    local = path_translator(mounted.mounts)
    own = {key: _local_interface(key, local(translation.variable(key, value))) for key, value in variables.items()}
    args = container.get("args", ()) if declared.args is None else declared.args
    words = [*container.get("command", ()), *args]
    if not container.get("command"):
        raise LocalRunError(
            f"{declared.role} runs the command of its image, which is not used here", "write `command` in the spec"
        )
    argv = [local(translation.text(expand_references(word, variables))) for word in words]
    env = {"PYTHONUNBUFFERED": "1", **place.caller, **own}
    # The job master runs `avactl`, which is on no PATH if its environment is not activated.
    env["PATH"] = os.pathsep.join((env.get("PATH", os.defpath), str(Path(sys.executable).parent)))
    if os.geteuid() == 0:
        # Pods never run as root, so mpirun need not refuse to.
        env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    directory = local(container["workingDir"]) if "workingDir" in container else str(place.checkout)
    if not Path(directory).is_dir():
        raise LocalRunError(
            f"{declared.role} runs in {directory}, which does not exist",
            "run the command in a checkout of the code, or name one: `--directory DIR`",
        )
    if index == 0:  # all pods of a role start alike
        _want_command(declared.role, argv, directory, env)
    return LocalPod(
        name,
        declared.role,
        index,
        declared.leads,
        argv,
        env,
        own,
        directory,
        mounted.files,
        mounted.directories,
        grace=float(spec.get("terminationGracePeriodSeconds", _GRACE_PERIOD_S)),
        linger=declared.linger,
        stops_last=declared.stops_last,
    )


def _local_interface(name: str, value: str) -> str:
    return "lo" if name in _INTERFACE_VARIABLES else value


def _want_command(role: str, argv: Sequence[str], directory: str, env: Mapping[str, str]) -> None:
    """Raise LocalRunError if the program is missing, or the module that Python is to run: retries would not help."""
    command, module = argv[0], _python_module(argv)
    path = command if "/" not in command else os.path.join(directory, command)  # noqa: PTH118 - keeps absolute ones
    program = shutil.which(path, path=env.get("PATH", os.defpath))
    if program is None:
        raise LocalRunError(f"{role}: command `{command}` not found", _INSTALL)
    if module and not has_module(program, module, directory, env):
        raise LocalRunError(f"{role}: {program} has no module `{module}`", _INSTALL)


_INSTALL = "install it: the job runs in your environment, not in its image"


def _python_module(argv: Sequence[str]) -> str:
    """Return the package of `python -m MODULE`, or ""."""
    if not re.fullmatch(r"python[0-9.]*", Path(argv[0]).name):
        return ""
    words = iter(argv[1:])
    for word in words:
        if word == "-m":
            return next(words, "").partition(".")[0]
        if word in ("-W", "-X"):
            next(words, "")
        elif word == "-c" or not word.startswith("-"):
            break
    return ""


def has_module(python: str, module: str, directory: str, env: Mapping[str, str]) -> bool:
    """Return whether an interpreter finds a package, without importing it; True if it does not say."""
    script = "import importlib.util, sys; sys.exit(9 * (importlib.util.find_spec(sys.argv[1]) is None))"
    with suppress(subprocess.TimeoutExpired, OSError):
        done = subprocess.run(  # noqa: S603 - the program that the pods start
            [python, "-c", script, module], cwd=directory, env=dict(env), capture_output=True, timeout=30, check=False
        )
        return done.returncode != 9
    return True


def _run_notes(
    item: Item, run: LocalRun, roles: list[_Role], place: LocalPlace, translation: Translation, services: list[Body]
) -> Iterator[str]:
    if run.checkout:
        yield f"code: {place.checkout} instead of {run.code}"
    yield from run.notes
    for path, name in run.data:
        if path not in place.given:
            yield f"dataset {name}: {path} is an empty directory; `--mount {path}=DIR` uses yours"
    for role in roles:
        if role.declared.skipped:
            yield f"{count_text(role.declared.replicas, role.declared.role)} not started: {role.declared.skipped}"
    if translation.port != _rendezvous_port(services):
        yield f"port {translation.port} instead of {_rendezvous_port(services)}, which is in use"
