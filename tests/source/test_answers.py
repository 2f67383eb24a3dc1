"""Answers of sandboxed children that a spec file or a policy wrote itself, and files that cannot be confined."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from avactl.compiler import compile_tree
from avactl.diagnostics import Diagnostic
from avactl.diagnostics.text import render_text
from avactl.spec.python_files import answers, sandbox_runner
from avactl.spec.python_files.sandbox_runner import Answer
from avactl.spec.repository.tree import MemoryTree
from tests.source.layers import change

CONFIG = "python: {allow: true, timeout: 20s}\n"
TEAM = "apiVersion: avactl.dev/v1\nkind: Team\nmetadata: {name: a}\n"
SPECS = {"avactl.yaml": CONFIG, "specs.py": "specs = []\n", "team.yaml": TEAM}
POLICY = {"avactl.yaml": CONFIG, "policies/p.py": "from avactl.policy import policy\n\n@policy('p')\ndef p(s): ...\n"}
CLUSTER = {"c.yaml": "apiVersion: avactl.dev/v1\nkind: Cluster\nmetadata: {name: main}\n---\n" + TEAM}


def found(files: dict[str, str]) -> list[Diagnostic]:
    """All problems of a repository, each of which can be printed."""
    result = compile_tree(MemoryTree(files))
    for problem in result.diagnostics:
        assert len(problem.message) < 2000
        str(problem).encode("utf-8")
    render_text(list(result.diagnostics), files.get, False).encode("utf-8")
    return list(result.diagnostics)


def answering(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sandbox_runner, "run", lambda *_, **__: Answer(data, in_time=True))


def team(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "avactl.dev/v1", "kind": "Team", "metadata": {"name": "b"}, **spec}


PLACE = ["specs.py", 1, 0, 1, 5]


def specs(*values: Any, error: Any = None, places: Any = (((), *PLACE),)) -> bytes:
    documents = [{"value": value, "places": places} for value in values]
    return json.dumps({"documents": documents, "error": error}).encode()


def failed(message: Any, place: Any = PLACE) -> bytes:
    return specs(error={"message": message, "cause": "", "place": place})


NOT_AN_ANSWER = {
    "nothing like it": b"[1]",
    "cut off": b"{",
    "no text": b"\xff\xfe",
    "UTF-16": specs(team()).decode().encode("utf-16"),
    "NaN": specs(team(spec=float("nan"))),
    "infinity": specs(team(spec="1")).replace(b'"1"', b"1e999"),
    "half a surrogate pair": failed("\ud800"),
    "half a surrogate pair as a key": specs(team(**{"\udfff": 1})),
    "deep": specs(team()).replace(b"Team", b'Team", "spec": ' + b"[" * 500 + b"]" * 500 + b', "x": "y'),
    "deeper": b"[" * 200_000,
    "a long number": b'{"documents": [], "error": ' + b"9" * 5000 + b"}",
    "many values": b'{"documents": [' + b"0," * 4_100_000 + b"0]}",
    "many specs": b'{"documents": [' + b"{}," * 60_000 + b'{}], "error": null}',
    "no places": b'{"documents": [{"value": 1}], "error": null}',
    "specs that are a mapping": b'{"documents": {"a": 1}, "error": null}',
    "a message that is no text": failed(["x"]),
    "a line that is no number": failed("x", ["specs.py", "1", 0, 1, 5]),
    "a line that is a boolean": failed("x", ["specs.py", True, 0, 1, 5]),
    "a line that is a float": failed("x", ["specs.py", 1e300, 0, 1, 5]),
    "a line below all": failed("x", ["specs.py", -1, 0, 1, 5]),
    "a line above all": failed("x", ["specs.py", 1 << 40, 0, 1, 5]),
    "a file that is a list": failed("x", [["specs.py"], 1, 0, 1, 5]),
    "a place that is too short": failed("x", ["specs.py"]),
    "a step that is a list": specs(team(), places=[([["a"]], *PLACE)]),
}


@pytest.mark.parametrize("data", NOT_AN_ANSWER.values(), ids=NOT_AN_ANSWER)
def test_an_answer_of_another_shape_is_told(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    answering(monkeypatch, data)
    (problem,) = (problem for problem in found(SPECS) if problem.span.file == "specs.py")
    assert (problem.code, problem.span.line) == ("python-error", 1)
    assert "its output is malformed" in problem.message


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (specs(1, places=[((), "/etc/passwd", 1, 0, 1, 9)]), "not-a-spec"),
        (failed("x", ["/etc/passwd", 9999, 5, 9999, 9]), "python-error"),
        (failed("\x1b[31m\n::error::" + "x" * 100_000), "python-error"),
        (specs(team(spec={"x\x1b[0m": 1})), "unknown-key"),
        (specs(team(spec=[[]])), "wrong-type"),
        (specs(team(kind=7)), "unknown-kind"),
        (specs({}), "not-a-spec"),
        (specs(None), "not-a-spec"),
    ],
)
def test_a_forged_answer_points_into_the_repository_only(
    monkeypatch: pytest.MonkeyPatch, data: bytes, code: str
) -> None:
    answering(monkeypatch, data)
    problems = [problem for problem in found(SPECS) if problem.span.file != "team.yaml"]
    assert {problem.span.file for problem in problems} == {"specs.py"}
    assert {problem.span.line for problem in problems} == {1}
    assert code in {problem.code for problem in problems}, problems


FORGE = """\
import os, stat
specs = []
for fd in range(3, 4096):
    try:
        os.write(fd, {answer!r})
    except OSError:
        pass
