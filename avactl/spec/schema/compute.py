"""Spec parts shared by workspaces, training jobs and services: compute, code, dataset mounts."""

from __future__ import annotations

import re
from math import ceil
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from avactl.contracts.names import CAPACITY
from avactl.spec.schema.base import Model
from avactl.spec.schema.values import (
    AbsPath,
    Bytes,
    Name,
    NodePoolRef,
    Percent,
    PodCpu,
    RelPath,
    label_key,
    value_error,
    want_length,
    want_no_references,
)

Link = Literal["nvlink", "pcieSwitch", "socket", "node", "any"]
"""Slowest connection allowed between GPUs of one pod, best first. `any`: across sockets too."""

_GPU_MODEL_PATTERN = r"^[A-Za-z0-9]+([.-][A-Za-z0-9]+)*$"
_GPU_MODEL = re.compile(_GPU_MODEL_PATTERN).match


def _gpu_model(value: str) -> str:
    # The model becomes a node label value and part of a device class name.
    if len(value) > 40 or not _GPU_MODEL(value) or value.endswith("\n"):
        short = re.sub(r"[^A-Za-z0-9.-]+", "-", re.sub(r"^(nvidia|tesla)[\s_-]+", "", value, flags=re.IGNORECASE))
        short = short.strip("-.")[:40]
        hint = f"write `{short}`" if _GPU_MODEL(short) else "use letters, digits, `-` and `.`: `V100`, `A100-80GB`"
        raise value_error(f"`{value[:60]}` is not a GPU model", hint)
    return value


GpuModel = Annotated[
    str,
    AfterValidator(_gpu_model),
    WithJsonSchema({"type": "string", "pattern": _GPU_MODEL_PATTERN, "maxLength": 40}),
]
"""A GPU model as machine types name it: `V100`, `H100`."""


def _check_toleration(value: str) -> str:
    if value == CAPACITY:
        raise value_error(f"`{value}` is the taint of spot pools", "write `spot: allow` in `spec`")
    return label_key(value)


Tolerates = list[
    Annotated[
        str,
        AfterValidator(_check_toleration),
        WithJsonSchema({"type": "string", "pattern": f"^(?!{re.escape(CAPACITY)}$)"}),
    ]
]
TOLERATES = (
    "Keys of pool taints that the pods tolerate, such as that of reserved machines: without it they stay off such "
    "pools. The taints of `pool`, and those named after the GPU resource (`nvidia.com/gpu`), are always tolerated."
)


def _gpu_count(value: float) -> float:
    if value == int(value):
        return int(value)
    if value > 1:
        raise value_error(
            f"{value:g} is neither an integer nor a fraction of one GPU",
            f"write {int(value)}, {int(value) + 1}, or a fraction below 1 such as 0.5",
        )
    return value


GpuCount = Annotated[
    float | int,
    Field(ge=0, le=16),
    AfterValidator(_gpu_count),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0, "maximum": 16},
                {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
            ]
        }
    ),
]
"""A number of GPUs, or a fraction of one."""


class Compute(Model):
    """CPU, memory and GPUs of one pod."""

    cpu: PodCpu = Field("1", description="CPU cores per pod.")
    memory: Bytes = Field("2Gi", description="Memory per pod, in bytes.")
    gpus: GpuCount = Field(
        0, description="GPUs per pod, or a fraction of one (0.25, 0.5), which requires avactl's scheduler."
    )
    gpu: GpuModel | None = Field(
        None, description="GPU model. Default: the cluster's only model; required if there are several."
    )
    pool: NodePoolRef | None = Field(None, description="Node pool to run in. Default: any pool with the GPU model.")
    tolerates: Tolerates = Field(default_factory=list, description=TOLERATES)
    shared_memory: Bytes | None = Field(
        None, description="Size of /dev/shm, in bytes; counts towards `memory`. PyTorch data loaders need it."
    )

    @property
    def visible_gpus(self) -> int:
        """Number of GPUs that the pod sees: one, if it has a part of it."""
        return ceil(self.gpus)

    @property
    def shares_gpu(self) -> bool:
        """True if the pod has a part of a GPU."""
        return self.gpus != self.visible_gpus


class GpuLinkCompute(Compute):
    """Compute of a pod whose GPUs communicate with each other."""

    link: Link = Field("any", description="Slowest connection allowed between two GPUs of one pod.")
    link_policy: Literal["required", "preferred"] = Field(
        "preferred", description="`required`: wait for GPUs with that link. `preferred`: use any free GPUs."
    )
    rdma: bool | Annotated[int, Field(ge=1, le=16)] = Field(
        False,
        description="RDMA NICs of each pod: `true` for those of its GPUs by the machine type, or a number. A resource "
        "`rdma/…`, by which pods share the NICs of a machine, counts once.",
    )


