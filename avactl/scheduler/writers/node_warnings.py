"""Events about nodes: those that fail pods, those whose GPUs pods do not get, and those that report faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from avactl.scheduler.cache.failed_pods import describe
from avactl.scheduler.cache.tables import ClusterTables
from avactl.scheduler.objects.node_rules import ObstacleKind

PODS_FAIL, GPUS_UNUSABLE = "PodsFail", "GPUsUnusable"
"""Reasons of the Events."""


class NodeReporter(Protocol):
    """Writes Events about nodes."""

    def warn_of_node(self, node: str, reason: str, note: str) -> None:
        """Post a warning about a node."""


class NodeWarnings:
    """Warns once of each node in a state, and again if it is back in it."""

    def __init__(self, reason: str, find: Callable[[], Mapping[str, str]], reporter: NodeReporter) -> None:
        """`find` returns the nodes in this state, with the note of their Event."""
        self._reason, self._find, self._reporter = reason, find, reporter
        self._told: set[str] = set()

    def tick(self) -> None:
        """Post the Events about nodes that have come into the state."""
        notes = self._find()
        for node in notes.keys() - self._told:
            self._reporter.warn_of_node(node, self._reason, notes[node])
        self._told = set(notes)


def failing_nodes(tables: ClusterTables) -> dict[str, str]:
    """Return the nodes that fail pods of several jobs, with a note."""
    notes = {}
    for node, suspects in tables.failed.suspects().items():
        several = len({tables.team_of(pod.namespace) for pod in suspects}) > 1
        others = "other pods" if several else "pods of the same team"
        notes[node] = f"{describe(suspects)}; {others} take the node last"
    return notes


def nodes_with_unusable_gpus(tables: ClusterTables) -> dict[str, str]:
    """Return the nodes whose GPUs pods do not get, with a note."""
    return {
        name: f"no pod gets its GPUs: {info.describe_unusable_gpus()}"
        for name, info in tables.nodes.items()
        if info.unusable_gpus is not None and info.unusable_gpus.kind is not ObstacleKind.FAULT
    }