os._exit(0)
"""


def test_a_file_can_forge_its_answer_and_gains_nothing() -> None:
    answer = failed("forged", ["/etc/passwd", 9999, 5, 9999, 9])
    (problem,) = (p for p in found({**SPECS, "specs.py": FORGE.format(answer=answer)}) if p.span.file == "specs.py")
    assert (problem.code, problem.message, problem.span.line) == ("python-error", "forged", FORGE.count("\n"))


DECLARED = {"name": "p", "over": "specs", "severity": "error", "help": "", "kinds": [], "check": []}


def lines(*said: Any) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in said)


def problems(count: int, message: Any = "m", path: Any = ()) -> bytes:
    return lines(["policy", DECLARED], ["begins", 0], *[["problem", [0, 0, message, path, ""]]] * count, ["ends", None])


FORGED_POLICIES = {
    "more problems than are told": problems(100_000),
    "more lines than there can be": lines(*[["begins", 0]] * 150_000),
    "begins without end": lines(["policy", DECLARED], *[["begins", 0]] * 1000),
    "many policies": lines(*[["policy", DECLARED]] * 1000),
    "a policy before all": lines(["policy", DECLARED], ["begins", -1]),
    "no such policy": lines(["begins", 0]),
    "a name of anything": lines(["policy", {**DECLARED, "name": "a\nb"}]),
    "a message of no text": problems(1, 7),
    "a surrogate": problems(1, "\ud800"),
    "a path of anything": problems(1, "m", [[1]]),
    "a path without end": problems(1, "m", ["a"] * 1000),
    "a path of a huge number": problems(1, "m", [10**100]),
    "a count of anything": lines(["policy", DECLARED], ["more", [0, 1e308]]),
    "many ends": lines(["ends", None], ["ends", None]),
    "deep": b'["begins", ' + b"[" * 100_000 + b"\n",
    "NaN": b'["begins", NaN]\n',
    "no text": b"\xff\n",
    "nobody's": lines(["run", 0]),
}


@pytest.mark.parametrize("data", FORGED_POLICIES.values(), ids=FORGED_POLICIES)
def test_a_policys_forged_answer_is_bounded(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    answering(monkeypatch, data)
    told = found({**POLICY, **CLUSTER})
    assert 1 <= len(told) <= 201
    assert any(problem.code == "policy-error" and "malformed" in problem.message for problem in told)


@pytest.mark.parametrize("path", [[-1], [True], [10**60], ["metadata", 0], ["metadata", "name", "x"], [""], [0] * 64])
def test_a_policys_path_may_lead_anywhere(monkeypatch: pytest.MonkeyPatch, path: list[Any]) -> None:
    answering(monkeypatch, problems(1, "\x1b[0m" + "m" * 100_000, path))
    told = [problem for problem in found({**POLICY, **CLUSTER}) if problem.code.startswith("policy")]
    assert len(told) == 1


def test_numbers_and_texts_that_json_cannot_hold_are_told_at_their_line() -> None:
    head = "from avactl.kinds import Metadata, Team\n"
    files = {"avactl.yaml": CONFIG, "specs.py": f"{head}specs = [Team(metadata=Metadata(name=float('nan')))]\n"}
    (problem,) = found(files)
    assert (problem.code, problem.span.line) == ("python-error", 2)
    assert "nan is not a valid number" in problem.message
    files["specs.py"] = f"{head}specs = [Team(metadata=Metadata(name='a', labels={{'\\ud800': '\\udfff'}}))]\n"
    assert {problem.span.file for problem in found(files)} == {"specs.py"}


# -- files that cannot be confined -------------------------------------------------------------------------------------


@pytest.fixture
def unconfined(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system without seccomp and Landlock."""
    change(monkeypatch, "landlock.apply = lambda *_: False", "seccomp.apply = lambda *_: False")
    monkeypatch.delenv(sandbox_runner.TRUST, raising=False)


@pytest.mark.usefixtures("unconfined")
@pytest.mark.skipif(sys.platform != "linux", reason="the layers that are missing are others")
def test_a_file_that_cannot_be_confined_is_not_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    (problem,) = (problem for problem in found(SPECS) if problem.span.file == "specs.py")
    assert (problem.code, problem.span.line) == ("python-not-confined", 1)
    assert problem.message.endswith("because it lacks seccomp and Landlock")
    (problem,) = found({**POLICY, **CLUSTER})
    assert (problem.code, problem.span.file) == ("python-not-confined", "policies/p.py")
    # The environment of the person, and nothing in the repository, lets it run.
    trusting = {**SPECS, "avactl.yaml": "python: {allow: true, trusted: true}\n"}
    assert "unknown-key" in {problem.code for problem in found(trusting)}
    for value, refused in (("true", True), ("", True), ("1", False)):
        monkeypatch.setenv(sandbox_runner.TRUST, value)
        assert any(problem.code == "python-not-confined" for problem in found(SPECS)) is refused


@pytest.mark.usefixtures("unconfined")
def test_a_schema_is_data_and_needs_no_kernel() -> None:
    schema = {"policies/p.yaml": "policy: p\nschema: {required: [nothing]}\n", **CLUSTER}
    assert {problem.code for problem in found(schema)} == {"policy"}


def test_a_message_says_which_layers_are_missing() -> None:
    assert "lacks Landlock" in answers.not_confined("a.py", ("Landlock",)).message
