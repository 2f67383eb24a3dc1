"""The Cluster kind: one Kubernetes cluster and what the platform installs into it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from avactl.contracts.names import SYSTEM_NAMESPACE
from avactl.spec.platform.delivery import Delivery
from avactl.spec.platform.prices import Prices
from avactl.spec.platform.reconcile import Reconcile
from avactl.spec.schema.base import Labels, Model, Resource
from avactl.spec.schema.exposure import Exposure
from avactl.spec.schema.monitoring import Monitoring
from avactl.spec.schema.values import Duration, HostPath, Name, PinnedImage, label_key, value_error

_IS_VERSION = re.compile(r"1\.[0-9]{1,2}(\.[0-9]+)?").fullmatch
_SUBDOMAIN_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_IS_SUBDOMAIN = re.compile(_SUBDOMAIN_PATTERN).fullmatch


def _check_version(value: Any) -> Any:
    if isinstance(value, float):
        raise value_error("the version is a number, which cannot distinguish 1.30 from 1.3", "quote it")
    if isinstance(value, str) and not _IS_VERSION(value):
        fixed = value.strip().removeprefix("v")
        hint = f'write `"{fixed}"`' if _IS_VERSION(fixed) else 'write major and minor, e.g. `"1.36"`'
        raise value_error(f"`{value[:40]}` is not a Kubernetes version", hint)
    return value


def _check_subdomain(value: str) -> str:
    if len(value) > 253 or not _IS_SUBDOMAIN(value):
        raise value_error(f"`{value[:60]}` is not a DNS name", "use lowercase letters, digits, `-` and `.`")
    return value


def _matching(pattern: str, what: str, hint: str) -> Callable[[str], str]:
    """Return the check that a text has a form."""
    matches = re.compile(pattern).fullmatch

    def check(value: str) -> str:
        if len(value) > 253 or not matches(value):
            raise value_error(f"`{value[:60]}` is not {what}", hint)
        return value

    return check


def _check_cidr(value: str) -> str:
    import ipaddress  # most compiles never need it

    try:
        network = ipaddress.ip_network(value, strict=False)
    except ValueError:
        hint = "write a network and prefix length: `10.0.0.0/8`; network policies do not support host names"
        raise value_error(f"`{value[:80]}` is not a CIDR", hint) from None
    if str(network) != value:
        raise value_error(f"`{value}` is not a CIDR in canonical form", f"write `{network}`")
    return value


def _check_cel(value: str) -> str:
    if not value.strip():
        raise value_error("an empty expression selects nothing", 'write CEL: `device.driver == "gpu.nvidia.com"`')
    return value


KubernetesVersion = Annotated[
    str, BeforeValidator(_check_version), WithJsonSchema({"type": "string", "pattern": r"^1\.[0-9]{1,2}(\.[0-9]+)?$"})
]
"""A Kubernetes version: `1.36` or `1.36.3`."""
Subdomain = Annotated[
    str,
    AfterValidator(_check_subdomain),
    WithJsonSchema({"type": "string", "pattern": _SUBDOMAIN_PATTERN, "maxLength": 253}),
]
"""A DNS subdomain (RFC 1123): the form of storage class, driver and device class names."""
LabelKey = Annotated[
    str,
    AfterValidator(label_key),
    WithJsonSchema({"type": "string", "pattern": r"^([-a-z0-9.]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"}),
]
"""A label key: a name with an optional DNS prefix."""
Cidr = Annotated[
    str, AfterValidator(_check_cidr), WithJsonSchema({"type": "string", "pattern": r"^[0-9A-Fa-f:.]+/[0-9]{1,3}$"})
]
"""An IPv4 or IPv6 network: `10.0.0.0/8`."""

Cel = Annotated[
    str,
    Field(max_length=10_240),
    AfterValidator(_check_cel),
    WithJsonSchema({"type": "string", "pattern": r"\S", "maxLength": 10_240}),
]
"""A Common Expression Language expression. The API server limits it to 10 KiB."""
_VERSION_OF_GROUP = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+/v[0-9][a-z0-9]*"
_KIND, _PLURAL, _FIELD = r"[A-Z][A-Za-z0-9]{0,62}", r"[a-z][a-z0-9]{0,62}", r"spec(\.([A-Za-z][A-Za-z0-9]*|\*)){1,8}"
ApiVersion = Annotated[
    str,
    AfterValidator(
        _matching(
            _VERSION_OF_GROUP,
            "the version of another controller's group",
            "write group and version, with a dot in the group: `kubeflow.org/v1`",
        )
    ),
    WithJsonSchema({"type": "string", "pattern": f"^{_VERSION_OF_GROUP}$", "maxLength": 253}),
]
"""Version of an API group with a dot: none of Kubernetes' core, which has the Secrets."""
KindName = Annotated[
    str,
    AfterValidator(_matching(_KIND, "a kind", "write it as in manifests: `TFJob`")),
    WithJsonSchema({"type": "string", "pattern": f"^{_KIND}$"}),
]
Plural = Annotated[
    str,
    AfterValidator(_matching(_PLURAL, "the plural of a kind", "write it as `kubectl api-resources` does: `tfjobs`")),
    WithJsonSchema({"type": "string", "pattern": f"^{_PLURAL}$"}),
]
FieldPath = Annotated[
    str,
    AfterValidator(_matching(_FIELD, "the path of a field", "write `spec.tfReplicaSpecs.*.replicas`")),
    WithJsonSchema({"type": "string", "pattern": f"^{_FIELD}$", "maxLength": 253}),
]
KNOWN_GANGS = ("RayCluster", "JobSet", "MPIJob", "PyTorchJob")
"""Kinds whose numbers of pods the scheduler knows to read."""


