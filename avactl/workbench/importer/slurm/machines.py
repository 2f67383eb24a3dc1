"""Commands beside the step of a script, on several machines: Slurm runs them once, and each pod of a job does."""

from __future__ import annotations

from collections.abc import Sequence

from avactl.workbench.importer.shell import Node, Program, is_inside, is_shown
from avactl.workbench.importer.slurm.prelude import NODE_LISTS
from avactl.workbench.importer.slurm.sizes import LeftOut
from avactl.workbench.importer.slurm.steps import Step

REPEATABLE = frozenset(
    """
    : [ alias awk basename bc cat cd chmod cp cut date declare df diff dig dirname du echo egrep exit host nslookup
    export expr false fgrep free getconf getent grep groups head hostname id ifconfig ip ldd let local ls lscpu
    mapfile mkdir nproc nvidia-smi paste popd printenv printf ps pushd pwd read readarray readlink readonly realpath
    return scontrol sed seq set shift shopt sleep sort source stat . tail tee test time top touch tr trap true type
    typeset ulimit umask uname unalias uniq unset wait wc which whoami yes
    """.split()  # noqa: SIM905 - a list of words reads better
)
"""Commands that may run on each machine, though Slurm runs them on the first only."""
DIFFERING = ("date", "mktemp", "uuidgen", "openssl", "shuf", "hostid", "ip", "ifconfig", "uname")
"""Commands that print something else on each machine."""
_VARYING = ("$", "BASHPID", "SECONDS", "EPOCHSECONDS", "EPOCHREALTIME", "SRANDOM")
HOST_OPTIONS = ("-I", "-i", "--ip-address", "--all-ip-addresses")
"""Options of hostname that print addresses."""


def check_machines(program: Program, steps: Sequence[Step]) -> set[str]:
    """Return what the program needs so that every machine does the same before its steps; see `prelude`.

    Raises LeftOut for commands that do something else on several machines than on one.
    """
    needs: set[str] = set()
    own = [each.command.node for each in steps]
    for command in program.commands:
        node, name = command.node, command.name
        if node in own or program.is_removed(node.start) or not command.words:
            continue
        if name not in REPEATABLE and name not in program.functions and name not in DIFFERING:
            raise LeftOut(
                f"line {command.line}: Slurm runs `{(name or command.words[0].text)[:40]}` once, on the first "
                "node; make it a job of its own, with `after`"
            )
        printed = is_shown(program, node)
        arguments = [each.text for each in command.words[1:]]
        in_place = name == "sed" and any(each.startswith(("-i", "--in-place")) for each in arguments)
        if in_place or (name == "mkdir" and not any(each.startswith(("-p", "--p")) for each in arguments)):
            raise LeftOut(
                f"line {command.line}: Slurm runs `{name}` once, and each machine would; `mkdir -p` may run on each"
            )
        if _appends(node):
            raise LeftOut(f"line {command.line}: each machine would append to the file")
        if name == "cat" and "/etc/hostname" in arguments:
            raise LeftOut(f"line {command.line}: /etc/hostname is another one on each machine")
        arguments = [each.text for each in command.words[1:]]
        of_host = name == "hostname" or (name == "uname" and arguments == ["-n"])
        if name in DIFFERING and not of_host and is_inside(node, "CmdSubst") and not printed:
            raise LeftOut(f"line {command.line}: `{name}` gives another value on each machine: write the value")
        if of_host and is_inside(node, "CmdSubst") and not printed:
            by_address = any(each.text in HOST_OPTIONS for each in command.words[1:])
            text = 'address_of "$MASTER_ADDR"' if by_address else 'echo "$MASTER_ADDR"'
            needs |= {"address"} if by_address else set()
            program.replace(node.start, node.end, text)
    for each in program.reads:
        place = program.node_at(each.start)
        if each.name in NODE_LISTS and not _is_split(program, place):
            raise LeftOut(f"line {each.line}: it reads {each.name} in Slurm's short form, which pods do not have")
        if each.name in _VARYING and not is_shown(program, place):
            raise LeftOut(f"line {each.line}: ${each.name} has another value on each machine")
        if each.name == "RANDOM":
            needs.add("random")
        if each.name == "HOSTNAME":
            needs.add("hostname")
    return needs


def _appends(node: Node) -> bool:
    """Return True if a command appends to a file."""
    statement = node.parent
    return statement is not None and any(
        each.type == "Redirect" and each.data["Op"] in (">>", "&>>") for each in statement.children
    )


def _is_split(program: Program, place: Node) -> bool:
    """Return True if a list of nodes is split at commas, or only shown."""
    read: Node | None = place
    while read is not None and read.type != "ParamExp":
        read = read.parent
    if read is None or is_shown(program, place):
        return True
    expansion = read.data.get("Exp") or {}
    if expansion:
        return expansion.get("Op") in ("%%", "%") and program.text_of(read).endswith(",*}")
    call = read
    while call.parent is not None and call.type != "CallExpr":
        call = call.parent
    plain = not any(read.has(key) for key in ("Slice", "Repl", "Index", "Length"))
    return plain and call.type == "CallExpr" and program.command(call).name == "scontrol"
