"""Compares the machine with its pool's machine type."""

from __future__ import annotations

from avactl.contracts.document import DocumentError, load_file
from avactl.contracts.scheduling import PoolFacts
from avactl.daemons.topology.commands import CommandError, run_command
from avactl.daemons.topology.options import TopologyOptions
from avactl.hardware.machine import Machine
from avactl.hardware.topo_check import TopologyVerdict, judge, unknown


async def check_topology(options: TopologyOptions) -> TopologyVerdict:
    """Run the command and compare. The pool is read each time, because it may have changed."""
    try:
        facts = load_file(PoolFacts, options.pool)
    except OSError as error:
        return unknown("PoolUnknown", f"{options.pool}: {error.strerror}")
    except DocumentError as error:
        return unknown("PoolUnknown", f"{options.pool} is not a pool: {error}")
    machine = Machine.from_facts(facts.machine)
    try:
        done = await run_command(options.command)
    except CommandError as error:
        return unknown("CommandFailed", str(error))
    if done.code:
        said = f": {done.first_line}" if done.first_line else ""
        return unknown("CommandFailed", f"`{' '.join(options.command)}` ended with {done.code}{said}")
    return judge(machine, facts.machine_type, done.output)
