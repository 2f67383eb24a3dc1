"""What the engine talks to when a program in another language uses the components."""

from __future__ import annotations

from typing import Any

import pulumi
from pulumi.errors import InputPropertiesError
from pulumi.provider import ConstructResult
from pulumi.provider.experimental.component import ComponentProvider
from pulumi.provider.server import ComponentInitError

from avactl import __version__
from avactl_components import components
from avactl_components.component import PACKAGE


class _Provider(ComponentProvider):
    """Pulumi's component provider, which infers the schema, with problems of specs told as such."""

    def construct(
        self,
        name: str,
        resource_type: str,
        inputs: Any,
        options: pulumi.ResourceOptions | None = None,
    ) -> ConstructResult:
        try:
            return super().construct(name, resource_type, inputs, options)
        except ComponentInitError as error:
            if isinstance(error.inner, pulumi.RunError):
                # Without this the person would read our stack beneath the diagnostics.
                raise InputPropertiesError(str(error.inner), []) from error
            raise

    def map_inputs(self, inputs: Any, *_: Any) -> Any:
        """The arguments as they are: they have YAML's names already, and the compiler tells of unknown ones."""
        return inputs


def provider() -> ComponentProvider:
    """The provider of all kinds."""
    return _Provider([*components()], PACKAGE, None, __version__)
