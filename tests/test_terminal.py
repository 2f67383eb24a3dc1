"""Text of others in output: it steers neither a terminal nor the program that runs a pipeline."""

from __future__ import annotations

import json
from io import StringIO
from unittest.mock import patch
from xml.etree import ElementTree

import pytest
import yaml

from avactl.base.svg import Svg
from avactl.base.terminal import inert_text, json_output, shorten_middle, visible_text
from avactl.base.yaml_output import dump
from avactl.change.plan.model import Plan
from avactl.change.plan.output.text import render_text as plan_text
from avactl.cli.cluster.cluster_session import plain_text, write
from avactl.diagnostics import Diagnostic, Span
from avactl.diagnostics.text import render_text

COMMANDS = ("##[error]x", "##vso[task.setvariable]x", "section_start:12:x", "section_end:12:x")


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_taken_apart_anywhere(command: str) -> None:
    for text in (command, f"a {command} b", f"####{command}", f"a\n{command}"):
        shown = inert_text(text)
        assert not any(mark in shown for mark in ("##[", "##vso[", "section_start:", "section_end:"))
        assert len(shown) == len(text)


def test_commands_at_the_beginning_of_a_line() -> None:
    assert inert_text("::error::x\n  \t::stop-commands::y\nurn:a::b ::c::") == (
        ": error::x\n  \t: stop-commands::y\nurn:a::b ::c::"
    )


@pytest.mark.parametrize("command", [*COMMANDS, "::error::x", "a\n::error::b"])
def test_data_for_programs_stays_the_same_data(command: str) -> None:
    data = {"key": [f"{command} {command}", "\\" + command, "é"]}
    for text in (json_output(data), dump(data)):
        assert inert_text(text) == text
        assert yaml.safe_load(text) == data
    assert json.loads(json_output(data)) == data
    assert json.loads(json_output("\udcff\ud800")) == "??"
    assert json.loads(json_output("\udcff.yaml")) == "\ufffd.yaml"


def test_visible() -> None:
    assert visible_text("a\x1b[31mb\nc\td\u202e\x07") == "a�[31mb�c d��"
    assert visible_text("\ud800 \udc80x") == "? ?x"
    assert visible_text("\udcc3\udca9") == "é"
    assert shorten_middle("a" * 500 + "z", 100) == "a" * 50 + "…" + "a" * 48 + "z"


def test_a_diagnostic() -> None:
    text = "image: ##[error]oops\n::error::oops\nx: section_start:1:a\n"
    problems = [
        Diagnostic("invalid-value", "`##[error]a`\x1b[2J", Span("x.yaml", line), hint="##vso[a]") for line in (1, 2, 3)
    ]
    shown = render_text(problems, lambda _: text)
    assert shown == inert_text(shown)
    assert "\x1b" not in shown
    assert "# [error]oops" in shown


def test_a_plan() -> None:
    shown = plan_text([Plan("::error::a\x1b[2J\n::b ##[c", "\x1b]0;x\x07")])
    assert shown == inert_text(shown)
    assert not {"\x1b", "\x07"} & set(shown)


def test_views_of_a_cluster() -> None:
    assert plain_text("a\n\x1b[2Jb  [bold]c") == "a [2Jb [bold]c"
    assert len(plain_text("x" * 300_000)) == 4096
    with patch("sys.stdout", StringIO()) as out:
        write("##[error]x [bold]y", "::error::z")
    assert out.getvalue() == "# [error]x [bold]y\n: error::z\n"


def test_a_picture() -> None:
    svg = Svg()
    svg.rect(0, 0, 1, 1, fill="red", title="</title><script>x\x00\x1b\ud800")
    svg.text(0, 0, "<a>&\x08" + "x" * 100_000)
    picture = svg.document(1, 1, '"><script>\x01')
    root = ElementTree.fromstring(picture)
    assert {element.tag.rpartition("}")[2] for element in root.iter()} == {"svg", "title", "style", "rect", "text"}
    assert max(len(element.text or "") for element in root.iter()) <= 500
