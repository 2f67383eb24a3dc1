"""Snapshots of a live cluster, limited to the fields that scheduling needs.

Only listed fields are included: never environment variables, arguments, commands, images, foreign annotations or
`managedFields`. Secrets are never requested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson

from avactl.base.errors import HintedError
from avactl.base.exit_codes import USAGE
from avactl.base.object_identity import namespaced_name
from avactl.base.terminal import shorten_middle
from avactl.change.plan.cluster_state import ClusterState
from avactl.change.plan.snapshot.schema import want_objects
from avactl.contracts import names
from avactl.contracts.cache import STATUS_KEY, CacheStatus, DatasetStatus
from avactl.contracts.document import DocumentError, dump, load
from avactl.contracts.pod_annotations import AnnotationReader, read_by
from avactl.contracts.scheduling import POOL_KEY, QUOTA_KEY, PlacementPolicy
from avactl.program.manifest import Body
from avactl.scheduler.objects.gangs import GANG_LABELS
from avactl.scheduler.objects.node_faults import reports_fault
from avactl.scheduler.objects.pod_info import DISRUPTED
from avactl.scheduler.objects.pod_requirements import DISKS
from avactl.scheduler.objects.storage_objects import OLD_CLASS, SELECTED_NODE

FORMAT = "avactl-snapshot"
VERSION = 2
MAX_BYTES = 512 * 1024 * 1024
"""Largest snapshot in bytes: ten times that of a hundred thousand pods."""


class SnapshotError(HintedError):
    """The file is not a snapshot."""

    exit_code = USAGE


class CaptureError(HintedError):
    """The cluster cannot be read."""


# -- fields of each kind ---------------------------------------------------------------------------------------------

_NOTES = tuple(each.name for each in read_by(AnnotationReader.SNAPSHOT))
_DISK_KEYS = ("volumeID", "pdName", "iqn", "monitors", "pool", "image", "readOnly")
_STORAGE_FIELDS = ("storageClassName", "volumeMode", "volumeAttributesClassName")


def _keep_keys(given: Mapping[str, Any], *keys: str) -> Body:
    """Return these keys if they are set."""
    return {key: given[key] for key in keys if given.get(key) not in (None, "", [], {})}


def _strip_names(item: Mapping[str, Any], *more: str) -> Body:
    return _keep_keys(item["metadata"], "namespace", "name", *more)


def _strip_container(given: Mapping[str, Any]) -> Body:
    found = _keep_keys(given, "restartPolicy")
    resources = _keep_keys(given.get("resources") or {}, "requests", "limits")
    claims = [_keep_keys(each, "name", "request") for each in (given.get("resources") or {}).get("claims") or ()]
    if claims:
        resources["claims"] = claims
    if resources:
        found["resources"] = resources
    ports = [
        _keep_keys(each, "hostPort", "hostIP", "protocol") for each in given.get("ports") or () if each.get("hostPort")
    ]
    if ports:
        found["ports"] = ports
    return found


def _pod_spec(given: Mapping[str, Any]) -> Body:
    """Return the fields that the scheduler's PodInfo and PodRequirements read, except the node."""
    found = _keep_keys(
        given,
        "schedulerName",
        "priorityClassName",
        "priority",
        "preemptionPolicy",
        "nodeSelector",
        "tolerations",
        "overhead",
        "schedulingGates",
        "resourceClaims",
        "terminationGracePeriodSeconds",
        "schedulingGroup",
    )
    affinity = {
        kind: {rule: terms for rule, terms in rules.items() if terms}
        for kind, rules in (given.get("affinity") or {}).items()
        if rules and any(rules.values())
    }
    if affinity:
        found["affinity"] = affinity
    spread = [
        each
        for each in given.get("topologySpreadConstraints") or ()
        if each.get("whenUnsatisfiable") == "DoNotSchedule"
    ]
    if spread:
        found["topologySpreadConstraints"] = spread
    if (given.get("resources") or {}).get("requests"):
        found["resources"] = {"requests": given["resources"]["requests"]}
    for group in ("containers", "initContainers"):
        containers = [_strip_container(each) for each in given.get(group) or ()]
        if containers:
            found[group] = containers
    volumes = []
    for volume in given.get("volumes") or ():
        if "persistentVolumeClaim" in volume:
            claim = _keep_keys(volume["persistentVolumeClaim"], "claimName")
            volumes.append({"name": volume["name"], "persistentVolumeClaim": claim})
        elif "ephemeral" in volume:
            volumes.append({"name": volume["name"], "ephemeral": {}})
        elif not DISKS.isdisjoint(volume):
            volumes += [{kind: _keep_keys(volume[kind], *_DISK_KEYS)} for kind in DISKS if kind in volume]
    if volumes:
        found["volumes"] = volumes
    return found


