"""A repository's own policies: runs their files in the sandbox and parses the results."""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, NamedTuple

import orjson

from avactl.diagnostics import Diagnostic, Span
from avactl.policy import MAX_PROBLEMS, NAME, Problem
from avactl.policy.settings import SchemaFile
from avactl.program.manifest import Manifest
from avactl.program.program import Item
from avactl.spec.documents.document import Document
from avactl.spec.python_files import answers, sandbox_runner
from avactl.spec.python_files.calls import span_in
from avactl.spec.python_files.load import Root

_MAX_AT_ONCE = 4
_MAX_POLICIES = 500
"""Maximum number of policies per file."""
_MAX_LINES = _MAX_POLICIES * (MAX_PROBLEMS + 4)
"""Maximum number of lines in an answer: a policy is declared, begins, reports problems, fails, and counts the rest."""
_MAX_DEPTH = 64


class PolicySource(NamedTuple):
    """One file of Python policies, or one document with a JSON Schema."""

    file: str
    schema: SchemaFile | None = None
    document: Document | None = None


class PolicyFinding(NamedTuple):
    """A problem of a spec or an object."""

    policy: str
    severity: Any
    subject: Item | Manifest
    problem: Problem


@dataclass(slots=True)
class PolicyReport:
    """Findings of one source's policies, and problems of the policies themselves."""

    declared: list[dict[str, Any]] = field(default_factory=list)
    """`name`, `over`, `kinds`, `severity`, `help` of each policy, and its `span`."""
    findings: list[PolicyFinding] = field(default_factory=list)
    problems: list[Diagnostic] = field(default_factory=list)


class Subjects:
    """Specs and objects to check, written to a file once for all policies."""

    def __init__(self, items: Iterable[Item], manifests: Iterable[Manifest]) -> None:
        self.of: dict[str, Sequence[Item | Manifest]] = {"specs": list(items), "manifests": list(manifests)}
        self._directory = tempfile.TemporaryDirectory(prefix="avactl-")
        self.directory = os.path.realpath(self._directory.name)
        self.path = f"{self.directory}/subjects.json"
        specs = [(item.kind, spec_json(item)) for item in self.of["specs"] if isinstance(item, Item)]
        objects = [(m.kind, orjson.dumps(m.body).decode()) for m in self.of["manifests"] if isinstance(m, Manifest)]
        FilePath(self.path).write_bytes(orjson.dumps({"specs": specs, "manifests": objects}))

    def __enter__(self) -> Subjects:
        return self

    def __exit__(self, *_: object) -> None:
        self._directory.cleanup()


def spec_json(item: Item) -> str:
    """Return a spec as policies see it: as in YAML, defaults filled in, unset values omitted, and its file."""
    data = item.resource.model_dump(mode="json", by_alias=True, exclude_none=True)
    return orjson.dumps({"apiVersion": "avactl.dev/v1", "kind": item.kind, **data, "file": item.doc.file}).decode()


def run(sources: Sequence[PolicySource], root: Root, subjects: Subjects, timeout: float) -> list[PolicyReport]:
    """Run the policies on the subjects, each source in its own process, with `timeout` seconds each."""
    if not sources:
        return []
    with ThreadPoolExecutor(min(_MAX_AT_ONCE, len(sources))) as pool:
        return list(pool.map(lambda source: _run(source, root, subjects, timeout), sources))


