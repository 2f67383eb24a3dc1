"""Volumes of user pods, each with the place where the main container mounts it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from avactl.spec.schema.base import FileField, Model
from avactl.spec.schema.values import AbsPath, Bytes, Name, RelPath, value_error

MAX_VOLUMES = 64
_SUBDOMAIN_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
Text = Annotated[str, Field(min_length=1, max_length=253)]
Key = Annotated[str, Field(pattern=r"^\.?[-_A-Za-z0-9][-._A-Za-z0-9]*$", max_length=253)]
File = Annotated[RelPath, Field(min_length=1)]
_OCTAL_AS_DECIMAL = (400, 440, 444, 500)
"""Modes without the octal prefix, which YAML 1.2 reads as decimal numbers, also with a leading 0: `0400` is 0o620."""


def _check_mode(value: int) -> int:
    if not 0 <= value <= 0o777 or value in _OCTAL_AS_DECIMAL:
        octal = {*str(value)} <= {*"01234567"} and value <= 777
        raise value_error(
            f"{value}, a decimal number, is not the mode of a file"
            + (f": it is 0o{value:o}" if value in _OCTAL_AS_DECIMAL else ""),
            f"write `0o{value}`" if octal else "write an octal number: `0o400`",
        )
    return value


Mode = Annotated[
    int,
    AfterValidator(_check_mode),
    WithJsonSchema({"type": "integer", "minimum": 0, "maximum": 0o777, "not": {"enum": list(_OCTAL_AS_DECIMAL)}}),
]


class KeyToPath(Model):
    """One key of a Secret or ConfigMap as a file."""

    key: Key = Field(description="Key of the Secret or ConfigMap.")
    path: File = Field(description="File below the mount path.")
    mode: Mode | None = Field(None, description="Permissions of the file, such as `0o400`.")


Items = Annotated[list[KeyToPath], Field(max_length=256)]


class ClaimSource(Model):
    """A PersistentVolumeClaim."""

    claim_name: Name = Field(description="Name of the claim, in the namespace of the objects.")
    read_only: bool = Field(False, description="Mount the volume read-only.")


class NfsSource(Model):
    """A directory of an NFS server. Needs `podSecurity: baseline` in the namespace of the Team."""

    server: Annotated[str, Field(pattern=r"^[A-Za-z0-9.:_-]+$", max_length=253)] = Field(description="Host name or IP.")
    path: AbsPath = Field(description="Exported directory.")
    read_only: bool = Field(False, description="Mount the volume read-only.")


class SecretName(Model):
    """A Secret in the namespace of the objects."""

    name: Name = Field(description="Name of the Secret.")


class CsiSource(Model):
    """A volume that a CSI driver makes for the pod."""

    driver: Annotated[str, Field(pattern=_SUBDOMAIN_PATTERN, max_length=63)] = Field(description="Name of the driver.")
    volume_attributes: Annotated[dict[Text, Annotated[str, Field(max_length=4096)]], Field(max_length=64)] = Field(
        default_factory=dict, description="Attributes, as the driver's documentation lists them."
    )
    node_publish_secret_ref: SecretName | None = Field(None, description="Secret for the driver.")
    fs_type: Annotated[str, Field(pattern="^[a-z0-9]{1,16}$")] | None = Field(None, description="File system.")
    read_only: bool = Field(False, description="Mount the volume read-only.")


class EmptyDirSource(Model):
    """A directory on the machine that is deleted with the pod."""

    medium: Literal["", "Memory"] = Field("", description="`Memory`: a tmpfs, which counts towards `memory`.")
    size_limit: Bytes | None = Field(None, description="Size at which the pod is evicted, in bytes.")


class ScratchSource(Model):
    """A volume of a storage class that is created and deleted with the pod: local NVMe, for example."""

    size: Bytes = Field(description="Size, in bytes.")
    storage_class_name: Annotated[str, Field(pattern=_SUBDOMAIN_PATTERN, max_length=253)] | None = Field(
        None, description="Storage class. Default: that of the cluster."
    )


class SecretSource(Model):
    """The keys of a Secret as files."""

    secret_name: Name = Field(description="Name of the Secret.")
    items: Items = Field(default_factory=list, description="Keys. Default: all.")
    default_mode: Mode | None = Field(None, description="Permissions of the files, such as `0o440`.")
    optional: bool = Field(False, description="Start without the Secret, too.")


class ConfigMapSource(Model):
    """The keys of a ConfigMap as files."""

    name: Name = Field(description="Name of the ConfigMap.")
    items: Items = Field(default_factory=list, description="Keys. Default: all.")
    default_mode: Mode | None = Field(None, description="Permissions of the files, such as `0o440`.")
    optional: bool = Field(False, description="Start without the ConfigMap, too.")


class ProjectedSecret(Model):
    """Keys of a Secret in a projected volume."""

    name: Name = Field(description="Name of the Secret.")
    items: Items = Field(default_factory=list, description="Keys. Default: all.")
    optional: bool = Field(False, description="Start without the Secret, too.")


class ProjectedConfigMap(Model):
    """Keys of a ConfigMap in a projected volume."""

    name: Name = Field(description="Name of the ConfigMap.")
    items: Items = Field(default_factory=list, description="Keys. Default: all.")
    optional: bool = Field(False, description="Start without the ConfigMap, too.")


class ServiceAccountToken(Model):
    """A token of the pod's service account."""

    path: File = Field(description="File below the mount path.")
    audience: Text = Field(description="Receiver of the token, such as `sts.amazonaws.com` or `vault`.")
    expiration_seconds: Annotated[int, Field(ge=600, le=2**31)] = Field(
        3600, description="Lifetime; the kubelet renews the token before."
    )


