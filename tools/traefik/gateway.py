"""A Traefik that reads Gateways, HTTPRoutes and GRPCRoutes from an API server."""

from __future__ import annotations

import datetime
import time
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tools.controlplane import ControlPlane, KubeClient, StartError, process
from tools.controlplane.folder import OwnedFolder
from tools.definitions import GATEWAY_API, definitions
from tools.traefik.build import build_binary
from tools.waiting import patience

KINDS = ("gatewayclasses", "gateways", "httproutes", "grpcroutes", "tlsroutes", "referencegrants", "backendtlspolicies")
"""Plural names of the kinds that Traefik watches; it starts only once all of them are served."""
TIMEOUT = 60.0  # seconds
POLL = 0.05  # seconds
CLASS, CONTROLLER = "traefik", "traefik.io/gateway-controller"


class Traefik(process.Processes):
    """A gateway of some hosts: the Gateway `NAMESPACE/NAME` with the listener `https` and a certificate of its own.

    `throttle`: seconds that Traefik waits at least between two changes of its configuration (its default: 2). Closed by
    `close`, with its files.
    """

    def __init__(
        self, plane: ControlPlane, *hosts: str, namespace: str, name: str, team_label: str, throttle: float = 2.0
    ) -> None:
        super().__init__()
        self._owned = OwnedFolder()
        self._plane, self.hosts, self._throttle = plane, hosts, throttle
        self.port, self._ping = process.free_port(), process.free_port()
        with plane.client() as kube:
            certificate = declare(kube, hosts, self.port, namespace=namespace, name=name, team_label=team_label)
        self.ca_file.write_bytes(certificate)
        self.start("traefik")

    @property
    def folder(self) -> Path:
        """Directory of its log and certificate."""
        return self._owned.path

    @property
    def url(self) -> str:
        """Address of the listener; clients name one of `hosts`, and trust `ca_file`."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def metrics(self) -> str:
        """Host and port of its metrics, for Prometheus; they also count per route."""
        return f"127.0.0.1:{self._ping}"

    @property
    def ca_file(self) -> Path:
        """The certificate, in PEM."""
        return self.folder / "tls.crt"

    def start(self, name: str) -> None:
        """Start it, and wait until it answers. Raises StartError."""
        prefix = "--providers.kubernetesgateway"
        command: list[str | Path] = [
            build_binary(),
            prefix,
            f"{prefix}.endpoint={self._plane.url}",
            f"{prefix}.token={self._plane.token()}",
            f"{prefix}.certauthfilepath={self._plane.ca_file}",
            f"--entrypoints.https.address=127.0.0.1:{self.port}",
            f"--entrypoints.ping.address=127.0.0.1:{self._ping}",
            "--ping",
            "--ping.entrypoint=ping",
            "--metrics.prometheus.entrypoint=ping",
            "--metrics.prometheus.addrouterslabels=true",
            f"--providers.providersthrottleduration={self._throttle}s",
            "--global.checknewversion=false",
            "--global.sendanonymoususage=false",
            "--log.level=INFO",
        ]
        log = self.folder / f"{name}.log"
        child = process.spawn(command, log, {"HOME": str(self.folder)}, cwd=self.folder)
        self._processes[name] = child
        ends = time.monotonic() + patience(TIMEOUT)
        while not self._answers():
            if child.poll() is not None or time.monotonic() > ends:
                raise StartError(f"Traefik did not start:\n{process.tail(log, 20)}")
            time.sleep(POLL)

    def close(self) -> None:
        """End it and remove its files."""
        for name in list(self._processes):
            self.kill(name)
        self._owned.remove()

    def _answers(self) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self._ping}/ping", trust_env=False).status_code == 200
        except httpx.TransportError:
            return False


def declare(kube: KubeClient, hosts: Sequence[str], port: int, *, namespace: str, name: str, team_label: str) -> bytes:
    """Define the kinds of the Gateway API; create a GatewayClass, and a Gateway with the listener `https` on `port`.

    Returns its certificate for the hosts, in PEM.
    """
    for body in definitions(GATEWAY_API, *KINDS):
        kube.define({key: value for key, value in body.items() if key != "status"})
    certificate, key = _certificate(hosts)
    data = {"tls.crt": b64encode(certificate).decode(), "tls.key": b64encode(key).decode()}
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    kube.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "data": data,
            "metadata": {"name": f"{name}-tls", "namespace": namespace},
        }
    )
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
        "name": "https",
        "port": port,
        "protocol": "HTTPS",
        "tls": {"mode": "Terminate", "certificateRefs": [{"name": f"{name}-tls"}]},
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
    return certificate


def _certificate(hosts: Sequence[str]) -> tuple[bytes, bytes]:
    """Return a self-signed certificate of some hosts and its key, in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "avactl test gateway")])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]), critical=False)
        .sign(key, hashes.SHA256())
    )
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return built.public_bytes(serialization.Encoding.PEM), text
