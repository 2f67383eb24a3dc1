"""The sandbox of Python specs and policies. Runs in the child process; standard library only.

The boundary is the kernel's: seccomp (system call allowlist) and Landlock (readable files). Both are required; without
one of them nothing is evaluated. Namespaces, dropped capabilities and resource limits add depth, and a Python audit
hook reports what was refused.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from avactl.spec.python_files.sandbox import audit, landlock, limits, process, seccomp
from avactl.spec.python_files.sandbox.audit import NotAllowedError

__all__ = ["LAYERS", "NOT_CONFINED", "NotAllowedError", "enter"]

NOT_CONFINED = 77
"""Exit status of a child that refused to start because a layer is missing; its answer lists the layers."""

LAYERS = ("seccomp", "Landlock", "resource limits", "dropped privileges")
"""Layers that are required."""

_SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache")
"""Libraries that standard extension modules link to. The audit hook hides them from Python code."""


def enter(request: Mapping[str, Any]) -> None:
    """Drop all privileges except computing and reading, irreversibly. Call it in a single-threaded process.

    Of the request: `readable` and `listable` paths, `native` directories with extension modules, `seconds` of CPU time,
    the `parent`'s process ID, the descriptor `answer`, and whether all layers are `required`. Where they are and one
    is missing, the process ends with the status NOT_CONFINED.
    """
    missing = set() if limits.apply(request["seconds"]) else {"resource limits"}
    if sys.platform == "linux":
        missing |= _kernel_layers(request)
    else:
        missing |= {"seccomp", "Landlock"}
    if missing and request["required"]:
        os.write(request["answer"], ",".join(layer for layer in LAYERS if layer in missing).encode())
        os._exit(NOT_CONFINED)
    audit.apply(request["readable"], request["listable"], request["native"])


def _kernel_layers(request: Mapping[str, Any]) -> set[str]:
    """Apply all layers that the kernel supports; return the missing ones."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    process.enter_namespaces(libc)
    libraries = (*_SYSTEM_LIBRARIES, f"{sys.base_prefix}/lib")
    layers: dict[str, Callable[[], bool]] = {
        "dropped privileges": lambda: process.drop_privileges(ctypes, libc, request["parent"]),
        "Landlock": lambda: landlock.apply(ctypes, libc, (*request["readable"], *libraries), request["listable"]),
        "seccomp": lambda: seccomp.apply(ctypes, libc),
    }
    missing = {name for name, apply in layers.items() if not apply()}
    _forget_ctypes()
    return missing


def _forget_ctypes() -> None:
    """Remove access to native code: classes that outlive the module find an empty namespace."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("ctypes", "_ctypes")]:
        vars(sys.modules.pop(name)).clear()
