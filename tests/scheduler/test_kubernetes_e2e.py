"""Outcomes of Kubernetes' end-to-end tests: from the report of Ginkgo to the table."""

from __future__ import annotations

import json

import pytest

from benchmarks.kubernetes_e2e import outcomes
from benchmarks.kubernetes_e2e.outcomes import BY_DESIGN, find_open, merge_table, outcome, outcome_without_run
from benchmarks.kubernetes_e2e.suite import Result, SuiteTest, find_images, parse_report
from tests.conftest import ROOT
from tests.scheduler.scenario import words

PASSED, FAILED, SKIPPED = Result("passed", ""), Result("failed", "timed out"), Result("skipped", "needs two zones")
PLAIN = SuiteTest("[sig-scheduling] validates resource limits", frozenset())
DIFFERENT = SuiteTest("[sig-scheduling] Multi-AZ Clusters should spread the pods of a service", frozenset())


@pytest.mark.parametrize(
    ("test", "result", "reference", "text"),
    [
        (PLAIN, PASSED, None, "agrees"),
        (PLAIN, SKIPPED, None, "not applicable: the test skips itself: needs two zones"),
        (PLAIN, FAILED, PASSED, "defect: timed out"),
        (PLAIN, FAILED, None, "defect: timed out"),
        (PLAIN, FAILED, FAILED, "not applicable: fails with kube-scheduler on these nodes, too: timed out"),
        (DIFFERENT, FAILED, None, "differs by design: “`ScheduleAnyway` and `PreferNoSchedule` are ignored.”"),
        (DIFFERENT, PASSED, None, "defect: is listed as different by design, and agrees"),
    ],
)
def test_the_outcome_of_a_test(test: SuiteTest, result: Result, reference: Result | None, text: str) -> None:
    assert outcome(test, result, reference) == text


def test_a_test_of_a_disabled_feature_is_not_run() -> None:
    labels = frozenset({"Feature:OffByDefault", "FeatureGate:GenericWorkload", "Alpha"})
    assert outcome_without_run(SuiteTest("alpha", labels)).endswith("enable by default: GenericWorkload")
    assert not outcome_without_run(SuiteTest("beta", labels - {"Feature:OffByDefault"}))


def test_the_documentation_says_what_differs_by_design() -> None:
    documentation = words((ROOT / "docs" / "scheduler.md").read_text())
    assert [sentence for sentence in BY_DESIGN.values() if words(sentence) not in documentation] == []


def test_tests_that_are_not_run_keep_their_row() -> None:
    page = f"<!-- begin {outcomes.SECTION} -->\n\n<!-- end {outcomes.SECTION} -->"
    first = merge_table(page, {"a", "b", "c"}, {"a": "agrees"}, "c1 | 2026-01-01 | m")
    page = page.replace("\n\n", f"\n{first}\n")
    rows = merge_table(page, {"a", "b"}, {"b": "defect: x | y"}, "c2 | 2026-01-02 | m").splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == ["| `a`", "| `b`"]
    assert "| agrees | " in rows[0]
    assert "c1 | 2026-01-01" in rows[0]
    assert "| defect: x \\| y | " in rows[1]
    assert outcomes.NOT_RUN in first
    tests = [SuiteTest(name, frozenset()) for name in "abcd"]
    page = f"<!-- begin {outcomes.SECTION} -->\n{first}\n{rows[1]}\n<!-- end {outcomes.SECTION} -->"
    assert [test.name for test in find_open(page, tests)] == ["b", "c", "d"]


def test_a_suite_that_does_not_start_is_an_error() -> None:
    setup = {"LeafNodeType": "SynchronizedBeforeSuite", "State": "failed", "Failure": {"Message": "no\nnodes"}}
    test = {
        "ContainerHierarchyTexts": ["[sig-node] [DRA]"],
        "ContainerHierarchyLabels": [["DRA"]],
        "LeafNodeType": "It",
        "LeafNodeText": "works",
        "LeafNodeLabels": None,
        "State": "passed",
    }
    (report,) = parse_report(json.dumps([{"SpecReports": [test]}]))
    assert (report.name, report.all_labels) == ("[sig-node] [DRA] works", frozenset({"DRA"}))
    with pytest.raises(RuntimeError, match="SynchronizedBeforeSuite failed: no nodes"):
        parse_report(json.dumps([{"SpecReports": [setup, test]}]))


def test_images_by_name() -> None:
    images = ["registry.k8s.io/pause:3.10", "registry.k8s.io/e2e/agnhost:2", "registry.k8s.io/pause-amd64:3"]
    assert find_images(images, "pause") == ["registry.k8s.io/pause:3.10"]
