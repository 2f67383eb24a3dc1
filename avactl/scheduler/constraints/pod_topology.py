"""Constraints between pods: host ports, disks, required pod affinity and anti-affinity, topology spread.

Equivalent to the filters of kube-scheduler's plugins NodePorts, VolumeRestrictions, InterPodAffinity and
PodTopologySpread. Counts of matching pods per node are cached after the first use, so a decision only sums over
topology domains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import orjson

from avactl.contracts.scheduling import PlacementPolicy
from avactl.hardware.placement.fragmentation import Floats
from avactl.hardware.placement.masks import Mask
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.cache.tables import ChangeListener
from avactl.scheduler.constraints.constraint import ALL_NODES, Constraint, NodeFilter
from avactl.scheduler.objects.node_rules import Matcher, NodeRules, equals, every, selector
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.objects.pod_requirements import ExclusiveDisk, HostPort

MAX_TALLIES, MAX_TALLIED_NODES = 10_000, 2_500_000
"""Maximum number of tallies, and of tallies times nodes."""
MAX_ELIGIBLE = 1000
"""Maximum number of node masks for spreads."""
_FEW = 16
"""Maximum number of namespaces by which an anti-affinity term is indexed."""
_IDLE = 1000
"""Pods added or removed, beyond the number of pods, after which an unused tally is dropped: to keep a tally costs about
as much for each of them as to build it again costs for each pod of the cluster."""

Counts = dict[str, int]
_Mark = tuple[str, str, str]
"""Namespace (empty: many), and a label with its value (empty: any labels), of pods that something selects."""
_Single = TypeVar("_Single", HostPort, ExclusiveDisk)
"""A resource that a node has once."""


class AffinityTerm:
    """One term of a pod's affinity or anti-affinity."""

    def __init__(self, given: Mapping[str, Any], pod: PodInfo, namespaces: Mapping[str, Mapping[str, str]]) -> None:
        """`namespaces`: labels by namespace. Raises RuleError."""
        self.given = given
        self.topology: str = given["topologyKey"]
        self._labels = selector(given.get("labelSelector"))
        names = set(given.get("namespaces") or ())
        wanted = given.get("namespaceSelector")
        if wanted is not None:
            match = selector(wanted)
            names |= {name for name, labels in namespaces.items() if match(labels)}
        elif not names:
            names = {pod.namespace}
        self.namespaces = frozenset(names)
        marked = _mark(given.get("labelSelector"))
        self.marks = [(name, *marked) for name in (sorted(names) if len(names) <= _FEW else ("",))]
        self.key = orjson.dumps([self.topology, given.get("labelSelector"), sorted(names)], option=orjson.OPT_SORT_KEYS)

    def matches(self, pod: PodInfo) -> bool:
        """Return True if the term selects a pod."""
        return pod.namespace in self.namespaces and self._labels(pod.labels)


class _Tally:
    """Number of matching pods by node."""

    __slots__ = ("asked", "counts", "helps", "marks", "match")

    def __init__(self, marks: Sequence[_Mark], match: Callable[[PodInfo], bool], helps: bool) -> None:
        self.marks, self.match = marks, match
        """`marks`: each pod that matches has one of them."""
        self.helps = helps
        """True if one more pod can open nodes to others, by affinity or by topology spread."""
        self.counts: Counts = {}
        self.asked = True
        """True if it was used since tallies were last dropped."""


