"""Deployments of model servers, with their Services, autoscalers and budgets → ServingDeployments."""

from __future__ import annotations

from math import ceil, floor
from typing import Any

from avactl.contracts.names import GPU_RESOURCES
from avactl.kinds.serving.runtime import runtimes
from avactl.kinds.serving.runtime_facts import RETIRED, facts_of
from avactl.program.autoscalers import scale_target
from avactl.spec.documents.document import Path
from avactl.workbench.importer.model import Body, GivenValue, ImportedSpec, ImportReader, key_path
from avactl.workbench.importer.sources.command_line import (
    ServerOptions,
    UnlikeServerError,
    known_runtime,
    live_path,
    read_server,
    served_name,
)
from avactl.workbench.importer.sources.context import Context
from avactl.workbench.importer.sources.entrances import (
    carry_services,
    further_ports,
    has_own_budget,
    is_selected,
    part_of,
)
from avactl.workbench.importer.sources.metadata import add_patch, keep_metadata
from avactl.workbench.importer.sources.pods import Pod, read_pod
from avactl.workbench.importer.sources.probes import convert_probes, foreign_hosts, health_path, named_ports, probe_key

_TEMPLATE_PATH = ("spec", "template")
_POD_PATH = (*_TEMPLATE_PATH, "spec")
_DEPLOYMENT_KEYS = ("revisionHistoryLimit", "progressDeadlineSeconds", "minReadySeconds", "paused")
_CONTAINER = "server"
"""Name of the main container of a ServingDeployment."""
_GRACE = 30
"""Seconds that pods have to terminate, unless they say otherwise."""
_DEFAULT_SURGE: Body = {"maxSurge": "25%", "maxUnavailable": "25%"}
_HTTP_NAMES, _GRPC_NAMES = ("http", "rest", "http-api"), ("grpc", "grpc-api")


