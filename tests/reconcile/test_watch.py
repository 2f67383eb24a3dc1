"""`--watch`: a branch is followed, drift is put back, a broken commit changes nothing, another replica takes over."""

from __future__ import annotations

import asyncio
import signal
import socket

import httpx
import pytest

from avactl.apply.reconcile.options import ReconcileOptions
from avactl.apply.reconcile.reconciler import Reconciler
from avactl.kube import access
from avactl.kube.client import Client
from tests.reconcile.world import World
from tools.waiting import patience, wait_until

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("reconcile")]


def test_a_branch_is_followed_and_drift_put_back(world: World) -> None:
    namespace, name = f"{world.name}-system", "avactl-policy"
    world.commit({"platform.yaml": world.specs()})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ("--watch", "--repo", str(world.repository), "--branch", "main", "--interval", "1s")
    process = world.start(*options, "--listen", f"127.0.0.1:{port}", path=".")

    def log() -> str:
        return (world.folder / "log").read_text()

    def policy() -> dict[str, str]:
        found = world.kube.find("v1", "ConfigMap", name, namespace)
        return found["data"] if found else {}

    def metric(text: str) -> bool:
        return text in httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text

    wait_until(policy, details=log)
    wait_until(lambda: metric("avactl_reconcile_leader 1.0"), details=log)
    before = policy()
    # A value changed, and an object deleted by hand.
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}}
    wait_until(lambda: metric('result="ok"'), details=log)
    world.kube.patch({**body, "data": {"policy.json": "{}"}}, field_manager="kubectl-edit")
    wait_until(lambda: policy() == before, details=log)
    world.kube.delete("v1", "ConfigMap", name, namespace)
    wait_until(lambda: policy() == before, details=log)
    wait_until(lambda: metric('avactl_reconcile_drift_total{kind="ConfigMap"}'), details=log)
    # A new commit.
    world.replace("platform.yaml", "guaranteed: 4", "guaranteed: 3")
    pool = ("v1", "ConfigMap", "avactl-quota-vision", namespace)
    wait_until(lambda: '"guaranteed": 3' in str(world.kube.get(*pool)["data"]), details=log)
    # One that does not compile changes nothing, and is told.
    broken = world.replace("platform.yaml", "guaranteed: 3", "garanteed: 2")
    wait_until(lambda: metric("avactl_reconcile_commit_broken 1.0"), details=log)
    assert broken in log()
    assert '"guaranteed": 3' in str(world.kube.get(*pool)["data"])
    # Another replica stands by, and takes over when the first one ends in order.
    world.replace("platform.yaml", "garanteed: 2", "guaranteed: 2")
    world.start(*options, path=".", log="second")
    wait_until(lambda: "standing by" in (world.folder / "second").read_text(), details=log)
    process.send_signal(signal.SIGTERM)
    assert process.wait(patience()) == 0, log()
    wait_until(lambda: '"leading"' in (world.folder / "second").read_text(), details=log)
    world.replace("platform.yaml", "guaranteed: 2", "guaranteed: 1")
    wait_until(lambda: '"guaranteed": 1' in str(world.kube.get(*pool)["data"]), details=log)
    # A run by hand asks for the lease, and gets it; then the replica goes on.
    assert asyncio.run(_hold_lease(world))
    second = world.folder / "second"
    assert "giving way to a run by hand" in second.read_text()
    wait_until(lambda: second.read_text().count('"leading"') == 2, details=log)
    world.replace("platform.yaml", "guaranteed: 1", "guaranteed: 4")
    wait_until(lambda: '"guaranteed": 4' in str(world.kube.get(*pool)["data"]), details=log)


async def _hold_lease(world: World) -> bool:
    async with Client(access.find(world.kubeconfig)) as client:
        reconciler = Reconciler(client, ReconcileOptions(namespace=f"{world.name}-system", inventory="lab"))
        async with reconciler.lease.hold(patience=30.0):
            return reconciler.lease.leading()
