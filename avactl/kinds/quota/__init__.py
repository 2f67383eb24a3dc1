"""The Quota kind: how much of a cluster a team may use."""

from __future__ import annotations

from avactl.kinds.quota.lower import lower
from avactl.kinds.quota.spec import GpuQuota, Quota, QuotaSpec, Shape
from avactl.kinds.registry import Kind

__all__ = ["GpuQuota", "Quota", "QuotaSpec", "Shape"]

KIND = Kind(model=Quota, lower=lower)
