"""Jobs that start after others: their order, and the annotation by which the scheduler keeps it."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator

from avactl.contracts.pod_annotations import AFTER
from avactl.diagnostics import Diagnostic, Note, Reference
from avactl.diagnostics.suggest import did_you_mean
from avactl.kinds.training.roles import job_parts, leading_jobs
from avactl.kinds.training.spec import TrainingJob, TrainingJobSpec
from avactl.program.dataset_access import mounted_versions
from avactl.program.made_versions import makers_of
from avactl.program.program import Item, Program
from avactl.program.unique_entries import check_duplicates
from avactl.spec.schema.reconcile_modes import STARTS_JOBS_AGAIN

_AFTER_PATH = ("spec", "after")


def dependency_annotation(item: Item[TrainingJobSpec], program: Program) -> dict[str, str]:
    """Return the annotation of pods that start after other jobs: the Jobs with which these end, and
    those that make the versions of datasets that it reads."""
    found = [program.get_kind(TrainingJob, name, item.team) for name in item.spec.after]
    jobs = {job for other in found for job in leading_jobs(other, job_parts(other.spec))}
    for dataset, version in mounted_versions(item, program):
        jobs.update(makers_of(program, dataset, version, item))
    return {AFTER.name: json.dumps(sorted(jobs), separators=(",", ":"))} if jobs else {}


def order_problems(item: Item[TrainingJobSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield the problems of `spec.after`."""
    if not item.spec.after:
        return
    yield from check_duplicates(item, _AFTER_PATH, item.spec.after, "job", key=None)
    known = program.names(item.kind, item.team)
    for index, name in enumerate(item.spec.after):
        span = item.span(*_AFTER_PATH, index)
        other = program.find_kind(TrainingJob, name, item.team)
        if other is None:
            if (item.kind, name) in program.broken:
                continue
            owner = next((each.team for each in program.of_kind(TrainingJob) if each.spec_name == name), None)
            message = f"team {item.team} has no {item.kind} `{name}`"
            meant = known.closest(name, item.spec_name)
            hint = (
                did_you_mean(name, known, "jobs of the team", item.spec_name) if len(known.words) > 1 else "declare it"
            )
            if owner is not None and meant is None:
                message += f": it belongs to team {owner}"
                hint = "jobs start after jobs of their own team; share the result as a dataset"
            about = Reference(item.kind, name, meant or "")
            yield Diagnostic("missing-reference", message, span, hint=hint, reference=about)
        else:
            yield from _other_problem(item, program, other, index)
    yield from _check_cycle(item, program)
    cluster = program.cluster(item.cluster)
    if not cluster.spec.daemons.scheduler:
        yield Diagnostic(
            "missing-daemon",
            f"`after` needs the daemon `scheduler`, which cluster {cluster.name} does not run",
            item.span(*_AFTER_PATH, key=True),
            hint=f"write `daemons: {{scheduler: true}}` in Cluster {cluster.name}",
            notes=(Note(cluster.span("metadata", "name"), "the cluster"),),
        )


def _other_problem(
    item: Item[TrainingJobSpec], program: Program, other: Item[TrainingJobSpec], index: int
) -> Iterator[Diagnostic]:
    span, note = item.span(*_AFTER_PATH, index), Note(other.span("metadata", "name"), "declared here")
    for what, own, its in (("cluster", item.cluster, other.cluster), ("namespace", item.ns, other.ns)):
        if own != its:
            message = f"{other} is in {what} {its}, and {item} in {own}"
            hint = f"run both in one {what}: Jobs are waited for in the {what} of the pods"
            yield Diagnostic("other-cluster", message, span, hint=hint, notes=(note,))
            return
    if other.spec.schedule is not None:
        yield Diagnostic(
            "conflicting-keys",
            f"{other} has a schedule, so it never ends for good",
            span,
            hint="give this job a schedule of its own, at a later time",
            notes=(Note(other.span("spec", "schedule", key=True), "its schedule"),),
        )
    cluster = program.cluster_spec(item.cluster)
    ttl = other.spec.ttl or cluster.default_job_ttl
    if ttl is not None and cluster.reconcile.mode not in STARTS_JOBS_AGAIN:
        where = (
            other.span("spec", "ttl") if other.spec.ttl else program.cluster(item.cluster).span("spec", "defaultJobTtl")
        )
        yield Diagnostic(
            "dependency-expires",
            f"{other} is deleted {ttl} after its end: if {item} starts later, it waits for ever",
            span,
            severity="warning",
            hint="remove the ttl, by `ttl: null` if it is inherited; the Job is deleted with its spec",
            notes=(Note(where, "its ttl"),),
        )


def _check_cycle(item: Item[TrainingJobSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield the cycle that a job is the first of, in reading order."""
    before: dict[str, str | None] = dict.fromkeys(item.spec.after)  # each job once, and the one that names it
    pending = deque(before)
    while pending:
        name = pending.popleft()
        other = program.find_kind(TrainingJob, name, item.team)
        if other is item:
            path = [item, *_dependency_path(item, program, before, name)]
            if item.origin == min(each.origin for each in path):
                words = " after ".join(f"`{each.spec_name}`" for each in (*path, item))
                yield Diagnostic(
                    "dependency-cycle",
                    f"no job of the cycle ever starts: {words}",
                    item.span(*_AFTER_PATH, key=True),
                    hint="remove one of the entries",
                    notes=tuple(Note(each.span(*_AFTER_PATH, key=True), str(each)) for each in path[1:]),
                )
            return
        for following in other.spec.after if other is not None else ():
            if following not in before:
                before[following] = name
                pending.append(following)


def _dependency_path(
    item: Item[TrainingJobSpec], program: Program, before: dict[str, str | None], name: str
) -> list[Item[TrainingJobSpec]]:
    """Return the jobs on the way to a name, the first that `item` names first."""
    found = []
    at = before[name]
    while at is not None:
        found.append(program.get_kind(TrainingJob, at, item.team))
        at = before[at]
    return found[::-1]
