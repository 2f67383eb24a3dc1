"""Hooks for the workloads of services: roles, lifecycle and look in the graph."""

from __future__ import annotations

from collections.abc import Iterator

from avactl.kinds.serving.llm import machines_per_replica
from avactl.kinds.serving.lower import replica_bounds
from avactl.kinds.serving.parts.models import ServedModel
from avactl.kinds.serving.parts.prefill import DECODE, PREFILL
from avactl.kinds.serving.picker import PICKER_PATH, count_pickers, endpoint_picker
from avactl.kinds.serving.prefill.check import PATH, compute_of
from avactl.kinds.serving.prefill.roles import of_role, path_of, prefill_of
from avactl.kinds.serving.spec import ServingDeploymentSpec
from avactl.program.program import Item
from avactl.program.workload import Lifecycle, Unpinned, WorkloadHooks, WorkloadRole
from avactl.spec.schema.compute import Compute


def roles(item: Item[ServingDeploymentSpec]) -> Iterator[WorkloadRole]:
    """Return the pods of a service outside a rollout; with `prefill`, those of both roles and of the router; the
    endpoint pickers that avactl runs."""
    spec = item.spec
    least, most = replica_bounds(spec)
    path = ("spec", "replicas") if isinstance(spec.replicas, int) else ("spec", "replicas", "min")
    each = machines_per_replica(spec)
    yield WorkloadRole(("spec", "resources"), compute_of(item, DECODE), least * each, max(least, most) * each, path)
    picker, pickers = endpoint_picker(spec), count_pickers(spec)
    if picker is not None and pickers:
        compute = Compute(cpu=picker.cpu, memory=picker.memory)
        yield WorkloadRole(PICKER_PATH, compute, pickers, pickers, (*PICKER_PATH, "image"))
    own = prefill_of(spec)
    if own is None:
        return
    count = _count_prefill_pods(item)
    yield WorkloadRole(path_of(item, PREFILL), compute_of(item, PREFILL), count, count, (*PATH, "replicas"))
    if own.router is not None:
        compute = Compute(cpu=own.router.cpu, memory=own.router.memory)
        where = (*PATH, "router")
        yield WorkloadRole(where, compute, own.router.replicas, own.router.replicas, (*where, "replicas"))


def _count_prefill_pods(item: Item[ServingDeploymentSpec]) -> int:
    """Return the number of prefill pods."""
    if prefill_of(item.spec) is None:
        return 0
    spec = of_role(item, PREFILL).spec
    return replica_bounds(spec)[0] * machines_per_replica(spec)


def summary(item: Item[ServingDeploymentSpec]) -> str:
    """Return runtime, model and size."""
    spec = item.spec
    (least, most), each = replica_bounds(spec), machines_per_replica(spec)
    least, most = (count * each + _count_prefill_pods(item) for count in (least, most))
    pods = str(least) if isinstance(spec.replicas, int) else f"{least}–{most}"
    served = spec.served
    first = f"{served[0].name}:{'+'.join(served[0].live)}"
    more = f" and {len(served) - 1} more" if len(served) > 1 else ""
    return f"{spec.runtime.name} · {first}{more} · {pods} pod{'' if pods == '1' else 's'}"


def unpinned(item: Item[ServingDeploymentSpec]) -> Iterator[Unpinned]:
    """Yield models of which a version is `latest`."""
    for path, model in item.spec.places:
        if isinstance(model, ServedModel) and model.version == "latest":
            yield Unpinned(
                (*path, "version"),
                "version `latest` of the model can change without a commit",
                "specify the version, so that an update is a reviewed change",
            )


WORKLOAD = WorkloadHooks(
    Lifecycle.SERVICE,
    "service",
    roles,
    checks_capacity=True,
    exposed_to=lambda item: item.spec.expose_to,
    badge="serve",
    summary=summary,
    unpinned=unpinned,
)
