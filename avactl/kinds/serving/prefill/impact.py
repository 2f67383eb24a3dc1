"""Impact of a change on a service with `prefill`."""

from __future__ import annotations

from collections.abc import Sequence

from avactl.kinds.serving.prefill.lower import KIND
from avactl.kinds.serving.prefill.roles import prefill_of
from avactl.kinds.serving.runtime import disaggregation_of
from avactl.kinds.serving.spec import ServingDeploymentSpec
from avactl.program.program import Item
from avactl.program.registry import ObjectEffect


def impact(
    old: Item[ServingDeploymentSpec], new: Item[ServingDeploymentSpec], effects: Sequence[ObjectEffect]
) -> str | None:
    """Return the effect of a rollout of both roles; None if no pod restarts."""
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