def _strip_pod(item: Mapping[str, Any]) -> Body | None:
    status = item.get("status") or {}
    labels = item["metadata"].get("labels") or {}
    ended = status.get("phase") in ("Succeeded", "Failed")
    if ended and GANG_LABELS.isdisjoint(labels) and "schedulingGroup" not in item["spec"]:
        return None
    metadata = _strip_names(item, "uid", "creationTimestamp", "deletionTimestamp", "labels")
    notes = _keep_keys(item["metadata"].get("annotations") or {}, *_NOTES)
    if notes:
        metadata["annotations"] = notes
    owners = [_keep_keys(each, "kind", "name", "controller") for each in item["metadata"].get("ownerReferences") or ()]
    if any(owner.get("controller") for owner in owners):
        metadata["ownerReferences"] = [owner for owner in owners if owner.get("controller")]
    conditions = [
        _keep_keys(each, "type", "status", "reason", "message", "lastTransitionTime")
        for each in status.get("conditions") or ()
        # conditions: time of binding, and the preemptor
        if each["type"] == DISRUPTED or (each["type"] == "PodScheduled" and each["status"] == "True")
    ]
    found = {
        "metadata": metadata,
        "spec": {**_pod_spec(item["spec"]), **_keep_keys(item["spec"], "nodeName")},
        "status": _keep_keys(
            status, "phase", "resourceClaimStatuses", "extendedResourceClaimStatus", "nominatedNodeName"
        ),
    }
    if conditions:
        found["status"]["conditions"] = conditions
    return found


def _strip_node(item: Mapping[str, Any]) -> Body:
    spec, status = item.get("spec") or {}, item.get("status") or {}
    taints = [_keep_keys(taint, "key", "value", "effect") for taint in spec.get("taints") or ()]
    found: Body = {"metadata": _strip_names(item, "labels"), "status": _keep_keys(status, "allocatable")}
    allocatable = status.get("allocatable") or {}
    # Devices that their plugins have withdrawn: capacity without them.
    withdrawn = {
        name: amount
        for name, amount in (status.get("capacity") or {}).items()
        if "/" in name and name in allocatable and allocatable[name] != amount
    }
    if withdrawn:
        found["status"]["capacity"] = withdrawn
    conditions = [
        _keep_keys(each, "type", "status", "reason", "message")
        for each in status.get("conditions") or ()
        if reports_fault(each) or (each["type"] == names.TOPOLOGY_CONDITION and each["status"] == "False")
    ]
    if conditions:
        found["status"]["conditions"] = conditions
    found["spec"] = _keep_keys({**spec, "taints": taints}, "taints", "unschedulable")
    return found


def strip_config(item: Mapping[str, Any]) -> Body | None:
    labels = item["metadata"].get("labels") or {}
    data = _keep_keys(item.get("data") or {}, POOL_KEY, QUOTA_KEY)
    if not data:
        return None
    metadata = {**_strip_names(item), "labels": _keep_keys(labels, names.CONFIG_LABEL)}
    return {"metadata": metadata, "data": data}


def strip_cache_status(item: Mapping[str, Any]) -> Body | None:
    """Return the share of each dataset version that is cached; None if the cache daemon has not reported any."""
    try:
        status = load(CacheStatus, (item.get("data") or {}).get(STATUS_KEY))
    except DocumentError:
        return None  # the scheduler does not use it, either
    datasets = {
        key: DatasetStatus(percent=each.percent, claims=each.claims, holders=each.holders)
        for key, each in status.datasets.items()
    }
    return {"metadata": _strip_names(item), "data": {STATUS_KEY: dump(CacheStatus(datasets=datasets))}}


def _strip_job(item: Mapping[str, Any]) -> Body:
    """Return whether a Job has ended, or is suspended."""
    conditions = [
        _keep_keys(each, "type", "status")
        for each in (item.get("status") or {}).get("conditions") or ()
        if each["type"] in ("Complete", "Failed")
    ]
    return {
        "metadata": _strip_names(item),
        "spec": _keep_keys(item.get("spec") or {}, "suspend"),
        "status": {"conditions": conditions} if conditions else {},
    }


def strip_pod_group(item: Mapping[str, Any]) -> Body:
    """Extract what a PodGroup asks for: all of it, because fields that the scheduler does not know are refused."""
    return {"metadata": _strip_names(item, "uid"), "spec": item.get("spec") or {}}


