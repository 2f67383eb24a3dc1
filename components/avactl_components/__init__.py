"""The kinds of avactl as Pulumi components, for anyone's own Pulumi program.

    from avactl.kinds.training import TrainingJobSpec
    from avactl_components import TrainingJob

    TrainingJob("resnet50", {"metadata": {"team": "vision"}, "spec": TrainingJobSpec(...), "platform": "../platform"})

Each kind of `avactl.kinds` is a class here. A spec is compiled with what it refers to, so every problem is told as
`avactl validate` tells it, and its objects are registered below the component.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from avactl.program import registry

if TYPE_CHECKING:
    from avactl_components.component import SpecComponent as SpecComponent


def components() -> list[type[SpecComponent]]:
    """The components of all kinds."""
    return [__getattr__(name) for name in registry.kind_names()]


def __getattr__(name: str) -> type[SpecComponent]:
    if name not in registry.kind_names():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from avactl_components.component import component

    return component(name)
