"""The passes from files to Kubernetes objects, and the driver that runs them."""

from avactl.compiler.driver import PASSES, Compilation, compile, compile_tree

__all__ = ["PASSES", "Compilation", "compile", "compile_tree"]
