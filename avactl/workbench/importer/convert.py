"""Convert source objects to specs: the kind that fits, or a manifest as it is."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from avactl.program import kubernetes_schema
from avactl.workbench.importer.cleaning import clean_object
from avactl.workbench.importer.failures import READ_ERRORS, explain_failure
from avactl.workbench.importer.machines import assumed_machines, label_pools, settle_tolerations
from avactl.workbench.importer.model import (
    GivenValue,
    ImportedSpec,
    ImportOutcome,
    ImportReader,
    ImportResult,
    Loss,
    Mend,
    key_path,
    spec_name,
)
from avactl.workbench.importer.slurm import convert as slurm
from avactl.workbench.importer.slurm import script
from avactl.workbench.importer.sources import (
    jobs,
    jobsets,
    kserve,
    kubeflow,
    kueue,
    nodes,
    rollouts,
    services,
    tenants,
    volcano,
    workspaces,
)
from avactl.workbench.importer.sources.context import Context, ImportOptions
from avactl.workbench.importer.sources.contracts import UnmetContract
from avactl.workbench.importer.sources.metadata import list_hooks
from avactl.workbench.importer.sources.others import manifest_reason

_CONVERT: dict[tuple[str, str], Callable[[Context, ImportReader], ImportedSpec | str]] = {
    ("batch", "Job"): jobs.convert_job,
    ("kubeflow.org", "PyTorchJob"): kubeflow.convert_pytorch_job,
    ("kubeflow.org", "TFJob"): kubeflow.convert_tf_job,
    ("kubeflow.org", "MPIJob"): kubeflow.convert_mpi_job,
    ("trainer.kubeflow.org", "TrainJob"): kubeflow.train_job,
    ("batch.volcano.sh", "Job"): volcano.convert_volcano_job,
    ("jobset.x-k8s.io", "JobSet"): jobsets.convert_jobset,
    ("argoproj.io", "Rollout"): rollouts.convert_rollout,
    ("serving.kserve.io", "InferenceService"): kserve.convert_inference_service,
    ("apps", "Deployment"): lambda context, reader: (
        workspaces.convert_workspace(context, reader)
        if workspaces.is_editor(reader.given)
        else services.convert_deployment(context, reader)
    ),
    ("apps", "StatefulSet"): workspaces.convert_workspace,
    (script.GROUP, script.KIND): slurm.convert_script,
}
"""Kinds of workloads, by API group. All others stay manifests."""
_MADE_BY_CONTROLLERS = {
    ("", "Pod"): "a controller makes it",
    ("apps", "ReplicaSet"): "a controller makes it",
    ("apps", "ControllerRevision"): "a controller makes it",
    ("", "Endpoints"): "a controller makes it",
    ("discovery.k8s.io", "EndpointSlice"): "a controller makes it",
    ("", "Event"): "it is a record",
    ("events.k8s.io", "Event"): "it is a record",
    ("coordination.k8s.io", "Lease"): "a program holds it",
    ("batch", "Job"): "a CronJob makes it",
}
"""Kinds that controllers make, if the object has an owner."""


_NAMESPACED_KINDS = (
    "RayCluster",
    "RayJob",
    "RayService",
    "LocalQueue",
    "XGBoostJob",
    "PaddleJob",
    "JAXJob",
    "TrainingRuntime",
    "PodGroup",
    "InferenceService",
    "Notebook",
    "ServiceMonitor",
    "PodMonitor",
    "ScaledObject",
    "Certificate",
    "LeaderWorkerSet",
    "DisaggregatedSet",
    "InferencePool",
    "LLMInferenceService",
    "ServingRuntime",
    "AnalysisTemplate",
    "Dataset",
    "DataLoad",
    "AlluxioRuntime",
    "JuiceFSRuntime",
    "HTTPRoute",
    "GRPCRoute",
)
"""Kinds of operators whose objects are in namespaces."""


@dataclass
class Known:
    """Declarations of the repository that is imported into."""

    cluster: str = ""
    teams: dict[str, str] = field(default_factory=dict)
    """Namespace → team."""
    models: dict[str, str] = field(default_factory=dict)
    """GPU models of the cluster's pools → their extended resources."""
    taints: list[str] = field(default_factory=list)
    """Keys of the taints of the cluster's pools."""
    version: str = "1.36"
    """Kubernetes version, for a Cluster that the import writes."""


