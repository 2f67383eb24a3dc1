"""Options that several commands share. `--format` is the output format everywhere, `-o` a file, `-n` a namespace."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer


class Output(str, Enum):  # noqa: UP042 - typer reads the values of str enums
    text = "text"
    json = "json"


OutputFormat = Annotated[Output, typer.Option("--format", "-f", help="Output format.")]
"""Text for people, or JSON for programs."""
