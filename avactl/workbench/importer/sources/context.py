"""State that all conversions of one import share: options, teams, and their service accounts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from avactl.spec.documents.document import Path
from avactl.workbench.importer.model import Body, GivenValue, ImportedSpec, ImportReader, spec_name


@dataclass
class ImportOptions:
    """Options of an import."""

    cluster: str = ""
    namespace: str = "default"
    """Namespace of objects that name none."""
    teams: dict[str, str] = field(default_factory=dict)
    """Namespace → team."""
    as_is: bool = False
    """Keep all objects as manifests."""
    images: dict[str, str] = field(default_factory=dict)
    """Images of a Cluster that the import writes."""


@dataclass
class Context:
    """State of one import."""

    options: ImportOptions
    objects: list[GivenValue]
    known: dict[str, str] = field(default_factory=dict)
    """Namespace → team, of the repository that is imported into."""
    queues: dict[str, str] = field(default_factory=dict)
    """Namespace → team, by queues that several namespaces share."""
    accounts: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Service accounts that workloads of a team use."""
    namespaces: dict[str, list[str]] = field(default_factory=dict)
    """Team → its namespaces, in the order in which they were met."""
    used: set[GivenValue] = field(default_factory=set)
    """Objects that became part of the spec of another one."""
    label_users: dict[str, list[tuple[GivenValue, Path, Any]]] = field(default_factory=lambda: defaultdict(list))
    """Namespace → selectors of pods, and texts that may have one, with their objects and paths."""
    _by_namespace: dict[str, list[GivenValue]] = field(default_factory=lambda: defaultdict(list))
    _places: dict[tuple[str, str], list[GivenValue]] = field(default_factory=lambda: defaultdict(list))

    def team(self, namespace: str) -> str:
        """Return the team of a namespace."""
        namespace = namespace or "default"
        found = self.options.teams.get(namespace) or self.known.get(namespace) or self.queues.get(namespace)
        team = found or spec_name(namespace)
        own = self.namespaces.setdefault(team, [])
        if namespace not in own:
            own.append(namespace)
        return team

    def spec(self, kind: str, reader: ImportReader, body: Body, name: str = "") -> ImportedSpec:
        """Return a spec of a team, for an object in one of its namespaces."""
        given = reader.given
        team = self.team(given.namespace)
        made = ImportedSpec(kind, spec_name(name or given.name), team, body, [given])
        made.losses = reader.losses
        made.namespace = given.namespace or "default"
        return made

    def with_objects(self, objects: list[GivenValue]) -> Context:
        """Return the context with further objects, which an operator would make."""
        more = Context(self.options, [*self.objects, *objects], self.known, self.queues, self.accounts, self.namespaces)
        more.used = self.used
        return more

    def objects_in(self, namespace: str) -> list[GivenValue]:
        """Return all objects of a namespace."""
        if not self._by_namespace:
            for each in self.objects:
                self._by_namespace[each.namespace].append(each)
        return self._by_namespace.get(namespace, [])

    def find(
        self, kind: str, namespace: str, accept: Callable[[GivenValue], bool] = lambda given: True
    ) -> list[GivenValue]:
        """Return objects of a kind in a namespace that are not yet part of a spec."""
        if not self._places:
            for each in self.objects:
                self._places[each.kind, each.namespace].append(each)
        found = self._places.get((kind, namespace), ())
        return [each for each in found if each not in self.used and accept(each)]
