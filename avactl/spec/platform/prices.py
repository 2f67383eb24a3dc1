"""Prices of a cluster's machines, for cost estimates in plans."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, WithJsonSchema

from avactl.spec.schema.base import Model
from avactl.spec.schema.compute import GpuModel
from avactl.spec.schema.values import value_error

_CURRENCY_PATTERN = r"^[A-Z]{3}$"


def _check_currency(value: str) -> str:
    if len(value) != 3 or not value.isascii() or not value.isalpha() or not value.isupper():
        known = {"€": "EUR", "$": "USD", "£": "GBP", "¥": "CNY"}
        fixed = known.get(value, value.upper() if len(value) == 3 and value.isascii() and value.isalpha() else "EUR")
        raise value_error(f"`{value[:40]}` is not a currency", f"use the three-letter code (ISO 4217), e.g. `{fixed}`")
    return value


Currency = Annotated[
    str, AfterValidator(_check_currency), WithJsonSchema({"type": "string", "pattern": _CURRENCY_PATTERN})
]
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
