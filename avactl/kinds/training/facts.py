"""Headline facts of a training job."""

from __future__ import annotations

from avactl.kinds import dataset_access
from avactl.kinds.feasibility.capacity import gpu_model
from avactl.kinds.fields.compute import DatasetMount
from avactl.kinds.program import Item, Program
from avactl.kinds.registry import Fact
from avactl.kinds.training.roles import bounds


def facts(item: Item, program: Program) -> dict[str, Fact]:
    """Parallelism, resources and data of the job."""
    spec = item.spec
    least, most = bounds(spec)
    workers: Fact = most if least == most else f"{least}–{most}"
    found: dict[str, Fact] = {"strategy": spec.strategy, "framework": spec.framework, "workers": workers}
    gpus: dict[str, tuple[int, int]] = {}
    for compute, fewest, all_of in (
        (spec.workers, least, most),
        *((role, role.replicas, role.replicas) for role in (spec.servers, spec.launcher, spec.evaluator) if role),
    ):
        model = gpu_model(program, item.cluster, compute)
        if model is not None:
            low, high = gpus.get(model, (0, 0))
            gpus[model] = (low + compute.gpus * fewest, high + compute.gpus * all_of)
    if gpus:
        found["GPUs"] = ", ".join(
            f"{high} {model}" if low == high else f"{low}–{high} {model}" for model, (low, high) in gpus.items()
        )
    if spec.workers.gpus > 1 and spec.workers.link != "any":
        found["link"] = f"{spec.workers.link} {spec.workers.link_policy}"
    if spec.strategy == "parameterServer":
        if spec.servers is not None:
            found["servers"] = spec.servers.replicas
        found["consistency"] = f"ssp {spec.staleness}" if spec.consistency == "ssp" else spec.consistency
    found["image"] = spec.image
    if spec.code is not None:
        found["code"] = spec.code.git.ref
    if spec.datasets:
        found["datasets"] = ", ".join(_dataset(item, program, mount) for mount in spec.datasets)
    if spec.checkpoint is not None:
        found["checkpoint"] = (
            f"{spec.checkpoint.path or f'volume of {spec.checkpoint.volume}'} every {spec.checkpoint.every}"
        )
    found["priority"] = spec.priority
    if spec.suspended:
        found["state"] = "suspended"
    return found


def _dataset(item: Item, program: Program, mount: DatasetMount) -> str:
    """A dataset with its version, resolved if the newest is meant: a new version then shows as a change of the job."""
    version = mount.version
    dataset = dataset_access.find(program, item.team, mount.name)
    if version is None and dataset is not None:
        version = dataset.spec.versions[-1].name
    return f"{mount.name} {version}" if version else mount.name
