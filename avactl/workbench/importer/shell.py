"""Read a program of bash: its commands and their words, the variables that it reads and sets; and edit its text.

Only the words that must change are replaced; the text of the rest stays as it is. The parser is that of shfmt
(mvdan.cc/sh), which the package shfmt-py has.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from avactl.base.errors import HintedError
from avactl.base.exit_codes import USAGE

_GLOB = re.compile(r"[*?\[\]{}~]")
_NAME = re.compile(r"[A-Za-z_]\w*").fullmatch
_ASSIGNS = re.compile(r"[-+*/%&|^]?=|<<=|>>=|\+\+|--").fullmatch
_MAX_NODES = 200_000
_TIMEOUT_S = 20.0


Edit = tuple[int, int, bytes]
"""First byte, end, and the text that takes their place."""


class SyntaxProblem(Exception):  # noqa: N818 - part of the input
    """A text that is no program of bash: the line, from 1, and the reason."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line, self.reason = line, reason


class ShfmtMissing(HintedError):  # noqa: N818 - part of the installation
    """The program shfmt is not installed."""

    exit_code = USAGE


class Node:
    """A node of the syntax tree. `type` is that of mvdan.cc/sh/v3/syntax, such as CallExpr, Stmt or ParamExp."""

    __slots__ = ("children", "data", "end", "line", "parent", "start", "type")

    def __init__(self, type_: str, data: dict[str, Any], parent: Node | None) -> None:
        self.type, self.data, self.parent = type_, data, parent
        self.start, self.end, self.line = data["Pos"]["Offset"], data["End"]["Offset"], data["Pos"]["Line"]
        self.children: list[Node] = []

    def child(self, key: str) -> Node | None:
        """Return the node of a field, or None."""
        wanted = self.data.get(key)
        return next((each for each in self.children if each.data is wanted), None) if wanted else None

    def has(self, key: str) -> bool:
        return bool(self.data.get(key))


class Word(NamedTuple):
    """A word of a command."""

    start: int
    """First byte."""
    end: int
    text: str
    value: str | None
    """Its value as the shell reads it; None if that depends on variables, files or other commands."""


@dataclass
class Command:
    """A simple command: a CallExpr or DeclClause."""

    node: Node
    words: list[Word]
    """Its name and its arguments, without assignments before it and redirections."""
    assignments: list[Node] = field(default_factory=list)

    @property
    def line(self) -> int:
        """Line of its name, from 1."""
        return int(self.node.line)

    @property
    def name(self) -> str:
        """Name without its directory; empty if the name is not a literal."""
        return (self.words[0].value or "").rpartition("/")[2] if self.words else ""


class Variable(NamedTuple):
    """A place where a variable is read."""

    name: str
    line: int
    has_default: bool
    """True for `${NAME:-…}` and its like."""
    start: int
    """First byte."""


