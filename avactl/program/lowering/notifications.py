"""Notifications → PrometheusRules over the metrics of kube-state-metrics, and AlertmanagerConfigs with the receivers.

Sources: docs/metrics/workload/{job,pod,deployment,statefulset}-metrics.md of kube-state-metrics 2; the Prometheus
Operator lets an AlertmanagerConfig match only alerts of its own namespace, unless `alertmanagerConfigMatcherStrategy`
is `None`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Protocol

from avactl.diagnostics import Diagnostic, Note
from avactl.diagnostics.suggest import one_of
from avactl.program.ineffective_keys import without_effect
from avactl.program.lowering import k8s
from avactl.program.lowering.k8s import drop_none
from avactl.program.lowering.monitoring import API, monitoring_of
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program
from avactl.program.unique_entries import check_duplicates
from avactl.spec.schema.monitoring import Notify
from avactl.spec.schema.values import duration_seconds

JOB_EVENTS, SERVICE_EVENTS = ("failed", "succeeded", "queued"), ("unavailable",)
LABEL = "avactl_notify"
"""Label of alerts, with the name of the AlertmanagerConfig that has their receivers."""
TEAM = "avactl-team"
"""AlertmanagerConfig with the receivers of a team."""
_SUCCEEDED_FOR = 900
"""Seconds for which the alert of a succeeded job fires."""
_UNAVAILABLE_FOR = "10m"


class Notifying(Protocol):
    """A spec that can have receivers."""

    @property
    def notify(self) -> Notify | None: ...


def notify_of(item: Item[Notifying], program: Program) -> Notify | None:
    """Return the notifications of a workload: its own, else its team's; None if there are none."""
    return item.spec.notify or program.team(str(item.team)).spec.notify


def sends_notifications(program: Program, cluster: str) -> bool:
    """Return True if the platform of a cluster sends notifications of teams."""
    monitoring = program.cluster_spec(cluster).monitoring
    return monitoring is not None and monitoring.notifications


def build_receivers(item: Item, program: Program, notify: Notify, cluster: str, namespace: str, name: str) -> Manifest:
    """Build the AlertmanagerConfig with the receivers of a spec's `notify`."""
    receiver = drop_none(
        name=name,
        webhookConfigs=[{"urlSecret": {"name": notify.webhook.name, "key": notify.webhook.key}, "sendResolved": False}]
        if notify.webhook is not None
        else None,
        emailConfigs=[{"to": address, "sendResolved": False} for address in notify.email] or None,
    )
    route = {
        "receiver": name,
        # The operator adds the namespace by default; an Alertmanager can switch that off.
        "matchers": [
            {"name": LABEL, "value": name, "matchType": "="},
            {"name": "namespace", "value": namespace, "matchType": "="},
        ],
        "groupBy": ["alertname", "workload"],
        "repeatInterval": "24h",
    }
    return k8s.build_manifest(
        item,
        cluster,
        "monitoring.coreos.com/v1alpha1",
        "AlertmanagerConfig",
        name,
        namespace=namespace,
        component="notify",
        extra_labels=monitoring_of(program, cluster).labels,
        spec={"route": route, "receivers": [receiver]},
    )


def build_notifications(
    item: Item[Notifying],
    program: Program,
    *,
    jobs: Sequence[str] = (),
    deployment: str | None = None,
    stateful_set: str | None = None,
    stateful_sets: str | None = None,
) -> list[Manifest]:
    """Return the rules for a workload's events, with its receivers unless these are its team's.

    `jobs`: names of the Jobs with which it ends; those of a CronJob have a number appended. `deployment`,
    `stateful_set`: name of the one whose pods answer requests; `stateful_sets`: pattern of the names of several.
    """
    notify = notify_of(item, program)
    if notify is None or not sends_notifications(program, item.cluster):
        return []
    wanted = notify.events or ("failed", "queued", "unavailable")
    own = item.spec.notify
    name = f"{item.name}-notify"
    rules = [
        rule
        for event, rule in (*_of_jobs(item, notify, jobs), *_of_service(item, deployment, stateful_set, stateful_sets))
        if event in wanted
    ]
    if not rules:
        return []
    labels = {LABEL: name if own is not None else TEAM, "team": str(item.team), "workload": item.name}
    body = {"groups": [{"name": name, "rules": [{**rule, "labels": labels} for rule in rules]}]}
    found = [
        k8s.build_manifest(
            item,
            item.cluster,
            API,
            "PrometheusRule",
            name,
            namespace=item.ns,
            component="notify",
            extra_labels=monitoring_of(program, item.cluster).labels,
            spec=body,
        )
    ]
    if own is not None:
        found.append(build_receivers(item, program, own, item.cluster, item.ns, name))
    return found


