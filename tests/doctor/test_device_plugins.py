"""What DaemonSets of device plugins say of who chooses the GPUs of a pod, and how that fits the pools."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from avactl.apply.doctor.checks import check
from avactl.apply.doctor.device_plugins import find_plugins, settings_maps
from avactl.apply.doctor.live import Live, _read_plugins
from avactl.apply.doctor.model import CheckState, DoctorFinding
from avactl.apply.doctor.needs import NeededNodes, ProgramNeeds
from avactl.kube.client import ApiError

LABELS = {"avactl.dev/pool": "p"}
OPERATOR_BASE = {"PASS_DEVICE_SPECS": "true", "DEVICE_LIST_STRATEGY": "envvar", "DEVICE_ID_STRATEGY": "uuid"}
OPERATOR_CDI = {**OPERATOR_BASE, "CDI_ENABLED": "true", "DEVICE_LIST_STRATEGY": "cdi-annotations,cdi-cri"}


def plugin(
    env: dict[str, str] | None = None,
    args: tuple[str, ...] = (),
    name: str = "nvidia-device-plugin-ctr",
    selector: dict[str, str] | None = None,
) -> dict[str, Any]:
    container = {
        "name": name,
        "command": ["nvidia-device-plugin"],
        "args": list(args),
        "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
    }
    spec = {"template": {"spec": {"containers": [container], "nodeSelector": selector or {}}}}
    return {"metadata": {"namespace": "gpu-operator", "name": "plugin"}, "spec": spec}


@pytest.mark.parametrize(
    ("env", "args", "chosen_by"),
    [
        (None, (), "scheduler"),
        ({"DEVICE_LIST_STRATEGY": "envvar"}, (), "scheduler"),
        ({"PASS_DEVICE_SPECS": "false"}, (), "scheduler"),
        # The GPU Operator, with and without `cdi.enabled`.
        (OPERATOR_CDI, (), "kubelet"),
        (OPERATOR_BASE, (), "kubelet"),
        ({**OPERATOR_BASE, "PASS_DEVICE_SPECS": "false"}, (), "scheduler"),
        ({"DEVICE_LIST_STRATEGY": "cdi-cri"}, (), "kubelet"),
        ({"DEVICE_LIST_STRATEGY": "volume-mounts"}, (), "kubelet"),
        ({"DEVICE_LIST_STRATEGY": "envvar,cdi-annotations"}, (), "kubelet"),
        # Arguments win over variables.
        (OPERATOR_CDI, ("--device-list-strategy=envvar", "--pass-device-specs=false"), "scheduler"),
        ({}, ("--device-list-strategy", "cdi-cri"), "kubelet"),
        ({}, ("--pass-device-specs", "--fail-on-init-error"), "kubelet"),
        # A file that is in no ConfigMap.
        ({"CONFIG_FILE": "/config/config.yaml"}, (), ""),
        ({**OPERATOR_CDI, "CONFIG_FILE": "/config/config.yaml"}, (), "kubelet"),
    ],
)
def test_settings_of_nvidias_plugin(env: dict[str, str] | None, args: tuple[str, ...], chosen_by: str) -> None:
    (found,) = find_plugins([plugin(env, args)])
    assert found.chosen_by == chosen_by


def test_others() -> None:
    assert [each.chosen_by for each in find_plugins([plugin(name="nvidia-gpu-device-plugin")])] == ["kubelet"]
    assert not find_plugins([plugin(name="gpu-feature-discovery"), plugin(name="mps-control-daemon-ctr")])
    ignores = {"ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED": "false"}
    found = find_plugins([plugin(ignores, name="nvidia-container-toolkit-ctr"), plugin()])
    assert [each.chosen_by for each in found] == ["kubelet"]
    from_elsewhere = plugin()
    container = from_elsewhere["spec"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": "DEVICE_LIST_STRATEGY", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}]
    assert [each.chosen_by for each in find_plugins([from_elsewhere])] == [""]


ENVVAR = "version: v1\nflags: {plugin: {deviceListStrategy: envvar}}\n"
CDI = "version: v1\nflags: {plugin: {deviceListStrategy: [envvar, cdi-cri], passDeviceSpecs: false}}\n"
SPECS = "version: v1\nflags: {plugin: {passDeviceSpecs: true}}\nsharing: {}\n"


def managed(env: dict[str, str] | None = None, **manager: str) -> dict[str, Any]:
    """The DaemonSet of NVIDIA's chart with a ConfigMap, from which its config-manager chooses."""
    found = plugin({"CONFIG_FILE": "/config/config.yaml", **(env or {})})
    settings = {"CONFIG_FILE_SRCDIR": "/available-configs", "CONFIG_FILE_DST": "/config/config.yaml", **manager}
    sidecar = {
        "name": "nvidia-device-plugin-sidecar",
        "env": [{"name": key, "value": value} for key, value in settings.items()],
        "volumeMounts": [{"name": "available-configs", "mountPath": "/available-configs"}],
    }
    pod = found["spec"]["template"]["spec"]
    pod["initContainers"] = [{**sidecar, "name": "nvidia-device-plugin-init"}]
    pod["containers"].insert(0, sidecar)
    pod["volumes"] = [{"name": "available-configs", "configMap": {"name": "settings"}}, {"name": "config"}]
    return found


