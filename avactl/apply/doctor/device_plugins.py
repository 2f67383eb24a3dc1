"""How NVIDIA's device plugin hands GPUs over, by its DaemonSet and settings file: who chooses the GPUs of a pod."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from avactl.spec.documents.yaml import load_yaml

_PLUGIN_NAMES = ("nvidia-device-plugin", "nvidia-gpu-device-plugin")
"""Beginnings of names of containers: NVIDIA's Helm charts, and the plugin of GKE."""
_GKE_PLUGIN = "nvidia-gpu-device-plugin"
_TOOLKIT_NAME = "nvidia-container-toolkit"
_STRATEGY, _DEVICE_SPECS, _CONFIG_FILE = "DEVICE_LIST_STRATEGY", "PASS_DEVICE_SPECS", "CONFIG_FILE"
_PRIVILEGED_ONLY = "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED"
_FILE_SOURCE, _FILE_TARGET = "CONFIG_FILE_SRCDIR", "CONFIG_FILE_DST"
_NODE_LABEL = "nvidia.com/device-plugin.config"
_MAX_FILES = 100
"""Maximum number of settings files of a plugin that are read."""
_FALSE, _TRUE = ("false", "0", "f"), ("true", "1", "t")


_Chooser = tuple[Literal["scheduler", "kubelet", ""], str]


class PluginSetup(NamedTuple):
    """A device plugin on some nodes of a cluster."""

    where: str
    """Its DaemonSet, and the ConfigMap with its settings."""
    node_selector: Mapping[str, str]
    chosen_by: Literal["scheduler", "kubelet", ""]
    """The one who chooses the GPUs of a pod that sets `NVIDIA_VISIBLE_DEVICES`; empty if its settings do not say it."""
    why: str
    without_label: str = ""
    """Label that its nodes do not have; empty if they may have any."""

    def is_on(self, labels: Mapping[str, str]) -> bool:
        """Return True if its node selector allows a node with these labels."""
        return self.node_selector.items() <= labels.items() and self.without_label not in labels


ConfigMaps = Mapping[tuple[str, str], Mapping[str, str] | None]
"""Data of ConfigMaps by namespace and name; None if the account may not read it, absent if there is none."""


class _PluginPod(NamedTuple):
    """A container of a DaemonSet, and what it is read with."""

    where: str
    namespace: str
    pod: Mapping[str, Any]
    container: Mapping[str, Any]


class _SettingsFile(NamedTuple):
    """The settings file of a device plugin on some nodes."""

    where: str
    labels: Mapping[str, str]
    """Labels of the nodes that have this file."""
    without_label: str
    strategy: str | None
    specs: str | None
    problem: str
    """Reason for which its content is not known; empty if it is."""


def find_plugins(daemon_sets: Iterable[Mapping[str, Any]], config_maps: ConfigMaps | None = None) -> list[PluginSetup]:
    """Return NVIDIA's device plugins among a cluster's DaemonSets; several for one whose settings depend on the node.

    A pod's own variable has an effect only with the strategy `envvar`, and it is the only thing that has one only
    without `PASS_DEVICE_SPECS`, with which the container also gets the device files that the kubelet chose. All
    strategies with CDI ignore it, and CDI files set it to `void`. Sources: getAllocateResponse in
    internal/plugin/server.go, api/config/v1 and cmd/config-manager of NVIDIA/k8s-device-plugin;
    controllers/object_controls.go and assets/state-device-plugin of NVIDIA/gpu-operator; VisibleDevices in
    internal/config/image/cuda_image.go of NVIDIA/nvidia-container-toolkit.
    """
    pods = list(_containers(daemon_sets))
    refused = next((each.where for each in pods if _refuses_variable(each.container)), "")
    return [
        setup for each in pods if _is_plugin(each.container) for setup in _read_plugin(each, config_maps or {}, refused)
    ]


