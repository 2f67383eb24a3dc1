"""Every diagnostic code with one sentence on what it means.

Codes are public API: scripts match on them, so they are added, never renamed. A test holds that the codes used
in the package, this table and the headings of docs/diagnostics.md are the same set.
"""

from __future__ import annotations

CODES: dict[str, str] = {
    # files and YAML
    "file-too-large": "A spec file is larger than the limit.",
    "file-unreadable": "A spec file could not be read.",
    "invalid-utf8": "A spec file is not UTF-8.",
    "empty-file": "A spec file holds no document.",
    "crlf": "A spec file has Windows line endings.",
    "yaml-syntax": "The file is not YAML.",
    "yaml-tab": "A tab is used for indentation, which YAML forbids.",
    "yaml-duplicate-key": "A mapping has the same key twice.",
    "yaml-alias-bomb": "Aliases expand to more nodes than the limit.",
    "yaml-depth": "Mappings and lists are nested deeper than the limit.",
    "yaml-tag": "A YAML tag that safe YAML does not know.",
    "yaml-key": "A mapping key is not text.",
    # documents
    "not-a-spec": "A document is not a mapping with apiVersion, kind, metadata and spec.",
    "kubernetes-object": "A Kubernetes object stands where a spec is expected.",
    "unknown-api-version": "The apiVersion is not one that avactl reads.",
    "unknown-kind": "The kind does not exist.",
    # fields
    "unknown-key": "A key that the kind does not have.",
    "missing-key": "A key that must be there is not.",
    "wrong-type": "A value has another type than the field.",
    "invalid-value": "A value is outside of what the field takes.",
    # references and names
    "missing-reference": "A name that no spec declares.",
    "ambiguous-reference": "A reference that more than one spec could answer; say which.",
    "duplicate-name": "Two specs have the same kind and name.",
    "object-conflict": "Two specs compile to the same Kubernetes object.",
    "name-too-long": "A name is too long for an object that is derived from it.",
    "duplicate-entry": "Two entries of a list have the same name.",
    # clusters and teams
    "kubernetes-version": "The Kubernetes version does not have what the specs need.",
    "reserved-namespace": "A namespace that belongs to Kubernetes or to avactl itself.",
    "duplicate-namespace": "Two specs claim one namespace of a cluster.",
    "bucket-access": "A team's bucket that nobody can reach, or that the cache tier cannot serve as asked.",
    "missing-image": "A Cluster does not name an image that a spec needs.",
    # hardware, pools and capacity
    "invalid-topology": "Parts of a machine type contradict each other.",
    "topo-missing": "The text holds no matrix of `nvidia-smi topo -m`.",
    "topo-damaged": "A matrix of `nvidia-smi topo -m` that is not whole, or contradicts itself.",
    "topo-unsupported": "A machine that a MachineType cannot describe.",
    "conflicting-keys": "Keys that exclude each other are given together.",
    "duplicate-node": "One node is in two pools.",
    "reserved-label": "A label or taint that Kubernetes or an operator sets.",
    "gpu-not-in-cluster": "A GPU model that the cluster, or the named pool, does not have.",
    "pod-never-fits": "One pod asks for more than any machine has.",
    "gang-never-fits": "Pods that must run together need more than all machines have.",
    "link-unreachable": "GPUs of one pod require a link that no machine has between so many.",
    "link-not-enforced": "A link is required on a cluster where nobody looks at links.",
    "rdma-unavailable": "RDMA is asked for where no pool gives it.",
    "mixed-allocation": "Pods could run in pools that give out GPUs in different ways.",
    # quotas
    "duplicate-quota": "A team has two quotas on one cluster.",
    "quota-over-capacity": "Teams are guaranteed more than the cluster has.",
    "quota-exceeded": "A spec asks for more than its team may ever have.",
    "quota-waits": "What a team wants to run all the time is more than its quota: some of it waits.",
    # cache tiers and datasets
    "url-not-in-tier": "An object-store URL is in no under-store of the cache tier that should serve it.",
    "tier-cannot-serve": "A cache tier through which datasets cannot be read.",
    "missing-tier": "A setting that needs a cache tier stands on a dataset without one.",
    "cache-too-small": "Data that is larger than the cache tier that it is read through.",
    "manifest-line": "A line of a dataset's manifest that does not name an object.",
    "manifest-changed": "A manifest file is not the one that a dataset version was made of.",
    "manifest-too-large": "A manifest file that does not fit into a ConfigMap.",
    "not-shared": "A dataset of another team that is not shared.",
    "mount-conflict": "Two things are mounted at one directory.",
    "other-cluster": "A spec uses something that is on another cluster.",
    "even-quorum": "An even number of masters, which survive no more than one fewer.",
    "journal-too-small": "A journal volume that fills up.",
    "tier-order": "Storage tiers that are not fastest first, or a medium that stands twice.",
    "tier-too-small": "A storage tier that is no larger than what Alluxio keeps of it for itself.",
    "memory-too-small": "Memory with which a process of the cache cannot run.",
    "unsafe-write-back": "Writing back that fails, or that loses data with one machine.",
    "async-persist-risk": "Asynchronous writing to a store on which files were seen to stay unwritten.",
    "unknown-property": "A property that Alluxio does not have.",
    "refused-property": "A property that avactl sets itself, that loses data, or that does nothing.",
    "without-effect": "A setting that does nothing where it stands.",
    # training jobs
    "unsupported-strategy": "A framework that cannot do the strategy, or its consistency.",
    "wrong-strategy": "A role or a setting that the job's strategy or framework does not have.",
    "no-checkpoint": "A long or elastic job that may be stopped, and saves nothing to go on from.",
    "unbound-bucket": "A place in an object store that none of the team's buckets holds.",
    # services and workspaces
    "port-conflict": "Two listeners of a server have one port.",
    "resource-class-mismatch": "The resource class of a service contradicts its resources.",
    "unsupported-batching": "The runtime of a service cannot be told how to put requests together.",
    "replicas-do-not-fit": "More pods are allowed than the cluster's GPUs can ever hold.",
    "shared-gpu-needs-scheduler": "A share of a GPU on a cluster whose scheduler cannot give any.",
    "user-not-in-team": "The user of a workspace is not a member of its team.",
    # credentials
    "credential-literal": "A credential stands in a spec as text.",
    # repository
    "unsafe-path": "A path leaves the repository or the mounted directory.",
    "python-not-allowed": "A Python spec file where avactl.yaml does not allow any.",
    "python-not-confined": "A Python file where the kernel cannot confine it.",
    "python-error": "A Python spec file failed.",
    "python-timeout": "A Python spec file took longer than its limit.",
    "policy": "A spec or an object does not do what a policy of the repository demands.",
    "policy-error": "A policy that cannot be read, or that failed.",
    "policy-timeout": "A policy that was not done in time.",
    "no-specs": "No spec was found at all.",
    "internal-error": "A defect of avactl itself.",
}
"""Code → what it means."""


def register(code: str, meaning: str) -> str:
    """Add the code of a kind; returns it. A code that is registered twice with another meaning is a defect."""
    if CODES.setdefault(code, meaning) != meaning:
        raise ValueError(f"diagnostic code {code!r} is registered already; choose another name")
    return code
