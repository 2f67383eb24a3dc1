"""Configuration of containerd, CNI, the kubelet and kube-proxy: pure functions of names, paths and addresses."""

import json
from pathlib import Path

from tools.realnode.requirements import CNI_PLUGINS

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
POD_NETWORK = "10.244.0.0/16"
SERVICE_NETWORK = "10.96.0.0/16"
NODE_PREFIX = 24
KUBELET_PORT = 10250
DOMAIN = "cluster.local"


def node_address(index: int) -> str:
    """The address of a node, in a network of nodes only."""
    return f"10.250.0.{index + 1}"


def pod_network(index: int) -> str:
    """The addresses of the pods of a node."""
    return f"10.244.{index}.0/24"


def containerd(folder: Path, sandbox_image: str, runtime: Path | None = None) -> str:
    """containerd's configuration (TOML, version 2 of containerd 1.6), with everything that it writes in `folder`.

    `runtime` is the program that it starts instead of runc; annotations of CDI reach it.
    """
    annotations = "" if runtime is None else 'container_annotations = ["cdi.k8s.io/*"]\n'
    program = "" if runtime is None else f'BinaryName = "{runtime}"\n'
    return f"""\
version = 2
root = "{folder}/containerd"
state = "/run/containerd"
[grpc]
address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
path = "{folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{sandbox_image}"
# The profile would be loaded into the kernel, for the whole machine.
disable_apparmor = true
# The node may be short of CAP_SYS_RESOURCE, and of a hugetlb hierarchy.
restrict_oom_score_adj = true
disable_hugetlb_controller = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{CNI_PLUGINS}"
conf_dir = "{folder}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
{annotations}[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
{program}"""


def network(folder: Path, index: int) -> str:
    """The list of CNI plugins. Pods are routed to each other, which needs no packet filter in a bridge."""
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": pod_network(index)}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": str(folder / "addresses"),
    }
    plugins = [
        {"type": "ptp", "ipMasq": False, "ipam": ipam},
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ]
    return json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": plugins})


def kubelet(folder: Path, cgroup: str, client_ca: Path) -> str:
    """The kubelet's configuration. It evicts late and collects no images, because the disk is not its own."""
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "port": KUBELET_PORT,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(client_ca)},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "maxOpenFiles": 20000,
        "makeIPTablesUtilChains": False,
        "resolvConf": "",
        "clusterDNS": [node_address(0)],
        "clusterDomain": DOMAIN,
        "volumePluginDir": str(folder / "volume-plugins"),
        "evictionHard": dict.fromkeys(
            ("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available"), "1%"
        ),
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "nodeStatusUpdateFrequency": "5s",
        "syncFrequency": "10s",
    }
    return json.dumps(config, indent=2)


def kube_proxy(kubeconfig: Path, name: str, address: str) -> str:
    """kube-proxy's configuration. Zeros leave the machine's connection tracking as it is."""
    config = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "hostnameOverride": name,
        "bindAddress": address,
        "clusterCIDR": POD_NETWORK,
        "mode": "iptables",
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
            "udpTimeout": "0s",
            "udpStreamTimeout": "0s",
        },
    }
    return json.dumps(config, indent=2)


def dns(kubeconfig: Path) -> str:
    """CoreDNS's configuration (a Corefile): the names of Services and their pods, on the first node, and no others."""
    return f"""\
{DOMAIN} {{
    bind {node_address(0)}
    errors
    kubernetes {{
        kubeconfig {kubeconfig}
    }}
}}
"""


def egress(socket: Path) -> str:
    """The API server's egress selector: nodes, pods and Services are reached through a relay in their network."""
    connection = {"proxyProtocol": "HTTPConnect", "transport": {"uds": {"udsName": str(socket)}}}
    config = {
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": [{"name": "cluster", "connection": connection}],
    }
    return json.dumps(config)
