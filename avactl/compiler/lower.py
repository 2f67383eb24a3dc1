"""Pass 6: lower specs to Kubernetes objects, with one pure function per kind."""

from __future__ import annotations

from dataclasses import replace

from pydantic import ValidationError

from avactl.compiler.internal_error import defect_diagnostic
from avactl.compiler.pass_state import PassState
from avactl.contracts.document import DocumentTooLargeError, exceeds_limits, explain
from avactl.contracts.names import SERVICE_VERSION
from avactl.diagnostics import Diagnostic
from avactl.program import registry
from avactl.program.lowering.gpu_request import hide_amd_devices, uses_amd_gpus
from avactl.program.lowering.k8s import short_digest
from avactl.program.manifest import Body, Manifest, templates_of
from avactl.program.program import Item, Program
from avactl.program.refused import RefusedError


def objects_of(item: Item, program: Program) -> list[Manifest]:
    """Return the objects of one spec with its patches.

    Raises RefusedError for objects that are not allowed, and for a document that no daemon would read.
    """
    try:
        manifests = registry.get_kind(item.kind).lower(item, program)
        _hide_amd_devices(item, program, manifests)
        return _label_versions(apply_patches(item, program, manifests))
    except DocumentTooLargeError as error:
        raise RefusedError([_beyond_limits(item, str(error))]) from error
    except ValidationError as error:
        if not exceeds_limits(error):
            raise
        raise RefusedError([_beyond_limits(item, explain(error))]) from error


def _hide_amd_devices(item: Item, program: Program, manifests: list[Manifest]) -> None:
    if item.team is None:
        return
    for manifest in manifests:
        if uses_amd_gpus(program, manifest.cluster):
            for _, template in templates_of(manifest.body):
                hide_amd_devices(template["spec"])


def _label_versions(manifests: list[Manifest]) -> list[Manifest]:
    """Give the pods of objects that are rolled out together a label with the digest of all that they are made of."""
    together = [each for each in manifests if any(_awaits_version(template) for _, template in templates_of(each.body))]
    if together:
        made_of = [[each.name, {k: v for k, v in each.body["spec"].items() if k not in _SCALE}] for each in together]
        version = short_digest(made_of)
        for manifest in together:
            for _, template in templates_of(manifest.body):
                template["metadata"]["labels"][SERVICE_VERSION] = version
    return manifests


def _awaits_version(template: Body) -> bool:
    """Return True if lowering has left the label for this; manifests of users have any form."""
    labels = metadata.get("labels") if isinstance(metadata := template.get("metadata"), dict) else None
    return isinstance(labels, dict) and labels.get(SERVICE_VERSION) == ""


_SCALE = ("replicas", "rolloutStrategy")
"""Fields of a LeaderWorkerSet that may change without another version of its pods."""


def apply_patches(item: Item, program: Program, found: list[Manifest]) -> list[Manifest]:
    """Apply the patches of a spec to its objects. Raises RefusedError for those that are not allowed."""
    if not item.resource.patches:
        return found
    from avactl.compiler.patches.apply import with_patches  # most repositories have none

    return with_patches(item, program, found)


def _beyond_limits(item: Item, what: str) -> Diagnostic:
    """Return the diagnostic for a spec whose documents no daemon would read, since they have bounds."""
    message = f"{item} is larger than what the daemons of avactl read: {what}"
    return Diagnostic("beyond-limits", message, item.span("metadata", "name"), hint="make it smaller, or split it")


def lower(state: PassState) -> PassState:
    """Return the objects of all specs; none if there was an error, so that nothing is partially compiled."""
    program = state.program
    if program is None or state.failed:
        return state
    manifests: list[Manifest] = []
    problems: list[Diagnostic] = []
    for name in registry.kind_names():
        items = program.of(name)
        if items:
            for item in items:
                try:
                    manifests += objects_of(item, program)
                except RefusedError as refused:
                    problems += refused.problems
                except Exception as error:
                    problems.append(defect_diagnostic(item, error))
    if problems:
        return replace(state, diagnostics=state.diagnostics + tuple(problems))
    return replace(state, manifests=tuple(manifests))
