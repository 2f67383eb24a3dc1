"""RBAC of avactl's daemons. Each rule has a comment with its reason; docs/security.md lists the same rules."""

from __future__ import annotations

from collections.abc import Iterable

from avactl.contracts.names import AUTOSCALER_STATUS, CACHE_STATUS, POLICY
from avactl.contracts.scheduling import GangKind
from avactl.program.lowering.k8s import policy_rule as rule
from avactl.program.manifest import Body

WATCH = ("get", "list", "watch")


def scheduler_cluster_rules(gang_kinds: Iterable[GangKind], autoscalers: bool, cordons: bool) -> list[Body]:
    """Rules of the scheduler, in all namespaces. No Secrets; it cannot create or update pods.

    `gang_kinds`: objects of other controllers whose pods start together. `autoscalers`: preemptions wait for machines.
    `cordons`: it may cordon machines that fail pods; an admission policy restricts the patch to that.
    """
    owners: dict[str, list[str]] = {}
    for kind in gang_kinds:
        owners.setdefault(kind.api_version.partition("/")[0], []).append(kind.resource)
    return [
        # Capacity, labels, taints and cordons of nodes.
        rule([""], ["nodes"], (*WATCH, "patch") if cordons else WATCH),
        # The team of a pod, and namespace selectors of pod affinity.
        rule([""], ["namespaces"], WATCH),
        # All pods: pending pods of this scheduler, and the usage of other pods. Preemption and reclaim delete a pod;
        # its
        # Job or StatefulSet recreates it.
        rule([""], ["pods"], (*WATCH, "delete")),
        # The binding itself.
        rule([""], ["pods/binding"], ("create",)),
        # The reason a pod waits (PodScheduled), its preemptor (DisruptionTarget), its nominated node, and the claim of
        # its extended resources.
        rule([""], ["pods/status"], ("patch",)),
        # Volumes restricted to some nodes. The patch sets volume.kubernetes.io/selected-node, the annotation that tells
        # the provisioner of a WaitForFirstConsumer claim its node.
        rule([""], ["persistentvolumeclaims"], (*WATCH, "patch")),
        # The patch binds an existing volume to its claim.
        rule([""], ["persistentvolumes"], (*WATCH, "patch")),
        # Binding mode of storage classes, and volume limits and usage of each CSI driver per node.
        rule(["storage.k8s.io"], ["storageclasses", "csinodes", "volumeattachments"], WATCH),
        # CSI drivers that report storage capacity, and the capacity.
        rule(["storage.k8s.io"], ["csidrivers", "csistoragecapacities"], WATCH),
        # Preemption respects PodDisruptionBudgets.
        rule(["policy"], ["poddisruptionbudgets"], WATCH),
        # Jobs that pods wait for (`after`).
        rule(["batch"], ["jobs"], WATCH),
        # PodGroups with the policy `gang` are gangs. The patch writes the condition PodGroupInitiallyScheduled.
        rule(["scheduling.k8s.io"], ["podgroups"], WATCH),
        rule(["scheduling.k8s.io"], ["podgroups/status"], ("patch",)),
        # How many pods of another controller's object start together.
        *(rule([group], resources, WATCH) for group, resources in owners.items()),
        # Machines that are on their way: Karpenter's, and the status of Cluster Autoscaler, no other ConfigMap.
        *(_autoscaler_rules() if autoscalers else ()),
        # DRA: available devices, those that are sick, and claims.
        rule(["resource.k8s.io"], ["resourceslices", "deviceclasses", "devicetaintrules"], WATCH),
        # The patch adds the finalizer that protects an allocated claim in use by a pod. The scheduler creates the claim
        # of a pod's extended resources that have a DeviceClass, and deletes it if the pod cannot be bound.
        rule(["resource.k8s.io"], ["resourceclaims"], (*WATCH, "create", "patch", "delete")),
        # The allocation and `reservedFor`. From Kubernetes 1.36 on, the API server also requires the second, synthetic
        # subresource (feature DRAResourceClaimGranularStatusAuthorization).
        rule(["resource.k8s.io"], ["resourceclaims/status", "resourceclaims/binding"], ("patch",)),
        # Scheduled, FailedScheduling and Preempted events, in the namespaces of the pods.
        rule(["events.k8s.io"], ["events"], ("create", "patch")),
    ]


