"""`avactl explain`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from avactl.base.exit_codes import PROBLEMS
from avactl.base.terminal import use_colour
from avactl.cli.common import TEXT, open_repository, render_diagnostics
from avactl.cli.completion import complete_topic
from avactl.cli.environments import EnvironmentOption


def _policies() -> None:
    from avactl.compiler.policies.listing import policies_text
    from avactl.spec.repository.tree import DirTree, MemoryTree, find_root

    root = find_root(Path())
    ours = (root / "avactl.yaml").is_file() or (root / "policies").is_dir()
    print(policies_text(DirTree(root) if ours else MemoryTree({})), end="")  # elsewhere the tree may be large


def _print_origin(file: Path, path: str, name: str) -> None:
    """Print the sources of a value."""
    from avactl.compiler.layers.origin import Specs, origin_text, value_origin

    tree, asked = open_repository([file])
    specs = Specs(tree)
    if specs.problems:
        sys.stderr.write(render_diagnostics(specs.problems, tree, TEXT, use_colour(sys.stderr)))
        raise typer.Exit(PROBLEMS)
    own = asked[0] if asked else file.name
    print(origin_text(value_origin(specs.of(own, name), path), tree.environment), end="")


def explain(
    topic: Annotated[
        str | None,
        typer.Argument(help="KIND, KIND.field.field, a diagnostic code, or `policies`.", autocompletion=complete_topic),
    ] = None,
    origin: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--origin", metavar="FILE PATH", help="Show who sets a value of a spec: its file, an overlay, a default, …"
        ),
    ] = None,
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="--origin: spec of the file if it has several.")
    ] = "",
    environment: EnvironmentOption = "",
    drift: Annotated[
        bool, typer.Option("--drift", help="List the object fields owned by controllers, which are never reverted.")
    ] = False,
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Show all fields below a kind or field, and an example.")
    ] = False,
) -> None:
    """Explain a kind, a field or a diagnostic: meaning, type, unit, default."""
    if origin is not None:
        _print_origin(Path(origin[0]), origin[1], name)
        return
    from avactl.program.explain.explain import drift_text, explain_text

    if topic == "policies" and not drift:
        _policies()
        return
    if recursive and topic is not None:
        from avactl.program.explain.recursive import recursive_text

        print(recursive_text(topic, use_colour()), end="")
        return
    if topic is not None:
        topic = topic.partition("/")[0]  # `policy/NAME`, as in diagnostics
    print((drift_text if drift else explain_text)(topic, use_colour()), end="")
