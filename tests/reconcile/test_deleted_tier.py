"""A cache tier that leaves git: its under-stores stay, and its journal goes only with `deletionPolicy: delete`."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest

from avactl.apply.reconcile.actions import Action
from avactl.apply.reconcile.reporting.report import as_text
from avactl.compiler import Compilation
from avactl.contracts.names import CACHE_NAMESPACE
from tests.kinds.compiling import DIGEST, compiled
from tests.kinds.test_cache_daemon import ASYNC, CLIPS, CLUSTER, PUSH, READ
from tests.reconcile.world import World
from tools.waiting import wait_until

TIER = """\
apiVersion: avactl.dev/v1
kind: CacheTier
metadata: {name: NAME}
spec:
  cluster: lab
  role: write
  deletionPolicy: POLICY
  masters: {replicas: 1, journal: 10Gi}
  workers: {replicas: 2, tiers: [{medium: MEM, quota: 8Gi}]}
  underStores: [{mount: /results, url: "s3://results", secret: results-s3}]
"""
REMOVES = re.compile(
    r"\b(rm|rmr|rmdir|unlink|shred|rmb|deleteUfs|distributedMv|mv|truncate)\b|\bfs delete|-delete\b|\bdelete-objects?\b"
)
"""Words of commands that remove or move data. `alluxio fs unmount` and `free` leave the store as it is."""


def commands(result: Compilation) -> list[str]:
    """Everything that a container of the result can run: its words, and scripts in ConfigMaps, without comments."""
    found: list[str] = []

    def look(value: Any) -> None:
        if isinstance(value, dict):
            for key, each in value.items():
                if key in ("command", "args"):
                    found.append(" ".join(map(str, each)))
                elif isinstance(each, str) and each.startswith("#!"):
                    found.append("\n".join(line for line in each.splitlines() if not line.lstrip().startswith("#")))
                else:
                    look(each)
        elif isinstance(value, list):
            for each in value:
                look(each)

    for manifest in result.manifests:
        if manifest.namespace == CACHE_NAMESPACE:
            look(manifest.body)
    return found


@pytest.mark.parametrize("policy", ["retain", "delete"])
@pytest.mark.parametrize("daemon", ["true", "false"])
def test_no_command_of_a_tier_removes_data(policy: str, daemon: str) -> None:
    cluster = CLUSTER.replace("cache: true", f"cache: {daemon}")
    keeps = f"  deletionPolicy: {policy}\n"
    texts = [READ + keeps + CLIPS, ASYNC + keeps]
    if daemon == "true":  # only the daemon pushes
        texts.append(PUSH.replace("  writeBack:\n", f"{keeps}  writeBack:\n"))
    for text in texts:
        result = compiled(cluster + text)
        found = commands(result)
        assert any("fs mount" in command for command in found)
        assert [command for command in found if REMOVES.search(command)] == []
        volumes = [m.body["spec"] for m in result.manifests if m.kind == "PersistentVolume"]
        assert all(volume["persistentVolumeReclaimPolicy"] == "Retain" for volume in volumes)
        # Nothing runs because the tier is deleted: no hook of a GitOps engine, no finalizer, no preStop but umount.
        text = orjson.dumps([m.body for m in result.manifests]).decode()
        assert "PostDelete" not in text
        assert "helm.sh/hook" not in text
        assert '"finalizers"' not in text
        assert set(re.findall(r'"preStop":\{"exec":\{"command":\["(.*?)"', text)) <= {"umount"}


@pytest.mark.controlplane
@pytest.mark.xdist_group("reconcile")
@pytest.mark.parametrize("policy", ["retain", "delete"])
def test_only_deletion_policy_delete_lets_the_journal_go(world: World, policy: str) -> None:
    name = f"{world.name}-tier"
    claims = [f"journal-{name}-master-0"]
    images = f"registry.example.com/alluxio{DIGEST}"
    platform = world.specs().replace("images: {", f"images: {{alluxio: {images}, ")
    world.commit({"platform.yaml": platform, "tier.yaml": TIER.replace("NAME", name).replace("POLICY", policy)})
    world.once(wait=False)

    def journal() -> list[dict[str, Any]]:
        found = (world.kube.find("v1", "PersistentVolumeClaim", claim, CACHE_NAMESPACE) for claim in claims)
        return [claim for claim in found if claim and "deletionTimestamp" not in claim["metadata"]]

    def jobs() -> set[str]:
        found = world.kube.list("batch/v1", "Job", CACHE_NAMESPACE)
        return {job["metadata"]["name"] for job in found if "deletionTimestamp" not in job["metadata"]}

    (before,) = wait_until(journal)
    ran = jobs()
    assert any(name in job for job in ran)
    world.commit({"tier.yaml": None})
    result = world.once(wait=False)
    steps = {step.title: step.action for step in result.steps}
    masters = f"StatefulSet {CACHE_NAMESPACE}/{name}-master"
    assert steps[masters] is (Action.keep if policy == "retain" else Action.prune), as_text(result, False)
    # No new Job runs: what could remove data would be one.
    wait_until(lambda: not any(name in job for job in jobs()))
    assert jobs() <= ran
    if policy == "delete":
        wait_until(lambda: not journal())
        return
    # Everything else of the tier is gone, and what is left of it stays over more runs.
    assert world.kube.find("apps/v1", "StatefulSet", f"{name}-worker", CACHE_NAMESPACE) is None
    world.once(wait=False)
    assert [claim["metadata"]["uid"] for claim in journal()] == [before["metadata"]["uid"]]
    world.kube.delete("apps/v1", "StatefulSet", f"{name}-master", CACHE_NAMESPACE)
    wait_until(lambda: world.kube.find("v1", "Pod", f"{name}-master-0", CACHE_NAMESPACE) is None)
    # Even then: the claim is not the StatefulSet's.
    assert not journal()[0]["metadata"].get("ownerReferences")
    world.kube.delete("v1", "PersistentVolumeClaim", claims[0], CACHE_NAMESPACE)
