"""Team → namespaces, a service account, a quota, roles, network policies, volumes of buckets."""

from __future__ import annotations

from collections.abc import Iterator

from avactl.contracts import names
from avactl.kinds.team.allowances import allowance_annotations
from avactl.kinds.team.names import RUN_ACCOUNT
from avactl.kinds.team.network import network_policies
from avactl.kinds.team.rbac import build_roles, daemon_roles
from avactl.kinds.team.storage import build_buckets, build_prefix_jobs
from avactl.program.lowering import k8s, namespaces
from avactl.program.lowering.notifications import TEAM, build_receivers, sends_notifications
from avactl.program.lowering.quota_leaf import build_borrower
from avactl.program.manifest import Manifest
from avactl.program.program import Item, Program
from avactl.spec.platform.team import TeamNamespace, TeamSpec


def lower(item: Item[TeamSpec], program: Program) -> list[Manifest]:
    """Return the objects of one team in each of its clusters."""
    declared = item.spec.namespaces or [TeamNamespace(name=item.name)]
    result: list[Manifest] = []
    for cluster in item.clusters:
        for namespace in declared:
            result += _build_namespace(item, program, cluster, namespace)
        result += build_prefix_jobs(item, program, cluster)
        result += build_borrower(item, program, cluster, [namespace.name for namespace in declared])
    return result


def _no_foreign_affinity(item: Item[TeamSpec], cluster: str, namespace: str) -> Manifest:
    """Forbid pods whose affinity selects pods of other namespaces: they would keep those off nodes, or find out where
    they run. Services do so by their resource class; members cannot use their priority class by hand."""
    scopes = [
        {"scopeName": "CrossNamespacePodAffinity", "operator": "Exists"},
        {"scopeName": "PriorityClass", "operator": "NotIn", "values": [names.SERVING_PRIORITY]},
    ]
    return k8s.build_manifest(
        item,
        cluster,
        "v1",
        "ResourceQuota",
        "avactl-no-cross-namespace-affinity",
        namespace=namespace,
        spec={"hard": {"pods": "0"}, "scopeSelector": {"matchExpressions": scopes}},
    )


def _limits_members(item: Item[TeamSpec], program: Program, cluster: str) -> bool:
    """Return True if a Quota of the team limits the GPUs of each member."""
    return any(
        entry.per_member is not None
        for quota in program.quotas()
        if (quota.team, quota.cluster) == (item.name, cluster)
        for entry in quota.spec.gpus
    )


def _build_namespace(
    item: Item[TeamSpec], program: Program, cluster: str, namespace: TeamNamespace
) -> Iterator[Manifest]:
    name = namespace.name
    labels = {**namespace.labels, names.TEAM_LABEL: item.name}
    level: str = namespace.pod_security
    if namespace.host_network:
        # A policy keeps members from creating pods; those of specs satisfy `restricted`, but for the network.
        labels[names.HOST_NETWORK_LABEL] = "true"
        level = "privileged"
    # Deleting a namespace deletes everything in it: homes, checkpoints, Secrets.
    keep = item.spec.deletion_policy != "delete"
    yield namespaces.build_namespace(
        item,
        program,
        cluster,
        name,
        level,
        labels,
        holds_data=keep,
        annotations=allowance_annotations(item.spec, _limits_members(item, program, cluster)),
    )
    yield _no_foreign_affinity(item, cluster, name)
    yield k8s.build_manifest(
        item, cluster, "v1", "ServiceAccount", RUN_ACCOUNT, namespace=name, automountServiceAccountToken=False
    )
    for account in item.spec.service_accounts:
        yield k8s.build_manifest(
            item,
            cluster,
            "v1",
            "ServiceAccount",
            account.name,
            namespace=name,
            annotations=account.annotations,
            automountServiceAccountToken=False,
        )
    yield from build_roles(item, program, cluster, name)
    yield from daemon_roles(item, program, cluster, name)
    yield from network_policies(item, program, cluster, name)
    yield from build_buckets(item, program, cluster, name)
    if item.spec.notify is not None and sends_notifications(program, cluster):
        yield build_receivers(item, program, item.spec.notify, cluster, name, TEAM)
