"""Outcomes of Kubernetes' tests with avactl's scheduler, and their table in docs/measured.md."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from benchmarks.kubernetes_e2e.suite import Result, SuiteTest
from tools.controlplane.build import KUBERNETES_VERSION
from tools.measured import PAGE, write_section

SECTION = "kubernetes_e2e"
NOT_RUN = "not run yet"
_COLUMNS = ("test", "outcome", "Kubernetes", "commit", "date", "machine")

_SPREAD = "`ScheduleAnyway` and `PreferNoSchedule` are ignored."
BY_DESIGN: Mapping[str, str] = {
    "with the async preemption": "Freed capacity is reserved for the preemptor until the last victim is gone",
    "preemption by critical pod": "its pods preempt nothing in other namespaces",
    "PodTopologySpread Scoring": _SPREAD,
    "Multi-AZ Clusters should spread": _SPREAD,
    "pending because of CEL runtime errors": "a device without the attribute that a selector reads is skipped",
}
"""Sentences of docs/scheduler.md that say why a test fails, by words of its name."""


def find_sentence(test: SuiteTest) -> str:
    """Return the sentence of docs/scheduler.md that says why a test fails; "" if it must pass."""
    return next((sentence for words, sentence in BY_DESIGN.items() if words in test.name), "")


def outcome_without_run(test: SuiteTest) -> str:
    """Return the outcome of a test that cannot run; "" if it can."""
    if gates := test.disabled_gates:
        return f"not applicable: needs feature gates that Kubernetes does not enable by default: {', '.join(gates)}"
    return ""


def needs_reference(test: SuiteTest, result: Result) -> bool:
    """Return True if only the same test with kube-scheduler shows whether a failure is avactl's."""
    return result.state not in ("passed", "skipped") and not find_sentence(test)


def outcome(test: SuiteTest, result: Result, reference: Result | None = None) -> str:
    """Return what the table says of a test; `reference` is its result with kube-scheduler."""
    sentence = find_sentence(test)
    if result.state == "skipped":
        return f"not applicable: the test skips itself: {result.message}"
    if result.state == "passed":
        return "defect: is listed as different by design, and agrees" if sentence else "agrees"
    if sentence:
        return f"differs by design: “{sentence}”"
    if reference is not None and reference.state != "passed":
        return f"not applicable: fails with kube-scheduler on these nodes, too: {reference.message}"
    return f"defect: {result.message}"


def merge_table(page: str, tests: Collection[str], outcomes: Mapping[str, str], origin: str) -> str:
    """Return a table with a row for every test: of this run, as it is on the page, or not run yet."""
    before = _read_rows(page)
    rows = [
        _row(f"`{name}`", outcomes[name], KUBERNETES_VERSION, *origin.split(" | "))
        if name in outcomes
        else before.get(name) or _row(f"`{name}`", NOT_RUN, *[""] * 4)
        for name in sorted(tests)
    ]
    return "\n".join([_row(*_COLUMNS), _row(*["---"] * len(_COLUMNS)), *rows])


def find_open(page: str, tests: Iterable[SuiteTest]) -> list[SuiteTest]:
    """Return the tests that the page has no outcome of, or a defect."""
    rows = _read_rows(page)
    cells = ((test, rows.get(test.name, "").partition("` | ")[2]) for test in tests)
    return [test for test, outcome in cells if outcome.startswith((NOT_RUN, "defect")) or not outcome]


def write(tests: Sequence[SuiteTest], outcomes: Mapping[str, str], origin: str) -> None:
    """Write outcomes into docs/measured.md."""
    names = {test.name for test in tests}
    write_section(SECTION, merge_table(PAGE.read_text(encoding="utf-8"), names, outcomes, origin))


def has_defect(outcomes: Iterable[str]) -> bool:
    """Return True if an outcome is a defect."""
    return any(text.startswith("defect") for text in outcomes)


def _read_rows(page: str) -> dict[str, str]:
    section = page.partition(f"<!-- begin {SECTION} -->")[2].partition(f"<!-- end {SECTION} -->")[0]
    return {line[3:].partition("` | ")[0]: line for line in section.splitlines() if line.startswith("| `")}


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
