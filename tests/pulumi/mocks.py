"""Pulumi's own mocks, with every registration as the engine would get it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pulumi
from pulumi.runtime import mocks, rpc, set_all_config


class Registered(NamedTuple):
    """A resource that a program registered."""

    urn: str
    type: str
    name: str
    inputs: dict[str, Any]
    request: Any
    """The protocol's request, with all options."""

    @property
    def parent(self) -> str:
        """URN of the component above; none at the top."""
        above = str(self.request.parent)
        return "" if "::pulumi:pulumi:Stack::" in above else above

    @property
    def aliases(self) -> list[str]:
        """The URNs that are told as aliases."""
        return [*self.request.aliasURNs, *(alias.urn for alias in self.request.aliases if alias.urn)]


class _Mocks(mocks.Mocks):
    def call(self, args: mocks.MockCallArgs) -> tuple[dict[str, Any], None]:
        return {}, None

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        return args.name, args.inputs


class _Monitor(mocks.MockMonitor):
    def __init__(self, stack: str) -> None:
        super().__init__(_Mocks())
        self.stack = stack
        self.found: list[Registered] = []

    def make_urn(self, parent: str, type_: str, name: str) -> str:
        """As the engine makes them: the mocks know neither this thread's stack nor that the root is left out."""
        above = parent.split("::")[2] if parent else "pulumi:pulumi:Stack"
        below = type_ if above == "pulumi:pulumi:Stack" else f"{above}${type_}"
        return f"urn:pulumi:{self.stack}::avactl::{below}::{name}"

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802 - the protocol's name
        answer = super().RegisterResource(request)  # type: ignore[no-untyped-call]
        inputs = rpc.deserialize_properties(request.object)
        self.found.append(Registered(answer.urn, request.type, request.name, inputs, request))
        return answer


def run(program: Callable[[], Any], stack: str, config: Mapping[str, str] | None = None) -> list[Registered]:
    """What a program registers on a stack of project `avactl`; the stack itself is left out."""
    monitor = _Monitor(stack)
    set_all_config({f"avactl:{key}": value for key, value in (config or {}).items()})
    # Pulumi takes the thread's loop, which `asyncio.run` of an earlier test has taken away.
    asyncio.set_event_loop(asyncio.new_event_loop())
    mocks.set_mocks(monitor.mocks, project="avactl", stack=stack, monitor=monitor)

    def awaited() -> pulumi.Output[None]:
        program()
        return pulumi.Output.from_input(None)

    try:
        pulumi.runtime.test(awaited)()  # type: ignore[no-untyped-call]
    finally:
        set_all_config({})
        asyncio.get_event_loop().close()
        asyncio.set_event_loop(None)
    return [entry for entry in monitor.found if entry.type != "pulumi:pulumi:Stack"]
