"""The command line of each component of a control plane: pure functions of where the plane's files are."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tools.controlplane.build import HERE

# Components run in the plane's folder and find each other's socket by a relative name: a socket's absolute path
# may have at most 107 bytes, and temporary folders can be longer. The ":1" is for etcd, which wants a port in
# every URL. No TCP port, because etcd has no idea of who its client is, and the folder's mode does.
ETCD_SOCKET = "unix://etcd:1"
PEER_SOCKET = "unix://peer:1"

API_SERVER = "kube-apiserver"
CONTROLLER_MANAGER = "kube-controller-manager"
SCHEDULER = "kube-scheduler"


class Layout(NamedTuple):
    """The files of one plane."""

    folder: Path

    @property
    def tokens(self) -> Path:
        """The API server's token file."""
        return self.folder / "tokens.csv"

    @property
    def signing_key(self) -> Path:
        """The key behind the tokens of service accounts."""
        return self.folder / "service-account.key"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.folder / "kubeconfig"

    @property
    def ca_file(self) -> Path:
        """The API server's certificate with its self-signed authority; the API server writes it."""
        return self.certificate(API_SERVER)

    def certificate(self, component: str) -> Path:
        """The certificate that a component makes for itself, with its authority (the key is beside it)."""
        name = "apiserver" if component == API_SERVER else component
        return self.folder / "certificates" / f"{name}.crt"

    def log(self, component: str) -> Path:
        """The output of a component, over all its restarts."""
        return self.folder / f"{component}.log"


def etcd(layout: Layout, port: int) -> list[str]:
    """etcd with its data in memory pages only: a test's data survives kill -9 of etcd, not a loss of power."""
    return [
        "--name=plane",
        f"--data-dir={layout.folder / 'etcd-data'}",
        f"--listen-client-urls={ETCD_SOCKET}",
        f"--advertise-client-urls={ETCD_SOCKET}",
        f"--listen-peer-urls={PEER_SOCKET}",
        f"--initial-advertise-peer-urls={PEER_SOCKET}",
        f"--initial-cluster=plane={PEER_SOCKET}",
        "--unsafe-no-fsync",
        "--log-level=warn",
        "--quota-backend-bytes=4294967296",
    ]


def api_server(layout: Layout, port: int) -> list[str]:
    """The API server with RBAC, every API version, and the admission plugins that are on by default."""
    return [
        f"--etcd-servers={ETCD_SOCKET}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        # Named, because without it the server looks for the machine's default route, which may not exist.
        "--advertise-address=127.0.0.1",
        # Endpoints on loopback are invalid, so the default reconciler would fail every ten seconds.
        "--endpoint-reconciler-type=none",
        f"--cert-dir={layout.certificate(API_SERVER).parent}",
        f"--token-auth-file={layout.tokens}",
        "--authorization-mode=RBAC",
        "--runtime-config=api/all=true",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={layout.signing_key}",
        f"--service-account-signing-key-file={layout.signing_key}",
        "--service-cluster-ip-range=10.96.0.0/16",
        # Off, it would refuse privileged pods before Pod Security admission is asked.
        "--allow-privileged=true",
        "--profiling=false",
    ]


def controller_manager(layout: Layout, port: int) -> list[str]:
    """All default controllers, with the client's rate limit out of the way."""
    return [
        *_delegated(layout, CONTROLLER_MANAGER, port),
        f"--root-ca-file={layout.ca_file}",
        f"--service-account-private-key-file={layout.signing_key}",
        # A machine that was too busy to renew kwok's leases would leave all pods unready for good: kwok plays a pod's
        # start once, and only a kubelet would say later that it is ready again.
        "--node-monitor-grace-period=24h",
    ]


def scheduler(layout: Layout, port: int) -> list[str]:
    """The default scheduler, with the client's rate limit out of the way."""
    return _delegated(layout, SCHEDULER, port)


def kwok(layout: Layout, port: int) -> list[str]:
    """kwok playing every node of the cluster, with leases, by the stages beside kwok's go.mod."""
    return [
        f"--kubeconfig={layout.kubeconfig}",
        f"--config={HERE / 'kwok' / 'stages.yaml'}",
        "--manage-all-nodes",
        "--node-lease-duration-seconds=40",
        f"--server-address=127.0.0.1:{port}",
    ]


def _delegated(layout: Layout, component: str, port: int) -> list[str]:
    kubeconfig = layout.kubeconfig
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        # Without it they wait for a ConfigMap that exists only where the API server takes client certificates.
        "--authentication-skip-lookup",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={layout.certificate(component).parent}",
        "--leader-elect=false",
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
        "--profiling=false",
    ]


class Component(NamedTuple):
    """A binary, its arguments, and the URL that answers 200 when it works; {port} stands for its port."""

    arguments: Callable[[Layout, int], list[str]]
    health: str


# In the order of starting. etcd has no health of its own here: the API server's includes it.
COMPONENTS = {
    "etcd": Component(etcd, ""),
    API_SERVER: Component(api_server, "https://127.0.0.1:{port}/readyz"),
    CONTROLLER_MANAGER: Component(controller_manager, "https://127.0.0.1:{port}/healthz"),
    SCHEDULER: Component(scheduler, "https://127.0.0.1:{port}/readyz"),
    "kwok": Component(kwok, "http://127.0.0.1:{port}/readyz"),
}
