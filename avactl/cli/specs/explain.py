"""`avactl explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from avactl.terminal import colour


def _complete(incomplete: str) -> list[str]:
    from avactl.kinds import registry

    return [name for name in [*registry.names(), "policies"] if name.lower().startswith(incomplete.lower())]


def _policies() -> None:
    from avactl.compiler.policy_list import policies_text
    from avactl.source.tree import DirTree, MemoryTree, find_root

    root = find_root(Path())
    ours = (root / "avactl.yaml").is_file() or (root / "policies").is_dir()
    print(policies_text(DirTree(root) if ours else MemoryTree({})), end="")  # elsewhere the tree may be large


def explain(
    topic: Annotated[
        str | None,
        typer.Argument(help="KIND, KIND.field.field, a diagnostic code, or `policies`.", autocompletion=_complete),
    ] = None,
    drift: Annotated[
        bool, typer.Option("--drift", help="List the object fields owned by controllers, which are never reverted.")
    ] = False,
) -> None:
    """Explain a kind, a field or a diagnostic: meaning, type, unit, default."""
    from avactl.kinds.reference.explain import drift_text, explain_text

    if topic == "policies" and not drift:
        _policies()
        return
    if topic is not None:
        topic = topic.partition("/")[0]  # `policy/NAME`, as in diagnostics
    print((drift_text if drift else explain_text)(topic, colour()), end="")
