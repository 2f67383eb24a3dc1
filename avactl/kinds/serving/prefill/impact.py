"""Impact of a change on a service with `prefill`."""

from __future__ import annotations

from collections.abc import Sequence

from avactl.kinds.serving.prefill.lower import KIND
from avactl.kinds.serving.prefill.roles import prefill_of
from avactl.kinds.serving.rollout.lower import chosen_strategy
from avactl.kinds.serving.runtime import disaggregation_of
from avactl.kinds.serving.spec import ServingDeploymentSpec
from avactl.program.program import Item
from avactl.program.registry import ObjectEffect


def impact(
    old: Item[ServingDeploymentSpec], new: Item[ServingDeploymentSpec], effects: Sequence[ObjectEffect]
) -> str | None:
    """Return the effect of a rollout of both roles; None if no pod restarts, or for what the objects say."""
    if (prefill_of(old.spec) is None) == (prefill_of(new.spec) is None) and _has_sets(old.spec) != _has_sets(new.spec):
        return "the pods of both roles are replaced at once: requests fail until new ones of each role are ready"
    restarts = any(effect.kind == KIND and effect.starts_pods and not effect.renamed for effect in effects)
    if not restarts or prefill_of(old.spec) is None or prefill_of(new.spec) is None:
        return None
    was, becomes = (each.spec.served[0].version for each in (old, new))
    if not disaggregation_of(new.spec).compares_models and was != becomes:
        return (
            f"both roles are replaced step by step: until the end, pods of version {becomes} may continue prompts "
            f"that version {was} has read, and vice versa"
        )
    return "both roles are replaced step by step"


def _has_sets(spec: ServingDeploymentSpec) -> bool:
    """Return True if each role has a LeaderWorkerSet of its own, instead of a DisaggregatedSet."""
    return prefill_of(spec) is not None and chosen_strategy(spec) is not None
