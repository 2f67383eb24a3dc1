"""GPUs, GPU-hours and cost of a spec's workloads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import NamedTuple

from avactl import names
from avactl.kinds.cluster.prices import Prices
from avactl.kinds.lowering.pods import device_class
from avactl.kinds.program import Program
from avactl.plan.model import Cost
from avactl.plan.workloads import Surroundings, Workload, WorkloadId
from avactl.scheduler.objects.pod_requirements import requests

MONTH = 730.0
"""Hours per month: 8,760 hours of a year divided by twelve."""
_HOUR = 3600.0
_GIB = 1 << 30


class Hardware(NamedTuple):
    """Names by which pods request GPUs."""

    models: Mapping[str, str]
    """GPU models by device class."""
    resources: frozenset[str]
    """Extended resources that are GPUs."""


def hardware(program: Program, cluster: str) -> Hardware:
    """Return the GPU names of a cluster's pools."""
    pools = program.pools(cluster)
    models = {device_class(model): model for model in program.gpu_models(cluster)}
    return Hardware(models, frozenset({*names.GPU_RESOURCES, *(pool.spec.resource_name for pool in pools)}))


def cost(
    works: Iterable[Workload],
    around: Surroundings,
    known: Hardware,
    prices: Prices | None,
    scaled: Mapping[WorkloadId, int],
) -> Cost:
    """Return the cost of one spec's pods at full size; `scaled` has the replicas of autoscaled workloads."""
    gpus: dict[str, float] = {}
    cores = memory = 0.0
    hours: list[float | None] = []
    for work in works:
        count = work.count(scaled.get(work.id))
        if not count:
            continue
        amounts = requests(work.template["spec"])
        cores += count * amounts.get("cpu", 0) / 1000
        memory += count * amounts.get("memory", 0) / _GIB
        for model, each in _pod_gpus(work, amounts, around, known).items():
            gpus[model] = gpus.get(model, 0) + count * each
        if work.id.kind == "Job":
            notes = work.template["metadata"].get("annotations") or {}
            deadline = notes.get(names.TIMEOUT) or work.spec.get("activeDeadlineSeconds")
            hours.append(None if deadline is None else int(deadline) / _HOUR)
        else:
            hours.append(float("inf"))
    jobs = [each for each in hours if each != float("inf")]
    # Companions of a job, such as TensorBoard, end with it: the job determines the duration.
    always = bool(hours) and not jobs
    limits = [each for each in jobs if each is not None]
    # Followers have no limit of their own, or a later one: they end with their leader.
    longest = min(limits, default=None)
    return Cost(gpus, None if always else longest, always, _money(gpus, cores, memory, prices))


def _pod_gpus(work: Workload, amounts: Mapping[str, int], around: Surroundings, known: Hardware) -> dict[str, float]:
    """Return the GPUs of one pod by model; `GPU` if the model is unknown."""
    template = work.template
    spec, notes = template["spec"], (template.get("metadata") or {}).get("annotations") or {}
    model = (spec.get("nodeSelector") or {}).get(names.GPU_LABEL, "GPU")
    if names.GPU_SHARE in notes:
        return {model: float(Fraction(notes[names.GPU_SHARE]))}
    found: dict[str, float] = {}
    for each in spec.get("resourceClaims") or ():
        claim = around.claims.get((work.id.namespace, each.get("resourceClaimTemplateName") or ""))
        for request in ((claim or {}).get("devices") or {}).get("requests") or ():
            exactly = request.get("exactly") or {}
            which = known.models.get(exactly.get("deviceClassName", ""), model)
            found[which] = found.get(which, 0) + exactly.get("count", 1)
    whole = sum(count for name, count in amounts.items() if name in known.resources)
    if whole:
        found[model] = found.get(model, 0) + whole
    return found


def _money(gpus: dict[str, float], cores: float, memory: float, prices: Prices | None) -> float | None:
    if prices is None or any(model not in prices.gpus for model in gpus):
        return None
    total = sum(count * float(prices.gpus[model]) for model, count in gpus.items())
    return total + cores * float(prices.cpu or 0) + memory * float(prices.memory or 0)