@dataclass
class Converted:
    """Specs, and the fate of each object."""

    specs: list[ImportedSpec]
    outcomes: list[ImportOutcome]


def convert_objects(objects: list[GivenValue], options: ImportOptions, known: Known) -> Converted:
    """Return the specs of all objects. An object that several manifests declare is the last one's."""
    for each in objects:
        if not each.namespace and _is_namespaced(each):
            each.value["metadata"]["namespace"] = options.namespace
    unique = {each.key: each for each in objects}
    context = Context(options, [], dict(known.teams))
    outcomes: list[ImportOutcome] = []
    for each in unique.values():
        reason = _left_out(each)
        if reason:
            outcomes.append(ImportOutcome(each, ImportResult.left_out, note=reason))
        else:
            context.objects.append(each)
    return _convert_all(context, options, known, outcomes)


def _is_namespaced(given: GivenValue) -> bool:
    """Return True for an object that is in a namespace, also if it names none."""
    known = kubernetes_schema.is_namespaced(str(given.value["apiVersion"]), given.kind)
    if known is None:
        return (given.group, given.kind) in _CONVERT or given.kind in _NAMESPACED_KINDS
    return known


def _convert_all(context: Context, options: ImportOptions, known: Known, outcomes: list[ImportOutcome]) -> Converted:
    machines = [each for each in context.objects if (each.group, each.kind) == ("", "Node")]
    others = set(context.objects) - set(machines)
    pools, no_pools = nodes.convert_nodes(machines, known.cluster)
    outcomes += no_pools
    rest = [each for each in context.objects if each in others]
    models = {**known.models, **nodes.declared_models(pools)}
    specs: list[ImportedSpec] = []
    reasons: dict[GivenValue, str] = {}
    if options.as_is:
        raw = rest
    else:
        queues = [each for each in rest if kueue.is_queue(each)]
        kueue.join_namespaces(context, queues)
        specs, reasons = _convert_workloads(context, rest)
        spaces = [
            each
            for each in rest
            if (each.group, each.kind) == ("", "Namespace")
            and not tenants.is_system(each.name)
            and each.name not in known.teams
        ]
        made: dict[str, ImportedSpec] = {}
        try:
            reasons |= kueue.convert_queues(context, queues, models, made)
        except READ_ERRORS as error:
            made.clear()
            reasons |= {each: explain_failure(each, error) for each in queues}
        limits = [
            each
            for each in rest
            if each.group == ""
            and each.kind in ("ResourceQuota", "LimitRange")
            and not tenants.is_system(each.namespace)
        ]
        tenants.add_quotas(context, limits, models, made)
        teams = tenants.make_teams(context, spaces)
        specs = [*teams, *made.values(), *specs]
        _drop_first_namespaces(context, specs)
        done = {given for spec in specs for given in spec.given}
        raw = [each for each in rest if each not in done]
    specs = [*pools, *specs]
    specs += assumed_machines(specs, known.cluster, models)
    pool_taints = {each["key"] for spec in pools for each in spec.spec.get("taints") or ()}
    settle_tolerations(specs, {*known.taints, *pool_taints})
    label_pools(specs)
    mends = mends_of(specs)
    for given in raw:
        if given.kind == script.KIND:
            outcomes.append(ImportOutcome(given, ImportResult.left_out, note=reasons.get(given, "")))
            continue
        spec = as_manifest(given)
        changed = mend_manifest(spec, mends.get(given, ()))
        specs.append(spec)
        how = ImportResult.approximated if changed else ImportResult.raw
        outcomes.append(ImportOutcome(given, how, spec, reasons.get(given) or manifest_reason(given)))
    outcomes += [_make_outcome(spec, given) for spec in specs if not spec.raw for given in spec.given]
    return Converted(specs, outcomes)


def _make_outcome(spec: ImportedSpec, given: GivenValue) -> ImportOutcome:
    if given is not spec.given[0] and spec.kind not in ("NodePool", "Team", "Quota"):
        return ImportOutcome(given, ImportResult.part, spec)
    changed = any(loss.source == str(given) for loss in spec.losses)
    return ImportOutcome(given, ImportResult.approximated if changed else ImportResult.carried, spec)