class Program:
    """A program as a syntax tree, and the edits of its text. Lines are numbered from 1. Raises SyntaxProblem."""

    def __init__(self, text: str) -> None:
        self.data = text.encode()
        self.root, self.nodes = _parse(self.data)
        self._edits: list[Edit] = []
        self._removed: list[tuple[int, int]] = []

    def text_of(self, node: Node) -> str:
        return self.data[node.start : node.end].decode()

    @cached_property
    def commands(self) -> list[Command]:
        """The simple commands, with those of substitutions and functions, in the order of the text."""
        return [self.command(node) for node in self.nodes if node.type in ("CallExpr", "DeclClause")]

    def command(self, node: Node) -> Command:
        """Return the command of a CallExpr or DeclClause."""
        command = Command(node, [])
        if node.type == "DeclClause":
            variant = node.data["Variant"]
            start = variant["Pos"]["Offset"]
            command.words.append(Word(start, variant["End"]["Offset"], variant["Value"], variant["Value"]))
        for child in node.children:
            if child.type == "Assign" and not child.has("Naked"):
                command.assignments.append(child)
            elif child.type in ("Word", "Assign"):
                inner = child if child.type == "Word" else child.child("Value")
                text = self.text_of(child)
                value = text if inner is None or text == "[" else self.literal(inner)
                command.words.append(Word(child.start, child.end, text, value))
        return command

    def literal(self, node: Node) -> str | None:
        """Return the value of a word that is the same wherever the program runs, or None."""
        text = self.text_of(node)
        match node.type:
            case "SglQuoted":
                return None if text.startswith("$") else text[1:-1]
            case "DblQuoted":
                if text.startswith("$") or any(each.type != "Lit" for each in node.children):
                    return None
                return re.sub(r"\\([\\\"$`\n])", _unescape, text[1:-1])
            case "Word":
                return self._literal_word(node)
        return None

    def _literal_word(self, node: Node) -> str | None:
        """Return the value of a word. A continued line divides a text into several nodes."""
        made, plain = "", node.start
        for part in [*(each for each in node.children if each.type != "Lit"), None]:
            text = self.data[plain : node.end if part is None else part.start].decode()
            value = "" if part is None else self.literal(part)
            if _GLOB.search(text) or value is None:
                return None
            made += re.sub(r"\\(\n|.)", _unescape, text, flags=re.DOTALL) + value
            plain = node.end if part is None else part.end
        return made

    @cached_property
    def assignments(self) -> dict[str, list[Node]]:
        """The places where each variable gets a value, also by `read`, `for`, and arithmetic."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            if (node.type == "Assign" and not node.has("Naked")) or node.type == "WordIter":
                found.setdefault(node.data["Name"]["Value"], []).append(node)
            elif node.type in ("BinaryArithm", "UnaryArithm") and _ASSIGNS(node.data["Op"]):
                target = node.child("X")
                if target is not None and _NAME(self.text_of(target)):
                    found.setdefault(self.text_of(target), []).append(node)
        for command in self.commands:
            if command.name in ("read", "mapfile", "readarray", "getopts", "printf"):
                words = [each.value or "" for each in command.words[1:]]
                named = words[1:2] if command.name == "printf" and words[:1] == ["-v"] else words
                for word in named if command.name != "printf" or words[:1] == ["-v"] else ():
                    if _NAME(word):
                        found.setdefault(word, []).append(command.node)
        return found

    def literal_variable(self, name: str, before: int | None = None) -> str | None:
        """Return the value of a variable that is assigned once, at the top level, and is a literal.

        `before`: byte before which the assignment ends.
        """
        value = self.assigned_value(name, before)
        if value is not None:
            return self.literal(value)
        place = self.only_assignment(name)
        return "" if place is not None and not any(place.has(key) for key in ("Array", "Value")) else None

    def assigned_value(self, name: str, before: int | None = None) -> Node | None:
        """Return the word that a variable gets if it is assigned once, at the top level; None for no word.

        `before`: byte before which the assignment ends.
        """
        place = self.only_assignment(name)
        call = place.parent if place is not None else None
        if call is not None and (call.has("Args") and call.type == "CallExpr"):
            return None  # that is the environment of one command
        if call is not None and before is not None and call.end > before:
            return None
        if place is None or is_inside(place, "FuncDecl", "IfClause", "ForClause", "WhileClause", "CaseClause"):
            return None
        return place.child("Value")

    def only_assignment(self, name: str) -> Node | None:
        """Return the only place where a variable gets a value, if that is an assignment."""
        places = self.assignments.get(name, [])
        return places[0] if len(places) == 1 and places[0].type == "Assign" and not places[0].has("Append") else None

    @cached_property
    def reads(self) -> list[Variable]:
        """The places where variables are read, also in arithmetic."""
        found = []
        for node in self.nodes:
            if node.type == "ParamExp":
                name = (node.data.get("Param") or {}).get("Value", "")
                operator = (node.data.get("Exp") or {}).get("Op", "")
                found.append(Variable(name, node.line, operator.lstrip(":") in ("-", "+", "=", "?"), node.start))
            elif node.type == "Word" and node.parent is not None and _is_arithmetic(node.parent):
                text = self.text_of(node)
                if _NAME(text):
                    found.append(Variable(text, node.line, False, node.start))
        return found

    @cached_property
    def texts(self) -> list[Node]:
        """The texts that other programs may run: quoted ones and here-documents."""
        return [node for node in self.nodes if node.type in ("SglQuoted", "DblQuoted", "Hdoc")]

    @property
    def strings(self) -> list[tuple[str, int]]:
        """The texts that other programs may run, with their lines."""
        return [(self.text_of(node), node.line) for node in self.texts]

    @cached_property
    def functions(self) -> set[str]:
        """The names of the program's functions."""
        return {node.data["Name"]["Value"] for node in self.nodes if node.type == "FuncDecl"}

    @cached_property
    def comments(self) -> list[tuple[int, int]]:
        """The bytes of comments."""
        return [(node.start, node.end) for node in self.nodes if node.type == "Comment"]

    def node_at(self, byte: int) -> Node:
        """Return the smallest node at a place of the text."""
        return max((each for each in self.nodes if each.start <= byte < each.end), key=_depth, default=self.root)

    def replace(self, start: int, end: int, text: str) -> None:
        """Replace bytes of the text, once `edited` is asked for."""
        self._edits.append((start, end, text.encode()))

    def drop(self, start: int, end: int, text: str = "") -> None:
        """Replace bytes that are not part of the program any more."""
        self.replace(start, end, text)
        self._removed.append((start, end))

    def is_removed(self, byte: int) -> bool:
        """Return True for a place of the text that is not part of the program any more."""
        return any(start <= byte < end for start, end in self._removed)

    def remove(self, node: Node) -> None:
        """Take a command out, with its line if nothing else stands on it; else `:` takes its place."""
        whole = node.parent if node.parent is not None and node.parent.type == "Stmt" else node
        start = self.data.rfind(b"\n", 0, whole.start) + 1
        newline = self.data.find(b"\n", whole.end)
        end = len(self.data) if newline < 0 else newline + 1
        rest = self.data[whole.end : end].strip()
        alone = not self.data[start : whole.start].strip() and (not rest or rest.startswith(b"#"))
        if alone and whole.parent is self.root and not whole.has("Background"):
            self.drop(start, end)
        else:
            self.drop(node.start, node.end, ":")

    def edited(self, instead: Sequence[Edit] = ()) -> str:
        """Return the text with all edits. An edit inside another one has no effect.

        `instead`: edits that take the place of others of the same bytes.
        """
        places = {(start, end) for start, end, _ in instead}
        edits = [*(each for each in self._edits if each[:2] not in places), *instead]
        made, at = b"", 0
        for start, end, text in sorted(edits, key=lambda each: (each[0], -each[1])):
            if start >= at:
                made += self.data[at:start] + text
                at = end
        return (made + self.data[at:]).decode()


