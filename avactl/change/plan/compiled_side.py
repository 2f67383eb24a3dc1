"""The part of a compilation that a plan needs, for one cluster: small enough to pass between processes."""

from __future__ import annotations

from dataclasses import dataclass, field

from avactl.base.object_identity import ObjectKey
from avactl.change.plan.cluster_state import configured_objects
from avactl.change.plan.cost import Hardware, pool_hardware
from avactl.change.plan.uncounted import describe_uncounted
from avactl.change.plan.workloads import PlannedWorkload, Surroundings, find_surroundings, find_workloads
from avactl.compiler import Compilation
from avactl.contracts import names
from avactl.program.manifest import Body
from avactl.spec.platform.prices import Prices


@dataclass(frozen=True, slots=True)
class Side:
    """One compilation for one cluster: the base or the head."""

    known: bool
    """True if the compilation has the cluster."""
    works: dict[ObjectKey, PlannedWorkload] = field(default_factory=dict)
    around: Surroundings = field(default_factory=Surroundings)
    hardware: Hardware = field(default_factory=lambda: Hardware({}, frozenset()))
    prices: Prices | None = None
    configured: dict[str, list[Body]] = field(default_factory=lambda: configured_objects((), ""))
    """Compiled objects that the scheduler reads."""
    claims: tuple[tuple[str, Body], ...] = ()
    """PersistentVolumeClaims, with their namespaces."""
    budgets: tuple[Body, ...] = ()
    """PodDisruptionBudgets."""
    nodes: tuple[tuple[str, Body], ...] = ()
    """Labels and taints of machines that a pool lists by name, by machine."""
    uncounted: str = ""
    """A sentence about GPUs of objects whose controllers are not known; empty if there are none."""

    @classmethod
    def of(cls, compilation: Compilation | None, cluster: str) -> Side:
        """Extract the side from a compilation; without one, an empty side."""
        if compilation is None or compilation.program.find_cluster(cluster) is None:
            return cls(False)
        manifests = [manifest for manifest in compilation.manifests if manifest.cluster == cluster]
        return cls(
            known=True,
            works=find_workloads(manifests, cluster),
            around=find_surroundings(manifests, cluster),
            hardware=pool_hardware(compilation.program, cluster),
            prices=compilation.program.cluster_spec(cluster).prices,
            configured=configured_objects(manifests, cluster),
            claims=tuple((each.namespace, each.body) for each in manifests if each.kind == "PersistentVolumeClaim"),
            budgets=tuple(each.body for each in manifests if each.kind == "PodDisruptionBudget"),
            nodes=tuple((each.name, each.body) for each in manifests if each.kind == "Node"),
            uncounted=describe_uncounted(
                manifests,
                {*names.GPU_RESOURCES, *(pool.spec.resource_name for pool in compilation.program.gpu_pools(cluster))},
            ),
        )
