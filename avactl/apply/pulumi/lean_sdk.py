"""Pulumi's SDK without what takes most of its time on large stacks, and what avactl does not use."""

from __future__ import annotations

import pulumi
from pulumi import automation
from pulumi.runtime import resource
from pulumi.runtime.proto import source_pb2


class WorkspaceWithoutOutputs(automation.LocalWorkspace):
    """A workspace whose stacks have no outputs.

    After each update, the Automation API reads them with two more runs of the engine, each of which loads the whole
    state.
    """

    def stack_outputs(self, stack_name: str) -> automation.OutputMap:
        """Return no outputs: avactl's program exports none."""
        return {}


def drop_debug_messages() -> None:
    """Keep the SDK from sending debug messages, which the engine drops.

    Each is a call that the program waits for, several times for each object: most of the time of a large program.
    """
    pulumi.log.debug = _drop


def drop_stack_traces() -> None:
    """Keep the SDK from sending the Python stack with each resource.

    The engine writes it into the state: a third of its size, and paths of the machine that ran the program. Older
    versions of the SDK send none.
    """
    if hasattr(resource, "_get_stack_trace"):
        resource._get_stack_trace = source_pb2.StackTrace


def _drop(
    msg: str,
    resource: pulumi.Resource | None = None,
    stream_id: int | None = None,
    ephemeral: bool | None = None,
) -> None:
    pass
