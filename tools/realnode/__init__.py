"""Real Kubernetes nodes on this machine, for tests that need pods: containerd, a kubelet and kube-proxy as root.

`RealNode` starts them in namespaces of their own beside a control plane, and leaves nothing behind.
"""

from tools.realnode.node import RealNode
from tools.realnode.requirements import check

__all__ = ["RealNode", "check"]
