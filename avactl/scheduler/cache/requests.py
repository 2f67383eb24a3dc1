"""From what pods ask for to what the engine is asked: requests, and the sets of nodes that pods may run on."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from avactl import names
from avactl.placement.allocation import MAX_GPUS, MILLI_PER_GPU
from avactl.placement.diagnosis import fits_empty, why_gang
from avactl.placement.gang import Gang
from avactl.placement.request import Request
from avactl.scheduler.cache.tables import ChangeListener, ClusterTables, Mask
from avactl.scheduler.dra.manager import ClaimDemand, DraManager
from avactl.scheduler.objects.node_info import NodeInfo
from avactl.scheduler.objects.node_rules import NodeRules
from avactl.scheduler.objects.pod_requirements import PodRequirements

_SETS = 512
"""Node sets that are kept up to date, and gangs of which it is known whether they ever fit."""
_SHARED = "shared"
"""Stands for the resource of pods that share a GPU, which name none."""
_DEMAND, _SEARCHED = "claims:", "devices:"


class RequestBuilder(ChangeListener):
    """Requests of shapes, kept as long as the fleet's resources are the same."""

    def __init__(self, tables: ClusterTables, dra: DraManager) -> None:
        self._tables, self._dra = tables, dra
        tables.subscribe(self)
        self.gpu_resources: frozenset[str] = frozenset(names.GPU_RESOURCES)
        """Extended resources that are GPUs."""
        self.rdma: frozenset[str] = frozenset()
        """Those that are RDMA NICs."""
        self._requests: dict[tuple[PodRequirements, str, int], Request] = {}
        self._sets: dict[tuple[NodeRules, str], int] = {}
        self._serial = 0
        self._reasons: dict[int, dict[str, int]] = {}
        """Why nodes are not in a set, and how many."""
        self._looked_at = 0
        """Nodes that there were then."""
        self._small: tuple[int, dict[Gang, bool]] = (-1, {})
        """For which gangs the fleet is too small, as of `node_epoch`."""

    def state_cleared(self) -> None:
        """Forget all requests and node sets."""
        self._requests.clear()
        self._sets.clear()
        self._reasons.clear()
        self._small = (-1, {})

    def gpu_resource(self, shape: PodRequirements) -> str:
        """The resource by which pods of a shape ask for GPUs; empty for pods without."""
        if shape.share:
            return _SHARED
        return next((name for name in shape.amounts if name in self.gpu_resources), "")

    def gpu_count(self, shape: PodRequirements) -> int:
        """Whole GPUs that a pod of a shape asks for by an extended resource."""
        return sum(value for name, value in shape.amounts.items() if name in self.gpu_resources)

    def amounts(self, shape: PodRequirements) -> tuple[int, ...]:
        """What a pod of a shape asks for, in the order of `State.resources`."""
        return tuple(shape.amounts.get(name, 0) for name in self._tables.state.resources)

    def request(self, shape: PodRequirements, demand: ClaimDemand | None = None) -> Request | str:
        """What the engine is asked for, or why no node will ever do, in words."""
        resource = self.gpu_resource(shape)
        wanted = demand if demand is not None and demand.wanted else None
        if wanted is not None:
            if wanted.gpus and resource:
                return "asks for GPUs by a resource and by ResourceClaims in one pod, which is not supported"
            resource = _DEMAND + wanted.key if wanted.exact else f"{_SEARCHED}{resource}\n{wanted.key}"
        nodes = self._set(shape, resource)
        known = self._requests.get((shape, resource, nodes))
        if known is not None:
            return known
        for name in shape.amounts:
            if name not in self._tables.state.resources and not self._offered(name):
                device_class = self._dra.stands_for(name)
                if device_class:
                    return f"{name} stands for DeviceClass {device_class}: ask for it by a ResourceClaim instead"
                if name not in self.gpu_resources:
                    return f"no node has the resource {name}"
        if shape.share and self.gpu_count(shape):
            return f"asks for a part of a GPU (annotation {names.GPU_SHARE}) and for whole ones in one pod"
        gpus = 1 if shape.share else self.gpu_count(shape)
        if wanted is not None and wanted.gpus:
            gpus = wanted.gpus
        if resource.startswith(_SEARCHED):
            gpus = min(gpus, MAX_GPUS)
        if gpus > MAX_GPUS:
            return f"asks for {gpus} GPUs; a machine has at most {MAX_GPUS}"
        if len([name for name in shape.amounts if name in self.gpu_resources]) > 1:
            return "asks for GPUs of two kinds in one pod, which is not supported"
        if len(self._requests) > 4 * _SETS:
            self._requests.clear()
        request = self._requests[shape, resource, nodes] = Request(
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

    def _offered(self, name: str) -> bool:
        """Whether a node has GPUs by this name."""
        return any(info.gpu_resource == name for info in self._tables.nodes.values())

    def searched(self, request: Request, shape: PodRequirements) -> Request:
        """The same on all nodes that the shape's rules leave, whatever devices they have."""
        return replace(request, nodes=self._set(shape, ""))

    def _set(self, shape: PodRequirements, resource: str) -> int:
        """The key of the node set of a shape."""
        key = (shape.rules, resource)
        found = self._sets.get(key)
        if found is None:
            if len(self._sets) >= _SETS:
                old = next(iter(self._sets))
                del self._tables.state.allowed[self._sets.pop(old)]
            self._serial += 1
            found = self._sets[key] = self._serial
            slots = self._tables.state.slots
            allowed = [
                slots[info.name]
                for info in self._tables.nodes.values()
                if not self._obstacle(shape.rules, resource, info)
            ]
            self._tables.state.allow(found, allowed)
        return found

    def put_node(self, info: NodeInfo, slot: int) -> None:
        """Bring the sets up to date for a node."""
        self._reasons.clear()
        for (rules, resource), number in self._sets.items():
            may = not self._obstacle(rules, resource, info)
            if bool(self._tables.state.allowed[number][slot]) != may:
                self._tables.state.allow(number, {slot: may})

    def obstacles(self, request: Request) -> dict[str, int]:
        """Why nodes are not in a request's node set, and how many."""
        if self._looked_at != len(self._tables.nodes):
            self._reasons.clear()
            self._looked_at = len(self._tables.nodes)
        rules, resource, number = next((*key, number) for key, number in self._sets.items() if number == request.nodes)
        if number not in self._reasons:
            # Nodes with other GPUs are counted by themselves.
            nodes = [
                info
                for info in self._tables.nodes.values()
                if not request.models or self._tables.model_of(info.name) in request.models
            ]
            self._reasons[number] = Counter(filter(None, (self._obstacle(rules, resource, info) for info in nodes)))
        return self._reasons[number]

    def small(self, gang: Gang) -> bool:
        """Whether the fleet is too small for a gang even if it is empty. Cheap for one that is asked about again."""
        if self._small[0] != self._tables.node_epoch or len(self._small[1]) >= _SETS:
            self._small = (self._tables.node_epoch, {})
        known = self._small[1]
        if gang not in known:
            reason = why_gang(self._tables.state, gang)
            doubtful = len(gang.roles) > 1 if reason is None else not reason.ever
            known[gang] = doubtful and self.never(gang, untried=reason is None)
        return known[gang]

    def never(self, gang: Gang, among: Mask | None = None, untried: bool = False) -> bool:
        """Whether a gang for which an empty fleet is too small now has room in none that may come: cordons go.

        `untried`: nobody knows yet whether it is too small, for the roles fit by themselves.
        """
        sets = {role.request.nodes: self._lasting(role.request) for role in gang.roles}
        wider = {key: mask for key, mask in sets.items() if mask is not None}
        return not ((untried or wider) and fits_empty(self._tables.state, gang, among, wider))

    def _lasting(self, request: Request) -> Mask | None:
        """A request's node set without taints and cordons, which go; None where none keeps it from a node."""
        if not any(each == "cordoned" or each.startswith("taint ") for each in self.obstacles(request)):
            return None
        rules, resource = next(key for key, number in self._sets.items() if number == request.nodes)
        nodes = self._tables.nodes.values()
        return self._tables.mask(info.name for info in nodes if not self._obstacle(rules, resource, info, True))

    def _obstacle(self, rules: NodeRules, resource: str, info: NodeInfo, lasting: bool = False) -> str:
        """Why a pod with these rules must not run on a node; empty where it may. `lasting`: but for what goes."""
        if resource == _SHARED:
            if not info.gpu_resource:
                return "no GPUs to share"
        elif resource.startswith(_DEMAND):
            if not self._dra.simple(info.name, info.labels, resource[len(_DEMAND) :]):
                return "no devices as its ResourceClaim selects"
        elif resource.startswith(_SEARCHED):
            # Who has the devices now is found by a search.
            return self._obstacle(rules, resource[len(_SEARCHED) : resource.index("\n")], info, lasting)
        elif resource and info.gpu_resource != resource:
            return f"no {resource}"
        taints, cordoned = ((), False) if lasting else (info.taints, info.cordoned)
        return rules.obstacle(info.name, info.labels, taints, cordoned, info.features)
