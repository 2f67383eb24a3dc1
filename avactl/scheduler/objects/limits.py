"""Limits on user input in pods and claims, enforced before the scheduler reads it.

The API server limits the size of an object (1.5 MiB) and of its annotations (256 KiB), but not the number of terms,
labels or volumes, nor the magnitude of values. A pod that exceeds these limits is still booked (its requests and its
node), but it is reported as unschedulable, and its other fields are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from avactl.contracts.pod_annotations import MAX_TEXT_CHARS, AnnotationReader, read_by
from avactl.scheduler.objects.gangs import GANG_LABELS

CONSTRAINT_ANNOTATIONS = frozenset(each.name for each in read_by(AnnotationReader.CONSTRAINTS))
"""Pod annotations that constraints parse when they are asked about the pod."""
_MAX_CHARS = {each.name: each.max_chars for each in read_by(AnnotationReader.SCHEDULER)}
"""Longest values of the annotations that the scheduler reads."""
MAX_LABELS, MAX_VOLUMES, MAX_TOLERATIONS, MAX_CLAIMS = 256, 256, 128, 64
MAX_CONTAINERS = 512
MAX_RESOURCES = 64
MAX_EXPRESSIONS = 64
"""Expressions of a pod's node affinity, and of each selector of its pod affinity and topology spread."""
MAX_VALUES = 8192
"""Maximum values of all expressions together; node affinity that lists nodes by name has many."""
MAX_POD_TERMS = 16
"""Terms of pod affinity, of pod anti-affinity, and topology spread constraints."""
MAX_WEIGHT = 100
"""Maximum weight of a preference."""
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
KEPT_FIELDS = (
    "schedulerName",
    "nodeName",
    "priority",
    "priorityClassName",
    "schedulingGates",
    "preemptionPolicy",
    "schedulingGroup",
)
"""Fields of a refused pod's spec that are read all the same."""
BOOKED_FIELDS = (
    "containers",
    "initContainers",
    "overhead",
    "resources",
    "resourceClaims",
    "terminationGracePeriodSeconds",
)


def quote(text: object) -> str:
    """Quote user input for a message: one line of at most `MAX_TEXT_CHARS` printable characters."""
    shown = "".join(each if each.isprintable() else "?" for each in str(text)[: MAX_TEXT_CHARS + 1])
    return shown if len(shown) <= MAX_TEXT_CHARS else f"{shown[: MAX_TEXT_CHARS - 1]}…"


def bounded(item: Mapping[str, Any], same_spec: bool = False) -> tuple[Mapping[str, Any], str]:
    """Return a pod within the limits, and a message about what exceeded them; empty if the pod is unchanged.

    `same_spec`: its spec was found to be within the limits before, and cannot have changed.
    """
    reason = _metadata_excess(item["metadata"]) or ("" if same_spec else _spec_excess(item["spec"]))
    return (item, "") if not reason else (stripped(item), reason)


