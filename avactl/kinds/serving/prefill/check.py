"""Checks of `spec.llm.prefill`: router or sidecar, parallelism of each role, replicas, ports and capacity."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from avactl.base.quantity import parse_quantity
from avactl.diagnostics import Diagnostic, Note
from avactl.kinds.serving.groups import group_rollout_problems
from avactl.kinds.serving.llm import machines_per_replica, split_model
from avactl.kinds.serving.parts.prefill import DECODE, PREFILL, ROLES
from avactl.kinds.serving.picker import endpoint_picker
from avactl.kinds.serving.prefill.lower import ROUTER_METRICS
from avactl.kinds.serving.prefill.roles import of_role, path_of, prefill_of
from avactl.kinds.serving.rollout.lower import chosen_strategy, key_of
from avactl.kinds.serving.runtime import disaggregation_of, ports, runtime_of
from avactl.kinds.serving.spec import ServingDeploymentSpec
from avactl.program.capacity.capacity import gpu_model, gpu_problems
from avactl.program.capacity.fit import total_gpus, unknown_capacity
from avactl.program.checks.credentials import argument_problems
from avactl.program.checks.words import word_problems
from avactl.program.ineffective_keys import unused_model, without_effect
from avactl.program.program import Item, Program
from avactl.spec.schema.compute import Compute
from avactl.spec.schema.pod_requests import on_spot, with_pod

PATH = ("spec", "llm", "prefill")


def compute_of(item: Item[ServingDeploymentSpec], role: str) -> Compute:
    """Return the compute of a role's pods, with everything that runs beside the server."""
    spec, own = of_role(item, role).spec, prefill_of(item.spec)
    compute = spec.resources
    if own is not None and own.sidecar is not None and role == DECODE:
        cpu = parse_quantity(compute.cpu) + parse_quantity(own.sidecar.cpu)
        memory = parse_quantity(compute.memory) + parse_quantity(own.sidecar.memory)
        compute = compute.model_copy(update={"cpu": f"{_to_thousandths(cpu)}m", "memory": str(int(memory))})
    return on_spot(with_pod(compute, spec.pod), spec.spot)


def _to_thousandths(value: Fraction) -> int:
    return int(value * 1000)


