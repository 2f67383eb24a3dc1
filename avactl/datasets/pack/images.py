"""Resizing of images on import."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from avactl.base.installation import install_command
from avactl.datasets.errors import ArgumentError, ObjectStoreError
from avactl.datasets.images import decode_image, encode_image, image_format, readable

_PARSE_SIZE = re.compile(r"([1-9][0-9]{0,4})(?:x([1-9][0-9]{0,4}))?").fullmatch


class Resize(NamedTuple):
    """New size of images: `height` is 0 where only the shorter side is given."""

    width: int
    height: int


def parse_resize(text: str) -> Resize:
    """Parse `256` (the shorter side) or `256x256` (scaled and cropped). Raises ArgumentError."""
    match = _PARSE_SIZE(text)
    if match is None:
        hint = "write `--resize 256` for the shorter side, or `--resize 256x256` to crop"
        raise ArgumentError(f"`{text}` is not a size", hint)
    return Resize(int(match[1]), int(match[2] or 0))


def pillow_version() -> str:
    """Return the version of Pillow. Raises StoreError if it is not installed."""
    try:
        from PIL import __version__
    except ModuleNotFoundError:
        raise ObjectStoreError("`--resize` requires the package Pillow", install_command("dataset")) from None
    return str(__version__)


def resize_image(data: bytes, key: str, size: Resize) -> bytes:
    """Return an image in its own format with the new size, upright, without metadata. Smaller images are not enlarged.

    Raises UnreadableImageError.
    """
    longest = 4 * max(size.width, size.height)
    with readable(key, "replace or rename the file, or leave out such images: `--skip-unreadable`"):
        format = image_format(key)
        return encode_image(_scale_image(decode_image(data, format, longest), size), format)


def _scale_image(image: Any, size: Resize) -> Any:
    from PIL import Image, ImageOps

    if size.height:
        if image.width < size.width or image.height < size.height:
            return image
        return ImageOps.fit(image, (size.width, size.height), Image.Resampling.LANCZOS)
    ratio = size.width / min(image.size)
    if ratio >= 1:
        return image
    width, height = (max(size.width, round(side * ratio)) for side in image.size)
    return image.resize((width, height), Image.Resampling.LANCZOS)
