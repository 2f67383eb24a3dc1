"""Choice of the job, and of the number of its workers."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, NamedTuple

from avactl.compiler.lower import objects_of
from avactl.diagnostics import Diagnostic
from avactl.diagnostics.suggest import closest_word
from avactl.program import registry
from avactl.program.local_run import LocalHooks
from avactl.program.manifest import Manifest
from avactl.program.program import Item
from avactl.workbench.local.errors import LocalUsageError

if TYPE_CHECKING:
    from avactl.compiler import Compilation
    from avactl.kinds.pipeline.spec import PipelineSpec

_MAX_SHOWN = 8
"""Most job names in a message."""


class Selected(NamedTuple):
    """A job that can run here."""

    item: Item
    hooks: LocalHooks[object]
    manifests: list[Manifest]
    """Its objects, with the number of workers asked for, and the ConfigMaps of its namespace."""


def select(compilation: Compilation, files: Collection[str], name: str = "", workers: int | None = None) -> Selected:
    """Return a job by `NAME` or `TEAM/NAME` among those of the given files; `files` empty: of all.

    Raises LocalUsageError.
    """
    jobs = {item: hooks for item in compilation.program.items if (hooks := _local_hooks(item)) is not None}
    there = [item for item in jobs if not files or item.doc.file in files]
    where = f"in {', '.join(sorted(files))}" if files else "in the repository"
    if not there:
        raise LocalUsageError(f"no job {where}", _suggest_names(jobs))
    found = [item for item in there if not name or name in (item.spec_name, f"{item.team}/{item.spec_name}")]
    if not found:
        near = closest_word(name, [item.spec_name for item in there])
        hint = f"did you mean `{near}`?" if near else f"jobs: {_item_names(there)}"
        raise LocalUsageError(f"no job {where} is named {name}", hint)
    if len(found) > 1:
        what = f"several jobs are named {name}" if name else f"several jobs {where}"
        raise LocalUsageError(what, f"add the name of one: {_item_names(found, team=bool(name))}")
    item = found[0]
    hooks = jobs[item]
    others = [
        each
        for each in compilation.manifests
        if each.item is not item and (each.kind, each.cluster, each.namespace) == ("ConfigMap", item.cluster, item.ns)
    ]
    if workers is None:
        return Selected(item, hooks, [*others, *(each for each in compilation.manifests if each.item is item)])
    changed = hooks.with_workers(item, workers)
    if isinstance(changed, Diagnostic):
        raise LocalUsageError(f"--workers {workers}: {changed.message}", changed.hint)
    return Selected(changed, hooks, [*others, *objects_of(changed, compilation.program)])


def select_pipelines(compilation: Compilation, files: Collection[str], name: str = "") -> list[Item[PipelineSpec]]:
    """Return the pipelines that a command means: of that name, or those of the files if these have no job."""

    from avactl.kinds.pipeline.spec import Pipeline

    def meant(item: Item) -> bool:
        there = not files or item.doc.file in files
        return there and (not name or name in (item.spec_name, f"{item.team}/{item.spec_name}"))

    if any(_local_hooks(item) is not None and meant(item) for item in compilation.program.items):
        return []
    return [item for item in compilation.program.of_kind(Pipeline) if meant(item)]


def _local_hooks(item: Item) -> LocalHooks[object] | None:
    workload = registry.get_kind(item.kind).workload
    return None if workload is None else workload.local


def _suggest_names(jobs: Iterable[Item]) -> str:
    files = sorted({item.doc.file for item in jobs})
    return f"files with jobs: {_join_names(files)}" if files else ""


def _item_names(items: Iterable[Item], team: bool = False) -> str:
    return _join_names([f"{item.team}/{item.spec_name}" if team else item.spec_name for item in items])


def _join_names(names: list[str]) -> str:
    shown = ", ".join(names[:_MAX_SHOWN])
    return shown if len(names) <= _MAX_SHOWN else f"{shown} … and {len(names) - _MAX_SHOWN} more"
