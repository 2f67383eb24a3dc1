"""A team's namespace on a plane of its own, with the controller of LeaderWorkerSets and DisaggregatedSets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from avactl.apply.reconcile.role_sets import comparable_value
from avactl.change.plan.snapshot.loader import strip_objects
from avactl.contracts import names
from avactl.contracts.pod_annotations import GANG_SIZE
from avactl.program.manifest import Manifest
from tests.kinds.compiling import compiled
from tests.scheduler.world import SPECS, World
from tools.controlplane import ControlPlane
from tools.leaderworkerset import LeaderWorkerSets
from tools.programs import require_programs

TEAM = """
---
kind: Team
metadata: {name: vision}
spec: {members: {groups: [vision]}}
"""


def specs(text: str) -> list[Manifest]:
    """The objects of a platform with the controller, a team, and these specs."""
    platform = SPECS.replace("daemons: {scheduler: true}\n", "daemons: {scheduler: true}\n  leaderWorkerSet: {}\n")
    return [each for each in compiled(platform + TEAM + text).manifests if not each.patch]


@contextmanager
def groups(folder: Path) -> Iterator[World]:
    """Yield the world, whose namespace is the team's."""
    require_programs("openssl", purpose="webhooks of LeaderWorkerSets")
    with ControlPlane(controller_manager=True, kwok=True) as plane, plane.client() as kube:
        world = World(plane, kube, folder)
        with LeaderWorkerSets(plane, kube, folder):
            world.namespace = "vision"
            yield world
            for process in world.running:
                process.kill()
                process.wait()


def seen(pods: Iterable[dict[str, Any]], mark: str) -> dict[tuple[str, ...], Any]:
    """Return what the scheduler reads of pods of groups, by their label `mark` and their numbers."""
    found: dict[tuple[str, ...], Any] = {}
    for pod in strip_objects({"pods": list(pods)})["pods"]:
        labels, spec = pod["metadata"]["labels"], dict(pod["spec"])
        spec.pop("nodeName", None)
        spec.pop("terminationGracePeriodSeconds")  # 30 s by default
        spec["tolerations"] = sorted(spec["tolerations"], key=str)
        role = labels["app.kubernetes.io/component"]
        size = (pod["metadata"].get("annotations") or {}).get(GANG_SIZE.name)
        owner = pod["metadata"]["ownerReferences"][0]["kind"]
        key = (labels[mark], labels[names.LWS_GROUP_INDEX], labels[names.LWS_INDEX])
        found[key] = (role, size, owner, comparable_value(spec))
    return found


def uids(world: World) -> dict[str, str]:
    """Return the pods of the namespace."""
    return {name: pod["metadata"]["uid"] for name, pod in world.pods().items()}
