"""A Kubernetes object as plain data, with who asked for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from avactl.kinds.program import Item

Body = dict[str, Any]


class ObjectId(NamedTuple):
    """What makes an object one and the same in a cluster."""

    cluster: str
    group: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


class Manifest:
    """One object of one cluster.

    `item` is the spec that asked for it (its intent and provenance). `holds_data`: deleting it would lose data, so
    nothing deletes it unless the spec says `deletionPolicy: delete`. `patch`: the object exists without us, and only
    the given fields are ours (a Node). `owned`: fields that controllers write after us, as paths
    (`spec.replicas`); nobody puts those back.
    """

    __slots__ = ("body", "cluster", "holds_data", "item", "owned", "patch")

    def __init__(
        self,
        item: Item,
        cluster: str,
        body: Body,
        *,
        holds_data: bool = False,
        patch: bool = False,
        owned: tuple[str, ...] = (),
    ) -> None:
        self.item = item
        self.cluster = cluster
        self.body = body
        self.holds_data = holds_data
        self.patch = patch
        self.owned = owned

    @property
    def kind(self) -> str:
        kind: str = self.body["kind"]
        return kind

    @property
    def name(self) -> str:
        name: str = self.body["metadata"]["name"]
        return name

    @property
    def namespace(self) -> str:
        """Namespace, or "" of an object that has none."""
        namespace: str = self.body["metadata"].get("namespace", "")
        return namespace

    @property
    def id(self) -> ObjectId:
        group = self.body["apiVersion"].rpartition("/")[0]
        return ObjectId(self.cluster, group, self.kind, self.namespace, self.name)

    @property
    def stack(self) -> str:
        """The Pulumi stack and the directory: `CLUSTER` for the platform's objects, `CLUSTER.TEAM` for a team's."""
        team = self.item.team
        return f"{self.cluster}.{team}" if team else self.cluster

    def __repr__(self) -> str:
        return f"<{self.id} of {self.item}>"