def prefill_problems(item: Item[ServingDeploymentSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield the problems of a service with `prefill`."""
    own, language_models = prefill_of(item.spec), runtime_of(item.spec).llm
    if own is None or language_models is None or language_models.disaggregation is None:
        return  # reported with `llm`
    yield from _check_entrance(item)
    yield from _check_replicas(item)
    yield from _check_gpus(item)
    yield from _check_stages(item)
    yield from _check_paths(item)
    yield from _check_ports(item)
    for key in ("router", "sidecar"):
        if (part := getattr(own, key)) is not None:
            yield from argument_problems(item, part.args, (*PATH, key, "args"))
            yield from word_problems(item, part.args, (*PATH, key, "args"))
    yield from argument_problems(item, own.args, (*PATH, "args"))
    yield from word_problems(item, own.args, (*PATH, "args"))
    yield from _check_controller(item, program)
    if own.resources is not None:
        yield from unused_model(item, own.resources, (*PATH, "resources"))
    yield from _check_capacity(item, program)


def _check_capacity(item: Item[ServingDeploymentSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield prefill pods that exceed the cluster's GPUs; with the decode pods, if both have the same resources."""
    spec, own = item.spec, prefill_of(item.spec)
    assert own is not None
    pods = own.replicas * machines_per_replica(of_role(item, PREFILL).spec)
    path, compute = path_of(item, PREFILL), compute_of(item, PREFILL)
    if own.resources is None and isinstance(spec.replicas, int):
        others = spec.replicas * machines_per_replica(spec)
        if gpu_problems(item, program, compute, path, others):
            return  # reported for those alone
        pods += others
    found = gpu_problems(item, program, compute, path, pods)
    yield from found
    if not found and own.resources is not None:
        yield from _check_together(item, program)


def _check_together(item: Item[ServingDeploymentSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield GPUs that suffice for each role, but not for both."""
    sums: dict[str, float] = {}
    for role in ROLES:
        spec = of_role(item, role).spec
        model = gpu_model(program, item.cluster, spec.resources)
        if model is not None and isinstance(spec.replicas, int):
            sums[model] = sums.get(model, 0) + spec.replicas * machines_per_replica(spec) * spec.resources.gpus
    for model, wanted in sums.items():
        has = total_gpus(program, item.cluster, model)
        if wanted > has and model in program.gpu_models(item.cluster) and not unknown_capacity(program):
            yield Diagnostic(
                "gang-never-fits",
                f"both roles need {wanted:g} {model} at the same time, and cluster {item.cluster} has {has}",
                item.span(*PATH, "replicas"),
                hint="lower `replicas` of one of them, or add machines",
                notes=(Note(item.span("spec", "replicas"), "the decode replicas"),),
            )


def _check_controller(item: Item[ServingDeploymentSpec], program: Program) -> Iterator[Diagnostic]:
    cluster = program.cluster(item.cluster)
    if cluster.spec.leader_worker_set is None and machines_per_replica(item.spec) == 1:
        yield Diagnostic(
            "missing-controller",
            f"`prefill` needs the DisaggregatedSet of LeaderWorkerSet, which cluster {cluster.name} does not declare",
            item.span(*PATH, key=True),
            hint=f"install LeaderWorkerSet, and write `leaderWorkerSet: {{}}` in Cluster {cluster.name}",
            notes=(Note(cluster.span("metadata", "name"), "the cluster"),),
        )


def _check_entrance(item: Item[ServingDeploymentSpec]) -> Iterator[Diagnostic]:
    """Yield conflicts of a router or sidecar with the endpoint picker, `balance` and `rollout`."""
    spec, own, picker = item.spec, prefill_of(item.spec), endpoint_picker(item.spec)
    assert own is not None
    if own.sidecar is not None and picker is None:
        yield Diagnostic(
            "missing-key",
            "`sidecar` needs an endpoint picker, which chooses the prefill pod of a request",
            item.span(*PATH, "sidecar", key=True),
            hint="add `endpointPicker: {…}` to `llm`, or write `router: {image: …}` instead of `sidecar`",
        )
    elif own.router is not None and picker is not None:
        yield _conflict_problem(
            item,
            ("router",),
            "either `endpointPicker` or `router` chooses the pods of a request",
            "remove one of them; an endpoint picker needs `sidecar: {image: …}`",
            Note(item.span("spec", "llm", "endpointPicker", key=True), "the endpoint picker"),
        )
    if picker is not None and picker.fail_open:
        yield _conflict_problem(
            item,
            (),
            "without the picker, the gateway would send requests to prefill pods, too",
            "remove `failOpen`",
            Note(item.span("spec", "llm", "endpointPicker", "failOpen", key=True), "requests without the picker"),
        )
    if spec.balance == "headless":
        yield _conflict_problem(
            item,
            (),
            "clients that connect to pods directly would bypass the router or endpoint picker",
            "remove `balance`",
            Note(item.span("spec", "balance"), "the addresses of all pods"),
        )
    if own.sidecar is not None and spec.expose_to:
        why = "requests go through the gateway, which asks the endpoint picker"
        yield without_effect(item, ("spec", "exposeTo"), why)
    rollout = chosen_strategy(spec)
    if rollout is None:
        return
    note = Note(item.span("spec", "rollout", key_of(rollout), key=True), "the rollout")
    if own.router is not None:
        yield _conflict_problem(
            item,
            ("router",),
            f"`{key_of(rollout)}` divides requests between two InferencePools, and one router sends them to pods of "
            "both versions",
            "write `sidecar: {image: …}` instead of `router`, and add `endpointPicker: {image: …}` to `llm`; or deploy "
            "the new version as a service of its own, with its own `expose`",
            note,
        )
    replicas: dict[str, tuple[int, tuple[str, ...]]] = {"prefill ": (own.replicas, (*PATH, "replicas"))}
    if isinstance(spec.replicas, int):
        replicas["decode "] = (spec.replicas, ("spec", "replicas"))
    yield from group_rollout_problems(item, PATH, replicas)


def _check_replicas(item: Item[ServingDeploymentSpec]) -> Iterator[Diagnostic]:
    if isinstance(item.spec.replicas, int):
        return
    yield _conflict_problem(
        item,
        (),
        "avactl does not scale a DisaggregatedSet: each role has its declared number of replicas",
        "write a number: `replicas: 2`",
        Note(item.span("spec", "replicas"), "bounds of an autoscaler"),
    )


def _check_gpus(item: Item[ServingDeploymentSpec]) -> Iterator[Diagnostic]:
    """Yield a role without GPUs beside one with them: both run the same image."""
    gpus = {role: of_role(item, role).spec.resources.gpus for role in ROLES}
    lacking, having = (DECODE, PREFILL) if gpus[PREFILL] else (PREFILL, DECODE)
    if gpus[lacking] or not gpus[having] or machines_per_replica(of_role(item, lacking).spec) > 1:
        return  # of several machines, reported with `machines`
    paths = {PREFILL: (*PATH, "resources"), DECODE: ("spec", "resources")}
    yield Diagnostic(
        "conflicting-keys",
        f"{lacking} pods request no GPUs, and {having} pods request {gpus[having]}",
        item.span(*paths[lacking], key=True),
        hint=f"add `gpus: …` to `{'.'.join(paths[lacking])}`",
        notes=(Note(item.span(*paths[having], "gpus"), f"the GPUs of {having} pods"),),
    )


def _check_stages(item: Item[ServingDeploymentSpec]) -> Iterator[Diagnostic]:
    """Yield splits of the model that do not fit the GPUs of the prefill role, or what the server can transfer."""
    spec, own = item.spec, prefill_of(item.spec)
    assert own is not None
    reads, generates = (of_role(item, role).spec for role in ROLES)
    found, gpus = split_model(reads), max(1, reads.resources.visible_gpus) * machines_per_replica(reads)
    if found.tensor * found.pipeline != gpus:
        key = "tensorParallel" if own.tensor_parallel is not None else "pipelineParallel"
        yield Diagnostic(
            "parallelism-mismatch",
            f"tensor parallelism {found.tensor} × pipeline parallelism {found.pipeline} needs "
            f"{found.tensor * found.pipeline} GPUs, and a prefill replica has {gpus}",
            item.span(*PATH, key),
            hint=f"write keys whose product is {gpus}",
        )
    if machines_per_replica(reads) > 1 and machines_per_replica(generates) == 1 and not reads.resources.gpus:
        yield _conflict_problem(
            item,
            ("machines",),
            f"`machines: {machines_per_replica(reads)}` splits a model over GPUs, and the pods request none",
            "add `gpus: …` to `resources`, those of each machine, or remove `machines`",
        )
    one, other = split_model(generates).pipeline, found.pipeline
    title, same_stages = runtime_of(spec).title, disaggregation_of(spec).same_stages
    if one > 1 and not (same_stages and one == other):
        to = f"1 or {other}" if same_stages and other > 1 else "1"
        yield Diagnostic(
            "parallelism-mismatch",
            f"{title} transfers the KV cache to decode replicas with {to} stage{'s' if len(to) > 1 else ''}, and these "
            f"have {one}",
            item.span(
                "spec",
                "llm",
                "pipelineParallel" if spec.llm is not None and spec.llm.pipeline_parallel else "tensorParallel",
            ),
            hint="write `pipelineParallel: 1`",
            notes=(Note(item.span(*PATH, key=True), f"the prefill replicas, with {other}"),),
        )


def _check_paths(item: Item[ServingDeploymentSpec]) -> Iterator[Diagnostic]:
    """Yield a path of the model in the image that does not contain its version."""
    model = item.spec.model
    path, version = (model.path, model.version) if model is not None else (None, None)
    if path is not None and version is not None and version not in path:
        yield Diagnostic(
            "invalid-value",
            f"spec.model.path: `{path}` does not contain the version; during a rollout, pods of two versions "
            "would use each other's KV cache",
            item.span("spec", "model", "path"),
            hint=f"use a directory with the version in its name: `{path.rstrip('/')}/{version}`",
        )


def _check_ports(item: Item[ServingDeploymentSpec]) -> Iterator[Diagnostic]:
    """Yield a port of the service that the pods or the router use for another purpose."""
    spec, own = item.spec, prefill_of(item.spec)
    assert own is not None
    port = ports(spec)["http"]
    taken = {disaggregation_of(spec).port: "transfers of the KV cache"}
    if own.router is not None:
        taken[ROUTER_METRICS] = "the router's metrics"
    if port in taken:
        yield Diagnostic(
            "port-conflict",
            f"spec.runtime.port: with `prefill`, port {port} is used for {taken[port]}",
            item.span("spec", "runtime", "port"),
            hint=f"choose another port; the default is {runtime_of(spec).ports['http']}",
        )


def _conflict_problem(
    item: Item[ServingDeploymentSpec], below: tuple[str, ...], why: str, hint: str, *notes: Note
) -> Diagnostic:
    return Diagnostic("conflicting-keys", why, item.span(*PATH, *below, key=True), hint=hint, notes=notes)
