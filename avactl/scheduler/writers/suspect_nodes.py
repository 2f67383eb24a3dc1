"""Events about nodes that fail pods of several jobs."""

from __future__ import annotations

from typing import Protocol

from avactl.scheduler.cache.failed_pods import FailedPods, describe


class NodeReporter(Protocol):
    """Writes Events about nodes."""

    def warn_of_node(self, node: str, reason: str, note: str) -> None:
        """Post a warning about a node."""


class SuspectNodes:
    """Tells of each suspected node once, and again if it is suspected anew."""

    def __init__(self, failed: FailedPods, reporter: NodeReporter) -> None:
        self._failed, self._reporter = failed, reporter
        self._told: set[str] = set()

    def tick(self) -> None:
        """Post the Events about nodes that have become suspects."""
        suspects = self._failed.suspects()
        for node in suspects.keys() - self._told:
            self._reporter.warn_of_node(node, "PodsFail", f"{describe(suspects[node])}; other pods take the node last")
        self._told = set(suspects)
