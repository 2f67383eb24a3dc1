"""Commands beside the step of a script, on several machines: Slurm runs them once, and each pod of a job does."""

from __future__ import annotations

import re
from collections.abc import Sequence

from avactl.workbench.importer.shell import Command, Node, Program, SyntaxProblem, is_inside, is_shown
from avactl.workbench.importer.slurm.prelude import NODE_LISTS
from avactl.workbench.importer.slurm.sizes import LeftOut
from avactl.workbench.importer.slurm.steps import Step

REPEATABLE = frozenset(
    """
    : [ alias awk basename bc cat cd chmod clear cp cut date declare df diff dcgmi dig dirname du echo egrep exit
    export expr false fgrep free getconf getent grep groups head host hostname id ifconfig ip ldd let local ls
    lscpu mapfile mkdir nproc nslookup nvidia-smi paste popd printenv printf ps pushd pwd read readarray readlink
    readonly realpath return scontrol sed seq set shift shopt sleep sort source stat . tail tee test top
    touch tr trap true type typeset ulimit umask uname unalias uniq unset wait wc which whoami yes
    """.split()  # noqa: SIM905 - a list of words reads better
)
"""Commands that may run on each machine, though Slurm runs them on the first only."""
DIFFERING = ("date", "mktemp", "uuidgen", "openssl", "shuf", "hostid", "ip", "ifconfig", "uname")
"""Commands that print something else on each machine."""
_VARYING = ("$", "BASHPID", "SECONDS", "EPOCHSECONDS", "EPOCHREALTIME", "SRANDOM")
_SUFFIX = r"-?i(?:b|poib)?\d?(?!\w)"
"""End of a name of a host that is that of its card in another network, as in `${HOST}i`."""
_SUFFIXED = re.compile(r"scontrol show hostnames?[^)]*\)[\"']{0,2}" + _SUFFIX)
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
        if name == "trap":
            _check_trap(program, command)
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
        if _differs(command) and is_inside(node, "CmdSubst") and not printed and not _is_unread(program, node):
            raise LeftOut(f"line {command.line}: `{name}` gives another value on each machine: write the value")
        needs |= name_first_host(program, command, "$MASTER_ADDR")
    for each in program.reads:
        if program.is_removed(each.start):
            continue
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


def _check_trap(program: Program, command: Command) -> None:
    """Raise LeftOut if what runs at a signal does something else on several machines than on one."""
    text = command.words[1].value if len(command.words) > 2 else ""
    try:
        inner = Program(text or "").commands if text is not None else None
    except SyntaxProblem:
        inner = None
    if inner is None or any(each.name not in REPEATABLE and each.name not in program.functions for each in inner):
        raise LeftOut(f"line {command.line}: Slurm runs the trap once, on the first node, and each machine would")


def name_first_host(program: Program, command: Command, first: str) -> set[str]:
    """Let a command that asks for its own host have the first of the machines; return what the text needs."""
    if not _asks_host(command) or not is_inside(command.node, "CmdSubst") or is_shown(program, command.node):
        return set()
    by_address = any(each.text in HOST_OPTIONS for each in command.words[1:])
    program.replace(command.node.start, command.node.end, f'{"address_of" if by_address else "echo"} "{first}"')
    return ({"address"} if by_address else set()) | ({"nodes"} if "NODELIST" in first else set())


_READS = re.compile(r"\$\{?(\w+)").findall


def refuse_other_networks(program: Program) -> None:
    """Raise LeftOut if a suffix makes the name of a host that of its card in another network, whatever the cluster."""
    known: set[str] = set()
    for name, places in program.assignments.items():
        texts = [program.text_of(each) for each in places]
        if any("scontrol" in text or not known.isdisjoint(_READS(text)) for text in texts):
            known.add(name)
    named = "|".join(rf'\$\{{{name}(?:\[\d\])?\}}"?{_SUFFIX}|"\${name}"{_SUFFIX}' for name in sorted(known))
    text = program.data.decode()
    for pattern in (_SUFFIXED, re.compile(named)) if named else (_SUFFIXED,):
        for found in pattern.finditer(text):
            node = program.node_at(len(text[: found.start()].encode()))
            if node.type != "Comment" and not is_inside(node, "IfClause"):
                raise LeftOut(f"line {node.line}: `{found[0][-40:]}` names a host in another network of the cluster")


def _asks_host(command: Command) -> bool:
    return command.name == "hostname" or [each.text for each in command.words] == ["uname", "-n"]


def _differs(command: Command) -> bool:
    """Return True if a command prints something else on each machine, and not only the name of its own."""
    return command.name in DIFFERING and not _asks_host(command)


def _is_unread(program: Program, node: Node) -> bool:
    """Return True if a value is assigned to a variable that only options of srun read, which go, or that is shown."""
    above = node
    while above.parent is not None and above.type != "Assign":
        above = above.parent
    if above.type != "Assign":
        return False
    name = above.data["Name"]["Value"]
    kept = any(
        each.name == name and not program.is_removed(each.start) and not is_shown(program, program.node_at(each.start))
        for each in program.reads
    )
    texts = [program.text_of(each) for each in program.texts if each.type == "SglQuoted"]
    exported = above.parent is not None and above.parent.type == "DeclClause"
    return not kept and not exported and not any(re.search(rf"\b{name}\b", text) for text in texts)


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
