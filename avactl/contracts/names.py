"""Labels, annotations and names that the compiler writes and the daemons read."""

from __future__ import annotations

import re

GROUP = "avactl.dev"
MANAGED_BY = "app.kubernetes.io/managed-by"
"""Label of every object that avactl writes, with the value `MANAGER`."""
MANAGER = "avactl"
SCHEDULER_NAME = "avactl"
CONTROLLER = "avactl-scheduler"
"""Reporting controller of events."""
POOL_LABEL = f"{GROUP}/pool"
"""Node label: name of the node pool."""
GPU_LABEL = f"{GROUP}/gpu"
"""Node label: GPU model."""
CAPACITY = f"{GROUP}/capacity"
"""Label and taint of the nodes of spot pools, with the value `SPOT`."""
SPOT = "spot"
SPOT_ONLY = f"{CAPACITY}={SPOT}"
"""Entry of the tolerated taints of pods that run on spot nodes and nowhere else."""
CONFIG_LABEL = f"{GROUP}/config"
"""Label of ConfigMaps that daemons read, with the kind of their content."""
TOPOLOGY_CONFIG, QUOTA_CONFIG = "topology", "quota"
"""Values of `CONFIG_LABEL` in the system namespace: a node pool and a team's quota, which the scheduler reads."""
CACHE_TIER_CONFIG, CACHE_DATASET_CONFIG, CACHE_STATUS_CONFIG = "cache-tier", "cache-dataset", "cache-status"
CACHE_FLUSH_CONFIG = "cache-flush"
"""Values of `CONFIG_LABEL` in the namespace of the cache tiers: a tier, a dataset and a request to flush, which the
cache daemon reads, and the status that it writes."""
SAFE_TO_DRAIN = "avactl.dev/safe-to-drain"
"""Label of a cache worker that holds no data which is nowhere else: its PodDisruptionBudget does not select it."""
CACHE_NAMESPACE = "avactl-cache"
"""Namespace of all cache tiers in a cluster. FUSE needs the pod-security level `privileged` there."""
CACHE_STATUS = "avactl-cache-status"
"""ConfigMap that the cache daemon writes."""
AUTOSCALER_STATUS, AUTOSCALER_NAMESPACE = "cluster-autoscaler-status", "kube-system"
"""ConfigMap that Cluster Autoscaler writes, and its namespace."""
TEAM_LABEL = f"{GROUP}/team"
"""Label of a team's namespaces, by which network policies separate tenants. Only cluster administrators can set it."""
HOST_NETWORK_LABEL = f"{GROUP}/host-network"
"""Label of team namespaces whose specs may use the host's network. Members create no pods there."""
GANG_LABEL = f"{GROUP}/gang"
"""Pod label: name of the gang, unique in its namespace. Its pods are placed all together or not at all."""
FOLLOWER = "follower"
"""Container by which a Job is known to follow the leading Jobs of its training job."""
_LWS = "leaderworkerset.sigs.k8s.io"
LWS_NAME, LWS_GROUP, LWS_REVISION = f"{_LWS}/name", f"{_LWS}/group-key", f"{_LWS}/template-revision-hash"
"""Labels that the controller of LeaderWorkerSets gives to pods: name of the set; digest of the group, which no other
group of the namespace has; version of the templates."""
DISAGGREGATED_NAME, DISAGGREGATED_ROLE = "disaggregatedset.x-k8s.io/name", "disaggregatedset.x-k8s.io/role"
"""Labels that the controller of DisaggregatedSets gives to their LeaderWorkerSets and pods: name of the set, and of the
role."""
LWS_GROUP_INDEX, LWS_INDEX = f"{_LWS}/group-index", f"{_LWS}/worker-index"
"""Labels of these pods with the number of the group, and of the pod in it."""
ON_CHANGE = f"{GROUP}/on-change"
"""Annotation `finish` of a Job whose current run may finish before a changed one starts."""
MEMBER_PRIORITIES = f"{GROUP}/member-priorities"
"""Annotation of a team's namespace: comma-separated priority classes that members may use in pods of their own."""
MEMBER_LIMITS = f"{GROUP}/member-limits"
"""Annotation `true` of a team's namespace: its quota limits members, so pods with GPUs name theirs."""
SERVICE_ACCOUNTS = f"{GROUP}/service-accounts"
"""Annotation of a team's namespace: comma-separated `serviceAccounts` of the Team, which its specs may use."""
SERVICE_TYPES = f"{GROUP}/service-types"
"""Annotation of a team's namespace: comma-separated types of Services that it may have."""
SYSTEM_NAMESPACE = "avactl-system"
"""Default namespace of avactl's daemons and ConfigMaps."""
SYSTEM_PRIORITY = "avactl-system"
"""Priority class of avactl's daemons and cache tiers."""
SERVING_PRIORITY = "avactl-serving"
"""Priority class of services; above training of any priority."""
WORKSPACE_PRIORITY = "avactl-workspace"
"""Priority class of interactive pods, which workloads of their own team do not preempt."""
CLAIM_FINALIZER = "resource.kubernetes.io/delete-protection"
"""Finalizer of ResourceClaims that are allocated."""
DEVICE_CLASS_PREFIX = "deviceclass.resource.kubernetes.io/"
"""Prefix of the extended resource that every DeviceClass has, followed by its name."""
EXTENDED_CLAIM = "resource.kubernetes.io/extended-resource-claim"
"""Annotation, `true`, of the ResourceClaim that a scheduler creates for the extended resources of one pod."""
INITIALLY_SCHEDULED = "PodGroupInitiallyScheduled"
"""Condition of a PodGroup of Kubernetes: True, and then for ever, once as many pods as it asks for were scheduled."""
TIMED_OUT = f"{GROUP}/TimedOut"
"""Pod condition: the pod ran for its timeout. Its Job fails instead of starting it again."""
REPLACED_EXIT = 79
"""Exit code of a worker that leaves because it is far slower than the others of an elastic job, or because its node has
failed the health check. Its Job ignores the code and makes a new pod, for which the scheduler avoids the node."""
EXPERIMENT = f"{GROUP}/experiment"
"""Label of objects that a user has applied without git, with the name of the job: they are deleted with its Job."""
PROGRESS = f"{GROUP}/progress"
"""Annotation of an elastic job's ConfigMap, written by its master: the progress as JSON, for `avactl jobs`."""
TOPOLOGY_CONDITION = f"{GROUP}/TopologyMatches"
"""Node condition: GPUs, links and NICs match the pool's machine type."""
GPUS_CONDITION = f"{GROUP}/GPUsHealthy"
"""Node condition: the driver reports no fault of a GPU; the message has the faults (`contracts.gpu_faults`)."""

