"""avactl: a declarative GitOps infrastructure compiler for deep-learning clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from avactl.compiler import Compilation as Compilation
    from avactl.compiler import compile as compile
    from avactl.compiler import compile_tree as compile_tree
    from avactl.diagnostics import CompileError as CompileError

__version__ = "0.1.0"

_EXPORTS = {
    "Compilation": "avactl.compiler",
    "compile": "avactl.compiler",
    "compile_tree": "avactl.compiler",
    "CompileError": "avactl.diagnostics",
}


def __getattr__(name: str) -> Any:
    # Imported when asked for: `avactl --help` does not need the compiler.
    import importlib

    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'avactl' has no attribute {name!r}")
