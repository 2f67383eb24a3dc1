"""Data of the dashboard: jobs, and if the caller may read them, nodes, quotas and all pods."""

from __future__ import annotations

import asyncio
import re
from typing import NamedTuple

from avactl.scheduler.inspection import usage
from avactl.scheduler.inspection.cluster_view import ClusterView
from avactl.scheduler.inspection.pool_svg import draw
from avactl.workbench.jobs.dashboard.markup import Markup
from avactl.workbench.jobs.state import TrainingJobState
from avactl.workbench.jobs.view import JobsView

_EXPLAIN_INTERVAL_S = 5.0
"""Seconds between two questions why jobs have no pods."""
_DRAW_INTERVAL_S = 2.0
"""Seconds for which a drawing of the GPUs is kept."""
_STYLE_ELEMENT = re.compile(r"<style>.*?</style>", re.DOTALL)


class ClusterSource(NamedTuple):
    """State that only those see who may read nodes and all pods."""

    name: str
    teams: list[usage.TeamLine]
    pools: list[usage.PoolUsage]
    gpus: Markup
    """The GPUs of all nodes with their jobs, as SVG."""


class DashboardSource:
    """Views that follow the cluster."""

    def __init__(self, jobs: JobsView, cluster: ClusterView | None) -> None:
        """`cluster`: None if the caller may not read nodes and all pods."""
        self.view, self._cluster = jobs, cluster
        self._drawn = float("-inf")
        self._drawing: ClusterSource | None = None

    async def follow(self) -> None:
        """Keep the views up to date until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.view.follow(lambda: None))
            group.create_task(self._explain())
            if self._cluster is not None:
                group.create_task(self._cluster.follow(lambda: None))

    async def _explain(self) -> None:
        while True:
            await asyncio.sleep(_EXPLAIN_INTERVAL_S)
            await self.view.explain_quietly()

    def jobs(self) -> list[TrainingJobState]:
        """Return all jobs that the caller may see."""
        return self.view.jobs()

    def cluster(self) -> ClusterSource | None:
        """Return quotas, pools and GPUs; None if the caller may not see them."""
        view = self._cluster
        if view is None:
            return None
        now = asyncio.get_running_loop().time()
        if self._drawing is None or now - self._drawn > _DRAW_INTERVAL_S:
            view.fresh()
            # The style is in the page's own style sheet: the content security policy forbids inline ones.
            svg = Markup(_STYLE_ELEMENT.sub("", draw(view.cache)))
            found = usage.teams(view.cache, view.pods()), usage.pools(view.cache)
            self._drawing, self._drawn = ClusterSource(view.cluster, *found, svg), now
        return self._drawing
