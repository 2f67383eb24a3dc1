"""Labels, annotations and names that the compiler writes and the daemons read."""

from __future__ import annotations

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
CONFIG_LABEL = f"{GROUP}/config"
"""Label of ConfigMaps that the scheduler reads, with the kind of their content: `topology` or `quota`."""
CACHE_TIER_CONFIG, CACHE_DATASET_CONFIG, CACHE_STATUS_CONFIG = "cache-tier", "cache-dataset", "cache-status"
"""Values of `CONFIG_LABEL` in the namespace of the cache tiers: a tier and a dataset, which the cache daemon
reads, and the status that it writes."""
CACHE_STATUS = "avactl-cache-status"
"""ConfigMap that the cache daemon writes."""
TEAM_LABEL = f"{GROUP}/team"
"""Label of a team's namespaces, by which network policies separate tenants. Only cluster administrators can set it."""
GANG_LABEL = f"{GROUP}/gang"
"""Pod label: name of the gang, unique in its namespace. Its pods are placed all together or not at all."""
GANG_SIZE = f"{GROUP}/gang-size"
"""Pod annotation: number of the gang's pods that must be placed together; an elastic gang may grow beyond it. Also
accepted as a label, for pods written by hand."""
LINK = f"{GROUP}/link"
"""Pod annotation: the slowest acceptable link between its GPUs, one of `compute.Link`."""
LINK_POLICY = f"{GROUP}/link-policy"
"""Pod annotation: `required` or `preferred`."""
GPU_SHARE = f"{GROUP}/gpu-share"
"""Pod annotation: requested fraction of one GPU, such as `0.5`."""
DEVICES = f"{GROUP}/devices"
"""Set by the scheduler's Binding on device-plugin pools: indices of the pod's GPUs, such as `0,3`."""
PREEMPTION = f"{GROUP}/preemption"
"""Set by the scheduler on preempted pods and on the pods they are preempted for: the UID of the first preemptor and
the number of the decision. From it a new leader learns which victims belong to which preemptor."""
ON_CHANGE = f"{GROUP}/on-change"
"""Annotation `finish` of a Job whose current run may finish before a changed one starts."""
PREEMPTIBLE = f"{GROUP}/preemptible"
"""Pod annotation: `false` if the scheduler must not preempt the pod; `true` if a workspace's pod may be preempted."""
WITHIN = f"{GROUP}/within"
"""Gang annotation: topology level (a node label); one of its domains must hold all pods of the gang."""
MEMBER_PRIORITIES = f"{GROUP}/member-priorities"
"""Annotation of a team's namespace: comma-separated priority classes that members may use in pods of their own."""
SERVICE_TYPES = f"{GROUP}/service-types"
"""Annotation of a team's namespace: comma-separated types of Services that it may have."""
SYSTEM_PRIORITY = "avactl-system"
"""Priority class of avactl's daemons and cache tiers."""
SERVING_PRIORITY = "avactl-serving"
"""Priority class of services; above training of any priority."""
WORKSPACE_PRIORITY = "avactl-workspace"
"""Priority class of interactive pods, which workloads of their own team do not preempt."""
CHECKPOINT_EVERY = f"{GROUP}/checkpoint-every"
"""Annotation of pods that checkpoint: seconds between two checkpoints. Such pods may be moved to free capacity."""
TIMEOUT = f"{GROUP}/timeout"
"""Pod annotation: seconds from the binding after which the scheduler sets `TIMED_OUT`."""
TIMED_OUT = f"{GROUP}/TimedOut"
"""Pod condition: the pod ran for its timeout. Its Job fails instead of starting it again."""
TOPOLOGY_CONDITION = f"{GROUP}/TopologyMatches"
"""Node condition: GPUs, links and NICs match the pool's machine type."""

GPU_VARIABLES = (
    "NVIDIA_VISIBLE_DEVICES", "NVIDIA_IMEX_CHANNELS", "NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES",
    "NVIDIA_GDRCOPY", "NVIDIA_GDS", "NVIDIA_MOFED", "NVIDIA_NVSWITCH", "AMD_VISIBLE_DEVICES", "HABANA_VISIBLE_DEVICES",
    "ASCEND_VISIBLE_DEVICES", "MTHREADS_VISIBLE_DEVICES",
)  # fmt: skip
"""Environment variables by which container runtimes inject devices. CUDA_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES are
not among them: they choose among a container's own devices. Source: NVIDIA's container-toolkit."""
GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
"""Extended resources that count as GPUs even if no pool names them."""
