"""Pods of users: the restricted security context, GPUs, datasets, buckets, code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from avactl.kinds import dataset_access
from avactl.kinds.base import GROUP, SecretValue
from avactl.kinds.capacity import gpu_model
from avactl.kinds.compute import Compute, DatasetMount, GitCode
from avactl.kinds.k8s import compact, manifest
from avactl.kinds.manifest import Body, Manifest
from avactl.kinds.program import Item, Program

USER_ID = 1000
"""User and group of pods of users. Pod security `restricted` wants any but 0."""

SCHEDULER_NAME = "avactl"
GPU_LABEL = f"{GROUP}/gpu"
POOL_LABEL = f"{GROUP}/pool"
LINK_ANNOTATION = f"{GROUP}/link"
GANG_LABEL = f"{GROUP}/gang"
GANG_SIZE_ANNOTATION = f"{GROUP}/gang-size"
GPU_SHARE_ANNOTATION = f"{GROUP}/gpu-share"
DEVICES_ANNOTATION = f"{GROUP}/devices"
"""Set by the scheduler's Binding on device-plugin pools: the indexes of the pod's GPUs."""

NO_GPUS = {"NVIDIA_VISIBLE_DEVICES": "void"}
"""Environment of pods without GPUs: CUDA images ask for all, and the NVIDIA runtime gives a GPU machine's to them."""


def container_security() -> Body:
    """The container's half of pod security `restricted`."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def pod_security(user: int = USER_ID) -> Body:
    """The pod's half of pod security `restricted`."""
    return {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def env_list(env: dict[str, Any]) -> list[Body]:
    """Environment variables in the order of the spec; Secrets by reference."""
    result: list[Body] = []
    for name, value in env.items():
        if isinstance(value, SecretValue):
            source = {"name": value.secret.name, "key": value.secret.key}
            result.append({"name": name, "valueFrom": {"secretKeyRef": source}})
        else:
            result.append({"name": name, "value": value})
    return result


class GpuRequest:
    """How the pods of one role get their GPUs in the pools that they may run in."""

    def __init__(self, item: Item, program: Program, compute: Compute, role: str) -> None:
        self.item = item
        self.cluster = item.cluster
        self.count = compute.gpus
        self.model = gpu_model(program, self.cluster, compute)
        self.pool = compute.pool
        self.pools = program.candidate_pools(self.cluster, self.model, compute.pool) if self.model or self.pool else []
        self.claim_name = f"{item.name}-{role}-gpus"
        self.rdma = bool(getattr(compute, "rdma", False))
        self.dra = bool(self.count and self.pools and self.pools[0].spec.allocation == "dra")

    def resources(self) -> dict[str, str]:
        """Extended resources of the container."""
        result: dict[str, str] = {}
        if self.count and self.pools and not self.dra:
            result[self.pools[0].spec.resource_name] = str(self.count)
        if self.rdma and self.pools and self.pools[0].spec.rdma_resource:
            result[self.pools[0].spec.rdma_resource] = "1"
        return result

    def claim(self, namespace: str) -> list[Manifest]:
        """The ResourceClaimTemplate, on pools that use DRA."""
        if not self.dra:
            return []
        request = {
            "name": "gpus",
            "exactly": {
                "deviceClassName": device_class(str(self.model)), "allocationMode": "ExactCount", "count": self.count
            },
        }  # fmt: skip
        return [
            manifest(
                self.item, self.cluster, "resource.k8s.io/v1", "ResourceClaimTemplate", self.claim_name,
                namespace=namespace, spec={"spec": {"devices": {"requests": [request]}}},
            )
        ]  # fmt: skip

    def pod_fields(self) -> Body:
        """What the pod spec needs: claims, node selector, tolerations."""
        fields: Body = {}
        if self.dra:
            fields["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": self.claim_name}]
        select: dict[str, str] = {}
        if self.pool:
            select[POOL_LABEL] = self.pool
        if self.model and self.count:
            select[GPU_LABEL] = self.model
        for key, value in self._common_labels().items():
            select.setdefault(key, value)
        if select:
            fields["nodeSelector"] = select
        tolerations = [
            compact(key=taint.key, operator="Equal" if taint.value else "Exists",
                    value=taint.value or None, effect=taint.effect)
            for taint in _unique([taint for pool in self.pools for taint in pool.spec.taints])
        ]  # fmt: skip
        if tolerations:
            fields["tolerations"] = tolerations
        return fields

    def _common_labels(self) -> dict[str, str]:
        """Labels that all candidate pools share, so that other machines are left out."""
        if not self.pools:
            return {}
        first = self.pools[0].spec.labels
        return {k: v for k, v in first.items() if all(pool.spec.labels.get(k) == v for pool in self.pools)}


