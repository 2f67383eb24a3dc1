"""Prices of a cluster's machines, for cost estimates in plans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator, Field, WithJsonSchema

from avactl.diagnostics import Diagnostic
from avactl.diagnostics.suggest import one_of
from avactl.program.program import Item, Program
from avactl.spec.schema.base import Model
from avactl.spec.schema.compute import GpuModel
from avactl.spec.schema.values import bad

_CURRENCY_PATTERN = r"^[A-Z]{3}$"


def _currency(value: str) -> str:
    if len(value) != 3 or not value.isascii() or not value.isalpha() or not value.isupper():
        known = {"€": "EUR", "$": "USD", "£": "GBP", "¥": "CNY"}
        fixed = known.get(value, value.upper() if len(value) == 3 and value.isascii() and value.isalpha() else "EUR")
        raise bad(f"`{value[:40]}` is not a currency", f"use the three-letter code (ISO 4217), e.g. `{fixed}`")
    return value


Currency = Annotated[str, AfterValidator(_currency), WithJsonSchema({"type": "string", "pattern": _CURRENCY_PATTERN})]
"""A three-letter currency code (ISO 4217)."""
Price = Annotated[float | int, Field(ge=0)]


class Prices(Model):
    """Hourly prices, which `avactl plan` uses to estimate the cost of a change."""

    currency: Currency = Field(description="Currency of all prices, such as `EUR` (ISO 4217).")
    gpus: dict[GpuModel, Price] = Field(
        default_factory=dict, description="Price per GPU-hour by model, including the GPU's share of the machine."
    )
    cpu: Price | None = Field(None, description="Price per core-hour, if CPU is billed separately.")
    memory: Price | None = Field(None, description="Price per GiB-hour of memory, if memory is billed separately.")


def price_problems(item: Item, program: Program) -> Iterator[Diagnostic]:
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
        if len(near) == 1:
            hint = f"did you mean `{near[0]}`?"
        else:
            hint = (
                f"it has {one_of(known)}" if known else f"declare a pool: `kind: NodePool` with `cluster: {item.name}`"
            )
        yield Diagnostic(
            "gpu-not-in-cluster",
            f"cluster {item.name} has no GPU `{model}` to price",
            item.span("spec", "prices", "gpus", model, key=True),
            hint=hint,
        )
