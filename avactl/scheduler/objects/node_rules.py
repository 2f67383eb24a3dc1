"""Node filters as in kube-scheduler: node selector, required node affinity, taints and cordons."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

import orjson

from avactl.contracts import names
from avactl.scheduler.objects.wait_reasons import WaitReason

Labels = Mapping[str, str]
Matcher = Callable[[Labels], bool]

_INTEGER = re.compile(r"[+-]?[0-9]+").fullmatch
_UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


class ObstacleKind(Enum):
    """A rule that excludes a node for a pod; the value is the message."""

    FEATURE = "missing kubelet feature {}"
    CORDON = "cordoned"
    TAINT = "taint {}"
    LABELS = "node selector or affinity mismatch"
    RESOURCE = "no {}"
    GPU_SHARING = "no shareable GPUs"
    DEVICES = "no devices for its ResourceClaim"
    WITHDRAWN = "with GPUs that the device plugin withdrew, without saying which"
    PLUGIN_SHARING = "with GPUs that the device plugin shares ({})"
    FAULT = "with a fault ({})"


class Obstacle(NamedTuple):
    """The first rule that excludes a node for a pod."""

    kind: ObstacleKind
    subject: str = ""
    """The feature, taint or resource."""

    @property
    def transient(self) -> bool:
        """True if it can disappear without a change of the pod or of the node's labels and devices."""
        return self.kind in (ObstacleKind.CORDON, ObstacleKind.TAINT, ObstacleKind.WITHDRAWN, ObstacleKind.FAULT)

    def __str__(self) -> str:
        return self.kind.value.format(self.subject)


class RuleError(ValueError):
    """A constraint that cannot be evaluated; the message says why."""

    reason = WaitReason.UNSCHEDULABLE
    """Reason of the pod's condition."""


class UnsupportedError(RuleError):
    """Pods that no node can run, regardless of free resources; the message says why."""

    reason = WaitReason.UNSUPPORTED


class NotYetError(RuleError):
    """The pod waits for an expected event; reported only if that takes long."""

    def __init__(self, message: str, event: str = "", reason: WaitReason = WaitReason.UNSCHEDULABLE) -> None:
        """`event`: name passed to `EventWaits.occurred`; empty if the pod itself will change."""
        super().__init__(message)
        self.event, self.reason = event, reason


class ReportedWaitError(NotYetError):
    """The pod waits for an event that can be far off; reported at once."""

    def __init__(self, message: str, event: str, reason: WaitReason, under_way: bool = False) -> None:
        """`under_way`: whether the event is expected without anyone's doing, such as the end of a running Job."""
        super().__init__(message, event, reason)
        self.under_way = under_way


def _parse_integer(text: str) -> int | None:
    """Parse like Go's ParseInt: 64 bits, no underscores, no blanks."""
    if len(text) > 20 or not _INTEGER(text):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


def requirement(expression: Mapping[str, Any]) -> Matcher:
    """Return a predicate over labels for one expression. Raises RuleError for an unknown operator.

    Source: k8s.io/apimachinery/pkg/labels: NotIn matches absent labels; Gt and Lt compare integers.
    """
    key, operator = expression["key"], expression["operator"]
    values = frozenset(expression.get("values") or ())
    if operator == "In":
        return lambda labels: labels.get(key) in values
    if operator == "NotIn":
        return lambda labels: labels.get(key) not in values
    if operator == "Exists":
        return lambda labels: key in labels
    if operator == "DoesNotExist":
        return lambda labels: key not in labels
    if operator in ("Gt", "Lt"):
        bound = _parse_integer(next(iter(values), ""))
        sign = 1 if operator == "Gt" else -1

        def compare(labels: Labels) -> bool:
            have = _parse_integer(labels.get(key, ""))
            return have is not None and bound is not None and (have - bound) * sign > 0

        return compare
    raise UnsupportedError(f"unknown operator {operator} in a label expression")


def every(matchers: Iterable[Matcher]) -> Matcher:
    """Return the conjunction of predicates."""
    conjuncts = tuple(matchers)
    if len(conjuncts) == 1:
        return conjuncts[0]
    return lambda labels: all(match(labels) for match in conjuncts)


def equals(wanted: Labels) -> Matcher:
    """Return a predicate for labels with these values."""
    items = tuple(wanted.items())
    return lambda labels: all(labels.get(key) == value for key, value in items)


def selector(given: Mapping[str, Any] | None) -> Matcher:
    """Return a predicate for a label selector: an empty one matches all labels, None matches nothing."""
    if given is None:
        return lambda _: False
    parts = [requirement(expression) for expression in given.get("matchExpressions") or ()]
    if given.get("matchLabels"):
        parts.append(equals(given["matchLabels"]))
    return every(parts)


def _compile_term(given: Mapping[str, Any]) -> Callable[[str, Labels], bool] | None:
    expressions, fields = given.get("matchExpressions") or (), given.get("matchFields") or ()
    if not expressions and not fields:
        return None  # an empty term matches no node
    match = every(requirement(each) for each in expressions)
    for each in fields:
        if each["key"] != "metadata.name" or each["operator"] not in ("In", "NotIn"):
            raise UnsupportedError(f"node affinity by field {each['key']} {each['operator']} is not supported")
    named = every(requirement(each) for each in fields)
    return lambda name, labels: match(labels) and named({"metadata.name": name})