def _autoscaler_rules() -> list[Body]:
    return [
        rule(["karpenter.sh"], ["nodeclaims"], WATCH),
        rule([""], ["configmaps"], WATCH, resourceNames=[AUTOSCALER_STATUS]),
    ]


def leader_rules(lease: str) -> list[Body]:
    """Rules for leader election with one Lease in the system namespace. RBAC cannot restrict `create` by name."""
    return [
        rule(["coordination.k8s.io"], ["leases"], ("create",)),
        rule(["coordination.k8s.io"], ["leases"], ("get", "update"), resourceNames=[lease]),
    ]


def config_rule() -> Body:
    """Rule to read the policy, pool topology and quota tree: ConfigMaps of the system namespace."""
    return rule([""], ["configmaps"], WATCH)


def identity_rules() -> list[Body]:
    """Rule of all accounts in the system namespace: the name of the Cluster, by which commands know the cluster."""
    return [
        # The placement policy, and no other ConfigMap. It holds no secrets.
        rule([""], ["configmaps"], ("get",), resourceNames=[POLICY]),
    ]


def topology_cluster_rules() -> list[Body]:
    """Rules of the topology daemon. An admission policy restricts it to its own node's conditions."""
    return [
        # The conditions TopologyMatches and GPUsHealthy of avactl.dev. `get` is not needed: a patch returns the node.
        rule([""], ["nodes/status"], ("patch",)),
    ]


def topology_event_rules() -> list[Body]:
    """Rules of the topology daemon in the namespace of node events."""
    return [
        # Events when a machine stops or starts matching its pool, and when its GPUs have faults.
        rule(["events.k8s.io"], ["events"], ("create", "patch")),
    ]


def status_rule() -> Body:
    """Rule of the scheduler to read the cache daemon's status, and no other ConfigMap of its namespace."""
    return rule([""], ["configmaps"], WATCH, resourceNames=[CACHE_STATUS])


def cache_cluster_rules() -> list[Body]:
    """Rules of the cache daemon, in all namespaces. No Secrets; it writes nothing but events."""
    return [
        # Drains of machines with workers.
        rule([""], ["nodes"], WATCH),
        # Jobs that wait for a dataset, and the tiers' own pods.
        rule([""], ["pods"], WATCH),
        # Pods that read through a FUSE mount.
        rule([""], ["persistentvolumes"], WATCH),
        # Progress of datasets and drains, and mounts that were lost.
        rule(["events.k8s.io"], ["events"], ("create", "patch")),
    ]


def cache_rules(drains: bool) -> list[Body]:
    """Rules of the cache daemon in the namespace of the cache tiers, besides its Lease.

    `drains`: workers may hold data that is not yet in a store.
    """
    rules = [
        # Tiers and datasets, its status, and requests to flush. RBAC cannot restrict `create` by name.
        rule([""], ["configmaps"], (*WATCH, "create")),
        rule([""], ["configmaps"], ("update", "patch"), resourceNames=[CACHE_STATUS]),
    ]
    if drains:
        # The label of workers that may be evicted. RBAC cannot restrict `patch` to labels.
        rules.append(rule([""], ["pods"], ("patch",)))
    return rules


def serving_cluster_rules(groups: bool, pools: bool) -> list[Body]:
    """Rules of the serving daemon, in all namespaces: it reads. It writes in namespaces of teams only, by a Role.

    `groups`: services may have replicas of several machines. `pools`: they may have endpoint pickers.
    """
    return [
        # Services with a rollout, their versions, and the validation Jobs of these.
        rule(["apps"], ["deployments", "replicasets"], WATCH),
        rule(["batch"], ["jobs"], WATCH),
        rule([""], ["services"], WATCH),
        rule(["gateway.networking.k8s.io"], ["httproutes", "grpcroutes"], WATCH),
        # Why pods of a new version do not start, and what runs on the machines when room is checked.
        rule([""], ["pods"], ("list",)),
        # Room for another version: machines and quotas.
        rule([""], ["resourcequotas"], ("list",)),
        # Also the pool of each machine, for the weights of its pods. Each service's own Role allows to write these.
        rule([""], ["nodes"], WATCH),
        # Addresses that have weights.
        rule(["discovery.k8s.io"], ["endpointslices"], WATCH),
        *(_group_rules() if groups else ()),
        # Version of each pool of pods.
        *([rule(["inference.networking.k8s.io"], ["inferencepools"], WATCH)] if pools else ()),
    ]


