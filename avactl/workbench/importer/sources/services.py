"""Deployments of model servers, with their Services, autoscalers and budgets → ServingDeployments."""

from __future__ import annotations

import re
from typing import Any

from avactl.contracts.names import GPU_RESOURCES
from avactl.kinds.serving.runtime import runtimes
from avactl.kinds.serving.runtime_facts import RETIRED, facts_of
from avactl.workbench.importer.model import Body, GivenValue, ImportedSpec, ImportReader
from avactl.workbench.importer.sources.context import Context
from avactl.workbench.importer.sources.jobs import take_common
from avactl.workbench.importer.sources.pods import Pod, read_pod
from avactl.workbench.importer.sources.training import format_seconds

_TEMPLATE_PATH = ("spec", "template")
_MODEL_URL = re.compile(r"(s3|gs|oss|cos|obs|az|abfs|hdfs)://\S+")
_VARIABLE = re.compile(r"\$\((\w+)\)|\$\{?(\w+)\}?")
"""A variable in an argument, as the kubelet or a shell replaces it."""


def convert_deployment(context: Context, reader: ImportReader) -> ImportedSpec | str:
    """Return the ServingDeployment of a Deployment, or the reason why it stays a manifest."""
    given = reader.given
    container = given.get(*_TEMPLATE_PATH, "spec", "containers", 0) or {}
    image = str(container.get("image") or "")
    retired = next((each for each in RETIRED.values() if each.image in image), None)
    runtime = _runtime(container, image)
    limits = (container.get("resources") or {}).get("limits") or {}
    probe = (container.get("readinessProbe") or {}).get("httpGet") or {}
    if not runtime and not (any(name in limits for name in GPU_RESOURCES) and probe.get("path")):
        if retired is not None:
            return f"{retired.title} is no longer supported ({retired.why}), and it has no GPU with an HTTP probe"
        return "it is no model server that avactl knows, and has no GPU with an HTTP probe of readiness"
    take_common(reader)
    pod = read_pod(reader, _TEMPLATE_PATH)
    name = runtime or next(name for name, each in runtimes().items() if each.is_generic)
    body: Body = {"model": _read_model(reader, pod, runtime), "runtime": {"name": name, "image": pod.image}}
    if retired is not None:
        reader.lose(pod.paths["image",], f"{retired.title} is no longer supported: {retired.why}", retired.instead)
    port = _find_port(container, probe.get("port"))
    if not runtime:
        if port is None:
            return "its HTTP port is not declared"
        body["runtime"]["port"] = port
        body["probe"] = _read_probe(reader, pod, probe, port)
        _keep_command(body, pod)
    else:
        _drop_command(reader, body, pod, runtime, container)
    for key in ("readinessProbe", "livenessProbe", "startupProbe", "ports"):
        value = pod.container_patch.pop(key, None)
        if value and key == "livenessProbe":
            path = (*pod.paths["image",][:-1], key)
            reader.lose(path, "the probes of the server follow from `runtime` and `probe`", "add it by `patches`")
    reader.take("spec", "selector")
    replicas = reader.take("spec", "replicas")
    if pod.compute.pop("rdma", None):
        reader.lose(pod.paths["workers", "rdma"], "services have no RDMA NICs", "")
    body["resources"] = pod.compute
    body["replicas"] = replicas if isinstance(replicas, int) and replicas > 0 else 1
    if replicas == 0:
        reader.lose(("spec", "replicas"), "a service has at least one pod", "import it once it is needed")
    body["env"], body["pod"] = pod.env, pod.settings
    body |= pod.user
    grace = pod.settings.pop("terminationGracePeriodSeconds", None)
    if grace:
        body["drain"] = format_seconds(max(1, grace - 30))
    _read_strategy(reader, body)
    spec = context.spec("ServingDeployment", reader, body)
    for patch, path in pod.patches({"kind": "Deployment"}, "server"):
        spec.origins["patches", len(spec.patches)] = (given, path)
        spec.patches.append(patch)
    for to, path in pod.paths.items():
        place = ("resources", *to[1:]) if to[0] == "workers" else to
        spec.origins["spec", *place] = (given, path)
    if pod.settings.get("serviceAccountName"):
        context.accounts[str(spec.team)].add(pod.settings["serviceAccountName"])
    _absorb_objects(context, reader, spec, body)
    if "runAsUser" not in body:
        reader.lose(
            pod.paths["image",],
            "the server runs as user 1000, and not as the user of the image",
            "set `runAsUser`; 0, root, needs `podSecurity: baseline`",
        )
    reader.lose_rest("a ServingDeployment has no key for it", "add it by `patches`")
    spec.spec = {key: value for key, value in body.items() if value not in (None, {}, [])}
    return spec


def _runtime(container: Body, image: str) -> str:
    """Return the runtime of an image; "" if there is none, or it would need to know where the model's files are."""
    found = next((name for name, each in runtimes().items() if any(part in image for part in each.images)), "")
    if found and runtimes()[found].needs_files:
        words = [word for key in ("command", "args") for word in container.get(key) or ()]
        return found if _directory(found, words) else ""
    return found


