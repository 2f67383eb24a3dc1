"""The resolved specs that checks and lowerings read: by name, with all references resolved."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, cast

from typing_extensions import TypeVar as TypeVarWithDefault

from avactl.contracts.names import CAPACITY, GPU_RESOURCES, SPOT_ONLY
from avactl.diagnostics import Span
from avactl.diagnostics.suggest import WordIndex
from avactl.spec.documents.document import Document

if TYPE_CHECKING:
    from avactl.spec.platform.cache_tier import CacheTierSpec
    from avactl.spec.platform.cluster import ClusterSpec
    from avactl.spec.platform.dataset import DatasetSpec
    from avactl.spec.platform.machine_type import MachineTypeSpec
    from avactl.spec.platform.node_pool import NodePoolSpec
    from avactl.spec.platform.quota import QuotaSpec
    from avactl.spec.platform.team import TeamSpec
    from avactl.spec.schema.base import Resource

T = TypeVar("T")
P = TypeVar("P")
"""Type of a spec, or a protocol with those of its keys that a function reads."""
S = TypeVarWithDefault("S", covariant=True, default=object)
"""Type of a spec, or a protocol. An `Item` without it is one of any kind: nothing is known of its spec."""

STRUCTURE = frozenset(("Cluster", "MachineType", "NodePool", "Team"))
"""Kinds that the resolve pass reads to resolve other specs."""


def name_label(kind: str) -> str:
    """The value of the label `app.kubernetes.io/name` on the objects of a kind."""
    return kind.lower()


class HasSpec(Protocol[S]):
    """A class of documents, such as `Dataset`: it knows the type of its specs."""

    KIND: ClassVar[str]

    @property
    def spec(self) -> S: ...


class Item(Generic[S]):
    """One resolved spec: its clusters and namespace are known."""

    __slots__ = ("clusters", "doc", "namespace", "resource")

    def __init__(self, doc: Document, resource: Resource) -> None:
        self.doc = doc
        self.resource = resource
        self.clusters: tuple[str, ...] = ()
        self.namespace: str | None = None

    @property
    def kind(self) -> str:
        return self.resource.KIND

    @property
    def name(self) -> str:
        """Base name of the objects: the spec's name, unless it was renamed and kept its objects."""
        metadata = self.resource.metadata
        return metadata.object_name or metadata.name

    @property
    def spec_name(self) -> str:
        """`metadata.name`: the name that other specs use."""
        return self.resource.metadata.name

    @property
    def team(self) -> str | None:
        """Team that owns the spec; None for a platform spec."""
        return self.resource.metadata.team

    @property
    def spec(self) -> S:
        """The typed spec, e.g. a `TrainingJobSpec`."""
        spec: S = self.resource.spec
        return spec

    @property
    def cluster(self) -> str:
        """Cluster of a spec that targets exactly one."""
        return self.clusters[0]

    @property
    def ns(self) -> str:
        """Namespace of a spec that has one. Raises LookupError."""
        if self.namespace is None:
            raise LookupError(f"{self} has no namespace")
        return self.namespace

    @property
    def origin(self) -> tuple[str, int]:
        """File and index of the document, which sort specs in reading order."""
        return (self.doc.file, self.doc.index)

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.kind, self.team or "", self.spec_name)

    def span(self, *path: str | int, key: bool = False) -> Span:
        """Return the location of a value of the document; see `Document.span`."""
        return self.doc.span(*path, key=key)

    def __str__(self) -> str:
        return f"{self.kind} {self.team}/{self.spec_name}" if self.team else f"{self.kind} {self.spec_name}"