def convert_deployment(
    context: Context, reader: ImportReader, rollout: Body | None = None, path: str = ""
) -> ImportedSpec | str:
    """Return the ServingDeployment of a Deployment, or the reason why it stays a manifest.

    `rollout`: that of the spec, for an object whose strategy is not a Deployment's; empty: a rolling update. `path`: a
    health path, for an object that is a server even if no HTTP probe asks it.
    """
    given = reader.given
    index = _server_index(given)
    container = given.get(*_POD_PATH, "containers", index) or {}
    image = str(container.get("image") or "")
    retired = next((each for each in RETIRED.values() if each.image in image), None)
    known = known_runtime(image)
    model = _read_name(container, known)
    is_server = bool(path)
    path = health_path(container) or (live_path(known, model) if known else "") or path
    if not known and not is_server and not (_has_gpus(container) and path):
        if retired is not None:
            return f"{retired.title} is no longer supported ({retired.why}), and it has no GPU with an HTTP probe"
        return "it is no model server that avactl knows, and has no GPU with an HTTP probe"
    labels = given.get(*_TEMPLATE_PATH, "metadata", "labels") or {}
    if not is_selected(given, labels) and not given.get("spec", "selector", "matchExpressions"):
        return "its selector does not match the labels of its pods"
    if given.get("spec", "strategy", "type") not in (None, "RollingUpdate", "Recreate"):
        return f"its strategy is `{str(given.get('spec', 'strategy', 'type'))[:40]}`"
    _take_identity(reader)
    hostname, subdomain = (_pop(reader, (*_POD_PATH, key)) for key in ("hostname", "subdomain"))
    pod = read_pod(reader, _TEMPLATE_PATH, (str(container.get("name")),))
    memory = _keep_memory(reader, pod, container, index)
    if hostname:
        pod.pod_patch["hostname"] = hostname
    if subdomain:
        why = f"pods of a service have no names of their own in DNS, as by `subdomain: {subdomain}`"
        reader.note((*_TEMPLATE_PATH, "spec"), why, "use the name of the Service")
    runs_as_it_is = ""
    words = [*pod.command, *pod.args]
    try:
        if not known or not facts_of(known).model_options:
            raise UnlikeServerError("its command line does not say which model it serves")
        options = read_server(known, words, pod.image, pod.compute)
    except UnlikeServerError as unlike:
        runs_as_it_is = str(unlike)
        port = _find_port(context, given, container)
        if not port:
            return "its HTTP port is not declared"
        other = _listener(given, index, port)
        if other:
            return f"its HTTP port {port} is that of container {other}, and a ServingDeployment has one server"
        if not path:
            return "it has no HTTP probe, and a server that runs as it is needs one"
        options = _make_custom(pod, container, port, model or given.name)
    body: Body = {"model": options.model, "runtime": options.runtime}
    _tell_program(reader, pod, known, runs_as_it_is, options, retired is not None)
    _tell_containers(reader, index)
    for key, host in foreign_hosts(container).items():
        reader.note((*_POD_PATH, "containers", index, key), f"it asks the pod itself, and not host {host[:80]}", "")
    _read_probes(body, pod, container, path)
    replicas = reader.take("spec", "replicas")
    reader.take("spec", "selector")
    if pod.compute.pop("rdma", None):
        reader.lose(pod.paths["workers", "rdma"], "services have no RDMA NICs", "")
    body["resources"] = pod.compute
    body["replicas"] = replicas if isinstance(replicas, int) and replicas > 0 else 1
    if replicas == 0:
        reader.lose(("spec", "replicas"), "a service has at least one pod", "import it once it is needed")
    body["env"], body["pod"] = {**options.env, **pod.env}, pod.settings
    body |= pod.user
    # Pods end as before: the program gets its signal at once, and has as long as the source says.
    body["drain"] = "0s"
    grace = pod.settings.pop("terminationGracePeriodSeconds", _GRACE)
    if grace != _GRACE:
        pod.pod_patch["terminationGracePeriodSeconds"] = grace
    spec = context.spec("ServingDeployment", reader, body)
    spec.spec = body
    pod.container_patch.pop("ports", None)
    if ports := further_ports(spec, container):
        pod.container_patch["ports"] = ports
    _add_patches(reader, spec, pod, memory)
    if pod.settings.get("serviceAccountName"):
        context.accounts[str(spec.team)].add(pod.settings["serviceAccountName"])
    used = set(context.used)
    reason = carry_services(context, reader, spec, labels, container, (*_POD_PATH, "containers", index))
    reason = reason or _carry_budget(context, reader, spec, labels) or _carry_autoscaler(context, reader, spec, body)
    if reason:
        context.used = used
        return reason
    if rollout:
        reader.take("spec", "strategy")
        body["rollout"] = rollout
        spec.origins["spec", "rollout"] = (given, ("spec", "strategy"))
    else:
        _carry_strategy(reader, spec, body)
    if "runAsUser" not in body:
        reader.lose(
            pod.paths["image",],
            "the server runs as user 1000, and not as the user of the image",
            "set `runAsUser`; 0, root, needs `podSecurity: baseline`",
        )
    reader.lose_rest("a ServingDeployment has no key for it", "add it by `patches`")
    spec.spec = {key: value for key, value in body.items() if value not in (None, {}, [])}
    return spec


def _read_name(container: Body, known: str) -> str:
    """Return the name of the model on a command line or in the variables; "" if there is none."""
    words = [str(each) for key in ("command", "args") for each in container.get(key) or ()]
    entries = [each for each in container.get("env") or () if isinstance(each, dict)]
    return served_name(words, {str(each.get("name")): each.get("value") for each in entries}, known)


def server_container(given: GivenValue) -> str:
    """Return the name of the container that is the server."""
    return str(given.get(*_POD_PATH, "containers", _server_index(given), "name") or "")


def _server_index(given: GivenValue) -> int:
    """Return the index of the server among the containers: that of a known image, or else the first with GPUs."""
    containers = [each if isinstance(each, dict) else {} for each in given.get(*_POD_PATH, "containers") or ()]
    for accept in (lambda each: bool(known_runtime(str(each.get("image") or ""))), _has_gpus):
        found = next((index for index, each in enumerate(containers) if accept(each)), None)
        if found is not None:
            return found
    return 0


def _has_gpus(container: Body) -> bool:
    limits = (container.get("resources") or {}).get("limits") or {}
    return any(name in limits for name in GPU_RESOURCES)


def _take_identity(reader: ImportReader) -> None:
    for key in ("apiVersion", "kind", "status"):
        reader.take(key)
    for key in reader.given.value["metadata"]:
        if key not in ("labels", "annotations"):
            reader.take("metadata", key)