def _group_rules() -> list[Body]:
    return [
        # Services whose replicas have several machines, the revisions of their groups, and the leaders of these.
        rule(["leaderworkerset.x-k8s.io"], ["leaderworkersets"], WATCH),
        rule(["apps"], ["statefulsets"], WATCH),
        rule([""], ["pods"], WATCH),
    ]


APPLY = (*WATCH, "create", "patch", "delete")
ADMINISTRATORS = {
    "rbac.authorization.k8s.io": ("clusterroles", "clusterrolebindings"),
    "admissionregistration.k8s.io": ("validatingadmissionpolicies", "validatingadmissionpolicybindings"),
    "scheduling.k8s.io": ("priorityclasses",),
    "storage.k8s.io": ("storageclasses",),
    "apiextensions.k8s.io": ("customresourcedefinitions",),
}
"""Resources by API group that the built-in reconciler only reads: whoever writes them has power over the cluster."""


def reconcile_cluster_rules() -> list[Body]:
    """Rules of the built-in reconciler: apply and prune each kind that avactl compiles. No Secrets.

    An admission policy restricts it further: `kinds.cluster.daemons.limits`.
    """
    kinds = {
        "": (
            "namespaces",
            "serviceaccounts",
            "resourcequotas",
            "limitranges",
            "configmaps",
            "persistentvolumes",
            "persistentvolumeclaims",
            "services",
        ),
        "apps": ("daemonsets", "statefulsets", "deployments"),
        "batch": ("jobs", "cronjobs"),
        "networking.k8s.io": ("networkpolicies", "ingresses"),
        "gateway.networking.k8s.io": ("httproutes", "grpcroutes"),
        "inference.networking.k8s.io": ("inferencepools",),
        "keda.sh": ("scaledobjects",),
        "leaderworkerset.x-k8s.io": ("leaderworkersets",),
        "disaggregatedset.x-k8s.io": ("disaggregatedsets",),
        "monitoring.coreos.com": ("podmonitors", "prometheusrules", "alertmanagerconfigs"),
        "policy": ("poddisruptionbudgets",),
        "autoscaling": ("horizontalpodautoscalers",),
        "resource.k8s.io": ("deviceclasses", "resourceclaimtemplates"),
        "resource.nvidia.com": ("computedomains",),
        "rbac.authorization.k8s.io": ("roles", "rolebindings"),
    }
    return [
        *(rule([group], resources, APPLY) for group, resources in kinds.items()),
        # To report that they differ from the specs, and that an administrator must apply them.
        *(rule([group], resources, WATCH) for group, resources in ADMINISTRATORS.items()),
        # Creating a role requires holding its permissions, or these two verbs. Team role names come from the specs.
        rule(["rbac.authorization.k8s.io"], ["roles"], ("escalate", "bind")),
        # Labels and taints of nodes.
        rule([""], ["nodes"], (*WATCH, "patch")),
        # The reasons why a workload is not ready.
        rule([""], ["pods"], ("list",)),
        # Events on the objects that it applies.
        rule(["events.k8s.io"], ["events"], ("create", "patch")),
    ]


def reconcile_rules(lease: str, record: str) -> list[Body]:
    """Rules of the built-in reconciler in the system namespace."""
    return [
        *leader_rules(lease),
        # The inventory, which is replaced as a whole; ConfigMaps elsewhere are patched.
        rule([""], ["configmaps"], ("update",), resourceNames=[record]),
    ]
