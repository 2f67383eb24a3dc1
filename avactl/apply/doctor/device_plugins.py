"""How NVIDIA's device plugin hands GPUs over, read from its DaemonSet: who chooses the GPUs of a pod."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

_PLUGIN_NAMES = ("nvidia-device-plugin", "nvidia-gpu-device-plugin")
"""Beginnings of names of containers: NVIDIA's Helm charts, and the plugin of GKE."""
_GKE_PLUGIN = "nvidia-gpu-device-plugin"
_TOOLKIT_NAME = "nvidia-container-toolkit"
_STRATEGY, _DEVICE_SPECS, _CONFIG_FILE = "DEVICE_LIST_STRATEGY", "PASS_DEVICE_SPECS", "CONFIG_FILE"
_PRIVILEGED_ONLY = "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED"
_FALSE, _TRUE = ("false", "0", "f"), ("true", "1", "t")


class PluginSetup(NamedTuple):
    """A device plugin on some nodes of a cluster."""

    where: str
    """Its DaemonSet."""
    node_selector: Mapping[str, str]
    chosen_by: Literal["scheduler", "kubelet", ""]
    """The one who chooses the GPUs of a pod that sets `NVIDIA_VISIBLE_DEVICES`; empty if its settings do not say it."""
    why: str

    def is_on(self, labels: Mapping[str, str]) -> bool:
        """Return True if its node selector allows a node with these labels."""
        return self.node_selector.items() <= labels.items()


def find_plugins(daemon_sets: Iterable[Mapping[str, Any]]) -> list[PluginSetup]:
    """Return NVIDIA's device plugins among a cluster's DaemonSets.

    A pod's own variable has an effect only with the strategy `envvar`, and it is the only thing that has one only
    without `PASS_DEVICE_SPECS`, with which the container also gets the device files that the kubelet chose. All
    strategies with CDI ignore it, and CDI files set it to `void`. Sources: getAllocateResponse in
    internal/plugin/server.go of NVIDIA/k8s-device-plugin; controllers/object_controls.go and
    assets/state-device-plugin of NVIDIA/gpu-operator; VisibleDevices in internal/config/image/cuda_image.go of
    NVIDIA/nvidia-container-toolkit.
    """
    sets = list(daemon_sets)
    refused = next((where for where, each in _containers(sets) if _refuses_variable(each[1])), "")
    return [_read_plugin(where, each, refused) for where, each in _containers(sets) if _is_plugin(each[1])]


def _containers(sets: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, tuple[Mapping[str, Any], dict[str, Any]]]]:
    for item in sets:
        where = f"DaemonSet {item['metadata'].get('namespace', '')}/{item['metadata']['name']}"
        pod = item["spec"]["template"].get("spec") or {}
        for container in pod.get("containers") or ():
            yield where, (pod, container)


def _is_plugin(container: Mapping[str, Any]) -> bool:
    return str(container.get("name")).startswith(_PLUGIN_NAMES)


def _refuses_variable(container: Mapping[str, Any]) -> bool:
    """Return True for a toolkit whose runtime ignores the variable of unprivileged containers."""
    if not str(container.get("name")).startswith(_TOOLKIT_NAME):
        return False
    return (_read_setting(container, _PRIVILEGED_ONLY) or "").lower() in _FALSE


def _read_plugin(where: str, each: tuple[Mapping[str, Any], dict[str, Any]], refused: str) -> PluginSetup:
    pod, container = each

    def setup(chosen_by: Literal["scheduler", "kubelet", ""], why: str) -> PluginSetup:
        return PluginSetup(where, pod.get("nodeSelector") or {}, chosen_by, why)

    if str(container.get("name")).startswith(_GKE_PLUGIN):
        return setup("kubelet", "GKE's device plugin hands device files over")
    strategy, specs = _read_setting(container, _STRATEGY), _read_setting(container, _DEVICE_SPECS)
    if _read_setting(container, _CONFIG_FILE) and (strategy is None or specs is None):
        return setup("", "its settings are in a file, which `avactl doctor` does not read")
    if strategy == "":
        return setup("", f"{_STRATEGY} is in another object")
    strategies = [word.strip() for word in (strategy or "envvar").split(",")]
    if strategies != ["envvar"]:
        return setup("kubelet", f"{_STRATEGY} is {','.join(strategies)[:80]}")
    if (specs or "").lower() in _TRUE:
        return setup("kubelet", f"{_DEVICE_SPECS} is true: containers also get the device files that the kubelet chose")
    if refused:
        return setup("kubelet", f"{refused} ignores the variable of unprivileged containers ({_PRIVILEGED_ONLY})")
    return setup("scheduler", f"{_STRATEGY} is envvar")


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
