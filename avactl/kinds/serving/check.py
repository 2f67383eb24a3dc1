"""Checks of a service, alone and on its cluster."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from avactl.diagnostics import Diagnostic, Note
from avactl.diagnostics.suggest import one_of
from avactl.kinds.serving.autoscaling import metric_problems, zero_problems
from avactl.kinds.serving.check_models import model_problems
from avactl.kinds.serving.groups import group_problems
from avactl.kinds.serving.llm import machines_per_replica
from avactl.kinds.serving.lower import KILL_AFTER, replica_bounds
from avactl.kinds.serving.parts.prefill import DECODE, PREFILL
from avactl.kinds.serving.picker import picker_problems
from avactl.kinds.serving.prefill.check import compute_of, prefill_problems
from avactl.kinds.serving.prefill.roles import prefill_of
from avactl.kinds.serving.probes import declared_checks
from avactl.kinds.serving.promotion import promotion_problems
from avactl.kinds.serving.rollout.check import rollout_problems
from avactl.kinds.serving.runtime import ports, runtime_of
from avactl.kinds.serving.server_arguments import image_problems, overridden_problems, unknown_options
from avactl.kinds.serving.spec import Batching, ServingDeploymentSpec
from avactl.program.capacity.capacity import gpu_problems
from avactl.program.checks.credentials import argument_problems, credential_problems
from avactl.program.checks.exposure import expose_problems
from avactl.program.checks.pod_security_levels import root_problem
from avactl.program.checks.pod_settings import pod_problems
from avactl.program.checks.spot import notice_problem, spot_problems
from avactl.program.checks.words import variable_problems, word_problems
from avactl.program.ineffective_keys import unused_model, without_effect
from avactl.program.lowering.notifications import SERVICE_EVENTS, notify_problems
from avactl.program.lowering.pods import LONGEST_GRACE
from avactl.program.program import Item, Program
from avactl.spec.schema.values import duration_seconds


def check(item: Item[ServingDeploymentSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield the problems of one service."""
    spec = item.spec
    yield from _check_runtime(item)
    yield from overridden_problems(item)
    yield from unknown_options(item)
    yield from image_problems(item)
    yield from _check_ports(item)
    yield from _check_probes(item)
    if spec.balance == "gateway" and spec.expose is None:
        yield Diagnostic(
            "missing-key",
            "`balance: gateway` needs `expose`: the gateway knows services by their hosts",
            item.span("spec", "balance"),
            hint="add `expose: {host: …}`, or write `balance: service`",
        )
    yield from _resource_class(item)
    if spec.batching is not None:
        yield from _check_batching(item, spec.batching)
    if not isinstance(spec.replicas, int) and spec.replicas.min > spec.replicas.max:
        yield Diagnostic(
            "invalid-value",
            f"spec.replicas: min {spec.replicas.min} is above max {spec.replicas.max}",
            item.span("spec", "replicas", "min"),
            hint=f"write `min: {spec.replicas.max}` or less; `max` is the autoscaler's upper bound",
        )
        return
    bounded = None if isinstance(spec.replicas, int) else spec.replicas
    if bounded is not None and bounded.min == bounded.max and "cpu_utilization" in bounded.model_fields_set:
        yield without_effect(item, ("spec", "replicas", "cpuUtilization"), "`min` and `max` are the same")
    yield from metric_problems(item, program)
    yield from zero_problems(item, program)
    yield from model_problems(item, program)
    yield from credential_problems(item, spec.env, ("spec", "env"))
    yield from variable_problems(item, spec.env, ("spec", "env"))
    yield from argument_problems(item, spec.runtime.command, ("spec", "runtime", "command"))
    yield from argument_problems(item, spec.runtime.args, ("spec", "runtime", "args"))
    yield from word_problems(item, spec.runtime.command, ("spec", "runtime", "command"))
    yield from word_problems(item, spec.runtime.args, ("spec", "runtime", "args"))
    if duration_seconds(spec.drain) + KILL_AFTER > LONGEST_GRACE:
        yield Diagnostic(
            "invalid-value",
            f"spec.drain: a pod has {LONGEST_GRACE // 60}m to terminate, of which {KILL_AFTER}s follow `drain`",
            item.span("spec", "drain"),
            hint="write `drain: 59m30s` or less",
        )
    yield from _check_pods(item, program)
    yield from _check_exposure(item, program)
    yield from _check_grpc(item)
    yield from expose_problems(item, program)
    yield from notify_problems(item, program, SERVICE_EVENTS)
    yield from rollout_problems(item, program, max(1, replica_bounds(spec)[0]))
    yield from promotion_problems(item, program)
    yield from group_problems(item, program)
    yield from picker_problems(item, program)
    yield from prefill_problems(item, program)
    yield from _check_capacity(item, program)


