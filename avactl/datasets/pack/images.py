"""Resizing of images on import."""

from __future__ import annotations

import re
import warnings
from io import BytesIO
from typing import Any, NamedTuple

from avactl.base.installation import install_command
from avactl.datasets.errors import ArgumentError, DatasetError, ObjectStoreError

_PARSE_SIZE = re.compile(r"([1-9][0-9]{0,4})(?:x([1-9][0-9]{0,4}))?").fullmatch
_IMAGE_FORMATS = {
    "jpg": ("JPEG", {"quality": 90}),
    "jpeg": ("JPEG", {"quality": 90}),
    "png": ("PNG", {}),
    "webp": ("WEBP", {"quality": 90}),
    "bmp": ("BMP", {}),
    "tif": ("TIFF", {}),
    "tiff": ("TIFF", {}),
}
_STORED_MODES = {"JPEG": ("L", "RGB"), "BMP": ("L", "RGB"), "WEBP": ("RGB", "RGBA")}
"""Colours that a format stores; other images become RGB."""


class Resize(NamedTuple):
    """New size of images: `height` is 0 where only the shorter side is given."""

    width: int
    height: int


class UnreadableImageError(DatasetError):
    """A file with the name of an image cannot be decoded."""


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


def is_image(key: str) -> bool:
    """Return True for the name of an image that is resized."""
    return key.rpartition(".")[2].lower() in _IMAGE_FORMATS


def resize_image(data: bytes, key: str, size: Resize) -> bytes:
    """Return an image in its own format with the new size, upright, without metadata. Smaller images are not enlarged.

    Only the decoder of the name's format reads the data: among those that Pillow would try are some that start
    programs (Ghostscript for EPS). Raises UnreadableImageError.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    format, options = _IMAGE_FORMATS[key.rpartition(".")[2].lower()]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(BytesIO(data), formats=[format]) as image:
                image.draft("RGB", (4 * size.width, 4 * (size.height or size.width)))
                upright = ImageOps.exif_transpose(image)
                return _encode_image(_scale_image(_to_plain_mode(upright, format), size), format, options)
    except Exception as error:  # each decoder has its own exceptions
        # The text of this error is the address of a buffer.
        unknown = isinstance(error, UnidentifiedImageError)
        reason = f"it has no {format} data" if unknown else str(error) or type(error).__name__
        hint = "replace or rename the file, or leave out such images: `--skip-unreadable`"
        raise UnreadableImageError(f"{key} is not a readable image: {reason}", hint) from None


def _to_plain_mode(image: Any, format: str) -> Any:
    """Return the image in colours that can be scaled and stored."""
    modes = _STORED_MODES.get(format, ("L", "LA", "RGB", "RGBA"))
    if image.mode in modes:
        return image
    transparent = image.mode in ("LA", "PA") or "transparency" in image.info
    return image.convert("RGBA" if transparent and "RGBA" in modes else "RGB")


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


def _encode_image(image: Any, format: str, options: dict[str, Any]) -> bytes:
    out = BytesIO()
    image.info = {}
    image.save(out, format, **options)
    return out.getvalue()
