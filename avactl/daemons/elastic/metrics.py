"""Prometheus metrics of the job master, computed from its state when they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from avactl.daemons.elastic.service import Service
from avactl.daemons.elastic.status import count_stragglers

_MAX_DATASETS = 16
"""Datasets with series of their own, the first ones that were declared."""
_DATASET_LABELS = ["dataset"]


class ServiceCollector(Collector):
    """Metrics of a service; none before there is one."""

    def __init__(self, service: Callable[[], Service | None]) -> None:
        self._service = service

    def describe(self) -> list[Metric]:
        """Return no metrics: nothing need be computed for the registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        service = self._service()
        if service is None:
            return
        job = service.store.job
        yield GaugeMetricFamily("avactl_master_workers", "Live workers.", len(job.workers))
        yield GaugeMetricFamily(
            "avactl_master_stragglers", "Workers at less than half of the median speed.", count_stragglers(job)
        )
        yield CounterMetricFamily(
            "avactl_master_workers_lost", "Workers whose lease ended, since this master started.", service.lost
        )
        yield CounterMetricFamily(
            "avactl_master_workers_replaced",
            "Workers that were told to leave because they are slow; of the masters before, at most 16.",
            service.replaced,
        )
        yield GaugeMetricFamily(
            "avactl_master_step",
            "Step of the slowest worker by the job's clock; in synchronous training, when the round began.",
            service.step(),
        )
        yield GaugeMetricFamily("avactl_master_round_workers", "Members of the synchronous round.", service.rounds.size)
        yield CounterMetricFamily(
            "avactl_master_gradients_dropped", "Gradients that did not count.", job.gradients.dropped
        )
        tasks = GaugeMetricFamily(
            "avactl_master_tasks",
            "Tasks of the epoch, by state: todo, doing, done.",
            labels=[*_DATASET_LABELS, "state"],
        )
        epoch = GaugeMetricFamily("avactl_master_epoch", "Finished epochs.", labels=_DATASET_LABELS)
        records = CounterMetricFamily(
            "avactl_master_records", "Records of all epochs, once each.", labels=_DATASET_LABELS
        )
        for each in job.by_number[:_MAX_DATASETS]:
            name, done, doing = each.definition.name, each.progress.result.tasks, len(each.holders)
            todo = 0 if job.finished(each) else each.definition.tasks - done - doing
            for state, count in (("todo", todo), ("doing", doing), ("done", done)):
                tasks.add_metric([name, state], count)
            epoch.add_metric([name], each.progress.epoch)
            records.add_metric([name], each.progress.total_records)
        yield from (tasks, epoch, records)


def make_registry(service: Callable[[], Service | None]) -> CollectorRegistry:
    """Return a registry with the metrics of a service."""
    found = CollectorRegistry()
    found.register(ServiceCollector(service))
    return found
