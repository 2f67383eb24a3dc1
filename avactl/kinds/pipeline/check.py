"""Checks of a pipeline: its trigger, training, validation, paths and service, alone and beside other pipelines."""

from __future__ import annotations

from collections.abc import Iterator

from avactl.diagnostics import Diagnostic, Note, Reference
from avactl.diagnostics.suggest import did_you_mean
from avactl.kinds.cluster.delivery import commit_place
from avactl.kinds.pipeline.service import service_problems
from avactl.kinds.pipeline.spec import Pipeline, PipelineSpec
from avactl.kinds.pipeline.steps import STEPS, step_name, versions_directory
from avactl.kinds.pipeline.training import (
    PREFIX,
    RUN,
    checkpoint_directory,
    job_owners,
    training_job,
    training_names,
    training_problems,
)
from avactl.kinds.pipeline.workload import validation_role
from avactl.kinds.team.buckets import bucket_problems, team_bucket, written_through
from avactl.kinds.training.spec import TrainingJob
from avactl.program import dataset_access
from avactl.program.capacity.capacity import gpu_problems
from avactl.program.checks.credentials import argument_problems, credential_problems
from avactl.program.checks.pod_settings import pod_problems
from avactl.program.checks.reserved_env import reserved_env_problems
from avactl.program.checks.words import variable_problems, word_problems
from avactl.program.dataset_access import mount_problems, read_problems
from avactl.program.images import require_image
from avactl.program.program import Item, Program
from avactl.program.unique_entries import check_duplicates
from avactl.spec.schema.compute import DatasetMount
from avactl.spec.schema.values import duration_seconds

_DEPLOY_PATH = ("spec", "deploy")
_MIN_INTERVAL_S = 60
"""Seconds between two runs by `checkpoint`, at least."""
_MAX_NAME_LENGTH = 52
"""Characters of the name of a CronJob. Source: pkg/apis/batch/validation of Kubernetes."""


