"""The block `pod`: settings of user pods, typed and with Kubernetes' key names."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from avactl.spec.schema.base import Annotations, Env, Labels, Model
from avactl.spec.schema.pod_affinity import Affinity, NodeLabel, Toleration, Value
from avactl.spec.schema.pod_volumes import MAX_VOLUMES, PodVolume, SecretName, VolumeMount
from avactl.spec.schema.values import AbsPath, Bytes, Image, Name, PodCpu, value_error

LONGEST_GRACE = 3600
"""Longest grace period of pods in seconds: the scheduler gets their GPUs back by then."""
RUNTIME_PREFIXES = ("io.kubernetes.cri-o.",)
"""Annotations by which CRI-O changes the sandbox."""
RUNTIME_PARTS = ("cdi.k8s.io", ".crio.io", ".nri.io", ".noderesource.dev")
"""Parts of those that inject devices. CDI has `cdi.k8s.io/…`; `nvidia.cdi.k8s.io` is read by NVIDIA's runtime and by
its plugin for NRI, which injects all devices but the management one into pods of any namespace. CRI-O writes
`devices.crio.io` since version 1.35, plugins of NRI have both of their domains. Source: ANNOTATION_MIGRATION.md of
cri-o/cri-o, plugins/device-injector of containerd/nri, runtime/nri/plugin.go of NVIDIA/nvidia-container-toolkit."""
_HOST_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_PORT_NAME = "^[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?$"
_MAX_SEARCHED = 2048
"""Characters of all search domains. Source: MaxDNSSearchListChars of Kubernetes."""
Id = Annotated[int, Field(ge=0, le=2**31 - 1)]
Port = Annotated[int, Field(ge=1, le=65535)]
Capability = Annotated[str, Field(pattern="^[A-Z_]{2,40}$")]
Words = Annotated[list[str], Field(max_length=1000)]
MAX_CONTAINERS = 16


def _check_ip(value: str) -> str:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        raise value_error(f"`{value[:60]}` is not an IP address", "write an address such as `10.0.0.10`") from None
    return value


def _port_name(value: str) -> str:
    if not re.fullmatch(_PORT_NAME[1:-1], value) or "--" in value or not any(each.isalpha() for each in value):
        raise value_error(
            f"`{value[:30]}` is not the name of a port",
            "use at most 15 lowercase letters, digits and single `-`, with a letter: `http`",
        )
    return value


def _check_search_domains(value: list[str]) -> list[str]:
    if len(" ".join(value)) > _MAX_SEARCHED:
        raise value_error(f"the search domains have more than {_MAX_SEARCHED} characters", "list fewer")
    return value


def of_runtime(key: str) -> bool:
    """Return True for an annotation that container runtimes act on."""
    return key.startswith(RUNTIME_PREFIXES) or any(part in key for part in RUNTIME_PARTS)


def _no_runtime_keys(value: dict[str, str]) -> dict[str, str]:
    for key in value:
        if of_runtime(key):
            raise value_error(f"the annotation `{key[:80]}` makes the container runtime inject devices", "remove it")
    return value


Ip = Annotated[str, AfterValidator(_check_ip), WithJsonSchema({"type": "string", "pattern": "^[0-9A-Fa-f:.]{2,45}$"})]
Host = Annotated[str, Field(pattern=_HOST_PATTERN, max_length=253)]
PortName = Annotated[str, AfterValidator(_port_name), WithJsonSchema({"type": "string", "pattern": _PORT_NAME})]


class ObjectReference(Model):
    """A Secret or ConfigMap, all of whose keys become variables."""

    name: Name = Field(description="Name.")
    optional: bool = Field(False, description="Start without it, too.")


class EnvFrom(Model):
    """Variables from all keys of a Secret or ConfigMap; set one of both."""

    prefix: Annotated[str, Field(pattern="^([A-Za-z_][A-Za-z0-9_]*)?$", max_length=63)] = Field(
        "", description="Text before each key."
    )
    secret_ref: ObjectReference | None = Field(None, description="A Secret.")
    config_map_ref: ObjectReference | None = Field(None, description="A ConfigMap.")


class Capabilities(Model):
    """Linux capabilities. All are dropped first."""

    add: Annotated[list[Capability], Field(max_length=40)] = Field(
        default_factory=list, description="Capabilities to keep, within the namespace's pod-security level."
    )


class Privileges(Model):
    """Privileges of processes, within the pod-security level of the namespace."""

    read_only_root_filesystem: bool = Field(False, description="Make the image's files read-only.")
    allow_privilege_escalation: bool = Field(False, description="Allow setuid; needs `podSecurity: baseline`.")
    capabilities: Capabilities | None = Field(None, description="Linux capabilities.")


class ContainerSecurity(Privileges):
    """Security context of a container, within the pod-security level of the namespace."""

    run_as_user: Id | None = Field(None, description="User ID. Default: the pod's. 0 needs `podSecurity: baseline`.")
    run_as_group: Id | None = Field(None, description="Group ID. Default: the pod's.")


class PodSecurity(Privileges):
    """Security context of the pod and its main container. The user is `runAsUser` of the spec."""

    fs_group: Id | None = Field(None, description="Group of new files on volumes. Default: the group of the processes.")
    fs_group_change_policy: Literal["OnRootMismatch", "Always"] | None = Field(
        None, description="When the files of a volume get that group. Default: `OnRootMismatch`."
    )
    supplemental_groups: Annotated[list[Annotated[int, Field(ge=1, le=2**31 - 1)]], Field(max_length=64)] = Field(
        default_factory=list, description="Further groups of the processes, such as that of a file server."
    )


class ContainerPort(Model):
    """A port that a container listens on."""

    container_port: Port = Field(description="Port.")
    name: PortName | None = Field(None, description="Name.")
    protocol: Literal["TCP", "UDP"] = Field("TCP", description="Protocol.")


class Container(Model):
    """A further container of the pod: an init container, which ends before the main one starts, or a sidecar."""

    name: Name = Field(description="Name of the container.")
    image: Image = Field(description="Image.")
    command: Words = Field(default_factory=list, description="Command. Default: the image's.")
    args: Words = Field(default_factory=list, description="Arguments.")
    env: Env = Field(default_factory=dict)
    env_from: Annotated[list[EnvFrom], Field(max_length=32)] = Field(
        default_factory=list, description="Variables from all keys of Secrets and ConfigMaps."
    )
    working_dir: AbsPath | None = Field(None, description="Working directory. Default: the image's.")
    cpu: PodCpu = Field("100m", description="CPU cores. They count in the quota.")
    memory: Bytes = Field("256Mi", description="Memory, in bytes. It counts in the quota.")
    ephemeral_storage: Bytes | None = Field(None, description="Disk for logs and the writable layer, in bytes.")
    ports: Annotated[list[ContainerPort], Field(max_length=32)] = Field(default_factory=list, description="Ports.")
    volume_mounts: Annotated[list[VolumeMount], Field(max_length=MAX_VOLUMES)] = Field(
        default_factory=list, description="Mounts of volumes of the pod."
    )
    security_context: ContainerSecurity | None = Field(None, description="Security context.")


class DnsOption(Model):
    """An option of the resolver."""

    name: Annotated[str, Field(pattern="^[a-z0-9-]{1,63}$")] = Field(description="Name, such as `ndots`.")
    value: Annotated[str, Field(max_length=63)] | None = Field(None, description="Value.")


class DnsConfig(Model):
    """Name servers and search domains of the pods."""

    nameservers: Annotated[list[Ip], Field(max_length=3)] = Field(default_factory=list, description="IP addresses.")
    searches: Annotated[list[Host], Field(max_length=32), AfterValidator(_check_search_domains)] = Field(
        default_factory=list, description="Search domains."
    )
    options: Annotated[list[DnsOption], Field(max_length=32)] = Field(default_factory=list, description="Options.")


class HostAlias(Model):
    """A line of /etc/hosts."""

    ip: Ip = Field(description="IP address.")
    hostnames: Annotated[list[Host], Field(min_length=1, max_length=32)] = Field(description="Host names.")


class PodSettings(Model):
    """Settings of the pods, with Kubernetes' key names. avactl's own settings stay: these are added to them."""

    labels: Labels = Field(default_factory=dict, description="Labels of the pods.")
    annotations: Annotated[Annotations, AfterValidator(_no_runtime_keys)] = Field(
        default_factory=dict, description="Annotations of the pods."
    )
    node_selector: Annotated[dict[NodeLabel, Value], Field(max_length=32)] = Field(
        default_factory=dict, description="Labels of the nodes, in addition to those of the pool."
    )
    affinity: Affinity | None = Field(None, description="Nodes and pods to be on, near, or away from.")
    tolerations: Annotated[list[Toleration], Field(max_length=32)] = Field(
        default_factory=list, description="Tolerated taints of pools, and of nodes that are not ready."
    )
    env_from: Annotated[list[EnvFrom], Field(max_length=32)] = Field(
        default_factory=list, description="Variables from all keys of Secrets and ConfigMaps."
    )
    volumes: Annotated[list[PodVolume], Field(max_length=MAX_VOLUMES)] = Field(
        default_factory=list, description="Further volumes, with their mount paths."
    )
    ephemeral_storage: Bytes | None = Field(
        None, description="Disk of the main container for logs and the writable layer, in bytes."
    )
    init_containers: Annotated[list[Container], Field(max_length=MAX_CONTAINERS)] = Field(
        default_factory=list, description="Containers that run one after the other before the main one."
    )
    sidecars: Annotated[list[Container], Field(max_length=MAX_CONTAINERS)] = Field(
        default_factory=list, description="Containers that run beside the main one, and end with it."
    )
    service_account_name: Name | None = Field(
        None,
        description="Service account, one of `serviceAccounts` of the Team. Default: `avactl-run`, without rights.",
    )
    automount_service_account_token: bool = Field(
        False, description="Mount the token of that account, with which programs call the Kubernetes API."
    )
    image_pull_secrets: Annotated[list[SecretName], Field(max_length=16)] = Field(
        default_factory=list, description="Further Secrets for registries. For all pods of a team: `pullSecrets` of it."
    )
    security_context: PodSecurity | None = Field(
        None, description="Security context of the pod and its main container, within the pod-security level."
    )
    dns_policy: Literal["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"] | None = Field(
        None, description="Where names are resolved. `None` needs `dnsConfig`."
    )
    dns_config: DnsConfig | None = Field(None, description="Name servers and search domains.")
    host_aliases: Annotated[list[HostAlias], Field(max_length=64)] = Field(
        default_factory=list, description="Lines of /etc/hosts."
    )
    termination_grace_period_seconds: Annotated[int, Field(ge=1, le=LONGEST_GRACE)] | None = Field(
        None,
        description="Seconds between SIGTERM and SIGKILL. At least 1: without, a pod is gone before it has stopped.",
    )


def merge_settings(base: PodSettings | None, over: PodSettings | None) -> PodSettings | None:
    """Return the settings of a role: those of the spec, with the role's own. Lists are joined; of entries with one
    name, the role's is used; of mappings, keys of the role's win."""
    if base is None or over is None:
        return over or base
    values: dict[str, Any] = {}
    for name in type(over).model_fields:
        one, other = getattr(base, name), getattr(over, name)
        if name not in over.model_fields_set:
            values[name] = one
        elif isinstance(other, list):
            own = {each.name for each in other if hasattr(each, "name")}
            values[name] = [*(each for each in one if getattr(each, "name", None) not in own), *other]
        elif isinstance(other, dict):
            values[name] = {**one, **other}
        else:
            values[name] = other
    return over.model_copy(update=values)
