"""Structured logs of the daemons: standard `logging`, one JSON object per line on standard error.

Without `configure` nothing is logged: interactive commands print their own messages.
"""

from __future__ import annotations

import logging
from typing import Any

import orjson

from avactl.kube.timestamps import timestamp

_LOGGER = logging.getLogger("avactl")
_LOGGER.addHandler(logging.NullHandler())


class JsonFormatter(logging.Formatter):
    """Formats a record as JSON: time, level, message, then its fields."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": timestamp(record.created, "milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def configure() -> None:
    """Write logs to standard error from now on: avactl's from INFO, those of libraries from WARNING."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    _LOGGER.setLevel(logging.INFO)


def info(message: str, **fields: Any) -> None:
    """Log a normal event."""
    _LOGGER.info(message, extra={"fields": fields})


def warn(message: str, **fields: Any) -> None:
    """Log something that may need attention."""
    _LOGGER.warning(message, extra={"fields": fields})


def error(message: str, **fields: Any) -> None:
    """Log something that needs attention."""
    _LOGGER.error(message, extra={"fields": fields})
