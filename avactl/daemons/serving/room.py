"""Room for more pods: quotas of the namespace, and machines. An estimate before a rollout; the scheduler decides.

GPUs by DRA claims are not counted here: pods that wait for them are found when they start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from avactl.base.quantity import format_quantity, parse_quantity

Body = Mapping[str, Any]
Amounts = dict[str, Fraction]
_BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")


class MachineRoom(NamedTuple):
    """A machine: what decides which pods it takes, and what is free on it."""

    labels: Mapping[str, str]
    taints: tuple[Body, ...]
    unschedulable: bool
    free: Mapping[str, Fraction]


def make_machine(node: Body, used: Iterable[Amounts]) -> MachineRoom:
    """Return a machine on which pods have these requests."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    free = {key: _parse_amount(value) for key, value in allocatable.items()}
    for asked in used:
        for key, value in asked.items():
            free[key] = free.get(key, Fraction(0)) - value
    own = node.get("spec") or {}
    return MachineRoom(
        node["metadata"].get("labels") or {},
        tuple(own.get("taints") or ()),
        bool(own.get("unschedulable")),
        {key: max(value, Fraction(0)) for key, value in free.items()},
    )


def missing_capacity(template: Body, extra: int, quotas: Iterable[Body], machines: Iterable[MachineRoom]) -> str:
    """Return what is missing for `extra` pods of a template; empty if nothing is."""
    if extra <= 0:
        return ""
    asked = pod_requests(template["spec"])
    for quota in quotas:
        if (quota.get("spec") or {}).get("scopes") or (quota.get("spec") or {}).get("scopeSelector"):
            continue
        status = quota.get("status") or {}
        hard, used = status.get("hard") or {}, status.get("used") or {}
        for key, limit in hard.items():
            each = _of_quota(key, asked)
            if each is None:
                continue
            left, need = _parse_amount(limit) - _parse_amount(used.get(key, "0")), each * extra
            if need > left:
                return (
                    f"quota {quota['metadata']['name']}: {extra} more pods need {_format_amount(need)} {key}, "
                    f"{_format_amount(max(left, Fraction(0)))} of {limit} are left"
                )
    fitting = sum(
        int(
            min(
                (each.free.get(key, Fraction(0)) // value for key, value in asked.items() if value > 0),
                default=Fraction(extra),
            )
        )
        for each in machines
        if _allows_pod(each, template["spec"])
    )
    if fitting >= extra:
        return ""
    wants = ", ".join(
        f"{_format_amount(value)} {key}" for key, value in sorted(asked.items()) if value and key != "pods"
    )
    return f"machines have room for {fitting} of {extra} more pods, with {wants or 'no requests'} each"


def pod_requests(spec: Body) -> Amounts:
    """Return the requests of a pod by resource, and `pods`: 1."""
    total: Amounts = {"pods": Fraction(1)}
    peak: Amounts = {}
    for container in spec.get("initContainers") or ():
        asked = _container_requests(container)
        if container.get("restartPolicy") == "Always":
            for key, value in asked.items():
                total[key] = total.get(key, Fraction(0)) + value
        else:
            for key, value in asked.items():
                peak[key] = max(peak.get(key, Fraction(0)), value)
    for container in spec.get("containers") or ():
        for key, value in _container_requests(container).items():
            total[key] = total.get(key, Fraction(0)) + value
    return {key: max(total.get(key, Fraction(0)), peak.get(key, Fraction(0))) for key in {**total, **peak}}


def _container_requests(container: Body) -> Amounts:
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {key: _parse_amount(value) for key, value in asked.items()}


def _of_quota(key: str, asked: Amounts) -> Fraction | None:
    if key in ("pods", "count/pods"):
        return Fraction(1)
    return asked.get(key.removeprefix("requests."))


def _allows_pod(machine: MachineRoom, spec: Body) -> bool:
    labels = machine.labels
    if machine.unschedulable or any(
        labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()
    ):
        return False
    for taint in machine.taints:
        if taint.get("effect") in _BLOCKING_EFFECTS and not any(
            _tolerates(each, taint) for each in spec.get("tolerations") or ()
        ):
            return False
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    terms = (affinity or {}).get("nodeSelectorTerms")
    return not terms or any(
        all(_matches_expression(each, labels) for each in term.get("matchExpressions") or ()) for term in terms
    )


def _tolerates(toleration: Body, taint: Body) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint.get("key"))
    return (toleration.get("key"), toleration.get("value", "")) == (taint.get("key"), taint.get("value", ""))


def _matches_expression(expression: Body, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or ()
    match expression.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            return True


def _parse_amount(value: Any) -> Fraction:
    try:
        return parse_quantity(str(value))
    except ValueError:
        return Fraction(0)


def _format_amount(value: Fraction) -> str:
    return format_quantity(value)
