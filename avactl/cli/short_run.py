"""Preparation of processes that end within a second, where imports and the collector count."""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

_METADATA = "importlib.metadata"


class _LazyMetadata(ModuleType):
    """`importlib.metadata`, imported on first use: with it come email, socket and zipfile.

    pydantic imports `entry_points` from it, which it never calls without plug-ins. (An `import` of a module behind
    importlib's LazyLoader loads it.)
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system looks for `__path__`
            raise AttributeError(name)
        if sys.modules.get(_METADATA) is self:
            del sys.modules[_METADATA]
        return getattr(import_module(_METADATA), name)

    def entry_points(self, **selection: Any) -> Any:
        return self.__getattr__("entry_points")(**selection)


def prepare_short_run() -> None:
    """Configure a short-lived process for speed, before the compiler is imported."""
    gc.disable()  # the collector would only walk what is imported
    # pydantic would look for plug-ins in the metadata of every installed package.
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
    sys.modules.setdefault(_METADATA, _LazyMetadata(_METADATA))
