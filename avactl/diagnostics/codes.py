"""All diagnostic codes, with a one-sentence meaning.

Codes are public API: scripts match on them, so codes are added, never renamed. A test checks that the codes used in
the package, this table and the headings of docs/diagnostics.md are the same set.
"""

from __future__ import annotations

CODES: dict[str, str] = {
    # files and YAML
    "file-too-large": "A spec file is larger than the limit.",
    "file-unreadable": "A spec file could not be read.",
    "invalid-utf8": "A spec file is not UTF-8.",
    "empty-file": "A spec file has no documents.",
    "crlf": "A spec file has Windows line endings.",
    "yaml-syntax": "The file is not valid YAML.",
    "yaml-tab": "A tab is used for indentation, which YAML forbids.",
    "yaml-duplicate-key": "A mapping has the same key twice.",
    "yaml-alias-bomb": "Aliases expand to more nodes than the limit.",
    "yaml-depth": "Mappings and lists are nested deeper than the limit.",
    "yaml-tag": "A YAML tag outside of safe YAML.",
    "yaml-key": "A mapping key is not a string.",
    # documents
    "not-a-spec": "A document is not a mapping with apiVersion, kind, metadata and spec.",
    "kubernetes-object": "A Kubernetes object is in the place of a spec.",
    "unknown-api-version": "The apiVersion is not supported.",
    "unknown-kind": "The kind does not exist.",
    # fields
    "unknown-key": "A key that the kind does not have.",
    "missing-key": "A required key is missing.",
    "wrong-type": "A value has the wrong type.",
    "invalid-value": "A value is not allowed for its field.",
    # references and names
    "missing-reference": "A name that no spec declares.",
    "ambiguous-reference": "A reference that matches more than one spec.",
    "duplicate-name": "Two specs have the same kind and name.",
    "object-conflict": "Two specs compile to the same Kubernetes object.",
    "name-too-long": "A name is too long for an object derived from it.",
    "duplicate-entry": "Two entries of a list have the same name.",
    # clusters and teams
    "kubernetes-version": "The Kubernetes version lacks a feature that the specs need.",
    "reserved-namespace": "A namespace that belongs to Kubernetes or to avactl itself.",
    "duplicate-namespace": "Two specs claim one namespace of a cluster.",
    "bucket-access": "A team's bucket that is unreachable, or that the cache tier cannot serve as requested.",
    "missing-image": "A Cluster does not name an image that a spec needs.",
    # hardware, pools and capacity
    "invalid-topology": "Parts of a machine type contradict each other.",
    "topo-missing": "The text has no matrix of `nvidia-smi topo -m`.",
    "topo-damaged": "A matrix of `nvidia-smi topo -m` that is incomplete or inconsistent.",
    "topo-unsupported": "A machine that a MachineType cannot describe.",
    "conflicting-keys": "Mutually exclusive keys are set together.",
    "duplicate-node": "One node is in two pools.",
    "reserved-label": "A label or taint that Kubernetes or an operator sets.",
    "gpu-not-in-cluster": "A GPU model that the cluster, or the named pool, does not have.",
    "pod-never-fits": "One pod asks for more than any machine has.",
    "gang-never-fits": "Pods that must run together need more than all machines have.",
    "link-unreachable": "A pod requires a link between more GPUs than any machine connects with it.",
    "link-not-enforced": "A link is required on a cluster whose scheduler ignores links.",
    "rdma-unavailable": "RDMA is requested, but no eligible pool provides it.",
    "mixed-allocation": "Pods could run in pools that allocate GPUs in different ways.",
    # quotas
    "duplicate-quota": "A team has two quotas on one cluster.",
    "quota-over-capacity": "Teams are guaranteed more than the cluster has.",
    "quota-exceeded": "A spec requests more than its team's quota can ever allow.",
    "quota-waits": "A team's continuous workloads exceed its quota: some of them wait.",
    # cache tiers and datasets
    "url-not-in-tier": "An object-store URL is outside of the under-stores of its cache tier.",
    "tier-cannot-serve": "A cache tier through which datasets cannot be read.",
    "missing-tier": "A setting that needs a cache tier is used on a dataset without one.",
    "cache-too-small": "Data is larger than the cache tier it is read through.",
    "manifest-line": "A line of a dataset's manifest that does not name an object.",
    "manifest-changed": "A manifest file differs from the one a dataset version was created from.",
    "manifest-too-large": "A manifest file that does not fit into a ConfigMap.",
    "not-shared": "A dataset of another team that is not shared.",
    "mount-conflict": "Two mounts have the same directory.",
    "other-cluster": "A spec uses something that is on another cluster.",
    "even-quorum": "An even number of masters, which tolerates no more failures than one fewer.",
    "journal-too-small": "A journal volume that fills up.",
    "tier-order": "Storage tiers that are not fastest first, or a duplicate medium.",
    "tier-too-small": "A storage tier that is no larger than the space Alluxio reserves in it.",
    "memory-too-small": "Too little memory for a process of the cache.",
    "unsafe-write-back": "Write-back that fails, or that loses data when one machine fails.",
    "async-persist-risk": "Asynchronous writes to a store for which lost persists have been reported.",
    "unknown-property": "A property that Alluxio does not have.",
    "refused-property": "A property that avactl sets itself, that loses data, or that does nothing.",
    "without-effect": "A setting that has no effect there.",
    # training jobs
    "unsupported-strategy": "A framework that does not support the strategy, or its consistency.",
    "wrong-strategy": "A role or a setting that the job's strategy or framework does not have.",
    "no-checkpoint": "A long or elastic job that may be preempted and has no checkpoint.",
    "unbound-bucket": "An object-store location outside of the team's buckets.",
    # services and workspaces
    "port-conflict": "Two listeners of a server have one port.",
    "resource-class-mismatch": "The resource class of a service contradicts its resources.",
    "unsupported-batching": "The runtime of a service does not support the batching settings.",
    "replicas-do-not-fit": "More replicas are allowed than the cluster's GPUs can ever hold.",
    "shared-gpu-needs-scheduler": "A share of a GPU on a cluster whose scheduler does not support sharing.",
    "user-not-in-team": "The user of a workspace is not a member of its team.",
    # credentials
    "credential-literal": "A credential is in a spec as text.",
    # repository
    "unsafe-path": "A path leaves the repository or the mounted directory.",
    "python-not-allowed": "A Python spec file that avactl.yaml does not allow.",
    "python-not-confined": "A Python file on a machine whose kernel cannot sandbox it.",
    "python-error": "A Python spec file failed.",
    "python-timeout": "A Python spec file took longer than its limit.",
    "policy": "A spec or an object violates a policy of the repository.",
    "policy-error": "A policy that cannot be loaded, or that failed.",
    "policy-timeout": "A policy that exceeded its time limit.",
    "no-specs": "No spec was found.",
    "internal-error": "A defect of avactl itself.",
}
"""Code → meaning."""


def register(code: str, meaning: str) -> str:
    """Register the code of a kind, and return it. Raises ValueError for a code with another meaning."""
    if CODES.setdefault(code, meaning) != meaning:
        raise ValueError(f"diagnostic code {code!r} is already registered; choose another name")
    return code
