"""Checks of a service's rollout: steps, the finest share, the daemon, the gateway, and where measurements come from."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from avactl.base.promql import confinement_problem, fill_placeholders, is_per_pod, syntax_problem
from avactl.diagnostics import Diagnostic, Note
from avactl.diagnostics.suggest import one_of
from avactl.kinds.serving.llm import has_groups
from avactl.kinds.serving.parts.rollout import Analysis, BlueGreen, Canary
from avactl.kinds.serving.queries import query_diagnostic
from avactl.kinds.serving.rollout.lower import LONGEST_NAME, chosen_strategy, has_gateway, key_of, traffic_division
from avactl.kinds.serving.rollout.rollback import rollback_problems
from avactl.kinds.serving.runtime import runtimes
from avactl.kinds.serving.spec import ServingDeploymentSpec
from avactl.program.capacity.capacity import gpu_problems
from avactl.program.checks.credentials import argument_problems, credential_problems
from avactl.program.checks.reserved_env import reserved_env_problems
from avactl.program.checks.words import word_problems
from avactl.program.program import Item, Program
from avactl.program.unique_entries import check_duplicates
from avactl.spec.schema.pod_requests import on_spot, with_pod
from avactl.spec.schema.values import duration_seconds

Path = tuple[str | int, ...]


def rollout_problems(item: Item[ServingDeploymentSpec], program: Program, least: int) -> Iterator[Diagnostic]:
    """Yield the problems of `spec.rollout`; `least` is the fewest pods of the service."""
    chosen = chosen_strategy(item.spec)
    if chosen is None:
        return
    key, way = key_of(chosen), traffic_division(item, program, chosen)
    grouped = has_groups(item.spec)  # `groups` has its own checks of shares
    path: Path = ("spec", "rollout", key)
    yield from _check_daemon(item, program, path)
    yield from rollback_problems(item, program, key)
    if len(item.name) > LONGEST_NAME:
        yield Diagnostic(
            "name-too-long",
            f"the Services of versions are `{item.name[:20]}…-HASH`: with `{path[-1]}`, a name has at most "
            f"{LONGEST_NAME} characters, and this has {len(item.name)}",
            item.span("metadata", "name"),
            hint=f"shorten the name by {len(item.name) - LONGEST_NAME}",
        )
    if isinstance(chosen, Canary):
        yield from _check_steps(item, chosen, path)
        if chosen.traffic == "gateway" and not has_gateway(item, program):
            yield _no_gateway(item, program, path)
        elif way == "replicas" and not grouped:
            yield from _check_shares(item, chosen, path, least)
        if chosen.in_place and least == 1 and way == "gateway" and not grouped:
            yield Diagnostic(
                "rollout-share",
                f"{item} has one pod, which would stop before the new version is ready",
                item.span(*path, "inPlace"),
                hint="write `replicas: 2` or more, or remove `inPlace`",
            )
    if chosen.analysis is not None:
        yield from _check_analysis(item, program, chosen.analysis, (*path, "analysis"))
    if not grouped:  # `maxSurge` groups more are checked without a canary, too
        yield from _check_capacity(item, program, chosen, path, least)


def _check_daemon(item: Item[ServingDeploymentSpec], program: Program, path: Path) -> Iterator[Diagnostic]:
    cluster = program.cluster(item.cluster)
    if not cluster.spec.daemons.serving:
        where = ("spec", "daemons") if "daemons" in cluster.spec.model_fields_set else ("spec",)
        yield Diagnostic(
            "missing-daemon",
            f"`{path[-1]}` needs the serving daemon, which cluster {cluster.name} does not run",
            item.span(*path, key=True),
            hint=f"write `daemons: {{serving: true}}` in Cluster {cluster.name}, or remove `rollout`",
            notes=(Note(cluster.span(*where, key=True), f"Cluster {cluster.name}"),),
        )


def _check_steps(item: Item[ServingDeploymentSpec], canary: Canary, path: Path) -> Iterator[Diagnostic]:
    before = 0
    for index, step in enumerate(canary.steps):
        if step.percent <= before:
            yield Diagnostic(
                "invalid-value",
                f"spec.rollout.canary.steps: {step.percent} percent follow {before}; each needs more than the last",
                item.span(*path, "steps", index, "percent"),
                hint=f"write {before + 1} or more, or remove the step" if before < 100 else "remove the step",
            )
        before = max(before, step.percent)


def _no_gateway(item: Item[ServingDeploymentSpec], program: Program, path: Path) -> Diagnostic:
    offered = program.cluster_spec(item.cluster).exposure
    if item.spec.expose is None:
        why, hint = f"{item} is not exposed", "add `expose: {host: …}`, or write `traffic: replicas`"
    else:
        how = "by an Ingress, which has no weights" if offered is not None else "nowhere"
        why, hint = f"{item} is exposed {how}", "write `traffic: replicas`, or give the cluster a `gateway`"
    return Diagnostic(
        "missing-gateway", f"requests cannot be divided by a gateway: {why}", item.span(*path, "traffic"), hint=hint
    )


def _check_shares(item: Item[ServingDeploymentSpec], canary: Canary, path: Path, least: int) -> Iterator[Diagnostic]:
    """Yield shares that a number of pods cannot have, and rollouts that can never begin."""
    where = item.span("spec", "replicas") if "replicas" in item.spec.model_fields_set else item.span(*path, key=True)
    if least == 1:
        yield Diagnostic(
            "rollout-share",
            f"{item} has one pod: by the number of pods, a new version gets all requests or none",
            where,
            hint="write `replicas: 2` or more, expose the service through a gateway, or use `blueGreen`",
        )
        return
    smallest = ceil(100 / least)
    first = canary.steps[0]
    if first.percent < smallest and round(least * first.percent / 100) < 1:
        yield Diagnostic(
            "rollout-share",
            f"{first.percent}% of {least} pods is less than one pod: the first step gets {smallest}% of the requests",
            item.span(*path, "steps", 0, "percent"),
            severity="warning",
            hint=f"write `percent: {smallest}`, or run {ceil(100 / first.percent)} pods",
        )
    if not item.spec.max_surge and not canary.in_place:
        yield Diagnostic(
            "conflicting-keys",
            "with `maxSurge: 0` a new pod starts only after an old one has stopped",
            item.span("spec", "maxSurge"),
            hint=f"add `inPlace: true` to `{path[-1]}`, or write `maxSurge: 1`",
        )


def _check_analysis(
    item: Item[ServingDeploymentSpec], program: Program, analysis: Analysis, path: Path
) -> Iterator[Diagnostic]:
    runtime = item.spec.runtime.name
    keys = {
        "errorRate": (analysis.error_rate, [name for name, each in runtimes().items() if each.error_rate]),
        "latency": (analysis.latency, [name for name, each in runtimes().items() if each.latency]),
    }
    for key, (value, known) in keys.items():
        if value is not None and runtime not in known:
            yield Diagnostic(
                "missing-metric",
                f"spec.{'.'.join(map(str, path[1:]))}.{key}: avactl knows no such metric of runtime `{runtime}`",
                item.span(*path, key),
                hint=f"measure it with `query`; avactl knows the metrics of {one_of(known)}",
            )
    yield from check_duplicates(item, (*path, "query"), (each.name for each in analysis.query), "query")
    yield from _check_query_scope(item, analysis, (*path, "query"))
    measured = next((key for key in ("errorRate", "latency") if keys[key][0] is not None), None)
    if measured is None and analysis.query:
        measured = "query"
    if measured is not None:
        yield from _check_monitoring(item, program, analysis, path, measured)
    if analysis.job is not None:
        job: Path = (*path, "job")
        yield from credential_problems(item, analysis.job.env, (*job, "env"))
        yield from reserved_env_problems(item, analysis.job.env, (*job, "env"))
        for key in ("command", "args"):
            yield from argument_problems(item, getattr(analysis.job, key), (*job, key))
            yield from word_problems(item, getattr(analysis.job, key), (*job, key))


def _check_query_scope(item: Item[ServingDeploymentSpec], analysis: Analysis, path: Path) -> Iterator[Diagnostic]:
    """Yield queries that read metrics of other teams, or that cannot be checked."""
    for index, query in enumerate(analysis.query):
        pods = f"{item.name}-x-[a-z0-9]+"
        promql = fill_placeholders(query.promql, item.ns, pods, float(duration_seconds(analysis.interval)))
        problem = confinement_problem(promql, item.ns) or syntax_problem(promql, pods)
        if problem is not None:
            yield query_diagnostic(item, query.name, problem, (*path, index, "promql"))
        elif is_per_pod(promql):
            yield Diagnostic(
                "invalid-query",
                f"query `{query.name}` has a result for each pod, and of several pods it cannot be compared",
                item.span(*path, index, "promql"),
                severity="warning",
                hint="aggregate them: `avg(…)`, `max(…)` or `sum(…)`",
            )


def _check_monitoring(
    item: Item[ServingDeploymentSpec], program: Program, analysis: Analysis, path: Path, measured: str
) -> Iterator[Diagnostic]:
    cluster = program.cluster(item.cluster)
    monitoring = cluster.spec.monitoring
    if monitoring is None or monitoring.prometheus is None:
        yield Diagnostic(
            "missing-monitoring",
            f"`{measured}` is measured by Prometheus, whose address cluster {cluster.name} does not declare",
            item.span(*path, measured, key=True),
            hint=f'add `monitoring: {{prometheus: "http://prometheus.monitoring:9090"}}` to Cluster {cluster.name}, or '
            "use a `job`",
            notes=(Note(cluster.span("metadata", "name"), "the cluster"),),
        )
        return
    shortest = 2 * duration_seconds(monitoring.interval)
    if duration_seconds(analysis.interval) < shortest:
        yield Diagnostic(
            "invalid-value",
            f"analysis.interval: Prometheus reads metrics every {monitoring.interval}, and a rate needs two of them",
            item.span(*path, "interval") if "interval" in analysis.model_fields_set else item.span(*path, key=True),
            hint=f"write `interval: {ceil(shortest)}s` or more",
            notes=(Note(cluster.span("spec", "monitoring", key=True), "the cluster's monitoring"),),
        )


def _check_capacity(
    item: Item[ServingDeploymentSpec], program: Program, chosen: Canary | BlueGreen, path: Path, least: int
) -> Iterator[Diagnostic]:
    """Yield rollouts that need both versions as a whole, on a cluster whose GPUs can never hold them."""
    spec = item.spec
    in_place = isinstance(chosen, Canary) and chosen.in_place
    if not spec.resources.gpus or in_place or traffic_division(item, program, chosen) == "replicas":
        return
    compute = on_spot(with_pod(spec.resources, spec.pod), spec.spot)

    def never(count: int) -> bool:
        found = gpu_problems(item, program, compute, ("spec", "resources"), count)
        return any(problem.severity == "error" for problem in found)

    if not never(least) and never(2 * least):
        yield Diagnostic(
            "replicas-do-not-fit",
            f"`{path[-1]}` needs {2 * least} pods at once, but the GPUs of cluster {item.cluster} cannot hold "
            "that many",
            item.span(*path, key=True),
            severity="warning",
            hint="write `inPlace: true`, which stops an old pod for each new one"
            if path[-1] == "canary"
            else "use `canary` with `inPlace: true`",
            notes=(Note(item.span("spec", "resources", key=True), f"{spec.resources.gpus} GPUs a pod"),),
        )
