"""The passes from files to Kubernetes objects, and the driver that runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from avactl.compiler.driver import PASSES as PASSES
    from avactl.compiler.driver import Compilation as Compilation
    from avactl.compiler.driver import compile as compile
    from avactl.compiler.driver import compile_tree as compile_tree


def __getattr__(name: str) -> Any:
    # The driver imports every pass, and pydantic: avoid that if nothing has changed since the last run.
    if name in ("PASSES", "Compilation", "compile", "compile_tree"):
        from avactl.compiler import driver

        return getattr(driver, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
