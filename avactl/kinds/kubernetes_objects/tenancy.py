"""Limits of a team's manifests: what its members may create on the API server, and no more."""

from __future__ import annotations

from collections.abc import Iterator

from avactl.contracts import names
from avactl.contracts.foreign_keys import key_owner
from avactl.contracts.pod_annotations import Writer, written_by
from avactl.kinds.kubernetes_objects.spec import KubernetesObjectsSpec
from avactl.kinds.team.names import RUN_ACCOUNT
from avactl.program import registry
from avactl.program.checks.pod_security_levels import (
    BASELINE,
    CONFINED_PROFILES,
    RESTRICTED,
    RESTRICTED_VOLUMES,
    required_level,
)
from avactl.program.kubernetes_schema.templates import template_path, value_at
from avactl.program.lowering.gpu_request import DEVICES_FIELD, VISIBLE_DEVICES
from avactl.program.manifest import Body
from avactl.program.program import Item, Program
from avactl.program.workload import Lifecycle
from avactl.spec.schema.pod_affinity import NODE_TAINTS, foreign_terms
from avactl.spec.schema.pod_settings import LONGEST_GRACE, of_runtime

Problem = tuple[tuple[str, ...], str, str]
"""Path, reason and remedy."""
KINDS = {
    "v1": ("Pod", "Service", "ConfigMap", "PersistentVolumeClaim"),
    "apps/v1": ("Deployment", "StatefulSet", "ReplicaSet"),
    "batch/v1": ("Job", "CronJob"),
    "autoscaling/v2": ("HorizontalPodAutoscaler",),
    "policy/v1": ("PodDisruptionBudget",),
    "resource.k8s.io/v1": ("ResourceClaim", "ResourceClaimTemplate"),
}
"""Kinds that members of a team may write (`avactl-member`)."""
NAME_LABEL = "app.kubernetes.io/name"
_OWN_KEYS = (names.GANG_LABEL, *written_by(Writer.MEMBER))
"""Labels and annotations that pods without a spec may have."""
_PRIORITY_LEVELS = ("low", "normal", "high")
_FORBIDDEN_FIELDS = (
    "hostPID",
    "hostIPC",
    "hostNetwork",
    "nodeName",
    "runtimeClassName",
    "priority",
    "hostUsers",
    "ephemeralContainers",
)


def tenancy_problems(
    item: Item[KubernetesObjectsSpec], program: Program, body: Body, namespace: str
) -> Iterator[Problem]:
    """Yield what a manifest of a team's spec may not contain. It satisfies the schema of its kind."""
    kind, team = body["kind"], program.team(str(item.team))
    spec = value_at(body, ("spec",))
    yield from _metadata_problems(value_at(body, ("metadata",)), ("metadata",))
    if kind == "Service":
        if spec.get("type", "ClusterIP") not in team.spec.service_types:
            hint = f"use `type: ClusterIP`, or add it to `serviceTypes` of Team {team.name}"
            yield ("spec", "type"), f"the Team does not allow `type: {spec['type']}`", hint
        if spec.get("externalIPs"):
            yield ("spec", "externalIPs"), "external IPs can divert traffic of other tenants", "remove the key"
    if kind == "PersistentVolumeClaim" and spec.get("volumeName"):
        hint = "remove the key, and set `storageClassName`"
        yield ("spec", "volumeName"), "only the platform chooses the volume of a claim", hint
    path = template_path(kind)
    if path is None:
        return
    pod = value_at(body, path)
    yield from _network_problems(value_at(pod, ("metadata", "labels")), (*path, "metadata", "labels"))
    if path:
        yield from _metadata_problems(value_at(pod, ("metadata",)), (*path, "metadata"))
    if kind == "CronJob":
        job = ("spec", "jobTemplate", "metadata")
        yield from _metadata_problems(value_at(body, job), job)
    for where, message, hint in _pod_problems(item, program, value_at(pod, ("spec",)), namespace):
        yield (*path, "spec", *where), message, hint


