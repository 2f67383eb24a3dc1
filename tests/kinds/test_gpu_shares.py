"""Parts of a GPU for jobs, services and pipelines: what they compile to, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from avactl.contracts.pod_annotations import DEFAULT_CONTAINER
from avactl.program.manifest import templates_of
from tests.kinds.compiling import DIGEST, body, codes, compiled, unchecked

PLATFORM = f"""
kind: Cluster
metadata: {{name: main}}
spec:
  images: {{avactl: registry.example.com/avactl{DIGEST}, kubectl: registry.example.com/kubectl{DIGEST}}}
  daemons: {{scheduler: true}}
---
kind: NodePool
metadata: {{name: t4}}
spec: {{cluster: main, machineType: t4, count: 2, devicesChosenBy: scheduler}}
---
kind: Team
metadata: {{name: vision}}
---
kind: Quota
metadata: {{name: gpus, team: vision}}
spec: {{gpus: [{{gpu: T4, guaranteed: 2}}]}}
"""
JOB = """
---
kind: TrainingJob
metadata: {name: ctr, team: vision}
spec:
  strategy: parameterServer
  framework: tensorflow
  image: registry.example.com/m:1
  command: [./train]
  workers: {replicas: 3, gpus: 0.5, cpu: 1, memory: 2Gi}
  servers: {replicas: 1, cpu: 1, memory: 1Gi}
"""
SERVICE = """
---
kind: ServingDeployment
metadata: {name: detect, team: vision}
spec:
  model: {name: m, version: "1"}
  runtime: {name: custom, image: "registry.example.com/m:1", port: 8080}
  probe: {path: /health}
  replicas: 2
  resources: {gpus: 0.25, cpu: 1, memory: 1Gi}
"""


def container(template: dict[str, Any]) -> dict[str, Any]:
    """The container with the user's program."""
    name = template["metadata"]["annotations"].get(DEFAULT_CONTAINER.name)
    pod = template["spec"]
    every = [*pod["containers"], *pod.get("initContainers", ())]
    found: dict[str, Any] = next((each for each in every if each["name"] == name), every[0])
    return found


@pytest.mark.parametrize(("kind", "name", "share"), [("Job", "ctr-worker", "0.5"), ("Deployment", "detect", "0.25")])
def test_a_part_of_a_gpu_is_the_schedulers(kind: str, name: str, share: str) -> None:
    ((_, template),) = templates_of(body(compiled(PLATFORM + JOB + SERVICE), kind, name, "vision"))
    assert template["metadata"]["annotations"]["avactl.dev/gpu-share"] == share
    assert template["spec"]["nodeSelector"]["avactl.dev/gpu"] == "T4"
    main = container(template)
    assert "nvidia.com/gpu" not in main["resources"]["limits"]
    env = {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in main["env"]}
    field = "metadata.annotations['avactl.dev/devices']"
    assert env["NVIDIA_VISIBLE_DEVICES"] == {"fieldRef": {"fieldPath": field}}
    # TensorFlow and JAX take the whole memory of a GPU by default.
    assert env["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    assert env["XLA_PYTHON_CLIENT_MEM_FRACTION"] == share


def test_pods_without_a_part_have_none() -> None:
    made = compiled(PLATFORM + JOB.replace("gpus: 0.5", "gpus: 1").replace("replicas: 3", "replicas: 2"))
    for name in ("ctr-worker", "ctr-server"):
        ((_, template),) = templates_of(body(made, "Job", name, "vision"))
        assert "avactl.dev/gpu-share" not in template["metadata"]["annotations"]
        assert not {"TF_FORCE_GPU_ALLOW_GROWTH", "XLA_PYTHON_CLIENT_MEM_FRACTION"} & {
            entry["name"] for entry in container(template)["env"]
        }


def test_the_user_s_variables_win() -> None:
    own = JOB.replace("  command:", '  env: {XLA_PYTHON_CLIENT_MEM_FRACTION: "0.4"}\n  command:')
    ((_, template),) = templates_of(body(compiled(PLATFORM + own), "Job", "ctr-worker", "vision"))
    found = [entry for entry in container(template)["env"] if entry["name"] == "XLA_PYTHON_CLIENT_MEM_FRACTION"]
    assert found == [{"name": "XLA_PYTHON_CLIENT_MEM_FRACTION", "value": "0.4"}]


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        # Two machines with one T4 each.
        ("replicas: 4, gpus: 0.5", []),
        ("replicas: 5, gpus: 0.5", ["gang-never-fits"]),
        ("replicas: 2, gpus: 0.75", []),
        # Three do not fit on two GPUs, though the sum is not that far above.
        ("replicas: 3, gpus: 0.67", ["gang-never-fits"]),
        ("replicas: 2, gpus: 1.0", []),
        ("replicas: 2, gpus: 1.5", ["invalid-value"]),
        ("replicas: 2, gpus: 0.005", ["invalid-value"]),
        ("replicas: 2, gpus: 0.333", ["invalid-value"]),
        ("replicas: 2, gpus: -0.5", ["invalid-value"]),
        ("replicas: 2, gpus: 0.5, gpu: H100", ["gpu-not-in-cluster"]),
    ],
)
def test_what_fits(workers: str, expected: list[str]) -> None:
    text = (PLATFORM + JOB).replace("replicas: 3, gpus: 0.5", workers)
    assert codes(unchecked(text)) == expected


def test_parts_count_in_quotas() -> None:
    (problem,) = unchecked(PLATFORM.replace("guaranteed: 2", "guaranteed: 1") + JOB).diagnostics
    assert problem.code == "quota-exceeded"
    assert problem.message == "team vision requests 1.5 T4; its quota allows 1"


ALL_REDUCE = """
---
kind: TrainingJob
metadata: {name: resnet, team: vision}
spec:
  strategy: allReduce
  image: registry.example.com/m:1
  command: [./train]
  workers: {replicas: 2, gpus: 0.5, cpu: 1, memory: 2Gi}
"""


def test_ranks_of_nccl_have_gpus_of_their_own() -> None:
    (problem,) = unchecked(PLATFORM + ALL_REDUCE).diagnostics
    assert problem.code == "invalid-value"
    assert "two of them may get the same GPU" in problem.message
    assert codes(unchecked(PLATFORM + ALL_REDUCE.replace("replicas: 2", "replicas: 1"))) == []
    checked = ALL_REDUCE.replace("replicas: 2", "replicas: 1") + "  healthCheck: {}\n"
    assert "conflicting-keys" in codes(unchecked(PLATFORM + checked))


def test_servers_of_language_models_take_whole_gpus() -> None:
    text = SERVICE.replace(
        'runtime: {name: custom, image: "registry.example.com/m:1", port: 8080}\n  probe: {path: /health}',
        'runtime: {name: vllm, image: "registry.example.com/vllm:1"}',
    )
    said = [problem.message for problem in unchecked(PLATFORM + text).diagnostics]
    assert "vLLM takes the memory of whole GPUs, and a pod requests 0.25 of one" in " ".join(said)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (", devicesChosenBy: scheduler", "", "device-choice"),
        ("devicesChosenBy: scheduler", "devicesChosenBy: kubelet", "device-choice"),
        ("devicesChosenBy: scheduler", "allocation: dra", "invalid-value"),
        ("scheduler: true", "cache: true", "shared-gpu-needs-scheduler"),
    ],
)
@pytest.mark.parametrize("spec", [JOB, SERVICE])
def test_parts_that_nobody_keeps_track_of(spec: str, old: str, new: str, expected: str) -> None:
    assert expected in codes(unchecked(PLATFORM.replace(old, new) + spec))
