"""Lowering of NodePool: labels and taints of named nodes, and the pool's topology ConfigMap."""

from __future__ import annotations

from avactl.contracts import names
from avactl.contracts.document import dump
from avactl.contracts.scheduling import POOL_KEY, PoolAllocation, PoolFacts, PoolSize, PoolTaint
from avactl.program.capacity.machine_hardware import machine_facts
from avactl.program.lowering import k8s
from avactl.program.lowering.pods import device_class
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program
from avactl.spec.platform.node_pool import NodePoolSpec


def lower(item: Item[NodePoolSpec], program: Program) -> list[Manifest]:
    """Return the objects of one pool.

    avactl never creates machines. Nodes that the pool names get its labels and taints; for a pool with a count or
    bounds, the provisioner of the machines (Karpenter, a cluster autoscaler's node group, kubeadm) starts their
    kubelets with the labels and taints listed in the ConfigMap, `--node-labels` and `--register-with-taints`.
    """
    return [_build_topology(item, program), *_build_nodes(item, program)]


def node_labels(item: Item[NodePoolSpec], program: Program) -> dict[str, str]:
    """Labels of a pool's nodes: those that its pods select, and those of the spec."""
    own, model = {names.POOL_LABEL: item.name}, program.machine(item).gpu_model
    if model is not None:
        own[names.GPU_LABEL] = model
    return {**item.spec.labels, **own, **({names.CAPACITY: names.SPOT} if item.spec.is_spot else {})}


def _build_taints(spec: NodePoolSpec) -> tuple[PoolTaint, ...]:
    return tuple(PoolTaint(key=taint.key, value=taint.value or None, effect=taint.effect) for taint in spec.all_taints)


def _build_nodes(item: Item[NodePoolSpec], program: Program) -> list[Manifest]:
    """Return one patch per named node: the node exists without avactl, which owns only these fields.

    The node gets none of avactl's labels of managed objects, so that pruning by label never selects it.
    `spec.taints` is one list to the API server (listType=atomic): applying it also removes the taints of the node
    lifecycle controller, which restores them within seconds.
    """
    if not item.spec.nodes:
        return []
    metadata = item.resource.metadata
    labels = {**metadata.labels, **node_labels(item, program)}
    taints = [taint.model_dump(by_alias=True, exclude_none=True) for taint in _build_taints(item.spec)]
    result = []
    for name in item.spec.nodes:
        body: Body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": dict(labels)}}
        if metadata.annotations:
            body["metadata"]["annotations"] = dict(metadata.annotations)
        if taints:
            body["spec"] = {"taints": [dict(taint) for taint in taints]}
        result.append(Manifest(item, item.cluster, body, patch=True))
    return result


def _build_size(spec: NodePoolSpec) -> PoolSize:
    if spec.nodes is not None:
        return PoolSize(count=len(spec.nodes), nodes=tuple(sorted(spec.nodes)))
    if spec.autoscaling is not None:
        return PoolSize(min=spec.autoscaling.min, max=spec.autoscaling.max)
    return PoolSize(count=spec.count)


def _build_allocation(item: Item[NodePoolSpec], program: Program) -> PoolAllocation:
    """Return the allocation of GPUs and RDMA NICs in the pool."""
    spec, model = item.spec, program.machine(item).gpu_model
    if model is None:
        return PoolAllocation(method="devicePlugin", rdma_resource=spec.rdma_resource)
    if spec.allocation == "dra":
        return PoolAllocation(
            method=spec.allocation,
            device_class=device_class(model),
            driver=program.cluster_spec(item.cluster).gpu_driver,
            rdma_resource=spec.rdma_resource,
        )
    return PoolAllocation(
        method=spec.allocation,
        resource=spec.resource_name,
        rdma_resource=spec.rdma_resource,
        devices_chosen_by="kubelet" if spec.kubelet_chooses else "scheduler",
    )


def _build_topology(item: Item[NodePoolSpec], program: Program) -> Manifest:
    """Return the facts of the pool's machines, for the scheduler and the topology daemon."""
    cluster, spec = program.cluster_spec(item.cluster), item.spec
    facts = PoolFacts(
        version=1,
        pool=item.name,
        machine_type=spec.machine_type,
        size=_build_size(spec),
        allocation=_build_allocation(item, program),
        levels=tuple(cluster.placement.levels),
        node_labels=node_labels(item, program),
        node_taints=_build_taints(spec),
        on_fault=spec.on_fault,
        on_failed_pods=spec.on_failed_pods,
        preempt_after=spec.preemption_delay,
        node_groups=tuple(spec.autoscaling.node_groups) if spec.autoscaling is not None else (),
        fault_conditions=tuple(spec.fault_conditions),
        machine=machine_facts(program.machine(item)),
    )
    return k8s.config_map(
        item,
        item.cluster,
        f"avactl-pool-{item.name}",
        cluster.system_namespace,
        {POOL_KEY: dump(facts, indent=True)},
        extra_labels={names.CONFIG_LABEL: names.TOPOLOGY_CONFIG},
    )
