"""Pod requirements, parsed once and shared by equal pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import orjson

from avactl.base.quantity import resource_amount
from avactl.contracts.names import DEVICE_CLASS_PREFIX
from avactl.contracts.pod_annotations import GANG_SIZE, GPU_SHARE, LINK, LINK_POLICY, AnnotationReader, read_by
from avactl.scheduler.objects.limits import quote
from avactl.scheduler.objects.node_rules import NodeRules, RuleError, selector

_HOSTNAME = "kubernetes.io/hostname"
_WORDS = {each.name: each.values for each in read_by(AnnotationReader.SCHEDULER) if each.values}
"""Annotations with a fixed set of values."""


class HostPort(NamedTuple):
    """A host port."""

    address: str
    protocol: str
    number: int

    def clashes(self, other: HostPort) -> bool:
        """Return True if both ports conflict on one node: `0.0.0.0` stands for every address."""
        if (self.protocol, self.number) != (other.protocol, other.number):
            return False
        return self.address == other.address or _EVERYWHERE in (self.address, other.address)


class ExclusiveDisk(NamedTuple):
    """A disk that a pod mounts directly, without a claim."""

    name: tuple[str, ...]
    read_only: bool

    def clashes(self, other: ExclusiveDisk) -> bool:
        """Return True if both disks conflict on one node."""
        return self.name == other.name and not (self.read_only and other.read_only)


DISKS = frozenset({"awsElasticBlockStore", "gcePersistentDisk", "iscsi", "rbd"})
"""Volume types that a node can mount only once, unless all mounts are read-only."""
_EVERYWHERE = "0.0.0.0"  # noqa: S104 - what Kubernetes calls it


class ExtendedRequest(NamedTuple):
    """Extended resources that one container requests."""

    position: int
    """Index of the container, with the init containers first."""
    container: str
    short_lived: bool
    """True for an init container that is no sidecar."""
    names: tuple[str, ...]
    """All resources that it requests, sorted."""
    amounts: Mapping[str, int]
    """Those that are extended resources, with their amounts."""

    def request_name(self, resource: str) -> str:
        """Return the name of the device request for a resource, as kube-scheduler forms it."""
        return f"container-{self.position}-request-{self.names.index(resource)}"


class PodRequirements:
    """Requirements shared by all pods of a Job: requests, node rules, affinity, link."""

    __slots__ = (
        "__weakref__",
        "affinity",
        "amounts",
        "antiaffinity",
        "disks",
        "extended",
        "link",
        "link_required",
        "ports",
        "preferred",
        "refused",
        "rules",
        "share",
        "spread",
        "spread_anyway",
    )

    def __init__(self, spec: Mapping[str, Any], notes: Mapping[str, str], refused: str = "") -> None:
        self.refused = refused
        """Reason why the pod cannot be scheduled at all."""
        self.amounts: dict[str, int] = {}
        self.extended: tuple[ExtendedRequest, ...] = ()
        """Containers that request extended resources."""
        self.share = 0
        """Share of one GPU in milli."""
        self.link, self.link_required = "any", False
        self.ports: tuple[HostPort, ...] = ()
        self.disks: tuple[ExclusiveDisk, ...] = ()
        self.affinity: tuple[dict[str, Any], ...] = ()
        self.antiaffinity: tuple[dict[str, Any], ...] = ()
        self.preferred: tuple[tuple[int, dict[str, Any]], ...] = ()
        """Preferred pod affinity: weights, negative for anti-affinity, and terms."""
        self.spread: tuple[dict[str, Any], ...] = ()
        self.spread_anyway: tuple[dict[str, Any], ...] = ()
        """Topology spread constraints over nodes that only express a preference."""
        self.rules = _NO_RULES
        try:
            # First of all: whatever is refused below, a pod that runs holds what it requests.
            self.amounts = requests(spec)
            self.extended = tuple(_extended_requests(spec))
            self.rules = NodeRules(spec)
            self._constraints(spec)
            self._annotations(notes)
        except (RuleError, ValueError) as error:
            self.refused = refused or str(error)

    def _constraints(self, spec: Mapping[str, Any]) -> None:
        affinity, required = spec.get("affinity") or {}, "requiredDuringSchedulingIgnoredDuringExecution"
        self.affinity = tuple((affinity.get("podAffinity") or {}).get(required) or ())
        self.antiaffinity = tuple((affinity.get("podAntiAffinity") or {}).get(required) or ())
        self.preferred = tuple(
            (sign * each["weight"], each["podAffinityTerm"])
            for sign, kind in ((1, "podAffinity"), (-1, "podAntiAffinity"))
            for each in (affinity.get(kind) or {}).get("preferredDuringSchedulingIgnoredDuringExecution") or ()
        )
        for _, term in self.preferred:  # so that no decision fails for it
            if not term["topologyKey"]:
                raise RuleError("preferred pod affinity without a topologyKey")
            selector(term.get("labelSelector"))
            selector(term.get("namespaceSelector"))
        self.spread = tuple(
            each
            for each in spec.get("topologySpreadConstraints") or ()
            if each.get("whenUnsatisfiable") == "DoNotSchedule"
        )
        self.spread_anyway = tuple(
            each
            for each in spec.get("topologySpreadConstraints") or ()
            if each.get("whenUnsatisfiable") == "ScheduleAnyway" and each.get("topologyKey") == _HOSTNAME
        )
        for each in self.spread_anyway:  # so that no decision fails for it
            selector(each.get("labelSelector"))
        self.ports = tuple(
            sorted(
                {
                    HostPort(port.get("hostIP") or _EVERYWHERE, port.get("protocol") or "TCP", port["hostPort"])
                    for container in _running_containers(spec)
                    for port in container.get("ports") or ()
                    if port.get("hostPort")
                }
            )
        )

        self.disks = tuple(disk for volume in _on_disks(spec) for disk in _disks(volume))

    def _annotations(self, notes: Mapping[str, str]) -> None:
        for name, allowed in _WORDS.items():
            if name in notes and notes[name] not in allowed:
                raise RuleError(f"annotation {name}: `{quote(notes[name])}` is not one of {', '.join(allowed)}")
        size = notes.get(GANG_SIZE.name)
        if size is not None and gang_size(size) is None:
            raise RuleError(f"{GANG_SIZE.name}: `{quote(size)}` is not a number of pods such as 4")
        self.link = notes.get(LINK.name, "any")
        self.link_required = notes.get(LINK_POLICY.name) == "required"
        text = notes.get(GPU_SHARE.name)
        if text is not None:
            try:
                share = resource_amount("cpu", text)
            except ValueError:
                share = 0
            if not 0 < share < 1000:
                raise RuleError(f"annotation {GPU_SHARE.name}: `{quote(text)}` is not a share of one GPU such as 0.5")
            self.share = share

    @property
    def constrained(self) -> bool:
        """True if other pods restrict its nodes."""
        return bool(self.affinity or self.antiaffinity or self.spread or self.ports or self.disks)


_NO_RULES = NodeRules({})
_known: WeakValueDictionary[bytes, PodRequirements] = WeakValueDictionary()
_SPEC = (
    "nodeSelector",
    "affinity",
    "tolerations",
    "topologySpreadConstraints",
    "overhead",
    "resources",
    "hostNetwork",
    "hostUsers",
)
_CONTAINER = ("restartPolicy", "restartPolicyRules", "resources")
_NOTES = (LINK.name, LINK_POLICY.name, GPU_SHARE.name)


def gang_size(text: str) -> int | None:
    """Return the gang size that a pod declares; None if it is invalid."""
    size = int(text) if text.isdecimal() and len(text) < 10 else 0
    return size or None


def requirements_of(spec: Mapping[str, Any], notes: Mapping[str, str], refused: str = "") -> PodRequirements:
    """Return the requirements of a pod, shared by equal pods. `refused`: the reason if it must not be placed."""
    parts: list[Any] = [spec.get(key) for key in _SPEC]
    if refused:
        parts.append(("refused", refused))
    for group in ("containers", "initContainers"):
        for container in spec.get(group) or ():
            ports = [port for port in container.get("ports") or () if port.get("hostPort")]
            parts.append((group == "containers", [container.get(key) for key in _CONTAINER], ports))
            if any(map(_is_extended, _asked(container))):
                parts.append(container.get("name"))  # the pod's status names it
    parts += _on_disks(spec)
    if notes:
        parts += [notes.get(key) for key in _NOTES]
        # Accepted values are no part of the shape: the pod itself reads them.
        parts += [(name, notes[name]) for name, allowed in _WORDS.items() if notes.get(name, allowed[0]) not in allowed]
        if gang_size(notes.get(GANG_SIZE.name, "1")) is None:
            parts.append((GANG_SIZE.name, notes[GANG_SIZE.name]))
    key = orjson.dumps(parts)
    found = _known.get(key)
    if found is None:
        found = _known[key] = PodRequirements(spec, notes, refused)
    return found


def _on_disks(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [volume for volume in spec.get("volumes") or () if not DISKS.isdisjoint(volume)]


def _disks(volume: Mapping[str, Any]) -> Iterator[ExclusiveDisk]:
    """Source: kube-scheduler's plugin VolumeRestrictions, isVolumeConflict."""
    if given := volume.get("awsElasticBlockStore"):
        yield ExclusiveDisk(("ebs", given["volumeID"]), False)
    elif given := volume.get("gcePersistentDisk"):
        yield ExclusiveDisk(("gce", given["pdName"]), bool(given.get("readOnly")))
    elif given := volume.get("iscsi"):
        yield ExclusiveDisk(("iscsi", given["iqn"]), bool(given.get("readOnly")))
    elif given := volume.get("rbd"):
        for monitor in given["monitors"]:
            yield ExclusiveDisk(
                ("rbd", monitor, given.get("pool") or "rbd", given["image"]), bool(given.get("readOnly"))
            )


