"""Problems for machines: GitHub's commands, SARIF, GitLab's code quality report."""

from __future__ import annotations

import json
import re
from typing import Any

from avactl.diagnostics import Diagnostic, Note, Span
from avactl.diagnostics.machine import render_json, render_sarif
from avactl.forges.github.annotations import render_annotations
from avactl.forges.gitlab.code_quality import render_code_quality

ODD = Diagnostic(
    "unknown-kind",
    "a: b, 100%\n::error::x",
    Span("a b/ü<x>.yaml", 3, 4, 9),
    hint="write `c`",
    notes=(Note(Span("other.yaml", 7, 1), "the other one"),),
)
OURS = Diagnostic("policy", "no", Span("t.yaml", 5, 2), severity="warning", rule="images-pinned")
COMMAND = re.compile(
    r"::(error|warning) file=[^:,]*,line=\d+,col=\d+(,endColumn=\d+)?,title=[^:,]*::[^\n]*\n"
).fullmatch


def many(count: int, severity: Any = "error", line: int = 1) -> list[Diagnostic]:
    return [Diagnostic("crlf", f"m{n}", Span("f.yaml", line + n), severity=severity) for n in range(count)]


def test_a_message_cannot_be_a_command() -> None:
    (text,) = render_annotations([ODD]).splitlines(keepends=True)
    assert COMMAND(text)
    assert "%0A%3A%3A" not in text  # in the message only what ends a line is dangerous
    assert "100%25%0A::error::x – write `c`" in text


def test_github_shows_ten_of_each_and_the_log_has_the_rest() -> None:
    assert render_annotations(many(10)).count("::error") == 10
    lines = render_annotations([*many(30), *many(3, "warning")]).splitlines()
    errors = [line for line in lines if line.startswith("::error")]
    assert len(errors) == 10
    assert errors[-1] == "::error title=avactl::21 more errors: the log of this step has them"
    assert len([line for line in lines if line.startswith("::warning")]) == 3
    assert next(line for line in lines if not line.startswith("::")) == "error[crlf] f.yaml:10:1: m9"
    assert len(lines) == 10 + 3 + 21


def test_what_goes_into_the_log_is_no_command_either() -> None:
    odd = [Diagnostic("crlf", f"##[set-env]{n}\n::stop-commands::x", Span("::error::x", n + 1)) for n in range(12)]
    lines = render_annotations(odd).splitlines()
    assert len([line for line in lines if not line.startswith("::")]) == 3
    assert all(re.match(r"::error (file|title)=|error\[crlf\] ", line) for line in lines)
    assert not any("##[" in line for line in lines if not line.startswith("::"))


def test_a_policy_is_told_by_its_name() -> None:
    assert "title=policy/images-pinned::no" in render_annotations([OURS])
    (result,) = json.loads(render_sarif([OURS]))["runs"][0]["results"]
    assert (result["ruleId"], result["level"]) == ("policy/images-pinned", "warning")
    assert json.loads(render_json([OURS]))[0]["rule"] == "images-pinned"


def test_sarif_names_rules_and_places() -> None:
    log = json.loads(render_sarif([ODD, OURS]))
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert [result["ruleId"] for result in run["results"]] == ["unknown-kind", "policy/images-pinned"]
    assert [rules[result["ruleIndex"]] for result in run["results"]] == ["unknown-kind", "policy/images-pinned"]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "a%20b/%C3%BC%3Cx%3E.yaml"
    assert place["region"] == {"startLine": 3, "startColumn": 4, "endColumn": 9}


def test_gitlab_s_report_has_its_fields() -> None:
    entries = json.loads(render_code_quality([ODD, OURS]))
    assert [set(entry) for entry in entries] == [
        {"description", "check_name", "fingerprint", "severity", "location"}
    ] * 2
    assert [entry["severity"] for entry in entries] == ["major", "minor"]
    assert entries[0]["location"] == {"path": "a b/ü<x>.yaml", "lines": {"begin": 3}}
    assert entries[1]["check_name"] == "policy/images-pinned"
    assert json.loads(render_code_quality([])) == []


def test_a_fingerprint_stays_when_lines_move_and_is_no_other_s() -> None:
    def prints(found: list[Diagnostic]) -> list[str]:
        return [entry["fingerprint"] for entry in json.loads(render_code_quality(found))]

    same = [Diagnostic("crlf", "m", Span("f.yaml", line)) for line in (1, 2)]
    moved = [Diagnostic("crlf", "m", Span("f.yaml", line)) for line in (11, 12)]
    assert prints(same) == prints(moved)
    assert len(set(prints([*same, *many(3), ODD, OURS]))) == 7
