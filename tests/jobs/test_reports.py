"""Progress that scripts print, in `avactl jobs` on a control plane with logs of a kubelet."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from avactl.workbench.jobs.reports import _BYTES, Told, merge_progress
from avactl.workbench.step_progress import StepProgress
from tests.jobs.lab import NAMESPACE, Lab, job
from tests.jobs.test_dashboard import Served

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("jobs")]


def line(**content: Any) -> str:
    return json.dumps({"avactl_progress": content})


def place(lab: Lab, name: str) -> str:
    return f"{lab.pods(name)[0]['metadata']['name']}/worker"


def shown(lab: Lab, name: str) -> str:
    done = lab.avactl("jobs", "-n", NAMESPACE)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    return next(" ".join(each.split()) for each in done.stdout.splitlines() if f"/{name} " in each)


def test_what_the_first_pod_prints(lab: Lab) -> None:
    lab.apply(job("plain", "strategy: allReduce, workers: {replicas: 2}"))
    lab.state("plain", "running")
    assert lab.jobs()["plain"]["progress"] is None
    first, kubelet = place(lab, "plain"), lab.kubelet
    kubelet.write(first, 1.0, "hello", line(step=100, steps=1000, loss=0.5))
    assert re.search(r" running 2 of 2 10% 0\.5 \d", shown(lab, "plain"))
    # The speed follows from the times of the lines.
    kubelet.write(first, 21.0, "other", line(step=140, steps=1000, loss=0.25), "other")
    assert " 14% 0.25 2 steps/s 7 min " in shown(lab, "plain")
    progress = lab.jobs()["plain"]["progress"]
    assert progress["curve"] == [[100, 0.5], [140, 0.25]]
    assert (progress["fraction"], progress["remaining"], progress["loss"]) == (0.14, 430.0, 0.25)
    assert (progress["speed"], progress["steps"]["speed"], progress["datasets"]) == (None, 2.0, [])
    kubelet.write(first, 30.0, line(step=150, steps=1000, records=50, speed=4, epoch=2, epochs=3, acc=1))
    assert " 15% epoch 2/3 1 200 4 min " in shown(lab, "plain")
    logs = lab.avactl("logs", f"{NAMESPACE}/plain").stdout
    assert "worker-0 │ step 140 of 1,000 (14%), loss 0.25\nworker-0 │ other\nworker-0 │ step 150 of " in logs
    kubelet.write(first, 31.0, line(step=151))
    assert " step 151 " in shown(lab, "plain")
    asked = kubelet.asked[-1]
    assert (asked["tailLines"], asked["limitBytes"]) == ("200", str(_BYTES))
    # Only the end of the log is read, and nothing of jobs that do not run.
    kubelet.write(first, 32.0, *["noise"] * 300)
    assert lab.jobs()["plain"]["progress"] is None
    lab.complete("plain")
    lab.state("plain", "succeeded")
    kubelet.write(first, 33.0, line(step=1000, steps=1000))
    assert lab.jobs()["plain"]["progress"] is None
    lab.delete("plain")


def test_a_hostile_log(lab: Lab) -> None:
    lab.apply(job("evil", "strategy: allReduce, workers: {replicas: 2}"))
    lab.state("evil", "running")
    odd = "\x1b]0;owned\x07\u202e"
    lab.kubelet.write(
        place(lab, "evil"),
        1.0,
        line(step=10**30),
        line(step=1, **{odd: 1e300}),
        '{"avactl_progress": ' + "[" * 9000,
        line(step=5, steps=10**14, speed=1e-300, records=1e300, **{odd: 0.5}),
    )
    assert " 0% 0.5 " in shown(lab, "evil")
    progress = lab.jobs()["evil"]["progress"]
    assert progress["steps"]["metrics"] == {"�]0;owned��": 0.5}
    # What does not fit is not read, if the kubelet sends more than it was asked for.
    lab.kubelet.write(place(lab, "evil"), 2.0, "x" * 2 * _BYTES, line(step=6))
    assert (lab.jobs()["evil"]["progress"] or {"steps": {"step": 5}})["steps"]["step"] == 5
    lab.delete("evil")


def test_logs_that_cannot_be_read_delay_nothing(lab: Lab, tmp_path: Path) -> None:
    """The node does not answer, or the caller may not read logs."""
    lab.apply(job("far", ""))
    lab.state("far", "running")
    node = lab.pods("far")[0]["spec"]["nodeName"]
    path = f"/api/v1/nodes/{node}/status"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port in (silent.getsockname()[1], 9):
            body = {"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}}
            lab.kube.request("PATCH", path, body=body, content_type="application/merge-patch+json")
            assert lab.state("far", "running")["progress"] is None
    body = {"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": lab.kubelet.port}}}}
    lab.kube.request("PATCH", path, body=body, content_type="application/merge-patch+json")
    lab.kubelet.write(place(lab, "far"), 1.0, line(step=5, steps=10))
    assert " 50% " in shown(lab, "far")
    rules = [
        {"apiGroups": ["", "batch"], "resources": ["jobs", "pods", "configmaps"], "verbs": ["get", "list", "watch"]}
    ]
    viewer = {"name": "viewer", "namespace": NAMESPACE}
    subject = {"kind": "ServiceAccount", **viewer}
    for each in (
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": viewer},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": viewer, "rules": rules},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": viewer,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "viewer"},
            "subjects": [subject],
        },
    ):
        lab.kube.create(each)
    config = tmp_path / "viewer"
    lab.plane.write_kubeconfig(config, lab.plane.service_account_token(NAMESPACE, "viewer", 3600))
    done = lab.avactl("jobs", "-n", NAMESPACE, kubeconfig=config)
    assert done.returncode == 0, done.stderr
    assert "/far" in done.stdout
    assert "50%" not in done.stdout
    lab.delete("far")


def test_the_dashboard_follows_the_log(lab: Lab) -> None:
    lab.apply(job("page", "strategy: allReduce, workers: {replicas: 2}"))
    lab.state("page", "running")
    first = place(lab, "page")
    lab.kubelet.write(first, 1.0, line(step=140, steps=1000, epoch=1, epochs=7, speed=2, **{"<b>loss": 0.5}))
    served = Served(lab, lab.member, "-n", NAMESPACE)
    try:
        with served.browser() as client:
            page, own = client.get("/").text, client.get(f"/job/{NAMESPACE}/page").text
            assert "14% · step 140 · epoch 1 of 7" in page
            assert "2 steps/s" in page
            assert ("<b>loss" in own, "&lt;b&gt;loss" in own) == (False, True)
            lab.kubelet.write(first, 9.0, line(step=150))
            lab.until(lambda: "step 150" in client.get("/").text)
            lab.delete("page")
            lab.until(lambda: f"/{NAMESPACE}/page" not in client.get("/").text)
    finally:
        served.close()


def told(second: float, step: int, speed: float | None = None) -> Told:
    return Told(round(second * 1e9), StepProgress(step, 100, 0, 0, 0.0, speed, {"loss": float(step)}))


def test_a_script_that_was_started_again_has_the_speed_since_then() -> None:
    found = merge_progress(None, [told(0, 50), told(10, 90), told(20, 10), told(30, 30)])
    assert found.steps is not None
    assert found.steps.speed == 2.0
    assert found.master.curve == ((10, 10.0), (30, 30.0))
    assert merge_progress(None, [told(0, 5), told(0, 5)]).rate == ""
