"""torchrun on several machines: it finds its peers by avactl's variables, in place of its options."""

from __future__ import annotations

import re

from avactl.workbench.importer.launchers import starts_alone
from avactl.workbench.importer.shell import Node, Program, Word, is_at_top, statement_of
from avactl.workbench.importer.slurm.commands import Note
from avactl.workbench.importer.slurm.steps import Step, program_name

_PYTHON = re.compile(r"python[0-9.]*").fullmatch
_RENDEZVOUS_OPTIONS = (
    "nnodes",
    "nproc-per-node",
    "rdzv-id",
    "rdzv-backend",
    "rdzv-endpoint",
    "rdzv-conf",
    "master-addr",
    "master-port",
    "node-rank",
    "local-addr",
)
_TORCHRUN_FLAGS = ("standalone", "no-python", "m", "module", "run-path", "use-env", "help")
_RENDEZVOUS_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "NODE_RANK")
_OF_HOSTS = re.compile(r"\bscontrol\b|\bSLURM_(JOB_|STEP_)?NODELIST\b|\bSLURM_LAUNCH_NODE_IPADDR\b")


def torchrun_words(program: Program, step: Step) -> list[Word] | None:
    """Return the words of torchrun if the step is that, joins machines, and the script tells its options, else None."""
    words = _find_torchrun(step)
    index = 1
    while words and index < len(words) and words[index].text.startswith("-"):
        index += _width(words[index].text)
    unknown = words and index < len(words) and words[index].value is None and not program_name(program, words[index])
    alone = words and starts_alone(" ".join(("torchrun", *(each.text for each in words[1:index]))))
    return None if unknown or alone else words


def _width(text: str) -> int:
    """Return how many words an option takes."""
    name = text.lstrip("-").partition("=")[0].replace("_", "-")
    return 1 if "=" in text or name in _TORCHRUN_FLAGS else 2


def _find_torchrun(step: Step) -> list[Word] | None:
    words = step.program
    if words[0].value is None or any(each.text == "--standalone" for each in words):
        return None
    if words[0].value.rpartition("/")[2] == "torchrun":
        return words
    texts = [each.text for each in words[:4]]
    if _PYTHON(words[0].value.rpartition("/")[2]):
        for module in ("torch.distributed.run", "torch.distributed.launch"):
            if ["-m", module] in (texts[1:3], texts[2:4]):
                return words[texts.index(module) :]
    return None


def strip_rendezvous(program: Program, step: Step, words: list[Word], gpus: int, note: Note) -> None:
    """Take out where torchrun finds its peers, which it reads from variables, and what only computes that."""
    index, removed, told = 1, [], False
    while index < len(words) and words[index].text.startswith("-"):
        name = words[index].text.lstrip("-").partition("=")[0].replace("_", "-")
        width = _width(words[index].text)
        if index + width > len(words):
            return
        value = words[index].text.partition("=")[2] if width == 1 else words[index + 1].text
        told |= name == "nproc-per-node"
        if name in _RENDEZVOUS_OPTIONS and (name != "nproc-per-node" or value in (str(gpus), "gpu")):
            removed.append((f"--{name}", words[index].start, words[index + width - 1].end, index, width))
        index += width
    if not told and gpus != 1:
        # torchrun's own number, where avactl would start one process for each GPU.
        program.replace(words[0].end, words[0].end, " --nproc-per-node=1")
    if not removed:
        return
    for _, start, end, at, width in removed:
        following = words[at + width].start if at + width < len(words) else end
        program.drop(start, following)
    names = ", ".join(each[0] for each in removed)
    note(step.line, f"torchrun reads them from variables: {names}")
    _drop_host_variables(program, note)


def _drop_host_variables(program: Program, note: Note) -> None:
    """Remove assignments that only find the nodes, if nothing reads them any more."""
    derived: dict[str, list[Node]] = {}
    grown = True
    while grown:
        grown = False
        for name, places in program.assignments.items():
            texts = [program.text_of(each) for each in places]
            if name in derived or any(each.type != "Assign" for each in places):
                continue
            if any(
                _OF_HOSTS.search(text) or any(re.search(rf"\$\{{?#?{other}\b", text) for other in derived)
                for text in texts
            ):
                derived[name] = places
                grown = True
    for name, places in program.assignments.items():
        if name in _RENDEZVOUS_VARIABLES and all(each.type == "Assign" for each in places):
            derived[name] = places
    statements = [_whole_statement(place) for places in derived.values() for place in places]
    if any(each is None for each in statements):
        return
    own = [each for each in statements if each is not None]
    echoes: list[Node] = []
    for name in derived:
        for each in program.reads:
            if each.name != name or program.is_removed(each.start):
                continue
            if any(node.start <= each.start < node.end for node in own):
                continue
            place = program.node_at(each.start)
            call = statement_of(place).child("Cmd")
            if call is None or call.type != "CallExpr" or program.command(call).name != "echo":
                return
            echoes.append(call)
        texts = [program.text_of(each) for each in program.texts if each.type == "SglQuoted"]
        if any(re.search(rf"\b{name}\b", text) for text in texts):
            return
    for node in [*own, *dict.fromkeys(echoes)]:
        if not program.is_removed(node.start):
            note(node.line, "avactl sets the addresses and ranks of workers")
            program.remove(node)


def _whole_statement(assignment: Node) -> Node | None:
    """Return the statement of an assignment if it is nothing but that, at the top level."""
    call = assignment.parent
    if call is None or not is_at_top(call) or len(call.children) != 1:
        return None
    return call