def _directory(runtime: str, words: list[Any]) -> str:
    """Return the directory of the model on a command line; "" for a model of a hub."""
    options = "|".join(re.escape(option) for option in facts_of(runtime).model_options)
    found = re.search(rf"(?:^|\s)(?:{options})[= ]+(/[^\s;&|]+)", " ".join(map(str, words))) if options else None
    return found[1] if found is not None else ""


def _read_model(reader: ImportReader, pod: Pod, runtime: str) -> Body:
    words = [*pod.command, *pod.args]
    url = next((found[0] for word in words if (found := _MODEL_URL.search(word))), None)
    directory = _directory(runtime, words) if runtime else ""
    names = _served_names(pod, runtime, words)
    hub = re.search(r"--?model[= ](\S+)", " ".join(words))
    guess = pod.env.get("MODEL_NAME") or (hub[1] if hub is not None else "")
    name = _model_name(names[0] if names else guess if isinstance(guess, str) else "") or reader.given.name
    made: Body = {"name": name, "version": "1"}
    if runtime and facts_of(runtime).name_options:
        # Without a name on its command line, such a server answers to the directory of its model.
        for unknown in [each for each in names or ([directory] if directory else []) if each != name]:
            reader.lose(
                pod.paths["args" if pod.args else "command",],
                f"clients request the model as `{unknown}`; the server of the spec knows it as `{name}` only",
                "let clients request that name",
            )
    if directory:
        made["path"] = directory
    elif url is not None and runtime and facts_of(runtime).repository:
        made["url"] = url.rstrip("/") + "/" + name
        reader.lose(
            pod.paths["image",],
            f"an init container downloads one model, {made['url']}",
            "declare one ServingDeployment for each model",
        )
    elif url is not None and runtime:
        made["url"] = url
    why = f"the Deployment names no version of the model; the spec says {made['name']}, version 1"
    reader.lose(pod.paths["image",], why, "write `model: {name, version}` as clients know it")
    return made


def _served_names(pod: Pod, runtime: str, words: list[str]) -> list[str]:
    """Return the names that clients request the model by, from the command line; the first is the main one."""
    records = [facts_of(runtime)] if runtime else runtimes().values()
    options = "|".join(re.escape(option) for record in records for option in record.name_options)
    # An option may take several names.
    given = re.search(rf"(?:^|\s)(?:{options})(?:=|\s+)([^\s;&|]+(?:\s+[^-\s;&|][^\s;&|]*)*)", " ".join(words))
    if not options or given is None:
        return []

    def value(variable: re.Match[str]) -> str:
        of_env = pod.env.get(variable[1] or variable[2])
        return of_env if isinstance(of_env, str) else variable[0]

    return [_VARIABLE.sub(value, name.strip("'\"")) for name in given[1].split()]


def _model_name(text: str) -> str:
    """Return a text as name of a model; "" for one with a variable that only the pod knows."""
    if _VARIABLE.search(text):
        return ""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text.rstrip("/").rpartition("/")[2]).strip("-_.")[:63]


def _keep_command(body: Body, pod: Pod) -> None:
    for key in ("command", "args"):
        if getattr(pod, key):
            body["runtime"][key] = getattr(pod, key)


def _drop_command(reader: ImportReader, body: Body, pod: Pod, runtime: str, container: Body) -> None:
    """Leave the command to the runtime: its options follow from the spec."""
    for key in ("command", "args"):
        if getattr(pod, key):
            reader.lose(
                pod.paths[key,],
                f"avactl writes the command of {runtime}",
                "add options that are missing: `runtime.args`",
            )
    for name in facts_of(runtime).replaced_env:
        if name in pod.env:
            reader.lose(pod.paths["env", name], "avactl sets it by `model`", "")
            del pod.env[name]
    ports = [each.get("containerPort") for each in container.get("ports") or () if isinstance(each, dict)]
    default_ports = facts_of(runtime).ports
    named = {str(each.get("name")): each.get("containerPort") for each in container.get("ports") or ()}
    for key, own, names in (("port", "http", ("http", "rest", "http-api")), ("grpcPort", "grpc", ("grpc", "grpc-api"))):
        default = default_ports.get(own)
        found = next((named[name] for name in names if name in named), None)
        if isinstance(found, int) and default is not None and found != default and default not in ports:
            body["runtime"][key] = found


def _find_port(container: Body, probe: Any) -> int | None:
    ports = [each for each in container.get("ports") or () if isinstance(each, dict)]
    if isinstance(probe, int):
        return probe
    found = next((each.get("containerPort") for each in ports if each.get("name") == probe), None)
    return found if isinstance(found, int) else next((each.get("containerPort") for each in ports), None)