def chosen(daemon_set: dict[str, Any], data: dict[str, str] | None, labels: dict[str, str]) -> list[str]:
    """The ones who choose on a node with these labels."""
    config_maps = {("gpu-operator", "settings"): data}
    return [each.chosen_by for each in find_plugins([daemon_set], config_maps) if each.is_on(labels)]


def test_settings_in_a_config_map_by_label_of_the_node() -> None:
    data = {"a": ENVVAR, "b": CDI, "c": SPECS}
    daemon_set = managed(DEFAULT_CONFIG="b")
    assert settings_maps([daemon_set]) == {("gpu-operator", "settings")}
    label = "nvidia.com/device-plugin.config"
    assert chosen(daemon_set, data, {label: "a"}) == ["scheduler"]
    assert chosen(daemon_set, data, {label: "b"}) == ["kubelet"]
    assert chosen(daemon_set, data, {label: "c"}) == ["kubelet"]
    assert chosen(daemon_set, data, {}) == ["kubelet"]
    assert chosen(managed(DEFAULT_CONFIG="a", NODE_LABEL="own"), data, {"own": "b"}) == ["kubelet"]
    # Variables come before the file.
    assert chosen(managed({"DEVICE_LIST_STRATEGY": "cdi-cri"}, DEFAULT_CONFIG="a"), data, {}) == ["kubelet"]
    assert chosen(managed({"PASS_DEVICE_SPECS": "false"}, DEFAULT_CONFIG="c"), data, {}) == ["scheduler"]


@pytest.mark.parametrize(
    ("fallbacks", "data", "chosen_by"),
    [
        ("named,single,empty", {"default": CDI, "a": ENVVAR}, "kubelet"),
        ("named,single,empty", {"a": CDI}, "kubelet"),
        ("named,single,empty", {"a": CDI, "b": CDI}, "scheduler"),
        ("single", {"a": CDI, "b": CDI}, ""),
        ("empty", {"a": CDI}, "scheduler"),
        ("single", {"a": "version: v2"}, ""),
        ("single", {"a": "["}, ""),
        ("single", None, ""),
    ],
)
def test_settings_of_nodes_without_a_label(fallbacks: str, data: dict[str, str] | None, chosen_by: str) -> None:
    assert chosen(managed(FALLBACK_STRATEGIES=fallbacks), data, {}) == [chosen_by]


def test_a_mounted_settings_file() -> None:
    daemon_set = plugin({"CONFIG_FILE": "/etc/nvidia/config.yaml"})
    pod = daemon_set["spec"]["template"]["spec"]
    pod["volumes"] = [{"name": "v", "configMap": {"name": "settings"}}]
    pod["containers"][0]["volumeMounts"] = [{"name": "v", "mountPath": "/etc/nvidia"}]
    assert chosen(daemon_set, {"config.yaml": CDI}, {}) == ["kubelet"]
    assert chosen(daemon_set, {"other.yaml": CDI}, {}) == [""]
    pod["containers"][0]["volumeMounts"] = [
        {"name": "v", "mountPath": "/etc/nvidia/config.yaml", "subPath": "other.yaml"}
    ]
    assert chosen(daemon_set, {"other.yaml": CDI}, {}) == ["kubelet"]
    pod["volumes"][0]["configMap"]["items"] = [{"key": "k", "path": "other.yaml"}]
    assert chosen(daemon_set, {"k": ENVVAR}, {}) == ["scheduler"]
    (found,) = find_plugins([daemon_set], {})
    assert (found.chosen_by, found.where, found.why) == (
        "",
        "DaemonSet gpu-operator/plugin, ConfigMap settings",
        "it has no key k",
    )