def _run(source: PolicySource, root: Root, subjects: Subjects, timeout: float) -> PolicyReport:
    request: dict[str, Any] = {"path": source.file, "subjects": subjects.path}
    if source.schema is not None:
        declared = source.schema.model_dump(mode="json", exclude={"schema_", "policy"})
        request |= {"schema": source.schema.schema_, "policy": {"name": source.schema.policy, **declared}}
    report = PolicyReport()
    try:
        # A JSON Schema is data: no code of the repository runs.
        untrusted = source.schema is None
        answer = sandbox_runner.run(
            "avactl.policy.worker", root.path, timeout, request, (subjects.directory,), untrusted=untrusted
        )
    except OSError as error:
        report.problems.append(
            _broken_problem(source, "", Span(source.file), f"the evaluation failed to start: {error}")
        )
        return report
    if answer.missing:
        report.problems.append(answers.not_confined(source.file, answer.missing, rule=source.file))
        return report
    reader = _PolicyReader(source, root, subjects, report)
    try:
        reader.read(answer.data)
    except answers.FORGED:
        report.problems.append(_broken_problem(source, "", Span(source.file), "its output is malformed"))
        return report
    if reader.ended:
        return report
    name, span = reader.at()
    if not answer.in_time:
        what = f"policy {name}" if name else "the file"
        message = f"{what} did not finish within {timeout:g} s (limit for all policies of its file)"
        hint = "look for an infinite loop, or raise `python: {timeout: …}` in avactl.yaml"
        report.problems.append(Diagnostic("policy-timeout", message, span, hint=hint, rule=name or source.file))
    elif answer.too_long:
        report.problems.append(
            _broken_problem(
                source, name, span, f"it reported more than {sandbox_runner.MAX_ANSWER >> 20} MiB of problems"
            )
        )
    else:
        why = "it ended its process, or exceeded the memory limit (1 GiB)"
        report.problems.append(_broken_problem(source, name, span, why))
    return report


def _broken_problem(source: PolicySource, name: str, span: Span, why: str, hint: str = "fix the policy") -> Diagnostic:
    what = f"policy {name} is invalid" if name else "the file's policies cannot be read"
    return Diagnostic("policy-error", f"{what}: {why}", span, hint=hint, rule=name or source.file)


