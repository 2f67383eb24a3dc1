"""Pod templates → the parts of a workload's spec."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from avactl.base.quantity import parse_quantity
from avactl.contracts.foreign_keys import key_owner
from avactl.contracts.names import GPU_RESOURCES, injects_devices
from avactl.diagnostics.secrets import looks_secret
from avactl.spec.documents.document import Path
from avactl.workbench.importer.cleaning import clean_pod, default_pull
from avactl.workbench.importer.gpus import ANY_MODELS, NVIDIA, gpu_memory, gpu_model
from avactl.workbench.importer.model import Body, ImportReader, spec_name
from avactl.workbench.importer.sources import volumes

GPU_LABELS = (
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
    "accelerator",
    "gpu-type",
    "gpu.nvidia.com/class",
    "avactl.dev/gpu",
    "karpenter.k8s.aws/instance-gpu-name",
    "node.gpu/model",
    "amd.com/gpu.product-name",
    "cloud.google.com/gke-tpu-accelerator",
)
"""Labels of nodes that name their GPU model."""
_TPU_LABEL = "cloud.google.com/gke-tpu-accelerator"
"""A label that pods with TPUs must select, for GKE to give them the addresses of their slice."""
_PATCHED_KEYS = (
    "imagePullPolicy",
    "lifecycle",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "workingDir",
    "stdin",
    "tty",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "ports",
    "resizePolicy",
)
"""Keys of the main container that specs have as a patch."""
_SETTING_KEYS = (
    "dnsPolicy",
    "dnsConfig",
    "hostAliases",
    "imagePullSecrets",
    "affinity",
    "automountServiceAccountToken",
    "terminationGracePeriodSeconds",
)
_KEY_REMEDIES = {
    "kueue.x-k8s.io/podset-required-topology": "`workers.within` keeps all pods of a job within one part of a level",
    "kueue.x-k8s.io/podset-preferred-topology": "pods of a job are placed close to each other anyway",
}
_IGNORED_KEYS = ("restartPolicy", "enableServiceLinks", "serviceAccount", "preemptionPolicy")
SCHEDULER_NOTE = ("the scheduler follows from the Cluster", "set `daemons.scheduler`, which starts all pods of a job")
_DROPPED_KEYS = {
    "hostNetwork": (
        "pods of teams have networks of their own",
        "set `hostNetwork: {}`, and `hostNetwork: true` in the namespace of the Team",
    ),
    "hostIPC": ("pods of teams do not share memory with their machine", "use `sharedMemory`"),
    "hostPID": ("pods of teams do not see processes of their machine", ""),
    "priorityClassName": ("avactl has priority classes of its own", "set `priority: low`, `normal` or `high`"),
    "priority": ("avactl has priority classes of its own", "set `priority: low`, `normal` or `high`"),
    "runtimeClassName": ("pods of teams use the default runtime", "make it the default of the pool's machines"),
    "nodeName": ("the scheduler chooses the node", "set `pool`, or `pod.nodeSelector`"),
    "topologySpreadConstraints": ("", ""),
    "schedulerName": SCHEDULER_NOTE,
    "hostname": ("pods are named after job, role and index", ""),
    "subdomain": ("the job has a headless Service of its own", ""),
    "shareProcessNamespace": ("avactl sets it where its sidecars need it", ""),
}
_OVERCOMMITTED = ("cpu", "memory", "ephemeral-storage")
"""Resources of which a container may use more than it requests."""
_UNKNOWN_KEY = ("the spec has no key for it", "add it by `patches`, if the pods need it")


@dataclass
class Pod:
    """The parts of a spec that describe the pods of one role."""

    image: str = ""
    command: list[str] = field(default_factory=list)
    args: list[str] = field(default_factory=list)
    env: Body = field(default_factory=dict)
    compute: Body = field(default_factory=dict)
    user: Body = field(default_factory=dict)
    settings: Body = field(default_factory=dict)
    container_patch: Body = field(default_factory=dict)
    pod_patch: Body = field(default_factory=dict)
    container: str = ""
    paths: dict[Path, Path] = field(default_factory=dict)
    """Paths below the spec → paths in the source."""

    def patches(self, target: Body, container: str, group: str = "containers") -> list[tuple[Body, Path]]:
        """Return patches for what the spec has no key for, one for each key, with the keys' paths in the source.

        `group`: the list that holds the main container; that of pods which follow others is in `initContainers`.
        """
        found: list[tuple[Body, Path]] = []
        place = self.paths["image",][:-1]
        for key, value in self.container_patch.items():
            if key == "resources":
                for name in value["limits"]:
                    part = {each: {name: amounts[name]} for each, amounts in value.items() if name in amounts}
                    found.append(({group: [{"name": container, key: part}]}, (*place, key, "limits", name)))
            else:
                found.append(({group: [{"name": container, key: value}]}, (*place, key)))
        found += [({key: value}, (*place[:-2], key)) for key, value in self.pod_patch.items()]
        return [({"target": target, "merge": {"spec": {"template": {"spec": merge}}}}, path) for merge, path in found]


def read_pod(reader: ImportReader, path: Path, main: tuple[str, ...] = ()) -> Pod:
    """Read the pod template at `path`. Raises ValueError if it has no container.

    `main`: names by which the main container is known; otherwise the first.
    """
    pod = Pod()
    template = reader.given.get(*path)
    template = template if isinstance(template, dict) else {}
    found = template.get("spec")
    spec: Body = found if isinstance(found, dict) else {}
    clean_pod(spec)
    _read_metadata(reader, (*path, "metadata"), template.get("metadata") or {}, pod)
    path = (*path, "spec")
    containers = [each for each in spec.get("containers") or () if isinstance(each, dict)]
    if not containers:
        raise ValueError(f"{reader.given.span(*path)}: its pods have no containers")
    index = next((i for i, each in enumerate(containers) if each.get("name") in main), 0)
    for i, each in enumerate(containers):
        place = (*path, "containers", i)
        if i == index:
            pod.container = str(each.get("name") or "")
            _main(reader, place, each, pod)
        else:
            _add(reader, place, each, pod, "sidecars")
    for i, each in enumerate(spec.get("initContainers") or ()):
        if isinstance(each, dict):
            group = "sidecars" if each.get("restartPolicy") == "Always" else "initContainers"
            reader.take(*path, "initContainers", i, "restartPolicy")
            _add(reader, (*path, "initContainers", i), each, pod, group)
    volumes.convert_volumes(
        reader, path, spec, containers[index] if containers else {}, index, pod.compute, pod.settings, pod.paths
    )
    _read_selector(reader, path, spec, pod)
    _read_tolerations(reader, path, spec, pod)
    own = pod.settings.setdefault("securityContext", {})
    container_user = dict(pod.user)
    _read_security(reader, (*path, "securityContext"), own, pod.user, pod.paths)
    pod.user |= container_user  # a container's own user wins
    for key in ("fsGroup", "fsGroupChangePolicy", "supplementalGroups"):
        pod.paths["pod", "securityContext", key] = (*path, "securityContext", key)
    for key in _IGNORED_KEYS:
        reader.take(*path, key)
    for key in _SETTING_KEYS:
        value = reader.take(*path, key)
        if value not in (None, [], {}, False):
            pod.settings[key] = value
            pod.paths["pod", key] = (*path, key)
    account = reader.take(*path, "serviceAccountName")
    if account not in (None, "", "default"):
        pod.settings["serviceAccountName"] = account
        pod.paths["pod", "serviceAccountName"] = (*path, "serviceAccountName")
    if spec.get("topologySpreadConstraints"):
        pod.pod_patch["topologySpreadConstraints"] = reader.take(*path, "topologySpreadConstraints")
    for key, (why, remedy) in _DROPPED_KEYS.items():
        if spec.get(key) not in (None, "", False, [], 0) and why:
            reader.lose((*path, key), why, remedy)
        elif key in spec and why:
            reader.take(*path, key)
    reader.lose_rest(*_UNKNOWN_KEY, path=path)
    if not pod.settings["securityContext"]:
        del pod.settings["securityContext"]
    return pod


def _read_metadata(reader: ImportReader, path: Path, metadata: Body, pod: Pod) -> None:
    reader.take(*path, "creationTimestamp")
    reader.take(*path, "name")
    for group in ("labels", "annotations"):
        kept = {}
        for key in metadata.get(group) or {}:
            owner = key_owner(key)
            if owner == "Kubernetes" and key.startswith("app.kubernetes.io/"):
                reader.take(*path, group, key)  # avactl sets them for each spec
            elif owner:
                reader.lose((*path, group, key), f"it belongs to {owner}", _KEY_REMEDIES.get(key, ""))
            else:
                kept[key] = reader.take(*path, group, key)
                pod.paths["pod", group, key] = (*path, group, key)
        if kept:
            pod.settings[group] = kept


def _main(reader: ImportReader, path: Path, container: Body, pod: Pod) -> None:
    reader.take(*path, "name")
    pod.image = str(reader.take(*path, "image") or "")
    pod.command = [str(each) for each in reader.take(*path, "command") or ()]
    pod.args = [str(each) for each in reader.take(*path, "args") or ()]
    pod.paths.update({("image",): (*path, "image"), ("command",): (*path, "command"), ("args",): (*path, "args")})
    pod.env = _read_env(reader, path, container, pod.paths, ("env",))
    if container.get("envFrom"):
        pod.settings["envFrom"] = reader.take(*path, "envFrom")
        pod.paths["pod", "envFrom"] = (*path, "envFrom")
    _read_resources(reader, path, container, pod)
    own = pod.settings.setdefault("securityContext", {})
    _read_security(reader, (*path, "securityContext"), own, pod.user, pod.paths)
    pod.paths["pod", "securityContext"] = (*path, "securityContext")
    for key in _PATCHED_KEYS:
        value = reader.take(*path, key)
        if value in (None, [], {}) or (key == "imagePullPolicy" and value == default_pull(pod.image)):
            continue
        pod.container_patch[key] = value


def _read_env(reader: ImportReader, path: Path, container: Body, paths: dict[Path, Path], to: Path) -> Body:
    made: Body = {}
    for index, entry in enumerate(container.get("env") or ()):
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            continue
        place, name, source = (*path, "env", index), entry["name"], entry.get("valueFrom") or {}
        paths[*to, name] = place
        if injects_devices(name):
            reader.lose(
                place,
                "the container runtime would inject devices that the pod was not given",
                "nothing: `gpus` requests GPUs",
            )
        elif name.startswith("AVACTL_"):
            reader.lose(place, "avactl sets the variables of this prefix", "")
        elif not source:
            value = "" if entry.get("value") is None else str(entry["value"])
            if looks_secret(value, name):
                secret = spec_name(f"{reader.given.name}-env")
                why = f"the value looks like a credential; the spec reads it from Secret `{secret}`, key `{name}`"
                reader.lose((*place, "value"), why, "create that Secret: `avactl secrets` prints the command")
                made[name] = {"secret": {"name": secret, "key": name}}
            else:
                made[name] = value
            reader.take(*place)
        else:
            made.update(_env_source(reader, place, name, source))
    return made


def _env_source(reader: ImportReader, place: Path, name: str, source: Body) -> Body:
    for key, to in (("secretKeyRef", "secret"), ("configMapKeyRef", "configMap")):
        found = source.get(key)
        if isinstance(found, dict):
            reader.take(*place)
            if found.get("optional"):
                reader.lose((*place, "valueFrom", key, "optional"), "the pods wait until it exists", "")
            return {name: {to: {"name": found.get("name"), "key": found.get("key")}}}
    field_ref = source.get("fieldRef")
    if isinstance(field_ref, dict):
        reader.take(*place)
        return {name: {"field": field_ref.get("fieldPath")}}
    reader.lose(place, "the spec has no key for this source of a variable", "add it by `patches`")
    return {}


def _read_resources(reader: ImportReader, path: Path, container: Body, pod: Pod) -> None:
    resources = container.get("resources") if isinstance(container.get("resources"), dict) else {}
    requests: Body = (resources or {}).get("requests") or {}
    limits: Body = (resources or {}).get("limits") or {}
    place = (*path, "resources")
    more: Body = {}
    for name in {**requests, **limits}:
        asked, limit = requests.get(name, limits.get(name)), limits.get(name)
        for group in ("requests", "limits"):
            reader.take(*place, group, name)
        if name in requests and name in limits and name not in _OVERCOMMITTED and not _is_same(asked, limit):
            reader.lose((*place, "limits", name), f"the request of {name} must be its limit; the spec has the request")
        shown = (*place, "requests" if name in requests else "limits", name)
        if name == "cpu":
            pod.compute["cpu"] = str(asked)
            pod.paths["workers", "cpu"] = shown
            if limit is not None:
                more["cpu"] = str(limit)
        elif name == "memory":
            pod.compute["memory"] = str(limit if limit is not None else asked)
            pod.paths["workers", "memory"] = shown
            if limit is None:
                reader.lose(shown, "the request of memory becomes the limit, too", "raise `memory` if pods use more")
            elif not _is_same(asked, limit):
                reader.lose(
                    (*place, "requests", name),
                    "pods get what they may use: the limit is the request, too",
                    f"write `memory: {asked}` if that is enough",
                )
        elif name == "ephemeral-storage":
            if asked != limit:
                reader.lose(shown, "the limit of disk space is the request, too", "")
            pod.settings["ephemeralStorage"] = str(limit if limit is not None else asked)
            pod.paths["pod", "ephemeralStorage"] = shown
        elif name in GPU_RESOURCES:
            pod.compute["gpus"] = int(parse_quantity(asked))
            if name != NVIDIA:
                pod.compute["gpu"] = ANY_MODELS[name]
        elif "rdma" in name or name.startswith(("vpc.amazonaws.com/efa", "openshift.io/")):
            # The compiler tells whether the pool has them.
            pod.compute["rdma"] = min(max(1, int(parse_quantity(asked))), 16)
            pod.paths["workers", "rdma"] = shown
        elif re.search(r"\bgpu|/mig-|/gpu", name):
            reader.lose(shown, "the pool has whole GPUs", "use `gpus`, or for workspaces a fraction: `gpus: 0.5`")
        else:
            more[name] = str(limit if limit is not None else asked)
    if more:
        pod.container_patch["resources"] = {"limits": more}
        if hidden := {name: value for name, value in more.items() if name != "cpu"}:
            pod.container_patch["resources"]["requests"] = hidden
    for name, default in (("cpu", "1"), ("memory", "2Gi")):
        if name not in pod.compute:
            pod.compute[name] = default
            reader.note(
                (*path, "name"),
                f"the container requests no {name}; the spec says {default}",
                f"write what it needs: `{name}`",
            )
    reader.lose_rest("the spec has no key for it", "", place)


def _is_same(one: Any, other: Any) -> bool:
    try:
        return parse_quantity(one) == parse_quantity(other)
    except ValueError:
        return bool(one == other)


def _read_security(reader: ImportReader, path: Path, settings: Body, user: Body, places: dict[Path, Path]) -> None:
    given = reader.given.get(*path)
    if not isinstance(given, dict):
        reader.take(*path)
        return
    for key in ("runAsUser", "runAsGroup"):
        if isinstance(given.get(key), int):
            user[key] = given[key]
            places[key,] = (*path, key)
        reader.take(*path, key)
    for key in ("fsGroup", "fsGroupChangePolicy", "supplementalGroups", "readOnlyRootFilesystem"):
        if given.get(key) not in (None, [], False):
            settings[key] = given[key]
        reader.take(*path, key)
    if given.get("allowPrivilegeEscalation") is True:
        settings["allowPrivilegeEscalation"] = True
    reader.take(*path, "allowPrivilegeEscalation")
    capabilities = given.get("capabilities") or {}
    if capabilities.get("add"):
        settings["capabilities"] = {"add": capabilities["add"]}
    reader.take(*path, "capabilities")
    if given.get("runAsNonRoot") is not False or user.get("runAsUser") == 0:
        reader.take(*path, "runAsNonRoot")
    if (given.get("seccompProfile") or {}).get("type") == "RuntimeDefault":
        reader.take(*path, "seccompProfile")
    if given.get("privileged") is False:
        reader.take(*path, "privileged")
    reader.lose_rest("pods of teams have the rights of their pod-security level", "", path)


def _add(reader: ImportReader, path: Path, container: Body, pod: Pod, group: str) -> None:
    """Add an init container or sidecar."""
    made: Body = {"name": reader.take(*path, "name"), "image": reader.take(*path, "image")}
    at = (group, len(pod.settings.get(group) or ()))
    for key in ("command", "args", "envFrom", "workingDir", "ports", "volumeMounts"):
        value = reader.take(*path, key)
        if value:
            made[key] = value
    env = _read_env(reader, path, container, pod.paths, ("pod", *at, "env"))
    if env:
        made["env"] = env
    reader.take(*path, "env")
    resources = container.get("resources") or {}
    for name, to in (("cpu", "cpu"), ("memory", "memory"), ("ephemeral-storage", "ephemeralStorage")):
        value = (resources.get("requests") or {}).get(name, (resources.get("limits") or {}).get(name))
        if value is not None:
            made[to] = str(value)
        reader.take(*path, "resources", "requests", name)
        reader.take(*path, "resources", "limits", name)
    security: Body = {}
    user: Body = {}
    _read_security(reader, (*path, "securityContext"), security, user, {})
    if security or user:
        made["securityContext"] = {**security, **user}
    if container.get("imagePullPolicy") == default_pull(str(made["image"])):
        reader.take(*path, "imagePullPolicy")
    reader.lose_rest("sidecars and init containers have no key for it", "add it by `patches`", path)
    pod.settings.setdefault(group, []).append(made)
    pod.paths["pod", *at] = path


def _read_selector(reader: ImportReader, path: Path, spec: Body, pod: Pod) -> None:
    kept: Body = {}
    for key, value in (spec.get("nodeSelector") or {}).items():
        reader.take(*path, "nodeSelector", key)
        pod.paths["pod", "nodeSelector", key] = (*path, "nodeSelector", key)
        if key in GPU_LABELS and pod.compute.get("gpus"):
            pod.compute["gpu"] = gpu_model(str(value))
            pod.paths["workers", "gpu"] = (*path, "nodeSelector", key)
            if key == _TPU_LABEL or gpu_memory(pod.compute["gpu"], str(value)) != gpu_memory(pod.compute["gpu"]):
                kept[key] = str(value)  # the model alone would also mean GPUs with less memory
        elif key == "avactl.dev/pool":
            pod.compute["pool"] = value
        else:
            kept[key] = str(value)
    if kept:
        pod.settings["nodeSelector"] = kept


def _read_tolerations(reader: ImportReader, path: Path, spec: Body, pod: Pod) -> None:
    kept: list[Body] = []
    for index, each in enumerate(spec.get("tolerations") or ()):
        place = (*path, "tolerations", index)
        if not isinstance(each, dict) or not each.get("key"):
            reader.lose(place, "pods tolerate only taints of pools", "name the key of a pool's taint")
            continue
        reader.take(*place)
        pod.paths["pod", "tolerations", len(kept)] = place
        kept.append(each)
    if kept:
        pod.settings["tolerations"] = kept
