"""Monitoring of avactl's daemons: PodMonitors, and a Grafana dashboard of the scheduler and of job masters."""

from __future__ import annotations

from avactl.contracts.names import CACHE_NAMESPACE
from avactl.kinds.cluster.daemons import builtin, cache
from avactl.kinds.cluster.daemons.dashboard import Panel, build_dashboard
from avactl.program.lowering import k8s
from avactl.program.lowering.monitoring import is_monitored, pod_monitor
from avactl.program.manifest import Manifest
from avactl.program.program import Item, Program, name_label
from avactl.spec.platform.cluster import ClusterSpec

NAME = "avactl-daemons"
DASHBOARD = "avactl-scheduler-dashboard"

PANELS = (
    Panel(
        "GPUs",
        "short",
        {
            "{{model}} of all pools": "max by (model) (avactl_scheduler_gpus)",
            "{{model}} allocated": "max by (model) (avactl_scheduler_gpus_allocated)",
        },
    ),
    Panel("GPUs of teams", "short", {"{{team}} {{model}}": "max by (team, model) (avactl_scheduler_team_gpus)"}),
    Panel(
        "GPUs that teams wait for",
        "short",
        {"{{team}} {{model}}": "max by (team, model) (avactl_scheduler_team_gpus_waiting)"},
    ),
    Panel(
        "GPUs beyond the guarantee",
        "short",
        {"{{team}} {{model}}": "max by (team, model) (avactl_scheduler_team_gpus_borrowed)"},
    ),
    Panel(
        "Free GPUs that the next pod cannot use",
        "short",
        {"{{pool}} {{model}}": "max by (pool, model) (avactl_scheduler_pool_gpus_fragmented)"},
    ),
    Panel("Pending pods", "short", {"{{queue}}": "max by (queue) (avactl_scheduler_pending_pods)"}),
    Panel("Decisions", "cps", {"{{result}}": "sum by (result) (rate(avactl_scheduler_decisions_total[5m]))"}),
    Panel("Evictions", "short", {"{{reason}}": "sum by (reason) (increase(avactl_scheduler_evictions_total[1h]))"}),
    Panel(
        "Time from a pod to its decision, 95%",
        "s",
        {"all": "histogram_quantile(0.95, sum by (le) (rate(avactl_scheduler_queue_seconds_bucket[5m])))"},
    ),
    Panel("Failed watches", "short", {"{{kind}}": "sum by (kind) (increase(avactl_scheduler_watch_errors_total[1h]))"}),
    Panel("Workers of elastic jobs", "short", {"{{app_kubernetes_io_instance}}": "avactl_master_workers"}),
    Panel(
        "Records per second of elastic jobs",
        "short",
        {"{{app_kubernetes_io_instance}} {{dataset}}": "rate(avactl_master_records_total[5m])"},
    ),
)


def build_monitoring(item: Item[ClusterSpec], program: Program) -> list[Manifest]:
    """Return the PodMonitors of the daemons that run, and the dashboard; none unless the cluster asks for them."""
    on, system = item.spec.daemons, item.spec.system_namespace
    found: list[Manifest] = []
    if is_monitored(program, item.name):
        # The Prometheus Operator selects pods in the monitor's own namespace.
        select = {"app.kubernetes.io/name": name_label(item.kind), "app.kubernetes.io/instance": item.name}
        spaces = [system] if on.scheduler or on.serving or builtin.runs_reconciler(item) else []
        spaces += [CACHE_NAMESPACE] if cache.runs_cache_daemon(item, program) else []
        found += [pod_monitor(item, program, item.name, NAME, space, select, "/metrics", "http") for space in spaces]
    if item.spec.monitoring is not None and item.spec.monitoring.dashboards and on.scheduler:
        data = {"avactl-scheduler.json": k8s.json_text(build_dashboard("avactl-scheduler", "avactl scheduler", PANELS))}
        found.append(
            k8s.config_map(
                item, item.name, DASHBOARD, system, data, component="scheduler", extra_labels={"grafana_dashboard": "1"}
            )
        )
    return found