def _metadata_problems(metadata: Body, path: tuple[str, ...]) -> Iterator[Problem]:
    for key in ("finalizers", "ownerReferences"):
        if metadata.get(key):
            yield (*path, key), f"specs of teams do not set `{key}`", "remove the key"
    for group in ("labels", "annotations"):
        for key in metadata.get(group) or {}:
            owner = key_owner(key)
            inject = group == "annotations" and of_runtime(key)
            if inject or (owner and key not in _OWN_KEYS and not key.startswith("app.kubernetes.io/")):
                yield (*path, group, key), f"`{key}` belongs to {owner or 'the container runtime'}", "remove it"


def _network_problems(labels: Body, path: tuple[str, ...]) -> Iterator[Problem]:
    """Yield labels of pods by which the Team's `allow-own` would take them for pods of a job or service."""
    kind = registry.kind_with_label(str(labels.get(NAME_LABEL)))
    if kind is not None and registry.get_lifecycle(kind) in (Lifecycle.JOB, Lifecycle.SERVICE):
        message = f"no pod could connect to it: the label marks pods of {kind} specs"
        yield (*path, NAME_LABEL), message, "write another name, such as the program's"


def _pod_problems(item: Item[KubernetesObjectsSpec], program: Program, pod: Body, namespace: str) -> Iterator[Problem]:
    team, restricted = program.team(str(item.team)), required_level(item, program, namespace) == "restricted"
    for key in _FORBIDDEN_FIELDS:
        if pod.get(key):
            yield (key,), f"pods of teams cannot have `{key}`", "remove the key"
    schedulers = {_scheduler_name(program, cluster) for cluster in item.clusters}
    if "schedulerName" in pod and {pod["schedulerName"]} != schedulers:
        yield ("schedulerName",), "other schedulers ignore the team's quota", "remove the key"
    allowed = _PRIORITY_LEVELS[: _PRIORITY_LEVELS.index(team.spec.member_priority) + 1]
    classes = ("", *(f"avactl-{each}" for each in allowed))
    if pod.get("priorityClassName", "") not in classes:
        hint = f"use `{classes[-1]}` or lower, or raise `memberPriority` of Team {team.name}"
        yield ("priorityClassName",), "the priority class is above the team's", hint
    accounts = ("default", RUN_ACCOUNT, *(each.name for each in team.spec.service_accounts))
    for key in ("serviceAccountName", "serviceAccount"):  # the second is the former name of the first
        if (pod.get(key) or "default") not in accounts:
            hint = f"use `{RUN_ACCOUNT}`, or one of `serviceAccounts` of Team {team.name}"
            yield (key,), "the account is not one of the team's", hint
    for each in pod.get("tolerations") or ():
        if each.get("key") == names.CAPACITY:
            message = "pods without a spec of their own do not run on spot machines"
            yield ("tolerations",), message, "remove the toleration, or declare a spec with `spot: allow`"
        elif not all(_may_tolerate(program, cluster, each.get("key")) for cluster in item.clusters):
            yield ("tolerations",), "pods tolerate only taints of pools", "name the key of a pool's taint"
    if foreign_terms(pod):
        message = "the affinity selects pods of other namespaces, which belong to other teams"
        yield ("affinity",), message, "remove `namespaces` and `namespaceSelector`"
    if (pod.get("terminationGracePeriodSeconds") or 0) > LONGEST_GRACE:
        hint = f"write {LONGEST_GRACE} or less"
        yield ("terminationGracePeriodSeconds",), "reclaimed GPUs must be free soon", hint
    if pod.get("terminationGracePeriodSeconds") == 0:
        message = "a deleted pod would be gone, and its GPUs be given to others, before it has stopped"
        yield ("terminationGracePeriodSeconds",), message, "write 1 or more"
    for volume in pod.get("volumes") or ():
        kinds = {*volume} - {"name", *RESTRICTED_VOLUMES} if restricted else {*volume} & {"hostPath"}
        if kinds:
            where = ("volumes", str(volume.get("name")))
            yield where, f"pod security does not allow volumes of type `{min(kinds)}`", "use a claim or `emptyDir`"
    security = pod.get("securityContext") or {}
    yield from _security_problems(security, security, ("securityContext",), restricted, whole=True)
    for group in ("containers", "initContainers"):
        for container in pod.get(group) or ():
            path = (group, str(container.get("name")))
            given = container.get("securityContext") or {}
            yield from _security_problems(given, security, (*path, "securityContext"), restricted)
            yield from _container_problems(container, path)


