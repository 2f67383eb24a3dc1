"""Commands beside the step of a script, on several machines: Slurm runs them once, and each pod of a job does."""

from __future__ import annotations

from avactl.workbench.importer.shell import Node, Program, is_inside, statement_of
from avactl.workbench.importer.slurm.sizes import LeftOut
from avactl.workbench.importer.slurm.steps import Step

REPEATABLE = frozenset(
    """
    : [ alias awk basename bc builtin cat cd command cp cut date declare df diff dirname du echo egrep env eval exit
    export expr false fgrep find free getconf getent grep groups head hostname id ifconfig ip ldd let local ls lscpu
    mapfile mkdir nproc nvidia-smi paste popd printenv printf ps pushd pwd read readarray readlink readonly realpath
    return scontrol sed seq set shift shopt sleep sort source stat . tail tee test time top touch tr trap true type
    typeset ulimit umask uname unalias uniq unset wait wc which whoami xargs yes
    """.split()  # noqa: SIM905 - a list of words reads better
)
"""Commands that may run on each machine, though Slurm runs them on the first only."""
_DIFFERING = ("date", "mktemp", "uuidgen", "openssl", "shuf", "hostid")
_DIFFERING_VARIABLES = ("$", "BASHPID", "SECONDS", "EPOCHSECONDS", "EPOCHREALTIME", "SRANDOM")
HOST_OPTIONS = ("-I", "-i", "--ip-address", "--all-ip-addresses")
"""Options of hostname that print addresses."""


def check_machines(program: Program, step: Step) -> set[str]:
    """Return what the program needs so that every machine does the same before its step; see `prelude`.

    Raises LeftOut for commands that do something else on several machines than on one.
    """
    needs: set[str] = set()
    for command in program.commands:
        node, name = command.node, command.name
        if node is step.command.node or program.is_removed(node.start) or not command.words:
            continue
        if name not in REPEATABLE and name not in program.functions and name not in _DIFFERING:
            raise LeftOut(
                f"line {command.line}: Slurm runs `{(name or command.words[0].text)[:40]}` once, on the first "
                "node; make it a job of its own, with `after`"
            )
        printed = _is_shown(program, node)
        if name in _DIFFERING and is_inside(node, "CmdSubst") and not printed:
            raise LeftOut(f"line {command.line}: `{name}` gives another value on each machine: write the value")
        if name == "hostname" and is_inside(node, "CmdSubst") and not printed:
            by_address = any(each.text in HOST_OPTIONS for each in command.words[1:])
            text = 'address_of "$MASTER_ADDR"' if by_address else 'echo "$MASTER_ADDR"'
            needs |= {"address"} if by_address else set()
            program.replace(node.start, node.end, text)
    for each in program.reads:
        place = program.node_at(each.start)
        if each.name in _DIFFERING_VARIABLES and not _is_shown(program, place):
            raise LeftOut(f"line {each.line}: ${each.name} has another value on each machine")
        if each.name == "RANDOM":
            needs.add("random")
        if each.name == "HOSTNAME":
            needs.add("hostname")
    return needs


def _is_shown(program: Program, node: Node) -> bool:
    """Return True below an `echo` or `printf` at the top level: its text goes to the log only."""
    call = statement_of(node).child("Cmd")
    return call is not None and call.type == "CallExpr" and program.command(call).name in ("echo", "printf")
