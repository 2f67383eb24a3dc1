"""Specs that depend on which GPUs a pod gets: allowed where the scheduler's choice takes effect, else refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kinds.compiling import DIGEST, body, compiled, unchecked

PLATFORM = f"""
kind: Cluster
metadata: {{name: main}}
spec:
  images: {{avactl: registry.example.com/a{DIGEST}}}
  daemons: {{scheduler: true}}
---
kind: NodePool
metadata: {{name: gpus}}
spec: {{cluster: main, machineType: TYPE, count: 3POOL}}
---
kind: Team
metadata: {{name: vision}}
---
"""
JOB = """kind: TrainingJob
metadata: {name: net, team: vision}
spec: {image: "train:1", command: [train], workers: {gpus: GPUS, link: LINK, linkPolicy: required}}
"""
SHARE = """kind: Workspace
metadata: {name: lin, team: vision}
spec: {user: ann, image: "editor:1", gpus: 0.5}
"""
SCHEDULER, KUBELET, DRA = ", devicesChosenBy: scheduler", ", devicesChosenBy: kubelet", ", allocation: dra"


def platform(machine: str, pool: str) -> str:
    return PLATFORM.replace("TYPE", machine).replace("POOL", pool)


def errors(text: str) -> list[Any]:
    return [each for each in unchecked(text.removesuffix("---\n")).diagnostics if each.severity == "error"]


@pytest.mark.parametrize(
    ("machine", "gpus", "link", "certain"),
    [
        ("v100-pcie-8", 4, "pcieSwitch", False),
        ("v100-pcie-8", 4, "socket", False),
        ("dgx1-v100", 4, "nvlink", False),
        ("dgx1-v100", 8, "nvlink", True),
        ("v100-pcie-8", 8, "node", True),
        ("h100-sxm-8", 4, "nvlink", True),
        ("h100-sxm-8", 4, "socket", False),
    ],
)
@pytest.mark.parametrize("pool", ["", SCHEDULER, KUBELET, DRA])
def test_a_required_link(machine: str, gpus: int, link: str, certain: bool, pool: str) -> None:
    found = errors(platform(machine, pool) + JOB.replace("GPUS", str(gpus)).replace("LINK", link))
    if certain or pool in (SCHEDULER, DRA):
        assert not found
    else:
        (problem,) = found
        assert problem.code == "device-choice"
        assert "allocation: dra" in problem.hint
        assert ("devicesChosenBy: scheduler" in problem.hint) is (pool == "")


@pytest.mark.parametrize("pool", ["", SCHEDULER, KUBELET])
def test_a_share(pool: str) -> None:
    found = errors(platform("a10", pool) + SHARE)
    assert [each.code for each in found] == ([] if pool == SCHEDULER else ["device-choice"])
    # A repository of an earlier release has no such line: the refusal says which, and how to know whether it is true.
    for problem in found:
        assert ("`devicesChosenBy: scheduler`" in problem.hint) is (pool == "")
        assert ("`avactl doctor` checks" in problem.hint) is (pool == "")


@pytest.mark.parametrize(
    ("pool", "code"),
    [
        (DRA + SCHEDULER, "conflicting-keys"),
        (", resourceName: amd.com/gpu" + SCHEDULER, "invalid-value"),
        (", resourceName: amd.com/gpu" + KUBELET, None),
    ],
)
def test_a_choice_that_cannot_be(pool: str, code: str | None) -> None:
    assert [each.code for each in errors(platform("a10", pool))] == ([] if code is None else [code])


def test_a_choice_of_a_scheduler_that_does_not_run() -> None:
    text = platform("a10", SCHEDULER).replace("scheduler: true", "scheduler: false")
    assert [each.code for each in errors(text)] == ["conflicting-keys"]


def test_pools_of_one_resource_agree() -> None:
    other = "kind: NodePool\nmetadata: {name: b}\nspec: {cluster: main, machineType: a10, count: 1%s}\n"
    text = platform("a10", KUBELET) + other
    assert [each.code for each in errors(text % "")] == ["mixed-allocation"]
    assert not errors(text % KUBELET)
    assert not errors(text % DRA)
    assert not errors(text % ", resourceName: nvidia.com/gpu-b")


def test_pods_whose_gpus_the_kubelet_chooses_name_none() -> None:
    """Without the variable, that of the plugin holds; an empty one would take it away."""
    job = JOB.replace("GPUS", "1").replace("LINK", "any")
    objects = """kind: KubernetesObjects
metadata: {name: own, team: vision}
spec:
  objects:
    - apiVersion: v1
      kind: Pod
      metadata: {name: own}
      spec:
        containers:
          - &main
            name: main
            image: "train:1"
            resources: {limits: {cpu: 1, memory: 1Gi, nvidia.com/gpu: 1}}
            securityContext:
              allowPrivilegeEscalation: false
              capabilities: {drop: [ALL]}
              runAsNonRoot: true
              seccompProfile: {type: RuntimeDefault}
          - {<<: *main, name: side, resources: {limits: {cpu: 1, memory: 1Gi}}}
"""
    for pool, chosen in (("", True), (SCHEDULER, True), (KUBELET, False)):
        result = compiled(platform("a10", pool) + job + "---\n" + objects)
        worker = body(result, "Job", "net-worker", "vision")["spec"]["template"]["spec"]["containers"][0]
        main, side = body(result, "Pod", "own", "vision")["spec"]["containers"]
        for container in (worker, main):
            variables = {each["name"]: each for each in container.get("env") or ()}
            assert ("NVIDIA_VISIBLE_DEVICES" in variables) is chosen
        assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in side["env"]
        (rule,) = [
            each
            for manifest in result.manifests
            if manifest.kind == "ValidatingAdmissionPolicy" and manifest.name == "avactl-team-pods"
            for each in manifest.body["spec"]["validations"]
            if each["message"].startswith("gpu-visibility") or "gpu-visibility" in each["message"]
        ]
        assert ("nvidia.com/gpu" in rule["expression"]) is not chosen