def _unique(taints: list[Any]) -> list[Any]:
    seen: dict[tuple[str, str, str], Any] = {}
    for taint in taints:
        seen.setdefault((taint.key, taint.value, taint.effect), taint)
    return list(seen.values())


def device_class(model: str) -> str:
    """Name of the DRA device class of a GPU model."""
    return f"gpu-{model.lower()}"


def resources(cpu: str, memory: str, extended: dict[str, str] | None = None, claims: bool = False) -> Body:
    """Requests equal to limits for memory and devices; CPU has no limit, so that idle cores are used."""
    extra = extended or {}
    result: Body = {
        "requests": {"cpu": cpu, "memory": memory, **extra},
        "limits": {"memory": memory, **extra},
    }
    if claims:
        result["claims"] = [{"name": "gpus"}]
    return result


class Volumes:
    """The volumes of a pod and where its main container mounts them, gathered piece by piece."""

    def __init__(self, item: Item, program: Program) -> None:
        self.item = item
        self.program = program
        self.volumes: list[Body] = []
        self.mounts: list[Body] = []
        self.init: list[Body] = []

    def empty(self, name: str, path: str, *, size: str | None = None, memory: bool = False) -> None:
        """An emptyDir; `size` in bytes."""
        source = compact(sizeLimit=size, medium="Memory" if memory else None)
        self.volumes.append({"name": name, "emptyDir": source})
        self.mounts.append({"name": name, "mountPath": path})

    def claim(self, name: str, claim: str, path: str, *, read_only: bool = False, fuse: bool = False) -> None:
        """A PersistentVolumeClaim; `fuse`: follow mounts that the host makes anew."""
        source = compact(claimName=claim, readOnly=True if read_only else None)
        self.volumes.append({"name": name, "persistentVolumeClaim": source})
        self.mounts.append(
            compact(
                name=name,
                mountPath=path,
                readOnly=True if read_only else None,
                mountPropagation="HostToContainer" if fuse else None,
            )
        )

    def config(self, name: str, config_map: str, path: str) -> None:
        """A ConfigMap as files."""
        self.volumes.append({"name": name, "configMap": {"name": config_map}})
        self.mounts.append({"name": name, "mountPath": path, "readOnly": True})

    def datasets(self, mounts: Sequence[DatasetMount]) -> None:
        """Datasets, through their cache tier or fetched from the object store."""
        for index, mount in enumerate(mounts):
            volume = f"dataset-{index}"
            access = dataset_access.resolve(self.program, self.item, mount)
            if access.claim:
                self.claim(volume, access.claim, mount.mount, read_only=True, fuse=True)
                continue
            self.empty(volume, mount.mount, size=access.size)
            self.init.append(fetch_container(self.program, self.item, f"fetch-{index}", access, volume, mount.mount))

    def buckets(self) -> None:
        """The team's buckets that have a cache tier, as directories below /buckets."""
        for bucket in dataset_access.buckets(self.program, self.item):
            claim = dataset_access.bucket_claim(bucket.name)
            self.claim(
                f"bucket-{bucket.name}", claim, f"/buckets/{bucket.name}",
                read_only=bucket.access == "read", fuse=True,
            )  # fmt: skip

    def code(self, git: GitCode) -> None:
        """A git repository, fetched by an init container."""
        self.empty("code", git.mount)
        script = (
            'set -eu; git init -q "$TARGET"; cd "$TARGET"; git remote get-url origin >/dev/null 2>&1 || '
            'git remote add origin "$URL"; git fetch -q --depth 1 origin "$REF"; git checkout -q --detach FETCH_HEAD'
        )
        env: list[Body] = [
            {"name": "URL", "value": git.url},
            {"name": "REF", "value": git.ref},
            {"name": "TARGET", "value": git.mount},
            {"name": "HOME", "value": "/tmp"},  # noqa: S108 - in the container
        ]
        mounts: list[Body] = [{"name": "code", "mountPath": git.mount}, {"name": "code-tmp", "mountPath": "/tmp"}]  # noqa: S108
        self.volumes.append({"name": "code-tmp", "emptyDir": {}})
        if git.secret:
            self.volumes.append({"name": "git-secret", "secret": {"secretName": git.secret, "defaultMode": 0o440}})
            mounts.append({"name": "git-secret", "mountPath": "/etc/git-secret", "readOnly": True})
            env.append(
                {
                    "name": "GIT_SSH_COMMAND",
                    "value": "ssh -i /etc/git-secret/ssh-privatekey -o StrictHostKeyChecking=accept-new",
                }
            )
            helper = "!f() { echo username=$(cat /etc/git-secret/username); echo password=$(cat /etc/git-secret/password); }; f"
            env += [
                {"name": "GIT_CONFIG_COUNT", "value": "1"},
                {"name": "GIT_CONFIG_KEY_0", "value": "credential.helper"},
                {"name": "GIT_CONFIG_VALUE_0", "value": helper},
            ]
        self.init.append(
            {
                "name": "code",
                "image": self.program.cluster_spec(self.item.cluster).images.git,
                "command": ["sh", "-c", script],
                "env": env,
                "resources": resources("100m", "256Mi"),
                "securityContext": container_security(),
                "volumeMounts": mounts,
            }
        )


