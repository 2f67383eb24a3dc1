"""Rights that a change gives or takes.

For objects that are written as they are (KubernetesObjects), and for what patches set, the list is inverted: fields
that are known to be harmless are left out, all others are shown. Of the objects that avactl compiles from a spec, the
rights are listed that the spec may choose; the spec itself is shown whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from avactl.change.diff.model import Consequence
from avactl.change.diff.objects import Pair
from avactl.change.diff.rights.model import Right, Scope
from avactl.change.diff.rights.objects import DELETABLE, of_object
from avactl.change.diff.rights.text import compare_rights, list_rights
from avactl.program import dataset_access, registry
from avactl.program.manifest import Manifest
from avactl.program.program import Item, Program

_OF_COMPILED = frozenset(
    ("privileged", "host path", "host network", "Secret", "grants", "pod security", "reachable at", "volume")
)
_OF_TEAMS = frozenset(("runs", "may"))
"""Rights of compiled objects that are listed: of all, and of those of teams only."""


def security_consequences(
    old: Item | None, new: Item | None, pairs: Sequence[Pair], program: Program, explained: bool
) -> list[Consequence]:
    """Return the rights of a new spec, or the changed ones of another: one each, the gravest first.

    `explained`: the changed fields of the spec say what runs.
    """
    deleted = [pair.old for pair in pairs if pair.old is not None and pair.new is None and old and _as_written(old)]
    gone = [Consequence("security", f"deletes {each.id}", rank=-1) for each in deleted if each.kind not in DELETABLE]
    if new is None:
        return gone
    now = _collect_rights(new, [pair.new for pair in pairs if pair.new is not None], program)
    if old is None:
        return list_rights(now)
    before = _collect_rights(old, [pair.old for pair in pairs if pair.old is not None], program)
    # Of a compiled spec they are among its changed fields, which are shown one by one.
    omitted = () if _as_written(new) else ("env", "patches", "runs") if explained else ("env", "patches")
    return gone + compare_rights(*([each for each in side if each.what not in omitted] for side in (before, now)))


def _as_written(item: Item) -> bool:
    return registry.get_kind(item.kind).has_written


def _collect_rights(item: Item, manifests: Sequence[Manifest], program: Program) -> list[Right]:
    """Return the rights, each once."""
    given, platform = _spec_texts(item, program)
    found = [right for manifest in manifests for right in _of_manifest(item, manifest, given, platform)]
    for number, name in sorted({(each.number, manifest.kind) for manifest in manifests for each in manifest.patched}):
        span = item.span("patches", number)
        found.append(Right("patches", f"{name} ({span.file}:{span.line})"))
    if not _as_written(item) and any(right.what == "runs" for right in found):
        spec = item.resource.spec.model_dump(by_alias=True)
        found += [Right("env", value, name) for name, value in _environment_variables(spec)]
    for mount in dataset_access.dataset_mounts(item):
        dataset = dataset_access.find(program, item.team, mount.name)
        if dataset is not None and dataset.team not in (None, item.team):
            found.append(Right("data of", f"{dataset.team}/{dataset.spec_name}"))
    hooks = registry.get_kind(item.kind).workload
    if hooks is not None:
        found += [Right("open to team", team) for team in hooks.exposed_to(item)]
    return list({(each.what, each.subject, each.of, repr(each.value)): each for each in found}.values())


def _spec_texts(item: Item, program: Program) -> tuple[frozenset[str], frozenset[str]]:
    """Return the texts of a spec, and the images whose containers run avactl's commands."""
    if _as_written(item):
        return frozenset(), frozenset()
    spec = item.resource.spec.model_dump(by_alias=True)
    given = {*_nested_texts(spec), *_nested_texts([patch.model_dump(by_alias=True) for patch in item.resource.patches])}
    platform = {
        image
        for name in item.clusters
        if (cluster := program.find_cluster(name))
        for image in cluster.spec.images.model_dump().values()
    }
    # An image of the platform's that a spec names runs the spec's command.
    return frozenset(given), frozenset(platform - given)


def _of_manifest(item: Item, manifest: Manifest, given: frozenset[str], platform: frozenset[str]) -> Iterator[Right]:
    if _as_written(item):
        yield from of_object(Scope(manifest, compiled=False))
        return
    for right in of_object(Scope(manifest, compiled=True, platform=platform, given=given)):
        of_team = item.team is not None and right.what in _OF_TEAMS
        account = right.what == "service account" and (item.team is not None or not right.path)
        if right.what in _OF_COMPILED or of_team or account or _is_patched(manifest, right):
            yield right


def _is_patched(manifest: Manifest, right: Right) -> bool:
    """Return whether a patch sets the value that gives a right, or one around or inside of it."""
    return bool(right.path) and any(
        all(one == other for one, other in zip(right.path, each.path, strict=False)) for each in manifest.patched
    )


def _environment_variables(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the environment variables that a spec sets."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "env" and isinstance(inner, dict):
                yield from inner.items()
            else:
                yield from _environment_variables(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _environment_variables(inner)


def _nested_texts(value: Any) -> Iterator[str]:
    """Yield the texts in a value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _nested_texts(inner)
    elif isinstance(value, str):
        yield value