def _scheduler_name(program: Program, cluster: str) -> str:
    return names.SCHEDULER_NAME if program.cluster_spec(cluster).daemons.scheduler else "default-scheduler"


def _may_tolerate(program: Program, cluster: str, key: str | None) -> bool:
    return key in (*program.taints(cluster), *NODE_TAINTS)


def _container_problems(container: Body, path: tuple[str, ...]) -> Iterator[Problem]:
    if any(port.get("hostPort") for port in container.get("ports") or ()):
        yield (*path, "ports"), "pods of teams open no ports of machines", "remove `hostPort`"
    for variable in container.get("env") or ():
        field = ((variable.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath")
        chosen = variable.get("name") == VISIBLE_DEVICES and field == DEVICES_FIELD
        if names.injects_devices(str(variable.get("name"))) and variable.get("value") != "void" and not chosen:
            hint = "write `void`, or remove it"
            yield (*path, "env", str(variable["name"])), "the variable makes the runtime inject devices", hint


def _security_problems(
    given: Body, pod: Body, path: tuple[str, ...], restricted: bool, *, whole: bool = False
) -> Iterator[Problem]:
    """Yield what pod security does not allow in the security context of a pod or container."""
    hint = "see https://kubernetes.io/docs/concepts/security/pod-security-standards/"
    for key in ("privileged", "seLinuxOptions", "windowsOptions", "sysctls"):
        if given.get(key):
            yield (*path, key), f"pods of teams cannot have `{key}`", "remove the key"
    if (given.get("appArmorProfile") or {}).get("type") == "Unconfined":
        yield (*path, "appArmorProfile"), "pods of teams cannot have this `appArmorProfile`", "remove the key"
    if given.get("procMount", "Default") != "Default":
        yield (*path, "procMount"), "pods of teams cannot have `procMount`", "remove the key"
    profile = (given.get("seccompProfile") or pod.get("seccompProfile") or {}).get("type")
    if profile not in CONFINED_PROFILES and (restricted or profile is not None) and not whole:
        yield (
            (*path, "seccompProfile"),
            "pod security requires a profile of seccomp",
            "write `seccompProfile: {type: RuntimeDefault}`",
        )
    if whole:
        return
    capabilities = given.get("capabilities") or {}
    if not {*(capabilities.get("add") or ())} <= (RESTRICTED if restricted else BASELINE):
        yield (*path, "capabilities"), "pod security does not allow these capabilities", hint
    if not restricted:
        return
    if "ALL" not in (capabilities.get("drop") or ()):
        yield (*path, "capabilities"), "pod security requires `capabilities`", "write `capabilities: {drop: [ALL]}`"
    if given.get("allowPrivilegeEscalation") is not False:
        yield (
            (*path, "allowPrivilegeEscalation"),
            "pod security requires `allowPrivilegeEscalation`",
            "write `allowPrivilegeEscalation: false`",
        )
    if not given.get("runAsNonRoot", pod.get("runAsNonRoot")):
        yield (*path, "runAsNonRoot"), "pod security requires `runAsNonRoot`", "write `runAsNonRoot: true`"
    if given.get("runAsUser", pod.get("runAsUser", 1)) == 0:
        yield (*path, "runAsUser"), "pod security does not allow root", "write another user: `1000`"