def _keep_memory(reader: ImportReader, pod: Pod, container: Body, index: int) -> Body:
    """Return what a patch changes of the memory: a limit that the source does not have would end the server."""
    resources = container.get("resources") or {}
    asked, limit = ((resources.get(key) or {}).get("memory") for key in ("requests", "limits"))
    kept: Body = {}
    if limit is None:
        kept["limits"] = {"memory": None}
    elif asked is not None and asked != limit:
        kept["requests"] = {"memory": str(asked)}
    place = (*_POD_PATH, "containers", index, "resources")
    told = {key_path((*place, key, "memory")) for key in ("requests", "limits")}
    reader.losses[:] = [each for each in reader.losses if each.path not in told]
    # Shared memory without a size has that of the pod.
    for number in range(len(reader.given.get(*_POD_PATH, "volumes") or ())):
        path = key_path((*_POD_PATH, "volumes", number, "emptyDir"))
        if any(each.path == path for each in reader.losses):
            reader.losses[:] = [each for each in reader.losses if each.path != path]
            name, empty = "shared-memory", {"medium": "Memory", "sizeLimit": None}
            pod.pod_patch["volumes"] = [{"name": name, "emptyDir": empty}]
    return kept


def _pop(reader: ImportReader, path: Path) -> Any:
    """Return a value, and take it out of the object that is read."""
    value = reader.take(*path)
    parent = reader.given.get(*path[:-1])
    if isinstance(parent, dict):
        parent.pop(path[-1], None)
    return value


def _make_custom(pod: Pod, container: Body, port: int, model: str) -> ServerOptions:
    """Return a server that runs the command of the source as it is."""
    generic = next(name for name, each in runtimes().items() if each.is_generic)
    run: Body = {"name": generic, "image": pod.image, "port": port}
    named = named_ports(container)
    grpc = next((named[name] for name in _GRPC_NAMES if name in named), None)
    if grpc is not None and grpc != port:
        run["grpcPort"] = grpc
    for key in ("command", "args"):
        if getattr(pod, key):
            run[key] = getattr(pod, key)
    return ServerOptions({"name": model, "version": "1"}, run)


def _tell_program(
    reader: ImportReader, pod: Pod, known: str, reason: str, options: ServerOptions, retired: bool
) -> None:
    """List what the server of the spec has other than the source."""
    image = pod.paths["image",]
    name = options.model["name"]
    why = f"the Deployment names no version of the model; the spec says {name}, version 1"
    reader.note(image, why, "write `model: {name, version}` as clients know it")
    if retired:
        found = next(each for each in RETIRED.values() if each.image in pod.image)
        reader.note(image, f"{found.title} is no longer supported: {found.why}", found.instead)
    at = pod.paths["args" if pod.args else "command",] if pod.command or pod.args else image
    if known and reason:
        reader.note(
            image,
            f"the program runs as it is, by `runtime: {{name: {options.runtime['name']}}}`: {reason}",
            f"`name: {known}` has metrics for autoscalers and rollouts; it needs its model as `model: {{url: …}}`"
            + (" or `path`" if facts_of(known).takes_path else ""),
        )
    elif known:
        told = f"avactl writes the command of {facts_of(known).title}"
        more = f", and adds {' '.join(options.added)}" if options.added else " with the same options"
        reader.note(at, told + more, "")


def _find_port(context: Context, given: GivenValue, container: Body) -> int | None:
    """Return the port that clients request: by its name, by the Services, by the probes, or the only one."""
    named = named_ports(container)
    declared = [
        each["containerPort"]
        for each in container.get("ports") or ()
        if isinstance(each, dict) and isinstance(each.get("containerPort"), int)
    ]
    found = next((named[name] for name in _HTTP_NAMES if name in named), None)
    if found is not None:
        return found
    for kind in ("readiness", "startup", "liveness"):
        probe = container.get(probe_key(kind))
        asked = ((probe.get("httpGet") or {}) if isinstance(probe, dict) else {}).get("port")
        asked = named.get(str(asked), asked)
        if isinstance(asked, int):
            return asked
    labels = given.get(*_TEMPLATE_PATH, "metadata", "labels") or {}
    for service in context.find("Service", given.namespace, lambda each: is_selected(each, labels)):
        for each in service.get("spec", "ports") or ():
            target = each.get("targetPort") or each.get("port") if isinstance(each, dict) else None
            target = named.get(str(target), target)
            if isinstance(target, int):
                return target
    return declared[0] if declared else None


