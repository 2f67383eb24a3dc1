"""Pass 7: sort objects, reject duplicates, and add the reconciling engine's annotations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from avactl.base.object_identity import ObjectId
from avactl.compiler.pass_state import PassState
from avactl.contracts.names import ROLLOUT, TEMPLATE_DIGEST
from avactl.diagnostics import Diagnostic, Note
from avactl.program import registry
from avactl.program.autoscalers import REPLICAS, find_autoscaler
from avactl.program.kubernetes_schema import duplicate_violations
from avactl.program.lowering.k8s import short_digest
from avactl.program.manifest import Manifest, injected_ca_bundles, without_path
from avactl.program.program import Program
from avactl.spec.schema.reconcile_modes import PULUMI

APPLY_ORDER = (
    "Namespace",
    "CustomResourceDefinition",
    "PriorityClass",
    "StorageClass",
    "DeviceClass",
    "Node",
    "ServiceAccount",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "NetworkPolicy",
    "ResourceQuota",
    "LimitRange",
    "ConfigMap",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "ResourceClaimTemplate",
    "ComputeDomain",
    "Service",
    "PodDisruptionBudget",
    "DaemonSet",
    "StatefulSet",
    "Deployment",
    "LeaderWorkerSet",
    "DisaggregatedSet",
    "HorizontalPodAutoscaler",
    "ScaledObject",
    "InferencePool",
    "HTTPRoute",
    "GRPCRoute",
    "Ingress",
    "Job",
    "CronJob",
)
"""Apply order of objects: dependencies come first. Deletion uses the reverse order."""

_MAX_DUPLICATES = 10
"""Duplicate entries that are reported for an object."""

RANK = {kind: rank for rank, kind in enumerate(APPLY_ORDER)}


def apply_key(manifest: Manifest) -> tuple[str, int, str, str, str]:
    """Return the sort key of a manifest: cluster, apply rank, name. Unknown kinds go last."""
    return (manifest.cluster, RANK.get(manifest.kind, len(RANK)), manifest.kind, manifest.namespace, manifest.name)


def normalise(state: PassState) -> PassState:
    """Return the manifests in apply order; two specs that compile to one object are a problem."""
    if state.program is None or state.failed:
        return state
    problems: list[Diagnostic] = []
    claimed: dict[ObjectId, Manifest] = {}
    for manifest in state.manifests:
        other = claimed.setdefault(manifest.id, manifest)
        if other is not manifest:
            problems.append(_conflict_problem(manifest, other))
        else:
            problems += (problem for problem in refusals(manifest) if problem not in problems)
    problems += _taken_by_groups(claimed)
    if problems:
        return replace(state, manifests=(), diagnostics=state.diagnostics + tuple(problems))
    ordered = sorted(state.manifests, key=apply_key)
    for manifest in ordered:
        complete_manifest(manifest, state.program)
    return replace(state, manifests=tuple(ordered))


def longest_name(manifest: Manifest) -> int:
    """Maximum length of an object's name, given the names that Kubernetes derives from it."""
    if manifest.kind in ("Service", "Namespace", "Job"):
        return 63
    if manifest.kind == "StatefulSet":
        return 52  # the pods carry `NAME-<10-digit hash>` as a label
    if manifest.kind == "LeaderWorkerSet":
        return 48  # its controller makes a StatefulSet `NAME-<number>` for each group
    if manifest.kind == "DisaggregatedSet":
        # Its controller makes a LeaderWorkerSet `NAME-<slice>-<8-digit hash>-<role>`; before 0.10, without the slice.
        return 48 - len("-0-12345678-prefill")
    return 253


def _conflict_problem(manifest: Manifest, other: Manifest) -> Diagnostic:
    span, message = manifest.item.span("metadata", "name"), f"{manifest.item} compiles to {manifest.id}"
    if manifest.item is other.item:
        hint = "give the parts of the spec different names"
        return Diagnostic("object-conflict", f"{message} twice", span, hint=hint)
    message, note = f"{message}, which {other.item} also compiles to", other.item.span("metadata", "name")
    notes = (Note(note, "claimed here"),)
    return Diagnostic("object-conflict", message, span, hint="rename one of them", notes=notes)


_GROUP_POD_NAMES = {
    "LeaderWorkerSet": r"{}-\d+",
    "DisaggregatedSet": r"{}(-\d+)?-[0-9a-f]{{8}}-(prefill|decode)(-\d+|-prv)?",
}
"""Names of what their controller makes."""


def _taken_by_groups(claimed: dict[ObjectId, Manifest]) -> list[Diagnostic]:
    """Return the objects whose names the controller of a LeaderWorkerSet or DisaggregatedSet needs for its own.

    Sources: `pkg/controllers` of sigs.k8s.io/lws 0.9 and `pkg/utils/disaggregatedset` of 0.10: StatefulSets `NAME` and
    `NAME-<number>`, Services `NAME-<number>`; LeaderWorkerSets `NAME-<hash>-<role>`, Services `NAME-<hash>-<role>-prv`,
    since 0.10 with `-<slice>` after the name.
    """
    found = []
    for manifest in claimed.values():
        if manifest.kind not in _GROUP_POD_NAMES:
            continue
        numbered = re.compile(_GROUP_POD_NAMES[manifest.kind].format(re.escape(manifest.name))).fullmatch
        for other in claimed.values():
            same = (other.cluster, other.namespace) == (manifest.cluster, manifest.namespace)
            if not same or other.kind not in ("StatefulSet", "Service", "LeaderWorkerSet"):
                continue
            leads = manifest.kind == "LeaderWorkerSet" and other.kind == "StatefulSet" and other.name == manifest.name
            if leads or numbered(other.name):
                message = f"{other.item} compiles to {other.id}, which the groups of {manifest.id} need"
                notes = (Note(manifest.item.span("metadata", "name"), "these groups"),)
                span, hint = other.item.span("metadata", "name"), "rename one of them"
                found.append(Diagnostic("object-conflict", message, span, hint=hint, notes=notes))
    return found


