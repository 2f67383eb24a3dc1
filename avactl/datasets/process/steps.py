"""Steps on the content of one object: images by Pillow, videos by PyAV, or a function of the user's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from avactl.base.installation import install_command
from avactl.contracts.processing import MAX_SIDE
from avactl.datasets.errors import ArgumentError, DatasetError, ObjectStoreError
from avactl.datasets.images import (
    ImageContentError,
    decode_image,
    encode_image,
    image_format,
    is_image,
    readable,
)
from avactl.datasets.process.model import Crop, Resize, Step, Watermark
from avactl.datasets.process.video import MAX_PIXELS, VideoError, is_video, video_frames
from avactl.datasets.stores.locations import key_problem
from avactl.datasets.text import display_name

MAX_OUTPUTS = 100_000
"""Objects that a function may make of one."""
_HINT = "replace or remove the object, or leave out up to N of them: `--skip-invalid N`, `skipInvalid: N` in a spec"
_IMAGE_STEPS = ("resize", "crop", "rotate", "flip", "watermark", "convert")


class InvalidObjectError(DatasetError):
    """An object that the steps cannot process; the message begins with its name."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{display_name(name)}: {reason}", _HINT)


class Output(NamedTuple):
    """An object that was made."""

    name: str
    """Path below the target."""
    content: bytes


class _Part(NamedTuple):
    """An object on its way through the steps: `image` if it is decoded, else `content`."""

    name: str
    content: bytes
    image: Any = None


def load_steps(steps: Sequence[Step]) -> Callable[[str, bytes, Mapping[str, Any]], Iterator[Output]]:
    """Return the function that processes an object by its path, its content and its line of the manifest.

    It raises InvalidObjectError for an object that cannot be processed. Raises StoreError if a package is missing,
    ArgumentError if a function of the user's is.
    """
    for package, keys, extra in (("PIL", (*_IMAGE_STEPS, "frames"), "dataset"), ("av", ("frames",), "video")):
        if find_spec(package) is None and any(getattr(step, key) is not None for step in steps for key in keys):
            name = {"PIL": "Pillow", "av": "av"}[package]
            raise ObjectStoreError(f"these steps require the package {name}", install_command(extra))
    functions = [_load_function(step.call) if step.call is not None else None for step in steps]

    def process(name: str, content: bytes, line: Mapping[str, Any]) -> Iterator[Output]:
        parts: Iterable[_Part] = (_Part(name, content),)
        for step, function in zip(steps, functions, strict=True):
            parts = _apply(step, function, parts, line)
        for part in parts:
            yield _finish(part)

    return process


def changes_names(steps: Sequence[Step]) -> bool:
    """Return True if two objects could become one of the same name."""
    return any(step.convert is not None or step.call is not None or step.frames is not None for step in steps)


def _apply(
    step: Step, function: Callable[..., Any] | None, parts: Iterable[_Part], line: Mapping[str, Any]
) -> Iterator[_Part]:
    for part in parts:
        if function is not None:
            made = _finish(part)
            yield from _call(function, str(step.call), made, line)
        elif step.frames is not None:
            if not is_video(part.name):
                yield part
                continue
            try:
                for number, image in enumerate(video_frames(part.name, part.content, step.frames)):
                    yield _Part(f"{part.name}/{number:06}.{step.frames.format}", b"", image)
            except VideoError as error:
                raise InvalidObjectError(part.name, str(error)) from None
        elif is_image(part.name):
            yield _change_image(step, part)
        else:
            yield part


def _finish(part: _Part) -> Output:
    if part.image is None:
        return Output(part.name, part.content)
    try:
        with readable(part.name, _HINT):
            return Output(part.name, encode_image(part.image, image_format(part.name)))
    except DatasetError as error:
        raise InvalidObjectError(part.name, _reason(error, part.name)) from None


def _reason(error: DatasetError, name: str) -> str:
    return str(error).removeprefix(name).lstrip(": ")


# -- images --------------------------------------------------------------------------------------------------------


def _change_image(step: Step, part: _Part) -> _Part:
    image = part.image
    try:
        with readable(part.name, _HINT):
            if image is None:
                image = decode_image(part.content, image_format(part.name))
            if step.resize is not None:
                image = _resize(image, step.resize)
            elif step.crop is not None:
                image = _crop(image, step.crop)
            elif step.rotate is not None or step.flip is not None:
                image = image.transpose(_transposition(step))
            elif step.watermark is not None:
                image = _write_text(image, step.watermark)
    except DatasetError as error:
        raise InvalidObjectError(part.name, _reason(error, part.name)) from None
    name = part.name
    if step.convert is not None and image_format(name) != image_format(f".{step.convert}"):
        name = f"{name.rpartition('.')[0]}.{step.convert}"
    return _Part(name, b"", image)


