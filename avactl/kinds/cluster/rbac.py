"""What avactl's daemons may do in a cluster. Each rule says what it is for; docs/security.md lists the same."""

from __future__ import annotations

from avactl.kinds.lowering.k8s import policy_rule as rule
from avactl.kinds.manifest import Body

WATCH = ("get", "list", "watch")


def scheduler_cluster_rules() -> list[Body]:
    """The scheduler, in all namespaces. No Secrets, no ConfigMaps, no right to create or change pods."""
    return [
        # Capacity, labels, taints and cordons of machines.
        rule([""], ["nodes"], WATCH),
        # The team of a pod, and namespace selectors of pod affinity.
        rule([""], ["namespaces"], WATCH),
        # All pods: those that wait for this scheduler, and what the others use. Deleting is how a pod is preempted or
        # reclaimed: its Job or StatefulSet makes it anew.
        rule([""], ["pods"], (*WATCH, "delete")),
        # The decision itself.
        rule([""], ["pods/binding"], ("create",)),
        # Why a pod waits (PodScheduled), for whom it must go (DisruptionTarget), and the machine it is nominated for.
        rule([""], ["pods/status"], ("patch",)),
        # Volumes that exist on some machines only. The patch sets volume.kubernetes.io/selected-node, the annotation by
        # which a claim of a WaitForFirstConsumer class learns its machine.
        rule([""], ["persistentvolumeclaims"], (*WATCH, "patch")),
        # The patch names the claim for which a volume is that is there already.
        rule([""], ["persistentvolumes"], (*WATCH, "patch")),
        # When a class binds its volumes, and how many volumes of a driver a machine takes and has.
        rule(["storage.k8s.io"], ["storageclasses", "csinodes", "volumeattachments"], WATCH),
        # Which drivers say how much room they have for new volumes, and how much that is.
        rule(["storage.k8s.io"], ["csidrivers", "csistoragecapacities"], WATCH),
        # Preemption spares pods that a budget protects.
        rule(["policy"], ["poddisruptionbudgets"], WATCH),
        # GPUs under DRA: what there is, and what is asked for.
        rule(["resource.k8s.io"], ["resourceslices", "deviceclasses"], WATCH),
        # The patch adds the finalizer that keeps an allocated claim from vanishing under its pod.
        rule(["resource.k8s.io"], ["resourceclaims"], (*WATCH, "patch")),
        # The allocation and who it is reserved for. From Kubernetes 1.36 the second, synthetic subresource is asked for
        # beside the first (feature DRAResourceClaimGranularStatusAuthorization).
        rule(["resource.k8s.io"], ["resourceclaims/status", "resourceclaims/binding"], ("patch",)),
        # Scheduled, FailedScheduling and Preempted events, in the namespaces of the pods.
        rule(["events.k8s.io"], ["events"], ("create", "patch")),
    ]


def leader_rules(lease: str) -> list[Body]:
    """Leader election by one Lease, in the system namespace. RBAC cannot hold `create` to a name."""
    return [
        rule(["coordination.k8s.io"], ["leases"], ("create",)),
        rule(["coordination.k8s.io"], ["leases"], ("get", "update"), resourceNames=[lease]),
    ]


def config_rule() -> Body:
    """Policy, topology of the pools and the quota tree are ConfigMaps of the system namespace."""
    return rule([""], ["configmaps"], WATCH)


def topology_cluster_rules() -> list[Body]:
    """The daemon that compares machines with their type. An admission policy holds it to its own node's condition."""
    return [
        # The condition avactl.dev/TopologyMatches. Reading is not needed: a patch returns the node.
        rule([""], ["nodes/status"], ("patch",)),
    ]


def topology_event_rules() -> list[Body]:
    """The same daemon, where events of nodes are."""
    return [
        # That a machine no longer is what its pool says, or is again.
        rule(["events.k8s.io"], ["events"], ("create",)),
    ]


def cache_rules() -> list[Body]:
    """The cache daemon, in the namespace of the cache tiers. All else it does through Alluxio's own API."""
    return [
        # The tiers' properties, and which masters, workers and FUSE pods run.
        rule([""], ["configmaps", "pods"], WATCH),
        # What it did: loaded, pinned, written back.
        rule(["events.k8s.io"], ["events"], ("create", "patch")),
    ]


APPLY = (*WATCH, "create", "patch", "delete")
CLUSTER_ROLES = ("avactl-scheduler", "avactl-topology")
"""Roles over all namespaces that avactl's daemons have."""


def reconcile_cluster_rules() -> list[Body]:
    """The built-in reconciler: what it takes to apply and prune each kind that avactl compiles. No Secrets."""
    kinds = {
        "": (
            "namespaces", "serviceaccounts", "resourcequotas", "limitranges", "configmaps", "persistentvolumes",
            "persistentvolumeclaims", "services",
        ),
        "apps": ("daemonsets", "statefulsets", "deployments"),
        "batch": ("jobs", "cronjobs"),
        "networking.k8s.io": ("networkpolicies",),
        "policy": ("poddisruptionbudgets",),
        "autoscaling": ("horizontalpodautoscalers",),
        "scheduling.k8s.io": ("priorityclasses",),
        "storage.k8s.io": ("storageclasses",),
        "resource.k8s.io": ("deviceclasses", "resourceclaimtemplates"),
        "admissionregistration.k8s.io": ("validatingadmissionpolicies", "validatingadmissionpolicybindings"),
        "apiextensions.k8s.io": ("customresourcedefinitions",),
        "rbac.authorization.k8s.io": ("clusterroles", "clusterrolebindings", "roles", "rolebindings"),
    }  # fmt: skip
    roles = ["rbac.authorization.k8s.io"]
    return [
        *(rule([group], resources, APPLY) for group, resources in kinds.items()),
        # Who makes a role must have the rights in it, or these two verbs. Roles of teams: their names are the specs'.
        rule(roles, ["roles"], ("escalate", "bind")),
        # Over all namespaces only the daemons', and not its own: it cannot widen itself there.
        rule(roles, ["clusterroles"], ("escalate", "bind"), resourceNames=list(CLUSTER_ROLES)),
        # Labels and taints of machines.
        rule([""], ["nodes"], (*WATCH, "patch")),
        # Why a workload is not ready.
        rule([""], ["pods"], ("list",)),
        # What it did, on the objects.
        rule(["events.k8s.io"], ["events"], ("create",)),
    ]


def reconcile_rules(lease: str, record: str) -> list[Body]:
    """The same, in the system namespace."""
    return [
        *leader_rules(lease),
        # The inventory's record, which is replaced as a whole; ConfigMaps elsewhere are patched.
        rule([""], ["configmaps"], ("update",), resourceNames=[record]),
    ]
