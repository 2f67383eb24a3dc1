"""What a cluster's machines cost, for plans of changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator, Field, WithJsonSchema

from avactl.diagnostics import Diagnostic
from avactl.diagnostics.suggest import one_of
from avactl.kinds.base import Model
from avactl.kinds.fields.compute import GpuModel
from avactl.kinds.fields.values import bad
from avactl.kinds.program import Item, Program

_CURRENCY_PATTERN = r"^[A-Z]{3}$"


def _currency(value: str) -> str:
    if len(value) != 3 or not value.isascii() or not value.isalpha() or not value.isupper():
        known = {"€": "EUR", "$": "USD", "£": "GBP", "¥": "CNY"}
        fixed = known.get(value, value.upper() if len(value) == 3 and value.isascii() and value.isalpha() else "EUR")
        raise bad(f"`{value[:40]}` is not a currency", f"write its three letters (ISO 4217), e.g. `{fixed}`")
    return value


Currency = Annotated[str, AfterValidator(_currency), WithJsonSchema({"type": "string", "pattern": _CURRENCY_PATTERN})]
"""A currency by its three letters (ISO 4217)."""
Price = Annotated[float | int, Field(ge=0)]


class Prices(Model):
    """Prices by the hour. `avactl plan` tells with them what a change costs; nothing else reads them."""

    currency: Currency = Field(description="Currency of all of them, e.g. `EUR` (ISO 4217).")
    gpus: dict[GpuModel, Price] = Field(
        default_factory=dict, description="One GPU for an hour, by model; its part of the machine included."
    )
    cpu: Price | None = Field(None, description="One CPU core for an hour, where cores are paid for by themselves.")
    memory: Price | None = Field(None, description="One GiB of memory for an hour, where it is paid for by itself.")


def price_problems(item: Item, program: Program) -> Iterator[Diagnostic]:
    """Prices of GPUs that the cluster does not have: those that it has would then cost nothing."""
    prices: Prices | None = item.spec.prices
    if prices is None or program.lacks_machines:
        return
    known = program.gpu_models(item.name)
    for model in prices.gpus:
        if model in known:
            continue
        # `v100` and `V100-32GB` mean V100; H100 does not, however near the letters are.
        folded = model.lower().replace("-", "").replace(".", "")
        near = [name for name in known if folded.startswith(name.lower()) or name.lower().startswith(folded)]
        if len(near) == 1:
            hint = f"did you mean `{near[0]}`?"
        else:
            hint = (
                f"it has {one_of(known)}" if known else f"declare a pool: `kind: NodePool` with `cluster: {item.name}`"
            )
        yield Diagnostic(
            "gpu-not-in-cluster",
            f"cluster {item.name} has no GPU `{model}`, and so no price of one",
            item.span("spec", "prices", "gpus", model, key=True),
            hint=hint,
        )
