"""Applies the patches of specs to their objects."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from avactl.compiler.patches.limits import refusals, target_refusal
from avactl.compiler.patches.merge import PatchError, changed_paths, json_patched, strategic_merge
from avactl.contracts.pod_annotations import CONFIG_DIGEST, RUN_DIGEST
from avactl.diagnostics import Diagnostic
from avactl.diagnostics.suggest import did_you_mean, one_of
from avactl.program import kubernetes_schema
from avactl.program.kubernetes_schema import rules
from avactl.program.lowering import k8s
from avactl.program.manifest import Manifest, Patched, templates_of, without_nulls
from avactl.program.program import Item, Program
from avactl.program.refused import RefusedError
from avactl.spec.schema.base import Patch

COMPONENT = "app.kubernetes.io/component"
_MAX_PROBLEMS = 50
"""Problems reported per patch and object."""
_DIGEST_ANNOTATIONS = (RUN_DIGEST.name, CONFIG_DIGEST.name)
"""Annotations with digests of what pods are started with: a patch changes them too."""


def with_patches(item: Item, program: Program, manifests: list[Manifest]) -> list[Manifest]:
    """Apply the patches of a spec to its objects, in their order. Raises RefusedError."""
    patches = item.resource.patches
    if not patches:
        return manifests
    problems: list[Diagnostic] = []
    changed: list[Any] = []
    for index, patch in enumerate(patches):
        path = ("patches", index)
        if (patch.merge is None) == (patch.json_patch is None):
            hint = "write `merge: {…}`, or `jsonPatch: [{op: …, path: …}]`"
            span = item.span(*path)
            problems.append(Diagnostic("missing-key", "a patch has one of `merge` and `jsonPatch`", span, hint=hint))
            continue
        targets = [each for each in manifests if _patch_matches(patch, each)]
        if not targets:
            problems.append(_no_target(item, patch, index, manifests))
            continue
        found = [_apply_patch(item, program, patch, index, each) for each in targets]
        own = [problem for problems_of, _ in found for problem in problems_of]
        problems += own
        if not any(did for _, did in found) and not own:
            span, hint = item.span(*path, key=True), "the objects have these values without it; remove it"
            problems.append(Diagnostic("patch-without-effect", "the patch changes nothing", span, hint=hint))
        if any(did for _, did in found):
            changed += [patch.model_dump(mode="json", by_alias=True, exclude_none=True)]
    if problems:
        raise RefusedError(problems)
    _renew_digests(manifests, changed)
    return manifests


def _manifest_role(manifest: Manifest) -> str:
    return str((manifest.body["metadata"].get("labels") or {}).get(COMPONENT, ""))


def _patch_matches(patch: Patch, manifest: Manifest) -> bool:
    target = patch.target
    return (
        manifest.kind == target.kind
        and target.name in (None, manifest.name)
        and target.role in (None, _manifest_role(manifest))
    )


def _no_target(item: Item, patch: Patch, index: int, manifests: list[Manifest]) -> Diagnostic:
    target = patch.target
    same = [each for each in manifests if each.kind == target.kind]
    key, hint = "kind", did_you_mean(target.kind, sorted({each.kind for each in manifests}), "kinds of its objects")
    if same and target.role is not None and target.role not in map(_manifest_role, same):
        roles = sorted({_manifest_role(each) for each in same} - {""})
        key, hint = "role", did_you_mean(target.role, roles, "roles") if roles else "remove `role`"
    elif same:
        key, hint = "name", f"its names: {one_of(sorted(each.name for each in same))}"
    message = f"{item} compiles to no object that the patch matches"
    return Diagnostic("patch-without-target", message, item.span("patches", index, "target", key), hint=hint)


def _apply_patch(
    item: Item, program: Program, patch: Patch, index: int, manifest: Manifest
) -> tuple[list[Diagnostic], bool]:
    """Apply a patch to one object; return the problems, and True if it changed something."""
    where: tuple[str | int, ...] = ("patches", index, "merge" if patch.merge is not None else "jsonPatch")
    reason = target_refusal(item, program, manifest)
    if reason:
        span, hint = item.span("patches", index, "target", "kind"), "remove the patch"
        return [Diagnostic("patch-not-allowed", f"{manifest.id}: {reason}", span, hint=hint)], False
    known = kubernetes_schema.find(manifest.body["apiVersion"], manifest.kind)
    schema = known or kubernetes_schema.ANY
    try:
        if patch.merge is not None:
            new = strategic_merge(schema, manifest.body, patch.merge)
        else:
            new = json_patched(manifest.body, patch.json_patch or ())
            new = without_nulls(new) if known else new
    except PatchError as error:
        span = item.span(*where, *error.path)
        return [Diagnostic("patch-invalid", f"{manifest.id}: {error}", span, hint=error.hint)], False
    problems = list(islice(_new_violations(item, manifest, schema, new, where), _MAX_PROBLEMS))
    if not problems:
        for refusal in refusals(item, program, manifest, new):
            span = item.span(*where, *_in_patch(item, where, refusal.path))
            message = f"{manifest.id}: {refusal.message}"
            problems.append(Diagnostic("patch-not-allowed", message, span, hint=refusal.hint))
    paths = changed_paths(manifest.body, new)
    if not problems and paths:
        manifest.body = new
        manifest.patched = (*manifest.patched, *(Patched(path, index) for path in paths))
    return problems, bool(paths)


def _new_violations(
    item: Item, manifest: Manifest, schema: kubernetes_schema.Schema, new: Any, where: tuple[str | int, ...]
) -> Iterator[Diagnostic]:
    """Yield what the patched object violates of Kubernetes' schema and rules, and the compiled one does not."""
    wrong = list(islice(kubernetes_schema.schema_violations(schema, new), _MAX_PROBLEMS))
    if not wrong and schema is not kubernetes_schema.ANY:
        before = {refusal.message for refusal in rules.rule_violations(manifest.body)}
        wrong = [refusal for refusal in rules.rule_violations(new) if refusal.message not in before]
    for found in wrong:
        names = _by_name(new, found.path)
        message = f"{manifest.id}: `{'.'.join(names) or manifest.kind}`: {found.message}"
        inside = _in_patch(item, where, names)
        span = item.span(*where, *inside, key=len(inside) == len(names) and found.at_key)
        yield Diagnostic("patch-invalid", message, span, hint=found.hint)


