"""Services whose values the delivery daemon commits, for pipelines and promotions: what it learns of their rollouts."""

from __future__ import annotations

from collections.abc import Iterator

from avactl.diagnostics import Diagnostic, Note, Span
from avactl.kinds.serving.llm import has_groups
from avactl.kinds.serving.picker import count_pickers, endpoint_picker
from avactl.kinds.serving.rollout.lower import chosen_strategy
from avactl.kinds.serving.spec import ServingDeploymentSpec
from avactl.program.program import Item


def unknown_end_problems(service: Item[ServingDeploymentSpec], at: Span, hint: str) -> Iterator[Diagnostic]:
    """Yield a problem, at the place that asks for it, if nobody tells the daemon how rollouts of a service end."""
    if chosen_strategy(service.spec) is not None and has_groups(service.spec):
        yield Diagnostic(
            "conflicting-keys",
            f"the delivery daemon cannot tell how a rollout of {service} ends, whose replicas are groups of pods",
            at,
            hint=hint,
            notes=(Note(service.span("spec", "rollout", key=True), "the rollout"),),
        )


def rollout_hint(service: Item[ServingDeploymentSpec], addition: str, otherwise: str) -> str:
    """Return the hint to add a rollout that the daemon can follow to a service, or another if it can have none."""
    spec = service.spec
    possible = not has_groups(spec) and (endpoint_picker(spec) is None or count_pickers(spec) > 0)
    return addition if possible else f"this service can have none: {otherwise}"
