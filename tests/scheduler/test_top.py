"""`avactl top` and `avactl pool`: what a person sees of a cluster, with the rights of that person."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import forked
from tests.scheduler.world import SYSTEM, World

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("scheduler")]

_RBAC = "rbac.authorization.k8s.io/v1"


def avactl(world: World, *arguments: str, kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
    return forked.run([*arguments, "--kubeconfig", str(kubeconfig or world.plane.kubeconfig)])


@pytest.fixture
def busy(world: World) -> Iterator[World]:
    """Three machines, a team with a quota, two pods that run and one that waits."""
    gpus = [{"gpu": "V100", "guaranteed": 4, "borrow": 8, "weight": 1}]
    quota = {"version": 1, "team": "vision", "namespaces": [world.namespace], "gpus": gpus, "shapes": []}
    world.config("avactl-quota-vision", "quota", quota)
    world.node("a", labels={"example.com/block": "b", "example.com/rack": "r1"})
    world.node("b", labels={"example.com/block": "b", "example.com/rack": "r2"})
    world.node("c", unschedulable=True)
    world.ready()
    world.start()
    world.pod("six", 6)
    world.pod("half", notes={"avactl.dev/gpu-share": "0.5"})
    world.bound()
    world.pod("big", 8)
    world.waiting("big", "quota")
    yield world
    world.kube.delete("v1", "ConfigMap", "avactl-quota-vision", SYSTEM)


def test_top_tells_teams_pools_and_jobs(busy: World) -> None:
    done = avactl(busy, "top")
    assert done.returncode == 0, done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[0] == "context avactl · cluster main · 3 machines · 6.5 of 24 GPUs in use · 2 pods run · 1 waits"
    assert "vision V100 6.5 4 2.5 of 8" in lines
    assert "vision any 0 8" in lines
    assert any(line.startswith("v100 V100 3 1 24 6.5 17.5 1 ") for line in lines)
    waits = next(line for line in lines if "/big " in line)
    assert "pending: quota of team vision: requests 8 V100, uses 6.5 of 12" in waits
    data = json.loads(avactl(busy, "top", "-f", "json").stdout)
    assert {team["model"]: (team["used"], team["reclaimable"]) for team in data["teams"]} == {
        "": (0, 0),
        "V100": (6.5, 2.5),
    }
    assert data["pools"][0]["whole"] == 1
    assert [job["name"] for job in data["jobs"]] == ["big", "six", "half"]
    # Which GPUs somebody has is for those who run the platform.
    assert "devices" not in done.stdout + json.dumps(data)


def test_the_picture_shows_the_same(busy: World, tmp_path: Path) -> None:
    file = tmp_path / "v100.svg"
    done = avactl(busy, "pool", "v100", "-o", str(file))
    assert done.stdout == f"{file}: v100\n", done.stderr
    picture = file.read_text(encoding="utf-8")
    assert f"{busy.namespace}/six of vision" in picture
    assert "c: cordoned" in picture
    wrong = avactl(busy, "pool", "v10")
    assert wrong.returncode == 2
    assert "the cluster has no pool `v10`" in wrong.stderr
    assert "did you mean `v100`?" in wrong.stderr


def test_who_may_see_one_namespace_only_is_told_so(busy: World, tmp_path: Path) -> None:
    space = busy.namespace
    home = {"namespace": space, "name": "student"}
    busy.kube.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": home})
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    busy.kube.create({"apiVersion": _RBAC, "kind": "Role", "metadata": home, "rules": rules})
    busy.kube.create(
        {
            "apiVersion": _RBAC,
            "kind": "RoleBinding",
            "metadata": home,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "student"},
            "subjects": [{"kind": "ServiceAccount", **home}],
        }
    )
    mine = tmp_path / "kubeconfig"
    busy.plane.write_kubeconfig(mine, busy.plane.service_account_token(space, "student"))
    refused = avactl(busy, "top", kubeconfig=mine)
    assert refused.returncode == 3
    assert refused.stderr.splitlines() == [
        "avactl: this account is not permitted to read pods of all namespaces",
        "        `-n NAMESPACE` shows the jobs of one namespace",
    ]
    done = avactl(busy, "top", "-n", space, kubeconfig=mine)
    assert done.returncode == 0, done.stderr
    assert f"{space}/six" in done.stdout
    assert "teams and pools are not shown" in done.stdout
    assert avactl(busy, "pool", kubeconfig=mine).returncode == 3
    busy.plane.write_kubeconfig(mine, "expired")
    for command in ("top", "pool", "why x"):
        done = avactl(busy, *command.split(), kubeconfig=mine)
        assert (done.returncode, "rejected the credentials (401 Unauthorized)" in done.stderr) == (3, True), done.stderr
