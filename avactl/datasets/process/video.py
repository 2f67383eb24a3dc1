"""Frames of videos, by PyAV."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from io import BytesIO
from typing import Any

from avactl.base.terminal import visible_text
from avactl.datasets.process.model import Frames

_DEMUXERS = {
    "mp4": "mp4",
    "m4v": "mp4",
    "mov": "mov",
    "mkv": "matroska",
    "webm": "matroska",
    "avi": "avi",
    "mpg": "mpeg",
    "mpeg": "mpeg",
    "ts": "mpegts",
    "flv": "flv",
}
"""Demuxer by the extension. No other one reads the data: playlists, which FFmpeg would recognize, open other files."""
MAX_PIXELS = 89_478_485
"""Pixels of a frame: those of an image in Pillow."""
_MAX_DECODED = 10_000_000
"""Frames that are decoded of one video."""


class VideoError(Exception):
    """A video that cannot be read; the message is the reason."""


def is_video(key: str) -> bool:
    """Return True for the name of a video."""
    return key.rpartition(".")[2].lower() in _DEMUXERS


def video_frames(name: str, data: bytes, frames: Frames) -> Iterator[Any]:
    """Yield the first frame, and the first at or after each following point of time, as Pillow images.

    Raises VideoError.
    """
    import av

    extension = name.rpartition(".")[2].lower()
    try:
        # Tags are not used, and need not be UTF-8.
        with av.open(BytesIO(data), format=_DEMUXERS[extension], metadata_errors="replace") as container:
            yield from _chosen_frames(container, frames.interval, frames.max)
    except (av.FFmpegError, ValueError, ArithmeticError, NotImplementedError) as error:
        # PyAV raises all of these for values in a file; av.FFmpegError is an OSError for some codes.
        text = visible_text(getattr(error, "strerror", None) or str(error) or type(error).__name__)
        raise VideoError(f"it is not a readable {extension} video: {text}") from None


def _chosen_frames(container: Any, step: Fraction, most: int) -> Iterator[Any]:
    if not container.streams.video:
        raise VideoError("it has no video stream")
    stream = container.streams.video[0]
    stream.thread_type = "NONE"  # other objects use the other cores
    if stream.codec_context.width * stream.codec_context.height > MAX_PIXELS:
        raise VideoError("its frames are too large")
    first: Fraction | None = None
    count = 0
    for number, frame in enumerate(container.decode(stream)):
        if number >= _MAX_DECODED:
            raise VideoError(f"it has more than {_MAX_DECODED:,} frames")
        if frame.width * frame.height > MAX_PIXELS:
            raise VideoError("its frames are too large")
        at = _time(frame, stream, number)
        if first is None:
            first = at
        if at - first < count * step:
            continue
        if count >= most:
            raise VideoError(f"it has more than {most:,} frames to take")
        # A pause in the stream is no reason to take the next frames all at once.
        count = max(count, int((at - first) / step)) + 1 if step else count + 1
        yield _upright(frame)
    if first is None:
        raise VideoError("it has no frames")


def _time(frame: Any, stream: Any, number: int) -> Fraction:
    """Return the time of a frame; without time stamps, that by the frame rate."""
    if frame.pts is not None and frame.time_base:
        return Fraction(frame.pts) * Fraction(frame.time_base)
    rate = stream.average_rate or stream.guessed_rate
    if not rate:
        raise VideoError("its frames have no time stamps, and it has no frame rate")
    return Fraction(number) / Fraction(rate)


def _upright(frame: Any) -> Any:
    """Return the image of a frame, turned as players show it."""
    from PIL.Image import Transpose

    image = frame.to_image()
    turn = round(frame.rotation) % 360
    by = {90: Transpose.ROTATE_90, 180: Transpose.ROTATE_180, 270: Transpose.ROTATE_270}
    return image.transpose(by[turn]) if turn in by else image