def _mark(given: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return a label that a selector requires; empty if none has to have one value."""
    for key, value in ((given or {}).get("matchLabels") or {}).items():
        return key, value
    for each in (given or {}).get("matchExpressions") or ():
        if each["operator"] == "In" and len(each.get("values") or ()) == 1:
            return each["key"], each["values"][0]
    return "", ""


def _add(counts: Counts, node: str, change: int) -> None:
    now = counts.get(node, 0) + change
    if now:
        counts[node] = now
    else:
        counts.pop(node, None)


def _add_to(there: dict[_Single, Counts], what: _Single, node: str, change: int) -> None:
    counts = there.setdefault(what, {})
    _add(counts, node, change)
    if not counts:
        del there[what]


class PodTopology(Constraint, ChangeListener):
    """Pod counts per node, and the nodes that the constraints between pods allow."""

    title = "other pods"

    def __init__(self, cache: ClusterCache, policy: PlacementPolicy) -> None:
        super().__init__(cache, policy)
        cache.tables.subscribe(self)
        self._tallies: dict[bytes, _Tally] = {}
        self._by_mark: dict[_Mark, list[_Tally]] = {}
        self._dropped = False
        """True after a tally was dropped for which a pod may wait: any further pod may help then."""
        self._ports: dict[HostPort, Counts] = {}
        self._disks: dict[ExclusiveDisk, Counts] = {}
        self._against: dict[str, dict[bytes, tuple[AffinityTerm, Counts]]] = {}
        """Anti-affinity of pods on nodes, by the namespaces that it selects; under "" if it selects many."""
        self._terms: dict[tuple[str, int], AffinityTerm] = {}
        """Terms by namespace of the pod and identity of what is given."""
        self._domains: dict[str, npt.NDArray[np.int32]] = {}
        self._eligible: dict[tuple[NodeRules, bool, bool], Mask] = {}
        """Nodes that count for a spread, by the pod's rules and whether affinity and taints matter."""
        self._hidden: set[PodInfo] = set()
        """Pods on nodes that are not counted for the moment."""
        self._passed = 0
        """Pods that were added or removed since unused tallies were dropped."""

    # -- keeping count ----------------------------------------------------------------------------------------------

    def namespace_changed(self, name: str, before: Mapping[str, str]) -> None:
        """Evaluate namespace selectors again."""
        self._recount()

    def _recount(self) -> None:
        self._keep({})
        self._terms.clear()
        self._against.clear()
        self._ask_again()
        for node, pods in self.tables.pods_by_node.items():
            for pod in pods.values():
                if pod not in self._hidden:
                    self._terms_of(pod, node, 1)

    def state_cleared(self) -> None:
        """Forget the domains of slots, and which nodes count for a spread."""
        self._domains.clear()
        self._eligible.clear()

    def nodes_changed(self) -> None:
        """Forget the domains of slots, and which nodes count for a spread."""
        self._domains.clear()
        self._eligible.clear()

    def pod_added(self, pod: PodInfo, node: str) -> None:
        """Count a pod on a node."""
        self._passed += 1
        if self._count(pod, node, 1):
            self.tables.change_epoch += 1

    def pod_removed(self, pod: PodInfo, node: str) -> None:
        """Stop counting a pod on a node."""
        self._passed += 1
        self._count(pod, node, -1)

    def pod_hidden(self, pod: PodInfo, node: str) -> None:
        """Stop counting a pod on a node until `pod_shown`."""
        self._hidden.add(pod)
        self._count(pod, node, -1)

    def pod_shown(self, pod: PodInfo, node: str) -> None:
        """Count a hidden pod again."""
        self._hidden.discard(pod)
        self._count(pod, node, 1)

    def sync(self) -> None:
        """Drop unused tallies, each of which costs time for every pod."""
        if self._passed <= len(self.tables.pods) + _IDLE:
            return
        self._passed = 0
        self._keep({key: tally for key, tally in self._tallies.items() if tally.asked})
        if self._dropped:
            self._ask_again()
        for tally in self._tallies.values():
            tally.asked = False

    def _ask_again(self) -> None:
        """Retry all pods: those that wait for a pod that helps have their tallies again then."""
        self.tables.change_epoch += 1
        self._dropped = False

    def pod_relabelled(self, pod: PodInfo, labels: Mapping[str, str], deleting: bool) -> None:
        """Count a pod by its current labels instead of its previous ones."""
        now = pod.labels, pod.deleting
        pod.labels, pod.deleting = labels, deleting
        before = set(self._selecting(pod))
        pod.labels, pod.deleting = now
        after = set(self._selecting(pod))
        self.tables.change_epoch += self._dropped
        for changed, change in ((before - after, -1), (after - before, 1)):
            for tally in changed:
                _add(tally.counts, pod.node, change)
                self.tables.change_epoch += 1

    def _count(self, pod: PodInfo, node: str, change: int) -> bool:
        """Count a pod and return True if one more pod may help others."""
        helps = self._dropped
        for tally in self._selecting(pod):
            _add(tally.counts, node, change)
            helps = helps or tally.helps
        for port in pod.shape.ports:
            _add_to(self._ports, port, node, change)
        for disk in pod.shape.disks:
            _add_to(self._disks, disk, node, change)
        if pod.shape.antiaffinity:
            self._terms_of(pod, node, change)
        return helps

    def _terms_of(self, pod: PodInfo, node: str, change: int) -> None:
        for given in pod.shape.antiaffinity:
            term = self._term(given, pod)
            for namespace in term.namespaces if len(term.namespaces) <= _FEW else ("",):
                terms = self._against.setdefault(namespace, {})
                counts = terms.setdefault(term.key, (term, {}))[1]
                _add(counts, node, change)
                if not counts:
                    del terms[term.key]
                    if not terms:
                        del self._against[namespace]

    def _term(self, given: Mapping[str, Any], pod: PodInfo) -> AffinityTerm:
        key = pod.namespace, id(given)
        found = self._terms.get(key)
        if found is None:
            if len(self._terms) >= MAX_TALLIES:
                self._terms.clear()
            found = self._terms[key] = AffinityTerm(given, pod, self.tables.namespaces)  # which keeps what is given
        return found

    def _opposing(self, pod: PodInfo) -> Iterator[tuple[AffinityTerm, Counts]]:
        """Yield the anti-affinity of pods on nodes that selects this pod."""
        for namespace in (pod.namespace, ""):
            for term, counts in self._against.get(namespace, {}).values():
                if term.matches(pod):
                    yield term, counts

    def _selecting(self, pod: PodInfo) -> Iterator[_Tally]:
        """Yield the tallies that count a pod."""
        for namespace in (pod.namespace, ""):
            for label in (("", ""), *pod.labels.items()):
                for tally in self._by_mark.get((namespace, *label), ()):
                    if tally.match(pod):
                        yield tally

    def _keep(self, kept: dict[bytes, _Tally]) -> None:
        """Drop all other tallies."""
        self._dropped |= any(tally.helps for key, tally in self._tallies.items() if key not in kept)
        self._tallies, self._by_mark = kept, {}
        for tally in kept.values():
            self._index(tally)

    def _index(self, tally: _Tally) -> None:
        for mark in tally.marks:
            self._by_mark.setdefault(mark, []).append(tally)

    def _tally(
        self, key: bytes, marks: Sequence[_Mark], match: Callable[[PodInfo], bool], helps: bool = True
    ) -> Counts:
        found = self._tallies.get(key)
        if found is None:
            most = min(MAX_TALLIES, MAX_TALLIED_NODES // max(1, len(self.tables.nodes)))
            if len(self._tallies) >= most:
                # Half of them: to drop one each time would index the others as often.
                newest = list(self._tallies.items())[len(self._tallies) - most // 2 :]
                self._keep(dict(newest))
            found = self._tallies[key] = _Tally(marks, match, helps)
            self._index(found)
            for node, pods in self.tables.pods_by_node.items():
                count = sum(match(pod) for pod in pods.values() if pod not in self._hidden)
                if count:
                    found.counts[node] = count
        found.asked = True
        return found.counts

    # -- domains ----------------------------------------------------------------------------------------------------

    def _topology(self, key: str) -> npt.NDArray[np.int32]:
        """Return the number of each slot's domain by a node label; -1 for nodes without it."""
        found = self._domains.get(key)
        if found is None:
            slots = self.tables.state.slots
            found = np.full(len(self.tables.state.free), -1, np.int32)
            numbers: dict[str, int] = {}
            for name, info in self.tables.nodes.items():
                value = info.labels.get(key)
                if value is not None and name in slots:
                    found[slots[name]] = numbers.setdefault(value, len(numbers))
            self._domains[key] = found
        return found

    def _sums(self, domain: npt.NDArray[np.int32], counts: Counts, within: Mask | None = None) -> npt.NDArray[np.int64]:
        """Return the counted pods of each domain."""
        by_slot = np.zeros(len(domain), np.int64)
        slots = self.tables.state.slots
        for node, count in counts.items():
            slot = slots.get(node)
            if slot is not None:
                by_slot[slot] = count
        inside = domain >= 0
        if within is not None:
            inside = inside & within
        size = int(domain.max(initial=-1)) + 1
        return np.bincount(domain[inside], by_slot[inside], size).astype(np.int64)

    # -- questions about a pod --------------------------------------------------------------------------------------

    def restricts(self, pod: PodInfo) -> bool:
        """Return True if other pods restrict the nodes of this one."""
        return pod.shape.constrained or any(True for _ in self._opposing(pod))

    def filter_nodes(self, pod: PodInfo) -> NodeFilter:
        """Return the nodes that other pods allow. Raises RuleError."""
        if not self.restricts(pod):
            return ALL_NODES
        mask: Mask = np.ones(len(self.tables.state.free), np.bool_)
        reasons = []
        for words, part in (
            ("host ports in use", self._free(pod.shape.ports, self._ports)),
            ("disks in use", self._free(pod.shape.disks, self._disks)),
            ("anti-affinity of another pod", self._unopposed(pod)),
            ("no pod matching its affinity", self._near(pod)),
            ("its own anti-affinity", self._away(pod)),
            ("topology spread over maxSkew", self._even(pod)),
        ):
            if part is not None:
                excluded = self.count_excluded(mask & ~part)
                if excluded:
                    reasons.append(f"{excluded} {words}")
                mask &= part
        return NodeFilter(mask, ", ".join(reasons))

    def score_nodes(self, pod: PodInfo) -> Floats | None:
        """Return the weight of each slot by the pod's preferred affinity and anti-affinity; None if it has none.

        Raises RuleError. Source: kube-scheduler's plugin InterPodAffinity, without the preferences of other pods.
        """
        if not pod.shape.preferred:
            return None
        result: Floats = np.zeros(len(self.tables.state.free))
        for weight, given in pod.shape.preferred:
            term = self._term(given, pod)
            domain = self._topology(term.topology)
            sums = self._sums(domain, self._tally(b"away" + term.key, term.marks, term.matches, helps=False))
            result += weight * np.append(sums, 0)[domain]
        return result

    def replica_nodes(self, pod: PodInfo) -> Mask | None:
        """Return the nodes with pods that the pod's spread over nodes counts, where it is only a preference."""
        if not pod.shape.spread_anyway:
            return None
        nodes: set[str] = set()
        for each in pod.shape.spread_anyway:
            match = self._spread_match(each, pod)
            key = b"anyway" + orjson.dumps([pod.namespace, each, _values(each, pod)])

            def counted(other: PodInfo, match: Matcher = match) -> bool:
                return other.namespace == pod.namespace and not other.deleting and match(other.labels)

            nodes |= self._tally(key, self._spread_marks(each, pod), counted, helps=False).keys()
        return self.tables.mask(nodes)

    def _free(self, wanted: tuple[_Single, ...], there: Mapping[_Single, Counts]) -> Mask | None:
        """Return the nodes without a conflict; None: all."""
        if not wanted:
            return None
        taken: set[str] = set()
        for mine in wanted:
            for other, nodes in there.items():
                if mine.clashes(other):
                    taken |= nodes.keys()
        return ~self.tables.mask(taken)

    def _unopposed(self, pod: PodInfo) -> Mask | None:
        result: Mask | None = None
        for term, counts in self._opposing(pod):
            free = self._without(term.topology, counts)
            result = free if result is None else result & free
        return result

    def _without(self, topology: str, counts: Counts) -> Mask:
        """Return the nodes whose domain has no counted pod."""
        domain = self._topology(topology)
        sums = np.append(self._sums(domain, counts), 0)
        free: Mask = sums[domain] == 0
        return free

    def _near(self, pod: PodInfo) -> Mask | None:
        terms = [self._term(given, pod) for given in pod.shape.affinity]
        if not terms:
            return None

        def match(other: PodInfo) -> bool:
            return all(term.matches(other) for term in terms)

        counts = self._tally(b"near" + b"".join(sorted(term.key for term in terms)), terms[0].marks, match)
        # The first of pods that want to be together may go anywhere. Pods outside of all domains do not count.
        sums = [np.append(self._sums(self._topology(term.topology), counts), 0) for term in terms]
        first = match(pod) and not any(each.any() for each in sums)
        result: Mask = np.ones(len(self.tables.state.free), np.bool_)
        for term, near in zip(terms, sums, strict=True):
            domain = self._topology(term.topology)
            result &= domain >= 0
            if not first:
                result &= near[domain] > 0
        return result

    def _away(self, pod: PodInfo) -> Mask | None:
        result: Mask | None = None
        for given in pod.shape.antiaffinity:
            term = self._term(given, pod)
            free = self._without(term.topology, self._tally(b"away" + term.key, term.marks, term.matches, helps=False))
            result = free if result is None else result & free
        return result

    def _even(self, pod: PodInfo) -> Mask | None:
        if not pod.shape.spread:
            return None
        domains = [self._topology(each["topologyKey"]) for each in pod.shape.spread]
        complete = np.logical_and.reduce([domain >= 0 for domain in domains])
        result: Mask = complete.copy()
        for each, domain in zip(pod.shape.spread, domains, strict=True):
            match = self._spread_match(each, pod)
            key = b"even" + orjson.dumps([pod.namespace, each, _values(each, pod)])

            # An empty selector matches the pod itself, but counts none: so kube-scheduler has it.
            empty = not (given := each.get("labelSelector") or {}).get("matchLabels")
            empty &= not (given.get("matchExpressions") or _values(each, pod))

            def counted(other: PodInfo, match: Matcher = match, empty: bool = empty) -> bool:
                there = other.namespace == pod.namespace and not (other.deleting or empty)
                return there and match(other.labels)

            eligible = complete & self._included(each, pod)
            sums = self._sums(domain, self._tally(key, self._spread_marks(each, pod), counted), eligible)
            there = np.unique(domain[eligible])
            least = int(sums[there].min()) if there.size else 0
            if each.get("minDomains") and len(there) < each["minDomains"]:
                least = 0
            sums = np.append(sums, 0)
            result &= sums[domain] + match(pod.labels) - least <= each["maxSkew"]
        return result

    def _spread_match(self, given: Mapping[str, Any], pod: PodInfo) -> Matcher:
        return every([selector(given.get("labelSelector")), equals(_values(given, pod))])

    def _spread_marks(self, given: Mapping[str, Any], pod: PodInfo) -> list[_Mark]:
        return [(pod.namespace, *_mark(given.get("labelSelector")))]

    def _included(self, given: Mapping[str, Any], pod: PodInfo) -> Mask:
        """Return the nodes that count for a spread. By the API's defaults affinity is honoured, taints are not."""
        tables, rules = self.tables, pod.shape.rules
        affinity = given.get("nodeAffinityPolicy", "Honor") == "Honor"
        taints = given.get("nodeTaintsPolicy", "Ignore") == "Honor"
        known = self._eligible.get((rules, affinity, taints))
        if known is None:
            if len(self._eligible) >= MAX_ELIGIBLE:
                self._eligible.clear()
            known = self._eligible[rules, affinity, taints] = tables.mask(
                info.name
                for info in tables.nodes.values()
                if (not affinity or rules.matches(info.name, info.labels))
                and (not taints or rules.untolerated(info.taints) is None)
            )
        return known


def _values(given: Mapping[str, Any], pod: PodInfo) -> dict[str, str]:
    return {key: pod.labels[key] for key in given.get("matchLabelKeys") or () if key in pod.labels}
