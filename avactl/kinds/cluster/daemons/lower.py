"""The daemons of a cluster, and the placement policy that they read."""

from __future__ import annotations

import math

from avactl.contracts import names
from avactl.contracts.document import dump
from avactl.contracts.names import CACHE_NAMESPACE
from avactl.contracts.pod_annotations import CONFIG
from avactl.contracts.scheduling import KNOWN_GANG_KINDS, GangKind, PlacementPolicy
from avactl.kinds.cluster.daemons import builtin, cache, delivery, limits, rbac, serving, topology
from avactl.kinds.cluster.daemons.deployment import HTTP_PORT, DaemonDeployment, metrics_only
from avactl.program.lowering import k8s
from avactl.program.lowering.pods import build_resources
from avactl.program.manifest import Manifest
from avactl.program.program import Item, Program
from avactl.spec.platform.cluster import ClusterSpec, Placement
from avactl.spec.schema.values import duration_seconds


def placement_policy(item: Item[ClusterSpec], program: Program) -> Manifest:
    """Return the ConfigMap with the placement policy."""
    spec = item.spec
    document = PlacementPolicy(
        cluster=item.name,
        gpu_driver=spec.gpu_driver,
        jobs=True,
        pod_groups=True,
        taint_rules=True,
        autoscalers=waits_for_machines(item, program),
        hold_after=math.ceil(duration_seconds(spec.placement.hold_after or "0s")),
        gang_kinds=gang_kinds(spec.placement),
        levels=tuple(spec.placement.levels),
        objective=spec.placement.objective,
        reconcile=spec.reconcile.mode,
        scheduler_name=names.SCHEDULER_NAME,
        system_namespace=spec.system_namespace,
        cache_daemon=cache.runs_cache_daemon(item, program),
    )
    data = {names.POLICY_KEY: dump(document, indent=True)}
    return k8s.config_map(item, item.name, names.POLICY, spec.system_namespace, data)


def waits_for_machines(item: Item[ClusterSpec], program: Program) -> bool:
    """Return True if preemptions in the cluster wait for machines that an autoscaler has ordered."""
    return any(pool.spec.preemption_delay for pool in program.pools(item.name))


def cordons_nodes(item: Item[ClusterSpec], program: Program) -> bool:
    """Return True if the scheduler may cordon machines of a pool."""
    return any(pool.spec.on_failed_pods == "cordon" for pool in program.pools(item.name))


def gang_kinds(placement: Placement) -> tuple[GangKind, ...]:
    """Return the kinds of other controllers whose pods start together. An added one replaces the known one."""
    added = tuple(
        GangKind(
            api_version=each.api_version,
            kind=each.kind,
            resource=each.resource,
            label=each.label,
            replicas=tuple(each.replicas),
        )
        for each in placement.gangs
    )
    replaced = {each.kind for each in added}
    return (*(each for each in KNOWN_GANG_KINDS if each.kind not in replaced), *added)


def build_daemons(item: Item[ClusterSpec], program: Program, config: Manifest) -> list[Manifest]:
    """Return the objects of the enabled daemons; `config` is the ConfigMap that they read."""
    system = item.spec.system_namespace
    result: list[Manifest] = []
    on = item.spec.daemons
    if on.scheduler:
        result += _build_scheduler(item, program, config)
    if on.topology:
        result += topology.daemon_sets(item, program, names.SYSTEM_PRIORITY)
    if on.serving:
        result += [*serving.build_serving_daemon(item), *limits.serving_policy(item, serving.COMPONENT)]
    result += delivery.build_delivery_daemon(item, program)
    result += builtin.build_reconciler(item, program, names.SYSTEM_PRIORITY, HTTP_PORT)
    if result:
        result.append(metrics_only(item, system, {}))
    if cache.runs_cache_daemon(item, program):
        result += [*cache.build_cache_daemon(item, program), *limits.cache_policy(item, cache.NAME, cache.COMPONENT)]
    return result


def _build_scheduler(item: Item[ClusterSpec], program: Program, config: Manifest) -> list[Manifest]:
    daemon = DaemonDeployment(item, "scheduler", names.CONTROLLER, item.spec.system_namespace)
    # It reads its policy at startup: a changed digest restarts it.
    digest = {CONFIG.name: k8s.short_digest(config.body["data"])}
    volumes = {"config": ("/etc/avactl", {"configMap": {"name": config.name}})}
    # The progress of datasets, for pods that wait for them.
    status = daemon.role([rbac.status_rule()], CACHE_NAMESPACE) if cache.runs_cache_daemon(item, program) else []
    return [
        *status,
        *daemon.deployment(["--config", "/etc/avactl/policy.json"], build_resources("1", "1Gi"), volumes, digest),
        *daemon.cluster_role(
            rbac.scheduler_cluster_rules(
                gang_kinds(item.spec.placement), waits_for_machines(item, program), cordons_nodes(item, program)
            )
        ),
        *limits.scheduler_policy(item),
        *daemon.role([*rbac.leader_rules(daemon.name), rbac.config_rule()]),
    ]
