"""A container sees the GPUs that it was given, in every kind that runs pods."""

from __future__ import annotations

from typing import Any

import pytest

from avactl.contracts import names
from avactl.program import registry
from avactl.program.manifest import templates_of
from tests.kinds.compiling import DIGEST, compiled

PLATFORM = f"""
kind: Cluster
metadata: {{name: main}}
spec:
  images:
    avactl: registry.example.com/a{DIGEST}
    git: registry.example.com/g{DIGEST}
    fetch: registry.example.com/f{DIGEST}
    kubectl: registry.example.com/k{DIGEST}
  daemons: {{scheduler: true, delivery: true}}
  delivery: {{repository: "https://git.example.com/specs.git", secret: git}}
---
kind: NodePool
metadata: {{name: a10}}
spec: {{cluster: main, machineType: a10, count: 3}}
---
kind: Team
metadata: {{name: vision}}
---
"""
SPECS = {
    "TrainingJob": """
  image: train:1
  code: {git: {url: "https://git.example.com/a.git", ref: 9fceb02d0ae598e95dc970b74767f19372d61af8}}
  workers: {gpus: GPUS}
""",
    "Workspace": """
  user: ann
  image: editor:1
  gpus: GPUS
""",
    "Pipeline": """
  trigger: {schedule: {cron: "0 3 * * *"}}
  train: {template: {image: "train:1", workers: {gpus: GPUS}, checkpoint: {path: "s3://models/ckpt"}}}
  validation: {image: "check:1", metrics: [{name: auc, min: 0.7}]}
  publish: {to: "s3://models/published"}
""",
    "ServingDeployment": """
  model: {name: net, version: "1", url: "s3://models/net"}
  runtime: {name: triton, image: "triton:1"}
  resources: {gpus: GPUS}
""",
}
"""A spec of each kind that runs pods, with GPUS where the number of GPUs stands."""
WITHOUT = {
    "ProcessingJob": """
  dataset: street
  from: raw
  to: square
  steps: [{rotate: 90}]
  image: process:1
---
kind: Dataset
metadata: {name: street, team: vision}
spec:
  size: 1Gi
  secret: photos-s3
  versions: [{name: raw, url: "s3://photos/raw"}, {name: square, url: "s3://photos/square"}]
""",
}
"""A spec of each kind that has no GPUs."""
CHOSEN = {"fieldRef": {"fieldPath": "metadata.annotations['avactl.dev/devices']"}}


def seen(kind: str, gpus: str, old: str = "", new: str = "") -> dict[str, Any]:
    """NVIDIA_VISIBLE_DEVICES of each container, by name; None where it is not set."""
    spec = {**SPECS, **WITHOUT}[kind].replace("GPUS", gpus)
    text = PLATFORM + f"kind: {kind}\nmetadata: {{name: net, team: vision}}\nspec:{spec}"
    assert old in text
    found = {}
    for manifest in compiled(text.replace(old, new) if old else text).manifests:
        step = manifest.body["metadata"].get("annotations", {}).get(names.PIPELINE_STEP, names.TRAINS)
        if manifest.item.kind != kind or step != names.TRAINS:
            continue
        for _, template in templates_of(manifest.body):
            spec = template["spec"]
            for container in (*spec.get("initContainers", ()), *spec.get("containers", ())):
                env = {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}
                found[container["name"]] = env.get("NVIDIA_VISIBLE_DEVICES")
    assert found
    return found


def test_every_kind_with_pods_is_tried() -> None:
    assert {*SPECS, *WITHOUT} == set(registry.workload_kinds())


@pytest.mark.parametrize("kind", WITHOUT)
def test_pods_without_gpus_see_none(kind: str) -> None:
    assert set(seen(kind, "0").values()) == {"void"}


@pytest.mark.parametrize("kind", SPECS)
def test_the_main_container_sees_what_the_scheduler_chose_and_the_others_nothing(kind: str) -> None:
    *helpers, main = seen(kind, "1").values()
    assert main == CHOSEN
    assert helpers == ["void"] * len(helpers)
    assert set(seen(kind, "0").values()) == {"void"}


@pytest.mark.parametrize("kind", SPECS)
def test_the_driver_or_the_device_plugin_chooses_elsewhere(kind: str) -> None:
    *_, by_claim = seen(kind, "1", "count: 3}", "count: 3, allocation: dra}").values()
    assert by_claim == "void"  # the DRA driver injects devices by CDI, whatever the variable says
    *_, by_plugin = seen(kind, "1", "scheduler: true", "scheduler: false").values()
    assert by_plugin is None
    *_, by_kubelet = seen(kind, "1", "count: 3}", "count: 3, devicesChosenBy: kubelet}").values()
    assert by_kubelet is None


def test_a_share_of_a_gpu_is_chosen_too() -> None:
    chosen = seen("Workspace", "0.5", "count: 3}", "count: 3, devicesChosenBy: scheduler}")
    assert list(chosen.values()) == [CHOSEN]
