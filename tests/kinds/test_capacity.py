"""Capacity: what can never run is told once, with the remedy; what may run is not."""

from __future__ import annotations

from typing import Any

import pytest

from avactl.diagnostics import Diagnostic
from avactl.program.capacity.capacity import gpu_demand, gpu_model, gpu_problems, running_roles
from avactl.program.program import Item, Program
from avactl.spec.schema.compute import Compute, GpuLinkCompute
from tests.kinds.compiling import compiled, unchecked

PLATFORM = """
kind: Cluster
metadata: {name: main}
---
kind: Cluster
metadata: {name: other}
---
kind: NodePool
metadata: {name: v100}
spec: {cluster: main, machineType: v100-pcie-8, count: 4}
---
kind: NodePool
metadata: {name: dgx}
spec: {cluster: main, machineType: dgx1-v100, autoscaling: {min: 0, max: 2}}
---
kind: NodePool
metadata: {name: k80}
spec: {cluster: main, machineType: k80-2x, nodes: [a, b, c]}
---
kind: MachineType
metadata: {name: much-cpu}
spec: {gpus: {model: P40, count: 1, memory: 24Gi}, cpu: 32, memory: 100Gi}
---
kind: MachineType
metadata: {name: much-memory}
spec: {gpus: {model: P40, count: 1, memory: 24Gi}, cpu: 16, memory: 200Gi}
---
kind: NodePool
metadata: {name: p40-a}
spec: {cluster: main, machineType: much-cpu, count: 1}
---
kind: NodePool
metadata: {name: p40-b}
spec: {cluster: main, machineType: much-memory, count: 1}
---
kind: NodePool
metadata: {name: t4}
spec: {cluster: other, machineType: t4, count: 1}
---
kind: Team
metadata: {name: vision}
spec: {clusters: [main]}
---
kind: Workspace
metadata: {name: desk, team: vision}
spec: {user: ada, image: "registry.example.com/jupyter:1"}
"""


@pytest.fixture(scope="module")
def program() -> Program:
    return compiled(PLATFORM).program


def ask(program: Program, replicas: int = 1, **compute: Any) -> list[Diagnostic]:
    """The problems of pods on cluster main."""
    item = program.get("Workspace", "desk", "vision")
    return gpu_problems(item, program, GpuLinkCompute(**compute), ("spec",), replicas)


def code(problems: list[Diagnostic]) -> str:
    return ", ".join(problem.code for problem in problems)


@pytest.mark.parametrize(
    "compute",
    [
        {},
        {"cpu": "2000"},  # pods without GPUs may run on machines that nobody declares
        {"gpus": 8, "gpu": "V100", "replicas": 6},
        {"gpus": 4, "gpu": "V100", "replicas": 12},
        {"gpus": 2, "gpu": "K80", "replicas": 6},
        {"gpus": 8, "pool": "v100", "replicas": 4},
        {"gpus": 8, "gpu": "V100", "link": "nvlink", "replicas": 6},  # preferred is not required
        {"gpus": 8, "gpu": "V100", "link": "nvlink", "link_policy": "required", "replicas": 2},
        {"gpus": 4, "gpu": "V100", "link": "nvlink", "link_policy": "required", "replicas": 4, "pool": "dgx"},
        {"pool": "k80", "cpu": "26", "replicas": 6},
    ],
)
def test_what_fits_has_no_problem(program: Program, compute: dict[str, Any]) -> None:
    problems = ask(program, **compute)
    assert [problem for problem in problems if problem.severity == "error"] == []


@pytest.mark.parametrize(
    ("compute", "expected", "words"),
    [
        ({"gpus": 1, "gpu": "v100"}, "gpu-not-in-cluster", "did you mean `V100`?"),
        ({"gpus": 1, "gpu": "T4"}, "gpu-not-in-cluster", "cluster `other` has T4"),
        ({"gpus": 1, "gpu": "H100"}, "gpu-not-in-cluster", "it has `K80`, `P40` or `V100`"),
        ({"gpus": 1, "gpu": "V100", "pool": "k80"}, "gpu-not-in-cluster", "choose pool `dgx` or `v100`"),
        ({"gpus": 1}, "ambiguous-reference", "`K80`, `P40` or `V100`"),
        ({"gpus": 1, "pool": "t4"}, "other-cluster", "pools of main: `dgx`, `k80`, `p40-a`, `p40-b` or `v100`"),
        ({"gpus": 9, "gpu": "V100"}, "pod-never-fits", "write `gpus: 8`"),
        ({"gpus": 1, "gpu": "V100", "cpu": "77"}, "pod-never-fits", "write `cpu: 76`"),
        ({"gpus": 1, "gpu": "V100", "memory": "1Ti"}, "pod-never-fits", "write `memory: 720Gi`"),
        ({"gpus": 1, "gpu": "P40", "cpu": "30", "memory": "200Gi"}, "pod-never-fits", "write `memory: 100Gi`"),
        ({"pool": "k80", "memory": "241Gi"}, "pod-never-fits", "write `memory: 240Gi`"),
        ({"gpus": 8, "gpu": "V100", "replicas": 7}, "gang-never-fits", "at most 6 fit at once"),
        ({"gpus": 5, "gpu": "V100", "replicas": 7}, "gang-never-fits", "at most 6 fit at once"),
        ({"gpus": 8, "pool": "v100", "replicas": 5}, "gang-never-fits", "add machines to pool v100"),
        ({"gpus": 1, "gpu": "K80", "cpu": "30", "replicas": 4}, "gang-never-fits", "limited by CPU"),
        ({"gpus": 2, "gpu": "V100", "memory": "400Gi", "replicas": 7}, "gang-never-fits", "limited by memory"),
        ({"gpus": 4, "gpu": "K80", "link": "pcieSwitch", "link_policy": "required"}, "link-unreachable", "`gpus: 2`"),
        (
            {"gpus": 2, "gpu": "K80", "link": "nvlink", "link_policy": "required"},
            "link-unreachable",
            "`link: pcieSwitch`",
        ),
        (
            {"gpus": 8, "gpu": "V100", "link": "nvlink", "link_policy": "required", "replicas": 3},
            "gang-never-fits",
            "at most 2 fit at once",
        ),
        ({"gpus": 1, "gpu": "V100", "rdma": True}, "rdma-unavailable", "rdmaResource"),
    ],
)
def test_what_never_fits_is_told_once(program: Program, compute: dict[str, Any], expected: str, words: str) -> None:
    problems = ask(program, **compute)
    assert code(problems) == expected
    assert words in f"{problems[0].message} | {problems[0].hint}"


