"""Models of the specs: where their versions are published, what they were made from, and which services serve them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from avactl.contracts.delivery import VersionLineage
from avactl.contracts.document import DocumentError, load
from avactl.daemons.delivery.plans import PipelineTarget
from avactl.daemons.delivery.publish import LINEAGE, VERSION
from avactl.datasets.stores.opening import open_store
from avactl.datasets.stores.store import FoundObject
from avactl.kinds.pipeline.service import deployed_model, service_of, value_paths
from avactl.kinds.pipeline.spec import Pipeline
from avactl.kinds.pipeline.steps import versions_directory
from avactl.kinds.serving.spec import ServingDeployment, ServingDeploymentSpec
from avactl.program.program import Item, Program

MAX_VERSIONS = 10_000
"""Directories of one model that are looked at."""
MAX_READ = 32 << 20
"""Maximum size of the lineages of one model that are read, in bytes."""


@dataclass(frozen=True, slots=True)
class ServiceModel:
    """A model of a service in the specs."""

    service: Item[ServingDeploymentSpec]
    name: str
    """Name of the model in the service."""
    url: str
    versions: tuple[str, ...]
    paths: Mapping[str, str]
    """Paths of `url` and `version` in the service's document."""

    def __str__(self) -> str:
        return f"{self.service.team}/{self.service.spec_name}"

    @property
    def target(self) -> PipelineTarget:
        """Where a change of the version is written."""
        item = self.service
        return PipelineTarget(
            item.ns,
            item.name,
            self.name,
            item.doc.file,
            item.spec_name,
            str(item.team),
            self.paths["url"],
            self.paths["version"],
        )


@dataclass(frozen=True, slots=True)
class DeliveredModel:
    """A model: what a pipeline publishes, or what services serve under one name."""

    name: str
    team: str
    directory: str
    """Where a pipeline publishes its versions; "" without a pipeline."""
    served: tuple[ServiceModel, ...]

    def __str__(self) -> str:
        return f"{self.team}/{self.name}"


def list_models(program: Program) -> list[DeliveredModel]:
    """Return the models of the specs, by team and name."""
    services = [each for item in program.of_kind(ServingDeployment) for each in _served_models(item)]
    found: dict[tuple[str, str], DeliveredModel] = {}
    for pipeline in program.of_kind(Pipeline):
        base, deploy, service = versions_directory(pipeline), pipeline.spec.deploy, service_of(pipeline, program)
        target = None if deploy is None or service is None else deployed_model(deploy, service)
        name = pipeline.spec_name if target is None else target[1].name
        own = tuple(
            each
            for each in services
            if each.url.startswith(f"{base}/")
            or (service is not None and target is not None and (each.service is service and each.name == name))
        )
        found[str(pipeline.team), name] = DeliveredModel(name, str(pipeline.team), base, own)
    published = {id(each) for model in found.values() for each in model.served}
    for each in services:
        if id(each) not in published:
            key = (str(each.service.team), each.name)
            known = found.get(key, DeliveredModel(each.name, key[0], "", ()))
            found[key] = DeliveredModel(known.name, known.team, known.directory, (*known.served, each))
    return [found[key] for key in sorted(found)]


def _served_models(item: Item[ServingDeploymentSpec]) -> Iterator[ServiceModel]:
    for index, model in enumerate(item.spec.served):
        place = value_paths(None if item.spec.model is not None else index, model)
        yield ServiceModel(item, model.name, (model.url or "").rstrip("/"), tuple(model.live), place)


def published_versions(directory: str, endpoint: str = "") -> dict[int, VersionLineage]:
    """Return the lineage of each published version of a directory, the newest last. Raises StoreError, DatasetError."""
    store = open_store(directory, endpoint)
    known: dict[int, FoundObject] = {}
    for each in store.objects():
        number, _, rest = each.key.partition("/")
        if rest == LINEAGE and VERSION(number) and each.size <= VersionLineage.MAX_BYTES:
            known[int(number)] = each
            if len(known) >= MAX_VERSIONS:
                break
    found, left = {}, MAX_READ
    for version, each in sorted(known.items(), reverse=True):
        # What a team has written is read up to a limit, the newest first: also others list its versions.
        fits = each.size <= left
        found[version] = _parse_lineage(store.read(each)) if fits else VersionLineage()
        left -= each.size if fits else 0
    return dict(sorted(found.items()))


def _parse_lineage(content: bytes) -> VersionLineage:
    try:
        return load(VersionLineage, content)
    except DocumentError:
        return VersionLineage()


def model_entries(known: Iterable[tuple[DeliveredModel, Mapping[int, VersionLineage]]]) -> list[dict[str, Any]]:
    """Return one entry a version, with what it was made from and which services serve it."""
    found = []
    for model, versions in known:
        numbers = {str(number): lineage for number, lineage in versions.items()}
        there: dict[str, list[str]] = {}
        for each in model.served:
            own = each.url.removeprefix(f"{model.directory}/") if model.directory else ""
            for version in (own,) if own in numbers else each.versions:
                there.setdefault(version, []).append(f"{each}@{each.service.cluster}")
        for version in (*numbers, *(each for each in there if each not in numbers)):
            lineage = numbers.get(version, VersionLineage())
            found.append(
                {
                    "model": str(model),
                    "version": version,
                    "published": version in numbers,
                    "metrics": dict(lineage.metrics),
                    "cause": lineage.cause,
                    "commit": lineage.commit,
                    "parent": lineage.parent,
                    "datasets": dict(lineage.datasets),
                    "image": lineage.image or "",
                    "job": lineage.job or "",
                    "source": lineage.source,
                    "code": {} if lineage.code is None else lineage.code.model_dump(),
                    "ran": dict(lineage.ran),
                    "files": lineage.files,
                    "bytes": lineage.bytes,
                    "served": there.get(version, []),
                }
            )
    return found