def node_selector(given: Mapping[str, Any] | None) -> Callable[[str, Labels], bool]:
    """Return a predicate over a node's name and labels: one term of the NodeSelector must match; None: all nodes."""
    if given is None:
        return lambda _name, _labels: True
    terms = [term for each in given.get("nodeSelectorTerms") or () if (term := _compile_term(each)) is not None]
    return lambda name, labels: any(term(name, labels) for term in terms)


def _only_node_names(given: Mapping[str, Any] | None) -> frozenset[str] | None:
    """Return the names of the only nodes that a NodeSelector can match, as DaemonSets write it; None: any name."""
    node_names: set[str] = set()
    for term in (given or {}).get("nodeSelectorTerms") or ():
        fields = [each for each in term.get("matchFields") or () if each["operator"] == "In"]
        if fields:
            node_names.update(fields[0].get("values") or ())
        elif term.get("matchExpressions") or term.get("matchFields"):
            return None
    return None if given is None else frozenset(node_names)


def _compile_preferences(terms: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, Callable[[str, Labels], bool]]]:
    """Yield weights and predicates. Raises RuleError for a term for which kube-scheduler rejects the pod."""
    for given in terms:
        preference = given.get("preference") or {}
        for each in preference.get("matchExpressions") or ():
            if each["operator"] in ("Gt", "Lt") and _parse_integer(next(iter(each.get("values") or ()), "")) is None:
                raise UnsupportedError(
                    f"preferred node affinity by {each['key']}: {each['operator']} needs a whole number"
                )
        term = _compile_term(preference)
        if term is not None:
            yield given["weight"], term


def tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Return True if a toleration covers a taint. Source: k8s.io/component-helpers/scheduling/corev1."""
    effect, key = toleration.get("effect"), toleration.get("key")
    if effect and effect != taint["effect"]:
        return False
    if key and key != taint["key"]:
        return False
    operator = toleration.get("operator") or "Equal"
    have, wanted = taint.get("value") or "", toleration.get("value") or ""
    if operator == "Exists":
        return True
    if operator in ("Lt", "Gt"):
        number, bound = _parse_integer(have), _parse_integer(wanted)
        if number is None or bound is None:
            return False
        return number < bound if operator == "Lt" else number > bound
    return bool(key) and bool(have == wanted)


class NodeRules:
    """The node set of pods with equal selector, affinity and tolerations."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        """Raises RuleError."""
        affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
        self.features = _required_features(spec)
        """Required kubelet features."""
        parts = [spec.get("nodeSelector"), affinity, spec.get("tolerations"), self.features]
        self._key = orjson.dumps(parts)
        self.model: str | None = (spec.get("nodeSelector") or {}).get(names.GPU_LABEL)
        """GPU model in the node selector."""
        self.selects = equals(spec.get("nodeSelector") or {})
        required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
        self.near = node_selector(required)
        self.named = _only_node_names(required)
        """Names of the only nodes that may match, if the rules name them; None: any."""
        self.preferred = tuple(
            _compile_preferences(affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ())
        )
        self.tolerations = tuple(spec.get("tolerations") or ())
        self.tolerates_cordons = any(tolerates(each, _UNSCHEDULABLE) for each in self.tolerations)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NodeRules) and self._key == other._key

    def matches(self, name: str, labels: Labels) -> bool:
        """Return True if the node selector and the required node affinity match."""
        return self.selects(labels) and self.near(name, labels)

    def preference(self, name: str, labels: Labels) -> int:
        """Return the total weight of the preferred node affinity that matches."""
        return sum(weight for weight, match in self.preferred if match(name, labels))

    def untolerated(self, taints: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
        """Return the first taint that the pod does not tolerate."""
        for taint in taints:
            if taint["effect"] != "PreferNoSchedule" and not any(tolerates(each, taint) for each in self.tolerations):
                return taint
        return None

    def obstacle(
        self,
        name: str,
        labels: Labels,
        taints: Iterable[Mapping[str, Any]],
        cordoned: bool,
        features: Container[str] = (),
    ) -> Obstacle | None:
        """Return the first rule that excludes a node; None if the pod may run there."""
        for feature in self.features:
            if feature not in features:
                return Obstacle(ObstacleKind.FEATURE, feature)
        if cordoned and not self.tolerates_cordons:
            return Obstacle(ObstacleKind.CORDON)
        taint = self.untolerated(taints)
        if taint is not None:
            value = f"={taint['value']}" if taint.get("value") else ""
            return Obstacle(ObstacleKind.TAINT, f"{taint['key']}{value}")
        return None if self.matches(name, labels) else Obstacle(ObstacleKind.LABELS)


def _required_features(spec: Mapping[str, Any]) -> list[str]:
    """Return the features that a node must declare in `status.declaredFeatures` for a pod.

    Source: k8s.io/component-helpers/nodedeclaredfeatures, v0.36.
    """
    features = []
    containers = (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))
    rules = (rule for container in containers for rule in container.get("restartPolicyRules") or ())
    if any(rule.get("action") == "RestartAllContainers" for rule in rules):
        features.append("RestartAllContainersOnContainerExits")
    if spec.get("hostNetwork") and spec.get("hostUsers") is False:
        features.append("UserNamespacesHostNetworkSupport")
    return features