def _of_jobs(item: Item, notify: Notify, jobs: Sequence[str]) -> Iterator[tuple[str, Body]]:
    if not jobs:
        return
    names = f"({'|'.join(jobs)})(-[0-9]+)?"
    select = f'namespace="{item.ns}",job_name=~"{names}"'
    yield (
        "failed",
        _build_rule(
            "AvactlJobFailed",
            f'max by (namespace, job_name) (kube_job_failed{{{select},condition="true"}}) == 1',
            f"{item} has failed",
            f"avactl logs {item.name}",
        ),
    )
    yield (
        "succeeded",
        _build_rule(
            "AvactlJobSucceeded",
            f"time() - max by (namespace, job_name) (kube_job_status_completion_time{{{select}}}) < {_SUCCEEDED_FOR}",
            f"{item} has succeeded",
            "",
        ),
    )
    pods = f'kube_pod_owner{{namespace="{item.ns}",owner_kind="Job",owner_name=~"{names}"}}'

    def scheduled(condition: str) -> str:
        state = f'kube_pod_status_scheduled{{namespace="{item.ns}",condition="{condition}"}} == 1'
        return f"max by (namespace, owner_name) ({pods} * on (namespace, pod) group_left () ({state}))"

    # Surplus workers of an elastic job wait while others run.
    waits = f"{scheduled('false')} unless on (namespace, owner_name) {scheduled('true')}"
    yield (
        "queued",
        {
            **_build_rule("AvactlJobQueued", waits, f"{item} waits for machines", f"avactl why {item.name}"),
            "for": f"{ceil(duration_seconds(notify.queued_for))}s",
        },
    )


def _of_service(
    item: Item, deployment: str | None, stateful_set: str | None, stateful_sets: str | None
) -> Iterator[tuple[str, Body]]:
    if deployment is not None:
        select = f'{{namespace="{item.ns}",deployment="{deployment}"}}'
        expression = f"kube_deployment_status_replicas_available{select} < kube_deployment_spec_replicas{select}"
    elif stateful_set is not None or stateful_sets is not None:
        match = f'="{stateful_set}"' if stateful_set is not None else f'=~"{stateful_sets}"'
        select = f'{{namespace="{item.ns}",statefulset{match}}}'
        expression = f"kube_statefulset_status_replicas_ready{select} < kube_statefulset_replicas{select}"
    else:
        return
    rule = _build_rule("AvactlServiceUnavailable", expression, f"{item} has fewer ready pods than it should", "")
    yield "unavailable", {**rule, "for": _UNAVAILABLE_FOR}


def _build_rule(name: str, expression: str, summary: str, command: str) -> Body:
    notes = drop_none(summary=summary, description=f"See `{command}`." if command else None)
    return {"alert": name, "expr": expression, "annotations": notes}


def notify_problems(item: Item[Notifying], program: Program, events: Sequence[str]) -> Iterator[Diagnostic]:
    """Yield the problems of a spec's `notify`; `events` are those that it can have."""
    notify, path = item.spec.notify, ("spec", "notify")
    if notify is None:
        return
    for cluster in item.clusters:
        if not sends_notifications(program, cluster):
            span = program.cluster(cluster).span("metadata", "name")
            yield Diagnostic(
                "notifications-off",
                f"the platform of cluster {cluster} sends no notifications of teams",
                item.span(*path, key=True),
                hint=f"add `monitoring: {{notifications: true}}` to Cluster {cluster}",
                notes=(Note(span, "the cluster"),),
            )
            break
    yield from check_duplicates(item, (*path, "events"), notify.events or (), "event", key=None)
    if "queued" not in (notify.events or events) and "queued_for" in notify.model_fields_set:
        why = "`queued` is not among the `events`" if "queued" in events else "only jobs wait"
        yield without_effect(item, (*path, "queuedFor"), why)
    for index, event in enumerate(notify.events or ()):
        if event not in events:
            yield Diagnostic(
                "invalid-value",
                f"spec.notify.events: {item} is never `{event}`",
                item.span(*path, "events", index),
                hint=f"write {one_of(events)}",
            )
