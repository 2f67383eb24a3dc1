"""A plane of the test's own: failures, restarts, and what is left behind."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from avactl.kube.client import UnreachableError
from tools.controlplane import ApiError, ControlPlane, StartError, process
from tools.waiting import wait_until

NewPlane = Callable[..., ControlPlane]
ROOT = Path(__file__).parents[2]
CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept"}, "data": {"key": "value"}}


def alive(pid: int) -> bool:
    try:
        # A zombie is dead; it waits for whoever adopted it.
        return " Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:2]
    except FileNotFoundError:
        return False


def wait_dead(pids: list[int]) -> None:
    wait_until(lambda: not [pid for pid in pids if alive(pid)], f"{pids} end")


def test_restarts_keep_data_and_address(new_plane: NewPlane) -> None:
    plane = new_plane()
    url = plane.url
    with plane.client() as kube:
        version = kube.apply(CONFIG_MAP).body["metadata"]["resourceVersion"]
        plane.kill("kube-apiserver")
        with pytest.raises(UnreachableError):
            kube.get("v1", "ConfigMap", "kept")
        plane.start("kube-apiserver")
        plane.restart("kube-apiserver")
        plane.kill("etcd")
        plane.start("etcd")
        # The same client, token, certificate and address go on.
        assert kube.get("v1", "ConfigMap", "kept")["metadata"]["resourceVersion"] == version
        assert kube.apply({**CONFIG_MAP, "data": {"key": "new"}}).body["data"] == {"key": "new"}
    assert plane.url == url


def test_users_have_their_groups(new_plane: NewPlane) -> None:
    plane = new_plane(users={"ada": ["vision", "speech"], "root": ["system:masters"]})
    with plane.client(plane.token("root")) as root:
        root.list("v1", "Secret")
    with plane.client(plane.token("ada")) as ada:
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {}}
        user = ada.create(review).body["status"]["userInfo"]
        assert (user["username"], set(user["groups"])) == ("ada", {"vision", "speech", "system:authenticated"})
        with pytest.raises(ApiError, match="forbidden"):
            ada.list("v1", "Secret")


def test_scheduler_and_kwok_run_a_job(new_plane: NewPlane) -> None:
    plane = new_plane(controller_manager=True, scheduler=True, kwok=True)
    resources = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
    container = {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    template = {
        "metadata": {"annotations": {"pod-complete.stage.kwok.x-k8s.io/delay": "100ms"}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    job: dict[str, Any] = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}}
    with plane.client() as kube:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-0"}}
        kube.create({**node, "status": {"capacity": resources, "allocatable": resources}})
        kube.create({**job, "spec": {"completions": 2, "parallelism": 2, "template": template}})
        # One after the other, because the node has GPUs for one.
        done = kube.wait_for("batch/v1", "Job", "train", until=lambda job: job["status"].get("succeeded") == 2)
        assert done["status"]["ready"] == 0
        assert {pod["spec"]["nodeName"] for pod in kube.list("v1", "Pod")} == {"gpu-0"}
        kube.delete("batch/v1", "Job", "train", propagation="Foreground")
        kube.wait_gone("batch/v1", "Job", "train")
        assert kube.list("v1", "Pod") == []


def test_close_leaves_nothing(new_plane: NewPlane) -> None:
    plane = new_plane(controller_manager=True)
    folder = plane.layout.folder
    pids = [plane.pid(name) for name in ("etcd", "kube-apiserver", "kube-controller-manager")]
    assert all(alive(pid) for pid in pids)
    plane.close()
    assert [pid for pid in pids if alive(pid)] == []
    assert not folder.exists()
    with plane:
        assert plane.layout.folder != folder


def test_plane_is_entered_once(new_plane: NewPlane) -> None:
    plane = new_plane()
    with pytest.raises(RuntimeError, match="runs already"):
        plane.__enter__()
    with plane.client() as kube:
        kube.apply(CONFIG_MAP)


def test_component_that_cannot_start_says_why(new_plane: NewPlane) -> None:
    with pytest.raises(StartError, match=r"(?s)kube-apiserver ended with status \d.*unknown flag: --no-such-flag"):
        new_plane(arguments={"kube-apiserver": ["--no-such-flag"]})


def test_taken_port_is_tried_again(new_plane: NewPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    first = new_plane()
    ports = iter([0, first.port("kube-apiserver"), 0])
    free = process.free_port
    # What a race looks like: the port was free when it was chosen.
    monkeypatch.setattr(process, "free_port", lambda: next(ports, 0) or free())
    second = new_plane()
    assert second.url != first.url
    assert "address already in use" in second.log("kube-apiserver").read_text()


def test_plane_outlives_the_thread_that_started_it(new_plane: NewPlane) -> None:
    started: list[ControlPlane] = []
    thread = threading.Thread(target=lambda: started.append(new_plane()))
    thread.start()
    thread.join()
    with started[0].client() as kube:
        kube.apply(CONFIG_MAP)


def test_killed_parent_leaves_no_process_and_its_folder_is_swept(control_plane_binaries: None) -> None:
    program = """
import sys, time
from tools.controlplane import ControlPlane
with ControlPlane(controller_manager=True) as plane:
    names = ("etcd", "kube-apiserver", "kube-controller-manager")
    print(plane.layout.folder, *(plane.pid(name) for name in names), flush=True)
    time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent, parent.stdout:
        folder, *pids = parent.stdout.readline().split()
        os.kill(parent.pid, signal.SIGKILL)
    assert len(pids) == 3
    wait_dead([int(pid) for pid in pids])
    assert Path(folder).exists()
    with ControlPlane():
        assert not Path(folder).exists()
