"""All diagnostic codes, with a one-sentence meaning.

Codes are public API: scripts match on them, so codes are added, never renamed. A test checks that the codes used in
the package, this table and the headings of docs/diagnostics.md are the same set.
"""

from __future__ import annotations

CODES: dict[str, str] = {
    # files and YAML
    "file-too-large": "A spec file is larger than the limit.",
    "file-unreadable": "A spec file could not be read.",
    "file-not-read": "A file is not among the specs that avactl reads.",
    "invalid-utf8": "A spec file is not UTF-8.",
    "empty-file": "A spec file has no documents.",
    "crlf": "A spec file has Windows line endings.",
    "yaml-syntax": "The file is not valid YAML.",
    "yaml-tab": "A tab is used for indentation, which YAML forbids.",
    "yaml-duplicate-key": "A mapping has a duplicate key.",
    "yaml-alias-bomb": "Aliases expand to more nodes than the limit.",
    "yaml-depth": "Mappings and lists are nested deeper than the limit.",
    "yaml-tag": "A YAML tag is not supported in specs.",
    "yaml-key": "A mapping key is not a string.",
    # documents
    "not-a-spec": "A document is not a mapping with apiVersion, kind, metadata and spec.",
    "kubernetes-object": "The document is a Kubernetes object, not a spec.",
    "unknown-api-version": "The apiVersion is not supported.",
    "unknown-kind": "The kind does not exist.",
    # fields
    "unknown-key": "The kind has no such key.",
    "missing-key": "A required key is missing.",
    "wrong-type": "A value has the wrong type.",
    "invalid-value": "A value is not allowed for its field.",
    # references and names
    "missing-reference": "No spec declares the referenced name.",
    "ambiguous-reference": "A reference matches more than one spec.",
    "duplicate-name": "Two specs have the same kind and name.",
    "object-conflict": "Two specs compile to the same Kubernetes object.",
    "name-too-long": "A name is too long for an object derived from it.",
    "duplicate-entry": "Two entries of a list have the same name.",
    # environments, defaults and templates
    "unknown-environment": "No environment of the repository was chosen.",
    "overlay-without-target": "An overlay changes a spec that no file declares.",
    "overlay-without-effect": "An overlay, or a `null` in it, changes nothing.",
    "template-chain": "Templates extend each other, or the chain of templates is too long.",
    "layer-too-large": "A template or defaults have too many values, or a spec too many overlays.",
    # clusters and teams
    "not-owner": "A spec in a file whose path may not declare its team or its kind.",
    "kubernetes-version": "The Kubernetes version lacks a feature that the specs need.",
    "reserved-namespace": "A namespace is reserved for Kubernetes or avactl.",
    "duplicate-namespace": "Two specs declare the same namespace of a cluster.",
    "bucket-access": "A team cannot access a bucket, or the cache tier cannot serve it as requested.",
    "missing-image": "A Cluster does not define an image that a spec needs.",
    # hardware, pools and capacity
    "invalid-topology": "Parts of a machine type contradict each other.",
    "topo-missing": "The text has no matrix of `nvidia-smi topo -m`.",
    "topo-damaged": "A matrix of `nvidia-smi topo -m` is incomplete or inconsistent.",
    "topo-unsupported": "A MachineType cannot describe the machine.",
    "conflicting-keys": "Mutually exclusive keys are set together.",
    "duplicate-node": "A node is listed in two pools.",
    "reserved-label": "A label or taint is managed by Kubernetes or an operator.",
    "gpu-not-in-cluster": "The cluster, or the selected pool, does not have the GPU model.",
    "pod-never-fits": "A pod requests more than any machine has.",
    "gang-never-fits": "Pods that must run together request more than all machines have.",
    "link-unreachable": "No machine has the required link between that many GPUs.",
    "link-not-enforced": "A link is required on a cluster whose scheduler ignores links.",
    "rdma-unavailable": "RDMA is requested, but no eligible pool provides it.",
    "mixed-allocation": "The eligible pools allocate GPUs in different ways.",
    "spot-unavailable": "A spec wants spot machines, and no pool of the cluster has such.",
    "spot-not-restartable": "A spec on spot machines cannot go on after the loss of one.",
    "spot-notice": "Pods need more time to end than a spot machine gives them.",
    "taint-not-tolerated": "All pools with the GPUs of a spec have taints that it does not tolerate.",
    # quotas
    "duplicate-quota": "A team has two quotas on one cluster.",
    "quota-over-capacity": "Teams are guaranteed more than the cluster has.",
    "quota-exceeded": "A spec requests more than its team's quota can ever allow.",
    "quota-waits": "The running workspaces and services of a team exceed its quota.",
    # cache tiers and datasets
    "url-not-in-tier": "An object-store URL is not in any under-store of its cache tier.",
    "tier-cannot-serve": "Datasets cannot be read through the cache tier.",
    "missing-tier": "A dataset has a setting that needs a cache tier, but no tier.",
    "cache-too-small": "Data is larger than its cache tier.",
    "manifest-line": "A line of a dataset's manifest is invalid.",
    "manifest-changed": "A manifest file does not match the digest of the dataset version.",
    "object-missing": "An object of a manifest is not in its store.",
    "object-changed": "An object differs from what a manifest says.",
    "object-unlisted": "A store holds an object that a manifest does not list.",
    "manifest-too-large": "A manifest file does not fit into a ConfigMap.",
    "not-shared": "A dataset of another team is not shared.",
    "mount-conflict": "Two mounts use the same directory.",
    "other-cluster": "A spec references a resource on another cluster.",
    "even-quorum": "An even number of masters tolerates no more failures than one master fewer.",
    "journal-too-small": "A journal volume is too small.",
    "tier-order": "Storage tiers are not listed fastest first, or a medium is duplicate.",
    "tier-too-small": "A storage tier is no larger than the space that its engine reserves in it.",
    "tier-too-large": "Storage tiers are larger than the disk or memory that they are on.",
    "tier-without-disk": "A storage tier is on no disk that its pool declares.",
    "engine-cannot": "The engine of a cache tier cannot do what a spec says.",
    "memory-too-small": "A process of the cache tier has too little memory.",
    "masters-share-machine": "A cluster has fewer machines than a cache tier has masters.",
    "shared-store": "A store is written through one cache tier while another caches it.",
    "masters-too-small": "The masters of a cache tier hold fewer files than its datasets have.",
    "too-many-volumes": "A cache tier has more versions and buckets than a list of volumes can hold.",
    "small-files": "A dataset has so many files that it should be packed.",
    "missing-daemon": "A setting needs a daemon that the cluster does not run.",
    "watermark-order": "The low watermark of a push is not below the high one.",
    "write-back-target": "A tier that pushes has no writable under-store, or several.",
    "unsafe-write-back": "Write-back fails, or loses data if a machine fails.",
    "async-persist-risk": "Asynchronous writes to a store on which files have stayed unpersisted.",
    "unknown-property": "The engine of a cache tier does not know the property.",
    "refused-property": "A property is set by avactl, loses data, or has no effect.",
    "without-effect": "A setting has no effect.",
    "access-mode": "Pods on several nodes share a volume that one node can mount.",
    # training jobs
    "unsupported-strategy": "The framework does not support the strategy or its consistency.",
    "wrong-strategy": "The job's strategy or framework does not have the role or setting.",
    "dependency-cycle": "Jobs wait for each other.",
    "dependency-expires": "A job that others wait for is deleted some time after its end.",
    "no-checkpoint": "A long or elastic job is preemptible but has no checkpoint.",
    "unbound-bucket": "An object-store location is in none of the team's buckets.",
    "host-network-not-allowed": "A job uses the host's network in a namespace that does not allow it.",
    "pod-security": "A pod setting is above the pod-security level of its namespace.",
    "host-port-conflict": "Two jobs use the same port of the machines.",
    "missing-revision": "A git server does not have a revision of code.",
    # services and workspaces
    "port-conflict": "Two listeners of a server use the same port.",
    "resource-class-mismatch": "The resource class of a service contradicts its resources.",
    "unsupported-batching": "The runtime of a service does not support the batching settings.",
    "replicas-do-not-fit": "More replicas are allowed than the cluster's GPUs can ever hold.",
    "shared-gpu-needs-scheduler": "A fractional GPU is requested on a cluster without avactl's scheduler.",
    "missing-gateway": "A spec is exposed on a cluster that declares no gateway.",
    "host-not-allowed": "A host is in no domain that the cluster gives to the team.",
    "host-conflict": "Two specs are exposed under the same host.",
    "exposed-without-authentication": "A workspace is exposed, and nothing authenticates its users.",
    "notifications-off": "A spec notifies, and the platform of its cluster sends no notifications of teams.",
    "user-not-in-team": "The user of a workspace is not a member of its team.",
    # patches
    "patch-without-target": "A patch matches no object of its spec.",
    "patch-without-effect": "A patch changes nothing.",
    "patch-not-allowed": "A patch changes what specs of its owner may not change.",
    "patch-invalid": "A patch cannot be applied, or its result is not valid in Kubernetes.",
    # manifests
    "manifest-invalid": "A manifest of a KubernetesObjects is not valid in Kubernetes.",
    "manifest-not-allowed": "A manifest of a KubernetesObjects contains what its owner may not declare.",
    # credentials
    "credential-literal": "A spec contains a plain-text credential.",
    # repository
    "unsafe-path": "A path leaves the repository or the mounted directory.",
    "security-setting": "A change of a file that decides what specs may do.",
    "python-not-allowed": "Python files are not allowed by avactl.yaml.",
    "python-not-confined": "The machine cannot sandbox Python files.",
    "python-error": "A Python spec file failed.",
    "python-timeout": "A Python spec file exceeded its time limit.",
    "policy": "A spec or an object violates a policy of the repository.",
    "policy-error": "A policy is invalid or failed.",
    "policy-timeout": "A policy exceeded its time limit.",
    "no-specs": "There are no specs.",
    "internal-error": "A bug in avactl.",
}
"""Code → meaning."""


def register(code: str, meaning: str) -> str:
    """Register the code of a kind, and return it. Raises ValueError for a code with another meaning."""
    if CODES.setdefault(code, meaning) != meaning:
        raise ValueError(f"diagnostic code {code!r} is already registered; choose another name")
    return code
