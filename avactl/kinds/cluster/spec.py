"""The Cluster kind: one Kubernetes cluster and what the platform installs into it."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from avactl.kinds.base import Labels, Metadata, Model, Resource
from avactl.kinds.values import Duration, Name, PinnedImage


class Images(Model):
    """Images of the platform's own containers, pinned by digest. Those of daemons that are off may be left out."""

    avactl: PinnedImage | None = Field(None, description="avactl's daemons: scheduler, cache daemon, job master.")
    alluxio: PinnedImage | None = Field(None, description="Alluxio 2.9: master, worker, FUSE. Needed by CacheTier.")
    git: PinnedImage | None = Field(None, description="Image with git and sh, for `code.git`.")
    tensorboard: PinnedImage | None = Field(None, description="Image with TensorBoard, for `tensorboard`.")
    fetch: PinnedImage | None = Field(
        None, description="Image with `rclone`, for model download and datasets without a cache tier."
    )


class StorageClasses(Model):
    """Storage classes by use. A use without one takes `default`; without that, the cluster's own default."""

    default: str | None = Field(None, description="For every use that is not named.")
    workspace: str | None = Field(None, description="Home directories of workspaces.")
    cache: str | None = Field(None, description="Journals of cache tiers.")
    checkpoint: str | None = Field(None, description="Checkpoints on volumes.")


class Daemons(Model):
    """Which of avactl's daemons run."""

    scheduler: bool = Field(False, description="The topology-aware GPU scheduler; pods get `schedulerName: avactl`.")
    cache: bool = Field(False, description="The cache daemon: prewarm, pin, write back.")


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
    levels: list[str] = Field(
        default_factory=lambda: ["topology.kubernetes.io/rack"],
        description="Node labels from near to far that say which machines are close, e.g. NVLink domain, rack.",
    )


class DeviceClass(Model):
    """A DRA device class that the cluster offers."""

    name: Name | Annotated[str, Field(pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", max_length=253)] = Field(
        description="Name of the class."
    )
    cel: str = Field(min_length=1, description="CEL expression that selects devices.")


class Reconcile(Model):
    """Who applies the compiled objects."""

    mode: Literal["pulumi", "files", "flux", "argocd"] = Field(
        "pulumi",
        description="`pulumi`: `pulumi up`. `files`: rendered manifests and kubectl. `flux`, `argocd`: the engine "
        "follows rendered manifests; objects that hold data carry its mark against pruning.",
    )


class Oidc(Model):
    """How names of the identity provider appear in Kubernetes."""

    username_prefix: str = Field("", description="The API server's --oidc-username-prefix.")
    groups_prefix: str = Field("", description="The API server's --oidc-groups-prefix.")


class ClusterSpec(Model):
    """One Kubernetes cluster."""

    kubernetes_version: Annotated[str, Field(pattern=r"^1\.[0-9]{2}(\.[0-9]+)?$")] = Field(
        "1.36", description="Kubernetes version, at least 1.34 where pools use DRA."
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
    gpu_driver: str = Field("gpu.nvidia.com", description="DRA driver that publishes the GPUs.")
    reconcile: Reconcile = Field(default_factory=Reconcile, description="Who applies the compiled objects.")
    oidc: Oidc = Field(default_factory=Oidc, description="How users and groups are named in RoleBindings.")
    pull_secrets: list[Name] = Field(
        default_factory=list, description="Image pull Secrets, expected in every team namespace."
    )
    egress_allowed: list[str] = Field(
        default_factory=lambda: ["0.0.0.0/0"],
        description="CIDRs that team pods may reach outside of their namespaces, beside DNS and the caches.",
    )
    default_job_ttl: Duration = Field("7d", description="How long ended training jobs stay, where they do not say.")


class Cluster(Resource):
    """One Kubernetes cluster: versions, images, storage classes, daemons, placement, who applies.

    Compiles to namespaces with pod-security labels, priority classes, DRA device classes, and the daemons with
    their exact RBAC.
    """

    KIND: ClassVar[str] = "Cluster"
    SCOPE: ClassVar[Literal["platform"]] = "platform"
    kind: Literal["Cluster"] = Field("Cluster", description="`Cluster`.")
    metadata: Metadata
    spec: ClusterSpec = Field(default_factory=ClusterSpec, description="The cluster.")
