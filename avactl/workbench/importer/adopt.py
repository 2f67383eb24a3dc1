"""Take ownership of live objects that were imported as they are, without a restart."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from avactl.apply.reconcile.actions import Action, ReconcileStep, plan
from avactl.apply.reconcile.apply import Applier, settle_comparisons
from avactl.apply.reconcile.desired import INVENTORY, Wanted, inventory_of, wanted_of
from avactl.apply.reconcile.diffing.field_policy import Hands
from avactl.apply.reconcile.diffing.managed_fields import format_path
from avactl.apply.reconcile.inventory import InventoryRecord, Records
from avactl.base.object_identity import Gvk
from avactl.change.diff import phrases
from avactl.change.diff.fields import object_differences
from avactl.change.diff.objects import field_changes
from avactl.contracts import names
from avactl.kube.client import ApiError, Client
from avactl.kube.object_client import ObjectClient
from avactl.workbench.importer.model import Body, ImportResult
from avactl.workbench.importer.session import Imported

_MAX_SHOWN = 5
"""Differences named per object."""
_ENGINE_ADOPTION = {
    "builtin": "`avactl reconcile` takes them over when it applies the specs",
    "flux": "Flux takes them over when it applies the rendered manifests",
    "argocd": "Argo CD takes them over when it applies the rendered manifests",
}
WRITES = "files"
"""The mode of a Cluster whose objects an import adopts itself."""


@dataclass
class Adoption:
    """The outcome for one object: owned, or the reason why it is not."""

    title: str
    reason: str = ""
    """Empty if it can be, or is, adopted."""
    done: bool = False


@dataclass
class Adopted:
    """The result for all objects."""

    objects: list[Adoption]
    later: str = ""
    """Why nothing was written although objects can be adopted; empty if they were."""


async def adopt_objects(client: Client, made: Imported) -> Adopted:
    """Adopt objects that compile to what is live, but for labels and annotations of their own.

    Each is applied on the server without effect first (dry run); objects whose spec or pod template would change are
    refused. Nothing is written if an engine follows a repository. Raises ApiError and UnreachableError.
    """
    api = ObjectClient(client, patience=15.0)
    changed = {
        outcome.spec.file for outcome in made.outcomes if outcome.spec and outcome.result is ImportResult.approximated
    }
    own = {spec.file: spec for spec in made.specs}
    wanted = [
        each
        for each in wanted_of(made.compilation, made.cluster, made.cluster)
        if (spec := own.get(each.manifest.item.doc.file)) is not None and (spec.raw or each.manifest.patch)
    ]
    unserved = await api.find_kinds({each.gvk for each in wanted})
    program = made.compilation.program
    cluster = program.cluster_spec(made.cluster)
    found: list[Adoption] = []
    steps: list[tuple[Adoption, ReconcileStep]] = []
    for each in wanted:
        adoption = Adoption(str(each))
        found.append(adoption)
        if each.gvk in unserved:
            adoption.reason = "the cluster does not serve its kind"
        elif each.manifest.item.doc.file in changed and not each.manifest.patch:
            adoption.reason = "its manifest differs from the source (see the list above)"
        else:
            step = await _adoption_step(api, each, adoption, made.cluster)
            if step is not None:
                steps.append((adoption, step))
    for outcome in made.outcomes:
        if outcome.spec is not None and not outcome.spec.raw and outcome.given.kind != "Node":
            found.append(Adoption(str(outcome.given), f"it became {outcome.spec}, which compiles to other objects"))
    later = await _reason_to_leave_to_engine(
        client, api, cluster.reconcile.mode, cluster.system_namespace, made.cluster
    )
    if later:
        return Adopted(found, later)
    await Applier(api, made.cluster, Hands()).run([step for _, step in steps])
    for adoption, step in steps:
        adoption.done, adoption.reason = not step.error, step.error
    return Adopted(found)


async def _reason_to_leave_to_engine(
    client: Client, api: ObjectClient, mode: str, namespace: str, inventory: str
) -> str:
    """Return the reason why an engine must adopt the objects, or an empty string."""
    if mode != WRITES:
        return _ENGINE_ADOPTION.get(
            mode, f"`reconcile.mode` of the Cluster is `{mode}`: its engine takes over what it applies"
        )
    await api.find_kinds({Gvk("v1", "ConfigMap")})
    record: InventoryRecord = await Records(api, namespace, inventory).read()
    if record.version:
        # A run that does not know the specs yet would prune what carries its label.
        return f"inventory {inventory} exists: commit the specs, and `avactl reconcile` takes the objects over"
    return ""


async def _adoption_step(api: ObjectClient, each: Wanted, adoption: Adoption, inventory: str) -> ReconcileStep | None:
    """Return the step that adopts an object; None with a reason if it would do more than that."""
    live = await api.get(each.gvk, each.key.namespace, each.key.name)
    if live is None:
        adoption.reason = "it is no longer in the cluster"
        return None
    if inventory_of(live) not in ("", inventory):
        adoption.reason = f"it belongs to inventory {inventory_of(live)}"
        return None
    (step,) = plan([each], {each.key: live}, inventory, InventoryRecord(), Hands(), take_over=True)
    if step.action not in (Action.change, Action.restore, Action.none):
        adoption.reason = step.error or step.reason or f"it would be a {step.action.value}"
        return None
    try:
        after = await api.apply(each.body, dry_run=True)
    except ApiError as error:
        adoption.reason = f"the API server refuses it: {error.message}"
        return None
    changes = object_differences(_adopted_content(live), _adopted_content(after))
    if changes:
        shown = [phrases.show_field(change) for change in field_changes(changes)]
        more = f" and {len(shown) - _MAX_SHOWN} more" if len(shown) > _MAX_SHOWN else ""
        adoption.reason = f"it would change: {'; '.join(shown[:_MAX_SHOWN])}{more}"
        return None
    await settle_comparisons(api, [step])
    removed = [format_path(each.path) for each in step.comparison.take_out if each.path[0] != "f:metadata"]
    if removed:
        adoption.reason = f"it would lose: {'; '.join(removed[:_MAX_SHOWN])}"
        return None
    return step


def _adopted_content(live: Body) -> Body:
    """Return an object without what adoption may change: bookkeeping, and labels and annotations of avactl."""
    body: Body = copy.deepcopy({key: value for key, value in live.items() if key not in ("status", "metadata")})
    metadata: dict[str, Any] = live["metadata"]
    for key in ("labels", "annotations"):
        kept = {
            name: value
            for name, value in (metadata.get(key) or {}).items()
            if not name.startswith(f"{names.GROUP}/") and name not in (names.MANAGED_BY, INVENTORY)
        }
        body[key] = {name: value for name, value in kept.items() if not name.startswith("pulumi.com/")}
    return body