def check(item: Item[PipelineSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield the problems of one pipeline."""
    yield from _check_daemon(item, program)
    yield from _check_trigger(item, program)
    yield from _check_job(item, program)
    yield from training_problems(item, program)
    yield from _check_source(item)
    yield from _check_validation(item, program)
    yield from _check_publish(item, program)
    yield from service_problems(item, program)
    longest = max([*(step_name(item, step) for step in STEPS), *training_names(item)], key=len)
    if len(longest) > _MAX_NAME_LENGTH:
        yield Diagnostic(
            "name-too-long",
            f"the CronJob `{longest}` would have {len(longest)} characters; the limit is {_MAX_NAME_LENGTH}",
            item.span("metadata", "name"),
            hint=f"shorten the pipeline's name by {len(longest) - _MAX_NAME_LENGTH}",
        )


def check_all(program: Program) -> Iterator[Diagnostic]:
    """Yield pipelines that publish to the same directory, or into that of another, or that deploy the same model."""
    pipelines = sorted(program.of_kind(Pipeline), key=lambda item: item.origin)
    for index, item in enumerate(pipelines):
        for other in pipelines[:index]:
            own, its = f"{versions_directory(item)}/", f"{versions_directory(other)}/"
            if own.startswith(its) or its.startswith(own):
                yield Diagnostic(
                    "published-twice",
                    f"{item} and {other} publish to the same place: their versions have the same numbers",
                    item.span("spec", "publish", "to"),
                    hint="give each pipeline a directory of its own",
                    notes=(Note(other.span("spec", "publish", "to"), str(other)),),
                )
                break
        mine = item.spec.deploy
        if mine is None:
            continue
        for other in pipelines[:index]:
            its_own = other.spec.deploy
            if (
                its_own is not None
                and other.team == item.team
                and (its_own.service, its_own.model) == (mine.service, mine.model)
            ):
                yield Diagnostic(
                    "published-twice",
                    f"{item} and {other} deploy the same model: each replaces what the other has deployed",
                    item.span("spec", "deploy", "service"),
                    hint="remove `deploy` from one of them, or name different models",
                    notes=(Note(other.span("spec", "deploy", "service"), str(other)),),
                )
                break


def _check_daemon(item: Item[PipelineSpec], program: Program) -> Iterator[Diagnostic]:
    cluster = program.cluster(item.cluster)
    note = (Note(cluster.span("spec", key=True), f"Cluster {cluster.name}"),)
    if not cluster.spec.daemons.delivery:
        yield Diagnostic(
            "missing-daemon",
            f"{item} needs the delivery daemon, which cluster {cluster.name} does not run",
            item.span("spec", key=True),
            hint=f"write `daemons: {{delivery: true}}` in Cluster {cluster.name}",
            notes=note,
        )
        return
    found = commit_place(cluster)
    if found is None or item.spec.deploy is None:
        return
    if not found.secret:
        yield Diagnostic(
            "missing-key",
            f"the delivery daemon of cluster {cluster.name} has no credentials to commit with",
            item.span(*_DEPLOY_PATH, key=True),
            hint="add `delivery: {secret: NAME}` to the Cluster: a Secret in its system namespace with the keys "
            "`username` and `password`",
            notes=note,
        )
    if item.spec.deploy.by == "pullRequest":
        explicit = item.doc.get(*_DEPLOY_PATH, "by") is not None
        span = item.span(*_DEPLOY_PATH, "by") if explicit else item.span(*_DEPLOY_PATH, key=True)
        yield from found.refuse_proposals(f"{item} deploys by pull request", "by: commit", span, note)


def _check_trigger(item: Item[PipelineSpec], program: Program) -> Iterator[Diagnostic]:
    trigger, path = item.spec.trigger, ("spec", "trigger")
    if trigger.dataset is not None:
        mount = DatasetMount(name=trigger.dataset.name)
        yield from read_problems(item, program, mount, (*path, "dataset"))
        yield from _check_reads_newest(item, program, trigger.dataset.name)
    if trigger.checkpoint is not None and duration_seconds(trigger.checkpoint.every) < _MIN_INTERVAL_S:
        yield Diagnostic(
            "invalid-value",
            f"trigger.checkpoint.every: {trigger.checkpoint.every} is too short to validate and deploy a model",
            item.span(*path, "checkpoint", "every"),
            hint="write `every: 1m` or more",
        )
    if (trigger.checkpoint is None) != (item.spec.train.job is None):
        if trigger.checkpoint is None:
            yield Diagnostic(
                "conflicting-keys",
                "`train.job` is a job that runs without end, which only `trigger: {checkpoint: …}` publishes from",
                item.span("spec", "train", "job"),
                hint="write `template` with the job's spec, or `trigger: {checkpoint: {every: 30m}}`",
            )
        else:
            yield Diagnostic(
                "conflicting-keys",
                "`trigger.checkpoint` publishes from a job that runs without end, and `train.template` is started anew",
                item.span("spec", "train", "template", key=True),
                hint="declare a TrainingJob and write `train: {job: NAME}`, or choose another trigger",
                notes=(Note(item.span(*path, "checkpoint", key=True), "the trigger"),),
            )


def _check_reads_newest(item: Item[PipelineSpec], program: Program, name: str) -> Iterator[Diagnostic]:
    """Yield a warning if the training does not read the newest version of the dataset `name`, which triggers it."""
    template = item.spec.train.template
    wanted = dataset_access.find(program, item.team, name)
    if template is None or wanted is None:
        return
    for index, mount in enumerate(template.datasets):
        if dataset_access.find(program, item.team, mount.name) is wanted:
            if mount.version is not None:
                yield Diagnostic(
                    "without-effect",
                    f"a new version of `{name}` starts a run that reads the old version `{mount.version}`",
                    item.span(*PREFIX, "datasets", index, "version"),
                    severity="warning",
                    hint="remove `version`: the newest is read",
                )
            return
    yield Diagnostic(
        "without-effect",
        f"a new version of `{name}` starts a run that does not read it",
        item.span("spec", "trigger", "dataset", "name"),
        severity="warning",
        hint=f"add `datasets: [{{name: {name}, mount: /data}}]` to the template",
    )


def _check_job(item: Item[PipelineSpec], program: Program) -> Iterator[Diagnostic]:
    name = item.spec.train.job
    if name is None:
        return
    job, span = training_job(item, program), item.span("spec", "train", "job")
    if job is None:
        if any(broken == name for _, broken in program.broken):
            return
        owner = next(iter(job_owners(name, program)), None)
        known = program.names(TrainingJob.KIND, item.team)
        yield Diagnostic(
            "missing-reference",
            f"team {item.team} has no training job `{name}`" + (f": it belongs to team {owner}" if owner else ""),
            span,
            hint="a pipeline publishes from jobs of its own team"
            if owner
            else did_you_mean(name, known, "jobs of the team")
            if known.words
            else "declare it",
            reference=Reference(TrainingJob.KIND, name, "" if owner else known.closest(name) or ""),
        )
        return
    note = (Note(job.span("metadata", "name"), "the job"),)
    if (job.cluster, job.ns) != (item.cluster, item.ns):
        yield Diagnostic(
            "other-cluster",
            f"{job} is in namespace {job.ns} of cluster {job.cluster}, and {item} in {item.ns} of {item.cluster}",
            span,
            hint="run both in one namespace of one cluster",
            notes=note,
        )
    if checkpoint_directory(item, program) is None:
        yield Diagnostic(
            "missing-key",
            f"{job} has no `checkpoint.path`, so there is nothing to publish",
            span,
            hint="add `checkpoint: {path: s3://BUCKET/DIRECTORY}` to the job",
            notes=note,
        )
    if item.spec.train.output is None:
        yield Diagnostic(
            "missing-key",
            f"{job} goes on writing while its directory is copied",
            span,
            hint='add `output` and `marker` to `train`: `output: "export/*"`, `marker: _SUCCESS`',
            notes=note,
        )
    elif "*" not in item.spec.train.output:
        yield Diagnostic(
            "invalid-value",
            f"spec.train.output: {job} writes `{item.spec.train.output}` again while it is copied",
            item.span("spec", "train", "output"),
            hint='let the job write a directory for each export, and write `output: "export/*"`, `marker: _SUCCESS`',
            notes=note,
        )
    for key, value, why in (
        ("suspended", job.spec.suspended, "is suspended, and saves nothing to publish"),
        ("schedule", job.spec.schedule, "runs at certain times, and saves nothing in between"),
        ("timeout", job.spec.timeout, "ends after its `timeout`, and then saves nothing more"),
    ):
        if value:
            yield Diagnostic(
                "without-effect",
                f"{job} {why}",
                span,
                severity="warning",
                hint=f"remove `{key}` from the job, or use `train.template` with another trigger",
                notes=(Note(job.span("spec", key, key=True), f"`{key}`"),),
            )


def _check_source(item: Item[PipelineSpec]) -> Iterator[Diagnostic]:
    train = item.spec.train
    if train.marker is not None and train.output is None:
        yield Diagnostic(
            "without-effect",
            "spec.train.marker has no effect without `output`: the whole directory is copied after training",
            item.span("spec", "train", "marker", key=True),
            severity="warning",
            hint="remove the key",
        )


def _check_validation(item: Item[PipelineSpec], program: Program) -> Iterator[Diagnostic]:
    spec, path = item.spec.validation, ("spec", "validation")
    yield from credential_problems(item, spec.env, (*path, "env"))
    yield from variable_problems(item, spec.env, (*path, "env"))
    yield from reserved_env_problems(item, spec.env, (*path, "env"))
    for key in ("command", "args"):
        yield from argument_problems(item, getattr(spec, key), (*path, key))
        yield from word_problems(item, getattr(spec, key), (*path, key))
    yield from check_duplicates(item, (*path, "metrics"), (metric.name for metric in spec.metrics), "metric")
    for index, metric in enumerate(spec.metrics):
        if metric.min is not None and metric.max is not None and metric.min > metric.max:
            yield Diagnostic(
                "conflicting-keys",
                f"metric `{metric.name}` has `min` above `max`: nothing passes",
                item.span(*path, "metrics", index, "min"),
                hint="exchange the two",
                notes=(Note(item.span(*path, "metrics", index, "max"), "`max`"),),
            )
        if metric.vs_live is not None and item.spec.deploy is None:
            yield Diagnostic(
                "without-effect",
                f"metric `{metric.name}`: without `deploy` no version is live, so `vsLive` always holds",
                item.span(*path, "metrics", index, "vsLive", key=True),
                severity="warning",
                hint="write `min` or `max`, or add `deploy`",
            )
        if metric.name == "live":
            yield Diagnostic(
                "invalid-value",
                "`live` is the key of the live version's metrics",
                item.span(*path, "metrics", index, "name"),
                hint="choose another name",
            )
    yield from mount_problems(item, program, spec.datasets, (*path, "datasets"))
    yield from pod_problems(item, program, spec.pod, (*path, "pod"), [spec.resources])
    role = validation_role(item)
    yield from gpu_problems(item, program, role.compute, role.path, 1)


def _check_publish(item: Item[PipelineSpec], program: Program) -> Iterator[Diagnostic]:
    path, url = ("spec", "publish", "to"), versions_directory(item)
    yield from require_image(item, program, "avactl", ("spec", "publish"))
    yield from bucket_problems(item, program, url, path, writes=True)
    if url.startswith("hdfs://"):
        yield Diagnostic(
            "invalid-value",
            "models are published to object stores, and `hdfs://` is a file system",
            item.span(*path),
            hint="use s3://, gs://, oss://, cos:// or kodo://",
        )
    source = checkpoint_directory(item, program)
    if source is None:
        return
    base = source.removesuffix(f"/{RUN}")
    at = (*PREFIX, "checkpoint", "path") if item.spec.train.template is not None else ("spec", "train", "job")
    if f"{url}/".startswith(f"{base}/") or f"{base}/".startswith(f"{url}/"):
        yield Diagnostic(
            "published-twice",
            f"models are published to `{url}`, and training writes to `{base}`: one is in the other",
            item.span(*path),
            hint="publish to a directory that nothing else writes",
            notes=(Note(item.span(*at), "where training writes"),),
        )
    yield from _check_pushed_output(item, program, base, at)
    secrets = [team_bucket(program, item, each) for each in (base, url)]
    names = [None if bucket is None else bucket.secret for bucket in secrets]
    if names[0] != names[1] and all(bucket is not None for bucket in secrets):
        yield Diagnostic(
            "bucket-access",
            f"the pod that publishes reads `{base}` with Secret `{names[0]}`, and writes `{url}` with `{names[1]}`: it "
            "has one set of credentials",
            item.span(*path),
            hint="publish to a bucket with the same Secret",
            notes=(Note(item.span(*at), "where training writes"),),
        )


def _check_pushed_output(item: Item, program: Program, base: str, at: tuple[str | int, ...]) -> Iterator[Diagnostic]:
    """Yield a problem if the model would be read from the object store before it is there."""
    through = written_through(program, item, base)
    if through is None:
        return
    tier, path = through
    if not (dataset_access.has_durable_store(tier) or dataset_access.may_hold_unpersisted(tier)):
        return
    yield Diagnostic(
        "unpushed-output",
        f"training writes to `{path}` on cache tier `{tier.spec_name}`, which copies files to the object store at some "
        f"later time (mode `{tier.spec.write_back.mode}`), and {item} reads `{base}` there when training has ended",
        item.span(*at),
        hint="train into a bucket of the team without `tier`: then the object store has the model when training ends",
        notes=(Note(tier.span("spec", "writeBack", "mode"), f"mode of CacheTier {tier.spec_name}"),),
    )
