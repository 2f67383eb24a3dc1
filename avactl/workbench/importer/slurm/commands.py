"""Commands of a script: those that the image makes needless, and those that only Slurm can answer."""

from __future__ import annotations

import re
from typing import Protocol

from avactl.workbench.importer.shell import Command, Node, Program, is_at_top, is_redirected
from avactl.workbench.importer.slurm.sizes import LeftOut

_SETUP = ("module", "ml", "spack", "conda", "micromamba", "mamba")
_PRINTS = ("squeue", "sacct", "sinfo", "sstat", "sprio", "sshare", "seff", "sdiag", "sreport")
"""Those that only print."""
_SETUP_FILE = re.compile(r"(^|/)(activate|conda\.sh|\.?bashrc|\.?bash_profile|\.?profile|lmod\.sh|modules?\.sh|bash)$")
_SETUP_HOOK = re.compile(r"(conda|mamba|micromamba|module|modulecmd)\b.*\b(hook|bash)\b")
_ASKS_SLURM = frozenset(
    """
    sbatch salloc squeue scancel sacct sinfo sattach sbcast sstat sprio strigger sacctmgr smap sshare srun_cr
    sgather seff sdiag sreport
    """.split()  # noqa: SIM905 - a list of words reads better
)
_STARTS_CONTAINER = re.compile(
    r"(?:^|[\s;&|(\"'/])((?:apptainer|singularity|docker|podman|podman-hpc) (?:exec|run)|shifter)\s"
).search
_LISTS_HOSTS = re.compile(r"\bscontrol\s+show\s+hostnames?\b")
_SIGNALS_OF_SLURM = {"USR1", "USR2", "CONT", "XCPU", "URG", "10", "12", "18"}
_ASKS_AGAIN = re.compile(r"\b(scontrol|sbatch|scancel)\b").search
BUILTINS = frozenset(
    """
    alias bg bind break builtin caller cd command compgen complete continue coproc declare dirs disown echo enable
    eval exec exit export false fc fg getopts hash help history jobs kill let local logout mapfile popd printf pushd
    pwd read readarray readonly return set shift shopt source . suspend test [ time times trap true type typeset
    ulimit umask unalias unset wait : srun scontrol
    """.split()  # noqa: SIM905 - a list of words reads better
)
"""Commands of bash, which are no files, and the functions that take Slurm's place."""


class Note(Protocol):
    """Lists something that changes: its line, the reason, and the remedy."""

    def __call__(self, line: int, why: str, remedy: str = "") -> None: ...


def check_command(program: Program, command: Command, note: Note) -> None:
    """Take out what the image does, and what only prints. Raises LeftOut for questions to Slurm."""
    name, words = command.name, command.words
    arguments = [each.text for each in words[1:]]
    hosts = name == "scontrol" and arguments[:1] == ["show"] and arguments[1:2] in (["hostnames"], ["hostname"])
    if name in (*_ASKS_SLURM, "scontrol") and not hosts:
        shown = name in _PRINTS or (name == "scontrol" and arguments[:1] == ["show"])
        if not shown or not is_at_top(command.node) or is_redirected(command.node):
            if name == "sbatch":
                raise LeftOut(
                    f"line {command.line}: `sbatch` starts another job: import that too, and write its `after`"
                )
            asked = " ".join([name, *(arguments if name == "scontrol" else ())])
            raise LeftOut(f"line {command.line}: `{asked[:40]}` asks Slurm")
        note(command.line, f"`{name}` prints what Slurm knows of the job", "`avactl jobs` shows jobs")
        program.remove(command.node)
        return
    of_file = name in ("source", ".") and arguments and _SETUP_FILE.search(arguments[0].strip("\"'").split()[0])
    hook = name == "eval" and _SETUP_HOOK.search(" ".join(arguments))
    if name in _SETUP and arguments[:1] == ["run"]:
        return
    if name in _SETUP and arguments[:1] == ["build-env"]:
        raise LeftOut(f"line {command.line}: `{name} build-env` runs its program in an environment: call it directly")
    if name in _SETUP or of_file or hook:
        note(command.line, "the image has what the line loads", "build it into the image")
        program.remove(command.node)
    elif name in ("source", ".") and arguments:
        note(command.line, f"the image must have {arguments[0][:60]}", "")


def drop_traps(program: Program, note: Note) -> None:
    """Take out traps by which a job asks Slurm for another one when a signal says that its time is over."""
    if any(each.name == "kill" for each in program.commands):
        return
    for command in program.commands:
        words = command.words
        signals = {each.text.upper().removeprefix("SIG") for each in words[2:]}
        if command.name != "trap" or not signals or not signals <= _SIGNALS_OF_SLURM:
            continue
        name = (words[1].value or "").partition(" ")[0]
        functions = [each for each in program.nodes if each.type == "FuncDecl" and each.data["Name"]["Value"] == name]
        if not any(_ASKS_AGAIN(program.text_of(each)) for each in functions) and not _ASKS_AGAIN(words[1].text):
            continue
        note(
            command.line,
            "no signal comes before the time limit, and a job does not start itself again",
            "raise `timeout`, or `retries`",
        )
        program.remove(command.node)
        if not any(each.name == name for each in program.commands):
            for each in functions:
                program.remove(each)


def check_texts(program: Program) -> bool:
    """Return True if a text that other shells run asks for the names of hosts.

    Raises LeftOut if it names another command of Slurm.
    """
    printed = {word.text for each in program.commands if each.name in ("echo", "printf") for word in each.words[1:]}
    lists_hosts = False
    for node in program.texts:
        text = program.text_of(node)
        if text in printed or program.is_removed(node.start):
            continue
        for part in _own_parts(program, node):
            rest = _LISTS_HOSTS.sub("", part)
            lists_hosts |= rest != part
            found = re.search(r"(?:^|[\s;&|(\"'])(srun|sbatch|squeue|scontrol)\s", rest)
            found = found or _STARTS_CONTAINER(rest)
            if found:
                raise LeftOut(f"line {node.line}: `{found[1]}` in a text, which avactl cannot change")
    for name, places in program.assignments.items():
        if (program.literal_variable(name) or "").split()[:1] == ["srun"]:
            raise LeftOut(f"line {places[0].line}: {name} holds srun, which avactl cannot change")
    return lists_hosts


def _own_parts(program: Program, node: Node) -> list[str]:
    """Return the parts of a text that are no commands of the script itself."""
    nodes = node.children if node.type != "Hdoc" else [each for word in node.children for each in word.children]
    inner = [each for each in nodes if each.type == "CmdSubst"]
    starts = [node.start, *(each.end for each in inner)]
    return [
        program.data[start:end].decode()
        for start, end in zip(starts, [*(each.start for each in inner), node.end], strict=True)
    ]
