"""Decoding and encoding of images that others made: bounded, upright, without loss that nobody asked for."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

from avactl.datasets.errors import DatasetError

_QUALITY = {"quality": 90}
_FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "jpg": ("JPEG", _QUALITY),
    "jpeg": ("JPEG", _QUALITY),
    "png": ("PNG", {}),
    "webp": ("WEBP", _QUALITY),
    "bmp": ("BMP", {}),
    "tif": ("TIFF", {}),
    "tiff": ("TIFF", {}),
}
"""Format of Pillow and options of its encoder, by the extension."""
_OPTIONS = dict(_FORMATS.values())
_STORED_MODES = {"JPEG": ("L", "RGB"), "BMP": ("L", "RGB"), "WEBP": ("RGB", "RGBA")}
"""Colours that a format stores; other images become RGB."""
_ALL_MODES = ("L", "LA", "RGB", "RGBA")


class UnreadableImageError(DatasetError):
    """A file with the name of an image cannot be decoded."""


class ImageContentError(Exception):
    """An image that can be decoded, and must not be."""


def is_image(key: str) -> bool:
    """Return True for the name of an image that can be decoded."""
    return key.rpartition(".")[2].lower() in _FORMATS


def image_format(key: str) -> str:
    """Return Pillow's name of the format that the extension of an image names."""
    return _FORMATS[key.rpartition(".")[2].lower()][0]


@contextmanager
def readable(key: str, hint: str) -> Iterator[None]:
    """Turn every error of a decoder or encoder into an UnreadableImageError that names the file."""
    from PIL import UnidentifiedImageError

    try:
        yield
    except (DatasetError, MemoryError):
        raise
    except ImageContentError as error:
        raise UnreadableImageError(f"{key}: {error}", hint) from None
    except Exception as error:  # each decoder has its own exceptions
        # The text of this error is the address of a buffer.
        unknown = isinstance(error, UnidentifiedImageError)
        reason = f"it has no {image_format(key)} data" if unknown else str(error) or type(error).__name__
        raise UnreadableImageError(f"{key} is not a readable image: {reason}", hint) from None


def decode_image(data: bytes, format: str, longest: int = 0) -> Any:
    """Return an image, upright, in 8 bits of gray or colours. Raises errors of decoders; see `readable`.

    With `longest`, a decoder may return a smaller version of a large image, which has at least this many pixels on each
    side. Only the decoder of `format` reads the data: among those that Pillow would try are some that start programs
    (Ghostscript for EPS).
    """
    from PIL import Image, ImageOps

    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(BytesIO(data), formats=[format]) as image:
            images = getattr(image, "n_frames", 1)
            if format != "JPEG" and images > 1:  # a photo may have a preview beside it
                raise ImageContentError(f"it has {images} images")
            if image.mode.startswith(("I", "F")):
                # Pillow clips their values: all of a 16-bit image would be white.
                raise ImageContentError("it has more than 8 bits per channel, which would be lost")
            if longest:
                image.draft("RGB", (longest, longest))
            image.load()
            try:
                upright = ImageOps.exif_transpose(image)
            except Exception:  # metadata that cannot be read say nothing of the orientation
                upright = image.copy()
            return _to_plain_mode(upright)


def _to_plain_mode(image: Any) -> Any:
    """Return the image in colours that can be scaled."""
    if image.mode in _ALL_MODES:
        image.load()
        return image
    transparent = image.mode in ("LA", "PA", "La", "RGBa") or "transparency" in image.info
    return image.convert("RGBA" if transparent else "RGB")


def encode_image(image: Any, format: str) -> bytes:
    """Return an image in a format of Pillow, without metadata. Without an alpha channel, the background is white."""
    from PIL import Image

    modes = _STORED_MODES.get(format, _ALL_MODES)
    if image.mode not in modes:
        if image.mode in ("LA", "RGBA") and "RGBA" not in modes:
            layer = image.convert("RGBA")
            image = Image.new("RGBA", layer.size, "white")
            image.alpha_composite(layer)
        image = image.convert("RGBA" if image.mode == "LA" and "RGBA" in modes else "RGB")
    out = BytesIO()
    image.info = {}
    image.save(out, format, **_OPTIONS[format])
    return out.getvalue()