def test_a_required_link_needs_somebody_who_looks_at_links(program: Program) -> None:
    required: dict[str, Any] = {"gpu": "V100", "link": "pcieSwitch", "link_policy": "required"}
    (problem,) = ask(program, gpus=2, **required)
    assert (problem.code, problem.severity) == ("link-not-enforced", "warning")
    assert ask(program, gpus=1, **required) == []
    all_of_a_machine: dict[str, Any] = {**required, "link": "nvlink", "pool": "dgx"}
    assert ask(program, gpus=8, **all_of_a_machine) == []


def test_pools_that_give_gpus_in_different_ways() -> None:
    text = PLATFORM.replace("count: 4}", "count: 4, allocation: dra}")
    program = compiled(text).program
    (problem,) = ask(program, gpus=1, gpu="V100")
    assert problem.code == "mixed-allocation"
    assert [note.text for note in problem.notes] == ["pool dgx: `nvidia.com/gpu`", "pool v100: ResourceClaims (`dra`)"]
    assert ask(program, gpus=1, gpu="V100", pool="v100") == []


def test_gpu_model_of_pods(program: Program) -> None:
    assert gpu_model(program, "main", Compute(gpus=1, gpu="V100")) == "V100"
    assert gpu_model(program, "main", Compute(gpus=1, pool="k80")) == "K80"
    assert gpu_model(program, "other", Compute(gpus=1)) == "T4"
    assert gpu_model(program, "main", Compute(gpus=1)) is None
    assert gpu_model(program, "other", Compute()) is None


SPECS = """
---
kind: TrainingJob
metadata: {name: ctr, team: vision}
spec:
  framework: tensorflow
  strategy: parameterServer
  image: registry.example.com/train:1
  workers: {replicas: 4, gpus: 2, gpu: K80}
  servers: {replicas: 2, cpu: 8}
  evaluator: {gpus: 1, gpu: V100}
---
kind: TrainingJob
metadata: {name: elastic, team: vision}
spec:
  strategy: elastic
  image: registry.example.com/train:1
  workers: {replicas: 2, min: 1, max: 4, gpus: 1, gpu: V100}
  %s
---
kind: ServingDeployment
metadata: {name: detector, team: vision}
spec:
  model: {name: detector, version: "1"}
  runtime: {name: tensorflowServing, image: tensorflow/serving:2.19.0-gpu}
  resources: {gpus: 1, gpu: V100}
  replicas: {min: 2, max: 5}
---
kind: Workspace
metadata: {name: half, team: vision}
spec: {user: ada, image: "registry.example.com/jupyter:1", gpus: %s, gpu: K80, running: %s}
"""


def items(suspended: str = "", gpus: str = "1", running: str = "true") -> tuple[Program, dict[str, Item]]:
    program = unchecked(PLATFORM + SPECS % (suspended, gpus, running)).program
    return program, {item.name: item for item in program.items}


def test_demand_by_cluster_and_model() -> None:
    program, found = items()
    assert gpu_demand(found["ctr"], program) == {("main", "K80"): 8, ("main", "V100"): 1}
    assert gpu_demand(found["elastic"], program) == {("main", "V100"): 4}
    assert gpu_demand(found["elastic"], program, least=True) == {("main", "V100"): 1}
    assert gpu_demand(found["detector"], program) == {("main", "V100"): 5}
    assert gpu_demand(found["detector"], program, least=True) == {("main", "V100"): 2}
    assert gpu_demand(found["half"], program) == {("main", "K80"): 1}
    assert [role.path[-1] for role in running_roles(found["ctr"])] == ["workers", "servers", "evaluator"]


def test_demand_of_what_does_not_run_is_nothing() -> None:
    program, found = items(suspended="suspended: true", running="false")
    assert gpu_demand(found["elastic"], program) == {}
    assert gpu_demand(found["half"], program) == {}


def test_a_shared_gpu_counts_as_its_share() -> None:
    program, found = items(gpus="0.25")
    assert gpu_demand(found["half"], program) == {("main", "K80"): 0.25}
