"""Edits of YAML text: the values change as asked and nothing else does, or the edit is refused."""

from __future__ import annotations

import copy
import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avactl.base.equality import is_same
from avactl.spec.documents.edit import EditError, set_values
from avactl.spec.documents.value_path import PathError
from avactl.spec.documents.yaml import load_yaml

KEYS = ("a", "b", "name", "täg", "x.y/z", "on", "1", "long-key")
SCALARS = ("1", "0x1f", "text", "two words", "true", "~", "1.50", "a:b", "it's", "-1", "é ñ", "http://x/y#z", "")
QUOTED = ('"1"', "'it''s'", '"a # b"', "'a: b'", '"tab\\t"', "''", '"[x]"')
NEW_VALUES = (*SCALARS[:-1], *QUOTED, "[1, two]", "{k: v, l: [1]}", "[]", "{}", "null", "3d", '{"a": 1}', "[{a: 1}]")


class TextWriter:
    """Writes random YAML: block and flow, comments, anchors and aliases, block scalars, compact entries."""

    def __init__(self, seed: int, anchors: bool) -> None:
        self.random = random.Random(seed)
        self.anchors = anchors
        self.names: list[str] = []
        self.mappings: list[str] = []
        self.comments = 0

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def comment(self) -> str:
        if not self.chance(0.25):
            return ""
        self.comments += 1
        return f"  # comment {self.comments}: [x, {{y"

    def comment_lines(self, indent: int) -> str:
        if not self.chance(0.15):
            return "\n" * self.chance(0.1)
        self.comments += 1
        return f"{' ' * self.random.choice((0, indent))}# line {self.comments} - a: b\n"

    def key(self) -> str:
        key = self.random.choice(KEYS)
        return f'"{key}"' if self.chance(0.15) else key

    def keys(self) -> list[str]:
        drawn = [self.key() for _ in range(self.random.randint(1, 4))]
        return list({key.strip('"'): key for key in drawn}.values())

    def anchor(self) -> str:
        if not (self.anchors and self.chance(0.2)):
            return ""
        return f"&n{len(self.names) + self.random.randint(0, 10**6)} "

    def alias(self) -> str | None:
        return f"*{self.random.choice(self.names)}" if self.names and self.chance(0.3) else None

    def scalar(self, flow: bool) -> str:
        if self.chance(0.35):
            return self.random.choice(QUOTED)
        usable = [each for each in SCALARS if not (flow and each in ("", "http://x/y#z"))]
        return self.random.choice(usable)

    def flow(self, depth: int) -> str:
        """A flow value."""
        alias = self.alias()
        if alias:
            return alias + " "
        anchor = self.anchor()
        shape = self.random.random() if depth else 1.0
        if shape > 0.5:
            text = anchor + self.scalar(True)
        else:
            is_mapping = shape < 0.3
            parts = [f"{key}: {self.flow(depth - 1)}" for key in self.keys()] if is_mapping else self.items(depth)
            opening, closing = "{}" if is_mapping else "[]"
            text = anchor + opening + self.flow_body(parts) + closing
        self.remember(anchor)
        return text

    def items(self, depth: int) -> list[str]:
        return [self.flow(depth - 1) for _ in range(self.random.randint(0, 3))]

    def flow_body(self, parts: list[str]) -> str:
        if not parts:
            return self.random.choice(("", " "))
        comma = self.random.choice((", ", " , ", ","))
        if comma == "," or self.chance(0.6):
            trailing = "," if self.chance(0.15) else ""
            return ", ".join(parts) + trailing if comma == "," else comma.join(parts) + trailing
        # On several lines; the indentation is more than that of any block around it.
        indent = " " * 40
        lines = [
            f"\n{indent}{part}{',' if i < len(parts) - 1 or self.chance(0.3) else ''}" for i, part in enumerate(parts)
        ]
        return "".join(line + self.comment() for line in lines) + "\n" + " " * self.random.choice((38, 40))

    def remember(self, anchor: str, mapping: bool = False) -> None:
        if anchor:
            self.names.append(anchor.strip("& "))
            if mapping:
                self.mappings.append(self.names[-1])

    def block_scalar(self, indent: int) -> str:
        chomp = self.random.choice(("", "-", "+"))
        lines = "".join(f"{' ' * indent}line {i}: # no comment\n" for i in range(self.random.randint(1, 2)))
        return f"{self.random.choice('|>')}{chomp}{self.comment()}\n{lines}{chr(10) * self.random.randint(0, 2)}"

    def block(self, indent: int, depth: int, lead: bool) -> str:
        """The text after a colon (`lead`) or a dash, to the end of its last line."""
        alias = self.alias()
        if alias:
            return f" {alias}{self.comment()}\n"
        anchor = self.anchor()
        shape = self.random.random()
        inner = indent + self.random.choice((1, 2, 4))
        if depth and shape < 0.45:
            is_mapping = shape < 0.3
            if not lead and not anchor and self.chance(0.6):
                # Compact: the first entry is on the line of the dash.
                body = self.mapping(indent + 2, depth - 1) if is_mapping else self.sequence(indent + 2, depth - 1)
                starts = body.startswith(" " * (indent + 2)) and body[indent + 2] != "#"
                return f" {body[indent + 2 :]}" if starts else f"\n{body}"
            deeper = indent if lead and not is_mapping and self.chance(0.3) else inner
            body = self.mapping(deeper, depth - 1) if is_mapping else self.sequence(deeper, depth - 1)
            self.remember(anchor, is_mapping)
            return f" {anchor}".rstrip() + f"{self.comment()}\n{body}"
        if shape < 0.6:
            text = f" {anchor}{self.block_scalar(inner)}"
        elif shape < 0.75:
            text = f" {anchor}{self.flow(2)}{self.comment()}\n"
        else:
            text = f" {anchor}{self.scalar(False)}".rstrip() + f"{self.comment()}\n"
        self.remember(anchor)
        return text

    def mapping(self, indent: int, depth: int) -> str:
        lines = []
        for key in self.keys():
            lines.append(self.comment_lines(indent))
            lines.append(f"{' ' * indent}{key}:{self.block(indent, depth, True)}")
        if self.mappings and self.chance(0.4):
            lines.append(f"{' ' * indent}<<: *{self.random.choice(self.mappings)}\n")
        return "".join(lines)

    def sequence(self, indent: int, depth: int) -> str:
        lines = []
        for _ in range(self.random.randint(1, 3)):
            lines.append(self.comment_lines(indent))
            lines.append(f"{' ' * indent}-{self.block(indent, depth, False)}")
        return "".join(lines)

    def text(self) -> str:
        documents = [self.document() for _ in range(self.random.choice((1, 1, 2)))]
        text = "---\n".join(documents)
        if self.chance(0.2):
            text = text.rstrip("\n")
        return text.replace("\n", "\r\n") if self.chance(0.2) else text

    def document(self) -> str:
        self.names, self.mappings = [], []
        return self.mapping(0, 3)


