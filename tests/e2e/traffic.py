"""What brings requests to services on real nodes, as pods: a gateway, a Prometheus, and clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from avactl.contracts.names import TEAM_LABEL
from benchmarks.canary import load
from benchmarks.canary.load import Answer
from tests.e2e.pods import TIMEOUT, Cluster
from tools import prometheus, traefik
from tools.controlplane import KubeClient
from tools.image import program
from tools.image.images import PYTHON
from tools.realnode import RealNode
from tools.traefik.gateway import KINDS
from tools.waiting import wait_until

HOST = "digits.ai.example.com"
GATEWAY, NAMESPACE, PORT = "public", "gateways", 8443
PROMETHEUS = "http://prometheus.gateways.svc:9090"
INTERVAL = 1.0  # seconds between two scrapes
COMPUTE = {"requests": {"cpu": "200m"}}
"""Without requests, they would get next to no CPU while the machine is busy, and requests would time out."""
GROUP = "gateway.networking.k8s.io"
READ = ["get", "list", "watch"]
RULES = {
    "traefik": [
        {"apiGroups": [""], "resources": ["namespaces", "services", "secrets", "configmaps"], "verbs": READ},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": READ},
        {"apiGroups": [GROUP], "resources": [*KINDS], "verbs": READ},
        {"apiGroups": [GROUP], "resources": [f"{each}/status" for each in KINDS], "verbs": ["update"]},
    ],
    "prometheus": [{"apiGroups": [""], "resources": ["pods"], "verbs": READ}],
}
"""Rights by service account. Traefik's: https://doc.traefik.io/traefik/reference/dynamic-configuration/kubernetes-gateway-rbac/"""
TRAEFIK = [
    "traefik",
    "--providers.kubernetesgateway",
    f"--entrypoints.https.address=:{PORT}",
    "--entrypoints.ping.address=:8080",
    "--ping",
    "--ping.entrypoint=ping",
    "--global.checknewversion=false",
    "--global.sendanonymoususage=false",
    "--log.level=INFO",
]
COLLECT = [
    "prometheus",
    "--config.file=/etc/prometheus/prometheus.yml",
    "--storage.tsdb.path=/data",
    "--log.level=warn",
]


class Traffic(NamedTuple):
    """A gateway with a certificate for HOST, and a Prometheus that reads the metrics of model servers."""

    node: RealNode
    kube: KubeClient
    image: str
    """avactl's image, in which the clients run."""
    samples: Path
    """Pictures that they send."""
    certificate: bytes
    results: Path
    """Directory that all nodes share."""

    @contextmanager
    def clients(self, cluster: Cluster, rate: float) -> Iterator[list[Answer]]:
        """Send so many requests a second during the `with` block, from a pod; afterwards the list has the answers."""
        files = {"load.py": Path(load.__file__), "samples.json": self.samples}
        data = {"tls.crt": self.certificate.decode(), **{name: path.read_text() for name, path in files.items()}}
        metadata = {"name": "load", "namespace": cluster.namespace}
        self.kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
        name = cluster.namespace
        url = f"https://traefik.{NAMESPACE}.svc.cluster.local:{PORT}"
        command = [PYTHON, "/load/load.py", "http", url, HOST, "/load/tls.crt", "/load/samples.json", f"{rate}", "3600"]
        volumes = [
            {"name": "load", "configMap": {"name": "load"}},
            {"name": "results", "hostPath": {"path": str(self.results)}},
        ]
        mounts = [{"name": "load", "mountPath": "/load"}, {"name": "results", "mountPath": "/results"}]
        cluster.create(
            "load", self.image, [*command, f"/results/{name}"], volumes=volumes, volumeMounts=mounts, resources=COMPUTE
        )
        file = self.results / name
        # The first answers.
        wait_until(lambda: file.exists() and file.stat().st_size, details=lambda: cluster.logs("load"))
        answers: list[Answer] = []
        yield answers
        self.node.exec(cluster.namespace, "load", "kill", "1")
        assert cluster.ended("load")["status"]["phase"] == "Succeeded", cluster.logs("load")
        answers += load.read(file)
        cluster.delete("load")
        file.unlink()


@contextmanager
def traffic(node: RealNode, kube: KubeClient, image: str, samples: Path) -> Iterator[Traffic]:
    """Start the gateway and Prometheus. All of it ends with the block, but for the kinds of the Gateway API."""
    certificate = traefik.declare(kube, [HOST], PORT, namespace=NAMESPACE, name=GATEWAY, team_label=TEAM_LABEL)
    for name, rules in RULES.items():
        _account(kube, name, rules)
    gateway, collector = (node.image(program(each.build_binary())) for each in (traefik, prometheus))
    _serve(kube, "traefik", gateway, TRAEFIK, PORT, {"path": "/ping", "port": 8080})
    files = {"prometheus.yml": prometheus.configuration(INTERVAL)}
    _serve(kube, "prometheus", collector, COLLECT, 9090, {"path": "/-/ready", "port": 9090}, files)
    for name in RULES:
        kube.wait_for("apps/v1", "Deployment", name, NAMESPACE, until=_available, timeout=TIMEOUT)
    yield Traffic(node, kube, image, samples, certificate, node.shared("load"))
    kube.delete("v1", "Namespace", NAMESPACE)
    kube.delete(f"{GROUP}/v1", "GatewayClass", traefik.CLASS)
    for name in RULES:
        for kind in ("ClusterRole", "ClusterRoleBinding"):
            kube.delete("rbac.authorization.k8s.io/v1", kind, f"test-{name}")


def _account(kube: KubeClient, name: str, rules: Sequence[Mapping[str, Any]]) -> None:
    api = "rbac.authorization.k8s.io"
    kube.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": NAMESPACE}})
    metadata = {"name": f"test-{name}"}
    kube.apply({"apiVersion": f"{api}/v1", "kind": "ClusterRole", "metadata": metadata, "rules": [*rules]})
    role = {"apiGroup": api, "kind": "ClusterRole", "name": f"test-{name}"}
    subjects = [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}]
    binding = {"apiVersion": f"{api}/v1", "kind": "ClusterRoleBinding", "metadata": metadata}
    kube.apply({**binding, "roleRef": role, "subjects": subjects})


def _serve(
    kube: KubeClient,
    name: str,
    image: str,
    command: Sequence[str],
    port: int,
    probe: Mapping[str, Any],
    files: Mapping[str, str] | None = None,
) -> None:
    """Create a Deployment of one pod, its Service and its files in /etc/NAME."""
    metadata: dict[str, Any] = {"name": name, "namespace": NAMESPACE}
    kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(files or {})})
    selector = {"app": name}
    service = {"selector": selector, "ports": [{"port": port}]}
    kube.apply({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service})
    container = {
        "name": name,
        "image": image,
        "command": [*command],
        "resources": COMPUTE,
        "readinessProbe": {"httpGet": {**probe}, "periodSeconds": 1},
        "volumeMounts": [{"name": "files", "mountPath": f"/etc/{name}"}, {"name": "data", "mountPath": "/data"}],
    }
    volumes = [{"name": "files", "configMap": {"name": name}}, {"name": "data", "emptyDir": {}}]
    spec = {"serviceAccountName": name, "containers": [container], "volumes": volumes}
    template = {"metadata": {"labels": selector}, "spec": {**spec, "terminationGracePeriodSeconds": 1}}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata}
    kube.apply({**body, "spec": {"selector": {"matchLabels": selector}, "template": template}})


def _available(deployment: Mapping[str, Any]) -> bool:
    return bool(deployment.get("status", {}).get("availableReplicas"))
