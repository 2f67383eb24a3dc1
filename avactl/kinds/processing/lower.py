"""ProcessingJob → the objects of an elastic job, and the list of its source's objects."""

from __future__ import annotations

import json

from avactl.contracts.pod_annotations import AFTER
from avactl.kinds.processing.job import find_versions, located_job, source_list_name
from avactl.kinds.processing.spec import ProcessingJobSpec
from avactl.kinds.training.lower import lower as lower_job
from avactl.program.dataset_listing import read_listing
from avactl.program.lowering import k8s
from avactl.program.made_versions import makers_of
from avactl.program.manifest import Manifest
from avactl.program.program import Item, Program


def lower(item: Item[ProcessingJobSpec], program: Program) -> list[Manifest]:
    """Return the objects of one processing."""
    job, versions = located_job(item, program), find_versions(item, program)
    if job is None or versions is None:
        raise LookupError(f"{item} has no versions")
    before = makers_of(program, versions.dataset.key, versions.source.name, item)
    found = []
    for manifest in lower_job(job, program):
        manifest.item = item
        if manifest.kind == "Job":
            # Pods that read the version wait for this Job, whenever they start.
            manifest.body["spec"].pop("ttlSecondsAfterFinished", None)
            if before:
                notes = manifest.body["spec"]["template"]["metadata"].setdefault("annotations", {})
                notes[AFTER.name] = json.dumps(before, separators=(",", ":"))
        found.append(manifest)
    source = versions.source
    listing = read_listing(versions.dataset, program, source) if source.manifest_url is None else None
    if listing is not None:
        data = {"manifest.jsonl": listing.data.decode()}
        found.append(k8s.config_map(item, item.cluster, source_list_name(item), item.ns, data, component="source"))
    return found
