"""Replicas of several machines → a LeaderWorkerSet: a group of pods each, of which the first one answers requests.

Sources, of sigs.k8s.io/lws 0.9: `api/leaderworkerset/v1`, `pkg/controllers` for the objects that its controller makes,
`pkg/webhooks` for labels and environment of the pods.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from avactl.diagnostics import Diagnostic, Note
from avactl.kinds.serving.llm import machines_per_replica, split_model
from avactl.kinds.serving.parts.rollout import BlueGreen
from avactl.kinds.serving.rollout.lower import chosen_strategy, key_of
from avactl.kinds.serving.runtime import runtime_of
from avactl.kinds.serving.spec import ServingDeploymentSpec
from avactl.program.lowering import k8s
from avactl.program.lowering.k8s import drop_none
from avactl.program.manifest import Body, Manifest
from avactl.program.ownership import Owned
from avactl.program.program import Item, Program

API, KIND = "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"
WORKER = "worker"
"""Component of the pods that answer no requests."""
REPLICAS = Owned(KIND, ("spec", "replicas"), "the autoscaler, if `replicas` has bounds")
_MACHINES_PATH = ("spec", "llm", "machines")


def leader_worker_set(
    item: Item[ServingDeploymentSpec],
    program: Program,
    leader: Body,
    worker: Body | None,
    component: str,
    name: str | None = None,
) -> Manifest:
    """Return the LeaderWorkerSet of a service, from the templates of leaders and workers. `name`: that of the service,
    by default; of a role it may be another."""
    fixed = isinstance(item.spec.replicas, int)
    spec = groups_of(item.spec, leader, worker)
    if program.cluster_spec(item.cluster).daemons.serving:
        # The serving daemon's, with `canary`. A service that is rolling again must not claim it: appliers that do not
        # force would fail, and never remove the rollout. The daemon then resets it, and its default is 0.
        del spec["rolloutStrategy"]["rollingUpdateConfiguration"]["partition"]
    return k8s.build_manifest(
        item,
        item.cluster,
        API,
        KIND,
        item.name if name is None else name,
        namespace=item.ns,
        component=component,
        owned=() if fixed else (REPLICAS.field,),
        spec=spec,
    )


def groups_of(spec: ServingDeploymentSpec, leader: Body, worker: Body | None) -> Body:
    """Return the spec of a LeaderWorkerSet; without `worker`, each group is one pod.

    If a pod stops, its group starts again: the processes of the others wait for it in a collective operation.
    """
    templates = {"workerTemplate": leader} if worker is None else {"leaderTemplate": leader, "workerTemplate": worker}
    return drop_none(
        replicas=spec.replicas if isinstance(spec.replicas, int) else None,
        # The workers of a leader that waits for them must exist: all pods of a group start together.
        startupPolicy="LeaderCreated",
        # With one subdomain for all groups, the controller would make a Service with the name of the service's own.
        networkConfig={"subdomainPolicy": "UniquePerReplica"},
        rolloutStrategy={
            "type": "RollingUpdate",
            "rollingUpdateConfiguration": {
                "maxSurge": spec.max_surge,
                "maxUnavailable": 0 if spec.max_surge else 1,
                "partition": 0,
            },
        },
        leaderWorkerTemplate={
            "size": machines_per_replica(spec),
            "restartPolicy": "RecreateGroupOnPodRestart",
            **templates,
        },
    )


def group_problems(item: Item[ServingDeploymentSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield what a service cannot have if a replica has several machines."""
    spec, runtime = item.spec, runtime_of(item.spec)
    if machines_per_replica(spec) == 1 or runtime.llm is None or not runtime.llm.machines:
        return  # reported with `llm`
    if not spec.resources.gpus:
        yield _conflict_problem(
            item,
            f"`machines: {machines_per_replica(spec)}` splits a model over GPUs, and the pods request none",
            "add `gpus: …` to `resources`, those of each machine, or remove `machines`",
        )
    if chosen_strategy(spec) is not None and (spec.llm is None or spec.llm.prefill is None):  # else reported there
        yield from _rollout_problems(item)
    split = split_model(spec)
    if (
        runtime.llm.even_stages
        and machines_per_replica(spec) % split.pipeline
        and split.pipeline % machines_per_replica(spec)
    ):
        yield Diagnostic(
            "parallelism-mismatch",
            f"{runtime.title} cannot divide {split.pipeline} stages among {machines_per_replica(spec)} machines",
            item.span("spec", "llm", "pipelineParallel"),
            hint=f"write `pipelineParallel: {machines_per_replica(spec)}`, or a multiple or divisor of it",
        )
    cluster = program.cluster(item.cluster)
    if cluster.spec.leader_worker_set is None:
        yield Diagnostic(
            "missing-controller",
            f"a replica of several machines needs LeaderWorkerSet, which cluster {cluster.name} does not declare",
            item.span(*_MACHINES_PATH, key=True),
            hint=f"install LeaderWorkerSet, and write `leaderWorkerSet: {{}}` in Cluster {cluster.name}",
            notes=(Note(cluster.span("metadata", "name"), "the cluster"),),
        )