def _convert_workloads(context: Context, objects: list[GivenValue]) -> tuple[list[ImportedSpec], dict[GivenValue, str]]:
    specs: list[ImportedSpec] = []
    reasons: dict[GivenValue, str] = {}
    for given in objects:
        made = _CONVERT.get((given.group, given.kind))
        if made is None:
            continue
        if tenants.is_system(given.namespace) and given.namespace != "default":
            reasons[given] = "its namespace is the cluster's own"
            continue
        # Reading takes defaults out, so it reads a copy.
        reader = ImportReader(GivenValue(copy.deepcopy(given.value), given.doc, given.path))
        used = set(context.used)
        try:
            found = made(context, reader)
        except UnmetContract as reason:
            context.used = used
            found = str(reason)
        except READ_ERRORS as error:
            context.used = used
            found = explain_failure(given, error)
        if isinstance(found, str):
            reasons[given] = found
        else:
            found.given[0] = given
            specs.append(found)
    return specs, reasons


def _drop_first_namespaces(context: Context, specs: list[ImportedSpec]) -> None:
    """Leave out the namespace of specs in the first namespace of their team."""
    for spec in specs:
        own = context.namespaces.get(spec.team or "", [])
        known = [name for name, team in context.known.items() if team == spec.team]
        if spec.namespace in (known or own)[:1]:
            spec.namespace = None


def _left_out(given: GivenValue) -> str:
    owned = bool(given.get("metadata", "ownerReferences"))
    if owned and (given.group, given.kind) in _MADE_BY_CONTROLLERS:
        return _MADE_BY_CONTROLLERS[given.group, given.kind]
    if given.kind == "Secret" and given.group == "":
        return "a spec never holds a Secret: create it beforehand (`avactl secrets` prints the commands)"
    if given.kind == "Namespace" and given.name in tenants.SYSTEM:
        return "Kubernetes makes it"
    if given.kind == "ServiceAccount" and given.name == "default":
        return "Kubernetes makes it"
    if given.kind == "ConfigMap" and given.name == "kube-root-ca.crt":
        return "Kubernetes makes it"
    wrong = _schema_violation(given)
    if wrong:
        return wrong
    if given.kind in ("Endpoints", "EndpointSlice", "Event", "Lease", "ControllerRevision"):
        return "a program writes it"
    return ""


def _schema_violation(given: GivenValue) -> str:
    """Return the first violation of the kind's schema, as a reason; empty for kinds of operators."""
    schema = kubernetes_schema.find(str(given.value["apiVersion"]), given.kind)
    if schema is None:
        return ""
    body = {key: value for key, value in given.value.items() if key != "status" or given.kind == "Node"}
    found = next(iter(kubernetes_schema.schema_violations(schema, body)), None)
    if found is None:
        return ""
    return f"{given.span(*found.path)}: {found.message}" + (f" ({found.hint})" if found.hint else "")


def mends_of(specs: Iterable[ImportedSpec]) -> dict[GivenValue, list[Mend]]:
    """Return what changes in objects that stay manifests, because they refer to specs."""
    found: dict[GivenValue, list[Mend]] = {}
    for spec in specs:
        for mend in spec.mends:
            found.setdefault(mend.given, []).append(mend)
    return found


def mend_manifest(manifest: ImportedSpec, mends: Iterable[Mend]) -> bool:
    """Let a manifest refer to the objects of specs, and list how; return True if a value of it changed."""
    given, changed = manifest.given[0], False
    for mend in mends:
        if mend.value is not None:
            body: Any = manifest.spec["objects"][0]
            for step in mend.path[:-1]:
                body = body[step]
            body[mend.path[-1]] = mend.value
            changed = True
        span = given.span(*mend.path, key=isinstance(mend.path[-1], str))
        manifest.losses.append(Loss(span, str(given), key_path(mend.path), mend.why, mend.remedy))
    return changed


def as_manifest(given: GivenValue) -> ImportedSpec:
    """Return the spec that has an object as it is."""
    try:
        body = clean_object(given.value)
    except READ_ERRORS:
        body = copy.deepcopy(given.value)  # the compiler says what is wrong
    space = given.namespace
    name = spec_name("-".join(each for each in (given.kind.lower(), space, given.name) if each), 63)
    spec = ImportedSpec("KubernetesObjects", name, None, {"objects": [body]}, [given])
    if space:
        spec.spec = {"namespace": space, "objects": [body]}
        body["metadata"].pop("namespace", None)
    reader = ImportReader(given)
    list_hooks(reader)
    spec.losses = reader.losses
    spec.origins["spec", "objects", 0] = (given, ())
    return spec
