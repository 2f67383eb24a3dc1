"""Commands on more than a hundred hostile repositories, with tokens in the environment.

No program of the repository runs, nothing outside of it is read or written, no token is in any output, and no text of
it steers a terminal, a pipeline or the Markdown of a comment.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.hostile import file_cases, git_cases, python_cases, text_cases
from tests.cli.hostile.case import CANARY, TOKENS, Hostile, Site, faults
from tests.hostile_repository import HostileRepository

CASES = [*git_cases.CASES, *file_cases.CASES, *python_cases.CASES, *text_cases.CASES]
SHORT = 3
"""One of so many cases runs in `make test`, the others in `make soak`: each starts several commands."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = HostileRepository(tmp_path_factory.mktemp("template") / "repository")
    made.commit({"specs/avactl.yaml": "python: {allow: true, timeout: 20s}\n"})
    made.git("branch", "-f", "main")
    return made.root.parent


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[pytest.mark.slow] if number % SHORT else [])
        for number, case in enumerate(CASES)
    ],
)
def test_a_hostile_repository(case: Hostile, template: Path, tmp_path: Path) -> None:
    site = Site(tmp_path, template)
    site.add(case.files)
    if case.build is not None:
        case.build(site)
    site.commit()
    if case.after is not None:
        case.after(site)
    before = site.state()
    for command in case.commands:
        done = site.run(command, start=command == case.commands[0])
        output = done.stdout + done.stderr
        assert faults(site, output, command) == [], (command, output.decode())
        assert site.ran == [], command
        assert site.state() == before, command
        shown = output.decode() + "".join(str(path) for path in site.output.rglob("*"))
        assert (command, done.returncode, case.told in shown) == (command, case.code, True), shown


def test_harm_is_noticed(template: Path, tmp_path: Path) -> None:
    site = Site(tmp_path, template)
    (tmp_path / "probe").write_text("x")
    os.utime(tmp_path / "probe", (1, 2))
    (tmp_path / "probe").read_text()
    records_reads = (tmp_path / "probe").stat().st_atime != 1  # not on file systems mounted with `noatime`
    before = site.state()
    (site.outside / "secret").read_text()
    assert (site.state() != before) is records_reads
    for path in (site.outside / "new", site.root / "new", tmp_path / "tmp" / "left"):
        before = site.state()
        path.write_text("")
        assert site.state() != before
    token = next(iter(TOKENS.values()))
    for text in ("\x1b[2J", "a\u202e", "a\n  ::error::x", "x ##[error]", "section_end:1:x", "Traceback", token, CANARY):
        assert faults(site, text.encode(), "validate") != []
    for text in ("<img src=x>", "![a](b)", "[a](b)", "<!-- x -->", "a @everyone", "```\na\n```\n/close"):
        assert faults(site, text.encode(), "comment") != []
    assert faults(site, b"`@everyone <img src=x>`\n```\n/close\n```\n", "comment") == []
    (site.output / "x").write_text(token)
    assert faults(site, b"", "render") == ["GITHUB_TOKEN"]


def test_there_are_enough_repositories() -> None:
    assert len({case.name for case in CASES}) == len(CASES) > 120
