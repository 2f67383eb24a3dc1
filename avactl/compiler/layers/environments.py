"""The environments of a repository, found without imports that a warm start would pay for."""

from __future__ import annotations

from avactl.compiler.selection import CONFIG_FILE
from avactl.spec.repository.tree import Tree


def environments_of(tree: Tree) -> list[str]:
    """Return the environments to compile if the user chose none; [] if one is chosen, or there are none."""
    if tree.environment:
        return []
    try:
        if b"environments" not in tree.read(CONFIG_FILE):
            return []
    except OSError:
        return []
    from avactl.compiler.config import load_config

    config, _ = load_config(tree)
    return list(config.environments)
