"""GPUs, GPU-hours and cost of a spec's workloads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import NamedTuple

from avactl.base.object_identity import ObjectKey
from avactl.change.plan.model import Cost
from avactl.change.plan.workloads import PlannedWorkload, Surroundings
from avactl.contracts import names
from avactl.contracts.pod_annotations import GPU_SHARE, SPOT_FROM, TIMEOUT
from avactl.program.lowering.pods import device_class
from avactl.program.program import Program
from avactl.scheduler.objects.pod_requirements import requests
from avactl.spec.platform.prices import Prices

MONTH = 730.0
"""Hours per month: 8,760 hours of a year divided by twelve."""
_SECONDS_PER_HOUR = 3600.0
_GIB = 1 << 30


class Rates(NamedTuple):
    """Prices per GPU-hour that pools declare."""

    pools: Mapping[str, float]
    """By pool."""
    on_demand: Mapping[str, float]
    """The highest by model, of pools whose machines stay."""
    spot: Mapping[str, float]
    """The highest by model, of spot pools."""


class Hardware(NamedTuple):
    """Names by which pods request GPUs, and the prices of their pools."""

    models: Mapping[str, str]
    """GPU models by device class."""
    resources: frozenset[str]
    """Extended resources that are GPUs."""
    rates: Rates = Rates({}, {}, {})


def pool_hardware(program: Program, cluster: str) -> Hardware:
    """Return the GPU names of a cluster's pools."""
    pools = program.gpu_pools(cluster)
    models = {device_class(model): model for model in program.gpu_models(cluster)}
    by_class = (f"{names.DEVICE_CLASS_PREFIX}{each}" for each in models)
    resources = frozenset({*names.GPU_RESOURCES, *(pool.spec.resource_name for pool in pools), *by_class})
    declared = {pool.name: float(pool.spec.price) for pool in pools if pool.spec.price is not None}
    highest: dict[bool, dict[str, float]] = {True: {}, False: {}}
    for pool in pools:
        if pool.name in declared:
            of, model = highest[pool.spec.is_spot], str(program.machine(pool).gpu_model)
            of[model] = max(of.get(model, 0.0), declared[pool.name])
    return Hardware(models, resources, Rates(declared, highest[False], highest[True]))


def workload_cost(
    works: Iterable[PlannedWorkload],
    around: Surroundings,
    known: Hardware,
    prices: Prices | None,
    scaled: Mapping[ObjectKey, int],
) -> Cost:
    """Return the cost of one spec's pods at full size; `scaled` has the replicas of autoscaled workloads."""
    gpus: dict[str, float] = {}
    least = most = 0.0
    priced = prices is not None
    hours: list[float | None] = []
    for work in works:
        count = work.count(scaled.get(work.id))
        if not count:
            continue
        amounts = requests(work.template["spec"])
        if prices is not None:
            share = amounts.get("cpu", 0) / 1000 * float(prices.cpu or 0)
            share += amounts.get("memory", 0) / _GIB * float(prices.memory or 0)
            least, most = least + count * share, most + count * share
        on_spot = spot_count(work, count)
        for model, each in _pod_gpus(work, amounts, around, known).items():
            gpus[model] = gpus.get(model, 0) + count * each
            firm, spot = _gpu_hour_prices(work, model, prices, known.rates)
            if firm is None or (on_spot and spot is None):
                priced = False
                continue
            spot = firm if spot is None else spot
            # Pods that may also run elsewhere cost the price of machines that stay, at most.
            dearest = spot if _only_spot(work) else max(firm, spot)
            most += each * ((count - on_spot) * firm + on_spot * dearest)
            least += each * ((count - on_spot) * firm + on_spot * min(spot, dearest))
        if work.id.kind == "Job":
            notes = work.template["metadata"].get("annotations") or {}
            deadline = notes.get(TIMEOUT.name) or work.spec.get("activeDeadlineSeconds")
            hours.append(None if deadline is None else int(deadline) / _SECONDS_PER_HOUR)
        else:
            hours.append(float("inf"))
    jobs = [each for each in hours if each != float("inf")]
    # Companions of a job, such as TensorBoard, end with it: the job determines the duration.
    always = bool(hours) and not jobs
    limits = [each for each in jobs if each is not None]
    # Followers have no limit of their own, or a later one: they end with their leader.
    longest = min(limits, default=None)
    saved = least if priced and least < most else None
    return Cost(gpus, None if always else longest, always, most if priced else None, saved)


def spot_count(work: PlannedWorkload, count: int) -> int:
    """Return how many of a workload's pods may run on spot machines."""
    template = work.template
    tolerations = template["spec"].get("tolerations") or ()
    if not any(toleration.get("key") == names.CAPACITY for toleration in tolerations):
        return 0
    first = ((template.get("metadata") or {}).get("annotations") or {}).get(SPOT_FROM.name, "")
    return max(0, count - (int(first) if first.isdecimal() and len(first) < 10 else 0))


def _only_spot(work: PlannedWorkload) -> bool:
    return bool((work.template["spec"].get("nodeSelector") or {}).get(names.CAPACITY) == names.SPOT)


def _gpu_hour_prices(
    work: PlannedWorkload, model: str, prices: Prices | None, rates: Rates
) -> tuple[float | None, float | None]:
    """Return the price of a GPU-hour on machines that stay and on spot machines; None if it is unknown."""
    general = None if prices is None or model not in prices.gpus else float(prices.gpus[model])
    pool = (work.template["spec"].get("nodeSelector") or {}).get(names.POOL_LABEL, "")
    firm = rates.pools.get(pool, rates.on_demand.get(model, general))
    spot = rates.pools.get(pool, rates.spot.get(model, general))
    if _only_spot(work):
        firm = spot
    return (firm, spot) if prices is not None else (None, None)


def _pod_gpus(
    work: PlannedWorkload, amounts: Mapping[str, int], around: Surroundings, known: Hardware
) -> dict[str, float]:
    """Return the GPUs of one pod by model; `GPU` if the model is unknown."""
    template = work.template
    spec, notes = template["spec"], (template.get("metadata") or {}).get("annotations") or {}
    model = (spec.get("nodeSelector") or {}).get(names.GPU_LABEL, "GPU")
    if GPU_SHARE.name in notes:
        return {model: float(Fraction(notes[GPU_SHARE.name]))}
    found: dict[str, float] = {}
    for each in spec.get("resourceClaims") or ():
        claim = around.claims.get((work.id.namespace, each.get("resourceClaimTemplateName") or ""))
        for request in ((claim or {}).get("devices") or {}).get("requests") or ():
            exactly = request.get("exactly") or {}
            which = known.models.get(exactly.get("deviceClassName", ""), model)
            found[which] = found.get(which, 0) + exactly.get("count", 1)
    for name, count in amounts.items():
        if name in known.resources:
            which = known.models.get(name.removeprefix(names.DEVICE_CLASS_PREFIX), model)
            found[which] = found.get(which, 0) + count
    return found