class Program:
    """All specs of a repository, resolved. Read-only after the resolve pass."""

    def __init__(self, items: Iterable[Item], read_file: Callable[[str], bytes | None]) -> None:
        self.items = sorted(items, key=lambda item: item.key)
        self.read_file = read_file
        """Return the bytes of a repository file by its path from the root; None if it does not exist."""
        self._by_key = {item.key: item for item in self.items}
        self._by_kind: dict[str, list[Item]] = {}
        for item in self.items:
            self._by_kind.setdefault(item.kind, []).append(item)
        self._memo: dict[Hashable, Any] = {}
        self.environment = ""
        """Environment of the repository that it is compiled for; "" if it has none."""
        self.with_patches: Callable[[Item, Program, list[Any]], list[Any]] | None = None
        """Applies the patches of a spec to its manifests. Raises RefusedError."""
        self.broken: frozenset[tuple[str, str]] = frozenset()
        """(kind, name) of specs excluded because of their own errors: totals over these kinds are not reported."""

    def of(self, kind: str) -> list[Item]:
        """Return all specs of a kind, ordered by team and name."""
        return self._by_kind.get(kind, [])

    def of_kind(self, model: type[HasSpec[P]]) -> list[Item[P]]:
        """Return all specs of a kind by its class of documents, such as `Dataset`, ordered by team and name."""
        return cast("list[Item[P]]", self.of(model.KIND))

    def find_kind(self, model: type[HasSpec[P]], name: str, team: str | None = None) -> Item[P] | None:
        """Like `find`, by the class of documents."""
        return cast("Item[P] | None", self.find(model.KIND, name, team))

    def get_kind(self, model: type[HasSpec[P]], name: str, team: str | None = None) -> Item[P]:
        """Like `get`, by the class of documents. Raises LookupError."""
        return cast("Item[P]", self.get(model.KIND, name, team))

    def find(self, kind: str, name: str, team: str | None = None) -> Item | None:
        """Return the spec with that name: the team's if it has one, else the platform's."""
        if team:
            item = self._by_key.get((kind, team, name))
            if item is not None:
                return item
        return self._by_key.get((kind, "", name))

    def get(self, kind: str, name: str, team: str | None = None) -> Item:
        """Like `find`, for references that the resolve pass has resolved. Raises LookupError."""
        item = self.find(kind, name, team)
        if item is None:
            raise LookupError(f"no {kind} {name}")
        return item

    def names(self, kind: str, team: str | None = None) -> WordIndex:
        """Return the names of the specs of a kind, of all or of one team, to suggest one of them."""

        def read() -> WordIndex:
            return WordIndex(item.spec_name for item in self.of(kind) if team is None or item.team == team)

        return self.memo(("names", kind, team), read)

    def memo(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return a value derived from the whole program, computed once."""
        if key not in self._memo:
            self._memo[key] = make()
        value: T = self._memo[key]
        return value

    def derive(self, item: Item[P], make: Callable[[Item[P], Program], T]) -> T:
        """Return plain data (tuples, lists, dicts, text, numbers) that a module function computes from one spec, once.

        Values computed from many specs should read them this way: they then need no recomputation when a spec changes
        elsewhere (`avactl.compiler.incremental`). Callers must not change the value.
        """
        return self.memo((make, item.key), lambda: make(item, self))

    # -- platform concepts -------------------------------------------------------------------------------------------

    # The kinds below are concepts that other kinds depend on: placement (Cluster, Team), machines (NodePool,
    # MachineType), limits (Quota) and data (Dataset, CacheTier). Modules outside `kinds/<kind>/` get them here, so that
    # none of them names a kind.

    def _all(self, kind: str) -> list[Item[Any]]:
        return cast("list[Item[Any]]", self.of(kind))

    def _find(self, kind: str, name: str, team: str | None = None) -> Item[Any] | None:
        return self.find(kind, name, team)

    def _get(self, kind: str, name: str) -> Item[Any]:
        return self.get(kind, name)

    def clusters(self) -> list[Item[ClusterSpec]]:
        """Return the clusters, by name."""
        return self._all("Cluster")

    def find_cluster(self, name: str) -> Item[ClusterSpec] | None:
        """Return the cluster with that name."""
        return self._find("Cluster", name)

    def cluster(self, name: str) -> Item[ClusterSpec]:
        """Return the cluster with that name. Raises LookupError."""
        return self._get("Cluster", name)

    def cluster_spec(self, name: str) -> ClusterSpec:
        """Return the `ClusterSpec` of a cluster by name."""
        return self.cluster(name).spec

    def pools(self, cluster: str | None = None) -> list[Item[NodePoolSpec]]:
        """Return the node pools by name: of all clusters, or of one."""
        if cluster is None:
            return self._all("NodePool")
        return self.memo(("pools", cluster), lambda: [pool for pool in self.pools() if pool.spec.cluster == cluster])

    def taints(self, cluster: str) -> list[str]:
        """Return the keys of the taints of a cluster's pools, sorted."""

        def read() -> list[str]:
            return sorted({taint.key for pool in self.pools(cluster) for taint in pool.spec.taints})

        return self.memo(("taints", cluster), read)

    def find_pool(self, name: str) -> Item[NodePoolSpec] | None:
        """Return the node pool with that name."""
        return self._find("NodePool", name)

    def pool(self, name: str) -> Item[NodePoolSpec]:
        """Return the node pool with that name. Raises LookupError."""
        return self._get("NodePool", name)

    def teams(self, cluster: str | None = None) -> list[Item[TeamSpec]]:
        """Return the teams by name: all, or those that use a cluster."""
        if cluster is None:
            return self._all("Team")
        return self.memo(("teams", cluster), lambda: [team for team in self.teams() if cluster in team.clusters])

    def find_team(self, name: str) -> Item[TeamSpec] | None:
        """Return the team with that name."""
        return self._find("Team", name)

    def team(self, name: str) -> Item[TeamSpec]:
        """Return the team with that name. Raises LookupError."""
        return self._get("Team", name)

    def is_broken_team(self, name: str) -> bool:
        """Return True if a team with that name is missing because of its own errors."""
        return ("Team", name) in self.broken

    def quotas(self) -> list[Item[QuotaSpec]]:
        """Return the quotas, by team and name."""
        return self._all("Quota")

    def tiers(self, cluster: str | None = None) -> list[Item[CacheTierSpec]]:
        """Return the cache tiers by name: of all clusters, or of one."""
        if cluster is None:
            return self._all("CacheTier")
        return self.memo(("tiers", cluster), lambda: [tier for tier in self.tiers() if tier.spec.cluster == cluster])

    def find_tier(self, name: str) -> Item[CacheTierSpec] | None:
        """Return the cache tier with that name."""
        return self._find("CacheTier", name)

    def tier(self, name: str) -> Item[CacheTierSpec]:
        """Return the cache tier with that name. Raises LookupError."""
        return self._get("CacheTier", name)

    def datasets(self) -> list[Item[DatasetSpec]]:
        """Return the datasets, by team and name."""
        return self._all("Dataset")

    def find_dataset(self, name: str, team: str | None) -> Item[DatasetSpec] | None:
        """Return the dataset with that name: the team's if it has one, else the platform's."""
        return self._find("Dataset", name, team)

    def is_broken_dataset(self, name: str) -> bool:
        """Return True if a dataset with that name is missing because of its own errors."""
        return ("Dataset", name) in self.broken

    def machine_types(self) -> list[Item[MachineTypeSpec]]:
        """Return the machine types, by name."""
        return self._all("MachineType")

    def machine_type(self, pool: Item[NodePoolSpec]) -> Item[MachineTypeSpec]:
        """Return the machine type of a pool's machines. Raises LookupError."""
        return self._get("MachineType", pool.spec.machine_type)

    @property
    def lacks_machines(self) -> bool:
        """True if pools or machine types are missing because of their own errors."""
        return any(kind in ("NodePool", "MachineType") for kind, _ in self.broken)

    @property
    def lacks_clusters(self) -> bool:
        """True if clusters are missing because of their own errors."""
        return any(kind == "Cluster" for kind, _ in self.broken)

    @property
    def lacks_tiers(self) -> bool:
        """True if cache tiers are missing because of their own errors."""
        return any(kind == "CacheTier" for kind, _ in self.broken)

    def machine(self, pool: Item[NodePoolSpec]) -> MachineTypeSpec:
        """Return the `MachineTypeSpec` of a pool's machines."""
        return self.machine_type(pool).spec

    def candidate_pools(
        self, cluster: str, gpu: str | None, pool: str | None, tolerates: Sequence[str] | None = None
    ) -> list[Item[NodePoolSpec]]:
        """Return the pools of a cluster where pods that request this GPU model and pool may run.

        `tolerates` has the keys of the taints that the pods tolerate; None: all. A named pool is always tolerated,
        unless it is a spot pool.
        """
        found = self.pools(cluster)
        if tolerates is not None:
            only = SPOT_ONLY in tolerates
            found = [item for item in found if item.spec.is_spot or not only]
            found = [item for item in found if not item.spec.is_spot or only or CAPACITY in tolerates]
        if pool is None and tolerates is not None:
            found = [item for item in found if not reserved_by(item, tolerates)]
        if pool is not None:
            found = [item for item in found if item.name == pool]
        if gpu is not None:
            found = [item for item in found if self.machine(item).gpu_model == gpu]
        return found

    def gpu_models(self, cluster: str) -> list[str]:
        """Return the GPU models of a cluster's pools, by name."""
        return self.memo(
            ("gpu models", cluster),
            lambda: sorted(
                {gpus.model for pool in self.pools(cluster) if (gpus := self.machine(pool).gpus) is not None}
            ),
        )

    def gpu_pools(self, cluster: str) -> list[Item[NodePoolSpec]]:
        """Return the pools of a cluster whose machines have GPUs."""
        return self.memo(
            ("gpu pools", cluster), lambda: [pool for pool in self.pools(cluster) if self.machine(pool).gpu_count]
        )

    def unreserved_pools(self, cluster: str, tolerates: Sequence[str] = ()) -> list[Item[NodePoolSpec]]:
        """Return the pools of a cluster that no taint keeps pods off: where pods without GPUs run that name no pool.

        `tolerates` has the keys of the taints that their tolerations name.
        """
        return [
            pool
            for pool in self.pools(cluster)
            if all(taint.effect == "PreferNoSchedule" or taint.key in tolerates for taint in pool.spec.all_taints)
        ]

    def declares_cpu_machines(self, cluster: str) -> bool:
        """Return True if the pools are all machines on which pods without GPUs run: one has CPUs only, and no taints.

        In other clusters, machines without GPUs need not be declared, so nothing is known of where such pods run.
        """
        return any(not self.machine(pool).gpu_count for pool in self.unreserved_pools(cluster))


def reserved_by(pool: Item[NodePoolSpec], tolerates: Sequence[str]) -> list[str]:
    """Keys of the taints that keep pods off a pool. Taints named after a GPU resource keep off only pods without GPUs,
    as Kubernetes' admission plugin ExtendedResourceToleration has it."""
    own = (pool.spec.resource_name, *GPU_RESOURCES, *tolerates)
    return [t.key for t in pool.spec.taints if t.effect != "PreferNoSchedule" and t.key not in own]


def pool_size(pool: Item[NodePoolSpec]) -> int:
    """Return the maximum number of machines in a pool."""
    spec = pool.spec
    if spec.nodes is not None:
        return len(spec.nodes)
    if spec.autoscaling is not None:
        return int(spec.autoscaling.max)
    return int(spec.count or 0)