def _read_probe(reader: ImportReader, pod: Pod, http: Body, port: int) -> Body:
    ready = pod.container_patch.get("readinessProbe") or {}
    made: Body = {"path": http["path"]}
    for key, to in (("periodSeconds", "period"), ("timeoutSeconds", "timeout")):
        if ready.get(key):
            made[to] = format_seconds(ready[key])
    start = pod.container_patch.get("startupProbe") or {}
    wait = ready.get("initialDelaySeconds") or 0
    if start:
        wait = (start.get("failureThreshold") or 3) * (start.get("periodSeconds") or 10)
    if wait:
        made["startup"] = format_seconds(wait)
    return made


def _read_strategy(reader: ImportReader, body: Body) -> None:
    given = reader.given
    surge = given.get("spec", "strategy", "rollingUpdate", "maxSurge")
    if given.get("spec", "strategy", "type") == "Recreate":
        reader.lose(("spec", "strategy"), "a rollout replaces pods one by one", "")
        body["maxSurge"] = 0
    elif isinstance(surge, int):
        body["maxSurge"] = surge
    reader.take("spec", "strategy")
    for key in ("revisionHistoryLimit", "progressDeadlineSeconds", "minReadySeconds"):
        if given.get("spec", key):
            reader.lose(("spec", key), "a ServingDeployment has no key for it", "add it by `patches`")


def _absorb_objects(context: Context, reader: ImportReader, spec: ImportedSpec, body: Body) -> None:
    """Make the Service, autoscaler and budget of a Deployment part of its spec."""
    given = reader.given
    labels = given.get(*_TEMPLATE_PATH, "metadata", "labels") or {}

    def selects(each: GivenValue) -> bool:
        found = each.get("spec", "selector")
        found = found.get("matchLabels") if isinstance(found, dict) and "matchLabels" in found else found
        return bool(found) and isinstance(found, dict) and found.items() <= labels.items()

    def scales(each: GivenValue) -> bool:
        return (each.get("spec", "scaleTargetRef", "kind"), each.get("spec", "scaleTargetRef", "name")) == (
            "Deployment",
            given.name,
        )

    for service in context.find("Service", given.namespace, selects):
        _absorb_service(context, reader, spec, service)
    for scaler in context.find("HorizontalPodAutoscaler", given.namespace, scales):
        own = _absorb_part(context, reader, spec, scaler)
        most, least = own.take("spec", "maxReplicas"), own.take("spec", "minReplicas") or 1
        bounds: Body = {"min": least, "max": most}
        metrics = scaler.get("spec", "metrics") or []
        for index, metric in enumerate(metrics):
            target = metric.get("resource") or {} if isinstance(metric, dict) else {}
            use = (target.get("target") or {}).get("averageUtilization")
            if target.get("name") == "cpu" and isinstance(use, int):
                bounds["cpuUtilization"] = use
                own.take("spec", "metrics", index)
        own.take("spec", "scaleTargetRef")
        own.lose_rest("the autoscaler of a service follows its CPU", "add it by `patches`")
        body["replicas"] = bounds
    for budget in context.find("PodDisruptionBudget", given.namespace, selects):
        own = _absorb_part(context, reader, spec, budget)
        for key in ("minAvailable", "maxUnavailable"):
            if budget.get("spec", key) not in (None, 1 if key == "maxUnavailable" else None):
                own.lose(("spec", key), "a node drain evicts one pod at a time", "")
            own.take("spec", key)
        own.take("spec", "selector")
        own.lose_rest("a ServingDeployment has no key for it", "")


def _absorb_part(context: Context, reader: ImportReader, spec: ImportedSpec, given: GivenValue) -> ImportReader:
    context.used.add(given)
    spec.given.append(given)
    own = ImportReader(given)
    own.losses = reader.losses
    take_common(own)
    return own


def _absorb_service(context: Context, reader: ImportReader, spec: ImportedSpec, service: GivenValue) -> None:
    own = _absorb_part(context, reader, spec, service)
    if service.name not in (spec.name, f"{spec.name}-headless"):
        own.lose(
            ("metadata", "name"),
            f"the Service of the spec is `{spec.name}`, on the port of the server",
            "let clients use that name, or keep the Service as a manifest",
        )
    if service.get("spec", "type") not in (None, "ClusterIP"):
        own.lose(
            ("spec", "type"), "services are inside of the cluster", "add a gateway, or a Service by KubernetesObjects"
        )
    default_ports = facts_of(spec.spec["runtime"]["name"]).ports
    port = spec.spec["runtime"].get("port") or default_ports.get("http")
    known = (port, default_ports.get("http"), default_ports.get("grpc"))
    for index, each in enumerate(service.get("spec", "ports") or ()):
        if isinstance(each, dict) and each.get("port") not in known:
            own.lose(
                ("spec", "ports", index, "port"),
                f"the Service of the spec has the port of the server, {port}",
                "let clients use that port",
            )
    own.take("spec", "selector")
    own.take("spec", "ports")
    for key in (
        "type",
        "clusterIP",
        "clusterIPs",
        "ipFamilies",
        "ipFamilyPolicy",
        "internalTrafficPolicy",
        "sessionAffinity",
    ):
        own.take("spec", key)
    own.lose_rest("a ServingDeployment has no key for it", "add it by `patches`")
