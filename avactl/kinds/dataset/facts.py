"""Headline facts of a dataset for `diff` and `graph`."""

from __future__ import annotations

from collections.abc import Mapping

from avactl.kinds.dataset.lower import prewarmed_versions
from avactl.program.program import Item, Program
from avactl.program.registry import Fact
from avactl.spec.platform.dataset import DatasetSpec


def facts(item: Item[DatasetSpec], program: Program) -> Mapping[str, Fact]:
    """Return the headline facts of one dataset."""
    spec = item.spec
    result: dict[str, Fact] = {
        "newest": spec.versions[-1].name,
        "versions": len(spec.versions),
        "size": spec.size,
        "files": f"{spec.files:,}" if spec.files else None,
        "tier": spec.tier or "none: copied into each pod",
    }
    if spec.prewarm is not None:
        copies = f" × {spec.prewarm.replicas}" if spec.prewarm.replicas > 1 else ""
        result["loaded ahead"] = ", ".join(version.name for version in prewarmed_versions(item)) + copies
    if spec.shared_with:
        result["shared with"] = ", ".join(sorted(spec.shared_with))
    return {key: value for key, value in result.items() if value is not None}