def paths_of(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """All paths of a value, and those of entries that it does not have yet."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [path] if path else []
    for step, child in inner:
        found += paths_of(child, (*path, step))
    if isinstance(value, dict):
        found += [(*path, "new"), (*path, "deep", "new")]
    elif isinstance(value, list):
        found.append((*path, len(value)))
    return found


def written_path(path: tuple[str | int, ...]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f"['{step}']" for step in path)


def change(value: Any, path: tuple[str | int, ...], new: Any) -> Any:
    """What the edit should do; `new` is ... to remove."""
    root = node = copy.deepcopy(value)
    for step in path[:-1]:
        if isinstance(node, dict):
            node.setdefault(step, {})
        node = node[step]
    last = path[-1]
    if new is ...:
        del node[last]
    elif isinstance(node, list) and last == len(node):
        node.append(new)
    else:
        node[last] = new
    return root


def values_of(text: str) -> list[Any] | None:
    documents, problems = load_yaml("x.yaml", text.encode())
    return None if any(each.severity == "error" for each in problems) else [each.value for each in documents]


def value_at(value: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def edit_randomly(seed: int, anchors: bool) -> str:
    """Make one random edit of a random text, check it, and return how it ended."""
    writer = TextWriter(seed, anchors)
    text = writer.text()
    before = values_of(text)
    if before is None:
        return "not a spec file"
    chosen = writer.random
    index = chosen.randrange(len(before))
    path = chosen.choice(paths_of(before[index]))
    parent = value_at(before[index], path[:-1])
    exists = path[-1] in (parent if isinstance(parent, dict) else range(len(parent or ())))
    value = None if exists and chosen.random() < 0.4 else chosen.choice(NEW_VALUES)
    try:
        after = set_values("x.yaml", text, index, [(written_path(path), value)])
    except EditError as error:
        # A block scalar that ends the file without a line feed gets one by whatever follows it.
        if re.search(r"[&*]n\d", text) or not text.endswith("\n"):
            return "refused"
        raise AssertionError((text, path, value)) from error
    if value is None:
        outcomes = [change(before[index], path, ...)]
    else:
        # A text in quotes stays one: which of both holds is told by the fixed cases below.
        read = values_of(f"- {value}\n")
        assert read is not None
        outcomes = [change(before[index], path, read[0][0]), change(before[index], path, value)]
    made = values_of(after)
    assert made is not None, (text, path, value, after)
    assert any(is_same(made[index], outcome) for outcome in outcomes), (text, path, value, after)
    assert is_same([*made[:index], *made[index + 1 :]], [*before[:index], *before[index + 1 :]]), (text, after)
    line_ends = set(re.findall(r"\r?\n", after))
    assert line_ends <= set(re.findall(r"\r?\n", text)) or "\n" not in text, (text, path, value, after)
    old = value_at(before[index], path)
    if not isinstance(old, dict | list):
        # No comment is lost, but that on the line of a removed value.
        comments, left = (re.findall(r"# (?:comment|line) \d+", each) for each in (text, after))
        lost = [each for each in comments if each not in left]
        assert len(lost) <= (value is None), (text, path, value, after)
    return "made"


SERVICE = """\
spec:
  resources: {
    cpu: 2,  # cores
    memory: 4Gi  # of each pod
  }
  args:
  - --a
  - --b  # second
  - --c
  probe: {path: /health}
  groups:
    - one
  common: &common
    LEVEL: info
  pod:
    sidecars:
      - name: proxy
        env: *common
      - name: logs
        env:
          <<: *common
  port: &port 80
  other: *port
"""


@pytest.mark.parametrize(
    ("path", "value", "old", "new"),
    [
        ("resources.gpus", "1", "4Gi  # of each pod", "4Gi,  # of each pod\n    gpus: 1"),
        ("resources.memory", None, "2,  # cores\n    memory: 4Gi  # of each pod", "2  # cores"),
        ("args[0]", None, "  - --a\n", ""),
        ("args[2]", None, "  - --c\n", ""),
        ("groups[0]", None, "groups:\n    - one", "groups: []"),
        ("groups[1]", "two", "    - one\n", "    - one\n    - two\n"),
        (
            "pod.sidecars[name=proxy].env.LEVEL",
            "debug",
            "env: *common\n      - name",
            "env: {LEVEL: debug}\n      - name",
        ),
        ("pod.sidecars[name=logs].env.LEVEL", "debug", "<<: *common\n", "<<: *common\n          LEVEL: debug\n"),
        ("other", "81", "*port", "81"),
    ],
)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_edits_that_lost_values_or_comments(path: str, value: str | None, old: str, new: str, line_end: str) -> None:
    assert SERVICE.count(old) == 1
    text = SERVICE.replace("\n", line_end)
    made = set_values("a.yaml", text, 0, [(f"spec.{path}", value)])
    assert made == SERVICE.replace(old, new).replace("\n", line_end)


@pytest.mark.parametrize(
    ("text", "path", "value", "new"),
    [
        # mikefarah/yq#524: the comment on the line of the value was removed.
        ("a:\n  b: # x\n    c: fly # y\n", "a.b.c", "dog", "a:\n  b: # x\n    c: dog # y\n"),
        # go-yaml/yaml#656: the new value of an empty key came out as invalid YAML.
        ("rules: # hi\nanother: entry\n", "rules", "great", "rules: great # hi\nanother: entry\n"),
        # dart-archive/yaml_edit#40: text of several lines in place of a value with a comment.
        ("- 0\n- 1 # x\n- 2\n", "[1]", "'a\n\nb'", '- 0\n- "a\\nb" # x\n- 2\n'),
        # esphome/device-builder-frontend#1378: a flow list became a block, and its comment was lost.
        ("l: [1, 2] # x\n", "l[0]", "7", "l: [7, 2] # x\n"),
        # mikefarah/yq#310: keys of a merge of several mappings.
        ("f: &f {a: 1}\nm:\n  <<: [*f, {b: 2}]\n", "m.b", "9", "f: &f {a: 1}\nm:\n  <<: [*f, {b: 2}]\n  b: 9\n"),
    ],
)
def test_what_goes_wrong_in_other_editors(text: str, path: str, value: str, new: str) -> None:
    assert set_values("a.yaml", text, 0, [(path, value)]) == new


def test_an_anchor_stays_where_an_alias_needs_it() -> None:
    """eemeli/yaml#185: the anchor was removed with the value, and its alias dangled."""
    with pytest.raises(EditError, match="`a` is part of the anchor `&A`, which line 2 uses too"):
        set_values("a.yaml", "a: &A value\nb: *A\n", 0, [("a", "foo")])


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("port", "81", r"`spec\.port` is part of the anchor `&port`, which line 23 uses too"),
        ("common.LEVEL", "debug", r"part of the anchor `&common`, which line 18 uses too"),
        ("common.MORE", "1", r"part of the anchor `&common`, which line 18 uses too"),
        ("pod.sidecars[1].env.LEVEL", None, r"comes from a merge \(`<<`\)"),
        ("args[0]", "--x # y", "has a comment"),
        ("args[0]", "[1, 2", "is not YAML"),
        ("args[0]", "a\n---\nb", "has 2 YAML documents, not one"),
        ("args.x", "1", "`x` is below a value that is not a mapping"),
        ("args[9]", None, r"entry \[9\] does not exist"),
    ],
)
def test_refused_edits_say_why(path: str, value: str | None, reason: str) -> None:
    with pytest.raises(EditError, match=reason):
        set_values("a.yaml", SERVICE, 0, [(f"spec.{path}", value)])


