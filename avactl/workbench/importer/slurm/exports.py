"""Exports of a script that become variables of the spec."""

from __future__ import annotations

from collections.abc import Mapping

from avactl.diagnostics.secrets import looks_secret
from avactl.workbench.importer.shell import Node, Program, is_at_top
from avactl.workbench.importer.slurm.commands import Note
from avactl.workbench.importer.slurm.sizes import LeftOut
from avactl.workbench.importer.slurm.steps import known_value

_HARMLESS = ("export", "set", "shopt", "ulimit", "umask", "echo", "cd", "mkdir", "date", "hostname", "nvidia-smi")
"""Commands that neither read variables of programs nor set any."""


def take_exports(program: Program, constants: Mapping[str, str], note: Note) -> tuple[dict[str, str], set[str]]:
    """Take exports with known values out of the top of a program; return them, and the names of secrets.

    Raises LeftOut for other values that look like credentials.
    """
    env: dict[str, str] = {}
    secrets: set[str] = set()
    for command in program.commands:
        node = command.node
        if not (program.is_removed(node.start) or command.name in _HARMLESS or not command.words):
            break  # what ran before would see the values, and may have set them
        if node.type == "DeclClause" and is_at_top(node) and command.name == "export":
            if program.is_removed(node.start) or len(command.words) > 1:
                continue
            made = {each: _literal_assignment(program, each, constants) for each in command.assignments}
            if all(made.values()):
                pairs = [each for each in made.values() if each]
                if all(len(program.assignments.get(name, ())) == 1 for name, _ in pairs):
                    for name, value in pairs:
                        if looks_secret(value, name):
                            secrets.add(name)
                            note(
                                command.line,
                                f"the value of {name} looks like a credential",
                                f"make a Secret, and write `env: {{{name}: {{secret: …}}}}`",
                            )
                        else:
                            env[name] = value
                    program.remove(node)
    for node in program.nodes:
        if node.type == "Assign" and not node.has("Naked") and not program.is_removed(node.start):
            _refuse_secret(program, node, constants)
    return env, secrets


def _literal_assignment(program: Program, node: Node, constants: Mapping[str, str]) -> tuple[str, str] | None:
    name, value = node.data["Name"]["Value"], node.child("Value")
    if value is None or node.has("Append") or node.has("Array"):
        return None
    found = program.literal(value)
    if found is None:
        start = node.parent.start if node.parent is not None else node.start
        found = known_value(program, program.text_of(value), constants, start)
    return None if found is None else (name, found)


def _refuse_secret(program: Program, node: Node, constants: Mapping[str, str]) -> None:
    found = _literal_assignment(program, node, constants)
    if found is not None and looks_secret(found[1], found[0]):
        raise LeftOut(
            f"line {node.line}: the value of {found[0]} looks like a credential: `export` it in a line of its own"
        )
