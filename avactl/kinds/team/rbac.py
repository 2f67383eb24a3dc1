"""RBAC of team members in the team's namespaces. Each rule has a comment with its reason.

docs/security.md lists the same rules.
Members must not change the objects that isolate tenants: namespaces, roles, network policies, quotas, service accounts.
"""

from __future__ import annotations

from avactl.contracts.names import SERVING_DAEMON
from avactl.program.lowering import k8s
from avactl.program.lowering.k8s import policy_rule as rule
from avactl.program.lowering.rights import account_subject, build_role
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program
from avactl.spec.platform.team import TeamSpec

READ = ("get", "list", "watch")
WRITE = ("create", "update", "patch", "delete")
MEMBER, ADMIN, VIEWER = "avactl-member", "avactl-admin", "avactl-viewer"

_WORK: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("", ("pods", "services", "configmaps", "persistentvolumeclaims")),
    ("apps", ("deployments", "statefulsets", "replicasets")),
    ("batch", ("jobs", "cronjobs")),
    ("autoscaling", ("horizontalpodautoscalers",)),
    ("policy", ("poddisruptionbudgets",)),
    ("resource.k8s.io", ("resourceclaims", "resourceclaimtemplates")),
    ("scheduling.k8s.io", ("podgroups", "workloads")),
)
"""API group and resources of a team's workloads: members may read and write these, viewers may read them."""


def viewer_rules() -> list[Body]:
    """Rules of a viewer: read workloads and their limits."""
    return [
        *(rule([group], resources, READ) for group, resources in _WORK),
        # Services whose replicas have several machines: `avactl serving status`. Members cannot write them.
        rule(["leaderworkerset.x-k8s.io"], ["leaderworkersets"], READ),
        # Pod logs, and the reasons why pods do not run.
        rule([""], ["pods/log"], ("get",)),
        rule(["", "events.k8s.io"], ["events"], READ),
        # Quotas, service accounts and network policies.
        rule([""], ["resourcequotas", "limitranges", "serviceaccounts"], READ),
        rule(["networking.k8s.io"], ["networkpolicies"], READ),
        # Service endpoints, and `kubectl top pods`.
        rule(["discovery.k8s.io"], ["endpointslices"], READ),
        rule(["metrics.k8s.io"], ["pods"], ("get", "list")),
    ]


def member_rules() -> list[Body]:
    """Rules of a member: a viewer's, plus change workloads, exec, port-forward. No Secrets."""
    return [
        *viewer_rules(),
        *(rule([group], resources, WRITE) for group, resources in _WORK),
        # A terminal and an editor in one's pods. kubectl uses GET for WebSocket, else POST.
        rule([""], ["pods/exec", "pods/attach", "pods/portforward"], ("get", "create")),
        # `kubectl scale`, and evicting a pod as a drain would.
        rule(["apps"], ["deployments/scale", "statefulsets/scale"], ("get", "update", "patch")),
        rule([""], ["pods/eviction"], ("create",)),
    ]


def admin_rules() -> list[Body]:
    """Rule for the team's Secrets, bound in addition to a member's rules."""
    return [rule([""], ["secrets"], (*READ, *WRITE))]


def build_roles(item: Item[TeamSpec], program: Program, cluster: str, namespace: str) -> list[Manifest]:
    """Return roles and bindings in one namespace; no binding without subjects."""
    members = item.spec.members
    oidc = program.cluster_spec(cluster).oidc
    admins = [_build_subject("User", oidc.username_prefix + name) for name in members.admins]
    users = [
        _build_subject("User", oidc.username_prefix + name) for name in members.users if name not in members.admins
    ]
    groups = [_build_subject("Group", oidc.groups_prefix + name) for name in members.groups]
    viewers = [_build_subject("Group", oidc.groups_prefix + name) for name in members.viewers]
    result: list[Manifest] = []
    for name, rules, subjects in (
        (MEMBER, member_rules, [*admins, *users, *groups]),
        (ADMIN, admin_rules, admins),
        (VIEWER, viewer_rules, viewers),
    ):
        if subjects:
            result += build_role(item, cluster, name, namespace, rules(), map(dict, subjects))
    return result


def serving_rules(groups: bool, pools: bool) -> list[Body]:
    """Rules of the serving daemon in each namespace of a team. No Secrets; it creates no pods and no routes.

    `groups`: services may have replicas of several machines. `pools`: they may have endpoint pickers.
    """
    return [
        # The patch writes the state of a rollout.
        rule(["apps"], ["deployments"], ("patch",)),
        # The condition avactl.dev/Rollout.
        rule(["apps"], ["deployments/status"], ("patch",)),
        # One ReplicaSet a version, with the pod template of the Deployment.
        rule(["apps"], ["replicasets"], ("create", "patch", "delete")),
        # One Service a version, owned by its ReplicaSet; the patch sets the selector of blue-green. Where the admission
        # plugin OwnerReferencesPermissionEnforcement is on, owners are set only by accounts that may delete the object.
        rule([""], ["services"], ("create", "patch", "delete")),
        # Weights. It cannot create routes: hosts are taken only by specs.
        rule(["gateway.networking.k8s.io"], ["httproutes", "grpcroutes"], ("patch",)),
        # Template of validation Jobs, and the Jobs, which are owned by ReplicaSets, too.
        rule(["batch"], ["cronjobs"], ("get",)),
        rule(["batch"], ["jobs"], ("create", "delete")),
        # Begin, steps and end of rollouts.
        rule(["events.k8s.io"], ["events"], ("create", "patch")),
        *(_group_rules() if groups else ()),
        # The version that a pool selects. It creates none.
        *([rule(["inference.networking.k8s.io"], ["inferencepools"], ("patch",))] if pools else ()),
    ]


def _group_rules() -> list[Body]:
    return [
        # The state of a rollout, and from which ordinal on groups are replaced. It creates none.
        rule(["leaderworkerset.x-k8s.io"], ["leaderworkersets", "leaderworkersets/status"], ("patch",)),
        # Leaders of a version that is rolled back: their groups start again with the stable one. An admission policy
        # restricts it to leaders, which RBAC cannot.
        rule([""], ["pods"], ("delete",)),
    ]


def daemon_roles(item: Item[TeamSpec], program: Program, cluster: str, namespace: str) -> list[Manifest]:
    """Return the serving daemon's Role in one namespace and its binding; none on clusters without the daemon.

    It is not one for each service: a service whose spec has lost its `rollout` still needs the daemon, to give its
    versions back to the Deployment.
    """
    spec = program.cluster_spec(cluster)
    if not spec.daemons.serving:
        return []
    name, groups = SERVING_DAEMON, spec.leader_worker_set is not None
    rules = serving_rules(groups, spec.routes_to_pools)
    return build_role(item, cluster, name, namespace, rules, [account_subject(name, spec.system_namespace)])


def _build_subject(kind: str, name: str) -> Body:
    return k8s.role_reference(kind, name)