class Api:
    """Answers of an API server by path."""

    def __init__(self, **items: list[dict[str, Any]]) -> None:
        self.items = items

    async def request(self, method: str, path: str, **_: Any) -> dict[str, Any]:
        if path.endswith("/daemonsets"):
            return {"items": self.items["daemon_sets"], "metadata": {}}
        raise ApiError(404, "NotFound", path)


def test_daemon_sets_of_teams_are_not_believed() -> None:
    pretended = plugin(OPERATOR_CDI)
    pretended["metadata"]["namespace"] = "vision"
    real = plugin()
    live = Live()
    asyncio.run(_read_plugins(Api(daemon_sets=[pretended, real]), live, {"vision"}))  # type: ignore[arg-type]
    assert live.plugins is not None
    assert [each.where for each in live.plugins] == ["DaemonSet gpu-operator/plugin"]


def report(chosen_by: str, plugins: list[dict[str, Any]] | None, **node: Any) -> list[DoctorFinding]:
    pool = NeededNodes("p", dict(LABELS), (), 1, 8, "", {"nvidia.com/gpu": 8}, "pools.yaml:3", chosen_by)
    gpus = {"nvidia.com/gpu": str(node.pop("gpus", 8)), **node.pop("more", {})}
    status = {"allocatable": gpus, "capacity": {**gpus, "nvidia.com/gpu": str(node.pop("capacity", 8))}}
    item = {"metadata": {"labels": {**LABELS, **node.pop("labels", {})}}, "status": status}
    live = Live("1.36.0", nodes={"a": item}, plugins=None if plugins is None else find_plugins(plugins))
    found = check(ProgramNeeds("c", "1.36", pools=[pool]), live, rights=False)
    assert all(each.remedy for each in found if each.state is not CheckState.OK)
    return [each for each in found if each.check == "devices"]


@pytest.mark.parametrize(
    ("chosen_by", "plugins", "state"),
    [
        ("scheduler", [plugin(OPERATOR_CDI)], CheckState.FAILED),
        ("", [plugin(OPERATOR_CDI)], CheckState.WARNING),
        ("kubelet", [plugin(OPERATOR_CDI)], None),
        ("scheduler", [plugin()], None),
        ("", [plugin()], CheckState.WARNING),
        ("kubelet", [plugin()], None),
        ("scheduler", [], CheckState.UNKNOWN),
        ("scheduler", None, CheckState.UNKNOWN),
        ("scheduler", [plugin(OPERATOR_CDI, selector={"other": "nodes"}), plugin()], None),
    ],
)
def test_pools(chosen_by: str, plugins: list[dict[str, Any]] | None, state: CheckState | None) -> None:
    assert [each.state for each in report(chosen_by, plugins)] == ([] if state is None else [state])


def test_what_it_says() -> None:
    (finding,) = report("scheduler", [plugin(OPERATOR_CDI)])
    assert finding.message == (
        "pool p: the kubelet chooses the GPUs of pods, not avactl's scheduler: DEVICE_LIST_STRATEGY is "
        "cdi-annotations,cdi-cri (DaemonSet gpu-operator/plugin)"
    )
    assert "`allocation: dra`" in finding.remedy
    assert "`devicesChosenBy: kubelet` (pools.yaml:3)" in finding.remedy


def test_withdrawn_and_shared_gpus() -> None:
    (finding,) = report("scheduler", [plugin()], gpus=7)
    assert finding.message == "pool p: the device plugin has withdrawn nvidia.com/gpu of 1 nodes"
    (finding,) = report("scheduler", [plugin()], gpus=0, capacity=0)
    assert finding.message == "pool p: 1 of 1 nodes offer fewer than 8 nvidia.com/gpu"
    labels = {"nvidia.com/gpu.replicas": "15", "nvidia.com/gpu.count": "8"}
    (finding,) = report("scheduler", [plugin()], gpus=120, capacity=120, labels=labels)
    assert finding.message == "pool p: the device plugin shares the GPUs of 1 nodes (time-slicing)"
    labels = {"nvidia.com/mig.strategy": "single", "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"}
    (finding,) = report("scheduler", [plugin()], gpus=56, capacity=56, labels=labels)
    assert finding.message.endswith("(MIG)")