def is_inside(node: Node, *types: str) -> bool:
    """Return True if a node is below one of these types."""
    above = node.parent
    while above is not None:
        if above.type in types:
            return True
        above = above.parent
    return False


def are_exclusive(first: Node, second: Node) -> bool:
    """Return True if two commands are in branches of which only one runs."""
    branches: dict[int, Node] = {}
    node = first
    while node.parent is not None:
        branches[id(node.parent)] = node
        node = node.parent
    node = second
    while node.parent is not None and id(node.parent) not in branches:
        node = node.parent
    if node.parent is None:
        return False
    choice, sides = node.parent, (branches[id(node.parent)], node)
    if choice.type == "CaseClause":
        return sides[0] is not sides[1]
    conditions = [id(each) for each in choice.data.get("Cond") or ()] if choice.type == "IfClause" else []
    if choice.type != "IfClause" or any(id(each.data) in conditions for each in sides):
        return False
    return (sides[0].data is choice.data.get("Else")) != (sides[1].data is choice.data.get("Else"))


def is_in_background(node: Node) -> bool:
    """Return True if a command runs beside those after it."""
    above: Node | None = node
    while above is not None:
        if above.type == "Stmt" and above.has("Background"):
            return True
        above = above.parent
    return False


def is_redirected(node: Node) -> bool:
    """Return True if a file or another command gets the output of a command."""
    above: Node | None = node
    while above is not None and above.type != "CmdSubst":
        if above.type == "Stmt" and above.has("Redirs"):
            return True
        if above.type == "BinaryCmd" and above.data["Op"] in ("|", "|&"):
            return True
        above = above.parent
    return False


def runs_once(program: Program, node: Node) -> bool:
    """Return True if a command runs at most once: it is in no loop, and its function is called once."""
    above = node.parent
    while above is not None and above.type != "FuncDecl":
        if above.type in ("ForClause", "WhileClause"):
            return False
        above = above.parent
    if above is None:
        return True
    name = above.data["Name"]["Value"]
    calls = [each for each in program.commands if any(word.value == name for word in each.words)]
    return len(calls) == 1 and calls[0].name == name and runs_once(program, calls[0].node)


def statement_of(node: Node) -> Node:
    """Return the statement of the top level that a node is part of."""
    while node.parent is not None and node.parent.type != "File":
        node = node.parent
    return node