def _check_pods(item: Item[ServingDeploymentSpec], program: Program) -> Iterator[Diagnostic]:
    spec, path = item.spec, ("spec", "pod")
    yield from root_problem(item, program)
    compute = compute_of(item, DECODE)
    every = [compute, compute_of(item, PREFILL)] if prefill_of(spec) is not None else [compute]
    yield from pod_problems(item, program, spec.pod, path, every)
    yield from spot_problems(item, program, spec.spot, every)
    yield from notice_problem(item, program, spec.spot, ceil(duration_seconds(spec.drain)), ("spec", "drain"), compute)
    if spec.spot != "never" and replica_bounds(spec)[0] == 1:
        yield Diagnostic(
            "spot-not-restartable",
            f"{item} has one pod: it is down until the next one has started when the provider takes its machine back",
            item.span("spec", "spot", key=True),
            severity="warning",
            hint="write `replicas: 2` or more",
        )
    if spec.pod is not None and spec.pod.termination_grace_period_seconds is not None:
        yield Diagnostic(
            "conflicting-keys",
            f"the pods of a service have `drain` and {KILL_AFTER} seconds to terminate",
            item.span(*path, "terminationGracePeriodSeconds", key=True),
            hint=f"write `drain: {max(0, spec.pod.termination_grace_period_seconds - KILL_AFTER)}s` in `spec`",
        )


def _check_runtime(item: Item[ServingDeploymentSpec]) -> Iterator[Diagnostic]:
    runtime = item.spec.runtime
    if runtime_of(item.spec).is_generic:
        if runtime.port is None:
            yield Diagnostic(
                "missing-key",
                "`spec.runtime` requires `port`: custom runtimes have no default",
                item.span("spec", "runtime", key=True),
                hint="add `port: …`, the HTTP port that the server listens on",
            )
        own = item.spec.probes
        if item.spec.probe is None and (own is None or own.readiness is None):
            yield Diagnostic(
                "missing-key",
                "`spec` requires `probe`: custom runtimes have no default probe",
                item.span("spec", "runtime", "name"),
                hint="add `probe: {path: /health}`, a path that returns 2xx once the model is loaded",
            )


def _check_probes(item: Item[ServingDeploymentSpec]) -> Iterator[Diagnostic]:
    """Yield conflicts of the probes, and ports that the server does not open."""
    spec = item.spec
    if spec.probe is not None and spec.probes is not None:
        yield Diagnostic(
            "conflicting-keys",
            "`probe` is the short form of `probes`",
            item.span("spec", "probes", key=True),
            hint="remove one of them",
            notes=(Note(item.span("spec", "probe", key=True), "the short form"),),
        )
    for kind, check in declared_checks(spec):
        if duration_seconds(check.timeout) > duration_seconds(check.period):
            yield Diagnostic(
                "invalid-value",
                f"spec.probes.{kind}: a check may take {check.timeout}, and the next one begins after {check.period}",
                item.span("spec", "probes", kind, key=True),
                hint=f"write `period: {check.timeout}` or more",
            )


