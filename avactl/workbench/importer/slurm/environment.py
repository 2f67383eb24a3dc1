"""Variables that a script reads: those of Slurm, and those of whoever submits it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from avactl.workbench.importer.model import ImportReader
from avactl.workbench.importer.shell import Node, Program, is_at_top, is_inside, is_shown
from avactl.workbench.importer.slurm.prelude import NODE_LISTS
from avactl.workbench.importer.slurm.sizes import LeftOut

SLURM_NAME = re.compile(r"\bSLURM[D]?_[A-Z_]+\b")
COMPUTED = (*NODE_LISTS, "SLURM_SUBMIT_DIR", "SLURM_TMPDIR", "SLURMD_NODENAME", "SLURM_LAUNCH_NODE_IPADDR")
"""Variables whose values the pods compute."""
_UNSET = re.compile(
    r"SLURM_(ARRAY_\w+|RESTART_COUNT|NTASKS_PER_NODE|CPUS_PER_(TASK|GPU)|GPUS(_PER_(NODE|TASK))?"
    r"|JOB_(QOS|PARTITION|ACCOUNT)|JOB_DEPENDENCY|STEP_ID|STEPID)"
)
"""Variables that Slurm does not set without an option, or the first time that a job runs."""
_OF_SHELL = frozenset(
    """
    BASH BASHPID BASH_SOURCE BASH_VERSION BASH_REMATCH COLUMNS EPOCHSECONDS EUID FUNCNAME GROUPS HOME HOSTNAME IFS LANG
    LC_ALL LINENO LINES LD_LIBRARY_PATH LIBRARY_PATH LOGNAME MACHTYPE OLDPWD OPTARG OPTIND OSTYPE PATH PIPESTATUS PPID
    PS1 PS4 PWD PYTHONPATH RANDOM REPLY SECONDS SHELL SHLVL TERM UID USER CPATH MANPATH
    PKG_CONFIG_PATH
    """.split()  # noqa: SIM905 - a list of words reads better
)
_OF_PRELUDE = ("TMPDIR", "CUDA_VISIBLE_DEVICES")
_OF_JOB = ("MASTER_ADDR", "MASTER_PORT")
_MAX_LISTED = 20


def refuse_arguments(program: Program, reader: ImportReader) -> None:
    """Raise LeftOut if a program reads its own file, or arguments that sbatch was given."""
    own = [
        each.node
        for each in program.commands
        if each.name == "set" and [word.text for word in each.words[1:2]] == ["--"]
    ]
    first = min((each.start for each in own if is_at_top(each)), default=len(program.data))
    for each in program.reads:
        place = program.node_at(each.start)
        if each.name in ("0", "BASH_SOURCE") and not is_shown(program, place):
            raise LeftOut(f"line {each.line}: it reads ${each.name}: pods have no file of the script")
        if not re.fullmatch(r"[1-9@*#]", each.name) or is_inside(place, "FuncDecl") or each.start > first:
            continue
        if not re.match(rb"\$\{\d:?[-=]", program.data[each.start :]):
            raise LeftOut(f"line {each.line}: it reads ${each.name}: arguments of sbatch are not in the script")
        reader.note(("line", each.line), f"${each.name} has its default: arguments of sbatch are not in the script")


def check_variables(
    program: Program,
    constants: Mapping[str, str],
    reader: ImportReader,
    strategy: str,
) -> None:
    """List variables that a pod does not have. Raises LeftOut for those without which the program is another one."""
    outside: dict[str, int] = {}
    for each in program.reads:
        place = program.node_at(each.start)
        known = each.has_default or each.name in program.assignments or program.is_removed(each.start)
        if SLURM_NAME.fullmatch(each.name):
            known |= is_shown(program, place) or _is_tested(program, place)
        if re.fullmatch(r"[A-Za-z_]\w*", each.name) and not known:
            outside.setdefault(each.name, each.line)
    for name, line in slurm_variables(program).items():
        if name in program.assignments or name in constants or name in COMPUTED:
            continue
        if name in outside and name.startswith("SLURM_ARRAY_"):
            raise LeftOut(f"line {line}: it reads {name}, and has no `--array`")
        if name in outside and not _UNSET.fullmatch(name):
            raise LeftOut(f"line {line}: it reads {name}, which has no equivalent")
        outside.pop(name, None)
        if not _UNSET.fullmatch(name):
            reader.note(("line", line), f"{name} is not set", "")
    of_job = _OF_JOB if strategy == "allReduce" else ()
    for name, line in list(outside.items())[:_MAX_LISTED]:
        if name not in _OF_SHELL and name not in (*of_job, *_OF_PRELUDE) and not SLURM_NAME.fullmatch(name):
            reader.note(
                ("line", line), f"{name} comes from the environment of whoever submits", f"set `env: {{{name}: …}}`"
            )


def _is_tested(program: Program, node: Node) -> bool:
    """Return True in a test, which a variable that is not set answers as in Slurm."""
    call = node
    while call.parent is not None and call.type not in ("CallExpr", "TestClause"):
        call = call.parent
    return call.type == "TestClause" or (call.type == "CallExpr" and program.command(call).name in ("[", "test"))


def slurm_variables(program: Program) -> dict[str, int]:
    """Return Slurm's variables that a program names, also in texts of other programs, with their first lines."""
    found: dict[str, int] = {}
    for match in re.finditer(SLURM_NAME.pattern.encode(), program.data):
        start = match.start()
        if not any(first <= start < last for first, last in program.comments):
            found.setdefault(match[0].decode(), program.data.count(b"\n", 0, start) + 1)
    return found