class FieldRef(Model):
    """A field of the pod."""

    field_path: FileField = Field(description="Path, such as `metadata.name` or `metadata.labels`.")


class DownwardFile(Model):
    """A field of the pod as a file."""

    path: File = Field(description="File below the mount path.")
    field_ref: FieldRef = Field(description="The field.")


class DownwardSource(Model):
    """Fields of the pod as files."""

    items: Annotated[list[DownwardFile], Field(min_length=1, max_length=64)] = Field(description="The files.")


class Projection(Model):
    """One source of a projected volume; set one key."""

    secret: ProjectedSecret | None = Field(None, description="Keys of a Secret.")
    config_map: ProjectedConfigMap | None = Field(None, description="Keys of a ConfigMap.")
    service_account_token: ServiceAccountToken | None = Field(None, description="A token of the pod's account.")
    downward_api: DownwardSource | None = Field(None, alias="downwardAPI", description="Fields of the pod.")


class ProjectedSource(Model):
    """Several sources in one directory."""

    sources: Annotated[list[Projection], Field(min_length=1, max_length=32)] = Field(description="The sources.")
    default_mode: Mode | None = Field(None, description="Permissions of the files, such as `0o440`.")


class PodVolume(Model):
    """A volume of the pod, with the key of its source as in Kubernetes. Set one source."""

    name: Name = Field(description="Name of the volume.")
    mount_path: AbsPath | None = Field(
        None, description="Mount path in the main container. Without it, only other containers mount the volume."
    )
    sub_path: RelPath | None = Field(None, description="Directory or file of the volume. Default: its root.")
    read_only: bool = Field(False, description="Mount it read-only.")
    persistent_volume_claim: ClaimSource | None = Field(None, description="A PersistentVolumeClaim.")
    empty_dir: EmptyDirSource | None = Field(None, description="A directory that is deleted with the pod.")
    scratch: ScratchSource | None = Field(None, description="A volume that is created and deleted with the pod.")
    secret: SecretSource | None = Field(None, description="The keys of a Secret as files.")
    config_map: ConfigMapSource | None = Field(None, description="The keys of a ConfigMap as files.")
    projected: ProjectedSource | None = Field(None, description="Several sources in one directory.")
    csi: CsiSource | None = Field(None, description="A volume that a CSI driver makes for the pod.")
    nfs: NfsSource | None = Field(None, description="A directory of an NFS server.")


SOURCES = ("persistent_volume_claim", "empty_dir", "scratch", "secret", "config_map", "projected", "csi", "nfs")


class VolumeMount(Model):
    """Mount of a volume in an init container or sidecar."""

    name: Name = Field(description="Name of the volume: one of `volumes`, or avactl's own, such as `checkpoint`.")
    mount_path: AbsPath = Field(description="Mount path.")
    sub_path: RelPath | None = Field(None, description="Directory or file of the volume. Default: its root.")
    read_only: bool = Field(False, description="Mount it read-only.")
