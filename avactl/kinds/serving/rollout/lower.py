"""Canary and blue-green → a paused Deployment, the document that the serving daemon reads, and what it owns.

The Deployment stays the one that a rolling service has: same name, selector and replicas. Paused, its controller starts
no new version but keeps scaling the one that runs. So the strategy of a running service can change without a restart,
autoscalers and `kubectl scale` work as before, and outside of a rollout the service runs without the daemon.
"""

from __future__ import annotations

from avactl.contracts import names
from avactl.contracts.document import dump
from avactl.contracts.serving import (
    ModelUrls,
    RolloutAnalysis,
    RolloutConfig,
    RolloutQuery,
    RolloutStep,
    RouteRules,
    Traffic,
)
from avactl.kinds.serving.llm import has_groups
from avactl.kinds.serving.parts.rollout import Analysis, BlueGreen, Canary, ValidationJob
from avactl.kinds.serving.rollout.rollback import rollback_objects
from avactl.kinds.serving.runtime import runtime_of
from avactl.kinds.serving.spec import ServingDeploymentSpec
from avactl.kinds.team.names import RUN_ACCOUNT
from avactl.program.lowering import k8s, pods
from avactl.program.lowering.k8s import drop_none
from avactl.program.manifest import Manifest
from avactl.program.ownership import Owned
from avactl.program.program import Item, Program
from avactl.spec.schema.values import duration_seconds

SELECTOR = Owned("Service", ("spec", "selector"), "the serving daemon, with `rollout: {blueGreen: …}`")
ROUTES = ("HTTPRoute", "GRPCRoute")
RULES = [
    Owned(kind, ("spec", "rules"), "the serving daemon, with `rollout: {canary: …}` through a gateway")
    for kind in ROUTES
]
PARTITION = Owned(
    "LeaderWorkerSet",
    ("spec", "rolloutStrategy", "rollingUpdateConfiguration", "partition"),
    "the serving daemon, with `rollout: {canary: …}`",
)
POOL_VERSIONS = [
    Owned(
        "InferencePool",
        ("spec", "selector", "matchLabels", label),
        "the serving daemon, with `rollout: {canary: …}` and an endpoint picker",
    )
    for label in names.VERSION_LABELS
]
OWNED = (SELECTOR, *RULES, PARTITION, *POOL_VERSIONS)
VALIDATION = "validation"
"""Component of validation Jobs."""
LONGEST_NAME = 52
"""Characters of a service's name with canary or blue-green: each version has a Service `NAME-HASH` (63 characters)."""


def chosen_strategy(spec: ServingDeploymentSpec) -> Canary | BlueGreen | None:
    """Return the `Canary` or `BlueGreen` of a service; None for a rolling update."""
    return None if spec.rollout is None else spec.rollout.canary or spec.rollout.blue_green


def key_of(chosen: Canary | BlueGreen) -> str:
    """Return the key of a strategy in `spec.rollout`."""
    return "canary" if isinstance(chosen, Canary) else "blueGreen"


def pool_names(item: Item[ServingDeploymentSpec]) -> tuple[str, ...]:
    """Return the InferencePools of a service with an endpoint picker; with a rollout there are two."""
    return (item.name,) if chosen_strategy(item.spec) is None else (item.name, f"{item.name}-alt")


def _has_picker(spec: ServingDeploymentSpec) -> bool:
    return spec.llm is not None and spec.llm.endpoint_picker is not None


def traffic_division(item: Item[ServingDeploymentSpec], program: Program, chosen: Canary | BlueGreen) -> Traffic:
    """Return how requests are divided: by `gateway`, `replicas` or, for blue-green, `service`.

    With an endpoint picker, the gateway also switches blue-green: requests do not go through the Services."""
    if isinstance(chosen, BlueGreen):
        return "gateway" if _has_picker(item.spec) and has_gateway(item, program) else "service"
    return chosen.traffic or ("gateway" if has_gateway(item, program) else "replicas")


def has_gateway(item: Item[ServingDeploymentSpec], program: Program) -> bool:
    """Return True if the service is exposed through a Gateway."""
    offered = program.cluster_spec(item.cluster).exposure
    return item.spec.expose is not None and offered is not None and offered.gateway is not None


