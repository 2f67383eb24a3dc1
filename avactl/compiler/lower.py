"""Pass 5: specs to Kubernetes objects, each kind by its own pure function."""

from __future__ import annotations

from dataclasses import replace

from avactl.compiler.state import State
from avactl.kinds import registry
from avactl.kinds.manifest import Manifest


def lower(state: State) -> State:
    """The objects of all specs; none where an error was found, so that nothing is half compiled."""
    program = state.program
    if program is None or state.failed:
        return state
    manifests: list[Manifest] = []
    for name in registry.names():
        items = program.of(name)
        if items:
            make = registry.kind(name).lower
            for item in items:
                manifests += make(item, program)
    return replace(state, manifests=tuple(manifests))
