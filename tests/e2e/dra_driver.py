"""A DRA driver of fake GPUs: it answers the kubelet with CDI devices, as NVIDIA's does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import grpc

from tests.e2e.kubelet_api import TEXTS, define, unary
from tools.controlplane import KubeClient

DRIVER = "gpu.nvidia.com"
CDI_KIND = "k8s.gpu.nvidia.com/gpu"
_API = "resource.k8s.io/v1"
_SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
_KUBELET = "/var/lib/kubelet"
"""The kubelet's directory, as it sees it."""

DRA = define(
    "fakedra",
    {
        "Claim": {"namespace": (1, "string"), "uid": (2, "string"), "name": (3, "string")},
        "Device": {
            "request_names": (1, TEXTS),
            "pool_name": (2, "string"),
            "device_name": (3, "string"),
            "cdi_device_ids": (4, TEXTS),
        },
        "Request": {"claims": (1, "repeated Claim")},
        "Prepared": {"devices": (1, "repeated Device"), "error": (2, "string")},
        "Response": {"claims": (1, "map Prepared")},
    },
)
"""Messages of the kubelet's API for DRA drivers. Source: dra/v1/api.proto of kubernetes/kubelet."""
REGISTRATION = define(
    "fakeregistration",
    {
        "Empty": {},
        "PluginInfo": {
            "type": (1, "string"),
            "name": (2, "string"),
            "endpoint": (3, "string"),
            "supported_versions": (4, TEXTS),
        },
    },
)
"""Source: pluginregistration/v1/api.proto of kubernetes/kubelet."""


class FakeDriver:
    """A driver in this process, for the kubelet of a node; it finds it by its socket."""

    def __init__(self, kube: KubeClient, kubelet: Path) -> None:
        """`kubelet` is the kubelet's directory on this machine."""
        self._kube, self._kubelet = kube, kubelet
        self._servers: list[grpc.Server] = []

    def __enter__(self) -> Self:
        (self._kubelet / "plugins" / DRIVER).mkdir(parents=True)
        self._serve(
            f"plugins/{DRIVER}/dra.sock",
            _SERVICE,
            {
                "NodePrepareResources": unary(self._prepare, DRA["Request"]),
                "NodeUnprepareResources": unary(self._unprepare, DRA["Request"]),
            },
        )
        self._serve(
            f"plugins_registry/{DRIVER}.sock",
            "pluginregistration.Registration",
            {
                "GetInfo": unary(self._info, REGISTRATION["Empty"]),
                "NotifyRegistrationStatus": unary(lambda *_: REGISTRATION["Empty"](), REGISTRATION["Empty"]),
            },
        )
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.stop(1).wait()

    def _serve(self, socket: str, service: str, handlers: dict[str, Any]) -> None:
        server = grpc.server(ThreadPoolExecutor(2))
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
        server.add_insecure_port(f"unix:{self._kubelet / socket}")
        server.start()
        self._servers.append(server)

    def _info(self, _request: Any, _context: Any) -> Any:
        endpoint = f"{_KUBELET}/plugins/{DRIVER}/dra.sock"
        versions = ["v1.DRAPlugin"]
        return REGISTRATION["PluginInfo"](type="DRAPlugin", name=DRIVER, endpoint=endpoint, supported_versions=versions)

    def _prepare(self, request: Any, _context: Any) -> Any:
        answer = DRA["Response"]()
        for claim in request.claims:
            found = self._kube.get(_API, "ResourceClaim", claim.name, claim.namespace)
            for result in found["status"]["allocation"]["devices"]["results"]:
                answer.claims[claim.uid].devices.add(
                    request_names=[result["request"]],
                    pool_name=result["pool"],
                    device_name=result["device"],
                    cdi_device_ids=[f"{CDI_KIND}={result['device']}"],
                )
        return answer

    def _unprepare(self, request: Any, _context: Any) -> Any:
        answer = DRA["Response"]()
        for claim in request.claims:
            answer.claims[claim.uid].SetInParent()
        return answer
