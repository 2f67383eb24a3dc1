"""Patches of pods of a team's specs: within pod security, the admission policies and the rights of avactl's accounts.

Everything that is not listed as allowed is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from avactl.contracts.names import CAPACITY, injects_devices
from avactl.diagnostics.secrets import looks_secret
from avactl.program.checks.pod_security_levels import BASELINE, RESTRICTED, RESTRICTED_VOLUMES, required_level
from avactl.program.lowering.pod_collisions import OWN_CONTAINERS, OWN_VOLUMES, hides_system_files
from avactl.program.manifest import Body
from avactl.program.program import Item, Program
from avactl.spec.schema.pod_affinity import NODE_TAINTS, foreign_terms, node_label
from avactl.spec.schema.pod_settings import LONGEST_GRACE

Refused = tuple[tuple[str, ...], str, str]
"""Path, reason and remedy."""
_POD_FIELDS = frozenset(
    (
        "containers",
        "initContainers",
        "volumes",
        "affinity",
        "topologySpreadConstraints",
        "nodeSelector",
        "tolerations",
        "dnsPolicy",
        "dnsConfig",
        "hostAliases",
        "hostname",
        "terminationGracePeriodSeconds",
        "imagePullSecrets",
        "readinessGates",
        "enableServiceLinks",
        "setHostnameAsFQDN",
        "securityContext",
    )
)
_CONTAINER_FIELDS = frozenset(
    (
        "name",
        "image",
        "imagePullPolicy",
        "command",
        "args",
        "workingDir",
        "env",
        "envFrom",
        "ports",
        "resources",
        "volumeMounts",
        "livenessProbe",
        "readinessProbe",
        "startupProbe",
        "lifecycle",
        "securityContext",
        "stdin",
        "stdinOnce",
        "tty",
        "terminationMessagePath",
        "terminationMessagePolicy",
        "resizePolicy",
    )
)
_VOLUME_FIELDS = frozenset(("name", *RESTRICTED_VOLUMES))
_PROJECTED_SOURCES = frozenset(("clusterTrustBundle", "configMap", "downwardAPI", "secret"))
"""Sources of projected volumes that are no credentials of the pod's account."""
_CONTAINER_SECURITY = frozenset(
    ("readOnlyRootFilesystem", "allowPrivilegeEscalation", "capabilities", "runAsUser", "runAsGroup", "runAsNonRoot")
)
_POD_SECURITY = frozenset(("fsGroup", "fsGroupChangePolicy", "supplementalGroups", "supplementalGroupsPolicy"))
_FIELD_HINTS = {
    "serviceAccountName": "write `pod: {serviceAccountName: …}`",
    "automountServiceAccountToken": "write `pod: {automountServiceAccountToken: true}`",
    "hostNetwork": "write `hostNetwork: {}` in `spec` of a job",
    "priorityClassName": "write `priority: …` in `spec` of a job",
    "activeDeadlineSeconds": "write `timeout: …` in `spec`",
}


def pod_refusals(item: Item, program: Program, old: Body, new: Body) -> Iterator[Refused]:
    """Yield what a pod spec has after a patch, and must not have."""
    for key in ("containers", "initContainers"):
        before = {each["name"]: each for each in old.get(key) or ()}
        after = [each for each in new.get(key) or () if isinstance(each, dict)]
        for gone in before.keys() - {each.get("name") for each in after}:
            yield (key, gone), "patches do not remove containers", "remove it"
        for container in after:
            name = str(container.get("name"))
            if name not in before and (item.team is not None or not container.get("image")):
                known = ", ".join(f"`{each}`" for each in before)
                yield (key, name), f"the pod has no container `{name}`", f"it has {known}; add others by `pod.sidecars`"
            elif before.get(name) != container and item.team is not None:
                yield from _container_refusals(item, program, key, before[name], container)
    if item.team is None:
        return
    for key in {**old, **new}:
        if key not in _POD_FIELDS and old.get(key) != new.get(key):
            yield (key,), f"patches do not change `{key}` of pods", _FIELD_HINTS.get(key, "remove the key")
    yield from _security_refusals(
        old.get("securityContext") or {}, new.get("securityContext") or {}, _POD_SECURITY, ("securityContext",)
    )
    yield from _volume_refusals(item, program, old, new)
    yield from _placement_refusals(old, new)
    own = [toleration["key"] for toleration in old.get("tolerations") or ()]
    taints = {*program.taints(item.cluster), *NODE_TAINTS} - {CAPACITY} | {*own}
    for toleration in new.get("tolerations") or ():
        if toleration.get("key") not in taints:
            hint = (
                "write `spot: allow` in `spec`"
                if toleration.get("key") == CAPACITY
                else "name the key of a pool's taint"
            )
            yield ("tolerations",), "pods tolerate only taints of pools", hint
    if (new.get("terminationGracePeriodSeconds") or 0) > LONGEST_GRACE:
        message = f"pods have at most {LONGEST_GRACE} seconds to terminate"
        yield ("terminationGracePeriodSeconds",), message, f"write {LONGEST_GRACE} or less"