def settings_maps(daemon_sets: Iterable[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """Return namespace and name of the ConfigMaps that device plugins read settings from."""
    return {
        (each.namespace, name)
        for each in _containers(daemon_sets)
        if _is_plugin(each.container) and _read_setting(each.container, _CONFIG_FILE)
        for volume in each.pod.get("volumes") or ()
        if (name := (volume.get("configMap") or {}).get("name"))
    }


def _containers(sets: Iterable[Mapping[str, Any]]) -> Iterator[_PluginPod]:
    for item in sets:
        namespace = str(item["metadata"].get("namespace", ""))
        pod = item["spec"]["template"].get("spec") or {}
        for container in pod.get("containers") or ():
            yield _PluginPod(f"DaemonSet {namespace}/{item['metadata']['name']}", namespace, pod, container)


def _is_plugin(container: Mapping[str, Any]) -> bool:
    return str(container.get("name")).startswith(_PLUGIN_NAMES) and not _is_config_manager(container)


def _is_config_manager(container: Mapping[str, Any]) -> bool:
    return _read_setting(container, _FILE_TARGET) is not None


def _refuses_variable(container: Mapping[str, Any]) -> bool:
    """Return True for a toolkit whose runtime ignores the variable of unprivileged containers."""
    if not str(container.get("name")).startswith(_TOOLKIT_NAME):
        return False
    return (_read_setting(container, _PRIVILEGED_ONLY) or "").lower() in _FALSE


def _read_plugin(each: _PluginPod, config_maps: ConfigMaps, refused: str) -> Iterator[PluginSetup]:
    nodes = each.pod.get("nodeSelector") or {}
    if str(each.container.get("name")).startswith(_GKE_PLUGIN):
        yield PluginSetup(each.where, nodes, "kubelet", "GKE's device plugin hands device files over")
        return
    strategy, specs = _read_setting(each.container, _STRATEGY), _read_setting(each.container, _DEVICE_SPECS)
    path = _read_setting(each.container, _CONFIG_FILE)
    if not path or (strategy is not None and specs is not None):
        yield PluginSetup(each.where, nodes, *_find_chooser(strategy, specs, refused))
        return
    for file in _settings_files(each, path, config_maps):
        merged = (strategy if strategy is not None else file.strategy, specs if specs is not None else file.specs)
        chooser: _Chooser = ("", file.problem) if file.problem else _find_chooser(*merged, refused)
        yield PluginSetup(file.where, {**nodes, **file.labels}, *chooser, file.without_label)


def _find_chooser(strategy: str | None, specs: str | None, refused: str) -> _Chooser:
    """Return who chooses the GPUs of a pod, and why, by the settings of a device plugin."""
    if strategy == "":
        return "", f"{_STRATEGY} is in another object"
    strategies = [word.strip() for word in (strategy or "envvar").split(",")]
    if strategies != ["envvar"]:
        return "kubelet", f"{_STRATEGY} is {','.join(strategies)[:80]}"
    if (specs or "").lower() in _TRUE:
        return "kubelet", f"{_DEVICE_SPECS} is true: containers also get the device files that the kubelet chose"
    if refused:
        return "kubelet", f"{refused} ignores the variable of unprivileged containers ({_PRIVILEGED_ONLY})"
    return "scheduler", f"{_STRATEGY} is envvar"


def _settings_files(each: _PluginPod, path: str, config_maps: ConfigMaps) -> Iterator[_SettingsFile]:
    """Yield the settings files of a plugin: a mounted one, or those from which its config-manager chooses.

    A label of the node names the key of the ConfigMap; without it, `DEFAULT_CONFIG` does, or a fallback.
    """
    containers = (*(each.pod.get("initContainers") or ()), *(each.pod.get("containers") or ()))
    manager = next((one for one in containers if _read_setting(one, _FILE_TARGET) == path), None)
    directory = path if manager is None else _read_setting(manager, _FILE_SOURCE) or ""
    name, key = _find_mounted(each.pod, each.container if manager is None else manager, directory)
    if not name:
        yield _SettingsFile(each.where, {}, "", None, None, "its settings are in a file that is in no ConfigMap")
        return
    where = f"{each.where}, ConfigMap {name}"
    data = config_maps.get((each.namespace, name), {})
    if data is None:
        problem = f"its settings are in ConfigMap {each.namespace}/{name}, which this account may not read"
        yield _SettingsFile(where, {}, "", None, None, problem)
    elif manager is None:
        yield _read_file(where, {}, "", data, key)
    else:
        label = _read_setting(manager, "NODE_LABEL") or _NODE_LABEL
        for key in sorted(data)[:_MAX_FILES]:
            yield _read_file(where, {label: key}, "", data, key)
        yield _read_file(where, {}, label, data, _choose_default(manager, data))


def _find_mounted(pod: Mapping[str, Any], container: Mapping[str, Any], path: str) -> tuple[str, str]:
    """Return the ConfigMap that is mounted at a path or above it, and the key of the file; empty if there is none."""
    volumes = {volume.get("name"): volume.get("configMap") or {} for volume in pod.get("volumes") or ()}
    for mount in container.get("volumeMounts") or ():
        source, at = volumes.get(mount.get("name"), {}), str(mount.get("mountPath", "")).rstrip("/")
        if source.get("name") and (path == at or path.startswith(f"{at}/")):
            file = str(mount.get("subPath") or path[len(at) + 1 :])
            keys = {entry.get("path"): str(entry.get("key")) for entry in source.get("items") or ()}
            return str(source["name"]), keys.get(file, file)
    return "", ""


def _choose_default(manager: Mapping[str, Any], data: Mapping[str, str]) -> str | None:
    """Return the key for nodes without the label; empty for the empty file, None if the plugin does not start."""
    if chosen := _read_setting(manager, "DEFAULT_CONFIG"):
        return chosen
    for way in (_read_setting(manager, "FALLBACK_STRATEGIES") or "").split(","):
        if way == "named" and "default" in data:
            return "default"
        if way == "single" and len(data) == 1:
            return next(iter(data))
        if way == "empty":
            return ""
    return None


def _read_file(
    where: str, labels: Mapping[str, str], without_label: str, data: Mapping[str, str], key: str | None
) -> _SettingsFile:
    def file(problem: str, strategy: str | None = None, specs: str | None = None) -> _SettingsFile:
        return _SettingsFile(where, labels, without_label, strategy, specs, problem)

    if key == "":
        return file("")
    if key is None or key not in data:
        return file("it names no file for nodes without a label" if key is None else f"it has no key {key[:80]}")
    documents, _ = load_yaml(key, data[key].encode())
    if len(documents) != 1 or not isinstance(documents[0].value, dict) or documents[0].get("version") != "v1":
        return file(f"`{key[:80]}` is no settings file of version v1")
    strategy, specs = (documents[0].get("flags", "plugin", each) for each in ("deviceListStrategy", "passDeviceSpecs"))
    words = strategy if isinstance(strategy, list) else [] if strategy is None else [strategy]
    return file("", ",".join(map(str, words)) or None, None if specs is None else str(specs))


def _read_setting(container: Mapping[str, Any], name: str) -> str | None:
    """Return a setting by argument or variable; None if it is not set, empty if the value is in another object.

    Arguments come before variables, and both before a file.
    """
    flag = "--" + name.lower().replace("_", "-")
    words = [str(word) for key in ("command", "args") for word in container.get(key) or ()]
    for index, word in enumerate(words):
        if word == flag:
            value = words[index + 1] if index + 1 < len(words) else ""
            return "true" if value.startswith("-") or not value else value
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    for entry in container.get("env") or ():
        if entry.get("name") == name:
            return str(entry.get("value") or "")
    return None