def _resize(image: Any, size: Resize) -> Any:
    from PIL import Image, ImageOps

    method = Image.Resampling.LANCZOS
    width, height = image.size
    if size.width is not None and size.height is not None:
        box = (size.width, size.height)
        _want_size(box)
        if size.fit == "stretch":
            return image.resize(box, method)
        return (ImageOps.fit if size.fit == "cover" else ImageOps.contain)(image, box, method)
    if size.shorter is not None:
        ratio = size.shorter / min(width, height)
    elif size.width is not None:
        ratio = size.width / width
    else:
        ratio = (size.height or height) / height
    new = (
        size.width or max(size.shorter or 1, round(width * ratio)),
        size.height or max(size.shorter or 1, round(height * ratio)),
    )
    _want_size(new)
    return image.resize(new, method)


def _want_size(size: tuple[int, int]) -> None:
    """Raise ImageContentError if an image would be larger than one that is read."""
    width, height = size
    if max(size) > MAX_SIDE or width * height > MAX_PIXELS:
        raise ImageContentError(
            f"it would become {width:,}×{height:,} pixels; the limit is {MAX_SIDE:,} a side, {MAX_PIXELS:,} in all"
        )


def _crop(image: Any, part: Crop) -> Any:
    left = (image.width - part.width) // 2 if part.x is None else part.x
    top = (image.height - part.height) // 2 if part.y is None else part.y
    if left < 0 or top < 0 or left + part.width > image.width or top + part.height > image.height:
        # Pillow would fill what is outside of the image with black.
        raise ImageContentError(
            f"the crop of {part.width}×{part.height} at {left}, {top} is outside of its {image.width}×{image.height}"
        )
    return image.crop((left, top, left + part.width, top + part.height))


def _transposition(step: Step) -> Any:
    from PIL.Image import Transpose

    return {
        90: Transpose.ROTATE_270,  # Pillow counts against the clock
        180: Transpose.ROTATE_180,
        270: Transpose.ROTATE_90,
        "horizontal": Transpose.FLIP_LEFT_RIGHT,
        "vertical": Transpose.FLIP_TOP_BOTTOM,
    }[step.rotate or step.flip or 0]


def _write_text(image: Any, mark: Watermark) -> Any:
    from PIL import Image, ImageDraw, ImageFont

    layer = Image.new("RGBA", image.size, (255, 255, 255, 0))
    draw = ImageDraw.Draw(layer)
    size = max(6, round(mark.size * min(image.size)))
    font = ImageFont.load_default(size)
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise ImageContentError("this Pillow has no FreeType, which `watermark` needs")
    left, top, right, bottom = draw.textbbox((0, 0), mark.text, font=font)
    width, height, margin = right - left, bottom - top, size // 2
    if mark.position == "center":
        x, y = (image.width - width) / 2, (image.height - height) / 2
    else:
        x = margin if mark.position.endswith("Left") else image.width - width - margin
        y = margin if mark.position.startswith("top") else image.height - height - margin
    alpha = round(255 * mark.opacity)
    # The outline keeps the text visible on white.
    draw.text(
        (x - left, y - top),
        mark.text,
        font=font,
        fill=(255, 255, 255, alpha),
        stroke_width=max(1, size // 16),
        stroke_fill=(0, 0, 0, alpha),
    )
    marked = image.convert("RGBA")
    marked.alpha_composite(layer)
    return marked if image.mode in ("LA", "RGBA") else marked.convert("RGB")


# -- functions -----------------------------------------------------------------------------------------------------


def _load_function(path: str) -> Callable[..., Any]:
    """Return `module:function` of the installed packages, or of the current directory."""
    module, _, name = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        function = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        hint = "install it in the image, or start in the directory that contains it"
        raise ArgumentError(f"`call: {path}`: {error}", hint) from None
    except AttributeError:
        raise ArgumentError(f"`call: {path}`: the module has no `{name}`", "correct the name") from None
    if not callable(function):
        raise ArgumentError(f"`call: {path}` is not a function", "name a function")
    found: Callable[..., Any] = function
    return found


def _call(function: Callable[..., Any], path: str, given: Output, line: Mapping[str, Any]) -> Iterator[_Part]:
    try:
        result = function(given.content, dict(line))
        pairs = [("", result)] if isinstance(result, bytes) else list(_checked_pairs(result))
    except DatasetError:
        raise
    except (Exception, SystemExit) as error:  # whatever the function raises: `sys.exit(0)` is no success
        raise InvalidObjectError(given.name, f"`{path}` raised {type(error).__name__}: {error}") from error
    for name, content in pairs:
        made = f"{given.name}/{name}" if name else given.name
        if problem := key_problem(made):
            raise InvalidObjectError(given.name, f"`{path}` returned a name that {problem}")
        yield _Part(made, content)


def _checked_pairs(result: Any) -> Iterator[tuple[str, bytes]]:
    form = "return bytes, or pairs of a name and bytes"
    if result is None or isinstance(result, (str, Mapping)):
        raise TypeError(f"it returned {type(result).__name__}: {form}")
    for number, pair in enumerate(result, 1):
        if number > MAX_OUTPUTS:
            raise ValueError(f"it returned more than {MAX_OUTPUTS:,} objects")
        name, content = pair
        if not isinstance(name, str) or not name or not isinstance(content, bytes):
            raise TypeError(form)
        yield name, content
