"""Every command and every exit code is documented."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from avactl.base import exit_codes
from avactl.cli.app import COMMANDS, load_command
from avactl.cli.common import EXIT_CODES
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text()
PAGES = README + "".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))


def _paths(command: Any, path: str) -> Iterator[str]:
    inner: Mapping[str, Any] = getattr(command, "commands", {})
    for name, each in inner.items():
        yield from _paths(each, f"{path} {name}")
    if not inner:
        yield path


def undocumented(pages: str = PAGES, readme: str = README) -> list[str]:
    """Return the commands that no page names, and those that the list of the README lacks."""
    listed = readme.partition("## Commands")[2].partition("```\n")[2].partition("```")[0]
    paths = [path for name in COMMANDS for path in _paths(load_command(name), name)]
    found = [path for path in paths if not re.search(rf"\bavactl {path}\b", pages)]
    return found + [name for name in COMMANDS if not re.search(rf"\b{name}\b(?!=)", listed)]


def test_every_command_is_documented() -> None:
    assert undocumented() == []


def test_a_command_without_documentation_is_found() -> None:
    assert undocumented(pages=PAGES.replace("avactl dataset pack", "packing")) == ["dataset pack"]
    assert undocumented(readme=README.replace("avactl doctor", "look at")) == ["doctor"]


def test_every_exit_code_is_documented() -> None:
    codes = {value for value in vars(exit_codes).values() if isinstance(value, int)}
    shown = README.partition("\nExit codes: ")[2].partition(".\n")[0]
    for text in (shown, EXIT_CODES.removeprefix("Exit codes: ")):
        assert {int(code) for code in re.findall(r"(?:^|[,·]\s)(\d)\s", text)} == codes
