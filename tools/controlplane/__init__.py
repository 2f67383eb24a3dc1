"""A real Kubernetes control plane on loopback, for tests and benchmarks.

`build_binaries` compiles etcd, the Kubernetes control plane and kwok from their pinned Go modules, once, into a cache;
`ControlPlane` starts them, hands out a kubeconfig, and leaves no process behind; `KubeClient` speaks to it.
"""

from avactl.kube.client import ApiError
from tools.controlplane.build import BuildError, UnavailableError, build_binaries, is_required
from tools.controlplane.client import KubeClient, Reply, UnknownKindError
from tools.controlplane.plane import ControlPlane, StartError

__all__ = [
    "ApiError",
    "BuildError",
    "ControlPlane",
    "KubeClient",
    "Reply",
    "StartError",
    "UnavailableError",
    "UnknownKindError",
    "build_binaries",
    "is_required",
]