def _listener(given: GivenValue, server: int, port: int) -> str:
    """Return the name of another container that declares a port which the server does not; "" if there is none."""
    owners: list[str] = []
    for index, each in enumerate(given.get(*_POD_PATH, "containers") or ()):
        if any(one.get("containerPort") == port for one in each.get("ports") or ()):
            if index == server:
                return ""
            owners.append(str(each.get("name")))
    return owners[0] if owners else ""


def _tell_containers(reader: ImportReader, server: int) -> None:
    """List names of containers that change, and that sidecars of a service start before the server."""
    for index, each in enumerate(reader.given.get(*_POD_PATH, "containers") or ()):
        name = each.get("name") if isinstance(each, dict) else None
        if index != server:
            why = f"sidecar {name} starts before the server, as an init container that goes on"
            reader.note((*_POD_PATH, "containers", index, "name"), why, "")
        elif name != _CONTAINER:
            why = f"the container of the server is `{_CONTAINER}`, and not `{name}`"
            reader.note((*_POD_PATH, "containers", index, "name"), why, f"`kubectl logs -c {_CONTAINER}`")


def _read_probes(body: Body, pod: Pod, container: Body, path: str) -> None:
    """Give the pods the probes of the source."""
    run = body["runtime"]
    facts = facts_of(run["name"])
    needs_path = "http" not in facts.ports
    checks, patch = convert_probes(container, run.get("port") or facts.ports["http"], path if needs_path else "")
    if checks:
        body["probes"] = checks
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        pod.container_patch.pop(kind, None)
    pod.container_patch |= patch


def _add_patches(reader: ImportReader, spec: ImportedSpec, pod: Pod, memory: Body) -> None:
    given = reader.given
    for patch, path in pod.patches({"kind": "Deployment"}, _CONTAINER):
        spec.origins["patches", len(spec.patches)] = (given, path)
        spec.patches.append(patch)
    for to, path in pod.paths.items():
        place = ("resources", *to[1:]) if to[0] == "workers" else to
        spec.origins["spec", *place] = (given, path)
    place = pod.paths["image",][:-1]
    if memory:
        merge = {"spec": {"template": {"spec": {"containers": [{"name": _CONTAINER, "resources": memory}]}}}}
        add_patch(spec, "Deployment", merge, given, (*place, "resources"))
    for kind in ("startup", "readiness", "liveness"):
        spec.origins["spec", "probes", kind] = (given, (*place, probe_key(kind)))
    spec.origins["spec", "probes"] = (given, place)
    keep_metadata(reader, spec, "Deployment")
    for key in _DEPLOYMENT_KEYS:
        value = reader.take("spec", key)
        if value not in (None, False, 0):
            add_patch(spec, "Deployment", {"spec": {key: value}}, given, ("spec", key))


def _carry_strategy(reader: ImportReader, spec: ImportedSpec, body: Body) -> None:
    """Carry over how many pods a rollout adds and takes away, by `maxSurge` or a patch."""
    strategy = reader.take("spec", "strategy") or {}
    at = ("spec", "strategy")
    spec.origins["spec", "maxSurge"] = (reader.given, at)
    if strategy.get("type") == "Recreate":
        patch: Body = {"spec": {"strategy": {"type": "Recreate", "rollingUpdate": None}}}
        add_patch(spec, "Deployment", patch, reader.given, at)
        return
    rolling = strategy.get("rollingUpdate") or strategy.get("canary") or {}
    rolling = {key: rolling.get(key, default) for key, default in _DEFAULT_SURGE.items()}
    replicas = body["replicas"]
    sizes = {replicas} if isinstance(replicas, int) else {replicas["min"], replicas["max"]}
    effects = {(_pods(rolling["maxSurge"], n, ceil), _pods(rolling["maxUnavailable"], n, floor)) for n in sizes}
    # Kubernetes takes a pod away where both are 0.
    effects = {(surge, unavailable or int(not surge)) for surge, unavailable in effects}
    surge, unavailable = effects.pop()
    if not effects and (unavailable == 0 or (surge, unavailable) == (0, 1)):
        if surge != 1:
            body["maxSurge"] = surge
        return
    add_patch(spec, "Deployment", {"spec": {"strategy": {"rollingUpdate": rolling}}}, reader.given, at)


