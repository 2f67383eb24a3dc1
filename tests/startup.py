"""Properties of a pod that would start: functions that list the problems of one pod of the examples.

What only a cluster knows (images, Secrets) is left out.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

import pytest
from typer.main import get_command

from avactl.cli.app import COMMANDS, app
from avactl.compiler import compile_tree
from avactl.contracts.pod_annotations import DEVICES, JOB_FAILURES, JOB_IGNORED_FAILURES, JOB_INDEX
from avactl.program.lowering.storage import offers_many
from avactl.program.manifest import Manifest, templates_of
from avactl.spec.platform.cluster import StorageClass
from tests.example_trees import EXAMPLES, example_tree

Body = dict[str, Any]
SET_BY_CONTROLLERS = tuple(each.name for each in (JOB_INDEX, JOB_FAILURES, JOB_IGNORED_FAILURES, DEVICES))
"""Annotations of pods that controllers write."""
FROM_KUBERNETES = ("kube-root-ca.crt",)
"""ConfigMaps that every namespace has."""


class World:
    """The objects of one cluster of an example."""

    def __init__(self, manifests: list[Manifest], classes: list[StorageClass]) -> None:
        self.found = {(m.kind, m.namespace or "", m.name): m.body for m in manifests}
        self.classes = {each.name: each for each in classes}

    def get(self, kind: str, namespace: str, name: str) -> Body | None:
        return self.found.get((kind, namespace, name))

    def of(self, kind: str, namespace: str) -> list[Body]:
        return [body for (k, ns, _), body in self.found.items() if (k, ns) == (kind, namespace)]


class Pod(NamedTuple):
    """One pod template."""

    where: str
    """Object and spec file, for messages."""
    team: str | None
    namespace: str
    labels: dict[str, str]
    annotations: dict[str, str]
    spec: Body
    replicas: int
    """Pods of this template at the same time; 2 stands for several."""
    templates: tuple[str, ...]
    """Names of volume claim templates."""
    world: World

    @property
    def containers(self) -> list[Body]:
        return [*self.spec.get("initContainers", ()), *self.spec["containers"]]

    def volume(self, name: str) -> Body | None:
        if name in self.templates:
            return {"name": name, "claimTemplate": name}
        return next((volume for volume in self.spec.get("volumes", ()) if volume["name"] == name), None)

    def writable(self, container: Body, path: str) -> bool:
        """Return True if a path of a container is on a volume that it may write."""
        over = [
            mount
            for mount in container.get("volumeMounts", ())
            if path == mount["mountPath"] or path.startswith(f"{mount['mountPath'].rstrip('/')}/")
        ]
        if not over:
            return False
        mount = max(over, key=lambda mount: len(mount["mountPath"]))
        volume = self.volume(mount["name"]) or {}
        return not mount.get("readOnly") and not {"configMap", "secret", "projected"} & set(volume)


def env(container: Body) -> dict[str, Any]:
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container.get("env", ())}


def user_containers(pod: Pod) -> Iterator[Body]:
    """Containers that run a team's image: the first one of a pod, or the sidecar of a pod that follows another Job."""
    if pod.team is not None:
        wanted = pod.labels["app.kubernetes.io/component"]
        yield from (container for container in pod.containers if container["name"] == wanted)