def is_shown(program: Program, node: Node) -> bool:
    """Return True below an `echo` or `printf` at the top level: its text goes to the log only."""
    statement = statement_of(node)
    call = statement.child("Cmd")
    plain = call is not None and call.type == "CallExpr" and not statement.has("Redirs")
    return plain and call is not None and program.command(call).name in ("echo", "printf")


def is_at_top(node: Node) -> bool:
    """Return True for the command of a statement of the top level."""
    return node.parent is not None and node.parent.parent is not None and node.parent.parent.type == "File"


_ARITHMETIC = ("BinaryArithm", "UnaryArithm", "ParenArithm", "ArithmExp", "ArithmCmd", "LetClause", "CStyleLoop")
_TYPES = {
    "Stmts": "Stmt",
    "Cond": "Stmt",
    "Then": "Stmt",
    "Do": "Stmt",
    "Body": "Stmt",
    "Stmt": "Stmt",
    "Else": "IfClause",
    "Assigns": "Assign",
    "Redirs": "Redirect",
    "Word": "Word",
    "Hdoc": "Hdoc",
    "Comments": "Comment",
    "Items": "CaseItem",
    "Array": "Array",
    "Elems": "Element",
    "Last": "Comment",
}
"""Types of nodes without a type of their own, by the field that has them."""
_START = {"Offset": 0, "Line": 1}
"""Place of a program without commands."""
_LEAVES = ("Variant", "Name", "Param")


def _is_arithmetic(node: Node) -> bool:
    return node.type in _ARITHMETIC


def _depth(node: Node) -> tuple[int, int]:
    depth, above = 0, node.parent
    while above is not None:
        depth, above = depth + 1, above.parent
    return depth, node.start


def _unescape(found: re.Match[str]) -> str:
    return "" if found[1] == "\n" else found[1]


def _parse(data: bytes) -> tuple[Node, list[Node]]:
    """Return the tree, and all of its nodes in the order of the text. Raises SyntaxProblem."""
    try:
        command = [_shfmt(), "--to-json", "-ln", "bash"]
        done = subprocess.run(command, input=data, capture_output=True, check=False, timeout=_TIMEOUT_S)  # noqa: S603
        if done.returncode:
            words = done.stderr.decode(errors="replace").strip().removeprefix("<standard input>:")
            found = re.match(r"(\d+):\d+: (.*)", words)
            raise SyntaxProblem(int(found[1]) if found else 1, found[2][:200] if found else "it cannot be parsed")
        value = orjson.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise SyntaxProblem(1, f"parsing it takes more than {_TIMEOUT_S:.0f} s") from None
    except orjson.JSONDecodeError:
        raise SyntaxProblem(1, "it is nested too deeply") from None
    root = Node("File", {"Pos": _START, "End": _START, **value}, None)
    nodes, waiting = [], [root]
    while waiting:
        node = waiting.pop()
        nodes.append(node)
        if len(nodes) > _MAX_NODES:
            raise SyntaxProblem(node.line, "the program is too long")
        for key, inner in node.data.items():
            for each in inner if isinstance(inner, list) else (inner,):
                if (
                    isinstance(each, dict)
                    and "Pos" in each
                    and "End" in each
                    and key not in ("Variant", "Name", "Param")
                ):
                    node.children.append(Node(_type_of(key, each, node), each, node))
        node.children.sort(key=lambda each: each.start)
        waiting.extend(reversed(node.children))
    return root, nodes


def _type_of(key: str, data: dict[str, Any], parent: Node) -> str:
    if "Type" in data:
        return str(data["Type"])
    if key == "Args" and parent.type == "DeclClause":
        return "Assign"
    if key in ("X", "Y") and parent.type == "BinaryCmd":
        return "Stmt"
    if key == "Items" and parent.type == "WordIter":
        return "Word"
    return _TYPES.get(key, "Word" if "Parts" in data else key)


def _shfmt() -> str:
    """Return the path of shfmt: that of this installation, else that on PATH. Raises ShfmtMissing."""
    own = Path(sysconfig.get_path("scripts")) / "shfmt"
    found = str(own) if own.exists() else shutil.which("shfmt")
    if found is None:
        raise ShfmtMissing("shfmt is not installed, which reads batch scripts", "write `pip install shfmt-py`")
    return found
