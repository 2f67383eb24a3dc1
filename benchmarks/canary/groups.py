"""A service whose replicas are groups of two pods, by the real controller of LeaderWorkerSets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from avactl.kinds.serving.groups import API, KIND
from benchmarks.canary.language import LanguageStage
from benchmarks.canary.stage import PLATFORM, Pace, present
from tools.leaderworkerset import LeaderWorkerSets


class GroupStage(LanguageStage):
    """One service of four groups: leaders run the model server, and workers only exist."""

    kind = (API, KIND)
    options = ("--groups",)
    platform = PLATFORM.replace("daemons: {serving: true}", "daemons: {serving: true}\n  leaderWorkerSet: {}")
    llm = "{machines: 2}"

    def __init__(self, pace: Pace, stack: ExitStack) -> None:
        super().__init__(pace, stack)
        stack.enter_context(LeaderWorkerSets(self._plane, self.kube, self.folder))


@contextmanager
def group_stage(pace: Pace) -> Iterator[GroupStage]:
    """Start a stage with version 1, which answers through the gateway."""
    with ExitStack() as stack:
        made = GroupStage(pace, stack)
        present(made)
        yield made
