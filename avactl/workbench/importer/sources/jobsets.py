"""JobSets with one kind of workers → TrainingJobs."""

from __future__ import annotations

import copy
import re
from typing import Any

from avactl.workbench.importer.model import Body, GivenValue, ImportedSpec, ImportReader
from avactl.workbench.importer.sources.context import Context
from avactl.workbench.importer.sources.contracts import UnmetContract
from avactl.workbench.importer.sources.jobs import convert_job

_PLACE = "a TrainingJob would take its place"
_JOB: tuple[str | int, ...] = ("spec", "replicatedJobs", 0, "template", "spec")
_OPERATOR = re.compile(r"jobset\.(sigs|x-k8s)\.")


def convert_jobset(context: Context, reader: ImportReader) -> ImportedSpec | str:
    """Return the TrainingJob of a JobSet, or the reason why it stays a manifest."""
    given = reader.given
    jobs = given.get("spec", "replicatedJobs") or []
    if len(jobs) != 1:
        names = ", ".join(str(each.get("name")) for each in jobs)
        return f"{_PLACE}; it has the Jobs {names}, each with a program, and starts them by rules of JobSet"
    if jobs[0].get("replicas") not in (None, 1):
        return f"{_PLACE}; it has {jobs[0]['replicas']} Jobs of {jobs[0].get('name')}, whose pods are numbered in each"
    job = given.get(*_JOB)
    if not isinstance(job, dict):
        return f"{_PLACE}; its Job has no pods"
    policy = given.get("spec", "successPolicy") or {}
    if policy.get("operator", "All") != "All":
        return f"{_PLACE}; it has ended when any of its Jobs has"
    for key in ("coordinator", "volumeClaimPolicies"):
        if given.get("spec", key):
            return f"{_PLACE}; it has none for `{key}`"
    if given.get("spec", "failurePolicy", "rules"):
        return f"{_PLACE}; it has none for rules of `failurePolicy`"
    own = _as_job(given, job)
    inner = ImportReader(GivenValue(own, given.doc, given.path))
    inner.aliases = {("spec",): _JOB}
    _want_no_operator(own)
    network = given.get("spec", "network") or {}
    service = str(network.get("subdomain") or given.name)
    if network.get("enableDNSHostnames") is False:
        service = ""
    hosts = re.escape(f"{given.name}-{jobs[0].get('name')}-0")
    restarts = given.get("spec", "failurePolicy", "maxRestarts") or 0
    spec = convert_job(context, inner, hosts, service)
    if isinstance(spec, str):
        return f"{_PLACE}; {spec}"
    spec.spec["retries"] = min(int(restarts), 1000)
    for key in ("suspend", "ttlSecondsAfterFinished"):
        reader.take("spec", key)
    for index, each in enumerate(given.get("spec", "replicatedJobs")):
        if (each.get("template") or {}).get("metadata"):
            at = ("spec", "replicatedJobs", index, "template", "metadata")
            reader.lose(at, "the Job of the spec has the labels of the JobSet", "add it by `patches`")
    for key in ("replicatedJobs", "successPolicy", "network", "startupPolicy"):
        reader.take("spec", key)
    reader.take("spec", "failurePolicy", "maxRestarts")
    for key in ("apiVersion", "kind", "metadata", "status"):
        reader.take(key)
    limit = job.get("backoffLimit")
    if limit != 0:
        told = "6, the default" if limit is None else limit
        why = f"all pods start again together, {restarts} times; the Job restarts each pod by itself, {told} times"
        inner.note(("spec", "backoffLimit") if limit is not None else ("spec",), why, "set `retries`")
    reader.lose_rest("a TrainingJob has no key for it", "")
    spec.losses += reader.losses
    return spec


def _as_job(given: GivenValue, job: Body) -> Body:
    """Return the Job that the operator makes, with the JobSet's name."""
    spec: Body = copy.deepcopy(job)
    spec.setdefault("completionMode", "Indexed")
    for key in ("suspend", "ttlSecondsAfterFinished"):
        if given.get("spec", key) is not None:
            spec[key] = given.get("spec", key)
    metadata = copy.deepcopy(given.value["metadata"])
    return {**given.value, "metadata": metadata, "spec": {**spec, "backoffLimit": 0}}


def _want_no_operator(value: Any) -> None:
    """Raise UnmetContract for a pod that reads labels or annotations of the operator."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "fieldPath" and _OPERATOR.search(str(inner)):
                raise UnmetContract(f"{_PLACE}; its pods read `{inner}`, which JobSet sets")
            _want_no_operator(inner)
    elif isinstance(value, list):
        for inner in value:
            _want_no_operator(inner)
