"""Steps by which objects of a dataset become those of its next version."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, WithJsonSchema, model_validator

from avactl.base.terminal import shorten_middle, visible_text
from avactl.contracts.processing import MAX_SIDE
from avactl.spec.schema.base import Model
from avactl.spec.schema.values import PositiveDuration, duration_seconds, value_error

MAX_FRAMES = 100_000
_TEXT_PATTERN = "^[ -~]{1,100}$"
_CALL_PATTERN = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$"


def _check_text(value: str) -> str:
    if not re.fullmatch(_TEXT_PATTERN, value):
        message = f"`{visible_text(shorten_middle(value, 80))}` is not 1 to 100 characters of ASCII on one line"
        raise value_error(message, "the font that Pillow has built in has no others")
    return value


def _check_call(value: str) -> str:
    if len(value) > 200 or not re.fullmatch(_CALL_PATTERN, value, re.ASCII):
        message = f"`{visible_text(shorten_middle(value, 80))}` is not `module:function`"
        raise value_error(message, "write e.g. `call: steps:blur`, for the function `blur` in steps.py")
    return value


Pixels = Annotated[int, Field(ge=1, le=MAX_SIDE)]


class Resize(Model):
    """A new size of images. With one side, the other one keeps the ratio."""

    width: Pixels | None = Field(None, description="Width in pixels.")
    height: Pixels | None = Field(None, description="Height in pixels.")
    shorter: Pixels | None = Field(None, description="Length of the shorter side in pixels, instead of both.")
    fit: Literal["cover", "contain", "stretch"] = Field(
        "cover",
        description="With both sides: `cover` scales, and crops around the center; `contain` scales until both sides "
        "fit; `stretch` changes the ratio.",
    )

    @model_validator(mode="after")
    def _size(self) -> Self:
        if (self.shorter is not None) == (self.width is not None or self.height is not None):
            raise value_error("`resize` needs `width`, `height` or both; or `shorter`", "write `{width: 256}`")
        if "fit" in self.model_fields_set and (self.width is None or self.height is None):
            raise value_error("`fit` has no effect without both `width` and `height`", "remove it")
        return self


class Crop(Model):
    """A part of images. A smaller image is an error."""

    width: Pixels = Field(description="Width in pixels.")
    height: Pixels = Field(description="Height in pixels.")
    x: Annotated[int, Field(ge=0, le=MAX_SIDE)] | None = Field(
        None, description="Pixels from the left. Default: the center."
    )
    y: Annotated[int, Field(ge=0, le=MAX_SIDE)] | None = Field(
        None, description="Pixels from the top. Default: the center."
    )


class Watermark(Model):
    """A text on images."""

    text: Annotated[str, AfterValidator(_check_text), WithJsonSchema({"type": "string", "pattern": _TEXT_PATTERN})] = (
        Field(description="Text, of ASCII characters: the built-in font has no others.")
    )
    position: Literal["topLeft", "topRight", "bottomLeft", "bottomRight", "center"] = Field(
        "bottomRight", description="Place of the text."
    )
    size: Annotated[float, Field(ge=0.01, le=1)] = Field(
        0.05, description="Height of the letters, as a share of the shorter side."
    )
    opacity: Annotated[float, Field(gt=0, le=1)] = Field(0.5, description="Opacity: 1 hides what is behind.")


class Frames(Model):
    """Frames of videos, each an image `VIDEO/NUMBER.FORMAT`, where VIDEO is the name of the video."""

    every: PositiveDuration | None = Field(
        None, description="Time between two frames, from the first one on. Default: `1s`."
    )
    rate: Annotated[int, Field(ge=1, le=1000)] | None = Field(None, description="Frames per second, instead.")
    format: Literal["jpg", "png", "webp"] = Field("jpg", description="Format of the images.")
    max: Annotated[int, Field(ge=1, le=MAX_FRAMES)] = Field(
        10_000, description="Frames of one video; more are an error."
    )

    @property
    def interval(self) -> Fraction:
        """Seconds between two frames."""
        return Fraction(1, self.rate) if self.rate is not None else duration_seconds(self.every or "1s")

    @model_validator(mode="after")
    def _one_pace(self) -> Self:
        if self.every is not None and self.rate is not None:
            raise value_error("`every` and `rate` exclude each other", "keep one")
        return self


STEPS = ("resize", "crop", "rotate", "flip", "watermark", "convert", "frames", "call")


class Step(Model):
    """A step of the processing. Set exactly one key."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": [key]} for key in STEPS]})

    resize: Resize | None = Field(None, description="Scale images.")
    crop: Crop | None = Field(None, description="Cut out a part of images.")
    rotate: Literal[90, 180, 270] | None = Field(None, description="Turn images by these degrees, clockwise.")
    flip: Literal["horizontal", "vertical"] | None = Field(
        None, description="Mirror images: `horizontal` exchanges left and right."
    )
    watermark: Watermark | None = Field(None, description="Write a text on images.")
    convert: Literal["jpg", "png", "webp"] | None = Field(
        None, description="Store images in this format, whose name becomes the extension."
    )
    frames: Frames | None = Field(None, description="Take frames of videos; the steps after it change the frames.")
    call: (
        Annotated[
            str,
            AfterValidator(_check_call),
            WithJsonSchema({"type": "string", "pattern": _CALL_PATTERN, "maxLength": 200}),
        ]
        | None
    ) = Field(
        None,
        description="A function of yours, `module:function`: called with the content as bytes and the line of the "
        "manifest as a dict; returns the new content, or pairs of a name below the object's and a content.",
    )

    def to_data(self) -> dict[str, Any]:
        """Return the step as plain data, as it is written in a spec."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [key for key in STEPS if getattr(self, key) is not None]
        if len(given) != 1:
            raise value_error(
                "a step has one key: " + ", ".join(f"`{key}`" for key in STEPS), "write e.g. `rotate: 90`"
            )
        return self


Steps = Annotated[list[Step], Field(min_length=1, max_length=32)]


class StepFile(Model):
    """A list of steps that is no part of a spec."""

    steps: Steps = Field(description="The steps, in order.")