def stripped(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod reduced to what it holds: metadata, requests, claims and node."""
    metadata, spec = item["metadata"], item["spec"]
    notes, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    short_metadata = dict(metadata)
    short_metadata["annotations"] = {
        name: notes[name] for name, most in _MAX_CHARS.items() if name in notes and len(notes[name]) <= most
    }
    short_metadata["labels"] = dict(list(labels.items())[:MAX_LABELS])
    short_metadata["labels"].update((key, labels[key]) for key in GANG_LABELS & labels.keys())
    short = {key: spec[key] for key in (*KEPT_FIELDS, *BOOKED_FIELDS) if key in spec}
    if len(spec.get("resourceClaims") or ()) > MAX_CLAIMS:
        short["resourceClaims"] = spec["resourceClaims"][:MAX_CLAIMS]
    return {**item, "metadata": short_metadata, "spec": short}


def selector_excess(selector: Mapping[str, Any] | None) -> str:
    """Return why a label selector exceeds the bounds; empty if it does not."""
    if not selector:
        return ""
    expressions = selector.get("matchExpressions") or ()
    count = len(expressions) + len(selector.get("matchLabels") or ())
    if count > MAX_EXPRESSIONS:
        return f"a label selector has {count} requirements; at most {MAX_EXPRESSIONS} are read"
    return _value_excess(sum(len(each.get("values") or ()) for each in expressions))


def _metadata_excess(metadata: Mapping[str, Any]) -> str:
    notes, labels = metadata.get("annotations"), metadata.get("labels")
    if notes:
        for name, most in _MAX_CHARS.items():
            if name in notes and len(notes[name]) > most:
                return f"annotation {name}: its value has {len(notes[name])} characters; at most {most} are read"
    return f"it has {len(labels)} labels; at most {MAX_LABELS} are read" if labels and len(labels) > MAX_LABELS else ""


def _spec_excess(spec: Mapping[str, Any]) -> str:
    for what, given, most in (
        ("entries in nodeSelector", spec.get("nodeSelector"), MAX_EXPRESSIONS),
        ("volumes", spec.get("volumes"), MAX_VOLUMES),
        ("tolerations", spec.get("tolerations"), MAX_TOLERATIONS),
        ("resource claims", spec.get("resourceClaims"), MAX_CLAIMS),
        ("topology spread constraints", spec.get("topologySpreadConstraints"), MAX_POD_TERMS),
        ("containers", spec.get("containers"), MAX_CONTAINERS),
        ("init containers", spec.get("initContainers"), MAX_CONTAINERS),
    ):
        if given and len(given) > most:
            return f"it has {len(given)} {what}; at most {most} are read"
    return _resource_excess(spec) or _affinity_excess(spec)


def _resource_excess(spec: Mapping[str, Any]) -> str:
    for container in (*spec["containers"], *(spec.get("initContainers") or ())):
        for given in (container.get("resources") or {}).values():
            if len(given) > MAX_RESOURCES:
                return f"a container names {len(given)} resources; at most {MAX_RESOURCES} are read"
        ports = container.get("ports")
        if ports and len(ports) > MAX_VOLUMES:
            return f"a container has {len(ports)} ports; at most {MAX_VOLUMES} are read"
    return ""


def _affinity_excess(spec: Mapping[str, Any]) -> str:
    affinity = spec.get("affinity")
    if affinity:
        reason = _node_affinity_excess(affinity.get("nodeAffinity") or {})
        for kind in ("podAffinity", "podAntiAffinity"):
            reason = reason or _pod_affinity_excess(kind, affinity.get(kind) or {})
        if reason:
            return reason
    for each in spec.get("topologySpreadConstraints") or ():
        reason = selector_excess(each.get("labelSelector"))
        if reason or len(each.get("matchLabelKeys") or ()) > MAX_EXPRESSIONS:
            return f"topologySpreadConstraints: {reason or 'too many matchLabelKeys'}"
    return ""


def _node_affinity_excess(given: Mapping[str, Any]) -> str:
    required = (given.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or ()
    preferred = [each.get("preference") or {} for each in given.get(_PREFERRED) or ()]
    count = values = 0
    for term in (*required, *preferred):
        expressions = (*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ()))
        count += len(expressions)
        values += sum(len(each.get("values") or ()) for each in expressions)
    if max(count, len(required), len(preferred)) > MAX_EXPRESSIONS:
        count = max(count, len(required), len(preferred))
        return f"nodeAffinity has {count} expressions; at most {MAX_EXPRESSIONS} are read"
    reason = _value_excess(values) or _invalid_weight(given)
    return f"nodeAffinity: {reason}" if reason else ""


def _pod_affinity_excess(kind: str, given: Mapping[str, Any]) -> str:
    preferred = given.get(_PREFERRED) or ()
    terms = (*(given.get("requiredDuringSchedulingIgnoredDuringExecution") or ()), *preferred)
    if len(terms) > MAX_POD_TERMS:
        return f"{kind} has {len(terms)} terms; at most {MAX_POD_TERMS} are read"
    if reason := _invalid_weight(given):
        return f"{kind}: {reason}"
    for term in (each.get("podAffinityTerm", each) for each in terms):
        reason = selector_excess(term.get("labelSelector")) or selector_excess(term.get("namespaceSelector"))
        if not reason and len(term.get("namespaces") or ()) > MAX_VALUES:
            reason = f"{len(term['namespaces'])} namespaces; at most {MAX_VALUES} are read"
        if reason:
            return f"{kind}: {reason}"
    return ""


def _invalid_weight(given: Mapping[str, Any]) -> str:
    """Return an error for weights that the API server rejects, because it does not check snapshots."""
    weights = [each.get("weight", 0) for each in given.get(_PREFERRED) or ()]
    return "" if all(0 < weight <= MAX_WEIGHT for weight in weights) else f"a weight is not one of 1 to {MAX_WEIGHT}"


def _value_excess(count: int) -> str:
    return f"its expressions list {count} values; at most {MAX_VALUES} are read" if count > MAX_VALUES else ""
