"""`avactl diff --live` tells what the reconciler would do, and does nothing."""

from __future__ import annotations

import subprocess

import orjson
import pytest

from tests import forked
from tests.proxy import Proxy
from tests.reconcile.world import World

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("reconcile")]


def test_diff_live_reads_the_cluster_and_writes_nothing(world: World) -> None:
    world.commit({"platform.yaml": world.specs()})
    assert world.once().complete
    with Proxy(world.plane, world.folder) as proxy:

        def diff(*options: str) -> subprocess.CompletedProcess[str]:
            words = ["diff", str(world.repository), "--live", *options]
            return forked.run(
                [*words, "--kubeconfig", str(proxy.kubeconfig), "--cluster", "lab"], env=world.environment()
            )

        same = diff("--exit-code")
        assert same.returncode == 0, same.stdout + same.stderr
        name = {"name": "avactl-policy", "namespace": f"{world.name}-system"}
        world.kube.patch(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": name, "data": {"policy.json": "{}"}},
            field_manager="kubectl-edit",
        )
        changed = diff()
        assert changed.returncode == 0, changed.stdout + changed.stderr
        assert "ConfigMap" in changed.stdout
        assert "kubectl-edit" in changed.stdout
        assert diff("--exit-code").returncode == 4
        assert orjson.loads(diff("--format", "json").stdout)["dryRun"] is True
        assert proxy.writes() == 0, proxy.counts
    assert diff("--base", "HEAD~1").returncode == 2