def _check_exposure(item: Item[ServingDeploymentSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield teams in `exposeTo` that have no pods on the service's cluster."""
    for index, name in enumerate(item.spec.expose_to):
        team = program.team(name)
        if name == item.team:
            yield Diagnostic(
                "without-effect",
                f"spec.exposeTo: `{name}` is the service's own team, whose pods can always call it",
                item.span("spec", "exposeTo", index),
                severity="warning",
                hint="remove it",
            )
        if item.cluster not in team.clusters:
            yield Diagnostic(
                "other-cluster",
                f"{item} runs on cluster `{item.cluster}`, but team {name} does not use that cluster",
                item.span("spec", "exposeTo", index),
                hint=f"remove it, or add `{item.cluster}` to the team's clusters",
                notes=(Note(team.span("spec", "clusters"), f"clusters of team {name}: {one_of(team.clusters)}"),),
            )


def _check_grpc(item: Item[ServingDeploymentSpec]) -> Iterator[Diagnostic]:
    """Yield an exposed gRPC port that the server does not have."""
    spec = item.spec
    if spec.expose is None or spec.expose.grpc is None or "grpc" in ports(spec):
        return
    title, custom = runtime_of(spec).title, runtime_of(spec).is_generic
    yield Diagnostic(
        "missing-key" if custom else "runtime-cannot",
        f"`grpc` needs `grpcPort`: {title} has no default" if custom else f"{title} has no gRPC port",
        item.span("spec", "expose", "grpc", key=True),
        hint="add `grpcPort: …` to `runtime`, the gRPC port that the server listens on" if custom else "remove `grpc`",
        notes=(Note(item.span("spec", "runtime", "name"), "the runtime"),),
    )


def _check_ports(item: Item[ServingDeploymentSpec]) -> Iterator[Diagnostic]:
    """Yield port conflicts: two ports of the spec, or a port of the spec and one of the runtime's own."""
    runtime = item.spec.runtime
    keys = {"http": ("port", runtime.port), "grpc": ("grpcPort", runtime.grpc_port)}
    taken = {port: name for name, port in ports(item.spec).items() if keys.get(name, ("", None))[1] is None}
    for name, (key, port) in keys.items():
        other = name if port is None else taken.setdefault(port, name)
        if other == name:
            continue
        default = runtime_of(item.spec).ports.get(name)
        yield Diagnostic(
            "port-conflict",
            f"spec.runtime.{key}: port {port} is already the server's {other.replace('-', ' ')} port",
            item.span("spec", "runtime", key),
            hint="choose another port" + (f"; the default is {default}" if default not in (None, port) else ""),
        )


def _resource_class(item: Item[ServingDeploymentSpec]) -> Iterator[Diagnostic]:
    declared, gpus = item.spec.resource_class, item.spec.resources.gpus
    if declared == "gpu" and not gpus:
        yield Diagnostic(
            "resource-class-mismatch",
            "spec.resourceClass: `gpu`, but the pods request no GPUs",
            item.span("spec", "resourceClass"),
            hint="add `gpus: 1` to `resources`, or write `resourceClass: cpu`",
        )
    elif declared == "cpu" and gpus:
        yield Diagnostic(
            "resource-class-mismatch",
            f"spec.resourceClass: `cpu`, but each pod requests {gpus} GPU{'s' if gpus > 1 else ''}",
            item.span("spec", "resourceClass"),
            severity="warning",
            hint="omit the key, so that services with GPUs are spread across machines",
        )


def _check_batching(item: Item[ServingDeploymentSpec], batching: Batching) -> Iterator[Diagnostic]:
    support = runtime_of(item.spec).batching
    if not support.fields:
        span = item.span("spec", "batching", key=True)
        yield Diagnostic("unsupported-batching", f"spec.batching: {support.why}", span, hint=support.hint(batching))
        return
    for field, key in (("max_delay", "maxDelay"), ("queue", "queue")):
        if field in batching.model_fields_set and field not in support.fields:
            yield without_effect(item, ("spec", "batching", key), support.why)


def _check_capacity(item: Item[ServingDeploymentSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield replicas that exceed the cluster's GPUs, and rollouts that can never finish."""
    spec, each = item.spec, machines_per_replica(item.spec)
    # A service that may have no pods must be able to have one.
    least, most = (max(1, count) * each for count in replica_bounds(spec))
    surge = spec.max_surge * each
    yield from unused_model(item, spec.resources, ("spec", "resources"))
    path, compute = ("spec", "resources"), compute_of(item, DECODE)
    found = gpu_problems(item, program, compute, path, least)
    yield from found
    if not spec.resources.gpus or _never_fits(found):
        return
    if _never_fits(gpu_problems(item, program, compute, path, most)):
        yield Diagnostic(
            "replicas-do-not-fit",
            f"spec.replicas: the GPUs of cluster {item.cluster} cannot hold {most} pods with {spec.resources.gpus} "
            "GPUs each",
            item.span("spec", "replicas", "max"),
            severity="warning",
            hint="lower `max`: the remaining pods would stay pending",
        )
    elif spec.max_surge and _never_fits(gpu_problems(item, program, compute, path, least + surge)):
        yield Diagnostic(
            "replicas-do-not-fit",
            f"a rollout needs {least + surge} pods at once, but the GPUs of cluster {item.cluster} cannot "
            "hold that many",
            item.span("spec", "maxSurge") if "max_surge" in spec.model_fields_set else item.span("spec", "replicas"),
            severity="warning",
            hint="write `maxSurge: 0`, which stops a pod before starting its replacement",
            notes=(Note(item.span("spec", "resources", key=True), f"{spec.resources.gpus} GPUs a pod"),),
        )


def _never_fits(problems: list[Diagnostic]) -> bool:
    return any(problem.severity == "error" for problem in problems)