CORDONED_AT = f"{GROUP}/cordoned-at"
"""Annotation of nodes, by the scheduler: the time at which it cordoned the node. Failures before it cordon no more."""

POLICY, POLICY_KEY = "avactl-policy", "policy.json"
"""ConfigMap in the system namespace with the placement policy, which the daemons read, and its key. It names the
Cluster, whatever engine applies it."""

IDENTITY = "avactl-identity"
"""Role in the system namespace by which everybody with an account may read the policy."""

ROLLOUT = f"{GROUP}/rollout"
"""Annotation of a service's Deployment: JSON document of its canary or blue-green rollout, for the serving daemon."""
ROLLOUT_STATE = f"{GROUP}/rollout-state"
"""Annotation of such a Deployment, written by the serving daemon: JSON document of the rollout's state."""
ROLLOUT_ROUTE = f"{GROUP}/rollout-route"
"""Annotation of an HTTPRoute or GRPCRoute: JSON list of its rules, in which the serving daemon sets the backends."""
ROLLOUT_WITH = f"{GROUP}/rollout-with"
"""Annotation of a LeaderWorkerSet whose rollout is that of another one, with its name: a role of the same service."""
SERVICE_VERSION = f"{GROUP}/version"
"""Pod label: version of a service whose roles are LeaderWorkerSets that are rolled out together."""
VERSION_LABELS = ("pod-template-hash", LWS_REVISION, SERVICE_VERSION)
"""Labels of pods with the version of their service; which one depends on what its replicas are."""
WEIGHTS = f"{GROUP}/weights"
"""Annotation of the Service `NAME-headless`: JSON object of the node pools whose machines have another speed than 1.
From it, the serving daemon writes the weight of each address to `WEIGHTS_KEY` of the ConfigMap `NAME-weights`."""
WEIGHTS_KEY = "weights.json"
RECONCILER = "avactl-reconcile"
"""Name of the reconciler's objects, its service account in the system namespace, and the beginning of its leases'."""
REVISION_COMPONENT = "revision"
"""Component label of the objects of one version of a service: Service, and ReplicaSet during a rollout."""
SERVING_DAEMON = "avactl-serving"
"""Name of the serving daemon's objects, and its service account in the system namespace."""