class Images(Model):
    """Images of the platform's own containers, pinned by digest. Images of disabled daemons may be omitted."""

    avactl: PinnedImage | None = Field(
        None,
        description="Image of avactl's daemons (scheduler, topology, cache, serving, delivery, reconciler), of masters "
        "of elastic jobs, and of the steps of pipelines.",
    )
    alluxio: PinnedImage | None = Field(
        None, description="Alluxio 2.9 image: master, worker, FUSE. Required by CacheTiers with engine `alluxio`."
    )
    juicefs: PinnedImage | None = Field(
        None,
        description="JuiceFS Community Edition 1.4 image: mount pods, imports. Required by CacheTiers with engine "
        "`juicefs`.",
    )
    git: PinnedImage | None = Field(None, description="Image with git, tar and sh, for `code`.")
    tensorboard: PinnedImage | None = Field(None, description="Image with TensorBoard, for `tensorboard`.")
    kubectl: PinnedImage | None = Field(
        None, description="Image with kubectl and sh, for jobs with strategy `parameterServer`, `mpi` or `elastic`."
    )
    fetch: PinnedImage | None = Field(
        None, description="Image with `rclone`, for model downloads and datasets without a cache tier."
    )


class StorageClass(Model):
    """A storage class of the cluster: its provisioner and access modes."""

    name: Subdomain = Field(description="Name of the storage class.")
    provisioner: Subdomain | Annotated[str, Field(pattern=r"^[a-z0-9.-]{1,253}/[a-z0-9.-]{1,63}$")] | None = Field(
        None, description="Its provisioner, e.g. `rbd.csi.ceph.com`. avactl knows the access modes of common ones."
    )
    access_modes: list[Literal["ReadWriteOnce", "ReadWriteMany"]] = Field(
        default_factory=list, description="Access modes of its volumes. Default: those of the provisioner."
    )


class StorageClasses(Model):
    """Storage classes by use. An unset use falls back to `default`, then to the cluster's default class."""

    default: Subdomain | None = Field(None, description="Default for uses that are not set.")
    workspace: Subdomain | None = Field(None, description="For home directories of workspaces.")
    cache: Subdomain | None = Field(None, description="For journals of cache tiers.")
    checkpoint: Subdomain | None = Field(
        None,
        description="For checkpoint and log volumes. Several pods share them, so the class must offer ReadWriteMany.",
    )
    classes: list[StorageClass] = Field(default_factory=list, description="Provisioners of the classes.")


