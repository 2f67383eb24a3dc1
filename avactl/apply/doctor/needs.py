"""Expectations that compiled objects have of their cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from avactl.apply.doctor.objects import ObjectNeed, needed_objects
from avactl.apply.doctor.secrets import DEFINITIONS, SecretNeed, needed_secrets
from avactl.base.object_identity import defined_kinds
from avactl.compiler import Compilation
from avactl.contracts.document import load
from avactl.contracts.names import CONFIG_LABEL, PICKER_GROUPS, TOPOLOGY_CONFIG
from avactl.contracts.scheduling import POOL_KEY, PoolFacts
from avactl.program.manifest import Manifest

_FIELD_GATES = {
    "ResourceClaimTemplate": {
        "adminAccess": "DRAAdminAccess",
        "firstAvailable": "DRAPrioritizedList",
        "tolerations": "DRADeviceTaints",
        "capacity": "DRAConsumableCapacity",
    },
}
"""Fields that the API server drops if a feature gate is off, by kind.

Source: https://kubernetes.io/docs/reference/command-line-tools-reference/feature-gates/
"""


class NeededClaim(NamedTuple):
    """Volume claims of one storage class and access mode."""

    storage_class: str | None
    """None for the cluster's default class."""
    many: bool
    """True for ReadWriteMany."""


class NeededNodes(NamedTuple):
    """A node pool."""

    name: str
    labels: dict[str, str]
    nodes: tuple[str, ...]
    """Names of the nodes, if the pool names them: avactl sets their labels."""
    least: int
    """Number of nodes that must exist."""
    gpus: int
    driver: str
    """DRA driver; empty for device plugins."""
    resources: dict[str, int]
    """Extended resources and amounts that device plugins report for each node."""
    where: str
    chosen_by: str = ""
    """The one who chooses the GPUs of a device plugin: `scheduler`, `kubelet`; empty if the specs do not say it."""


@dataclass(slots=True)
class ProgramNeeds:
    """Expectations of the objects of one cluster."""

    cluster: str
    version: str = ""
    kinds: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """Namespaces of the objects by API version and kind."""
    defined: set[tuple[str, str]] = field(default_factory=set)
    """API versions and kinds that the objects themselves define."""
    users: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """Specs by API version and kind of their objects."""
    gates: dict[str, set[str]] = field(default_factory=dict)
    """Specs by the feature gate that they need."""
    claims: dict[NeededClaim, set[str]] = field(default_factory=dict)
    """Specs by what their volumes ask for."""
    provisioners: dict[str, str] = field(default_factory=dict)
    """Declared provisioners of storage classes."""
    device_classes: dict[str, set[str]] = field(default_factory=dict)
    """Specs by device class, without those classes that the specs declare."""
    images: dict[str, set[str]] = field(default_factory=dict)
    """Specs by image."""
    pools: list[NeededNodes] = field(default_factory=list)
    secrets: list[SecretNeed] = field(default_factory=list)
    objects: list[ObjectNeed] = field(default_factory=list)
    """ConfigMaps and claims that the objects name and do not make."""
    watched: set[str] = field(default_factory=set)
    """Specs with endpoint pickers of avactl's, which watch kinds if they are served."""
    tenants: frozenset[str] = frozenset()
    """Namespaces in which teams make objects."""
    applied_by: str = ""
    """Engine in the cluster that applies the objects; empty if the caller does."""


def needs_of(compilation: Compilation, cluster: str) -> ProgramNeeds:
    """Return what the objects of a cluster expect of it."""
    spec = compilation.program.cluster_spec(cluster)
    needs = ProgramNeeds(cluster, spec.kubernetes_version)
    needs.provisioners = {each.name: each.provisioner for each in spec.storage_classes.classes if each.provisioner}
    needs.applied_by = spec.reconcile.mode if spec.reconcile.mode not in ("pulumi", "files") else ""
    teams = compilation.program.teams(cluster)
    needs.tenants = frozenset(
        name for team in teams for name in [each.name for each in team.spec.namespaces or ()] or [team.name]
    )
    manifests = [manifest for manifest in compilation.manifests if manifest.cluster == cluster]
    made = {manifest.name for manifest in manifests if manifest.kind == "DeviceClass"}
    for manifest in manifests:
        user, kind = str(manifest.item), (str(manifest.body["apiVersion"]), manifest.kind)
        needs.kinds.setdefault(kind, set()).add(manifest.namespace)
        needs.users.setdefault(kind, set()).add(user)
        if manifest.kind in DEFINITIONS:
            needs.defined |= defined_kinds(manifest.body)
            continue
        for key, value in _nested_pairs(manifest.body):
            if key == "image" and isinstance(value, str):
                needs.images.setdefault(value, set()).add(user)
            elif key == "deviceClassName" and value not in made:
                needs.device_classes.setdefault(str(value), set()).add(user)
            elif gate := _FIELD_GATES.get(manifest.kind, {}).get(key):
                needs.gates.setdefault(gate, set()).add(user)
        if manifest.kind == "Role" and any(
            PICKER_GROUPS.keys() & set(rule.get("apiGroups", ())) for rule in manifest.body.get("rules") or ()
        ):
            needs.watched.add(user)
        for claim in claims_of(manifest.body):
            needs.claims.setdefault(claim, set()).add(user)
        labels = manifest.body["metadata"].get("labels") or {}
        if manifest.kind == "ConfigMap" and labels.get(CONFIG_LABEL) == TOPOLOGY_CONFIG:
            needs.pools.append(_read_pool(manifest))
    needs.secrets = needed_secrets(manifests)
    needs.objects = needed_objects(manifests)
    return needs


def _nested_pairs(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key, inner
            yield from _nested_pairs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _nested_pairs(inner)


def claims_of(body: Mapping[str, Any]) -> Iterator[NeededClaim]:
    """Yield the volume claims of an object for which a storage class creates volumes."""
    claims: list[Any] = [body] if body["kind"] == "PersistentVolumeClaim" else []
    claims += [each for key, value in _nested_pairs(body) if key == "volumeClaimTemplates" for each in value or ()]
    claims += [value for key, value in _nested_pairs(body) if key == "volumeClaimTemplate"]
    for claim in claims:
        spec = claim.get("spec") if isinstance(claim, dict) else None
        if isinstance(spec, dict) and spec.get("storageClassName") != "" and not spec.get("volumeName"):
            yield NeededClaim(spec.get("storageClassName"), "ReadWriteMany" in spec.get("accessModes", ()))


def _read_pool(manifest: Manifest) -> NeededNodes:
    facts = load(PoolFacts, manifest.body["data"][POOL_KEY])
    size, way, gpus = facts.size, facts.allocation, facts.machine.gpus.count if facts.machine.gpus is not None else 0
    resources = {} if way.resource is None else {way.resource: gpus}
    if way.rdma_resource is not None:
        resources[way.rdma_resource] = 1
    span = manifest.item.span("metadata", "name")
    return NeededNodes(
        facts.pool,
        dict(facts.node_labels),
        size.nodes or (),
        size.min or 0 if size.count is None else size.count,
        gpus,
        way.driver or "",
        resources,
        f"{span.file}:{span.line}",
        getattr(manifest.item.spec, "devices_chosen_by", None) or "",
    )
