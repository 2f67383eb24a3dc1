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
from avactl.base.terminal import shortened
from avactl.change.plan.cluster_state import ClusterState
from avactl.change.plan.snapshot.schema import want_objects
from avactl.contracts import names
from avactl.contracts.document import dump, load
from avactl.contracts.pod_annotations import Reader, read_by
from avactl.contracts.scheduling import POOL_KEY, QUOTA_KEY, PlacementPolicy
from avactl.program.manifest import Body
from avactl.scheduler.objects.gangs import GANG_LABELS
from avactl.scheduler.objects.pod_info import DISRUPTED
from avactl.scheduler.objects.pod_requirements import DISKS
from avactl.scheduler.objects.storage_objects import OLD_CLASS, SELECTED_NODE

FORMAT = "avactl-snapshot"
VERSION = 1
MAX_BYTES = 512 * 1024 * 1024
"""Largest snapshot in bytes: ten times that of a hundred thousand pods."""


class SnapshotError(HintedError):
    """The file is not a snapshot."""

    exit_code = USAGE


class CaptureError(HintedError):
    """The cluster cannot be read."""


# -- fields of each kind ---------------------------------------------------------------------------------------------

_NOTES = tuple(each.name for each in read_by(Reader.SNAPSHOT))
_DISK = ("volumeID", "pdName", "iqn", "monitors", "pool", "image", "readOnly")
_STORAGE = ("storageClassName", "volumeMode", "volumeAttributesClassName")


def _only(given: Mapping[str, Any], *keys: str) -> Body:
    """Return these keys if they are set."""
    return {key: given[key] for key in keys if given.get(key) not in (None, "", [], {})}


def _named(item: Mapping[str, Any], *more: str) -> Body:
    return _only(item["metadata"], "namespace", "name", *more)


def _container(given: Mapping[str, Any]) -> Body:
    found = _only(given, "restartPolicy")
    resources = _only(given.get("resources") or {}, "requests", "limits")
    claims = [_only(each, "name", "request") for each in (given.get("resources") or {}).get("claims") or ()]
    if claims:
        resources["claims"] = claims
    if resources:
        found["resources"] = resources
    ports = [_only(each, "hostPort", "hostIP", "protocol") for each in given.get("ports") or () if each.get("hostPort")]
    if ports:
        found["ports"] = ports
    return found