def _strip_claim(item: Mapping[str, Any]) -> Body:
    devices = (item.get("spec") or {}).get("devices") or {}
    metadata = _strip_names(item, "uid", "deletionTimestamp")
    metadata["resourceVersion"] = "0"
    found: Body = {"metadata": metadata, "spec": {"devices": _keep_keys(devices, "requests", "constraints")}}
    status = item.get("status") or {}
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results")
    kept = _keep_keys(status, "reservedFor")
    if results:
        kept["allocation"] = {"devices": {"results": results}}
    if kept:
        found["status"] = kept
    return found


def _strip_slice(item: Mapping[str, Any]) -> Body | None:
    spec = item["spec"]
    if not spec.get("nodeName"):
        return None
    return {"metadata": _strip_names(item), "spec": spec}


def _volume_claim(item: Mapping[str, Any]) -> Body:
    notes = _keep_keys(item["metadata"].get("annotations") or {}, SELECTED_NODE, OLD_CLASS)
    metadata = {**_strip_names(item, "uid", "deletionTimestamp"), **({"annotations": notes} if notes else {})}
    spec = _keep_keys(item["spec"], "volumeName", "accessModes", "selector", *_STORAGE_FIELDS)
    spec["resources"] = _keep_keys(item["spec"].get("resources") or {}, "requests")
    return {"metadata": metadata, "spec": spec, "status": _keep_keys(item.get("status") or {}, "phase")}


def _strip_volume(item: Mapping[str, Any]) -> Body:
    given = item["spec"]
    spec = _keep_keys(given, "nodeAffinity", "capacity", "accessModes", *_STORAGE_FIELDS)
    if given.get("csi"):
        spec["csi"] = _keep_keys(given["csi"], "driver", "volumeHandle")
    if given.get("claimRef"):
        spec["claimRef"] = _keep_keys(given["claimRef"], "namespace", "name", "uid")
    metadata = {**_strip_names(item, "uid", "labels", "deletionTimestamp"), "resourceVersion": "0"}
    notes = _keep_keys(item["metadata"].get("annotations") or {}, OLD_CLASS)
    if notes:
        metadata["annotations"] = notes
    return {"metadata": metadata, "spec": spec, "status": _keep_keys(item.get("status") or {}, "phase")}


def _csi_node(item: Mapping[str, Any]) -> Body:
    drivers = [_keep_keys(each, "name", "allocatable") for each in (item.get("spec") or {}).get("drivers") or ()]
    return {"metadata": _strip_names(item), "spec": {"drivers": drivers}}


def _strip_attachment(item: Mapping[str, Any]) -> Body:
    spec = item["spec"]
    source = _keep_keys(spec.get("source") or {}, "persistentVolumeName")
    return {"metadata": _strip_names(item), "spec": {**_keep_keys(spec, "attacher", "nodeName"), "source": source}}


Taken = Callable[[Mapping[str, Any]], Body | None]
"""Extracts the needed fields of an object; None: the object is omitted."""


def _field_taker(*top: str, metadata: Iterable[str] = (), **parts: Iterable[str]) -> Taken:
    """Return a function that extracts the names, these top-level and metadata fields, and fields of parts (`spec`)."""

    def take(item: Mapping[str, Any]) -> Body:
        inner = {part: _keep_keys(item.get(part) or {}, *keys) for part, keys in parts.items()}
        return {"metadata": _strip_names(item, *metadata), **_keep_keys(item, *top), **inner}

    return take


RESOURCES: tuple[tuple[str, str, Taken, bool], ...] = (
    ("nodes", "/api/v1/nodes", _strip_node, False),
    ("namespaces", "/api/v1/namespaces", _field_taker(metadata=["labels"]), False),
    ("resourceslices", "/apis/resource.k8s.io/v1/resourceslices", _strip_slice, True),
    (
        "deviceclasses",
        "/apis/resource.k8s.io/v1/deviceclasses",
        _field_taker(metadata=["creationTimestamp"], spec=("selectors", "extendedResourceName")),
        True,
    ),
    ("resourceclaims", "/apis/resource.k8s.io/v1/resourceclaims", _strip_claim, True),
    (
        "poddisruptionbudgets",
        "/apis/policy/v1/poddisruptionbudgets",
        _field_taker(spec=["selector"], status=("disruptionsAllowed", "disruptedPods")),
        False,
    ),
    (
        "storageclasses",
        "/apis/storage.k8s.io/v1/storageclasses",
        _field_taker("volumeBindingMode", "provisioner", "allowedTopologies"),
        False,
    ),
    ("csinodes", "/apis/storage.k8s.io/v1/csinodes", _csi_node, False),
    ("csidrivers", "/apis/storage.k8s.io/v1/csidrivers", _field_taker(spec=["storageCapacity"]), False),
    (
        "csistoragecapacities",
        "/apis/storage.k8s.io/v1/csistoragecapacities",
        _field_taker("storageClassName", "capacity", "maximumVolumeSize", "nodeTopology"),
        False,
    ),
    ("volumeattachments", "/apis/storage.k8s.io/v1/volumeattachments", _strip_attachment, False),
    ("persistentvolumes", "/api/v1/persistentvolumes", _strip_volume, False),
    ("persistentvolumeclaims", "/api/v1/persistentvolumeclaims", _volume_claim, False),
    ("jobs", "/apis/batch/v1/jobs", _strip_job, False),
    ("pods", "/api/v1/pods", _strip_pod, False),
)
"""Resource, path, extraction function, and True if older clusters do not serve the resource."""