def _pods(amount: Any, replicas: int, rounding: Any) -> int:
    """Return a number of pods that is given as such, or as a percentage."""
    if isinstance(amount, int):
        return amount
    return int(rounding(int(str(amount).rstrip("%")) * replicas / 100))


def _carry_budget(context: Context, reader: ImportReader, spec: ImportedSpec, labels: Body) -> str:
    """Carry the disruption budget over; return the reason why that cannot be done, or ""."""
    given = reader.given
    budgets = context.find("PodDisruptionBudget", given.namespace, lambda each: is_selected(each, labels))
    if len(budgets) > 1 or any(not has_own_budget(context, each, given) for each in budgets):
        # Kubernetes evicts no pod that two budgets select.
        return f"its PodDisruptionBudget {budgets[0].name} is not its own only, and a ServingDeployment has one"
    for budget in budgets:
        own = part_of(context, reader, spec, budget)
        keep_metadata(own, spec, "PodDisruptionBudget")
        own.take("spec", "selector")
        wanted: Body = {
            key: value
            for key in budget.get("spec") or ()
            if key != "selector" and (value := own.take("spec", key)) is not None
        }
        if "maxUnavailable" not in wanted:
            wanted["maxUnavailable"] = None
        elif wanted["maxUnavailable"] == 1:
            del wanted["maxUnavailable"]
        if wanted:
            add_patch(spec, "PodDisruptionBudget", {"spec": wanted}, budget, ("spec",))
    return ""


def _carry_autoscaler(context: Context, reader: ImportReader, spec: ImportedSpec, body: Body) -> str:
    """Carry the autoscaler over; return the reason why that cannot be done, or ""."""
    given = reader.given

    def scales(each: GivenValue) -> bool:
        return scale_target(each.value, given.namespace) == given.key

    for other in context.find("ScaledObject", given.namespace, scales):
        reader.note(("spec", "replicas"), f"ScaledObject {other.name}, which stays as it is, chooses the number", "")
    for scaler in context.find("HorizontalPodAutoscaler", given.namespace, scales):
        if scaler.value["apiVersion"] not in ("autoscaling/v1", "autoscaling/v2"):
            return f"its HorizontalPodAutoscaler {scaler.name} is of {scaler.value['apiVersion']}: write autoscaling/v2"
        own = part_of(context, reader, spec, scaler)
        keep_metadata(own, spec, "HorizontalPodAutoscaler")
        most, least = own.take("spec", "maxReplicas"), own.take("spec", "minReplicas")
        bounds: Body = {"min": 1 if least is None else least, "max": most}
        if bounds["min"] == 0:
            return f"its HorizontalPodAutoscaler {scaler.name} stops all pods"
        own.take("spec", "scaleTargetRef")
        metrics = own.take("spec", "metrics")
        use = own.take("spec", "targetCPUUtilizationPercentage") or 80  # the default of the API server
        use = _cpu_utilization(metrics) if metrics else use
        if use is not None:
            bounds["cpuUtilization"] = use
        else:
            add_patch(spec, "HorizontalPodAutoscaler", {"spec": {"metrics": metrics}}, scaler, ("spec", "metrics"))
        behavior = own.take("spec", "behavior")
        if behavior:
            add_patch(spec, "HorizontalPodAutoscaler", {"spec": {"behavior": behavior}}, scaler, ("spec", "behavior"))
        own.lose_rest("a ServingDeployment has no key for it", "add it by `patches`")
        if reader.given.get("spec", "replicas") is not None:
            number = reader.given.get("spec", "replicas")
            reader.note(("spec", "replicas"), f"the autoscaler chooses the number of pods, in place of {number}", "")
        body["replicas"] = bounds
        spec.origins["spec", "replicas"] = (scaler, ("spec",))
    return ""


def _cpu_utilization(metrics: Any) -> int | None:
    """Return the target of an autoscaler that has the CPU as its only metric."""
    match metrics:
        case [{"type": "Resource", "resource": {"name": "cpu", "target": {"averageUtilization": int(use), **more}}}]:
            return use if more in ({}, {"type": "Utilization"}) and 1 <= use <= 100 else None
    return None
