"""`avactl explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from avactl.cli.common import fail
from avactl.exit_codes import USAGE
from avactl.terminal import colour


def _complete(incomplete: str) -> list[str]:
    from avactl.kinds import registry

    return [name for name in [*registry.names(), "policies"] if name.lower().startswith(incomplete.lower())]


def _policies() -> None:
    from avactl.compiler.policy_list import policies_text
    from avactl.source.tree import DirTree, MemoryTree, find_root

    root = find_root(Path())
    ours = (root / "avactl.yaml").is_file() or (root / "policies").is_dir()
    print(policies_text(DirTree(root) if ours else MemoryTree({})), end="")  # elsewhere there may be much to walk


def explain(
    topic: Annotated[
        str | None,
        typer.Argument(help="KIND or KIND.field.field; a diagnostic's code; `policies`.", autocompletion=_complete),
    ] = None,
    drift: Annotated[
        bool, typer.Option("--drift", help="Which fields of the objects are controllers', and so never put back.")
    ] = False,
) -> None:
    """What a kind, a field or a diagnostic means: type, unit, default."""
    from avactl.kinds.reference.explain import UnknownTopicError, drift_text, explain_text

    if topic == "policies" and not drift:
        _policies()
        return
    if topic is not None:
        topic = topic.partition("/")[0]  # `policy/NAME`, as problems are told
    try:
        print((drift_text if drift else explain_text)(topic, colour()), end="")
    except UnknownTopicError as error:
        fail(str(error), USAGE, error.hint)
