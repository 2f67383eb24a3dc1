"""Team → namespaces, a service account, a quota, roles, network policies, volumes of buckets."""

from __future__ import annotations

from collections.abc import Iterator

from avactl.contracts import names
from avactl.kinds.team.allowances import allowances
from avactl.kinds.team.names import RUN_ACCOUNT
from avactl.kinds.team.network import policies
from avactl.kinds.team.rbac import daemon_roles, roles
from avactl.kinds.team.storage import buckets, prefixes
from avactl.program.lowering import k8s, namespaces
from avactl.program.lowering.notifications import TEAM, offers, receivers
from avactl.program.lowering.quota_leaf import borrower
from avactl.program.manifest import Manifest
from avactl.program.program import Item, Program
from avactl.spec.platform.team import TeamNamespace, TeamSpec


def lower(item: Item[TeamSpec], program: Program) -> list[Manifest]:
    """Return the objects of one team in each of its clusters."""
    declared = item.spec.namespaces or [TeamNamespace(name=item.name)]
    result: list[Manifest] = []
    for cluster in item.clusters:
        for namespace in declared:
            result += _namespace(item, program, cluster, namespace)
        result += prefixes(item, program, cluster)
        result += borrower(item, program, cluster, [namespace.name for namespace in declared])
    return result


def _no_foreign_affinity(item: Item[TeamSpec], cluster: str, namespace: str) -> Manifest:
    """Forbid pods whose affinity selects pods of other namespaces: they would keep those off nodes, or find out where
    they run. Services do so by their resource class; members cannot use their priority class by hand."""
    scopes = [
        {"scopeName": "CrossNamespacePodAffinity", "operator": "Exists"},
        {"scopeName": "PriorityClass", "operator": "NotIn", "values": [names.SERVING_PRIORITY]},
    ]
    return k8s.manifest(
        item,
        cluster,
        "v1",
        "ResourceQuota",
        "avactl-no-cross-namespace-affinity",
        namespace=namespace,
        spec={"hard": {"pods": "0"}, "scopeSelector": {"matchExpressions": scopes}},
    )


def _namespace(item: Item[TeamSpec], program: Program, cluster: str, namespace: TeamNamespace) -> Iterator[Manifest]:
    name = namespace.name
    labels = {**namespace.labels, names.TEAM_LABEL: item.name}
    level: str = namespace.pod_security
    if namespace.host_network:
        # A policy keeps members from creating pods; those of specs satisfy `restricted`, but for the network.
        labels[names.HOST_NETWORK_LABEL] = "true"
        level = "privileged"
    # Deleting a namespace deletes everything in it: homes, checkpoints, Secrets.
    keep = item.spec.deletion_policy != "delete"
    yield namespaces.manifest(
        item, program, cluster, name, level, labels, holds_data=keep, annotations=allowances(item.spec)
    )
    yield _no_foreign_affinity(item, cluster, name)
    yield k8s.manifest(
        item, cluster, "v1", "ServiceAccount", RUN_ACCOUNT, namespace=name, automountServiceAccountToken=False
    )
    for account in item.spec.service_accounts:
        yield k8s.manifest(
            item,
            cluster,
            "v1",
            "ServiceAccount",
            account.name,
            namespace=name,
            annotations=account.annotations,
            automountServiceAccountToken=False,
        )
    yield from roles(item, program, cluster, name)
    yield from daemon_roles(item, program, cluster, name)
    yield from policies(item, program, cluster, name)
    yield from buckets(item, program, cluster, name)
    if item.spec.notify is not None and offers(program, cluster):
        yield receivers(item, program, item.spec.notify, cluster, name, TEAM)
