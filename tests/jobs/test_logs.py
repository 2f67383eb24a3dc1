"""`avactl logs` and `avactl wait` on a control plane that goes away and comes back."""

from __future__ import annotations

import signal

import pytest

from avactl.workbench.jobs.log_lines import MOST, Cursor
from tests.jobs.following import Following
from tests.jobs.kubelet import Kubelet
from tests.jobs.lab import NAMESPACE, Lab, job

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("jobs")]


@pytest.fixture
def kubelet(lab: Lab) -> Kubelet:
    return lab.kubelet


def test_logs_of_all_pods_in_the_order_of_time(lab: Lab, kubelet: Kubelet) -> None:
    lab.apply(job("pair", "strategy: allReduce, workers: {replicas: 2}"))
    lab.state("pair", "running")
    first, second = (f"{pod['metadata']['name']}/worker" for pod in lab.pods("pair"))
    kubelet.write(first, 1, "one", "\x1b]0;title\x07three")
    kubelet.write(second, 0.5, "zero")
    kubelet.write(second, 1.25, "10%\r50%", "::error::x" + "y" * 20_000)
    kubelet.write(first, 2, "last")

    done = lab.avactl("logs", "pair", "-n", NAMESPACE)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["worker-1 │ zero", "worker-0 │ one"]
    assert lines[2] == "worker-0 │ �]0;title�three"
    assert lines[3] == "worker-1 │ 50%"
    assert lines[4].endswith("y…")
    assert len(lines[4]) < MOST + 100
    assert lines[5:] == ["worker-0 │ last"]
    done = lab.avactl("logs", f"{NAMESPACE}/pair", "--role", "worker", "--index", "1", "--tail", "2")
    assert [line[:13] for line in done.stdout.splitlines()] == ["worker-1 │ 50", "worker-1 │ ::"]
    for options, why in (
        (("--role", "server"), "the job has no role `server`"),
        (("--index", "2"), "the job has no pod with index 2"),
    ):
        done = lab.avactl("logs", "pair", "-n", NAMESPACE, *options)
        assert (done.returncode, why in done.stderr) == (2, True), done.stderr
    done = lab.avactl("logs", "nobody", "-n", NAMESPACE)
    assert (done.returncode, "no training job nobody" in done.stderr) == (2, True)
    lab.delete("pair")


def test_following_and_waiting_without_the_api_server(lab: Lab, kubelet: Kubelet) -> None:
    lab.apply(job("long", "strategy: allReduce, retries: 1, workers: {replicas: 2}"))
    lab.state("long", "running")
    pods = lab.pods("long")
    first, second = (f"{pod['metadata']['name']}/worker" for pod in pods)
    kubelet.write(first, 1, "before", "twice", "twice")
    logs = Following(lab.command("logs", "long", "-n", NAMESPACE, "-f"))
    wait = Following(lab.command("wait", "long", "-n", NAMESPACE))
    lab.until(lambda: "before" in logs and "running" in wait and kubelet.open == 2)
    kubelet.write(second, 2, "beside")
    lab.until(lambda: "beside" in logs)
    lab.plane.kill("kube-apiserver")
    lab.until(lambda: "no answer" in logs and "no answer" in wait)
    kubelet.write(first, 1, "twice")  # at the time of the last line
    kubelet.write(first, 3, "meanwhile")
    lab.plane.start("kube-apiserver")
    lab.until(lambda: "meanwhile" in logs)
    # Another pod takes the place of one that failed.
    kubelet.end(second)
    lab.fail(pods[1], 9)
    lab.until(lambda: len(lab.pods("long")) == 3)
    (again,) = {pod["metadata"]["name"] for pod in lab.pods("long")} - {pod["metadata"]["name"] for pod in pods}
    lab.until(lambda: lab.jobs()["long"]["state"] == "running")
    kubelet.write(f"{again}/worker", 5, "once more")
    lab.until(lambda: "once more" in logs)
    for place in (first, f"{again}/worker"):
        kubelet.end(place)
    lab.complete("long")
    assert (logs.end(), wait.end()) == (0, 0)
    lines = [
        line for line in logs.lines if not any(text in line for text in ("no answer", "the job is", "cannot be read"))
    ]
    assert [line for line in lines if line.startswith("worker-0")] == [
        "worker-0 │ before",
        "worker-0 │ twice",
        "worker-0 │ twice",
        "worker-0 │ twice",
        "worker-0 │ meanwhile",
        "worker-0 │ succeeded",
    ]
    other = [line for line in lines if line.startswith("worker-1")]
    assert other[:2] == ["worker-1 │ beside", "worker-1 │ failed: worker: exit code 9"]
    assert other[2].startswith(f"worker-1 │ pod {again} on node-")
    assert other[3:] == ["worker-1 │ once more", "worker-1 │ succeeded"]
    assert lines[-1] == "the job has succeeded"
    assert wait.lines[-1] == f"{NAMESPACE}/long  succeeded"


def test_the_ends_that_wait_knows(lab: Lab) -> None:
    lab.apply(job("fails", "retries: 0"), job("goes"), job("stays"))
    for name in ("fails", "goes", "stays"):
        lab.state(name, "running")
    waits = {name: Following(lab.command("wait", f"{NAMESPACE}/{name}")) for name in ("fails", "goes")}
    lab.until(lambda: all("running" in each for each in waits.values()))
    lab.fail(lab.pods("fails")[0], 7)
    lab.delete("goes")
    assert waits["fails"].end() == 5
    assert waits["fails"].lines[-1].startswith(f"{NAMESPACE}/fails  failed: ")
    assert (waits["goes"].end(), waits["goes"].lines[-1]) == (6, f"{NAMESPACE}/goes  deleted")
    done = lab.avactl("wait", f"{NAMESPACE}/stays", "--timeout", "1s")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (124, f"{NAMESPACE}/stays  not ended in time")
    done = lab.avactl("wait", f"{NAMESPACE}/stays", "--timeout", "soon")
    assert (done.returncode, "`soon`" in done.stderr) == (2, True), done.stderr
    done = lab.avactl("wait", f"{NAMESPACE}/nobody")
    assert (done.returncode, "no training job nobody" in done.stderr) == (2, True)
    stopped = Following(lab.command("wait", f"{NAMESPACE}/stays"))
    lab.until(lambda: "running" in stopped)
    stopped.process.send_signal(signal.SIGINT)
    assert stopped.end() == 130
    lab.delete("stays")


def test_a_stream_is_cut_anywhere() -> None:
    whole = b"".join(
        b"2026-03-01T12:00:%02d.5%sZ line %d\n" % (second, b"" if number else b"00", number)
        for second in range(3)
        for number in range(3)
    )
    expected = [f"line {number}" for _ in range(3) for number in range(3)]
    for lost in range(len(whole)):
        for size in (1, 7, 50):
            cursor, seen = Cursor(), list[str]()
            reader = cursor.reader()
            for start in range(0, lost, size):
                seen += [line.text for line in reader.feed(whole[start : min(lost, start + size)])]
            reader = cursor.reader()
            again = whole if cursor.since is None else whole[whole.index(cursor.since[:19].encode()) :]
            seen += [line.text for line in reader.feed(again)]
            assert seen == expected
