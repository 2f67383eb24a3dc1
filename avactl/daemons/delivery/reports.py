"""Reports of rollouts and health in git, for pipelines and promotions: each cluster writes down only what it sees
itself.
"""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import Any, TypeVar

from avactl.contracts.delivery import HEALTH_KEY, REPORT_KEY, HealthPlan, HealthRecord, ReportPlan, RollbackPlan
from avactl.contracts.document import DocumentError, load
from avactl.contracts.names import HEALTH_REPORT, ROLLOUT_REPORT
from avactl.daemons.delivery.branch import SpecBranch
from avactl.daemons.delivery.commits.records import RecordedService, RolledOutModel
from avactl.daemons.delivery.config_maps import ConfigMaps
from avactl.daemons.delivery.health import next_record, observe_health
from avactl.daemons.delivery.rollouts import model_urls, replica_sets, rollout_verdict
from avactl.kube import logs
from avactl.kube.client import Client

_CHECK_INTERVAL_S = 600.0
"""Seconds until a record that was written is compared with the branch again: somebody may have deleted it."""
_MAX_TEXT_LENGTH = 900
Body = dict[str, Any]
P = TypeVar("P", ReportPlan, HealthPlan)


class Reports:
    """Records how rollouts of models end that pipelines of other clusters deploy, and the health of services."""

    def __init__(self, client: Client, maps: ConfigMaps, branch: SpecBranch) -> None:
        self._client, self._maps, self._branch = client, maps, branch
        self._written: dict[RolledOutModel, tuple[str, str, float]] = {}
        """URL, outcome, and time of the last record."""
        self._invalid: dict[str, str] = {}
        self._health: dict[RecordedService, tuple[HealthRecord | None, float]] = {}
        """The last record of a service's health, and when it was compared with the branch."""

    async def record(self, service: RollbackPlan, deployment: Body) -> None:
        """Record how the rollout of a service's models ended, and its health if it is in a promotion.

        Raises ApiError, UnreachableError and DeliveryError; a later call tries again.
        """
        await self._record_rollouts(service, deployment)
        await self._record_health(service, deployment)

    def invalid_plans(self, namespace: str) -> str:
        """Return which plans of a namespace were ignored, since they are not valid; empty if all are."""
        names = {each for kind in (ROLLOUT_REPORT, HEALTH_REPORT) for each in self._maps.of(kind)}
        self._invalid = {name: text for name, text in self._invalid.items() if name in names}
        found = [text for name, text in sorted(self._invalid.items()) if name.split(".")[1:2] == [namespace]]
        return "; ".join(found)[:_MAX_TEXT_LENGTH]

    async def _record_health(self, service: RollbackPlan, deployment: Body) -> None:
        plans = self._plans(service, HEALTH_REPORT, HealthPlan, HEALTH_KEY)
        if not plans:
            return
        windows, fields = [float(plan.window) for plan in plans], {path for plan in plans for path in plan.fields}
        change = partial(next_record, windows=windows, fields=fields)
        now = self._client.clock.now()
        seen = observe_health(deployment, await replica_sets(self._client, deployment), now)
        if seen is None:
            return
        place = RecordedService(plans[0].cluster, service.namespace, service.name)
        known, compared = self._health.get(place, (None, float("-inf")))
        if known is not None and monotonic() - compared < _CHECK_INTERVAL_S and change(known, seen) is None:
            return
        written = await self._branch.record_health(place, lambda last: change(last, seen))
        if written is not None and written != known:
            logs.info("health", service=f"{service.namespace}/{service.name}", outcome=written.outcome)
        self._health[place] = written, monotonic()

    async def _record_rollouts(self, service: RollbackPlan, deployment: Body) -> None:
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
        plans = self._plans(service, ROLLOUT_REPORT, ReportPlan, REPORT_KEY)
        return [RolledOutModel(plan.cluster, plan.namespace, plan.service, plan.model) for plan in plans]

    def _plans(self, service: RollbackPlan, kind: str, model: type[P], key: str) -> list[P]:
        """Return the plans of a kind for a service. Those that are not valid are ignored: `invalid_plans`."""
        plans = []
        for name in self._maps.of(kind):
            if not name.startswith(f"{kind}.{service.namespace}."):
                continue
            try:
                plans.append(load(model, (self._maps.data(name) or {}).get(key, "")))
            except DocumentError as error:
                self._invalid[name] = f"ConfigMap {name} is ignored: {error}"
            else:
                self._invalid.pop(name, None)
        return [each for each in plans if (each.namespace, each.service) == (service.namespace, service.name)]
