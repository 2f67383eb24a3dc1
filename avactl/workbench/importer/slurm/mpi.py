"""MPI: what starts its ranks in place of srun, and what a launcher of several machines does not have."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from avactl.workbench.importer.shell import Command, Node, Program, Word
from avactl.workbench.importer.slurm.commands import Note
from avactl.workbench.importer.slurm.machines import DIFFERING, REPEATABLE, name_first_host
from avactl.workbench.importer.slurm.sizes import LeftOut

LAUNCHERS = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun")
ANY_SLOTS = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
"""Lets Open MPI start as many ranks as it is told: in a pod it would count the cores of the machine."""
_HYDRA_OPTIONS = {"-ppn", "-perhost", "-genv", "-genvall", "-genvlist", "-genvnone", "-iface", "-f", "-hosts"}
"""Options of mpirun that MPICH and Intel MPI have, and Open MPI has not."""
_HOST_OPTIONS = ("hostfile", "machinefile", "host", "H", "f", "hosts", "default-hostfile")
_FLAGS = frozenset(
    """
    oversubscribe nooversubscribe allow-run-as-root display-map display-allocation report-bindings tag-output q quiet
    v verbose use-hwthread-cpus timestamp-output merge-stderr-to-stdout bynode byslot genvall genvnone l prepend-rank
    """.split()  # noqa: SIM905 - a list of words reads better
)
_PAIRS = ("mca", "gmca", "prtemca", "genv", "env")
"""Options with two values."""
_FILES = ("rm", "mv", "ln", "chmod", "cp", "mkdir", "touch", "tee", "rsync", "tar", "unzip", "gzip")
"""Commands that change files."""
_WITHOUT_MPI = re.compile(
    r"python[0-9.]*|torchrun|accelerate|deepspeed|(ba|z|da)?sh|env|nsys|ncu|numactl|time|uv|poetry|julia|Rscript|R|perl"
    r"|java|node|nvidia-smi|apptainer|singularity|docker|podman|.*\.(sh|py|jl|R)"
).fullmatch


def is_native(name: str) -> bool:
    """Return True for a program that may use MPI: no script, and no command of the system."""
    return not _WITHOUT_MPI(name) and name not in (*REPEATABLE, *_FILES)


def choose_library(program: Program, launchers: Sequence[Command]) -> str:
    """Return the MPI library, by the launchers and their options."""
    options = {f"-{name}" for command in launchers for name, _, _ in _options(command.words)}
    if not options & _HYDRA_OPTIONS and all(each.name != "mpiexec.hydra" for each in launchers):
        return "openmpi"
    names = " ".join(word.text for each in program.commands if each.name in ("module", "ml") for word in each.words)
    return "intel" if re.search(r"impi|intel|I_MPI_", " ".join([names, *program.assignments])) else "mpich"


def tells_ranks(words: Sequence[Word]) -> bool:
    """Return True if mpirun is told how many processes it starts."""
    told = {"n", "np", "c", "N", "ppn", "map-by", "npernode"}
    return any(name in told for name, _, _ in _options(words))


def strip_hosts(program: Program, command: Command, note: Note) -> None:
    """Take out where mpirun finds its hosts: avactl tells it."""
    words, removed = command.words, []
    for name, index, end in _options(words):
        if name in _HOST_OPTIONS:
            program.drop(words[index].start, words[end].start if end < len(words) else words[-1].end)
            removed.append(words[index].text)
    if removed:
        note(command.line, f"mpirun finds the hosts in avactl's file: {', '.join(removed)}")


def _options(words: Sequence[Word]) -> Iterator[tuple[str, int, int]]:
    """Yield the options of mpirun: the name, the index of its word, and the index after its values."""
    index = 1
    while index < len(words) and words[index].text.startswith("-"):
        name, equals, _ = words[index].text.lstrip("-").partition("=")
        end = index + (1 if equals or name in _FLAGS else 3 if name in _PAIRS else 2)
        yield name, index, end
        index = end


def check_launcher(program: Program, own: Sequence[Command], first: str, note: Note) -> set[str]:
    """List files that only the launcher has; return what the text needs, see `prelude`. `own`: what starts ranks.

    Raises LeftOut for other programs: the launcher has no GPU.
    """
    needs = {"hostname"} if any(each.name == "HOSTNAME" for each in program.reads) else set()
    nodes = [each.node for each in own]
    for each in program.commands:
        node, name = each.node, each.name
        if program.is_removed(node.start) or not each.words:
            continue
        if node not in nodes and name not in (*REPEATABLE, *DIFFERING, *_FILES, *program.functions):
            raise LeftOut(
                f"line {each.line}: Slurm runs `{(name or each.words[0].text)[:40]}` on the first node; the launcher "
                "of a job has neither its GPUs nor its files: make it a job of its own, with `after`"
            )
        needs |= name_first_host(program, each, first)
        if name in ("source", "."):
            note(each.line, "mpirun passes no variable of the file on", "`export` them in the script")
        if name in _FILES or _writes(node):
            note(each.line, "the launcher has the file; workers do if they share a volume", "`pod: {volumes: …}`")
    return needs


def _writes(node: Node) -> bool:
    """Return True if a command writes to a file."""
    statement = node.parent
    redirections = [each for each in statement.children if each.type == "Redirect"] if statement is not None else []
    return any(each.data["Op"] in (">", ">>", "&>", "&>>", ">|") for each in redirections)
