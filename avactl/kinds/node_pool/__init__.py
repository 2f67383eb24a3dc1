"""The NodePool kind: machines of one type in a cluster."""

from __future__ import annotations

from avactl.kinds.node_pool.lower import lower
from avactl.kinds.node_pool.spec import Autoscaling, NodePool, NodePoolSpec, Taint
from avactl.kinds.registry import Kind

__all__ = ["Autoscaling", "NodePool", "NodePoolSpec", "Taint"]

KIND = Kind(model=NodePool, lower=lower)