def fetch_container(
    program: Program, item: Item, name: str, access: dataset_access.Access, volume: str, path: str
) -> Body:
    """An init container that copies a prefix of an object store into a volume."""
    env: list[Body] = [{"name": "SOURCE", "value": access.url}, {"name": "TARGET", "value": path}]
    script = 'set -eu; rclone copy --transfers 8 ":${SOURCE%%://*}:${SOURCE#*://}" "$TARGET"'
    if access.secret:
        for variable, key in (("RCLONE_S3_ACCESS_KEY_ID", "accessKeyId"),
                              ("RCLONE_S3_SECRET_ACCESS_KEY", "secretAccessKey")):  # fmt: skip
            source = {"name": access.secret, "key": key, "optional": True}
            env.append({"name": variable, "valueFrom": {"secretKeyRef": source}})
        source = {"name": access.secret, "key": "endpoint", "optional": True}
        env.append({"name": "RCLONE_S3_ENDPOINT", "valueFrom": {"secretKeyRef": source}})
    return {
        "name": name,
        "image": program.cluster_spec(item.cluster).images.fetch,
        "command": ["sh", "-c", script],
        "env": env,
        "resources": resources("500m", "1Gi"),
        "securityContext": container_security(),
        "volumeMounts": [{"name": volume, "mountPath": path}],
    }


def pod_spec(
    item: Item,
    program: Program,
    main: Body,
    *,
    volumes: Volumes | None = None,
    gpu: GpuRequest | None = None,
    service_account: str,
    priority: str | None = None,
    more_containers: Sequence[Body] = (),
    **more: Any,
) -> Body:
    """The spec of a pod around its main container; `more` are further fields of the pod spec.

    The main container gets the volumes' mounts and the security context. Tokens are mounted only for pods whose
    caller asks with `automountServiceAccountToken=True`.
    """
    cluster = program.cluster_spec(item.cluster)
    gathered = volumes or Volumes(item, program)
    container = {**main, "securityContext": container_security()}
    if gathered.mounts:
        container["volumeMounts"] = gathered.mounts
    fields: Body = {
        "serviceAccountName": service_account,
        "automountServiceAccountToken": False,
        "securityContext": pod_security(),
        "containers": [container, *more_containers],
        "enableServiceLinks": False,
        **compact(
            initContainers=gathered.init or None,
            volumes=gathered.volumes or None,
            priorityClassName=priority,
            schedulerName=SCHEDULER_NAME if cluster.daemons.scheduler else None,
            imagePullSecrets=[{"name": name} for name in cluster.pull_secrets] or None,
        ),
    }
    if gpu is not None:
        fields.update(gpu.pod_fields())
    fields.update(more)
    return fields
