"""The interpreter of scheduler_perf, and some of its cases: both schedulers bind all pods."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.scheduler_perf import report
from benchmarks.scheduler_perf.__main__ import compare_short, find_workloads
from benchmarks.scheduler_perf.allocation import Allocation, AllocationError
from benchmarks.scheduler_perf.comparison import BY_DESIGN, NOT_APPLICABLE, Comparison, Outcome
from benchmarks.scheduler_perf.configurations import (
    Case,
    ConfigurationError,
    CreatePods,
    Size,
    choose_smallest,
    choose_workload,
    find_folder,
    parse_cases,
    read_cases,
    size_of,
    unroll,
)
from benchmarks.scheduler_perf.executor import Measurement
from benchmarks.scheduler_perf.objects import resource_slice
from benchmarks.scheduler_perf.templates import Manifest, TemplateError, render
from tests.test_layout import ROOT
from tools.controlplane.build import KUBERNETES_VERSION
from tools.measured import PAGE

RUN = (
    "SchedulingBasic",
    "SchedulingPodAntiAffinity",
    "TopologySpreading",
    "SchedulingCSIPVs",
    "PreemptionBasic",
    "SchedulingWithMixedChurn",
    "SchedulingWithResourceClaimTemplate",
    "EventHandlingPodAdd",
)
"""One case for each way of creating pods and waiting for them, and for the constraints that users meet most."""
CONFIGURATION = """
- name: Basic
  workloadTemplate:
  - {opcode: createNodes, countParam: $nodes}
  - {opcode: createPodSets, count: 2, namespacePrefix: set, createPodsOp: {opcode: createPods, countParam: $pods}}
  - {opcode: createPods, countParam: $pods, collectMetrics: true}
  workloads:
  - {name: small, params: {nodes: 5, pods: 10}}
  - {name: large, featureGates: {Gate: true}, params: {nodes: 5000, pods: 1000}}
"""


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    return {case.name: case for case in read_cases(find_folder())}


def parse(text: str) -> Case:
    (case,) = parse_cases(text, Path("/perf/performance-config.yaml"))
    return case


@pytest.mark.parametrize(
    ("known", "unknown", "named"),
    [
        ("opcode: createNodes", "opcode: drainNodes", "drainNodes"),
        ("collectMetrics: true", "collectMemory: true", "collectMemory"),
        ("featureGates: {Gate", "featureGate: {Gate", "featureGate"),
        ("countParam: $nodes", "countParam: $machines", "machines"),
    ],
)
def test_what_is_not_known_is_named(known: str, unknown: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        unroll(case := parse(CONFIGURATION.replace(known, unknown)), case.workloads[0])


def test_parameters_and_sets_of_pods_are_replaced() -> None:
    case = parse(CONFIGURATION)
    pods = [operation for operation in unroll(case, case.workloads[0]) if isinstance(operation, CreatePods)]
    assert [(operation.namespace, operation.count) for operation in pods] == [("set-0", 10), ("set-1", 10), (None, 10)]
    assert size_of(case, case.workloads[0]) == Size(5, 30)


def test_workload_of_the_size() -> None:
    case = parse(CONFIGURATION.replace("createPodSets, count: 2", "createPodSets, count: 0"))
    assert choose_smallest(case, case.workloads).name == "small"
    scaled = choose_workload(case, case.workloads, 500)
    assert (scaled.name, size_of(case, scaled)) == ("large × 0.1", Size(500, 100))
    workloads, inapplicable = find_workloads(case, {"Gate": False})
    assert ([workload.name for workload in workloads], inapplicable) == (["small"], None)
    only_large = case.model_copy(update={"workloads": case.workloads[1:]})
    _, inapplicable = find_workloads(only_large, {"Gate": False})
    assert inapplicable is not None
    assert inapplicable.verdict.endswith("Gate=true")


def test_templates(tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text("""
metadata: {name: "pod-{{.Index}}", labels: {Team: "8{{ Mod .Index 12 }}"}}
spec:
  constraints: [{NodeTaintsPolicy: Honor, matchLabels: {Color: green}}]
  memory: {{ DivideInt 30000 .Count }}Mi