class Daemons(Model):
    """The avactl daemons to run."""

    scheduler: bool = Field(False, description="The topology-aware GPU scheduler; pods get `schedulerName: avactl`.")
    cache: bool = Field(
        False,
        description="The daemon of the cache tiers: loads datasets ahead and reports their progress, pushes written "
        "data to the object store, frees unused data, repairs FUSE mounts.",
    )
    topology: bool = Field(
        False,
        description="Compares each NVIDIA machine with its declared type (`nvidia-smi topo -m`), and reports the "
        "result in the "
        "node condition `avactl.dev/TopologyMatches`. Requires Kubernetes 1.30.",
    )
    serving: bool = Field(
        False,
        description="The daemon of services: carries out `canary` and `blueGreen` rollouts, rolls bad versions back.",
    )
    delivery: bool = Field(
        False,
        description="The daemon of pipelines: begins their runs, publishes models, and deploys them by commits to the "
        "repository of the specs. Also commits roll-backs of services.",
    )
    metrics_from: list[Name] = Field(
        default_factory=lambda: ["monitoring"],
        description="Namespaces whose pods may read the daemons' metrics, e.g. that of Prometheus.",
    )


class Namespace(Model):
    """A namespace of the platform itself."""

    name: Name = Field(description="Name of the namespace.")
    pod_security: Literal["restricted", "baseline", "privileged"] = Field(
        "restricted", description="Enforced pod-security level."
    )
    labels: Labels = Field(default_factory=dict, description="Additional labels.")


class GangKind(Model):
    """A kind of another controller whose pods start together."""

    api_version: ApiVersion = Field(description="Group and version, such as `kubeflow.org/v1`.")
    kind: KindName = Field(description="Kind, such as `TFJob`.")
    resource: Plural = Field(description="Its name in the API: the plural in lower case, such as `tfjobs`.")
    label: LabelKey = Field(description="Label of the pods whose value is the name of the object.")
    replicas: list[FieldPath] = Field(
        default_factory=list,
        max_length=16,
        description="Fields whose sum is the number of pods, such as `spec.tfReplicaSpecs.*.replicas`; `*` stands for "
        "each entry of a list or map, and a field that is absent counts as 1. Not needed for another version of "
        "RayCluster, JobSet, MPIJob or PyTorchJob.",
    )

    @model_validator(mode="after")
    def _is_countable(self) -> GangKind:
        if not self.replicas and self.kind not in KNOWN_GANGS:
            hint = "write `replicas: [spec.….replicas]`"
            raise value_error(f"the number of pods of kind {self.kind} is unknown", hint)
        return self


class Placement(Model):
    """Rules by which the scheduler chooses among nodes that fit."""

    objective: Literal["pack", "links", "spread"] = Field(
        "pack",
        description="`pack`: keep whole machines free for large jobs. `links`: prefer the fastest links. "
        "`spread`: balance the load.",
    )
    levels: list[LabelKey] = Field(
        default_factory=lambda: ["topology.kubernetes.io/rack"],
        description="Node labels of the topology levels, from nearest to farthest, such as NVLink domain and rack.",
    )
    hold_after: Duration | None = Field(
        None,
        description="Once a job that needs more than one GPU has waited this long for free ones, younger pods of its "
        "team and no higher priority that need GPUs wait behind it, for as long again at most. Default: never.",
    )
    gangs: list[GangKind] = Field(
        default_factory=list,
        max_length=28,
        description="Kinds of other controllers whose pods start together, beside RayCluster, JobSet, MPIJob and "
        "PyTorchJob. An entry of the same kind replaces the known one, for another version.",
    )


class DeviceClass(Model):
    """A DRA device class of the cluster."""

    name: Subdomain = Field(
        description="Name of the class. A name that avactl generates, such as `gpu-v100`, replaces the generated class."
    )
    cel: Cel = Field(description="CEL expression that selects devices.")


class LeaderWorkerSets(Model):
    """The controller of LeaderWorkerSets and DisaggregatedSets, which the platform installs."""

    namespace: Name = Field("lws-system", description="Its namespace.")
    service_account: Name = Field("lws-controller-manager", description="Its service account.")


