"""`avactl jobs` on a control plane, with the rights of a member of a team."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import avactl_worker
import pytest
import yaml

from tests.jobs.lab import NAMESPACE, Lab, job
from tools.elastic import ElasticJob
from tools.waiting import patience

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("jobs")]


def test_states_of_jobs(lab: Lab) -> None:
    gpus = "gpus: 8, gpu: V100"
    lab.apply(
        job("digits", f"strategy: allReduce, workers: {{replicas: 2, {gpus}}}"),
        job("asleep", "suspended: true"),
        job("broken", "retries: 0"),
    )
    running = lab.state("digits", "running")
    assert (running["workers"], running["least"], running["most"], running["gpus"]) == (2, 2, 2, 16)
    assert [pod["index"] for pod in running["members"]] == [0, 1]
    assert running["progress"] is None  # nothing is invented
    lab.apply(job("next", f"workers: {{{gpus}}}"))
    queued = lab.until(lambda: "quota" in (found := lab.state("next", "queued"))["why"] and found)
    assert "quota of team vision" in queued["why"]
    lab.state("broken", "running")
    lab.fail(lab.pods("broken")[0], 7)
    lab.state("broken", "failed")
    done = lab.avactl("jobs", "-n", NAMESPACE)
    assert done.returncode == 0, done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert re.match(r"context avactl · cluster \S+.* · namespace vision · ", lines[0])
    assert next(line for line in lines if "/digits" in line).startswith("vision/digits running 2 of 2 16 ")
    assert "quota of team vision" in next(line for line in lines if "/next" in line)
    assert "suspended 0 of 1" in next(line for line in lines if "/asleep" in line)
    assert "eta" not in lines[2]  # of no job
    lab.complete("digits")
    lab.state("digits", "succeeded")
    lab.state("next", "running")
    lab.delete("next")


def test_the_progress_of_an_elastic_job(lab: Lab, tmp_path: Path) -> None:
    lab.apply(job("score", "framework: custom, strategy: elastic, workers: {min: 1, max: 3}"))
    run = lab.state("score", "running")["run"]
    options = ("--config-map", f"{NAMESPACE}/score-master", "--kubeconfig", str(lab.plane.kubeconfig), "--run", run)
    assert lab.jobs()["score"]["progress"] is None
    with ElasticJob(tmp_path, 2, 400, 1, epochs=50, pause=0.01, options=options) as processes:
        lab.until(lambda: ((lab.jobs()["score"]["progress"] or {}).get("speed") or 0) > 0)
        found = lab.jobs()["score"]
        progress = found["progress"]
        assert (found["least"], found["most"], progress["workers"]) == (1, 3, 2)
        assert 0 < progress["fraction"] < 1
        assert progress["remaining"] > 0
        (data,) = progress["datasets"]
        assert (data["name"], data["size"], data["epochs"]) == ("train", 400, 50)
        assert progress["loss"] is None
        with avactl_worker.connect(processes.address) as master:
            for task in islice(master.dataset("train", 400, records_per_task=1, epochs=50, seed=1), 20):
                task.report(loss=0.5)
        lab.until(lambda: lab.jobs()["score"]["progress"]["loss"] == 0.5)
        line = next(line for line in lab.avactl("jobs", "-n", NAMESPACE).stdout.splitlines() if "/score" in line)
        assert "1–3" in line
        assert "% epoch " in line
        processes.kill_master()
        records = data["records"]
        lab.until(lambda: lab.jobs()["score"]["progress"]["datasets"][0]["records"] > records)
    # Another run of the job has made no progress yet.
    lab.delete("score")
    lab.delete("score", "master")
    lab.until(lambda: "score" not in lab.jobs())
    lab.apply(job("score", "framework: custom, strategy: elastic, retries: 9, workers: {min: 1, max: 3}"))
    assert lab.state("score", "running")["progress"] is None


def test_what_pods_write_is_shown_and_not_obeyed(lab: Lab) -> None:
    lab.apply(job("odd", "framework: custom, strategy: elastic, workers: {min: 1, max: 2}"))
    run = lab.state("odd", "running")["run"]
    evil = "\x1b]0;owned\x07" + "x" * 200 + "\n::error::"
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    written = {
        "run": run,
        "at": at,
        "stragglers": [evil],
        "slow": 2,
        "datasets": [{"name": evil, "metrics": {evil: 0.25, "loss": 0.5}}],
        "metric": evil,
        "curve": [[1, 2]],
    }
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/odd-master"

    def annotate(text: str) -> None:
        body = {"metadata": {"annotations": {"avactl.dev/progress": text}}}
        lab.kube.request("PATCH", path, body=body, content_type="application/merge-patch+json")

    annotate(json.dumps(written))
    progress = lab.jobs()["odd"]["progress"]
    assert max(len(each) for each in (progress["metric"], *progress["stragglers"])) <= 63
    (shown,) = progress["datasets"]
    assert len(shown["name"]) <= 63
    assert shown["metrics"]["loss"] == 0.5
    done = lab.avactl("jobs", "-n", NAMESPACE)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "\n::error" not in done.stdout
    annotate(json.dumps({"run": run, "at": at, "replaced": [{"name": "worker-2", "at": at, "share": 0.2149}]}))
    assert re.search(
        r"worker-2 replaced \d+ \w+ ago: 0\.21 of the median speed", lab.avactl("jobs", "-n", NAMESPACE).stdout
    )
    wrong: list[dict[str, Any]] = [
        {"at": "9" * 30},
        {"metric": "x" * 500},
        {"speed": -1e308},
        {"workers": True},
        {"stragglers": [evil] * 9},
        {"replaced": [{"name": evil, "at": evil, "share": 0.5}]},
        {"datasets": [1]},
        {"datasets": [{"name": "x", "epochs": 10**30}]},
        {"datasets": [{"name": "x", "metrics": {"loss": 1e300}}]},
        {"curve": [["x", None]]},
    ]
    texts = ["[" * 60_000, "{", '"x"', "null", " " * 100_000, *(json.dumps({**written, **each}) for each in wrong)]
    for text in texts:
        annotate(text)
        assert lab.jobs()["odd"]["progress"] is None
    lab.delete("odd")
    lab.delete("odd", "master")


def test_who_may_see_one_namespace_only(lab: Lab, tmp_path: Path) -> None:
    refused = lab.avactl("jobs")
    assert (refused.returncode, refused.stderr.splitlines()) == (
        3,
        [
            "avactl: this account is not permitted to read the jobs of all namespaces",
            "        `-n NAMESPACE` shows the jobs of one namespace",
        ],
    )
    refused = lab.avactl("jobs", "-n", "default")
    assert (refused.returncode, "of namespace default" in refused.stderr) == (3, True)
    own = tmp_path / "own"
    own.write_text(_with_namespace(lab.member.read_text()))
    done = lab.avactl("jobs", kubeconfig=own)
    assert done.returncode == 0, done.stderr
    assert f" · namespace {NAMESPACE} · " in done.stdout.splitlines()[0]


def _with_namespace(kubeconfig: str) -> str:
    config = yaml.safe_load(kubeconfig)
    config["contexts"][0]["context"]["namespace"] = NAMESPACE
    return str(yaml.safe_dump(config))


def read_until(terminal: int, text: bytes) -> None:
    """Read what a terminal shows until it has shown a text."""
    seen = b""
    while text not in seen:
        assert select.select([terminal], [], [], 60)[0], seen
        seen += os.read(terminal, 65536)


def test_a_live_page(lab: Lab) -> None:
    lab.apply(job("brief"))
    lab.state("brief", "running")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(lab.command("jobs", "-n", NAMESPACE, "--watch"), stdout=theirs, stderr=theirs)
    os.close(theirs)
    read_until(ours, b"brief")
    lab.complete("brief")
    read_until(ours, b"succeeded")
    process.send_signal(signal.SIGINT)
    try:
        while os.read(ours, 65536):
            pass
    except OSError:  # the other side is closed
        pass
    assert process.wait(patience()) == 0
    os.close(ours)
    done = lab.avactl("jobs", "--watch")
    assert (done.returncode, "needs a terminal" in done.stderr) == (2, True)