class _PolicyReader:
    """Parser of a child's answer. A policy may have forged it, so every value is validated."""

    def __init__(self, source: PolicySource, root: Root, subjects: Subjects, report: PolicyReport) -> None:
        self.source = source
        self.root = root
        self.subjects = subjects
        self.report = report
        self.ended = False
        self.begun: int | None = None
        self.counts: Counter[tuple[str, int]] = Counter()

    def at(self) -> tuple[str, Span]:
        """Return the policy that ran last and its location; the file if none did."""
        if self.begun is None:
            return "", Span(self.source.file)
        policy = self.report.declared[self.begun]
        return policy["name"], policy["span"]

    def read(self, data: bytes) -> None:
        """Read all lines. Raises an exception of `answers.FORGED` for lines that no honest child writes."""
        lines = data.split(b"\n", _MAX_LINES + 1)[:-1]  # the last one is empty or truncated
        if len(lines) > _MAX_LINES:
            raise ValueError("too many lines")
        for line in lines:
            if self.ended:
                raise ValueError("a line beyond the end of the file")
            what, value = answers.parse(line)
            _SAID[what](self, value)

    def _at_most(self, most: int, what: str, index: int) -> None:
        """Count a line about one policy. Raises ValueError where an honest child writes fewer."""
        if type(index) is not int or not 0 <= index < len(self.report.declared):
            raise ValueError("no such policy")
        self.counts[what, index] += 1
        if self.counts[what, index] > most:
            raise ValueError("too many problems of one policy")

    def _subject(self, index: int, number: int) -> Item | Manifest:
        if type(number) is not int or number < 0:
            raise ValueError("no such subject")
        return self.subjects.of[self.report.declared[index]["over"]][number]

    def _span(self, place: Sequence[Any]) -> Span:
        if self.source.document is not None:
            return self.source.document.span("policy")
        if not place:
            return Span(self.source.file)
        found = self.root.place(self.source.file, *place)
        text = self.root.text(found.file)
        return span_in(found.file, text, found.line, found.column, found.end_line, found.end_column)

    def _broken(self, value: dict[str, Any]) -> None:
        self.ended = True
        message = answers.bounded_text(value["message"])
        if self.source.document is not None:
            span = self.source.document.span("schema", *_parse_path(value.get("path", [])))
            name = self.source.schema.policy if self.source.schema else ""
            hint = "fix the schema: it must be valid JSON Schema 2020-12, or valid for its `$schema`"
            self.report.problems.append(_broken_problem(self.source, name, span, message, hint))
            return
        hint = {
            "import": "a policy file may import the standard library, avactl.policy, and modules of the repository",
            "refused": "a policy has no access to the system: use only the spec or object that it receives",
        }.get(answers.bounded_text(value["cause"]), "fix this line, or its caller")
        span = self._span(value["place"])
        self.report.problems.append(_broken_problem(self.source, "", span, message, hint))

    def _policy(self, value: dict[str, Any]) -> None:
        if value["over"] not in self.subjects.of or value["severity"] not in ("error", "warning"):
            raise ValueError("invalid `over` or `severity`")
        policy = {key: answers.bounded_text(value[key]) for key in ("name", "over", "severity", "help")}
        kinds = [answers.bounded_text(kind) for kind in value["kinds"]]
        if not re.fullmatch(NAME, policy["name"]) or len(kinds) > _MAX_DEPTH:
            raise ValueError("invalid name or kinds")
        if len(self.report.declared) >= _MAX_POLICIES:
            raise ValueError("too many policies")
        self.report.declared.append({**policy, "kinds": kinds, "span": self._span(value["check"])})

    def _begins(self, value: Any) -> None:
        self._at_most(1, "begins", value)
        self.begun = value

    def _ends(self, value: Any) -> None:
        self.ended = True

    def _problem(self, value: list[Any]) -> None:
        index, number, message, path, help = value
        self._at_most(MAX_PROBLEMS, "problem", index)
        policy = self.report.declared[index]
        subject = self._subject(index, number)
        found = Problem(answers.bounded_text(message), _parse_path(path), answers.bounded_text(help) or policy["help"])
        self.report.findings.append(PolicyFinding(policy["name"], policy["severity"], subject, found))

    def _failed(self, value: list[Any]) -> None:
        index, number, error = value
        self._at_most(1, "failed", index)
        policy = self.report.declared[index]
        subject = self._subject(index, number)
        message = answers.bounded_text(error["message"])
        if self.source.document is not None and "path" in error:
            span, hint = self.source.document.span("schema", *_parse_path(error["path"])), "fix the schema"
            self.report.problems.append(_broken_problem(self.source, policy["name"], span, message, hint))
            return
        span = self._span(error["place"]) if error["place"][0] else policy["span"]
        what = subject.id if isinstance(subject, Manifest) else subject
        why = f"{message}, with {what}"
        self.report.problems.append(
            _broken_problem(self.source, policy["name"], span, why, "fix this line, or its caller")
        )

    def _more(self, value: list[Any]) -> None:
        index, count = value
        self._at_most(1, "more", index)
        policy = self.report.declared[index]
        message = f"{answers.bounded_coordinate(count)} more problems from policy {policy['name']}"
        hint = "fix the reported ones first"
        self.report.problems.append(
            Diagnostic("policy", message, policy["span"], policy["severity"], hint=hint, rule=policy["name"])
        )


def _parse_path(steps: Any) -> tuple[str | int, ...]:
    """Return the keys and indexes of a path. Raises ValueError where they are none."""
    if not isinstance(steps, list) or len(steps) > _MAX_DEPTH:
        raise ValueError("not a path, or too long")
    return tuple(step if type(step) is int else answers.bounded_text(step) for step in steps)


_SAID: dict[str, Callable[[_PolicyReader, Any], None]] = {
    "broken": _PolicyReader._broken,
    "policy": _PolicyReader._policy,
    "begins": _PolicyReader._begins,
    "problem": _PolicyReader._problem,
    "failed": _PolicyReader._failed,
    "more": _PolicyReader._more,
    "ends": _PolicyReader._ends,
}
