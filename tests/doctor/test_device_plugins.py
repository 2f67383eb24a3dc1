"""What DaemonSets of device plugins say of who chooses the GPUs of a pod, and how that fits the pools."""

from __future__ import annotations

from typing import Any

import pytest

from avactl.apply.doctor.checks import check
from avactl.apply.doctor.device_plugins import find_plugins
from avactl.apply.doctor.live import Live
from avactl.apply.doctor.model import CheckState, DoctorFinding
from avactl.apply.doctor.needs import NeededNodes, ProgramNeeds

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