def group_rollout_problems(
    item: Item[ServingDeploymentSpec], path: tuple[str, ...], replicas: Mapping[str, tuple[int, tuple[str, ...]]]
) -> Iterator[Diagnostic]:
    """Yield rollouts that groups of pods cannot have: all versions are groups of the same LeaderWorkerSets.

    `path`: the key by which replicas are groups; `replicas`: numbers and their paths, by the word for a group.
    """
    chosen = chosen_strategy(item.spec)
    if chosen is None:
        return
    note = Note(item.span("spec", "rollout", key_of(chosen), key=True), "the rollout")

    def conflict(why: str, hint: str) -> Diagnostic:
        return Diagnostic("conflicting-keys", why, item.span(*path, key=True), hint=hint, notes=(note,))

    if isinstance(chosen, BlueGreen):
        yield conflict(
            "`blueGreen` starts all pods twice, and groups of pods are replaced one after the other",
            "write `canary: {steps: [{percent: 100}]}`",
        )
        return
    if chosen.in_place:
        yield conflict(
            "`inPlace` has no effect on groups of pods: `maxSurge` says how many more there are",
            "remove `inPlace`, and write `maxSurge: 0` if there is no room for another group",
        )
    for name, (count, where) in replicas.items():
        if count == 1 and not item.spec.max_surge:
            key = item.span("spec", "maxSurge") if len(replicas) == 1 else item.span(*where, key=True)
            yield Diagnostic(
                "rollout-share",
                f"with `maxSurge: 0`, the only {name}group of {item} would stop before the new version is ready",
                key,
                hint="write `maxSurge: 1`, or `replicas: 2` or more",
            )


def _rollout_problems(item: Item[ServingDeploymentSpec]) -> Iterator[Diagnostic]:
    """Yield rollouts that replicas of several machines cannot have."""
    replicas, chosen = item.spec.replicas, chosen_strategy(item.spec)
    counted = {"": (replicas, ("spec", "replicas"))} if isinstance(replicas, int) else {}
    yield from group_rollout_problems(item, _MACHINES_PATH, counted)
    if not counted and chosen is not None and not isinstance(chosen, BlueGreen):
        yield _conflict_problem(
            item,
            "an autoscaler that stops groups of several machines stops those of the new version first",
            f"write a number of `replicas`, or remove `{key_of(chosen)}`",
            Note(item.span("spec", "rollout", key_of(chosen), key=True), "the rollout"),
        )


def _conflict_problem(item: Item[ServingDeploymentSpec], why: str, hint: str, *notes: Note) -> Diagnostic:
    return Diagnostic("conflicting-keys", why, item.span(*_MACHINES_PATH, key=True), hint=hint, notes=notes)


def scale_target(spec: ServingDeploymentSpec, name: str) -> Body:
    """Return the reference of an autoscaler to the object whose replicas it sets."""
    if machines_per_replica(spec) > 1:
        return {"apiVersion": API, "kind": KIND, "name": name}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
