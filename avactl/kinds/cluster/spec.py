"""The Cluster kind: one Kubernetes cluster and what the platform installs into it."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from avactl.kinds.base import Labels, Model, Resource
from avactl.kinds.cluster.prices import Prices
from avactl.kinds.cluster.reconcile import Reconcile
from avactl.kinds.fields.values import Duration, Name, PinnedImage, bad, label_key

_VERSION = re.compile(r"1\.[0-9]{1,2}(\.[0-9]+)?").fullmatch
_SUBDOMAIN_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_SUBDOMAIN = re.compile(_SUBDOMAIN_PATTERN).fullmatch


def _version(value: Any) -> Any:
    if isinstance(value, float):
        raise bad("the version is a number, in which 1.30 and 1.3 are the same", 'quote it: `"1.36"`')
    if isinstance(value, str) and not _VERSION(value):
        fixed = value.strip().removeprefix("v")
        hint = f'write `"{fixed}"`' if _VERSION(fixed) else 'write major and minor, e.g. `"1.36"`'
        raise bad(f"`{value[:40]}` is not a Kubernetes version", hint)
    return value


def _subdomain(value: str) -> str:
    if len(value) > 253 or not _SUBDOMAIN(value):
        raise bad(f"`{value[:60]}` is not a DNS name", "use small letters, digits, `-` and `.`")
    return value


def _cidr(value: str) -> str:
    import ipaddress  # most compiles never need it

    try:
        network = ipaddress.ip_network(value, strict=False)
    except ValueError:
        hint = "write a network and its length: `10.0.0.0/8`; host names cannot stand in network policies"
        raise bad(f"`{value[:80]}` is not a CIDR", hint) from None
    if str(network) != value:
        raise bad(f"`{value}` is not a CIDR in its canonical form", f"write `{network}`")
    return value


def _cel(value: str) -> str:
    if not value.strip():
        raise bad("an empty expression selects nothing", 'write CEL: `device.driver == "gpu.nvidia.com"`')
    return value


KubernetesVersion = Annotated[
    str, BeforeValidator(_version), WithJsonSchema({"type": "string", "pattern": r"^1\.[0-9]{1,2}(\.[0-9]+)?$"})
]
"""A Kubernetes version: `1.36` or `1.36.3`."""
Subdomain = Annotated[
    str,
    AfterValidator(_subdomain),
    WithJsonSchema({"type": "string", "pattern": _SUBDOMAIN_PATTERN, "maxLength": 253}),
]
"""A DNS subdomain (RFC 1123): what Kubernetes takes as the name of storage classes, drivers and device classes."""
LabelKey = Annotated[
    str,
    AfterValidator(label_key),
    WithJsonSchema({"type": "string", "pattern": r"^([-a-z0-9.]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"}),
]
"""The key of a label: a name, with or without a DNS prefix."""
Cidr = Annotated[
    str, AfterValidator(_cidr), WithJsonSchema({"type": "string", "pattern": r"^[0-9A-Fa-f:.]+/[0-9]{1,3}$"})
]
"""An IPv4 or IPv6 network: `10.0.0.0/8`."""

Cel = Annotated[
    str,
    Field(max_length=10_240),
    AfterValidator(_cel),
    WithJsonSchema({"type": "string", "pattern": r"\S", "maxLength": 10_240}),
]
"""An expression in the Common Expression Language. The API server holds it to 10 KiB."""


class Images(Model):
    """Images of the platform's own containers, pinned by digest. Those of daemons that are off may be left out."""

    avactl: PinnedImage | None = Field(None, description="avactl's daemons: scheduler, cache daemon, job master.")
    alluxio: PinnedImage | None = Field(None, description="Alluxio 2.9: master, worker, FUSE. Needed by CacheTier.")
    git: PinnedImage | None = Field(None, description="Image with git and sh, for `code.git`.")
    tensorboard: PinnedImage | None = Field(None, description="Image with TensorBoard, for `tensorboard`.")
    kubectl: PinnedImage | None = Field(
        None, description="Image with kubectl and sh, for jobs of strategies `parameterServer` and `mpi`."
    )
    fetch: PinnedImage | None = Field(
        None, description="Image with `rclone`, for model download and datasets without a cache tier."
    )


class StorageClasses(Model):
    """Storage classes by use. A use without one takes `default`; without that, the cluster's own default."""

    default: Subdomain | None = Field(None, description="For every use that is not named.")
    workspace: Subdomain | None = Field(None, description="Home directories of workspaces.")
    cache: Subdomain | None = Field(None, description="Journals of cache tiers.")
    checkpoint: Subdomain | None = Field(None, description="Checkpoints on volumes.")


