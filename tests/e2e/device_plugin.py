"""A device plugin of fake GPUs, which hands them over as NVIDIA's does, by each of its strategies."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import grpc

from tests.e2e.kubelet_api import BOOL, INT, TEXTS, define, unary

RESOURCE = "nvidia.com/gpu"
CDI_KIND = "nvidia.com/gpu"
MOUNTS = "/var/run/nvidia-container-devices/"
_SOCKET = "fake-gpus.sock"

_MAP = "map string"
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "Empty": {},
    "DevicePluginOptions": {"pre_start_required": (1, BOOL), "get_preferred_allocation_available": (2, BOOL)},
    "RegisterRequest": {
        "version": (1, "string"),
        "endpoint": (2, "string"),
        "resource_name": (3, "string"),
        "options": (4, "DevicePluginOptions"),
    },
    "Device": {"ID": (1, "string"), "health": (2, "string")},
    "ListAndWatchResponse": {"devices": (1, "repeated Device")},
    "ContainerPreferredAllocationRequest": {"available_deviceIDs": (1, TEXTS), "allocation_size": (3, INT)},
    "PreferredAllocationRequest": {"container_requests": (1, "repeated ContainerPreferredAllocationRequest")},
    "ContainerPreferredAllocationResponse": {"deviceIDs": (1, TEXTS)},
    "PreferredAllocationResponse": {"container_responses": (1, "repeated ContainerPreferredAllocationResponse")},
    "ContainerAllocateRequest": {"devices_ids": (1, TEXTS)},
    "AllocateRequest": {"container_requests": (1, "repeated ContainerAllocateRequest")},
    "CDIDevice": {"name": (1, "string")},
    "Mount": {"container_path": (1, "string"), "host_path": (2, "string"), "read_only": (3, BOOL)},
    "DeviceSpec": {"container_path": (1, "string"), "host_path": (2, "string"), "permissions": (3, "string")},
    "ContainerAllocateResponse": {
        "envs": (1, _MAP),
        "mounts": (2, "repeated Mount"),
        "devices": (3, "repeated DeviceSpec"),
        "annotations": (4, _MAP),
        "cdi_devices": (5, "repeated CDIDevice"),
    },
    "AllocateResponse": {"container_responses": (1, "repeated ContainerAllocateResponse")},
}
"""Messages of the kubelet's API for device plugins. Source: deviceplugin/v1beta1/api.proto of kubernetes/kubelet."""


API = define("v1beta1", _MESSAGES)


class FakePlugin:
    """A plugin in this process, for the kubelet of a node. It prefers the GPUs with the highest numbers.

    `strategy` and `pass_device_specs` are those of NVIDIA's plugin, and can change between pods.
    """

    def __init__(self, kubelet: Path, gpus: int) -> None:
        """`kubelet` is the kubelet's directory."""
        self.strategy, self.pass_device_specs = "envvar", False
        self._folder = kubelet / "device-plugins"
        self._healthy = dict.fromkeys((f"GPU-{number}" for number in range(gpus)), True)
        self._changes: queue.Queue[bool] = queue.Queue()
        self._server = grpc.server(ThreadPoolExecutor(4))

    def __enter__(self) -> Self:
        handlers = {
            "GetDevicePluginOptions": unary(self._options, API["Empty"]),
            "GetPreferredAllocation": unary(self._prefer, API["PreferredAllocationRequest"]),
            "Allocate": unary(self._allocate, API["AllocateRequest"]),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                self._list,
                request_deserializer=API["Empty"].FromString,
                response_serializer=lambda answer: answer.SerializeToString(),
            ),
        }
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers)])
        self._server.add_insecure_port(f"unix:{self._folder / _SOCKET}")
        self._server.start()
        with grpc.insecure_channel(f"unix:{self._folder / 'kubelet.sock'}") as channel:
            register = channel.unary_unary(
                "/v1beta1.Registration/Register",
                request_serializer=lambda request: request.SerializeToString(),
                response_deserializer=API["Empty"].FromString,
            )
            options = self._options(None, None)
            request = {"version": "v1beta1", "endpoint": _SOCKET, "resource_name": RESOURCE, "options": options}
            register(API["RegisterRequest"](**request), timeout=30)
        return self

    def __exit__(self, *_: object) -> None:
        self._changes.put(False)
        self._server.stop(1).wait()

    def set_healthy(self, number: int, healthy: bool) -> None:
        """Report a GPU as healthy, or withdraw it."""
        self._healthy[f"GPU-{number}"] = healthy
        self._changes.put(True)

    def _options(self, _request: Any, _context: Any) -> Any:
        return API["DevicePluginOptions"](get_preferred_allocation_available=True)

    def _list(self, _request: Any, _context: Any) -> Iterator[Any]:
        going_on = True
        while going_on:
            devices = [
                API["Device"](ID=name, health="Healthy" if healthy else "Unhealthy")
                for name, healthy in self._healthy.items()
            ]
            yield API["ListAndWatchResponse"](devices=devices)
            going_on = self._changes.get()

    def _prefer(self, request: Any, _context: Any) -> Any:
        answers = [
            API["ContainerPreferredAllocationResponse"](
                deviceIDs=sorted(each.available_deviceIDs)[-each.allocation_size :]
            )
            for each in request.container_requests
        ]
        return API["PreferredAllocationResponse"](container_responses=answers)

    def _allocate(self, request: Any, _context: Any) -> Any:
        answers = [self._hand_over(list(each.devices_ids)) for each in request.container_requests]
        return API["AllocateResponse"](container_responses=answers)

    def _hand_over(self, devices: list[str]) -> Any:
        """Source: getAllocateResponse in internal/plugin/server.go of NVIDIA/k8s-device-plugin."""
        answer, qualified = API["ContainerAllocateResponse"](), [f"{CDI_KIND}={device}" for device in devices]
        if self.strategy == "cdi-cri":
            for name in qualified:
                answer.cdi_devices.add(name=name)
        elif self.strategy == "cdi-annotations":
            answer.annotations["cdi.k8s.io/nvidia-device-plugin_1"] = ",".join(qualified)
        elif self.strategy == "volume-mounts":
            answer.envs["NVIDIA_VISIBLE_DEVICES"] = MOUNTS.rstrip("/")
            for device in devices:
                answer.mounts.add(container_path=f"{MOUNTS}{device}", host_path="/dev/null")
        else:
            answer.envs["NVIDIA_VISIBLE_DEVICES"] = ",".join(devices)
        if self.pass_device_specs and not self.strategy.startswith("cdi"):
            for device in devices:
                path = f"/dev/fakegpu{device[-1]}"
                answer.devices.add(container_path=path, host_path="/dev/null", permissions="rw")
        return answer