def _running_containers(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Containers that run as long as the pod, including sidecars."""
    sidecars = [each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always"]
    return [*(spec.get("containers") or ()), *sidecars]


def requests(spec: Mapping[str, Any]) -> dict[str, int]:
    """Return the resources that the pod requests, including its pod slot.

    The maximum of the sum over all containers, and of each init container plus the sidecars before it. Missing requests
    default to limits, as in the API server; pod-level requests take precedence.
    Source: k8s.io/component-helpers/resource, PodRequests.
    """
    total: dict[str, int] = {}
    for container in spec.get("containers") or ():
        _add_amounts(total, _container_requests(container))
    sidecars: dict[str, int] = {}
    most: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        wanted = _container_requests(container)
        if container.get("restartPolicy") == "Always":
            _add_amounts(sidecars, wanted)
            wanted = dict(sidecars)
        else:
            _add_amounts(wanted, sidecars)
        for name, value in wanted.items():
            most[name] = max(most.get(name, 0), value)
    _add_amounts(total, sidecars)
    for name, value in most.items():
        total[name] = max(total.get(name, 0), value)
    for name, text in ((spec.get("resources") or {}).get("requests") or {}).items():
        total[name] = resource_amount(name, text)
    _add_amounts(total, {name: resource_amount(name, text) for name, text in (spec.get("overhead") or {}).items()})
    total["pods"] = 1
    return {name: value for name, value in total.items() if value}


def as_it_runs(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a spec with the allocated resources of its containers if they are larger: a resize takes time.

    Source: k8s.io/component-helpers/resource, determineEffectiveRequests.
    """
    told = {
        each["name"]: each
        for group in ("containerStatuses", "initContainerStatuses")
        for each in status.get(group) or ()
        if each.get("resources")
    }
    if not told and not status.get("resources"):
        return spec
    infeasible = any(
        each["type"] == "PodResizePending" and each.get("reason") == "Infeasible"
        for each in status.get("conditions") or ()
    )
    found = dict(spec)
    for group in ("containers", "initContainers"):
        found[group] = [
            _with_allocated(each, told[each["name"]], infeasible)
            if each["name"] in told and (group == "containers" or each.get("restartPolicy") == "Always")
            else each
            for each in spec.get(group) or ()
        ]
    if status.get("resources") and (spec.get("resources") or {}).get("requests"):
        found["resources"] = _with_allocated(spec, status, infeasible)["resources"]
    return found


def _with_allocated(given: Mapping[str, Any], told: Mapping[str, Any], infeasible: bool) -> Mapping[str, Any]:
    """Return a container or pod with the larger of its requests and its allocated resources."""
    asked = given.get("resources") or {}
    wanted = {**(asked.get("limits") or {}), **(asked.get("requests") or {})}
    most = {} if infeasible else dict(wanted)
    for held in ((told.get("resources") or {}).get("requests"), told.get("allocatedResources")):
        for name, text in (held or {}).items():
            if name not in most or resource_amount(name, text) > resource_amount(name, most[name]):
                most[name] = text
    return given if most == wanted else {**given, "resources": {"requests": most}}


def _asked(container: Mapping[str, Any]) -> dict[str, Any]:
    given = container.get("resources") or {}
    return {**(given.get("limits") or {}), **(given.get("requests") or {})}


def _container_requests(container: Mapping[str, Any]) -> dict[str, int]:
    return {name: resource_amount(name, text) for name, text in _asked(container).items()}


def _is_extended(name: str) -> bool:
    """Return True for an extended resource, and for the one that is named after a DeviceClass.

    Source: IsDRAExtendedResourceName of kube-scheduler.
    """
    return "/" in name and (
        not (name.startswith("requests.") or "kubernetes.io/" in name) or name.startswith(DEVICE_CLASS_PREFIX)
    )


def _extended_requests(spec: Mapping[str, Any]) -> Iterator[ExtendedRequest]:
    first = spec.get("initContainers") or ()
    for index, container in enumerate((*first, *(spec.get("containers") or ()))):
        amounts = {
            name: value for name, value in _container_requests(container).items() if _is_extended(name) and value
        }
        if amounts:
            short_lived = index < len(first) and container.get("restartPolicy") != "Always"
            yield ExtendedRequest(
                index, container.get("name") or "", short_lived, tuple(sorted(_asked(container))), amounts
            )


def _add_amounts(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, value in more.items():
        total[name] = total.get(name, 0) + value
