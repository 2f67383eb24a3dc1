"""Files of models in the pods: claims of cache tiers, downloads before the start, and downloads while the pods run."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import NamedTuple

from avactl.base.quantity import parse_quantity
from avactl.kinds.serving.follow import FOLLOW_SCRIPT, LIST, READY, WORK
from avactl.kinds.serving.hub import hub_container, is_of_hub
from avactl.kinds.serving.parts.models import LIVE, MODELS, Adapter, Files
from avactl.kinds.serving.runtime import DynamicModels, ModelServer, ModelSource, runtime_of
from avactl.kinds.serving.spec import ServingDeploymentSpec
from avactl.program import dataset_access
from avactl.program.dataset_access import DatasetAccess
from avactl.program.lowering import k8s, pods
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program
from avactl.spec.schema.compute import DatasetMount

MIN_COPY_BYTES_PER_S = 20 << 20
"""Rate below which a copy counts as stalled. A machine's copies of one model share the object store with others'."""
PULL_LIMIT_S = 900
"""Seconds in which the images of a pod are pulled: 17 GiB at that rate. An init container of the spec has as many."""
FOLLOWER = "models"
"""Containers that copy the files of `spec.models`: once before the server starts, and while it runs."""


def dynamic_models(spec: ServingDeploymentSpec) -> DynamicModels | None:
    """Return the models that the server of a spec loads while it runs; None for `spec.model`."""
    load = runtime_of(spec).dynamic
    return load(spec) if spec.models is not None and load is not None else None


def list_name(item: Item[ServingDeploymentSpec]) -> str:
    """Name of the ConfigMap with the list of models, which is no part of the pod template: it changes without it."""
    return f"{item.name}-models"


def secret_of(item: Item[ServingDeploymentSpec], program: Program, model: Files, url: str) -> str | None:
    """Secret for fetching a model: the spec's, else that of the team bucket that contains its URL."""
    if model.secret is not None:
        return model.secret
    for bucket in program.team(str(item.team)).spec.buckets:
        base = bucket.url.rstrip("/")
        if bucket.secret and (url == base or url.startswith(f"{base}/")):
            return bucket.secret
    return None


class ModelFiles(NamedTuple):
    """Files of a model or an adapter that avactl brings into the pod."""

    name: str
    """Name of the volume, and of the container that copies them."""
    directory: str
    access: DatasetAccess
    model: Files


def add_files(item: Item[ServingDeploymentSpec], program: Program, volumes: pods.PodVolumes, run: ModelServer) -> None:
    """Add the files of all models and adapters, and the containers that bring them."""
    spec = item.spec
    loading = dynamic_models(spec)
    if loading is not None:
        volumes.empty("models", MODELS, size=spec.models_size)
        volumes.volumes.append({"name": "model-list", "configMap": {"name": list_name(item)}})
        volumes.init += build_followers(item, program, loading, run.ports["http"])
    for name, where, access, model in _files(item, program):
        if access.claim is not None:
            volumes.claim(name, access.claim, where, read_only=True, fuse=True)
            continue
        if is_of_hub(access.url):
            volumes.empty(name, where, size=access.size)
            volumes.init.append(hub_container(spec, name, access, model, where))
        else:
            volumes.fetched(name, access, name, where, pods.FETCH_MODEL_SCRIPT)


def _files(item: Item[ServingDeploymentSpec], program: Program) -> Iterator[ModelFiles]:
    """Yield the files that do not belong to models which the server loads while it runs."""
    spec = item.spec
    for index, (path, model) in enumerate(spec.places):
        name = (
            f"adapter-{path[-1]}"
            if isinstance(model, Adapter)
            else "model"
            if spec.model is not None
            else f"model-{index}"
        )
        where = spec.directory(model)
        if model.dataset is not None:
            mount = DatasetMount(name=model.dataset.name, version=model.dataset.version, mount=where)
            access = dataset_access.resolve(program, item, mount)
            yield ModelFiles(name, where, access._replace(size=access.size or model.size), model)
        elif model.url is not None and dynamic_models(spec) is None:
            secret = secret_of(item, program, model, model.url)
            yield ModelFiles(name, where, DatasetAccess(None, model.url, secret, model.size), model)


def preparation_limit(item: Item[ServingDeploymentSpec], program: Program) -> int:
    """Seconds in which the images of a pod are pulled and its files copied, by their size: a bound for stalled ones."""
    spec = item.spec
    copied = [access.size or "0" for _, _, access, _ in _files(item, program) if access.claim is None]
    if dynamic_models(spec) is not None:
        copied.append(spec.models_size)
    own = len(spec.pod.init_containers) if spec.pod is not None else 0
    # Init containers run one after another.
    return ceil(sum(map(parse_quantity, copied)) / MIN_COPY_BYTES_PER_S) + PULL_LIMIT_S * (1 + own)


