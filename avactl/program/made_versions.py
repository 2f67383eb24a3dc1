"""Versions of datasets that jobs make: pods that read one start when its Job has succeeded."""

from __future__ import annotations

from avactl.program import registry
from avactl.program.program import Item, Program
from avactl.program.workload import Lifecycle

DatasetKey = tuple[str, str, str]


def makers_of(program: Program, dataset: DatasetKey, version: str, reader: Item) -> list[str]:
    """Return the Jobs that make a version, in the namespace of a reader: only there pods can wait for them."""

    def read() -> dict[tuple[DatasetKey, str], list[tuple[str, str | None, tuple[str, ...]]]]:
        found: dict[tuple[DatasetKey, str], list[tuple[str, str | None, tuple[str, ...]]]] = {}
        for kind in registry.workload_kinds(Lifecycle.JOB):
            hooks = registry.get_kind(kind).workload
            makes = None if hooks is None else hooks.makes
            for item in program.of(kind) if makes is not None else ():
                made = makes(item, program) if makes is not None else None
                if made is not None:
                    found.setdefault((made.dataset, made.version), []).append((item.cluster, item.namespace, made.jobs))
        return found

    makers = program.memo("makers of versions", read).get((dataset, version), [])
    here = (reader.cluster, reader.namespace)
    return sorted(job for cluster, namespace, jobs in makers if (cluster, namespace) == here for job in jobs)
