"""The steps of a processing, as their schema in `avactl.spec.schema.processing` has them."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Protocol


class Resize(Protocol):
    """A new size."""

    @property
    def width(self) -> int | None: ...
    @property
    def height(self) -> int | None: ...
    @property
    def shorter(self) -> int | None: ...
    @property
    def fit(self) -> str: ...


class Crop(Protocol):
    """A part of an image."""

    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...
    @property
    def x(self) -> int | None: ...
    @property
    def y(self) -> int | None: ...


class Watermark(Protocol):
    """A text on images."""

    @property
    def text(self) -> str: ...
    @property
    def position(self) -> str: ...
    @property
    def size(self) -> float: ...
    @property
    def opacity(self) -> float: ...


class Frames(Protocol):
    """Frames of a video."""

    @property
    def interval(self) -> Fraction: ...
    @property
    def format(self) -> str: ...
    @property
    def max(self) -> int: ...


class Step(Protocol):
    """One step: exactly one of its keys is set."""

    @property
    def resize(self) -> Resize | None: ...
    @property
    def crop(self) -> Crop | None: ...
    @property
    def rotate(self) -> int | None: ...
    @property
    def flip(self) -> str | None: ...
    @property
    def watermark(self) -> Watermark | None: ...
    @property
    def convert(self) -> str | None: ...
    @property
    def frames(self) -> Frames | None: ...
    @property
    def call(self) -> str | None: ...

    def to_data(self) -> dict[str, Any]:
        """Return the step as plain data, as it is written in a spec."""
        ...
