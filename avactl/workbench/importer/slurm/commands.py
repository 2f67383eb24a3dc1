"""Commands of a script: those that the image makes needless, and those that only Slurm can answer."""

from __future__ import annotations

import re
from typing import Protocol

from avactl.workbench.importer.shell import Command, Program
from avactl.workbench.importer.slurm.sizes import LeftOut

_SETUP = ("module", "ml", "spack", "conda", "micromamba", "mamba")
_SETUP_FILE = re.compile(r"(^|/)(activate|conda\.sh|\.?bashrc|\.?bash_profile|\.?profile|lmod\.sh|modules?\.sh|bash)$")
_SETUP_HOOK = re.compile(r"(conda|mamba|micromamba|module|modulecmd)\b.*\b(hook|bash)\b")
_ASKS_SLURM = frozenset(
    """
    sbatch salloc squeue scancel sacct sinfo sattach sbcast sstat sprio strigger sacctmgr smap sshare srun_cr
    sgather seff sdiag sreport
    """.split()  # noqa: SIM905 - a list of words reads better
)
_CONTAINER_VALUES = ("-B", "--bind", "--env", "--pwd", "-H", "--home", "--workdir", "-W", "--overlay", "--env-file")
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
    """Take out what the image does, and the container around a program. Raises LeftOut for questions to Slurm."""
    name, words = command.name, command.words
    arguments = [each.text for each in words[1:]]
    if name in _ASKS_SLURM:
        raise LeftOut(f"line {command.line}: `{name}` asks Slurm")
    if name == "scontrol" and (arguments[:1] != ["show"] or arguments[1:2] not in (["hostnames"], ["hostname"])):
        raise LeftOut(f"line {command.line}: `scontrol {' '.join(arguments)[:40]}` asks Slurm")
    of_file = name in ("source", ".") and arguments and _SETUP_FILE.search(arguments[0].strip("\"'").split()[0])
    hook = name == "eval" and _SETUP_HOOK.search(" ".join(arguments))
    if name in _SETUP and arguments[:1] in (["run"], ["build-env"]):
        raise LeftOut(
            f"line {command.line}: `{name} {arguments[0]}` runs its program in an environment: call it directly"
        )
    if "srun" in [each.value for each in words[1:]]:
        raise LeftOut(f"line {command.line}: `{name}` starts srun, which pods do not have")
    if name in _SETUP or of_file or hook:
        note(command.line, "the image has what the line loads", "build it into the image")
        program.remove(command.node)
    elif name in ("source", ".") and arguments:
        note(command.line, f"the image must have {arguments[0][:60]}", "")
    elif name in ("singularity", "apptainer"):
        _strip_container(program, command, note)


def _strip_container(program: Program, command: Command, note: Note) -> None:
    """Let the pod run what a container would; its image is that of the spec."""
    words = command.words
    texts = [each.value if each.value is not None else each.text for each in words]
    if "exec" not in texts:
        raise LeftOut(f"line {command.line}: the program of the container is in its image")
    index = texts.index("exec") + 1
    while index < len(texts) and texts[index].startswith("-"):
        index += 2 if texts[index] in _CONTAINER_VALUES else 1
    if index + 1 >= len(texts):
        raise LeftOut(f"line {command.line}: the container has no command")
    note(command.line, f"the pods run the image of the spec in place of {texts[index][:200]}")
    if any(option in texts[:index] for option in ("-B", "--bind", "--pwd", "--env", "-H", "--home")):
        note(command.line, "options of the container have no effect", "mount volumes: `pod: {volumes: …}`")
    program.replace(words[0].start, words[index + 1].start, "")


def refuse_texts(program: Program) -> None:
    """Raise LeftOut if a text that other commands may run names a command of Slurm."""
    printed = {word.text for each in program.commands if each.name in ("echo", "printf") for word in each.words[1:]}
    for text, line in program.strings:
        found = re.search(r"(?:^|[\s;&|(\"'])(srun|sbatch|squeue|scontrol)\s", text)
        if found and not text.startswith(('"Usage', "'Usage")) and text not in printed:
            raise LeftOut(f"line {line}: `{found[1]}` in a text, which avactl cannot change")
    for name, places in program.assignments.items():
        if (program.literal_variable(name) or "").split()[:1] == ["srun"]:
            raise LeftOut(f"line {places[0].line}: {name} holds srun, which avactl cannot change")
