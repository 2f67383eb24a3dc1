"""Kubernetes' end-to-end tests: the test program, built from its module, and the outcome of each test."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import count
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, Field

from tools.controlplane.build import Module, build_binaries, kubernetes_flags

MODULE = Module(
    Path(__file__).parent,
    kubernetes_flags(),
    {"e2e.test": "k8s.io/kubernetes/test/e2e", "agnhost": "k8s.io/kubernetes/test/images/agnhost"},
)
FOCUS = r"\[sig-scheduling\]|\[DRA\]"
"""Names of the tests that concern a scheduler."""
SUITE = "Kubernetes e2e suite"
"""What Ginkgo puts before the name of a test where it looks for the focus."""
SERIAL = "Serial"
"""Label of tests that no other test may run beside."""
OFF_BY_DEFAULT = "Feature:OffByDefault"
_GATE = "FeatureGate:"
BATCH_TESTS = 4
"""Tests of one process. Results are known when it ends."""
MAX_MESSAGE_CHARACTERS = 160


class SuiteTest(NamedTuple):
    """A test of the program."""

    name: str
    labels: frozenset[str]

    @property
    def disabled_gates(self) -> list[str]:
        """Feature gates that the test needs, and Kubernetes does not enable by default."""
        gates = sorted(label.removeprefix(_GATE) for label in self.labels if label.startswith(_GATE))
        return gates if OFF_BY_DEFAULT in self.labels else []


class Result(NamedTuple):
    """How a test ended."""

    state: str
    """passed, skipped, or how it failed."""
    message: str
    """Why it was skipped, or failed; one line."""


class _Failure(BaseModel):
    message: str = Field("", alias="Message")


class _Report(BaseModel):
    texts: list[str] | None = Field(None, alias="ContainerHierarchyTexts")
    container_labels: list[list[str] | None] | None = Field(None, alias="ContainerHierarchyLabels")
    kind: str = Field("", alias="LeafNodeType")
    text: str = Field("", alias="LeafNodeText")
    labels: list[str] | None = Field(None, alias="LeafNodeLabels")
    state: str = Field("", alias="State")
    failure: _Failure = Field(_Failure(), alias="Failure")

    @property
    def name(self) -> str:
        return " ".join([*(self.texts or ()), self.text])

    @property
    def all_labels(self) -> frozenset[str]:
        containers = (label for labels in self.container_labels or () for label in labels or ())
        return frozenset([*containers, *(self.labels or ())])


class Suite:
    """The test program; `folder` gets its logs and reports."""

    def __init__(self, folder: Path) -> None:
        self._program = build_binaries(["e2e.test"], [MODULE])["e2e.test"]
        self._folder, self._numbers = folder, count()

    def images(self) -> list[str]:
        """Return the images that tests use."""
        listed = subprocess.run([self._program, "--list-images"], capture_output=True, text=True, check=True)
        return listed.stdout.split()

    def tests(self) -> list[SuiteTest]:
        """Return the tests of FOCUS. None is run."""
        reports = self._run("list", FOCUS, "--ginkgo.dry-run")
        return [SuiteTest(report.name, report.all_labels) for report in reports if report.state == "passed"]

    def run(self, kubeconfig: Path, tests: Sequence[SuiteTest], jobs: int = 1) -> Iterator[dict[str, Result]]:
        """Run tests, those that are not serial in some processes at the same time; yield results by name."""
        serial = [test for test in tests if SERIAL in test.labels]
        others = [test for test in tests if SERIAL not in test.labels]
        batches = [others[start : start + BATCH_TESTS] for start in range(0, len(others), BATCH_TESTS)]
        with ThreadPoolExecutor(jobs) as pool:
            running = [pool.submit(self._run_batch, kubeconfig, batch) for batch in batches]
            for batch in as_completed(running):
                yield batch.result()
        for test in serial:
            yield self._run_batch(kubeconfig, [test])

    def _run_batch(self, kubeconfig: Path, tests: Sequence[SuiteTest]) -> dict[str, Result]:
        focus = "|".join(f"^{SUITE} {_quote(test.name)}$" for test in tests)
        name = f"batch-{next(self._numbers)}"
        reports = {report.name: report for report in self._run(name, focus, f"--kubeconfig={kubeconfig}")}
        # Reports have the tests that are out of focus, too.
        results = ((test.name, reports[test.name]) for test in tests)
        return {name: Result(report.state, _one_line(report.failure.message)) for name, report in results}

    def _run(self, name: str, focus: str, *arguments: str) -> list[_Report]:
        """Run the program, whose exit code says nothing that its report does not."""
        report, log = self._folder / f"{name}.json", self._folder / f"{name}.log"
        report.unlink(missing_ok=True)
        command: list[str | Path] = [
            self._program,
            f"--ginkgo.focus={focus}",
            f"--ginkgo.json-report={report}",
            "--ginkgo.timeout=12h",
            "--ginkgo.silence-skips",
            "--test.timeout=0",
            "--provider=skeleton",
            "--dump-logs-on-failure=false",
            *arguments,
        ]
        environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self._folder)}
        with log.open("ab") as output:
            subprocess.run(command, cwd=self._folder, env=environment, stdout=output, stderr=output, check=False)
        if not report.exists():
            raise RuntimeError(f"{self._program.name} wrote no report:\n{log.read_text(errors='replace')[-2000:]}")
        return parse_report(report.read_text(encoding="utf-8"))


def parse_report(text: str) -> list[_Report]:
    """Return the tests of a report of Ginkgo. Raises RuntimeError if the suite could not start."""
    reports = [_Report.model_validate(spec) for suite in json.loads(text) for spec in suite["SpecReports"] or ()]
    for report in reports:
        if report.kind != "It" and report.state not in ("", "passed"):
            raise RuntimeError(f"{report.kind} {report.state}: {_one_line(report.failure.message)}")
    return [report for report in reports if report.kind == "It"]


def find_images(images: Iterable[str], name: str) -> list[str]:
    """Return the references to images of a name, in all their versions."""
    return [image for image in images if image.rpartition("/")[2].partition(":")[0] == name]


def _quote(text: str) -> str:
    """Quote a text for Go's regular expressions, which refuse more escapes than Python's."""
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", text)


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_MESSAGE_CHARACTERS else f"{line[:MAX_MESSAGE_CHARACTERS]}…"