def test_worst_values_and_paths_are_refused_in_short() -> None:
    with pytest.raises(EditError, match="is not YAML") as refused:
        set_values("a.yaml", SERVICE, 0, [("spec.args[0]", "[" * 100_000)])
    assert len(str(refused.value)) < 1000
    with pytest.raises(PathError, match="more than 64 steps"):
        set_values("a.yaml", SERVICE, 0, [("spec" + ".x" * 3000, "1")])
    made = set_values("a.yaml", "a: '1'\n", 0, [("a", "- " * 1000)])
    assert values_of(made) == [{"a": "- " * 1000}]


def test_a_file_with_both_line_ends_keeps_them() -> None:
    text = "a: 1\r\nb: 2\nc: 3\r\n"
    assert set_values("a.yaml", text, 0, [("b", "5"), ("d", "4")]) == "a: 1\r\nb: 5\nc: 3\r\nd: 4\r\n"


def test_a_mapping_without_a_value_gets_one() -> None:
    assert set_values("a.yaml", "spec:\n", 0, [("spec.ttl", "3d")]) == "spec: {ttl: 3d}\n"


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_an_edit_changes_its_value_and_nothing_else(seed: int, anchors: bool) -> None:
    edit_randomly(seed, anchors)


@pytest.mark.slow
def test_ten_thousand_edits() -> None:
    outcomes = [edit_randomly(seed, seed % 2 == 0) for seed in range(16_000)]
    assert outcomes.count("made") >= 10_000, {each: outcomes.count(each) for each in set(outcomes)}