PIPELINE = f"{GROUP}/pipeline"
"""Label of the templates, Jobs and pods of a pipeline's steps, with its name."""
PIPELINE_STEP = f"{GROUP}/pipeline-step"
"""Annotation of a CronJob that is a template of a pipeline's Jobs: `TRAINS`, `stage`, `validate` or `seal`; `idle` for
the training of a suspended pipeline."""
TRAINS = "train"
PIPELINE_CONFIG = "delivery"
"""Value of `CONFIG_LABEL` in the system namespace: the plan of a pipeline, for the delivery daemon."""
PIPELINE_STATE = "delivery-state"
"""Value of the same label: the state of a pipeline, which the delivery daemon writes."""
PIPELINE_STATE_PREFIX = "pipeline-state."
"""Beginning of the names of these ConfigMaps, and of the Roles that let the daemon write one of them."""
DELIVERY_DAEMON = "avactl-delivery"
"""Name of the delivery daemon's objects, and its service account in the system namespace."""
REJECTED_VERSION = f"{GROUP}/rejected"
"""Annotation of a ReplicaSet whose version was rolled back, with the reason."""
TEMPLATE_DIGEST = f"{GROUP}/template-digest"
"""Annotation of the Deployment of a service with a rollout: digest of its pod template as compiled. Each ReplicaSet has
the digest of its version, by which the delivery daemon finds the version in git."""
ROLLBACK_CONFIG = "rollback"
"""Value of `CONFIG_LABEL` in the system namespace: the location of a service's spec, for roll-backs by the delivery
daemon."""
ROLLOUT_REPORT = "rollout-report"
"""Value of `CONFIG_LABEL` in the system namespace: a model whose rollouts the delivery daemon records in git, for a
pipeline on another cluster."""
MODEL_URLS = f"{GROUP}/model-urls"
"""Annotation of the Deployment of a service: JSON object with the URL of each model that has one."""
PROMOTED_VALUES = f"{GROUP}/promoted-values"
"""Annotation of the Deployment of a service in a promotion: JSON object with a digest of each value that is promoted.
"""
HEALTH_REPORT = "health-report"
"""Value of `CONFIG_LABEL` in the system namespace: a service whose health the delivery daemon records in git, for
promotions from it or to it."""
PROMOTION_CONFIG = "promotion"
"""Value of the same label: the plan of a promotion, for the delivery daemon of the target's cluster."""
PROMOTION_STATE = "promotion-state"
"""Value of the same label: the state of a promotion, which that daemon writes for users."""
PROMOTION_STATE_PREFIX = "promotion-state."
"""Beginning of the names of these ConfigMaps, and of the Roles that let the daemon write one of them."""
RUN = f"{GROUP}/pipeline-run"
"""Label of the Jobs and pods of a pipeline's run, with its number, which is that of the version it publishes."""

GPU_VARIABLES = (
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_IMEX_CHANNELS",
    "NVIDIA_MIG_CONFIG_DEVICES",
    "NVIDIA_MIG_MONITOR_DEVICES",
    "NVIDIA_GDRCOPY",
    "NVIDIA_GDS",
    "NVIDIA_MOFED",
    "NVIDIA_NVSWITCH",
    "AMD_VISIBLE_DEVICES",
    "HABANA_VISIBLE_DEVICES",
    "ASCEND_VISIBLE_DEVICES",
    "MTHREADS_VISIBLE_DEVICES",
    "CAMBRICON_VISIBLE_DEVICES",
    "ILUVATAR_COREX_VISIBLE_DEVICES",
    "METAX_VISIBLE_DEVICES",
    "ENFLAME_VISIBLE_DEVICES",
)
"""Known environment variables by which container runtimes inject devices; `GPU_VARIABLE_PATTERN` has those of other
vendors, too. Source: NVIDIA's container-toolkit, device plugins of the vendors."""
_CHOOSING_VARIABLES = (
    "(CUDA|ROCR|HIP|ASCEND_RT|MUSA|MLU|TPU|XPU)_VISIBLE_DEVICES",
    "(RAY_EXPERIMENTAL_NOSET|JAX)_[A-Z_]*_VISIBLE_DEVICES",
)
"""Variables that choose among a container's own devices; libraries read them, not runtimes."""
_RUNTIME_VARIABLES = ("[A-Za-z0-9_]*_VISIBLE_DEVICES", *(name for name in GPU_VARIABLES if "VISIBLE" not in name))
GPU_VARIABLE_PATTERN = f"^({'|'.join(_RUNTIME_VARIABLES)})$"
"""All names with the suffix of the vendors' variables, except where `CHOOSING_VARIABLE_PATTERN` matches. RE2, which
admission uses, has no lookahead."""
CHOOSING_VARIABLE_PATTERN = f"^({'|'.join(_CHOOSING_VARIABLES)})$"


def injects_devices(variable: str) -> bool:
    """Return True for an environment variable by which a container runtime injects devices."""
    return bool(re.match(GPU_VARIABLE_PATTERN, variable)) and not re.match(CHOOSING_VARIABLE_PATTERN, variable)


GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi", "google.com/tpu")
"""Extended resources that count as GPUs even if no pool names them: those of NVIDIA, AMD, Intel Gaudi and TPUs."""
PICKER_GROUPS = {"inference.networking.x-k8s.io": ("v1alpha2",), "llm-d.ai": ("v1", "v1alpha2")}
"""Versions of the APIs of which an endpoint picker watches one, by group: the second one since llm-d-router 0.9."""
PICKER_KINDS = {"inferenceobjectives": "InferenceObjective", "inferencemodelrewrites": "InferenceModelRewrite"}
"""Priorities of requests and rewritten names of models, of which a picker watches its pool's: kinds by resource."""