@cache
def pods(example: str) -> tuple[Pod, ...]:
    result = compile_tree(example_tree(example))
    found = []
    clusters = {m.cluster for m in result.manifests}
    worlds = {
        name: World(
            [m for m in result.manifests if m.cluster == name],
            result.program.cluster_spec(name).storage_classes.classes,
        )
        for name in clusters
    }
    for manifest in result.manifests:
        spec = manifest.body.get("spec", {})
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        # Autoscalers set the replicas of Deployments; a StatefulSet without them has one, the default.
        unset = 1 if manifest.kind == "StatefulSet" else 2
        several = manifest.kind == "DaemonSet" or max(spec.get("replicas", unset), spec.get("completions", 0)) > 1
        item = manifest.item
        for path, template in templates_of(manifest.body):
            found.append(
                Pod(
                    f"{manifest.id} {path[-1]} ({item.doc.file})",
                    item.team,
                    manifest.namespace or "",
                    template["metadata"]["labels"],
                    template["metadata"].get("annotations", {}),
                    template["spec"],
                    2 if several and manifest.kind != "Job" else spec.get("completions", 1),
                    tuple(claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", ())),
                    worlds[manifest.cluster],
                )
            )
    return tuple(found)


# -- properties: what keeps a pod from starting --------------------------------------------------------------------


def image(pod: Pod) -> Iterator[str]:
    for container in pod.containers:
        if not container.get("image"):
            yield f"{container['name']} has no image"


def user(pod: Pod) -> Iterator[str]:
    of_pod = pod.spec.get("securityContext", {})
    for container in pod.containers:
        security = {**of_pod, **container.get("securityContext", {})}
        uid = security.get("runAsUser")
        if uid is None:
            yield f"{container['name']} runs as whatever user its image has"
        elif uid == 0 and (pod.team or security.get("runAsNonRoot") is not False):
            yield f"{container['name']} runs as root"
    if "fsGroup" not in of_pod and any("persistentVolumeClaim" in v for v in pod.spec.get("volumes", ())):
        yield "its user cannot write to its volumes: no fsGroup"


def home(pod: Pod) -> Iterator[str]:
    users = [container["name"] for container in user_containers(pod)]
    for container in pod.containers:
        directory = env(container).get("HOME")
        if container["name"] in users:
            if not env(container).get("USER"):
                yield f"{container['name']} has no USER"
            if directory is None:
                yield f"{container['name']} has no HOME"
        sealed = container.get("securityContext", {}).get("readOnlyRootFilesystem")
        on_disk = directory in (None, "/tmp") and not sealed
        if directory is not None and not on_disk and not pod.writable(container, directory):
            yield f"{container['name']} cannot write to its HOME {directory}"


def mounts(pod: Pod) -> Iterator[str]:
    used = set()
    for container in pod.containers:
        paths = [mount["mountPath"].rstrip("/") for mount in container.get("volumeMounts", ())]
        for path in {path for path in paths if paths.count(path) > 1}:
            yield f"{container['name']} mounts two volumes at {path}"
        for mount in container.get("volumeMounts", ()):
            used.add(mount["name"])
            volume = pod.volume(mount["name"])
            if volume is None:
                yield f"{container['name']} mounts {mount['name']}, which is not a volume of the pod"
            path = mount["mountPath"]
            parents = {posixpath.dirname(path[:i] or "/") for i in range(1, len(path))} | {posixpath.dirname(path)}
            for other in container["volumeMounts"]:
                if other.get("readOnly") and other is not mount and other["mountPath"] in parents:
                    yield f"{container['name']} cannot create {path}: {other['mountPath']} is read-only"
    for volume in pod.spec.get("volumes", ()):
        if volume["name"] not in used:
            yield f"no container mounts volume {volume['name']}"


def claims(pod: Pod) -> Iterator[str]:
    for volume in pod.spec.get("volumes", ()):
        source = volume.get("persistentVolumeClaim")
        if source is None:
            continue
        claim = pod.world.get("PersistentVolumeClaim", pod.namespace, source["claimName"])
        if claim is None:
            yield f"claim {source['claimName']} does not exist"
            continue
        mode, bound = claim["spec"]["accessModes"][0], claim["spec"].get("volumeName")
        sharers = sum(
            other.replicas
            for other in all_pods(pod.world)
            if other.namespace == pod.namespace and source in claimed(other)
        )
        if mode == "ReadWriteOnce" and sharers > 1:
            yield f"several pods mount claim {source['claimName']}, which is ReadWriteOnce"
        if mode == "ReadOnlyMany" and not source.get("readOnly"):
            yield f"it writes to claim {source['claimName']}, which is ReadOnlyMany"
        if bound:
            there = pod.world.get("PersistentVolume", "", bound)
            if there is None or mode not in there["spec"]["accessModes"]:
                yield f"no volume {bound} with {mode}"
        elif mode == "ReadWriteMany":
            declared = pod.world.classes.get(claim["spec"].get("storageClassName") or "")
            if declared is None or not offers_many(declared.provisioner, declared.access_modes):
                yield f"the class of claim {source['claimName']} does not offer {mode}"


def claimed(pod: Pod) -> list[Body]:
    return [volume.get("persistentVolumeClaim") for volume in pod.spec.get("volumes", ())]


@cache
def all_pods(world: World) -> tuple[Pod, ...]:
    return tuple(pod for example in EXAMPLES for pod in pods(example) if pod.world is world)


def directories(pod: Pod) -> Iterator[str]:
    """A directory of a writable bucket is created; a dataset, or a bucket that is only read, holds objects."""
    created = [
        arg
        for other in all_pods(pod.world)
        for container in other.containers
        if "/config/prefixes.sh" in container.get("command", ())
        for arg in container["command"]
    ]
    for source in filter(None, claimed(pod)):
        claim = pod.world.get("PersistentVolumeClaim", pod.namespace, source["claimName"]) or {"spec": {}}
        volume = pod.world.get("PersistentVolume", "", claim["spec"].get("volumeName", "")) or {"spec": {}}
        place = volume["spec"].get("hostPath", {}).get("path", "")
        if not place:
            continue
        written = "ReadWriteMany" in volume["spec"].get("accessModes", ())
        tier, _, name = place.rpartition("/.volumes/")[2].partition("/")
        listed = pod.world.get("ConfigMap", "avactl-cache", f"{tier}-volumes") or {"data": {"volumes": ""}}
        lines = [line.split(" ", 1) for line in listed["data"]["volumes"].splitlines()]
        paths = [path for known, path in lines if known == name]
        if len(paths) != 1:
            yield f"nothing mounts {place}"
        elif written and paths[0] not in created:
            yield f"nothing creates {paths[0]}"


def config_maps(pod: Pod) -> Iterator[str]:
    wanted: list[tuple[str, list[str]]] = []
    for volume in pod.spec.get("volumes", ()):
        sources = [volume, *volume.get("projected", {}).get("sources", ())]
        for source in (source["configMap"] for source in sources if "configMap" in source):
            keys = [entry["key"] for entry in source.get("items", ())]
            subpaths = [
                mount["subPath"]
                for container in pod.containers
                for mount in container.get("volumeMounts", ())
                if mount["name"] == volume["name"] and "subPath" in mount
            ]
            wanted.append((source["name"], keys + subpaths))
    for container in pod.containers:
        wanted += [(source["configMapRef"]["name"], []) for source in container.get("envFrom", ())]
        for value in env(container).values():
            if isinstance(value, dict) and "configMapKeyRef" in value:
                wanted.append((value["configMapKeyRef"]["name"], [value["configMapKeyRef"]["key"]]))
        scripts = [word for word in container.get("command", ()) if word.startswith("/config/")]
        config = (pod.volume("config") or {}).get("configMap")
        wanted += [(config["name"], [posixpath.basename(word)]) for word in scripts if config]
    for name, keys in wanted:
        if name in FROM_KUBERNETES:
            continue
        body = pod.world.get("ConfigMap", pod.namespace, name)
        if body is None:
            yield f"ConfigMap {name} does not exist"
        else:
            yield from (f"ConfigMap {name} has no key {key}" for key in keys if key not in body.get("data", {}))


def fields(pod: Pod) -> Iterator[str]:
    for container in pod.containers:
        for name, value in env(container).items():
            path = value.get("fieldRef", {}).get("fieldPath", "") if isinstance(value, dict) else ""
            if path.startswith("metadata.annotations['"):
                key = path.split("'")[1]
                if key not in pod.annotations and key not in SET_BY_CONTROLLERS:
                    yield f"{container['name']}: {name} reads annotation {key}, which the pod does not have"
        seen: set[str] = set()
        for entry in container.get("env", ()):
            value = entry.get("value") or ""
            for part in value.split("$(")[1:]:
                if part.partition(")")[0] not in seen:
                    yield f"{container['name']}: {entry['name']} uses $({part.partition(')')[0]}) before it is set"
            seen.add(entry["name"])


def accounts(pod: Pod) -> Iterator[str]:
    name = pod.spec.get("serviceAccountName", "default")
    if name != "default" and pod.world.get("ServiceAccount", pod.namespace, name) is None:
        yield f"service account {name} does not exist"
    token = pod.spec.get("automountServiceAccountToken", True) or pod.volume("token") is not None
    bound = {
        subject["name"]
        for kind in ("RoleBinding", "ClusterRoleBinding")
        for (k, _, _), body in pod.world.found.items()
        if k == kind
        for subject in body.get("subjects", ())
        if subject.get("namespace", pod.namespace) == pod.namespace
    }
    if token and name not in bound:
        yield f"it gets a token of {name}, which has no role"


def priorities(pod: Pod) -> Iterator[str]:
    name = pod.spec.get("priorityClassName")
    if name is not None and pod.world.get("PriorityClass", "", name) is None:
        yield f"priority class {name} does not exist"


def checkpoints(pod: Pod) -> Iterator[str]:
    """Every role that writes checkpoints has the directory, not only the workers."""
    for container in user_containers(pod):
        values = env(container)
        directory = values.get("AVACTL_CHECKPOINT_DIR")
        if directory is not None and not pod.writable(container, directory):
            yield f"{container['name']} cannot write to {directory}"
        if directory is None and values.get("AVACTL_ROLE") in ("worker", "chief", "evaluator", "server"):
            mates = [
                other
                for other in all_pods(pod.world)
                for mate in user_containers(other)
                if (other.namespace, env(mate).get("AVACTL_JOB")) == (pod.namespace, values["AVACTL_JOB"])
                and "AVACTL_CHECKPOINT_DIR" in env(mate)
            ]
            if mates:
                yield f"{container['name']} has no checkpoint directory, unlike {mates[0].where}"


def commands(pod: Pod) -> Iterator[str]:
    for container in pod.containers:
        words = [*container.get("command", ()), *container.get("args", ())]
        if words[:1] == ["avactl"]:
            problem = misused(words[1:], env(container))
            if problem:
                yield f"{container['name']}: {' '.join(words)}: {problem}"


def misused(words: list[str], variables: Iterable[str]) -> str:
    """Return why the command line does not take these words; empty if it does."""
    root: Any = get_command(app)
    if words[0] not in COMMANDS:
        return f"no command {words[0]}"
    context = root.make_context("avactl", [words[0]], resilient_parsing=True)
    _, command, _ = root.resolve_command(context, words)
    rest = words[1:]
    while hasattr(command, "commands"):
        if not rest or rest[0] not in command.commands:
            return f"no command {' '.join(words[: len(words) - len(rest) + 1])}"
        command, rest = command.commands[rest[0]], rest[1:]
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name in variables:
                patch.setenv(name, "1")
            command.make_context("avactl", list(rest), parent=context)
    except Exception as error:
        return str(getattr(error, "message", error)) or type(error).__name__
    return ""


def ports(pod: Pod) -> Iterator[str]:
    names: set[str | int] = set()
    for container in pod.spec["containers"]:
        for port in container.get("ports", ()):
            if port["containerPort"] in names or port.get("name") in names:
                yield f"two containers listen on {port['containerPort']}"
            names |= {port["containerPort"], port.get("name", port["containerPort"])}
    # Frameworks and job masters open their ports themselves: these are in the environment and arguments of the job's
    # pods, not among a container's ports.
    told = " ".join(str(pod.world.of(kind, pod.namespace)) for kind in ("Job", "CronJob", "ConfigMap"))
    for service in pod.world.of("Service", pod.namespace):
        selector = service["spec"].get("selector")  # none: the serving daemon sets it
        if selector and selector.items() <= pod.labels.items():
            for port in service["spec"].get("ports", ()):
                opened = port["name"] in ("rendezvous", "master") and str(port["targetPort"]) in told
                if port["targetPort"] not in names and not opened:
                    yield f"Service {service['metadata']['name']} sends to port {port['targetPort']}, which is closed"


def probes(pod: Pod) -> Iterator[str]:
    for container in pod.containers:
        own: set[str | int] = set()
        for port in container.get("ports", ()):
            own |= {port["containerPort"], port.get("name", port["containerPort"])}
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            probe = container.get(kind, {})
            target = probe.get("httpGet") or probe.get("tcpSocket") or {}
            if target and target["port"] not in own:
                yield f"{kind} of {container['name']} asks port {target['port']}, which it does not open"


def gpus(pod: Pod) -> Iterator[str]:
    """A container sees the GPUs that were allocated to it, and no others."""
    for container in pod.containers:
        if pod.team is None:
            continue
        limits = container.get("resources", {}).get("limits", {})
        shown = env(container).get("NVIDIA_VISIBLE_DEVICES")
        asks = any(key.endswith("/gpu") for key in limits) or "avactl.dev/gpu-share" in pod.annotations
        expected: tuple[Any, ...]
        # The health check tests the GPUs of the worker, before it.
        if asks and (container["name"] == "health-check" or container in list(user_containers(pod))):
            field = {"fieldRef": {"fieldPath": DEVICES.field_path}}
            expected = (field if pod.spec.get("schedulerName") == "avactl" else None,)
        else:
            # Also with claims: the driver's CDI files, not the NVIDIA runtime, inject the devices.
            expected = ("void",)
        if shown not in expected:
            yield f"{container['name']} sees the GPUs {shown}"


def device_claims(pod: Pod) -> Iterator[str]:
    offered = {claim["name"]: claim["resourceClaimTemplateName"] for claim in pod.spec.get("resourceClaims", ())}
    made = {
        body["spec"]["channel"]["resourceClaimTemplate"]["name"]
        for body in pod.world.of("ComputeDomain", pod.namespace)
    }
    asked = {
        claim["name"] for container in pod.containers for claim in container.get("resources", {}).get("claims", ())
    }
    if asked != set(offered):
        yield f"containers use the claims {sorted(asked)}, the pod has {sorted(offered)}"
    for template in offered.values():
        if template not in made and pod.world.get("ResourceClaimTemplate", pod.namespace, template) is None:
            yield f"ResourceClaimTemplate {template} does not exist"


PROPERTIES: tuple[Callable[[Pod], Iterator[str]], ...] = (
    image,
    user,
    home,
    mounts,
    claims,
    directories,
    config_maps,
    fields,
    accounts,
    priorities,
    checkpoints,
    commands,
    ports,
    probes,
    gpus,
    device_claims,
)