def _pod_spec(given: Mapping[str, Any]) -> Body:
    """Return the fields that the scheduler's PodInfo and PodRequirements read, except the node."""
    found = _only(
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
        containers = [_container(each) for each in given.get(group) or ()]
        if containers:
            found[group] = containers
    volumes = []
    for volume in given.get("volumes") or ():
        if "persistentVolumeClaim" in volume:
            claim = _only(volume["persistentVolumeClaim"], "claimName")
            volumes.append({"name": volume["name"], "persistentVolumeClaim": claim})
        elif "ephemeral" in volume:
            volumes.append({"name": volume["name"], "ephemeral": {}})
        elif not DISKS.isdisjoint(volume):
            volumes += [{kind: _only(volume[kind], *_DISK)} for kind in DISKS if kind in volume]
    if volumes:
        found["volumes"] = volumes
    return found


def _pod(item: Mapping[str, Any]) -> Body | None:
    status = item.get("status") or {}
    labels = item["metadata"].get("labels") or {}
    ended = status.get("phase") in ("Succeeded", "Failed")
    if ended and GANG_LABELS.isdisjoint(labels):
        return None
    metadata = _named(item, "uid", "creationTimestamp", "deletionTimestamp", "labels")
    notes = _only(item["metadata"].get("annotations") or {}, *_NOTES)
    if notes:
        metadata["annotations"] = notes
    owners = [_only(each, "kind", "name", "controller") for each in item["metadata"].get("ownerReferences") or ()]
    if any(owner.get("controller") for owner in owners):
        metadata["ownerReferences"] = [owner for owner in owners if owner.get("controller")]
    conditions = [
        _only(each, "type", "status", "reason", "message", "lastTransitionTime")
        for each in status.get("conditions") or ()
        # conditions: time of binding, and the preemptor
        if each["type"] == DISRUPTED or (each["type"] == "PodScheduled" and each["status"] == "True")
    ]
    found = {
        "metadata": metadata,
        "spec": {**_pod_spec(item["spec"]), **_only(item["spec"], "nodeName")},
        "status": _only(status, "phase", "resourceClaimStatuses", "nominatedNodeName"),
    }
    if conditions:
        found["status"]["conditions"] = conditions
    return found


def _node(item: Mapping[str, Any]) -> Body:
    spec, status = item.get("spec") or {}, item.get("status") or {}
    taints = [_only(taint, "key", "value", "effect") for taint in spec.get("taints") or ()]
    found: Body = {"metadata": _named(item, "labels"), "status": _only(status, "allocatable")}
    found["spec"] = _only({**spec, "taints": taints}, "taints", "unschedulable")
    return found


def config(item: Mapping[str, Any]) -> Body | None:
    labels = item["metadata"].get("labels") or {}
    data = _only(item.get("data") or {}, POOL_KEY, QUOTA_KEY)
    if not data:
        return None
    metadata = {**_named(item), "labels": _only(labels, names.CONFIG_LABEL)}
    return {"metadata": metadata, "data": data}


def _claim(item: Mapping[str, Any]) -> Body:
    devices = (item.get("spec") or {}).get("devices") or {}
    metadata = _named(item, "uid", "deletionTimestamp")
    metadata["resourceVersion"] = "0"
    found: Body = {"metadata": metadata, "spec": {"devices": _only(devices, "requests", "constraints")}}
    status = item.get("status") or {}
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results")
    kept = _only(status, "reservedFor")
    if results:
        kept["allocation"] = {"devices": {"results": results}}
    if kept:
        found["status"] = kept
    return found


def _slice(item: Mapping[str, Any]) -> Body | None:
    spec = item["spec"]
    if not spec.get("nodeName"):
        return None
    return {"metadata": _named(item), "spec": spec}


def _volume_claim(item: Mapping[str, Any]) -> Body:
    notes = _only(item["metadata"].get("annotations") or {}, SELECTED_NODE, OLD_CLASS)
    metadata = {**_named(item, "uid", "deletionTimestamp"), **({"annotations": notes} if notes else {})}
    spec = _only(item["spec"], "volumeName", "accessModes", "selector", *_STORAGE)
    spec["resources"] = _only(item["spec"].get("resources") or {}, "requests")
    return {"metadata": metadata, "spec": spec, "status": _only(item.get("status") or {}, "phase")}


def _volume(item: Mapping[str, Any]) -> Body:
    given = item["spec"]
    spec = _only(given, "nodeAffinity", "capacity", "accessModes", *_STORAGE)
    if given.get("csi"):
        spec["csi"] = _only(given["csi"], "driver", "volumeHandle")
    if given.get("claimRef"):
        spec["claimRef"] = _only(given["claimRef"], "namespace", "name", "uid")
    metadata = {**_named(item, "uid", "labels", "deletionTimestamp"), "resourceVersion": "0"}
    notes = _only(item["metadata"].get("annotations") or {}, OLD_CLASS)
    if notes:
        metadata["annotations"] = notes
    return {"metadata": metadata, "spec": spec, "status": _only(item.get("status") or {}, "phase")}


def _csi_node(item: Mapping[str, Any]) -> Body:
    drivers = [_only(each, "name", "allocatable") for each in (item.get("spec") or {}).get("drivers") or ()]
    return {"metadata": _named(item), "spec": {"drivers": drivers}}


def _attachment(item: Mapping[str, Any]) -> Body:
    spec = item["spec"]
    source = _only(spec.get("source") or {}, "persistentVolumeName")
    return {"metadata": _named(item), "spec": {**_only(spec, "attacher", "nodeName"), "source": source}}


Taken = Callable[[Mapping[str, Any]], Body | None]
"""Extracts the needed fields of an object; None: the object is omitted."""


def _fields(*top: str, metadata: Iterable[str] = (), **parts: Iterable[str]) -> Taken:
    """Return a function that extracts the names, these top-level and metadata fields, and fields of parts (`spec`)."""

    def take(item: Mapping[str, Any]) -> Body:
        inner = {part: _only(item.get(part) or {}, *keys) for part, keys in parts.items()}
        return {"metadata": _named(item, *metadata), **_only(item, *top), **inner}

    return take


RESOURCES: tuple[tuple[str, str, Taken, bool], ...] = (
    ("nodes", "/api/v1/nodes", _node, False),
    ("namespaces", "/api/v1/namespaces", _fields(metadata=["labels"]), False),
    ("resourceslices", "/apis/resource.k8s.io/v1/resourceslices", _slice, True),
    (
        "deviceclasses",
        "/apis/resource.k8s.io/v1/deviceclasses",
        _fields(spec=("selectors", "extendedResourceName")),
        True,
    ),
    ("resourceclaims", "/apis/resource.k8s.io/v1/resourceclaims", _claim, True),
    (
        "poddisruptionbudgets",
        "/apis/policy/v1/poddisruptionbudgets",
        _fields(spec=["selector"], status=("disruptionsAllowed", "disruptedPods")),
        False,
    ),
    (
        "storageclasses",
        "/apis/storage.k8s.io/v1/storageclasses",
        _fields("volumeBindingMode", "provisioner", "allowedTopologies"),
        False,
    ),
    ("csinodes", "/apis/storage.k8s.io/v1/csinodes", _csi_node, False),
    ("csidrivers", "/apis/storage.k8s.io/v1/csidrivers", _fields(spec=["storageCapacity"]), False),
    (
        "csistoragecapacities",
        "/apis/storage.k8s.io/v1/csistoragecapacities",
        _fields("storageClassName", "capacity", "maximumVolumeSize", "nodeTopology"),
        False,
    ),
    ("volumeattachments", "/apis/storage.k8s.io/v1/volumeattachments", _attachment, False),
    ("persistentvolumes", "/api/v1/persistentvolumes", _volume, False),
    ("persistentvolumeclaims", "/api/v1/persistentvolumeclaims", _volume_claim, False),
    ("pods", "/api/v1/pods", _pod, False),
)
"""Resource, path, extraction function, and True if older clusters do not serve the resource."""


# -- writing one -------------------------------------------------------------------------------------------------------


def strip(objects: Mapping[str, Iterable[Mapping[str, Any]]]) -> dict[str, list[Body]]:
    """Strip objects to the fields that scheduling needs, by the name of their resource."""
    ways = {name: way for name, _, way, _ in RESOURCES} | {"configmaps": config}
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
        pods.append({**pod, "spec": {"is": numbers[text], **_only(pod["spec"], "nodeName")}})
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
        version = shortened(str(data.get("version")), 40)
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
            spec = {**specs[pod["spec"]["is"]], **_only(pod["spec"], "nodeName")}
            if not isinstance(spec.get("nodeName", ""), str) or not {"namespace", "uid"} <= pod["metadata"].keys():
                raise ValueError(f"pod {pod['metadata']['name']} needs strings as `namespace`, `uid` and node name")
            pods.append({**pod, "spec": spec})
        objects["pods"] = pods
        return ClusterState(
            data["cluster"], load(PlacementPolicy, orjson.dumps(data["policy"])), objects, data["taken"]
        )
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        what = shortened(f"{type(error).__name__}: {error}", 400)
        raise SnapshotError(f"{name}: the snapshot is damaged ({what})", retake) from None
