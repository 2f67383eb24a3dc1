"""`avactl explain`."""

from __future__ import annotations

from typing import Annotated

import typer

from avactl.cli.common import USAGE, colour, fail


def _complete(incomplete: str) -> list[str]:
    from avactl.kinds import registry

    return [name for name in registry.names() if name.lower().startswith(incomplete.lower())]


def explain(
    topic: Annotated[
        str | None,
        typer.Argument(help="KIND or KIND.field.field; a diagnostic's code.", autocompletion=_complete),
    ] = None,
    drift: Annotated[
        bool, typer.Option("--drift", help="Which fields of the objects are controllers', and so never put back.")
    ] = False,
) -> None:
    """What a kind, a field or a diagnostic means: type, unit, default."""
    from avactl.kinds.explain import UnknownTopicError, drift_text, explain_text

    try:
        print((drift_text if drift else explain_text)(topic, colour()), end="")
    except UnknownTopicError as error:
        fail(str(error), USAGE, error.hint)