class Daemons(Model):
    """Which of avactl's daemons run."""

    scheduler: bool = Field(False, description="The topology-aware GPU scheduler; pods get `schedulerName: avactl`.")
    cache: bool = Field(False, description="The cache daemon: prewarm, pin, write back.")
    topology: bool = Field(
        False,
        description="Compares each NVIDIA machine with its declared type (`nvidia-smi topo -m`), and tells by its "
        "node's condition `avactl.dev/TopologyMatches`. Needs Kubernetes 1.30.",
    )


class Namespace(Model):
    """A namespace of the platform's own."""

    name: Name = Field(description="Name of the namespace.")
    pod_security: Literal["restricted", "baseline", "privileged"] = Field(
        "restricted", description="Pod-security level that is enforced."
    )
    labels: Labels = Field(default_factory=dict, description="Further labels.")


class Placement(Model):
    """How the scheduler chooses among machines that fit."""

    objective: Literal["pack", "links", "spread"] = Field(
        "pack",
        description="`pack`: keep whole machines free for big jobs. `links`: the fastest links first. "
        "`spread`: even load.",
    )
    levels: list[LabelKey] = Field(
        default_factory=lambda: ["topology.kubernetes.io/rack"],
        description="Node labels from near to far that say which machines are close, e.g. NVLink domain, rack.",
    )


class DeviceClass(Model):
    """A DRA device class that the cluster offers."""

    name: Subdomain = Field(
        description="Name of the class. One of avactl's own names, e.g. `gpu-v100`, takes the place of that class."
    )
    cel: Cel = Field(description="CEL expression that selects devices.")


class Oidc(Model):
    """How names of the identity provider appear in Kubernetes."""

    username_prefix: str = Field("", description="The API server's --oidc-username-prefix.")
    groups_prefix: str = Field("", description="The API server's --oidc-groups-prefix.")


class ClusterSpec(Model):
    """One Kubernetes cluster."""

    kubernetes_version: KubernetesVersion = Field(
        "1.36", description="Kubernetes version, at least 1.29, and 1.34 where pools use DRA."
    )
    system_namespace: Name = Field("avactl-system", description="Namespace of avactl's daemons and ConfigMaps.")
    images: Images = Field(default_factory=Images, description="Images of the platform's own containers.")
    storage_classes: StorageClasses = Field(default_factory=StorageClasses, description="Storage classes by use.")
    daemons: Daemons = Field(default_factory=Daemons, description="Which daemons run.")
    namespaces: list[Namespace] = Field(default_factory=list, description="Namespaces of the platform's own.")
    placement: Placement = Field(default_factory=Placement, description="How machines are chosen.")
    device_classes: list[DeviceClass] = Field(
        default_factory=list,
        description="DRA device classes beside those that avactl makes for each GPU model of a DRA pool.",
    )
    gpu_driver: Annotated[Subdomain, Field(max_length=63)] = Field(
        "gpu.nvidia.com", description="DRA driver that publishes the GPUs."
    )
    reconcile: Reconcile = Field(default_factory=Reconcile, description="Who applies the compiled objects.")
    oidc: Oidc = Field(default_factory=Oidc, description="How users and groups are named in RoleBindings.")
    pull_secrets: list[Name] = Field(
        default_factory=list,
        description="Image pull Secrets, expected in the namespaces of the teams and of the system.",
    )
    egress_allowed: list[Cidr] = Field(
        default_factory=lambda: ["0.0.0.0/0"],
        description="CIDRs that team pods may reach outside of their namespaces, beside DNS. A wider one "
        "never includes the cloud's metadata service.",
    )
    prices: Prices | None = Field(None, description="What GPUs cost, for `avactl plan`; no cost is told without.")
    default_job_ttl: Duration | None = Field(
        None,
        description="How long ended training jobs stay, where they do not say. Default: as long as their spec is "
        "there.",
    )


class Cluster(Resource):
    """One Kubernetes cluster: versions, images, storage classes, daemons, placement, who applies.

    Compiles to namespaces with pod-security labels, priority classes, DRA device classes, and the daemons with
    their exact RBAC.
    """

    KIND: ClassVar[str] = "Cluster"
    SCOPE: ClassVar[Literal["platform"]] = "platform"
    kind: Literal["Cluster"] = Field("Cluster", description="`Cluster`.")
    spec: ClusterSpec = Field(default_factory=ClusterSpec, description="The cluster.")

    def placed_on(self, every: tuple[str, ...]) -> tuple[str, ...]:
        """Itself."""
        return (self.name,)
