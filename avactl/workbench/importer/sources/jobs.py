"""Jobs of Kubernetes → TrainingJobs, if they train."""

from __future__ import annotations

import re

from avactl.contracts.names import GPU_RESOURCES
from avactl.workbench.importer.model import ImportedSpec, ImportReader, spec_name
from avactl.workbench.importer.sources.context import Context
from avactl.workbench.importer.sources.contracts import indexed_job_contract, job_names
from avactl.workbench.importer.sources.metadata import CARRIED, take_common
from avactl.workbench.importer.sources.pods import Pod
from avactl.workbench.importer.sources.training import (
    format_seconds,
    framework_of,
    framework_of_pods,
    make_training_job,
    read_role,
)

_TEMPLATE_PATH = ("spec", "template")


def is_training(reader: ImportReader) -> bool:
    """Return True for a Job with GPUs, or several workers that find each other by their index."""
    given = reader.given
    containers = given.get(*_TEMPLATE_PATH, "spec", "containers") or ()
    limits = [((each.get("resources") or {}).get("limits") or {}) for each in containers if isinstance(each, dict)]
    return any(name in each for each in limits for name in GPU_RESOURCES) or (
        given.get("spec", "completionMode") == "Indexed" and (given.get("spec", "parallelism") or 1) > 1
    )


def convert_job(context: Context, reader: ImportReader, hosts: str = "", subdomain: str = "") -> ImportedSpec | str:
    """Return the TrainingJob of a Job, or the reason why it stays a manifest.

    `hosts`: pattern of its pods' host names without their index, if not that of a Job; `subdomain`: their domain.
    """
    given = reader.given
    if not is_training(reader):
        return "it requests no whole GPUs, and its pods are not indexed"
    parallelism = given.get("spec", "parallelism")
    pods = parallelism if isinstance(parallelism, int) else 1
    completions, mode = given.get("spec", "completions"), given.get("spec", "completionMode")
    if pods == 0:
        return "its `parallelism` is 0"
    if (completions or 1) != pods or (pods > 1 and mode != "Indexed"):
        return "its pods take work from a queue: `completions` is not `parallelism`, or they have no index"
    take_common(reader, CARRIED)
    for key in (
        "parallelism",
        "completions",
        "completionMode",
        "podReplacementPolicy",  # avactl waits for the former pod
        "selector",
    ):
        reader.take("spec", key)
    if given.get("spec", "manualSelector"):
        reader.lose(("spec", "selector"), "the selector of the job is generated", "")
    reader.take("spec", "manualSelector")
    if given.get("spec", "podFailurePolicy") is not None:
        why = "evicted pods do not count as failures; all other rules are dropped"
        reader.lose(("spec", "podFailurePolicy"), why, "set `retries`")
    if given.get("spec", "maxFailedIndexes") is not None:
        reader.lose(("spec", "maxFailedIndexes"), "the job ends as soon as one worker has failed for good", "")
    service = subdomain or reader.given.get(*_TEMPLATE_PATH, "spec", "subdomain")
    role = read_role(reader, "workers", pods, _TEMPLATE_PATH)
    indexed_job_contract(hosts or job_names(reader), re.escape(str(service or "")), pods, spec_name(given.name)).meet(
        reader, role.pod
    )
    retries = reader.take("spec", "backoffLimitPerIndex")
    limit = reader.take("spec", "backoffLimit")
    if retries is None and limit is not None:
        retries = limit
        if pods > 1 and limit:
            why = f"each worker is restarted {limit} times, and not all of them together"
            reader.lose(("spec", "backoffLimit"), why, "set `retries`")
    retries = 6 if retries is None else retries
    spec = make_training_job(
        context,
        reader,
        [role],
        framework=framework_of_pods(reader, role.pod, pods, framework_of(role.pod)),
        strategy="allReduce" if pods > 1 else "single",
        timeout=format_seconds(reader.take("spec", "activeDeadlineSeconds")),
        ttl=format_seconds(reader.take("spec", "ttlSecondsAfterFinished")),
        retries=min(int(retries), 1000),
        suspended=True if reader.take("spec", "suspend") else None,
    )
    _absorb_service(context, reader, spec, role.pod)
    reader.lose_rest("a TrainingJob has no key for it", "add it by `patches`")
    return spec


def _absorb_service(context: Context, reader: ImportReader, spec: ImportedSpec, pod: Pod) -> None:
    """Make the headless Service of an indexed Job part of the spec, which has one of its own."""
    subdomain = reader.given.get(*_TEMPLATE_PATH, "spec", "subdomain")
    for service in context.find("Service", reader.given.namespace, lambda each: each.name == subdomain):
        if service.get("spec", "clusterIP") == "None":
            context.used.add(service)
            spec.given.append(service)
            own = ImportReader(service)
            why = f"the job's own headless Service is `{spec.name}-rendezvous`; MASTER_ADDR and others name its pods"
            own.lose(("metadata", "name"), why, "use these variables in place of host names")
            own.lose(("spec",), "it takes the place of this Service, and has no ports", "")
            reader.losses += own.losses
    for name, value in pod.env.items():
        if subdomain and isinstance(value, str) and f".{subdomain}" in value:
            reader.lose(
                pod.paths["env", name],
                f"the value names a pod of the Service `{subdomain}`",
                "remove the variable: avactl sets MASTER_ADDR",
            )
            spec.spec["env"].pop(name, None)
    if spec.spec.get("env") == {}:
        del spec.spec["env"]