Spot = Literal["never", "allow", "require"]
"""Use of machines that the provider may take back."""
UserId = Annotated[int, Field(ge=0, le=2**31 - 1)]
GroupId = Annotated[int, Field(ge=1, le=2**31 - 1)]


class PodUser(Model):
    """User and group of a pod's processes."""

    run_as_user: UserId = Field(
        1000,
        description="User ID of the processes. HOME is writable for any ID. 0, root, needs `podSecurity: baseline` in "
        "the namespace of the Team.",
    )
    run_as_group: GroupId | None = Field(
        None, description="Group ID of the processes and of new files on volumes. Default: `runAsUser`."
    )


# No part can match its own terminator, so matching is linear.
_GIT_URL = re.compile(r"(?!-)(https://[^\s@/]+/\S+|ssh://[^\s:-]\S+|[\w.-]+@\w[\w.-]*:\S+)").fullmatch


def _git_url(value: str) -> str:
    want_length(value)
    want_no_references(value)
    if not _GIT_URL(value):
        hint = "write `https://host/path.git` or `git@host:path.git`; put credentials in `secret`"
        shown = re.sub(r"//[^/]*@", "//***@", value)
        raise value_error(f"`{shown}` is not a git URL over https or ssh", hint)
    return value


def _git_ref(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]*", value) or ".." in value:
        raise value_error(f"`{value[:80]}` is not a git revision", "write a commit, tag or branch")
    return value


class GitCode(Model):
    """Code that an init container fetches before the pod starts."""

    url: Annotated[str, AfterValidator(_git_url)] = Field(description="Repository, over https or ssh.")
    ref: Annotated[str, AfterValidator(_git_ref)] = Field(
        description="Commit, tag or branch; only a commit is reproducible."
    )
    path: RelPath = Field(".", description="Subdirectory to use as the working directory.")
    mount: AbsPath = Field("/workspace/code", description="Mount path of the repository; also the working directory.")
    secret: Name | None = Field(
        None, description="Secret with `ssh-privatekey`, or `username` and `password`, for private repositories."
    )


class WorkspaceCode(Model):
    """Code in the home directory of a workspace, as it is when the job starts."""

    name: Name = Field(description="A workspace of the team, with `sharedHome: true` for jobs of several pods.")
    path: RelPath = Field(".", description="Directory below the workspace's home.")
    mount: AbsPath = Field(
        "/workspace/code", description="Mount path of the copy, read-only; also the working directory."
    )
    home: AbsPath | None = Field(
        None, description="Mount path of the whole home directory, read-only. Unlike the code it shows later changes."
    )


class Code(Model):
    """Source of the code if it is not in the image: `git` or `workspace`."""

    git: GitCode | None = Field(None, description="A git repository.")
    workspace: WorkspaceCode | None = Field(None, description="The home directory of a workspace.")

    @property
    def mount(self) -> str:
        """Mount path of the code."""
        source = self.workspace or self.git
        return "" if source is None else source.mount

    @property
    def directory(self) -> str:
        """Working directory of the code."""
        if self.git is None or self.git.path in (".", ""):
            return self.mount
        return f"{self.mount.rstrip('/')}/{self.git.path.removeprefix('./')}"

    def __str__(self) -> str:
        if self.workspace is not None:
            return f"workspace {self.workspace.name}:{self.workspace.path}"
        return "" if self.git is None else f"{self.git.url} at {self.git.ref}"


class HostNetwork(Model):
    """Run the pods in the network of their machines, which saves the overlay network's cost."""

    port: Annotated[int, Field(ge=1024, le=29_999)] | None = Field(
        None, description="Port that the pods listen on. Default: one from 20000 to 29999, by namespace and name."
    )


class StartWhen(Model):
    """Conditions under which pods start."""

    warm: Percent = Field(
        description="Share of each mounted dataset that must be in its cache tier. Needs the scheduler and the cache "
        "daemon."
    )


_DATASET_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(/[a-z0-9]([-a-z0-9]*[a-z0-9])?)?$"


def _dataset_name(value: str) -> str:
    if not re.fullmatch(_DATASET_PATTERN, value):
        name, _, version = re.sub("[:@]", ":", value[:200]).partition(":")
        hint = f"write `name: {name}, version: {version}`" if version and re.fullmatch(_DATASET_PATTERN, name) else ""
        raise value_error(f"`{value[:80]}` is not the name of a dataset", hint or "write `NAME`, or `TEAM/NAME`")
    return value


DatasetName = Annotated[
    str,
    AfterValidator(_dataset_name),
    WithJsonSchema({"type": "string", "pattern": _DATASET_PATTERN}),
]


class DatasetMount(Model):
    """A dataset mounted in a pod."""

    name: DatasetName = Field(
        description="Dataset of the team or the platform; `TEAM/NAME` for one shared by another team."
    )
    version: Name | None = Field(None, description="Version. Default: the dataset's newest.")
    mount: AbsPath = Field("/data", description="Mount path in the pod; read-only.")
