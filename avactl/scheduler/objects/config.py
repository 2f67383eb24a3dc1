"""Pools and quotas in the scheduler's terms, from the documents that the compiler writes as ConfigMaps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from avactl.contracts.scheduling import PoolFacts, TeamLeaf
from avactl.hardware.machine import Machine
from avactl.hardware.placement.quota import QuotaLimit, QuotaNode, QuotaShape


@dataclass(frozen=True, slots=True)
class ConfiguredPool:
    """A node pool."""

    name: str
    method: str
    """`devicePlugin` or `dra`."""
    resource: str
    """The extended resource of device-plugin pools."""
    rdma_resource: str
    driver: str
    machine: Machine
    on_fault: str = "avoid"
    """`avoid`, `evict` or `drain`."""
    fault_conditions: tuple[str, ...] = ()
    """Types of node conditions that report faults, beside the known ones."""
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()
    """Labels and taints with which its machines register."""
    preempt_after: float = 0.0
    """Seconds for which preemptions wait for a machine that is on its way; 0: they do not."""
    node_groups: tuple[str, ...] = ()
    """Its node groups in the status of Cluster Autoscaler."""
    most: int | None = None
    """Maximum number of its machines; None if it is not autoscaled."""
    on_failed_pods: str = "avoid"
    """`avoid` or `cordon`."""

    @classmethod
    def from_facts(cls, facts: PoolFacts) -> ConfiguredPool:
        """Return the pool that a document describes."""
        way = facts.allocation
        return cls(
            name=facts.pool,
            method=way.method,
            resource=way.resource or "",
            rdma_resource=way.rdma_resource or "",
            driver=way.driver or "",
            machine=replace(Machine.from_facts(facts.machine), kubelet_chooses=way.devices_chosen_by == "kubelet"),
            on_fault=facts.on_fault,
            on_failed_pods=facts.on_failed_pods,
            fault_conditions=facts.fault_conditions,
            labels=dict(facts.node_labels),
            taints=tuple(taint.model_dump(exclude_none=True) for taint in facts.node_taints),
            preempt_after=facts.preempt_after,
            node_groups=facts.node_groups,
            most=facts.size.max,
        )


@dataclass(frozen=True, slots=True)
class TeamQuota:
    """A team, its namespaces, its quota. Amounts are CPU milli and memory bytes."""

    team: str
    namespaces: tuple[str, ...]
    quota: QuotaNode

    @classmethod
    def from_leaf(cls, leaf: TeamLeaf) -> TeamQuota:
        """Return the quota that a document describes."""
        quota = QuotaNode(
            name=leaf.team,
            limits={each.gpu: QuotaLimit(each.guaranteed, each.borrow, each.weight) for each in leaf.gpus},
            shapes=tuple(QuotaShape(each.machines, each.gpus, each.gpu) for each in leaf.shapes),
            amounts=(None if leaf.cpu is None else round(leaf.cpu * 1000), leaf.memory_bytes),
            per_member={each.gpu: each.per_member for each in leaf.gpus if each.per_member is not None},
        )
        return cls(leaf.team, leaf.namespaces, quota)
