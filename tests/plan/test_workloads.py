"""Pods made for a plan are those that the real controllers make of the same objects."""

from __future__ import annotations

from typing import Any

import pytest

from avactl.change.plan.snapshot.loader import strip_objects
from avactl.change.plan.workloads import KINDS, WorkloadMaker, find_surroundings, find_workloads
from tests.kinds.compiling import DIGEST, apply, unchecked
from tests.plan.arena import PLATFORM, TEAMS, Arena

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("plan")]

IMAGE = f"registry.example.com/x{DIGEST}"
SPECS = f"""{PLATFORM.replace("images: {", f"images: {{tensorboard: registry.example.com/t{DIGEST}, ").strip()}
---
kind: NodePool
metadata: {{name: claims}}
spec: {{cluster: main, machineType: h100-sxm-8, count: 4, allocation: dra}}
---
{
    "---".join(
        f'''
kind: Team
metadata: {{name: {name}}}
'''
        for name in TEAMS
    )
}
---
kind: Quota
metadata: {{name: gpus, team: alpha}}
spec: {{gpus: [{{gpu: V100, guaranteed: 64}}, {{gpu: T4, guaranteed: 8}}, {{gpu: H100, guaranteed: 16}}]}}
---
kind: TrainingJob
metadata: {{name: reduce, team: alpha}}
spec:
  strategy: allReduce
  image: {IMAGE}
  command: [python, x.py]
  workers: {{replicas: 2, gpus: 4, gpu: V100, link: socket, linkPolicy: required}}
  tensorboard: {{}}
  priority: high
---
kind: TrainingJob
metadata: {{name: ranks, team: alpha}}
spec: {{strategy: mpi, image: {IMAGE}, command: [./x], workers: {{replicas: 2, gpus: 1, gpu: V100}}, priority: low}}
---
kind: TrainingJob
metadata: {{name: claims, team: alpha}}
spec: {{image: {IMAGE}, command: [python, x.py], workers: {{gpus: 2, gpu: H100}}, preemptible: false}}
---
kind: ServingDeployment
metadata: {{name: api, team: alpha}}
spec:
  model: {{name: m, version: "1"}}
  runtime: {{name: custom, image: {IMAGE}, port: 8080}}
  probe: {{path: /}}
  resources: {{gpus: 1, gpu: T4}}
  replicas: 2
---
kind: Workspace
metadata: {{name: desk, team: alpha}}
spec: {{user: a@example.com, image: {IMAGE}, gpus: 0.5, gpu: T4}}
"""
_OWN = ("controller-uid", "batch.kubernetes.io/controller-uid", "controller-revision-hash", "pod-template-hash")
"""Labels whose values nobody can know before."""


def seen(pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What scheduling reads of pods, without what only the cluster can know: names and moments."""
    found = []
    for pod in strip_objects({"pods": pods})["pods"]:
        metadata, spec = pod["metadata"], dict(pod["spec"])
        labels = {key: value for key, value in metadata["labels"].items() if key not in _OWN}
        spec["tolerations"] = sorted(spec["tolerations"], key=str)
        found.append(
            {
                "namespace": metadata["namespace"],
                "labels": labels,
                "annotations": metadata.get("annotations"),
                "owner": metadata["ownerReferences"][0]["kind"],
                "spec": spec,
                "claims": len(pod["status"].get("resourceClaimStatuses", ())),
            }
        )
    return sorted(found, key=lambda each: str(sorted(each["labels"].items())))


def test_pods_are_as_the_controllers_make_them(arena: Arena) -> None:
    result = unchecked(SPECS)
    assert result.ok, result.diagnostics
    maker = WorkloadMaker(find_surroundings(result.manifests, "main"), "", "x")
    works = [work for id_, work in find_workloads(result.manifests, "main").items() if id_.namespace == "alpha"]
    mine = [made.pod for work in works for made in maker.pods(work, range(work.count()))]
    apply(arena.kube, result.manifests)
    try:
        arena.until(lambda: len(arena.pods()) == len(mine) and _claimed(arena))
        theirs = list(arena.pods().values())
        # A pod takes its default of 30 s where the template says none.
        for pod in theirs:
            pod["spec"].pop("terminationGracePeriodSeconds")
        for pod in mine:
            pod["spec"] = {k: v for k, v in pod["spec"].items() if k != "terminationGracePeriodSeconds"}
        assert seen(mine) == seen(theirs)
    finally:
        for manifest in result.manifests:
            if manifest.kind in KINDS:
                arena.kube.delete(manifest.body["apiVersion"], manifest.kind, manifest.name, manifest.namespace)


def _claimed(arena: Arena) -> bool:
    pods = arena.pods().values()
    return all(pod["status"].get("resourceClaimStatuses") for pod in pods if pod["spec"].get("resourceClaims"))
