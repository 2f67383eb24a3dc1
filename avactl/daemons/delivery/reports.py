"""Reports of rollouts in git, for pipelines of other clusters: each cluster writes down only what it sees itself."""

from __future__ import annotations

from time import monotonic
from typing import Any

from avactl.contracts.delivery import REPORT_KEY, ReportPlan, RollbackPlan
from avactl.contracts.document import load
from avactl.contracts.names import ROLLOUT_REPORT
from avactl.daemons.delivery.branch import SpecBranch
from avactl.daemons.delivery.commits.records import RolledOutModel
from avactl.daemons.delivery.config_maps import ConfigMaps
from avactl.daemons.delivery.rollouts import model_urls, replica_sets, rollout_verdict
from avactl.kube import logs
from avactl.kube.client import Client

_CHECK_INTERVAL_S = 600.0
"""Seconds until a record that was written is compared with the branch again: somebody may have deleted it."""
Body = dict[str, Any]


class Reports:
    """Records how rollouts of models end that pipelines of other clusters deploy."""

    def __init__(self, client: Client, maps: ConfigMaps, branch: SpecBranch) -> None:
        self._client, self._maps, self._branch = client, maps, branch
        self._written: dict[RolledOutModel, tuple[str, str, float]] = {}
        """URL, outcome, and time of the last record."""

    async def record(self, service: RollbackPlan, deployment: Body) -> None:
        """Record how the rollout of a service's models ended. Raises ApiError, UnreachableError, DocumentError and
        DeliveryError; a later call tries again.
        """
        urls = model_urls(deployment)
        reported = [(model, url) for model in self._reported(service) if (url := urls.get(model.model))]
        sets = await replica_sets(self._client, deployment) if reported else []
        for model, url in reported:
            verdict = rollout_verdict(deployment, sets, model.model, url)
            known, outcome, written = self._written.get(model, ("", "", 0.0))
            recent = (known, outcome) == (url, verdict) and monotonic() - written < _CHECK_INTERVAL_S
            if verdict not in ("promoted", "rejected") or recent:
                continue
            if await self._branch.record(model, url, verdict):
                logs.info("rollout", service=f"{model.namespace}/{model.service}", model=url, outcome=verdict)
            self._written[model] = url, verdict, monotonic()

    def _reported(self, service: RollbackPlan) -> list[RolledOutModel]:
        """Return the models of a service that pipelines of other clusters deploy."""
        plans = [
            load(ReportPlan, (self._maps.data(name) or {}).get(REPORT_KEY, ""))
            for name in self._maps.of(ROLLOUT_REPORT)
            if name.startswith(f"rollout-report.{service.namespace}.")
        ]
        return [
            RolledOutModel(plan.cluster, plan.namespace, plan.service, plan.model)
            for plan in plans
            if (plan.namespace, plan.service) == (service.namespace, service.name)
        ]