def _by_name(value: Any, path: tuple[str | int, ...]) -> tuple[str, ...]:
    """Return a path with the names of entries in place of their indexes."""
    found: list[str] = []
    for step in path:
        if isinstance(value, list) and isinstance(step, int):
            value = value[step]
        else:
            value = value.get(step) if isinstance(value, dict) else None
        named = isinstance(step, int) and isinstance(value, dict) and "name" in value
        found.append(str(value["name"]) if named and isinstance(value, dict) else str(step))
    return tuple(found)


def _in_patch(item: Item, where: tuple[str | int, ...], path: tuple[str, ...]) -> tuple[str | int, ...]:
    """Return the part of an object's path that a patch has."""
    if where[-1] == "jsonPatch":
        pointer = "/" + "/".join(path)
        operations = item.doc.get(*where) or ()
        paths = [str(each.get("path", "")) if isinstance(each, dict) else "" for each in operations]
        near = [index for index, each in enumerate(paths) if pointer.startswith(each) or each.startswith(pointer)]
        return (near[-1] if near else max(len(paths) - 1, 0), "path")
    value, found = item.doc.get(*where), list[str | int]()
    for step in path:
        if isinstance(value, dict) and step == "initContainers" and step not in value:
            step = "containers"
        if isinstance(value, dict) and step in value:
            value = value[step]
            found.append(step)
        elif isinstance(value, list):
            names = [each.get("name") if isinstance(each, dict) else None for each in value]
            index = names.index(step) if step in names else 0
            value = value[index] if value else None
            found.append(index)
        else:
            break
    return tuple(found)


def _renew_digests(manifests: list[Manifest], changed: list[Any]) -> None:
    """Give digests of what pods are started with another value: a patched Job is a new run."""
    for manifest in manifests:
        templates = [template.get("metadata") or {} for _, template in templates_of(manifest.body)]
        holders = [manifest.body["metadata"], *templates]
        for holder in holders:
            notes = holder.get("annotations") or {}
            digests = {key: k8s.short_digest([notes[key], changed]) for key in _DIGEST_ANNOTATIONS if key in notes}
            if digests:
                holder["annotations"] = {**notes, **digests}
