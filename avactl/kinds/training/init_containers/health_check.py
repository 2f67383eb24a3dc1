"""The health check of an all-reduce job: init containers in which its workers test each other before they train.

The check runs in the job's image with the GPUs of the worker, which the kubelet gives to the training afterwards. The
library comes from avactl's image. A worker that fails twice exits with `names.REPLACED_EXIT`: its Job makes another
pod, for which the scheduler avoids the node. If that does not help, the workers exit with `GAVE_UP`, and the job fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from avactl.base.quantity import parse_quantity
from avactl.contracts import names
from avactl.contracts.pod_annotations import JOB_FAILURES, JOB_IGNORED_FAILURES, RUN_DIGEST
from avactl.diagnostics import Diagnostic, Note
from avactl.kinds.training.addressing import field_variable, rendezvous_port
from avactl.kinds.training.commands import python_interpreter
from avactl.kinds.training.roles import RolePods, pod_host, workers_of
from avactl.kinds.training.spec import HealthCheck, TrainingJobSpec
from avactl.program.images import require_image
from avactl.program.lowering import pods
from avactl.program.lowering.pods import build_resources, env_list, merge_env
from avactl.program.manifest import Body
from avactl.program.program import Item, Program
from avactl.spec.schema.values import duration_seconds

CONTAINER = "health-check"
_LIBRARY_VOLUME = "worker-library"
_LIBRARY_DIRECTORY = "/opt/avactl"
_PORT = 29700
GAVE_UP = 80
"""Exit code of a check that fails the job."""
_SHARED_VOLUMES = ("home", "shared-memory")
"""Volumes of the worker that PyTorch and NCCL use."""
_MAX_MEMORY_BYTES = 4 * 1024**3
"""Bytes of an all-reduce, at most."""
_COUNT_VARIABLES = {"AVACTL_FAILURES": JOB_FAILURES, "AVACTL_IGNORED_FAILURES": JOB_IGNORED_FAILURES}
"""Annotations of the Job controller by variable."""


def with_health_check(
    item: Item[TrainingJobSpec], program: Program, part: RolePods, pod: Body, check: HealthCheck
) -> Body:
    """Add the check before all other init containers, so that no data is fetched to a bad node."""
    (main,) = pod["containers"]
    library = {
        **pods.build_helper(
            _LIBRARY_VOLUME,
            program.cluster_spec(item.cluster).images.avactl,
            "",
            [],
            build_resources("100m", "128Mi"),
            [{"name": _LIBRARY_VOLUME, "mountPath": _LIBRARY_DIRECTORY}],
        ),
        "command": ["avactl", "elastic", "library", _LIBRARY_DIRECTORY],
    }
    own = [
        field_variable("POD_IP", "status.podIP"),
        field_variable("POD_UID", "metadata.uid"),
        field_variable("AVACTL_RUN", RUN_DIGEST.field_path),
        *(field_variable(name, annotation.field_path) for name, annotation in _COUNT_VARIABLES.items()),
        *env_list({"PYTHONUNBUFFERED": "1"}),
    ]
    mounts = [each for each in main.get("volumeMounts", ()) if each["name"] in _SHARED_VOLUMES]
    container = {
        **{key: main[key] for key in ("image", "resources", "securityContext")},
        "name": CONTAINER,
        "command": [python_interpreter(part.command, item.spec.code), _LIBRARY_DIRECTORY, "health_check"],
        "args": _check_arguments(item, part, check),
        "env": merge_env(main["env"], own),
        "volumeMounts": [*mounts, {"name": _LIBRARY_VOLUME, "mountPath": _LIBRARY_DIRECTORY, "readOnly": True}],
        # Why a pod was replaced is in its status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    return {
        **pod,
        "initContainers": [library, container, *pod.get("initContainers", ())],
        "volumes": [*pod.get("volumes", ()), {"name": _LIBRARY_VOLUME, "emptyDir": {}}],
    }


def _check_arguments(item: Item[TrainingJobSpec], part: RolePods, check: HealthCheck) -> list[str]:
    # In the network of the machines, the pods declare the rendezvous port, and no other.
    own = _PORT if item.spec.host_network is None else rendezvous_port(item)
    found = {
        "--workers": workers_of(item.spec),
        "--coordinator": f"{pod_host(item, 'worker', 0)}:{own}",
        "--rendezvous": rendezvous_port(item),
        "--size": int(parse_quantity(check.size)),
        "--timeout": ceil(duration_seconds(check.timeout)),
        "--wait": ceil(duration_seconds(check.wait)),
        "--replacements": check.replacements,
        "--below": f"{check.below:g}",
        **({"--gpus": part.compute.visible_gpus} if part.compute.gpus else {}),
    }
    words = [str(word) for pair in found.items() for word in pair]
    return [*words, "--replace-slow"] if check.slow == "replace" else words


def failure_rules() -> list[Body]:
    """Return what a Job does with pods that the check ends: replace them without spending a retry, or fail."""

    def on(code: int) -> Body:
        return {"containerName": CONTAINER, "operator": "In", "values": [code]}

    return [
        {"action": "FailJob", "onExitCodes": on(GAVE_UP)},
        {"action": "Ignore", "onExitCodes": on(names.REPLACED_EXIT)},
    ]


def health_problems(item: Item[TrainingJobSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield the problems of a job's health check, which its strategy supports."""
    check, where = item.spec.health_check, ("spec", "healthCheck")
    if check is None:
        return
    yield from require_image(item, program, "avactl", where)
    if parse_quantity(check.size) > _MAX_MEMORY_BYTES:
        yield Diagnostic(
            "invalid-value",
            f"spec.healthCheck.size: {check.size} is more than 4Gi",
            item.span(*where, "size"),
            hint="64Mi, the default, takes a second on a network of 1 Gbit/s",
        )
    if duration_seconds(check.timeout) > duration_seconds(check.wait):
        given = "timeout" if "timeout" in check.model_fields_set else "wait"
        other = "wait" if given == "timeout" else "timeout"
        yield Diagnostic(
            "invalid-value",
            f"spec.healthCheck: one test may take {check.timeout} (`timeout`), but workers wait for each other only "
            f"{check.wait} (`wait`)",
            item.span(*where, given),
            hint="`wait` has to be at least as long as `timeout`",
            notes=(Note(item.span(*where, other), f"`{other}`"),) if other in check.model_fields_set else (),
        )