""")
    assert render(path, 13, 7) == {
        "metadata": {"name": "pod-13", "labels": {"Team": "81"}},
        "spec": {
            "constraints": [{"nodeTaintsPolicy": "Honor", "matchLabels": {"Color": "green"}}],
            "memory": "4285Mi",
        },
    }
    path = tmp_path / "unknown.yaml"
    path.write_text("name: {{ printf .Index }}")
    with pytest.raises(TemplateError, match="printf"):
        render(path, 0, 1)


def test_allocation_without_pods() -> None:
    device_class = {"spec": {"selectors": [{"cel": {"expression": 'device.driver == "a.example.com"'}}]}}
    allocation = Allocation([resource_slice("a.example.com", "node-1", 1)], {"gpu": device_class})
    request = {"name": "req-0", "exactly": {"deviceClassName": "gpu"}}
    claim: Manifest = {"metadata": {"name": "one"}, "spec": {"devices": {"requests": [request]}}}
    (result,) = allocation.allocate(claim)["devices"]["results"]
    assert result == {"request": "req-0", "driver": "a.example.com", "pool": "node-1", "device": "instance-0"}
    with pytest.raises(AllocationError, match="no device is free"):
        allocation.allocate(claim)
    claim["spec"]["devices"]["requests"][0]["exactly"]["adminAccess"] = True
    with pytest.raises(AllocationError, match="adminAccess"):
        allocation.allocate(claim)


def comparison(case: str, kube_scheduler: str = "", avactl: str = "") -> Comparison:
    outcomes = {
        "kube-scheduler": Outcome(Measurement(100, 2.0, (0.1, 0.2)), kube_scheduler, 0.02),
        "avactl": Outcome(Measurement(100, 1.0, (0.1, 0.1)), avactl, 0.03),
    }
    return Comparison(case, "500Nodes", Size(500, 100), outcomes)


def test_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert comparison("A").verdict == "agrees"
    assert comparison("A", avactl="no node").verdict == "defect: with avactl, no node"
    assert comparison("A", kube_scheduler="no node").verdict == "defect: with kube-scheduler, no node"
    assert comparison("A", "no node", "none").verdict == "defect: no node"
    alike = comparison("A")
    hardly = {**alike.outcomes, "avactl": Outcome(Measurement(1, 10.0, (9.0,)), "", 0.5)}
    slow = alike._replace(outcomes=hardly)
    assert slow.verdict == "defect: avactl binds 0.10 pods/s, kube-scheduler 50.00"
    assert slow._replace(measured=False).verdict == "agrees"
    case, sentence = "Odd", "odd pods wait"
    monkeypatch.setattr("benchmarks.scheduler_perf.comparison.BY_DESIGN", {case: sentence})
    assert comparison(case, avactl="no").verdict == f"differs by design: “{sentence}”"
    assert comparison(case).verdict.startswith("defect")
    assert comparison(case, kube_scheduler="no").verdict.startswith("defect")


def test_table_has_a_row_for_every_case() -> None:
    origin = "c1 | 2026-01-01 | m"
    first = report.merge_table("", ["A", "B"], [comparison("A")], origin)
    ours = f"| A | 500Nodes | 500 | 100 | 50 pods/s | 2.00 | 0.50 | 1.50 | agrees | {KUBERNETES_VERSION} | {origin} |"
    assert first.splitlines()[2:] == [ours, "| B |  |  |  |  |  |  |  | not run yet |  |  |  |  |"]
    page = f"<!-- begin scheduler_perf -->\n{first}\n<!-- end scheduler_perf -->\n| C | of another section |\n"
    second = report.merge_table(page, ["A", "B", "C"], [comparison("B", avactl="no")], origin).splitlines()[2:]
    assert second[0] == ours
    assert second[1].startswith("| B | 500Nodes | 500 | 100 | 50 pods/s |  |  |  | defect: with avactl, no | ")
    assert second[2] == "| C |  |  |  |  |  |  |  | not run yet |  |  |  |  |"
    assert {line.count(" | ") for line in second} == {12}
    short = [comparison(name)._replace(measured=False, workload="5Nodes") for name in ("A", "C")]
    third = report.merge_table(page, ["A", "B", "C"], short, origin).splitlines()[2:]
    assert third[0] == ours
    assert third[2] == f"| C | 5Nodes | 500 | 100 |  |  |  |  | agrees | {KUBERNETES_VERSION} | {origin} |"
    shown = "A (500Nodes, 500 nodes, 100 pods): agrees; pods/s 2.00; p99 0.50; CPU/pod 1.50"
    assert report.show(comparison("A")) == shown


def test_every_configuration_is_known(cases: dict[str, Case]) -> None:
    assert len(cases) > 40
    assert set(NOT_APPLICABLE) | set(BY_DESIGN) < set(cases)
    scheduler = " ".join((ROOT / "docs" / "scheduler.md").read_text(encoding="utf-8").split())
    assert [sentence for sentence in BY_DESIGN.values() if sentence not in scheduler] == []
    assert [name for name in cases if f"\n| {name} |" not in PAGE.read_text(encoding="utf-8")] == []
    for case in cases.values():
        for workload in case.workloads:
            assert unroll(case, workload)
        assert size_of(case, choose_workload(case, case.workloads, 500)).nodes <= 1000


@pytest.fixture(scope="module")
def comparisons(control_plane_binaries: None, cases: dict[str, Case]) -> dict[str, Comparison]:
    return {result.case: result for result in compare_short([cases[name] for name in RUN])}


@pytest.mark.parametrize("name", RUN)
def test_outcomes_agree(comparisons: dict[str, Comparison], name: str) -> None:
    compared = comparisons[name]
    assert compared.verdict == "agrees"
    bound = {outcome.measurement.pods for outcome in compared.outcomes.values()}
    assert len(bound) == 1
    assert min(bound) > 0
