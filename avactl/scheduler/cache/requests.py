"""Convert pod requirements to placement requests and node sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from avactl.contracts import names
from avactl.contracts.pod_annotations import GPU_SHARE
from avactl.hardware.placement.allocation import MAX_GPUS, MILLI_PER_GPU
from avactl.hardware.placement.diagnosis import fits_empty, why_gang
from avactl.hardware.placement.gang import Gang
from avactl.hardware.placement.masks import Mask
from avactl.hardware.placement.request import Request
from avactl.scheduler.cache.tables import ChangeListener, ClusterTables
from avactl.scheduler.dra.manager import ClaimDemand, DraManager
from avactl.scheduler.objects.config import ConfiguredPool
from avactl.scheduler.objects.node_info import NodeInfo
from avactl.scheduler.objects.node_rules import NodeRules, Obstacle, ObstacleKind, UnsupportedError
from avactl.scheduler.objects.planned_machines import PlannedMachine
from avactl.scheduler.objects.pod_requirements import PodRequirements

MAX_NODE_SETS = 512
"""Maximum number of node sets that are kept up to date, and of cached answers about gangs."""


class DeviceSource(NamedTuple):
    """Devices that a node must have to belong to a node set."""

    resource: str = ""
    """An extended resource; empty: none."""
    shared: bool = False
    """True for GPUs of any resource, for pods that share one."""
    claims: str = ""
    """Key of a `ClaimDemand`; empty if no ResourceClaim requests devices."""
    searched: bool = False
    """True if the allocator searches the devices of the claims, so that no node is excluded."""
    backed: tuple[str, ...] = ()
    """Extended resources that the claims provide, on nodes without a device plugin for them."""

    @property
    def counted(self) -> bool:
        """True if only nodes belong on which `DraManager.simple` holds for the claims."""
        return bool(self.claims) and not self.searched


_ANY_NODE = DeviceSource()


class RequestBuilder(ChangeListener):
    """Requests by pod requirements, cached until the cluster's resources change."""

    def __init__(self, tables: ClusterTables, dra: DraManager) -> None:
        self._tables, self._dra = tables, dra
        tables.subscribe(self)
        self.gpu_resources: frozenset[str] = frozenset(names.GPU_RESOURCES)
        """Extended resources that are GPUs."""
        self.rdma: frozenset[str] = frozenset()
        """Extended resources of RDMA NICs."""
        self._requests: dict[tuple[PodRequirements, DeviceSource, int], Request] = {}
        self._sets: dict[tuple[NodeRules, DeviceSource], int] = {}
        self._counted_sets: dict[int, int] = {}
        """`simple_epoch` by which the sets of counted claims were found: others are outdated, and found when needed."""
        self._serial = 0
        self._reasons: dict[int, dict[Obstacle, int]] = {}
        """Number of nodes outside each node set, by obstacle."""
        self._counted_nodes = 0
        """Number of nodes when the obstacles were counted."""
        self._exceeding: tuple[int, dict[Gang, bool]] = (-1, {})
        """Gangs for which the cluster is too small, as of `node_epoch`."""

    def state_cleared(self) -> None:
        """Forget all requests and node sets."""
        self._requests.clear()
        self._sets.clear()
        self._counted_sets.clear()
        self._reasons.clear()
        self._exceeding = (-1, {})

    def gpu_count(self, shape: PodRequirements, claimed: Collection[str] = ()) -> int:
        """Return the whole GPUs that a pod requests through extended resources, except those of its claim."""
        return sum(value for name, value in shape.amounts.items() if name in self.gpu_resources and name not in claimed)

    def is_united(self, shape: PodRequirements, demand: ClaimDemand) -> bool:
        """Return True if GPUs that a claim would provide are those that device plugins of other nodes provide.

        Such pods have one request for both kinds of nodes.
        """
        return (
            bool(demand.resources and demand.wanted)
            and demand.exact
            and self.gpu_resources.issuperset(demand.resources)
            and demand.gpus == self.gpu_count(shape)
        )

    def amounts(self, shape: PodRequirements) -> tuple[int, ...]:
        """Return the amounts that a pod requests, in the order of `AllocationState.resources`."""
        return tuple(shape.amounts.get(name, 0) for name in self._tables.state.resources)

    def request(self, shape: PodRequirements, demand: ClaimDemand | None = None) -> Request:
        """Return the request for pod requirements. Raises UnsupportedError if no node can ever satisfy them."""
        claimed = demand.resources if demand is not None else ()
        source = self._device_source(shape, claimed)
        wanted = demand if demand is not None and demand.wanted else None
        if wanted is not None:
            if wanted.gpus and source is not _ANY_NODE:
                raise UnsupportedError(
                    "requests GPUs through both an extended resource and ResourceClaims, which is not supported"
                )
            if self.is_united(shape, wanted):
                source = self._device_source(shape, ())
            source = source._replace(claims=wanted.key, searched=not wanted.exact, backed=claimed)
        nodes = self._node_set(shape, source)
        known = self._requests.get((shape, source, nodes))
        if known is not None:
            return known
        for name in shape.amounts:
            known_name = name in self._tables.state.resources or name in self.gpu_resources or name in claimed
            if not known_name and not self._is_gpu_resource(name):
                raise UnsupportedError(f"no node has resource {name}")
        if shape.share and self.gpu_count(shape):
            raise UnsupportedError(f"requests both a share of a GPU (annotation {GPU_SHARE.name}) and whole GPUs")
        gpus = 1 if shape.share else self.gpu_count(shape, claimed)
        if wanted is not None and wanted.gpus:
            gpus = wanted.gpus
        if source.searched:
            gpus = min(gpus, MAX_GPUS)
        if gpus > MAX_GPUS:
            raise UnsupportedError(f"requests {gpus} GPUs; a machine has at most {MAX_GPUS}")
        if len([name for name in shape.amounts if name in self.gpu_resources]) > 1:
            raise UnsupportedError("requests two kinds of GPU, which is not supported")
        if len(self._requests) > 4 * MAX_NODE_SETS:
            self._requests.clear()
        request = self._requests[shape, source, nodes] = Request(
            amounts=self.amounts(shape),
            gpus=gpus,
            milli=shape.share or MILLI_PER_GPU,
            models=frozenset({shape.rules.model}) if gpus and shape.rules.model else frozenset(),
            nodes=nodes,
            link=shape.link,
            required=shape.link_required and gpus > 1,
            rdma=bool(gpus) and any(name in self.rdma for name in shape.amounts),
        )
        return request

    def _device_source(self, shape: PodRequirements, claimed: Collection[str]) -> DeviceSource:
        """Return the devices by which pods of a shape request GPUs, except for claims."""
        if shape.share:
            return DeviceSource(shared=True)
        names = (name for name in shape.amounts if name in self.gpu_resources and name not in claimed)
        resource = next(names, "")
        return DeviceSource(resource) if resource else _ANY_NODE

    def _is_gpu_resource(self, name: str) -> bool:
        """Return True if a node offers GPUs under this resource name."""
        return any(info.gpu_resource == name for info in self._tables.nodes.values())

    def request_on_any_device(self, request: Request, shape: PodRequirements) -> Request:
        """Return the same request on all nodes that the node rules allow, regardless of devices."""
        return replace(request, nodes=self._node_set(shape, _ANY_NODE))

    def _node_set(self, shape: PodRequirements, source: DeviceSource) -> int:
        """Return the key of a shape's node set."""
        key = (shape.rules, source)
        number = self._sets.get(key)
        if number is None:
            if len(self._sets) >= MAX_NODE_SETS:
                old = self._sets.pop(next(iter(self._sets)))
                del self._tables.state.allowed[old]
                self._tables.state.preferred.pop(old, None)
                self._counted_sets.pop(old, None)
            self._serial += 1
            number = self._sets[key] = self._serial
            self._find_nodes(number, shape.rules, source)
            slots = self._tables.state.slots
            if shape.rules.preferred:
                weights = self._tables.state.preferred[number] = np.zeros(len(self._tables.state.free))
                for info in self._matching_nodes(shape.rules):
                    if info.name in slots:
                        weights[slots[info.name]] = shape.rules.preference(info.name, info.labels)
        elif self._is_outdated(number):
            self._find_nodes(number, shape.rules, source)
            self._reasons.pop(number, None)
            self._exceeding = (-1, {})
        return number

    def _find_nodes(self, number: int, rules: NodeRules, source: DeviceSource) -> None:
        if source.counted:
            self._counted_sets[number] = self._dra.simple_epoch
        slots = self._tables.state.slots
        allowed = [
            slots[info.name] for info in self._matching_nodes(rules) if not self._find_obstacle(rules, source, info)
        ]
        self._tables.state.allow(number, allowed)

    def _is_outdated(self, number: int) -> bool:
        return self._counted_sets.get(number, self._dra.simple_epoch) != self._dra.simple_epoch

    def _matching_nodes(self, rules: NodeRules) -> Iterable[NodeInfo]:
        """Return the nodes that rules may match. A DaemonSet's pod names its node, so no other is checked."""
        nodes = self._tables.nodes
        return nodes.values() if rules.named is None else [nodes[name] for name in rules.named if name in nodes]

    def put_node(self, info: NodeInfo, slot: int) -> None:
        """Update the node sets for a node."""
        self._reasons.clear()
        for (rules, source), number in self._sets.items():
            if not self._is_outdated(number):
                may = not self._find_obstacle(rules, source, info)
                if bool(self._tables.state.allowed[number][slot]) != may:
                    self._tables.state.allow(number, {slot: may})
            if rules.preferred:
                self._tables.state.preferred[number][slot] = rules.preference(info.name, info.labels)

    def obstacles(self, request: Request) -> dict[Obstacle, int]:
        """Count the nodes that are not in a request's node set, by obstacle."""
        if self._counted_nodes != len(self._tables.nodes):
            self._reasons.clear()
            self._counted_nodes = len(self._tables.nodes)
        rules, source, number = next((*key, number) for key, number in self._sets.items() if number == request.nodes)
        if number not in self._reasons:
            # Nodes with other GPUs are counted by themselves.
            nodes = [
                info
                for info in self._tables.nodes.values()
                if not request.models or self._tables.model_of(info.name) in request.models
            ]
            self._reasons[number] = Counter(filter(None, (self._find_obstacle(rules, source, info) for info in nodes)))
        return self._reasons[number]

    def exceeds_cluster(self, gang: Gang) -> bool:
        """Return True if the gang cannot fit the empty cluster. Answers are cached."""
        if self._exceeding[0] != self._tables.node_epoch or len(self._exceeding[1]) >= MAX_NODE_SETS:
            self._exceeding = (self._tables.node_epoch, {})
        known = self._exceeding[1]
        if gang not in known:
            reason = why_gang(self._tables.state, gang)
            doubtful = len(gang.roles) > 1 if reason is None else not reason.ever
            known[gang] = doubtful and self.never_fits(gang, untried=reason is None)
        return known[gang]

    def never_fits(self, gang: Gang, feasible: Mask | None = None, untried: bool = False) -> bool:
        """Return True if it is proven that the gang never fits, even once taints and cordons are gone.

        `untried`: only single roles were tried, so the cluster may still be too small for all of them.
        """
        sets = {role.request.nodes: self._lasting_nodes(role.request) for role in gang.roles}
        wider = {key: mask for key, mask in sets.items() if mask is not None}
        return not (untried or wider) or fits_empty(self._tables.state, gang, feasible, wider) is False

    def _lasting_nodes(self, request: Request) -> Mask | None:
        """Return a request's node set regardless of taints and cordons, which are transient; None if it is the same."""
        if not any(obstacle.transient for obstacle in self.obstacles(request)):
            return None
        rules, source = next(key for key, number in self._sets.items() if number == request.nodes)
        nodes = self._tables.nodes.values()
        return self._tables.mask(info.name for info in nodes if not self._find_obstacle(rules, source, info, True))

    def _has_counted_devices(self, source: DeviceSource, info: NodeInfo) -> bool:
        if any(info.allocatable.get(name) for name in source.backed):
            return False  # its device plugin has precedence
        return self._dra.simple(info.name, info.labels, source.claims)

    def may_use_machine(self, request: Request, machine: PlannedMachine, pool: ConfiguredPool) -> bool:
        """Return True if the node rules and the GPUs of a request allow a machine that has not registered yet."""
        rules, source = next(key for key, number in self._sets.items() if number == request.nodes)
        if source.claims:
            suits = pool.method == "dra" or not request.gpus or pool.resource in source.backed
        elif source.shared:
            suits = pool.method == "devicePlugin" and not pool.machine.kubelet_chooses
        else:
            suits = not source.resource or (pool.method == "devicePlugin" and source.resource == pool.resource)
        return suits and rules.untolerated(pool.taints) is None and rules.matches(machine.name, machine.labels)

    def _find_obstacle(
        self, rules: NodeRules, source: DeviceSource, info: NodeInfo, lasting: bool = False
    ) -> Obstacle | None:
        """Return what keeps pods with these rules off a node; None: nothing. `lasting`: ignore transient obstacles."""
        if source.counted:
            plugin = bool(source.resource) and info.gpu_resource == source.resource
            if not plugin and not self._has_counted_devices(source, info):
                return Obstacle(ObstacleKind.DEVICES)
        elif source.shared:
            pool = self._tables.pool_of(info)
            if not info.gpu_resource or (pool is not None and pool.machine.kubelet_chooses):
                return Obstacle(ObstacleKind.GPU_SHARING)
        elif source.resource and info.gpu_resource != source.resource:
            return Obstacle(ObstacleKind.RESOURCE, source.resource)
        if info.closed is not None and not (lasting or rules.tolerates_cordons):
            return info.closed
        unusable = info.unusable_gpus if source.shared or source.resource or source.counted else None
        if unusable is not None and not (lasting and unusable.transient):
            return unusable
        taints, cordoned = ((), False) if lasting else (info.taints, info.cordoned)
        return rules.obstacle(info.name, info.labels, taints, cordoned, info.features)