def with_rollout(
    item: Item[ServingDeploymentSpec],
    program: Program,
    objects: list[Manifest],
    ports: dict[str, int],
    start: int,
    deadline: int,
) -> list[Manifest]:
    """Return the objects of a service with its rollout.

    `start`: seconds in which its server must be ready; `deadline`: seconds in which its pods must be.
    """
    chosen = chosen_strategy(item.spec)
    if chosen is None:
        return objects
    way = traffic_division(item, program, chosen)
    for manifest in objects:
        body = manifest.body
        notes = body["metadata"].setdefault("annotations", {})
        if manifest.kind == "Deployment" and manifest.name == item.name:
            body["spec"]["paused"] = True
            notes[names.ROLLOUT] = dump(rollout_config(item, chosen, way, ports, start))
            urls = {model.name: model.url.rstrip("/") for model in item.spec.served if model.url is not None}
            if urls:
                notes[names.MODEL_URLS] = dump(ModelUrls(urls))
        elif manifest.kind == "LeaderWorkerSet":
            # The daemon sets it: at rest so that a changed spec replaces no group by itself, as in a paused Deployment.
            body["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"].pop("partition", None)
            manifest.owned = (*manifest.owned, PARTITION.field)
            if manifest.name == item.name:
                roles = tuple(each.name for each in objects if each.kind == manifest.kind and each is not manifest)
                config = rollout_config(item, chosen, way, ports, start)
                notes[names.ROLLOUT] = dump(
                    config.replace(deadline=float(deadline), **({"roles": roles} if roles else {}))
                )
            else:
                notes[names.ROLLOUT_WITH] = item.name
        elif manifest.kind in ROUTES and way == "gateway":
            # Another name than that of a rolling service's route, which is removed only once this one has its rules.
            body["metadata"]["name"] = f"{item.name}-rollout"
            notes[names.ROLLOUT_ROUTE] = dump(RouteRules(tuple(body["spec"].pop("rules"))))
            manifest.owned = (*manifest.owned, RULES[ROUTES.index(manifest.kind)].field)
        elif manifest.kind == "Service" and way == "service":
            # Without a selector, Kubernetes leaves the addresses as they are until the daemon has set it.
            del body["spec"]["selector"]
            if body["spec"].get("clusterIP") == "None":
                # The API server gives a headless Service without a selector both families, also where there is one.
                body["spec"]["ipFamilyPolicy"] = "PreferDualStack"
            manifest.owned = (*manifest.owned, SELECTOR.field)
        if not notes:
            del body["metadata"]["annotations"]
    job = chosen.analysis.job if chosen.analysis is not None else None
    validation = [] if job is None else [_build_validation(item, program, job)]
    # The delivery daemon knows the versions of Deployments only.
    reverts = [] if has_groups(item.spec) else rollback_objects(item, program)
    return [*objects, *validation, *reverts]


def rollout_config(
    item: Item[ServingDeploymentSpec], chosen: Canary | BlueGreen, way: Traffic, ports: dict[str, int], start: int
) -> RolloutConfig:
    """Return the document that the daemon reads. `way`: how requests are divided; `start` as of `with_rollout`."""
    spec = item.spec
    exposed = spec.expose if way == "gateway" else None
    if isinstance(chosen, BlueGreen):
        steps: tuple[RolloutStep, ...] = (RolloutStep(percent=100, pause=float(duration_seconds(chosen.keep))),)
    else:
        steps = tuple(
            RolloutStep(percent=step.percent, pause=float(duration_seconds(step.pause))) for step in chosen.steps
        )
    return RolloutConfig(
        traffic=way,
        steps=steps,
        surge=spec.max_surge,
        in_place=getattr(chosen, "in_place", False),
        port=ports["http"],
        ports={name: ports[name] for name in ("http", "grpc") if name in ports},
        services=(item.name, f"{item.name}-headless") if way == "service" else (),
        route=f"{item.name}-rollout" if exposed is not None and exposed.host is not None else None,
        grpc_route=f"{item.name}-rollout" if exposed is not None and exposed.grpc is not None else None,
        pools=pool_names(item) if exposed is not None and _has_picker(spec) else (),
        start=float(start),
        analysis=_analysis(item, chosen.analysis),
    )


def _analysis(item: Item[ServingDeploymentSpec], analysis: Analysis | None) -> RolloutAnalysis | None:
    if analysis is None:
        return None
    queries: list[RolloutQuery] = []
    runtime = runtime_of(item.spec)
    if analysis.error_rate is not None:
        difference = analysis.error_rate / 100
        queries.append(RolloutQuery(name="error-rate", promql=runtime.error_rate or "", difference=difference))
    if analysis.latency is not None:
        queries.append(RolloutQuery(name="latency", promql=runtime.latency or "", ratio=analysis.latency))
    queries += [
        RolloutQuery(name=each.name, promql=each.promql, max=each.max, min=each.min, ratio=each.max_ratio)
        for each in analysis.query
    ]
    return RolloutAnalysis(
        interval=float(duration_seconds(analysis.interval)),
        failures=analysis.failures,
        queries=tuple(queries),
        job=None if analysis.job is None else f"{item.name}-{VALIDATION}",
    )


def _build_validation(item: Item[ServingDeploymentSpec], program: Program, job: ValidationJob) -> Manifest:
    """Return the template of validation Jobs: a suspended CronJob, from which the daemon makes one Job per version."""
    container = drop_none(
        name=VALIDATION,
        image=job.image,
        command=job.command or None,
        args=job.args or None,
        env=pods.env_list(job.env),
        resources=pods.build_resources(job.cpu, job.memory),
    )
    pod = pods.pod_spec(item, program, container, service_account=RUN_ACCOUNT, restartPolicy="Never")
    labels = k8s.object_labels(item, VALIDATION)
    return k8s.build_manifest(
        item,
        item.cluster,
        "batch/v1",
        "CronJob",
        f"{item.name}-{VALIDATION}",
        namespace=item.ns,
        component=VALIDATION,
        spec={
            "schedule": "0 0 1 1 *",
            "suspend": True,
            "jobTemplate": {
                "metadata": {"labels": labels},
                "spec": {
                    "backoffLimit": 0,
                    "activeDeadlineSeconds": max(1, int(duration_seconds(job.timeout))),
                    "template": {"metadata": {"labels": labels}, "spec": pod},
                },
            },
        },
    )
