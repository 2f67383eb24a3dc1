"""InferenceServices of KServe that are plain Deployments → ServingDeployments.

Source: pkg/controller/v1beta1/inferenceservice of kserve/kserve: components/predictor.go, reconcilers/deployment,
reconcilers/service, reconcilers/hpa and utils; pkg/webhook/admission/pod/storage_initializer_injector.go.
"""

from __future__ import annotations

import copy
import json
import re
from typing import Any

from avactl.compiler.patches.merge import strategic_merge
from avactl.contracts.names import GPU_RESOURCES
from avactl.program import kubernetes_schema
from avactl.spec.documents.document import Path
from avactl.workbench.importer.model import Body, GivenValue, ImportedSpec, ImportReader
from avactl.workbench.importer.sources.context import Context
from avactl.workbench.importer.sources.entrances import mend_targets
from avactl.workbench.importer.sources.services import convert_deployment

_PLACE = "a ServingDeployment would take its place"
_GROUP = "serving.kserve.io"
_MODE = f"{_GROUP}/deploymentMode"
_SCALER = f"{_GROUP}/autoscalerClass"
_METADATA = ("labels", "annotations")
_OWN_DOMAIN = "kserve.io/"
MODES = ("RawDeployment", "Standard")
"""Modes in which KServe makes Deployments."""
_EXTENSION_KEYS = (
    "minReplicas",
    "maxReplicas",
    "scaleTarget",
    "scaleMetric",
    "containerConcurrency",
    "timeout",
    "labels",
    "annotations",
    "deploymentStrategy",
)
_MODEL_KEYS = ("modelFormat", "storageUri", "runtime", "runtimeVersion", "protocolVersion", "name")
_POD_KEYS = ("containers", "volumes", "nodeSelector", "tolerations", "affinity", "imagePullSecrets", "schedulerName")
"""Keys of a ServingRuntime that its pods have; also those of a PodSpec that predictors have in addition."""
_RUNTIME_KEYS = (*_POD_KEYS, "supportedModelFormats", "protocolVersions", "annotations", "labels", "hostIPC")
_CONTAINER = "kserve-container"
_PORT = 8080
_STORAGE_VARIABLE = "STORAGE_URI"
"""Variable of a container whose value KServe takes for the location of a model, and replaces by its directory."""
_MOUNT = "/mnt/models"
_DEFAULTS = {"cpu": "1", "memory": "2Gi"}
"""Values of `resource` in the settings that KServe ships."""
_UTILIZATION = 80
_GPU_BUILDS = ("tfserving", "tensorflow-serving", "torchserve", "huggingfaceserver")


def deployment_mode(given: GivenValue) -> Any:
    """Return how KServe runs an InferenceService: as its status says, or its annotation; None leaves it to KServe."""
    return given.get("status", "deploymentMode") or given.get("metadata", "annotations", _MODE)


def describe_storage(uri: Any) -> str:
    """Say how KServe brings a model to its server."""
    shown = str(uri)[:200]
    if shown.startswith("oci://"):
        return f"KServe runs {shown} beside the server, and links its files to {_MOUNT}"
    commit = ", and it names no commit" if re.fullmatch(r"hf://[^:@]*", shown) else ""
    return f"KServe's init container copies {shown} to {_MOUNT}{commit}"


def describe_canary(predictor: Body) -> str:
    """Say how KServe shares requests between two versions."""
    percent = str(predictor["canaryTrafficPercent"])[:40]
    return f"{percent}% of the requests go to its last version until a person changes it"


class _Unlike(Exception):  # noqa: N818 - the reason, which the report says
    """An InferenceService of which KServe makes more than a Deployment with a Service."""


def convert_inference_service(context: Context, reader: ImportReader) -> ImportedSpec | str:
    """Return the ServingDeployment of an InferenceService, or "" if KServe does more than run a Deployment."""
    given = reader.given
    predictor = given.get("spec", "predictor")
    if deployment_mode(given) not in MODES or not isinstance(predictor, dict):
        return ""
    if set(given.get("spec")) - {"predictor"}:
        return ""
    try:
        deployment = _Deployment(context, given, predictor)
    except _Unlike as reason:
        return f"{_PLACE}; {reason}"
    return deployment.convert(reader)


