"""Limits on user input in pods and claims, enforced before the scheduler reads it.

The API server limits the size of an object (1.5 MiB) and of its annotations (256 KiB), but not the number of terms,
labels or volumes, nor the magnitude of values. A pod that exceeds these limits is still booked (its requests and its
node), but it is reported as unschedulable, and its other fields are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from avactl.contracts.pod_annotations import MAX_TEXT_CHARS, Reader, read_by
from avactl.scheduler.objects.gangs import GANG_LABELS

_MAX_CHARS = {each.name: each.max_chars for each in read_by(Reader.SCHEDULER)}
"""Longest values of the annotations that the scheduler reads."""
_LABELS, _VOLUMES, _TOLERATIONS, _CLAIMS = 256, 256, 128, 64
_CONTAINERS = 512
_RESOURCES = 64
_TERMS = 64
"""Expressions of a pod's node affinity, and of each selector of its pod affinity and topology spread."""
_VALUES = 8192
"""Maximum values of all expressions together; node affinity that lists nodes by name has many."""
_POD_TERMS = 16
"""Terms of pod affinity, of pod anti-affinity, and topology spread constraints."""
_WEIGHT = 100
"""Maximum weight of a preference."""
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_KEPT = ("schedulerName", "nodeName", "priority", "priorityClassName", "schedulingGates", "preemptionPolicy")
"""Fields of a refused pod's spec that are read all the same."""
_BOOKED = ("containers", "initContainers", "overhead", "resources", "resourceClaims", "terminationGracePeriodSeconds")


def quote(text: object) -> str:
    """Quote user input for a message: one line of at most `MAX_TEXT_CHARS` printable characters."""
    shown = "".join(each if each.isprintable() else "?" for each in str(text)[: MAX_TEXT_CHARS + 1])
    return shown if len(shown) <= MAX_TEXT_CHARS else f"{shown[: MAX_TEXT_CHARS - 1]}…"


def bounded(item: Mapping[str, Any], same_spec: bool = False) -> tuple[Mapping[str, Any], str]:
    """Return a pod within the limits, and a message about what exceeded them; empty if the pod is unchanged.

    `same_spec`: its spec was found to be within the limits before, and cannot have changed.
    """
    reason = _metadata(item["metadata"]) or ("" if same_spec else _spec(item["spec"]))
    return (item, "") if not reason else (stripped(item), reason)