def build_followers(
    item: Item[ServingDeploymentSpec], program: Program, loading: DynamicModels, port: int
) -> list[Body]:
    """Build the init container that copies all models, and the sidecar that follows their list."""
    remotes = {_rclone_remote(item, program, source) for source in loading.sources}
    env = pods.env_list(
        {
            "LIST": LIST,
            "LIVE": LIVE,
            "WORK": WORK,
            "PORT": str(port),
            "RCLONE_CONFIG": "/notfound",
            "STORES": " ".join(sorted(remote.upper() for remote, _, _ in remotes)),
        }
    )
    for remote, url, secret in sorted(remotes, key=str):
        env += _remote_env(remote.upper(), url, secret)
    image = program.cluster_spec(item.cluster).images.fetch
    mounts: list[Body] = [
        {"name": "models", "mountPath": MODELS},
        {"name": "model-list", "mountPath": LIST, "readOnly": True},
    ]
    compute = pods.build_resources("500m", "1Gi")
    first = pods.build_helper(
        "fetch-models", image, FOLLOW_SCRIPT, [*env, {"name": "ONCE", "value": "1"}], compute, mounts
    )
    follow = pods.build_helper(
        FOLLOWER,
        image,
        FOLLOW_SCRIPT,
        env,
        pods.build_resources("50m", "256Mi"),
        mounts,
        restartPolicy="Always",
        # The server's own probes do not name models. This one fails until those of the start are loaded, and while one
        # that was loaded is not.
        readinessProbe={"exec": {"command": ["test", "-f", READY]}, "periodSeconds": 5, "failureThreshold": 2},
    )
    return [first, follow]


def _rclone_remote(item: Item[ServingDeploymentSpec], program: Program, source: ModelSource) -> tuple[str, str, str]:
    """Return name, URL and Secret of the rclone remote for a source. The name follows from what distinguishes remotes,
    so that a model of a known store needs no new pods."""
    scheme, _, rest = source.url.partition("://")
    secret = secret_of(item, program, source.model, source.url) or ""
    host = rest.partition("/")[0] if scheme == "hdfs" else ""
    words = [scheme, secret.replace("-", "_"), k8s.short_digest(host, 6) if host else ""]
    return "_".join(word for word in words if word), f"{scheme}://{host}", secret


def _remote_env(remote: str, url: str, secret: str) -> list[Body]:
    """Environment of an rclone remote. Source: https://rclone.org/docs/#config-file, "Environment variables"."""
    scheme, _, host = url.partition("://")
    settings = pods.rclone_backend(scheme)
    prefix = f"RCLONE_CONFIG_{remote}_"
    env = {f"{prefix}TYPE": settings["BACKEND"]}
    if "RCLONE_S3_PROVIDER" in settings:
        env[f"{prefix}PROVIDER"] = settings["RCLONE_S3_PROVIDER"]
    if scheme == "hdfs":
        env[f"{prefix}NAMENODE"] = host
    found = pods.env_list(env)
    if secret and scheme == "gs":
        found += pods.secret_env(secret, {f"{prefix}SERVICE_ACCOUNT_CREDENTIALS": "serviceAccount"})
    elif secret:
        keys = {"ACCESS_KEY_ID": "accessKeyId", "SECRET_ACCESS_KEY": "secretAccessKey", "ENDPOINT": "endpoint"}
        found += pods.secret_env(secret, {f"{prefix}{name}": key for name, key in keys.items()})
    return found


def model_list(item: Item[ServingDeploymentSpec], program: Program, component: str) -> list[Manifest]:
    """Return the ConfigMap that the sidecar follows: sources, configuration and health of each model."""
    spec = item.spec
    loading = dynamic_models(spec)
    if loading is None:
        return []
    data: dict[str, str] = {}
    for model in spec.served:
        lines = []
        for source in loading.sources:
            if source.model is model:
                remote = _rclone_remote(item, program, source)[0]
                place = source.url.partition("://")[2].rstrip("/")
                if source.url.startswith("hdfs://"):
                    place = f"/{place.partition('/')[2]}"
                place = "/".join(part for part in (place, source.below) if part)
                lines.append(f"{source.target} {remote}:{place} {'unnumbered' if source.unnumbered else 'all'}\n")
        data[f"{model.name}.sources"] = "".join(lines)
        data[f"{model.name}.health"] = "".join(f"{path}\n" for path in loading.health[model.name])
        if model.name in loading.config:
            data[f"{model.name}.config"] = loading.config[model.name]
    return [k8s.config_map(item, item.cluster, list_name(item), item.ns, data, component=component)]
