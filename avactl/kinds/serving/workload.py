"""Hooks for the workloads of services: roles, lifecycle and look in the graph."""

from __future__ import annotations

from collections.abc import Iterator

from avactl.kinds.pod_settings.requests import on_spot, with_pod
from avactl.kinds.program import Item
from avactl.kinds.serving.llm import machines
from avactl.kinds.serving.lower import bounds
from avactl.kinds.serving.models import models, places, versions
from avactl.kinds.workload import Lifecycle, Role, Unpinned, WorkloadHooks


def roles(item: Item) -> Iterator[Role]:
    """Return the pods of a service outside a rollout."""
    spec = item.spec
    least, most = bounds(spec)
    path = ("spec", "replicas") if isinstance(spec.replicas, int) else ("spec", "replicas", "min")
    compute = on_spot(with_pod(spec.resources, spec.pod), spec.spot)
    each = machines(spec)
    yield Role(("spec", "resources"), compute, least * each, max(least, most) * each, path)


def summary(item: Item) -> str:
    """Return runtime, model and size."""
    spec = item.spec
    (least, most), each = bounds(spec), machines(spec)
    pods = str(least * each) if isinstance(spec.replicas, int) else f"{least * each}–{most * each}"
    served = models(spec)
    first = f"{served[0].name}:{'+'.join(versions(served[0]))}"
    more = f" and {len(served) - 1} more" if len(served) > 1 else ""
    return f"{spec.runtime.name} · {first}{more} · {pods} pod{'' if pods == '1' else 's'}"


def unpinned(item: Item) -> Iterator[Unpinned]:
    """Yield models of which a version is `latest`."""
    for path, model in places(item.spec):
        if getattr(model, "version", None) == "latest":
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