def stripped(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod reduced to what it holds: metadata, requests, claims and node."""
    metadata, spec = item["metadata"], item["spec"]
    notes, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    found = dict(metadata)
    found["annotations"] = {
        name: notes[name] for name, most in _MAX_CHARS.items() if name in notes and len(notes[name]) <= most
    }
    found["labels"] = dict(list(labels.items())[:_LABELS])
    found["labels"].update((key, labels[key]) for key in GANG_LABELS & labels.keys())
    short = {key: spec[key] for key in (*_KEPT, *_BOOKED) if key in spec}
    if len(spec.get("resourceClaims") or ()) > _CLAIMS:
        short["resourceClaims"] = spec["resourceClaims"][:_CLAIMS]
    return {**item, "metadata": found, "spec": short}


def selector_excess(selector: Mapping[str, Any] | None) -> str:
    """Return why a label selector exceeds the bounds; empty if it does not."""
    if not selector:
        return ""
    expressions = selector.get("matchExpressions") or ()
    count = len(expressions) + len(selector.get("matchLabels") or ())
    if count > _TERMS:
        return f"a label selector has {count} requirements; at most {_TERMS} are read"
    return _many_values(sum(len(each.get("values") or ()) for each in expressions))


def _metadata(metadata: Mapping[str, Any]) -> str:
    notes, labels = metadata.get("annotations"), metadata.get("labels")
    if notes:
        for name, most in _MAX_CHARS.items():
            if name in notes and len(notes[name]) > most:
                return f"annotation {name}: its value has {len(notes[name])} characters; at most {most} are read"
    return f"it has {len(labels)} labels; at most {_LABELS} are read" if labels and len(labels) > _LABELS else ""


def _spec(spec: Mapping[str, Any]) -> str:
    for what, given, most in (
        ("entries in nodeSelector", spec.get("nodeSelector"), _TERMS),
        ("volumes", spec.get("volumes"), _VOLUMES),
        ("tolerations", spec.get("tolerations"), _TOLERATIONS),
        ("resource claims", spec.get("resourceClaims"), _CLAIMS),
        ("topology spread constraints", spec.get("topologySpreadConstraints"), _POD_TERMS),
        ("containers", spec.get("containers"), _CONTAINERS),
        ("init containers", spec.get("initContainers"), _CONTAINERS),
    ):
        if given and len(given) > most:
            return f"it has {len(given)} {what}; at most {most} are read"
    return _resources(spec) or _affinity(spec)


def _resources(spec: Mapping[str, Any]) -> str:
    for container in spec["containers"]:
        for given in (container.get("resources") or {}).values():
            if len(given) > _RESOURCES:
                return f"a container names {len(given)} resources; at most {_RESOURCES} are read"
        ports = container.get("ports")
        if ports and len(ports) > _VOLUMES:
            return f"a container has {len(ports)} ports; at most {_VOLUMES} are read"
    return ""


def _affinity(spec: Mapping[str, Any]) -> str:
    affinity = spec.get("affinity")
    if affinity:
        reason = _node_affinity(affinity.get("nodeAffinity") or {})
        for kind in ("podAffinity", "podAntiAffinity"):
            reason = reason or _pod_affinity(kind, affinity.get(kind) or {})
        if reason:
            return reason
    for each in spec.get("topologySpreadConstraints") or ():
        reason = selector_excess(each.get("labelSelector"))
        if reason or len(each.get("matchLabelKeys") or ()) > _TERMS:
            return f"topologySpreadConstraints: {reason or 'too many matchLabelKeys'}"
    return ""


def _node_affinity(given: Mapping[str, Any]) -> str:
    required = (given.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or ()
    preferred = [each.get("preference") or {} for each in given.get(_PREFERRED) or ()]
    count = values = 0
    for term in (*required, *preferred):
        expressions = (*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ()))
        count += len(expressions)
        values += sum(len(each.get("values") or ()) for each in expressions)
    if max(count, len(required), len(preferred)) > _TERMS:
        count = max(count, len(required), len(preferred))
        return f"nodeAffinity has {count} expressions; at most {_TERMS} are read"
    reason = _many_values(values) or _heavy(given)
    return f"nodeAffinity: {reason}" if reason else ""


def _pod_affinity(kind: str, given: Mapping[str, Any]) -> str:
    preferred = given.get(_PREFERRED) or ()
    terms = (*(given.get("requiredDuringSchedulingIgnoredDuringExecution") or ()), *preferred)
    if len(terms) > _POD_TERMS:
        return f"{kind} has {len(terms)} terms; at most {_POD_TERMS} are read"
    if reason := _heavy(given):
        return f"{kind}: {reason}"
    for term in (each.get("podAffinityTerm", each) for each in terms):
        reason = selector_excess(term.get("labelSelector")) or selector_excess(term.get("namespaceSelector"))
        if not reason and len(term.get("namespaces") or ()) > _VALUES:
            reason = f"{len(term['namespaces'])} namespaces; at most {_VALUES} are read"
        if reason:
            return f"{kind}: {reason}"
    return ""


def _heavy(given: Mapping[str, Any]) -> str:
    """Return which weight the API server would not accept; a snapshot is not checked by it."""
    weights = [each.get("weight", 0) for each in given.get(_PREFERRED) or ()]
    return "" if all(0 < weight <= _WEIGHT for weight in weights) else f"a weight is not one of 1 to {_WEIGHT}"


def _many_values(count: int) -> str:
    return f"its expressions list {count} values; at most {_VALUES} are read" if count > _VALUES else ""
