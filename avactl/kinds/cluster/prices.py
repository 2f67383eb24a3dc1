"""Check of `Cluster.spec.prices`."""

from __future__ import annotations

from collections.abc import Iterator

from avactl.diagnostics import Diagnostic, Reference
from avactl.diagnostics.model import GPU_MODEL
from avactl.diagnostics.suggest import one_of
from avactl.program.program import Item, Program
from avactl.spec.platform.cluster import ClusterSpec
from avactl.spec.platform.prices import Prices


def price_problems(item: Item[ClusterSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield the prices of GPU models that the cluster does not have: a misspelt model would be priced at zero."""
    prices: Prices | None = item.spec.prices
    if prices is None or program.lacks_machines:
        return
    known = program.gpu_models(item.name)
    for model in prices.gpus:
        if model in known:
            continue
        # `v100` and `V100-32GB` mean V100; H100 does not, even though it is a near match.
        folded = model.lower().replace("-", "").replace(".", "")
        near = [name for name in known if folded.startswith(name.lower()) or name.lower().startswith(folded)]
        meant = near[0] if len(near) == 1 else ""
        if meant:
            hint = f"did you mean `{meant}`?"
        else:
            hint = (
                f"it has {one_of(known)}" if known else f"declare a pool: `kind: NodePool` with `cluster: {item.name}`"
            )
        yield Diagnostic(
            "gpu-not-in-cluster",
            f"cluster {item.name} has no GPU `{model}` to price",
            item.span("spec", "prices", "gpus", model, key=True),
            hint=hint,
            reference=Reference(GPU_MODEL, model, meant),
        )
