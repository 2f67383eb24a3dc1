"""Roll-backs in git: the location of a service's spec for the delivery daemon, and the daemon's rights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from avactl.contracts.delivery import SERVICE_KEY, RollbackPlan
from avactl.contracts.document import dump
from avactl.contracts.names import CONFIG_LABEL, DELIVERY_DAEMON, ROLLBACK_CONFIG
from avactl.diagnostics import Diagnostic, Note
from avactl.kinds.cluster.delivery import commit_place
from avactl.kinds.serving.spec import ServingDeploymentSpec
from avactl.program.lowering import k8s
from avactl.program.lowering.rights import account_subject, build_role
from avactl.program.manifest import Manifest
from avactl.program.program import Item, Program
from avactl.spec.platform.delivery import Delivery

COMPONENT = "rollback"


def rollback_objects(item: Item[ServingDeploymentSpec], program: Program) -> list[Manifest]:
    """Return the ConfigMap with the location of a service's spec, and the daemon's Role.

    Return none if roll-backs are not committed: without the daemon, with `never`, or if the spec is not YAML."""
    cluster, by = program.cluster_spec(item.cluster), _rollback_way(item, program)
    if by == "never" or not _is_yaml(item):
        return []
    system, role = cluster.system_namespace, f"{item.name}-{COMPONENT}"
    document = RollbackPlan(
        cluster=item.cluster,
        namespace=item.ns,
        name=item.name,
        team=str(item.team),
        file=item.doc.file,
        document=item.spec_name,
        by=by,
    )
    plan = k8s.config_map(
        item,
        item.cluster,
        f"{COMPONENT}.{item.ns}.{item.name}",
        system,
        {SERVICE_KEY: dump(document, indent=True)},
        component=COMPONENT,
        extra_labels={CONFIG_LABEL: ROLLBACK_CONFIG},
    )
    rules = [
        k8s.policy_rule(["apps"], ["deployments"], ["get"], resourceNames=[item.name]),
        k8s.policy_rule(["apps"], ["replicasets"], ["list"]),
        k8s.policy_rule(["events.k8s.io"], ["events"], ["create", "patch"]),
    ]

    daemon = account_subject(DELIVERY_DAEMON, system)
    return [plan, *build_role(item, item.cluster, role, str(item.ns), rules, [daemon], COMPONENT)]


def rollback_problems(item: Item[ServingDeploymentSpec], program: Program, key: str) -> Iterator[Diagnostic]:
    """Yield reasons why a roll-back of a service, with a strategy by its key, could not be committed."""
    if _rollback_way(item, program) == "never":
        return
    cluster, at = program.cluster(item.cluster), item.span("spec", "rollout", key, key=True)
    note = (Note(cluster.span("spec", "daemons", "delivery", key=True), "commits roll-backs"),)
    found = commit_place(cluster)
    if not _is_yaml(item):
        yield Diagnostic(
            "not-editable",
            f"a roll-back of {item} cannot be committed: it is declared by {item.doc.file}, which is not YAML",
            at,
            severity="warning",
            hint="declare the service in YAML, or write `delivery: {rollback: never}` in the Cluster",
            notes=note,
        )
    elif found is not None and not found.secret:
        yield Diagnostic(
            "missing-key",
            f"the delivery daemon of cluster {cluster.name} has no credentials to commit a roll-back with",
            at,
            severity="warning",
            hint="add `delivery: {secret: NAME}` to the Cluster, or write `delivery: {rollback: never}`",
            notes=note,
        )


def _rollback_way(item: Item[ServingDeploymentSpec], program: Program) -> Literal["commit", "pullRequest", "never"]:
    """Return `rollback` of the Cluster: `commit`, `pullRequest` or `never`; `never` without the daemon."""
    cluster = program.cluster_spec(item.cluster)
    return (cluster.delivery or Delivery()).rollback if cluster.daemons.delivery else "never"


def _is_yaml(item: Item[ServingDeploymentSpec]) -> bool:
    return item.doc.file.endswith((".yaml", ".yml"))