class Oidc(Model):
    """Prefixes of identity-provider names in Kubernetes."""

    username_prefix: str = Field("", description="The API server's --oidc-username-prefix.")
    groups_prefix: str = Field("", description="The API server's --oidc-groups-prefix.")


class ClusterSpec(Model):
    """One Kubernetes cluster."""

    kubernetes_version: KubernetesVersion = Field(
        "1.36", description="Kubernetes version: 1.30 or newer, 1.34 or newer for pools that use DRA."
    )
    system_namespace: Name = Field(SYSTEM_NAMESPACE, description="Namespace of avactl's daemons and ConfigMaps.")
    images: Images = Field(default_factory=Images, description="Images of the platform's own containers.")
    storage_classes: StorageClasses = Field(default_factory=StorageClasses, description="Storage classes by use.")
    daemons: Daemons = Field(default_factory=Daemons, description="Daemons to run.")
    namespaces: list[Namespace] = Field(default_factory=list, description="Namespaces of the platform itself.")
    placement: Placement = Field(default_factory=Placement, description="How the scheduler chooses nodes.")
    device_classes: list[DeviceClass] = Field(
        default_factory=list,
        description="DRA device classes in addition to those generated for each GPU model of a DRA pool.",
    )
    gpu_driver: Annotated[Subdomain, Field(max_length=63)] = Field(
        "gpu.nvidia.com", description="DRA driver that publishes the GPUs."
    )
    reconcile: Reconcile = Field(default_factory=Reconcile, description="Engine that applies the compiled objects.")
    delivery: Delivery | None = Field(
        None, description="Repository in which the delivery daemon commits, with `daemons: {delivery: true}`."
    )
    oidc: Oidc = Field(default_factory=Oidc, description="Names of users and groups in RoleBindings.")
    pull_secrets: list[Name] = Field(
        default_factory=list,
        description="Image pull Secrets; they must exist in the team namespaces and the system namespace.",
    )
    egress_allowed: list[Cidr] = Field(
        default_factory=lambda: ["0.0.0.0/0"],
        description="CIDRs outside their namespaces that team pods may reach, in addition to DNS. A wider CIDR "
        "never includes the cloud metadata service.",
    )
    host_directories: list[HostPath] = Field(
        default_factory=lambda: ["/data", "/mnt", "/var/lib/avactl"],
        description="Directories of the machines that cache tiers may use, with everything below them.",
    )
    exposure: Exposure | None = Field(
        None, description="Gateway by which services and workspaces with `expose` are reached from outside."
    )
    leader_worker_set: LeaderWorkerSets | None = Field(
        None,
        description="The cluster has LeaderWorkerSet, for language models on several machines and for disaggregated "
        "prefill (`prefill`); `{}` as its release installs it. Its account may create pods of services in namespaces "
        "of teams.",
    )
    monitoring: Monitoring | None = Field(
        None, description="Objects for Prometheus and Grafana; `{}` with the defaults. Default: none."
    )
    prices: Prices | None = Field(None, description="GPU prices, for cost estimates in `avactl plan`.")
    default_job_ttl: Duration | None = Field(
        None,
        description="How long finished training jobs are kept, unless the job sets `ttl`. Default: as long as their "
        "spec "
        "exists.",
    )

    @property
    def routes_to_pools(self) -> bool:
        """True if the cluster's Gateway routes to InferencePools: services may have endpoint pickers."""
        gateway = self.exposure.gateway if self.exposure is not None else None
        return gateway is not None and gateway.inference_pools


class Cluster(Resource):
    """One Kubernetes cluster: version, images, storage classes, daemons, placement, reconciling engine.

    Compiles to namespaces with pod-security labels, priority classes, DRA device classes, and the daemons with
    exactly the RBAC that they need.
    """

    KIND: ClassVar[str] = "Cluster"
    SCOPE: ClassVar[Literal["platform"]] = "platform"
    kind: Literal["Cluster"] = Field("Cluster", description="`Cluster`.")
    spec: ClusterSpec = Field(default_factory=ClusterSpec, description="The cluster.")

    def placed_on(self, every: tuple[str, ...]) -> tuple[str, ...]:
        """Return the cluster itself."""
        return (self.name,)
