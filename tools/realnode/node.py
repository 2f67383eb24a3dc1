"""Real nodes of a Kubernetes cluster that run for the length of a `with` block."""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from tools import image as images
from tools.controlplane import ControlPlane, KubeClient, StartError, build_binaries, credentials, process
from tools.controlplane.build import NODE_BINARIES, Module
from tools.image import Image
from tools.realnode import config, requirements
from tools.realnode.machine import OWN_NETWORK, Machine, relay
from tools.waiting import patience

CONTAINERD = Module(
    Path(__file__).parent / "containerd",
    "-s -w",
    {
        name: f"github.com/containerd/containerd/v2/cmd/{name}"
        for name in ("containerd", "ctr", "containerd-shim-runc-v2")
    },
    tags="no_btrfs,no_zfs,no_devmapper,no_aufs",
)
"""containerd 2, without the snapshotters that need C libraries. Debian 12 has 1.6, which knows no CDI."""
START_TIMEOUT = 120.0  # seconds
POLL = 0.05  # seconds
LOG_LINES = 30
PROXY = "system:kube-proxy"
DNS = "system:coredns"


class RealNode(process.Closing):
    """A control plane with one or more real nodes on this machine, whose kubelets run pods.

    The nodes are namespaces: nothing outside of them and of avactl's cache changes, and no packet leaves the machine.
    Pods resolve the names of Services. NetworkPolicies are not enforced, and there is no storage class. `users` are as
    in ControlPlane. Entering raises UnavailableError with one line where the machine lacks what a node needs,
    BuildError, and StartError.
    """

    def __init__(
        self,
        *,
        nodes: int = 1,
        users: Mapping[str, Sequence[str]] | None = None,
        devices: bool = False,
        runtime: Path | None = None,
    ) -> None:
        """With `devices`, containers get devices by CDI, as those of DRA drivers: containerd 2 is built for it, once.

        `runtime` is an OCI runtime that containerd starts instead of runc.
        """
        self._runtime = runtime
        self.names = tuple(f"node-{index}" for index in range(nodes))
        self._users, self._devices = dict(users or {}), devices
        self._machines: list[Machine] = []
        self._plane: ControlPlane | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        requirements.check()
        binaries = build_binaries(NODE_BINARIES)
        programs = None
        if self._devices:
            programs = build_binaries(CONTAINERD.packages, [CONTAINERD])["containerd"].parent
        pause = images.pause()
        try:
            for _ in self.names:
                self._machines.append(machine := Machine(programs))
                self._stack.callback(machine.close)
            self._connect()
            self._plane = self._stack.enter_context(self._control_plane())
            port = self._plane.port("kube-apiserver")
            self.expose(port)
            url = f"https://{config.node_address(0)}:{port}"
            for index in range(len(self.names)):
                self._start_node(index, binaries, url, pause)
            kubeconfig = self._kubeconfig(self._machines[0], DNS, url)
            corefile = self._machines[0].folder / "Corefile"
            corefile.write_text(config.dns(kubeconfig))
            self._machines[0].spawn("coredns", binaries["coredns"], "-conf", corefile)
            self._await_ready()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End the control plane and the nodes with all their pods, and remove their files. Twice is fine."""
        self._stack.close()
        self._machines.clear()
        self._plane = None

    @property
    def plane(self) -> ControlPlane:
        """The control plane, with a scheduler. Raises RuntimeError outside of the `with` block."""
        if self._plane is None:
            raise RuntimeError("the node is not running: use it in a `with` block")
        return self._plane

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, for programs on this machine."""
        return self.plane.kubeconfig

    def client(self) -> KubeClient:
        """A new client of the administrator; close it, or use it in a `with` block."""
        return self.plane.client()

    def image(self, image: Image, *names: str) -> str:
        """Make an image available to the pods of all nodes, and return its reference by digest.

        `names` are further references, such as those that pods of others name.
        """
        for machine in self._machines:
            _ctr(machine, "images", "import", image.archive)
            if names:
                _ctr(machine, "images", "tag", "--force", image.reference, *names)
        return image.reference

    def logs(self, namespace: str, pod: str, *options: str) -> str:
        """Return the log of a pod; `options` are those of `kubectl logs`."""
        return self.kubectl("logs", f"--namespace={namespace}", pod, *options)

    def exec(self, namespace: str, pod: str, *command: str) -> str:
        """Run a command in a pod, and return its output. Raises CalledProcessError if it fails."""
        return self.kubectl("exec", f"--namespace={namespace}", pod, "--", *command)

    def kubectl(self, *arguments: str) -> str:
        """Run kubectl as the administrator, and return its output. Raises CalledProcessError if it fails."""
        command = [str(build_binaries(["kubectl"])["kubectl"]), f"--kubeconfig={self.kubeconfig}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def run(self, *command: str, node: int = 0, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program of this machine in a node's namespaces, outside of all pods: it sees the kubelet's mounts."""
        return self._machines[node].run(*command, check=check)

    def expose(self, port: int) -> str:
        """Let pods and nodes reach a port of this machine's loopback; return its HOST:PORT for them."""
        address = f"{config.node_address(0)}:{port}"
        self._relay(f"relay-{port}", (self._machines[0].network, address), (OWN_NETWORK, f"127.0.0.1:{port}"))
        return address

    def shared(self, name: str) -> Path:
        """Make a directory that has the same path on all nodes and this machine, and that all users may write to."""
        path = self._machines[0].folder / "shared" / name
        path.mkdir(parents=True)
        path.chmod(0o777)
        return path

    def kubelet_directory(self, node: int = 0) -> Path:
        """The directory on this machine that is `/var/lib/kubelet` on a node."""
        return self._machines[node].folder / "kubelet"

    def log(self, component: str, node: int = 0) -> Path:
        """The output of `containerd`, `kubelet` or `kube-proxy`, on the first node also `coredns`; see `plane.log`."""
        return self._machines[node].log(component)

    def _control_plane(self) -> ControlPlane:
        folder = self._machines[0].folder
        key, certificate = _kubelet_client(folder)
        socket = folder / "egress"
        self._relay("egress", (OWN_NETWORK, str(socket)), (self._machines[0].network, "CONNECT"))
        (folder / "egress.json").write_text(config.egress(socket))
        api_server = [
            f"--advertise-address={config.node_address(0)}",
            "--endpoint-reconciler-type=lease",
            "--authorization-mode=Node",
            "--enable-admission-plugins=NodeRestriction",
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-client-certificate={certificate}",
            f"--kubelet-client-key={key}",
            f"--egress-selector-config-file={folder / 'egress.json'}",
        ]
        users = {f"system:node:{name}": ["system:nodes"] for name in self.names}
        return ControlPlane(
            controller_manager=True,
            scheduler=True,
            users={**users, PROXY: [], DNS: ["system:masters"], **self._users},
            arguments={"kube-apiserver": api_server},
        )

    def _connect(self) -> None:
        """Give the nodes addresses in one network, a bridge in the first, and routes to each other's pods."""
        first = self._machines[0]
        first.ip("link", "add", "nodes", "type", "bridge")
        for index, machine in enumerate(self._machines):
            name = "nodes"
            if machine is not first:
                first.attach(f"node-{index}", machine, name)
                first.ip("link", "set", f"node-{index}", "master", "nodes", "up")
            machine.ip("address", "add", f"{config.node_address(index)}/{config.NODE_PREFIX}", "dev", name)
            machine.ip("link", "set", name, "up")
            # Without a route, the kernel refuses a connection to a Service before kube-proxy's rules see it.
            machine.ip("route", "add", config.SERVICE_NETWORK, "dev", name)
            for other in range(len(self._machines)):
                if other != index:
                    machine.ip("route", "add", config.pod_network(other), "via", config.node_address(other))

    def _start_node(self, index: int, binaries: Mapping[str, Path], url: str, pause: Image) -> None:
        machine, name, address = self._machines[index], self.names[index], config.node_address(index)
        folder = machine.folder
        (folder / "containerd.toml").write_text(config.containerd(folder, pause.reference, self._runtime))
        (folder / "cni").mkdir()
        (folder / "cni" / "10-pods.conflist").write_text(config.network(folder, index))
        runtime = machine.spawn("containerd", "containerd", "--config", folder / "containerd.toml")
        _wait(
            f"containerd of {name}",
            machine.log("containerd"),
            runtime,
            lambda: machine.run("ctr", f"--address={config.CONTAINERD_SOCKET}", "version", check=False).returncode == 0,
        )
        _ctr(machine, "images", "import", pause.archive)
        certificate = self._machines[0].folder / "kubelet-client.crt"
        (folder / "kubelet.json").write_text(config.kubelet(folder, machine.cgroup, certificate))
        kubeconfig = self._kubeconfig(machine, f"system:node:{name}", url)
        machine.spawn(
            "kubelet",
            binaries["kubelet"],
            f"--config={folder / 'kubelet.json'}",
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={name}",
            f"--node-ip={address}",
        )
        kubeconfig = self._kubeconfig(machine, PROXY, url)
        (folder / "kube-proxy.json").write_text(config.kube_proxy(kubeconfig, name, address))
        machine.spawn("kube-proxy", binaries["kube-proxy"], f"--config={folder / 'kube-proxy.json'}")

    def _kubeconfig(self, machine: Machine, user: str, url: str) -> Path:
        path = machine.folder / f"{user.replace(':', '-')}.kubeconfig"
        credentials.write_kubeconfig(path, url, self.plane.ca_file, self.plane.token(user))
        return path

    def _await_ready(self) -> None:
        with self.client() as client:
            for index, name in enumerate(self.names):

                def ready(name: str = name) -> bool:
                    node = client.find("v1", "Node", name)
                    return node is not None and _is_ready(node)

                _wait(f"kubelet of {name}", self.log("kubelet", index), None, ready)

    def _relay(self, name: str, listen: tuple[Path, str], connect: tuple[Path, str]) -> None:
        log = self._machines[0].log(name)
        running = relay(log, listen, connect)
        self._stack.callback(process.terminate, running, 0)


def _ctr(machine: Machine, *arguments: str | Path) -> None:
    machine.run("ctr", f"--address={config.CONTAINERD_SOCKET}", "--namespace=k8s.io", *arguments)


def _is_ready(node: Mapping[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions") or []
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def _kubelet_client(folder: Path) -> tuple[Path, Path]:
    """Make the key and the self-signed certificate by which kubelets know the API server."""
    key, certificate = folder / "kubelet-client.key", folder / "kubelet-client.crt"
    options = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    subject = ["-subj", "/O=system:masters/CN=kube-apiserver", "-addext", "extendedKeyUsage=clientAuth"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", "req", "-x509", *options, *subject, *files], capture_output=True, check=True)
    return key, certificate


def _wait(what: str, log: Path, running: subprocess.Popen[bytes] | None, ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + patience(START_TIMEOUT)
    while not ready():
        ended = running is not None and running.poll() is not None
        if ended or time.monotonic() > deadline:
            how = "ended while it started" if ended else f"was not ready in {START_TIMEOUT:.0f} s"
            raise StartError(f"{what} {how}; the end of its log:\n{process.tail(log, LOG_LINES)}")
        time.sleep(POLL)