# -- writing one -------------------------------------------------------------------------------------------------------


def strip_objects(objects: Mapping[str, Iterable[Mapping[str, Any]]]) -> dict[str, list[Body]]:
    """Strip objects to the fields that scheduling needs, by the name of their resource."""
    ways = {name: way for name, _, way, _ in RESOURCES}
    ways |= {"configmaps": strip_config, "podgroups": strip_pod_group}
    return {name: [kept for item in items if (kept := ways[name](item)) is not None] for name, items in objects.items()}


def write(policy: PlacementPolicy, objects: Mapping[str, Sequence[Body]], taken: str) -> bytes:
    """Return the file: keys sorted, objects sorted by name, equal pod specs stored once."""
    specs: list[Body] = []
    numbers: dict[bytes, int] = {}
    pods = []
    for pod in sorted(objects.get("pods", ()), key=namespaced_name):
        spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
        text = orjson.dumps(spec, option=orjson.OPT_SORT_KEYS)
        if text not in numbers:
            numbers[text] = len(specs)
            specs.append(spec)
        pods.append({**pod, "spec": {"is": numbers[text], **_keep_keys(pod["spec"], "nodeName")}})
    data: Body = {name: sorted(items, key=namespaced_name) for name, items in objects.items() if name != "pods"}
    data |= {"podSpecs": specs, "pods": pods}
    head = {"format": FORMAT, "version": VERSION, "cluster": policy.cluster, "taken": taken}
    head["policy"] = orjson.Fragment(dump(policy))
    options = orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps({**head, "objects": data}, option=options)


# -- reading one -----------------------------------------------------------------------------------------------------


def read(text: bytes, name: str) -> ClusterState:
    """Parse a snapshot; `name` is the file's name in errors. Raises SnapshotError."""
    retake = "take a new snapshot: `avactl snapshot > state.json`"
    if len(text) > MAX_BYTES:
        raise SnapshotError(f"{name}: larger than {MAX_BYTES >> 20} MiB", retake)
    if not text.strip():
        raise SnapshotError(f"{name}: the file is empty", retake)
    try:
        data = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        begins = text.lstrip()[:1] == b"{" and FORMAT.encode() in text
        what = "the snapshot is truncated or damaged" if begins else "not a snapshot: not JSON"
        raise SnapshotError(f"{name}: {what} ({error})", retake) from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise SnapshotError(f"{name}: not an avactl snapshot", retake)
    if data.get("version") != VERSION:
        version = shorten_middle(str(data.get("version")), 40)
        newer = isinstance(found := data.get("version"), int) and found > VERSION
        hint = "update avactl here" if newer else "take a new snapshot with this avactl"
        raise SnapshotError(f"{name}: a snapshot of version {version}; this avactl reads version {VERSION}", hint)
    try:
        objects: dict[str, list[Body]] = dict(data["objects"])
        specs = objects.pop("podSpecs")
        want_objects(objects, specs)
        if not isinstance(data["taken"], str) or not isinstance(data["cluster"], str):
            raise TypeError("`taken` and `cluster` must be strings")
        pods = []
        for pod in objects["pods"]:
            spec = {**specs[pod["spec"]["is"]], **_keep_keys(pod["spec"], "nodeName")}
            if not isinstance(spec.get("nodeName", ""), str) or not {"namespace", "uid"} <= pod["metadata"].keys():
                raise ValueError(f"pod {pod['metadata']['name']} needs strings as `namespace`, `uid` and node name")
            pods.append({**pod, "spec": spec})
        objects["pods"] = pods
        return ClusterState(
            data["cluster"], load(PlacementPolicy, orjson.dumps(data["policy"])), objects, data["taken"]
        )
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        what = shorten_middle(f"{type(error).__name__}: {error}", 400)
        raise SnapshotError(f"{name}: the snapshot is damaged ({what})", retake) from None