def _volume_refusals(item: Item, program: Program, old: Body, new: Body) -> Iterator[Refused]:
    before = {each["name"]: each for each in old.get("volumes") or ()}
    after = {str(each.get("name")): each for each in new.get("volumes") or () if isinstance(each, dict)}
    allowed = _VOLUME_FIELDS | ({"nfs"} if required_level(item, program) == "baseline" else set())
    for name in {**before, **after}:
        if before.get(name) == after.get(name):
            continue
        kinds = {*after.get(name, ())} - allowed
        if kinds:
            yield ("volumes", name), f"pods of the team cannot mount `{min(kinds)}`", "use a claim or `emptyDir`"
        sources = (after.get(name, {}).get("projected") or {}).get("sources") or ()
        if name in OWN_VOLUMES or any({*source} - _PROJECTED_SOURCES for source in sources):
            yield ("volumes", name), "the volume has a token of an account", "write it in `pod.volumes`"
        claim = ((after.get(name, {}).get("ephemeral") or {}).get("volumeClaimTemplate") or {}).get("spec") or {}
        for key in sorted({*claim} & {"volumeName", "selector", "dataSource", "dataSourceRef"}):
            yield ("volumes", name), f"`{key}` can bind a volume of someone else", f"remove `{key}`"


def _placement_refusals(old: Body, new: Body) -> Iterator[Refused]:
    """Yield labels of nodes that avactl selects by, and affinities to pods of other teams."""
    before, after = old.get("nodeSelector") or {}, new.get("nodeSelector") or {}
    for name in {**before, **after}:
        if before.get(name) != after.get(name):
            try:
                node_label(name)
            except ValueError:
                hint = "write `pool` or `gpu` beside `gpus` in `spec`"
                yield ("nodeSelector", name), f"patches do not select nodes by `{name}`", hint
    own = foreign_terms(old)
    if any(each not in own for each in foreign_terms(new)):
        message = "pods of other namespaces belong to other teams"
        yield ("affinity",), message, "remove `namespaces` and `namespaceSelector`"


def _container_refusals(item: Item, program: Program, key: str, old: Body, new: Body) -> Iterator[Refused]:
    path = (key, str(new["name"]))
    if new["name"] in (*OWN_CONTAINERS, "master"):
        yield path, "the container is avactl's, with rights that programs do not have", "remove it"
        return
    for name in {**old, **new}:
        if name not in _CONTAINER_FIELDS and old.get(name) != new.get(name):
            yield (*path, name), f"patches do not change `{name}` of containers", "remove the key"
    yield from _security_refusals(
        old.get("securityContext") or {},
        new.get("securityContext") or {},
        _CONTAINER_SECURITY,
        (*path, "securityContext"),
        required_level(item, program),
    )
    if _device_requests(old) != _device_requests(new):
        yield (*path, "resources"), "patches change CPU, memory and disk only", "write `gpus` or `rdma` in `spec`"
    if _environment(old) != _environment(new):
        yield (*path, "env"), "the variable makes the container runtime inject devices", "remove it"
    given = {each.get("name"): each for each in old.get("env") or ()}
    for entry in new.get("env") or ():
        name = str(entry.get("name"))
        if given.get(name) != entry and looks_secret(str(entry.get("value") or ""), name):
            yield (*path, "env", name), "the value looks like a credential", "use `valueFrom`"
    if old.get("envFrom") != new.get("envFrom"):
        yield (*path, "envFrom"), "a Secret or ConfigMap could set variables of devices", "write it in `pod.envFrom`"
    for port in new.get("ports") or ():
        if port.get("hostPort") and port not in (old.get("ports") or ()):
            yield (*path, "ports"), "pods of teams open no ports of machines", "remove `hostPort`"
    for mount in new.get("volumeMounts") or ():
        if mount in (old.get("volumeMounts") or ()):
            continue
        if (
            mount.get("name") in OWN_VOLUMES
            or hides_system_files(str(mount.get("mountPath")))
            or "mountPropagation" in mount
        ):
            yield (*path, "volumeMounts"), f"pods of teams mount nothing at `{mount.get('mountPath')}`", "use another"
    for name in ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle"):
        if "'host':" in str(new.get(name)) and new.get(name) != old.get(name):
            yield (*path, name), "probes reach only their own pod", "remove `host`"


def _device_requests(container: Body) -> dict[str, Any]:
    own = ("cpu", "memory", "ephemeral-storage")
    resources = container.get("resources") or {}
    found = {
        f"{group} {name}": value
        for group in ("requests", "limits")
        for name, value in (resources.get(group) or {}).items()
        if name not in own
    }
    return {**found, "claims": resources.get("claims")}


def _environment(container: Body) -> list[Body]:
    return [each for each in container.get("env") or () if injects_devices(str(each.get("name")))]


def _security_refusals(
    old: Body, new: Body, allowed: frozenset[str], path: tuple[str, ...], security: str = ""
) -> Iterator[Refused]:
    for key in {**old, **new}:
        if old.get(key) == new.get(key):
            continue
        value = new.get(key)
        above = key not in allowed
        if key == "capabilities":
            dropped = value.get("drop") == ["ALL"] if isinstance(value, dict) else False
            added = {*(value.get("add") or ())} if isinstance(value, dict) else set()
            above = not dropped or not added <= (BASELINE if security == "baseline" else RESTRICTED)
        elif key == "allowPrivilegeEscalation":
            above = value is not False and security != "baseline"
        elif key in ("runAsUser", "runAsNonRoot"):
            above = above or (value in (0, False, None) and security != "baseline")
        if above:
            message = f"pod security of the namespace does not allow this `{key}`"
            yield (*path, key), message, "remove the key, or ask for `podSecurity: baseline` in the Team"
