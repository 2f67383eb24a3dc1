"""A real Kubernetes control plane on loopback, for tests and benchmarks.

`build` compiles etcd, the Kubernetes control plane and kwok from their pinned Go modules, once, into a cache;
`ControlPlane` starts them, hands out a kubeconfig, and leaves no process behind; `KubeClient` speaks to it.
"""

from tools.controlplane.build import BuildFailed, Unavailable, build
from tools.controlplane.client import ApiError, KubeClient, Reply, UnknownKind
from tools.controlplane.plane import ControlPlane, StartFailed

__all__ = [
    "ApiError",
    "BuildFailed",
    "ControlPlane",
    "KubeClient",
    "Reply",
    "StartFailed",
    "Unavailable",
    "UnknownKind",
    "build",
]