class _Deployment:
    """The Deployment, Service and autoscaler that KServe makes of a predictor."""

    def __init__(self, context: Context, given: GivenValue, predictor: Body) -> None:
        """Raises _Unlike."""
        self.context, self.given = context, given
        self.name = f"{given.name}-predictor"
        self.aliases: dict[Path, Path] = {}
        """Paths in the Deployment → paths in the InferenceService."""
        self.notes: list[tuple[Path, str, str]] = []
        own: Path = ("spec", "predictor")
        pod = {key: copy.deepcopy(value) for key, value in predictor.items() if key not in (*_EXTENSION_KEYS, "model")}
        model = predictor.get("model")
        annotations = given.get("metadata", "annotations") or {}
        foreign = [key for key in pod if key not in _schema("spec")["fields"]]
        if predictor.get("canaryTrafficPercent") is not None:
            raise _Unlike(describe_canary(predictor))
        if foreign:
            if isinstance(predictor[foreign[0]], dict) and "storageUri" in predictor[foreign[0]]:
                raise _Unlike(f"KServe chooses a server for `{foreign[0]}`")
            raise _Unlike(f"its predictor has `{foreign[0]}`, of which KServe makes more than a Deployment")
        if annotations.get(_SCALER, "hpa") != "hpa":
            raise _Unlike(f"its autoscaler is of class {annotations[_SCALER]}")
        _check_replicas(predictor)
        self.runtime: GivenValue | None = None
        self.url = ""
        """Location of a model that is copied."""
        self.storage: Path = (*own, "model", "storageUri")
        if model is not None:
            if pod.get("containers"):
                raise _Unlike("it has a model, and containers beside that of its server")
            pod = self._with_model(pod, model)
        elif not pod.get("containers"):
            raise _Unlike("it has no container")
        else:
            self._take_storage_variable(pod)
        for index in range(len(pod["containers"])):
            place: Path = ("containers", index) if model is None else ("model",)
            self.aliases["spec", "template", "spec", "containers", index] = (*own, *place)
        for group in _METADATA:
            self.aliases["spec", "template", "metadata", group] = ("metadata", group)
        self.aliases["spec", "template", "spec"] = own
        self.aliases["spec", "strategy"] = (*own, "deploymentStrategy")
        self.aliases["spec", "replicas"] = (*own, "minReplicas")
        self.aliases["spec",] = own
        container = pod["containers"][0]
        self._set_defaults(container, container if model is None else model)
        self.body = self._make_body(predictor, pod)

    def _with_model(self, pod: Body, model: Any) -> Body:
        """Return the pod of a model: that of its ServingRuntime, with what the model changes."""
        form = model.get("modelFormat") if isinstance(model, dict) else None
        form = form.get("name") if isinstance(form, dict) else None
        if not isinstance(model, dict) or not isinstance(form, str):
            raise _Unlike("its `model` has no `modelFormat` with a name, which KServe requires")
        if model.get("storage"):
            raise _Unlike("`storage` of its model names a place in a Secret of KServe")
        if not model.get("runtime"):
            raise _Unlike(f"KServe chooses a server for `{form}`, unless `runtime` of the model names a ServingRuntime")
        runtime = _find_runtime(self.context, self.given, str(model["runtime"]))
        if runtime is None:
            raise _Unlike(f"its ServingRuntime {model['runtime']} is not in this import")
        self.runtime = runtime
        spec: Body = runtime.get("spec") or {}
        foreign = [key for key in spec if key not in _RUNTIME_KEYS and spec[key] not in (None, False, [], {})]
        containers = spec.get("containers") or []
        index = next((i for i, each in enumerate(containers) if each.get("name") == _CONTAINER), None)
        if foreign or spec.get("hostIPC") or index is None or len(containers) != 1:
            told = f"`{foreign[0]}`" if foreign else f"not one container of the name {_CONTAINER}"
            raise _Unlike(f"its ServingRuntime {runtime.name} has {told}")
        if form not in [each.get("name") for each in spec.get("supportedModelFormats") or ()]:
            raise _Unlike(f"its ServingRuntime {runtime.name} has no format `{form}`")
        own = {key: value for key, value in model.items() if key not in _MODEL_KEYS}
        merged: Body = strategic_merge(_schema("spec", "containers", 0), containers[index], own)
        merged["args"] = [*(containers[index].get("args") or ()), *(own.get("args") or ())]
        merged["name"] = _CONTAINER
        merged = _replace_names(merged, self.given)
        self._choose_image(merged, runtime, model)
        base = {key: spec[key] for key in _POD_KEYS if key in spec and key != "containers"}
        made: Body = strategic_merge(_schema("spec"), base, pod)
        made["containers"] = [merged]
        self._mount(made, merged, model.get("storageUri"))
        why = f"the pod is that of ServingRuntime {runtime.name}, as it is in this import"
        self.notes.append((("spec", "predictor", "model", "runtime"), why, "change the server in the spec"))
        return made

    def _choose_image(self, container: Body, runtime: GivenValue, model: Body) -> None:
        """Give the container the image that KServe chooses for a version, or for GPUs."""
        image = str(container.get("image") or "")
        if "@sha256:" in image:
            return
        version = model.get("runtimeVersion")
        if version:
            container["image"] = f"{re.sub(r':[A-Za-z0-9_.-]*$', '', image)}:{version}"
            return
        kind = runtime.get("metadata", "annotations", f"{_GROUP}/server-type") or runtime.name
        gpus = any(name in GPU_RESOURCES for name in ((container.get("resources") or {}).get("limits") or {}))
        if gpus and any(each in str(kind) for each in _GPU_BUILDS) and not image.endswith("-gpu"):
            container["image"] = f"{image}-gpu"
        elif not gpus and "vllm" in str(kind):
            raise _Unlike("KServe runs another image of vLLM where it has no GPU")

    def _mount(self, pod: Body, container: Body, uri: Any) -> None:
        """Mount the claim that a model is on, as KServe does."""
        if uri is None:
            return
        found = re.fullmatch(r"pvc://([a-z0-9.-]+)(?:/(.*))?", str(uri))
        if found is None and re.match("s3://|hf://[^/]+/[^/@:]+:[0-9a-f]{40}$", str(uri)):
            self.url = re.sub(r"^(hf://.*):", r"\1@", str(uri))
            why = f"pods copy it by themselves, in place of KServe's init container, and not to {_MOUNT}"
            remedy = "its credentials are those of the team's bucket, or `model: {secret: NAME}`"
            self.notes.append((self.storage, why, remedy))
            return
        if found is None:
            raise _Unlike(describe_storage(uri))
        mount: Body = {"name": "kserve-pvc-source", "mountPath": _MOUNT, "readOnly": True}
        if found[2]:
            mount["subPath"] = found[2].strip("/")
        container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]
        volume = {"name": mount["name"], "persistentVolumeClaim": {"claimName": found[1]}}
        pod["volumes"] = [*(pod.get("volumes") or ()), volume]
        why = f"the claim is mounted at {_MOUNT}, read-only; KServe without direct mounts copies it there"
        self.notes.append((self.storage, why, ""))

    def _take_storage_variable(self, pod: Body) -> None:
        """Give a container the model that its variable locates, as KServe does."""
        for index, container in enumerate(pod["containers"]):
            for position, entry in enumerate(container.get("env") or ()):
                if entry.get("name") != _STORAGE_VARIABLE:
                    continue
                if index or container.get("name", _CONTAINER) != _CONTAINER or not entry.get("value"):
                    raise _Unlike(f"KServe reads {_STORAGE_VARIABLE} of a container in its own way")
                if any(each.get("name") == _STORAGE_VARIABLE for each in container["env"][position + 1 :]):
                    raise _Unlike(f"it has {_STORAGE_VARIABLE} twice")
                self.storage = ("spec", "predictor", "containers", index, "env", position)
                self._mount(pod, container, entry["value"])
                entry["value"] = _MOUNT
                break

    def _set_defaults(self, container: Body, own: Body) -> None:
        """Give the container what KServe sets if it is missing."""
        container["name"] = container.get("name") or _CONTAINER
        container.setdefault("imagePullPolicy", "IfNotPresent")
        env = [each for each in container.get("env") or () if each.get("name") != "INFERENCE_SERVICE_NAME"]
        container["env"] = [*env, {"name": "INFERENCE_SERVICE_NAME", "value": self.given.name}]
        ports = container.get("ports") or []
        number = ports[0]["containerPort"] if ports else _PORT
        if not ports:
            container["ports"] = [{"containerPort": _PORT}]
        if not container.get("readinessProbe"):
            container["readinessProbe"] = {"tcpSocket": {"port": number}, "periodSeconds": 10, "timeoutSeconds": 1}
        given = own.get("resources") or {}
        missing = []
        resources = container.setdefault("resources", {})
        for group in ("requests", "limits"):
            amounts = resources.setdefault(group, {})
            for name, value in _DEFAULTS.items():
                if name not in (given.get(group) or {}):
                    amounts[name] = value
                    missing.append(f"{group}.{name}: {value}")
        if missing:
            place: Path = (
                ("spec", "predictor", "model") if self.runtime is not None else ("spec", "predictor", "containers", 0)
            )
            why = f"KServe adds {', '.join(missing)} by its settings, unless they have other values of `resource`"
            self.notes.append((place, why, "write what the server needs: `resources`"))

    def _make_body(self, predictor: Body, pod: Body) -> Body:
        given = self.given
        runtime: Body = (self.runtime.get("spec") if self.runtime is not None else None) or {}
        parts = [runtime, given.value["metadata"], predictor]
        labels, annotations = (_join(group, *parts) for group in _METADATA)
        labels["app"] = f"isvc.{self.name}"
        least = max(1, predictor.get("minReplicas") or 1)
        spec: Body = {
            "replicas": least,
            "selector": {"matchLabels": {"app": labels["app"]}},
            "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod},
        }
        if predictor.get("deploymentStrategy"):
            spec["strategy"] = predictor["deploymentStrategy"]
        metadata = {"name": self.name, "namespace": given.namespace, "labels": labels, "annotations": annotations}
        return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": copy.deepcopy(metadata), "spec": spec}

    def _others(self, predictor: Body) -> list[Body]:
        """Return the Service and the autoscaler that KServe makes."""
        container = self.body["spec"]["template"]["spec"]["containers"][0]
        metadata = {"name": self.name, "namespace": self.given.namespace}
        ports = [
            {
                "name": each.get("name") or self.name,
                "port": 80 if index == 0 else each["containerPort"],
                "targetPort": each["containerPort"],
                "protocol": each.get("protocol") or "TCP",
            }
            for index, each in enumerate(container["ports"])
        ]
        selector = self.body["spec"]["selector"]["matchLabels"]
        made: list[Body] = [
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": metadata,
                "spec": {"selector": selector, "ports": ports},
            }
        ]
        least, most = self.body["spec"]["replicas"], predictor.get("maxReplicas") or 0
        if most > least:
            metric = predictor.get("scaleMetric") or "cpu"
            use = predictor.get("scaleTarget") or (_UTILIZATION if metric == "cpu" else None)
            if metric not in ("cpu", "memory") or use is None:
                raise _Unlike(f"its autoscaler has metric {metric}")
            target = {"type": "Utilization", "averageUtilization": use}
            scaled = {"apiVersion": "apps/v1", "kind": "Deployment", "name": self.name}
            bounds = {"scaleTargetRef": scaled, "minReplicas": least, "maxReplicas": most}
            metrics = [{"type": "Resource", "resource": {"name": metric, "target": target}}]
            made.append(
                {
                    "apiVersion": "autoscaling/v2",
                    "kind": "HorizontalPodAutoscaler",
                    "metadata": metadata,
                    "spec": {**bounds, "metrics": metrics},
                }
            )
        return made

    def convert(self, reader: ImportReader) -> ImportedSpec | str:
        """Return the spec of the Deployment, as one of the InferenceService."""
        given, doc = self.given, self.given.doc
        predictor: Body = given.get("spec", "predictor")
        try:
            others = [GivenValue(each, doc, given.path) for each in self._others(predictor)]
        except _Unlike as reason:
            return f"{_PLACE}; {reason}"
        inner = ImportReader(GivenValue(copy.deepcopy(self.body), doc, given.path))
        inner.aliases = self.aliases
        spec = convert_deployment(self.context.with_objects(others), inner, path="/")
        if isinstance(spec, str):
            return f"{_PLACE}; {spec}"
        if self.url:
            if spec.spec["model"].get("path") != _MOUNT:
                return f"{_PLACE}; its server is none that avactl knows, or its command does not name {_MOUNT}"
            del spec.spec["model"]["path"]
            spec.spec["model"]["url"] = self.url
            spec.origins["spec", "model", "url"] = (given, self.storage)
        spec.acts_as = [GivenValue(self.body, doc, given.path), *others]
        spec.given = [given]
        deployment = str(inner.given)
        spec.losses = [
            each._replace(source=str(given), path=each.path if each.source == deployment else "")
            for each in inner.losses
        ]
        spec.origins = {place: (given, self._own_path(path)) for place, (_, path) in spec.origins.items()}
        spec.mends = [each for each in spec.mends if each.given not in others]
        mend_targets(self.context, spec, given)
        self._tell(reader, predictor)
        spec.losses += reader.losses
        return spec

    def _own_path(self, path: Path) -> Path:
        """Return the path in the InferenceService of a value of the Deployment."""
        for made, real in self.aliases.items():
            if path[: len(made)] == made:
                return (*real, *path[len(made) :])
        return path

    def _tell(self, reader: ImportReader, predictor: Body) -> None:
        """List what KServe adds to the Deployment, and what is for KServe alone."""
        for path, why, remedy in self.notes:
            reader.note(path, why, remedy)
        why = f"KServe also makes Service {self.given.name}, and a route from outside: the spec has Service {self.name}"
        reader.lose(("metadata", "name"), why, "let clients ask that Service, or write `expose`")
        if predictor.get("minReplicas") == 0:
            reader.note(("spec", "predictor", "minReplicas"), "without Knative, KServe runs at least one pod", "")
        for key in ("containerConcurrency", "timeout"):
            if predictor.get(key) is not None:
                reader.lose(("spec", "predictor", key), "it is for Knative, and for routes of KServe", "")
        for place in (("metadata",), ("spec", "predictor")):
            for group in _METADATA:
                for key in self.given.get(*place, group) or ():
                    if _OWN_DOMAIN in key and key != _MODE:
                        reader.lose((*place, group, key), "it is for KServe", "")