def refusals(manifest: Manifest) -> Iterator[Diagnostic]:
    """Yield the reasons why no API server would take an object."""
    if len(manifest.name) > longest_name(manifest):
        yield _too_long(manifest)
    if registry.get_kind(manifest.item.kind).has_written:
        return  # its check has found them, each in its place
    item = manifest.item
    for violation in islice(duplicate_violations(manifest.body), _MAX_DUPLICATES):
        own = ("spec", "pod", *violation.path[-3:])  # most lists of pods are written where the spec sets its pods
        if item.doc.get(*own) is not None:
            yield Diagnostic("duplicate-entry", violation.message, item.span(*own), hint=violation.hint)
            continue
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in violation.path)
        message = f"{item} compiles to {manifest.id}, in which {violation.message}: {''.join(steps).lstrip('.')}"
        yield Diagnostic("duplicate-entry", message, item.span("metadata", "name"), hint=violation.hint)


def _too_long(manifest: Manifest) -> Diagnostic:
    longest, length = longest_name(manifest), len(manifest.name)
    message = f"the {manifest.kind} `{manifest.name}` would have {length} characters; the limit is {longest}"
    hint = f"shorten the name by {length - longest}"
    return Diagnostic("name-too-long", message, manifest.item.span("metadata", "name"), hint=hint)


def complete_manifest(manifest: Manifest, program: Program) -> None:
    """Leave out the fields that controllers own, and add the annotations of the cluster's engine."""
    _leave_owned_fields(manifest, program)
    _add_annotations(manifest, program)


def _leave_owned_fields(manifest: Manifest, program: Program) -> None:
    """Leave out what other controllers write: each apply of any engine would revert it."""
    spec = manifest.body.get("spec")
    replicas = spec.get("replicas") if isinstance(spec, dict) else None
    if replicas is not None and find_autoscaler(program, manifest.cluster, manifest.id.key, replicas):
        manifest.body = without_path(manifest.body, ("spec", "replicas"))
        manifest.owned = (*manifest.owned, REPLICAS)
    for path in injected_ca_bundles(manifest.body):
        manifest.body = without_path(manifest.body, path)


_DO_NOT_WAIT = {"pulumi.com/skipAwait": "true"}
_DELETE_AT_ONCE = {**_DO_NOT_WAIT, "pulumi.com/deletionPropagationPolicy": "background"}
_PULUMI_WAITS: dict[str, dict[str, str]] = {
    # Pulumi's own Stack object: waiting would wait for the update that applies it.
    **dict.fromkeys(("PersistentVolumeClaim", "Service", "Stack"), _DO_NOT_WAIT),
    # Without waiting, a replacement could only be created after the old object is gone, so delete it immediately.
    **dict.fromkeys(("DaemonSet", "StatefulSet", "Deployment", "LeaderWorkerSet", "DisaggregatedSet"), _DELETE_AT_ONCE),
    # A new run starts after the pods of the old one have ended: otherwise two runs would write one checkpoint.
    "Job": {"pulumi.com/waitFor": "jsonpath={.metadata.uid}"},
}
"""Pulumi waits until objects are ready: for a Job until it ends, for a claim until a pod mounts it. A stack update
only declares the desired state; a job that queues for GPUs must not block it."""


def _add_annotations(manifest: Manifest, program: Program) -> None:
    """Add the annotations that tell the cluster's engine what to keep, what not to wait for, and which Jobs to
    recreate on change."""
    mode = program.cluster_spec(manifest.cluster).reconcile.mode
    notes: dict[str, str] = {}
    if manifest.holds_data:
        notes["avactl.dev/holds-data"] = "true"
    if manifest.kind == "Deployment" and ROLLOUT in manifest.body["metadata"].get("annotations", {}):
        # With the patches of the spec, which are applied after its lowering.
        notes[TEMPLATE_DIGEST] = short_digest(manifest.body["spec"]["template"], 16)
    waits = _PULUMI_WAITS.get(manifest.kind, {}) if mode in PULUMI else {}
    if mode == "flux":
        if manifest.holds_data or manifest.patch:
            notes["kustomize.toolkit.fluxcd.io/prune"] = "disabled"
        if manifest.patch:  # a Node exists without avactl, which does not own its other fields
            notes["kustomize.toolkit.fluxcd.io/ssa"] = "Merge"
        if manifest.kind == "Job":
            notes["kustomize.toolkit.fluxcd.io/force"] = "enabled"
    elif mode == "argocd":
        if manifest.holds_data:
            notes["argocd.argoproj.io/sync-options"] = "Prune=false,Delete=false"
        elif manifest.patch:
            notes["argocd.argoproj.io/sync-options"] = "Prune=false,Delete=false,ServerSideApply=true"
        elif manifest.kind == "Job":
            notes["argocd.argoproj.io/sync-options"] = "Force=true,Replace=true"
    if notes or waits:
        metadata = manifest.body["metadata"]
        # A spec may opt in to waiting for its service.
        metadata["annotations"] = {**waits, **metadata.get("annotations", {}), **notes}
