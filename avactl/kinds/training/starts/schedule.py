"""Jobs that run by a schedule: the CronJob around the Job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from avactl.diagnostics import Diagnostic
from avactl.kinds.training.spec import TrainingJobSpec
from avactl.program.lowering.k8s import drop_none
from avactl.program.manifest import Body
from avactl.program.program import Item
from avactl.spec.schema.schedules import Schedule
from avactl.spec.schema.values import duration_seconds

_MAX_NAME_LENGTH = 52
"""Characters of the name of a CronJob: its Jobs add eleven. Source: pkg/apis/batch/validation"""


def cron_job(schedule: Schedule, job: Body, metadata: Body, suspended: bool) -> Body:
    """Return the spec of a CronJob with the spec of its Jobs and their metadata."""
    deadline = schedule.starting_deadline
    return drop_none(
        schedule=schedule.cron,
        timeZone=schedule.time_zone,
        concurrencyPolicy=schedule.concurrency_policy,
        startingDeadlineSeconds=None if deadline is None else max(10, ceil(duration_seconds(deadline))),
        successfulJobsHistoryLimit=schedule.keep_succeeded,
        failedJobsHistoryLimit=schedule.keep_failed,
        suspend=True if suspended else None,
        jobTemplate={"metadata": metadata, "spec": job},
    )


def schedule_problems(item: Item[TrainingJobSpec], name: str, jobs: Sequence[tuple[str, int]]) -> Iterator[Diagnostic]:
    """Yield the problems of `spec.schedule`; `name` is that of the CronJob, `jobs` has each Job's role and pods."""
    spec, path = item.spec, ("spec", "schedule")
    if spec.schedule is None:
        return
    if spec.strategy != "single":
        pods = sum(count for _, count in jobs)
        roles = ", ".join(f"`{role}`" for role, _ in jobs)
        if len(jobs) > 1:
            why = f"it has a Job for each of {roles}, and a CronJob starts one Job"
        elif pods == 1:
            why = "its pod has its address from the name of its Job, which is another one in each run"
        else:
            count = f"{pods} " if pods else ""
            why = f"its {count}pods find each other by the name of their Job, which is another one in each run"
        one = "write `strategy: single`" + ("" if pods == 1 else ", with all GPUs of a machine in `workers.gpus`")
        rest = (
            ""
            if pods == 1
            else f"; or let CI start each run: `avactl set {item.doc.file} --name {item.spec_name} spec.env.RUN=DATE`"
        )
        yield Diagnostic(
            "wrong-strategy",
            f"a job of strategy `{spec.strategy}` has no schedule: {why}",
            item.span(*path, key=True),
            hint=one + rest,
        )
    for key, why in (
        ("after", "starts at its times, and after no other job"),
        ("ttl", "keeps its runs by `keepSucceeded` and `keepFailed`"),
    ):
        if getattr(spec, key):
            yield Diagnostic(
                "conflicting-keys",
                f"`{key}` and `schedule` exclude each other: a job with a schedule {why}",
                item.span("spec", key, key=True),
                hint=f"remove `{key}`",
            )
    if spec.on_change == "finish":
        yield Diagnostic(
            "without-effect",
            "spec.onChange has no effect: a change of a job with a schedule is for its next run",
            item.span("spec", "onChange"),
            severity="warning",
            hint="remove the key",
        )
    if len(name) > _MAX_NAME_LENGTH:
        yield Diagnostic(
            "name-too-long",
            f"the CronJob `{name}` would have {len(name)} characters; the limit is {_MAX_NAME_LENGTH}",
            item.span("metadata", "name"),
            hint=f"shorten the job's name by {len(name) - _MAX_NAME_LENGTH}",
        )
