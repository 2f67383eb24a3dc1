"""Clusters with GPUs of AMD, alone and beside those of NVIDIA: no pod sees GPUs that it was not given."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from avactl.compiler import Compilation
from avactl.contracts.names import GPU_VARIABLES, injects_devices
from avactl.program.manifest import templates_of
from tests.kinds.compiling import DIGEST, apply, codes, compiled, unchecked
from tests.kinds.tenancy_attempts import KINDS, OWN, container, pod_spec, variable, workload
from tools.controlplane import ControlPlane
from tools.waiting import wait_until

PLATFORM = f"""
kind: Cluster
metadata: {{name: main}}
spec:
  images: {{avactl: registry.example.com/avactl{DIGEST}, kubectl: registry.example.com/kubectl{DIGEST},
    git: registry.example.com/git{DIGEST}}}
  daemons: {{scheduler: true}}
---
kind: Team
metadata: {{name: vision}}
spec: {{members: {{users: [ann]}}}}
---
kind: MachineType
metadata: {{name: mi300x}}
spec: {{gpus: {{model: MI300X, count: 8, memory: 192Gi}}, cpu: 128, memory: 1Ti}}
---
kind: NodePool
metadata: {{name: amd}}
spec: {{cluster: main, machineType: mi300x, count: 2, resourceName: amd.com/gpu}}
---
kind: Quota
metadata: {{name: gpus, team: vision}}
spec: {{gpus: [{{gpu: MI300X, guaranteed: 8}}QUOTA], cpu: 64, memory: 512Gi}}
---
kind: TrainingJob
metadata: {{name: rocm, team: vision}}
spec:
  image: registry.example.com/m:1
  code: {{git: {{url: "https://git.example.com/m.git", ref: "{"1" * 40}"}}}}
  command: [./train]
  workers: {{gpus: 1, gpu: MI300X}}
  checkpoint: {{path: s3://vision/rocm}}
  pod: {{sidecars: [{{name: log, image: registry.example.com/log:1, cpu: 50m, memory: 64Mi}}]}}
---
kind: KubernetesObjects
metadata: {{name: objects, team: vision}}
spec:
  objects:
    - apiVersion: apps/v1
      kind: Deployment
      metadata: {{name: tool}}
      spec:
        selector: {{matchLabels: {{app: tool}}}}
        template:
          metadata: {{labels: {{app: tool}}}}
          spec:
            securityContext: {{runAsNonRoot: true, runAsUser: 1000, seccompProfile: {{type: RuntimeDefault}}}}
            containers:
              - name: main
                image: registry.example.com/tool:1
                resources: {{limits: {{amd.com/gpu: 1}}}}
                securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}
"""
NVIDIA = """
---
kind: NodePool
metadata: {name: v100}
spec: {cluster: main, machineType: v100-pcie-8, count: 2}
---
kind: TrainingJob
metadata: {name: cuda, team: vision}
spec:
  image: registry.example.com/m:1
  command: [./train]
  workers: {gpus: 1, gpu: V100}
  checkpoint: {path: s3://vision/cuda}
"""
ALONE, BESIDE = PLATFORM.replace("QUOTA", ""), PLATFORM.replace("QUOTA", ", {gpu: V100, guaranteed: 8}") + NVIDIA


def containers(result: Compilation, name: str) -> Iterator[dict[str, Any]]:
    """Containers of the pods of the spec or object with this name."""
    for manifest in result.manifests:
        if name in (manifest.item.name, manifest.name):
            for _, template in templates_of(manifest.body):
                yield from (*template["spec"]["containers"], *template["spec"].get("initContainers", ()))


def environment(container: dict[str, Any]) -> dict[str, Any]:
    return {
        each["name"]: each.get("value", "chosen") for each in container.get("env", ()) if injects_devices(each["name"])
    }


@pytest.mark.parametrize("text", [ALONE, BESIDE], ids=["alone", "beside"])
def test_every_container_hides_devices(text: str) -> None:
    result = compiled(text)
    hidden = {"NVIDIA_VISIBLE_DEVICES": "void", "AMD_VISIBLE_DEVICES": "void"}
    found = [*containers(result, "rocm"), *containers(result, "tool")]
    assert {each["name"] for each in found} >= {"worker", "log", "code", "main"}
    for each in found:
        assert environment(each) == hidden, each["name"]
    if text is BESIDE:
        (main,) = (each for each in containers(result, "cuda") if each["name"] == "worker")
        assert environment(main) == {"NVIDIA_VISIBLE_DEVICES": "chosen", "AMD_VISIBLE_DEVICES": "void"}


def test_clusters_without_amd_are_as_before() -> None:
    result = compiled(
        BESIDE.replace("amd.com/gpu", "nvidia.com/gpu").replace(
            "resourceName: nvidia.com/gpu", "allocation: devicePlugin"
        )
    )
    for each in (*containers(result, "rocm"), *containers(result, "tool"), *containers(result, "cuda")):
        assert "AMD_VISIBLE_DEVICES" not in environment(each)


@pytest.mark.parametrize("text", [ALONE, BESIDE], ids=["alone", "beside"])
def test_admission_admits_what_is_compiled_and_refuses_images_that_choose(
    text: str, control_plane_binaries: None
) -> None:
    result = compiled(text)
    with ControlPlane(controller_manager=True, users={"ann": []}) as plane, plane.client() as admin:
        apply(admin, result.manifests)
        admin.wait_for("v1", "ServiceAccount", "default", OWN, until=bool)
        missing = workload("Pod", pod_spec(containers=[container("main", variable("X", "1"))]))
        wait_until(lambda: "gpu-visibility: " in admin.refusal(missing))
        jobs = {manifest.name for manifest in result.manifests if manifest.kind == "Job"}
        assert len(jobs) == 1 + (text is BESIDE)
        for name in jobs:
            admin.wait_for("batch/v1", "Job", name, OWN, until=lambda job: job.get("status", {}).get("active") == 1)
        void = [variable(name, "void") for name in ("NVIDIA_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES")]
        with plane.client(plane.token("ann")) as ann:
            source = [{"configMapRef": {"name": "all-devices"}}]
            for kind in KINDS:
                ann.create(
                    workload(kind, pod_spec(containers=[container("main", *void, envFrom=source)])), dry_run=True
                )
                for env in (void[:1], [void[0], variable("AMD_VISIBLE_DEVICES", "all")], [variable("X", "1")]):
                    refused = workload(kind, pod_spec(containers=[container("main", *env, envFrom=source)]))
                    assert " gpu-" in ann.refusal(deepcopy(refused)), (kind, env)


@pytest.mark.parametrize(
    ("name", "injects"),
    [
        *((name, True) for name in GPU_VARIABLES),
        ("DCU_VISIBLE_DEVICES", True),
        ("SOMETHING_NEW_VISIBLE_DEVICES", True),
        ("CUDA_VISIBLE_DEVICES", False),
        ("ROCR_VISIBLE_DEVICES", False),
        ("HIP_VISIBLE_DEVICES", False),
        ("ASCEND_RT_VISIBLE_DEVICES", False),
        ("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES", False),
        ("JAX_CUDA_VISIBLE_DEVICES", False),
        ("GPU_DEVICE_ORDINAL", False),
        ("ZE_AFFINITY_MASK", False),
        ("X_CUDA_VISIBLE_DEVICES", True),
    ],
)
def test_variables_in_specs(name: str, injects: bool) -> None:
    """Those of runtimes are refused, those of libraries are not."""
    assert injects_devices(name) == injects
    text = ALONE.replace("command: [./train]", f"command: [./train]\n  env: {{{name}: all}}")
    assert (codes(unchecked(text)) != []) == injects


@pytest.mark.parametrize(("model", "resource"), [("GAUDI3", "habana.ai/gaudi"), ("TPU-V5E", "google.com/tpu")])
def test_pods_with_other_devices_get_none_of_nvidia(model: str, resource: str) -> None:
    text = PLATFORM.replace("QUOTA", "").replace("MI300X", model).replace("amd.com/gpu", resource)
    result = compiled(text)
    found = [*containers(result, "rocm"), *containers(result, "tool")]
    (worker,) = (each for each in found if each["name"] == "worker")
    assert worker["resources"]["limits"][resource] == "1"
    for each in found:
        assert environment(each) == {"NVIDIA_VISIBLE_DEVICES": "void"}, each["name"]