def _check_replicas(predictor: Body) -> None:
    """Raise _Unlike for numbers of replicas that KServe refuses: `validateReplicas` of apis/serving/v1beta1."""
    least, most = predictor.get("minReplicas"), predictor.get("maxReplicas")
    for key, value in (("minReplicas", least), ("maxReplicas", most)):
        if value is not None and (type(value) is not int or value < 0):
            raise _Unlike(f"KServe refuses `{key}: {json.dumps(value, default=str)[:40]}`")
    least = 1 if least is None else least
    if most and least > most:
        raise _Unlike(f"KServe refuses `minReplicas: {least}` above `maxReplicas: {most}`")


def _join(group: str, *parts: Body) -> Body:
    """Return the labels or annotations of several objects, but for those that KServe and kubectl read."""
    found = {key: value for part in parts for key, value in (part.get(group) or {}).items()}
    foreign = (_OWN_DOMAIN, "kubectl.kubernetes.io/")
    return {key: value for key, value in found.items() if not any(domain in key for domain in foreign)}


def _find_runtime(context: Context, given: GivenValue, name: str) -> GivenValue | None:
    """Return the ServingRuntime of a name in the namespace of an object, or that of the cluster."""
    own = ("ServingRuntime", given.namespace), ("ClusterServingRuntime", "")
    return next((each for kind, space in own for each in context.find(kind, space, lambda x: x.name == name)), None)


def _replace_names(value: Any, given: GivenValue) -> Any:
    """Return a container with the name and namespace of the InferenceService. Raises _Unlike for other templates."""
    if isinstance(value, dict):
        return {key: _replace_names(each, given) for key, each in value.items()}
    if isinstance(value, list):
        return [_replace_names(each, given) for each in value]
    if not isinstance(value, str):
        return value
    made = re.sub(r"\{\{ *\.Name *\}\}", given.name, value)
    made = re.sub(r"\{\{ *\.Namespace *\}\}", given.namespace, made)
    if "{{" in made:
        raise _Unlike(f"its ServingRuntime has the template `{made[:80]}`")
    return made


def _schema(*path: str | int) -> Body:
    """Return the schema of a part of a pod."""
    found: Any = kubernetes_schema.find("v1", "Pod")
    for step in path:
        found = kubernetes_schema.child_schema(found, step)
    return dict(kubernetes_schema.resolve_reference(found))
