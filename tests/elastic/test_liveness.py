"""The probes and metrics of the job master."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from time import monotonic
from typing import Any

import avactl_worker
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from avactl.daemons.elastic import daemon, metrics
from avactl.daemons.elastic.daemon import STUCK, MasterDaemon, MasterOptions
from avactl.daemons.elastic.events import Joined, Registered, WorkerReplaced
from avactl.daemons.elastic.service import Service
from avactl.daemons.elastic.state.store import StateStore
from tests.elastic.test_definition import definition
from tests.proxy import Proxy
from tools.controlplane import ControlPlane
from tools.controlplane.process import free_port
from tools.elastic import ElasticJob, environment
from tools.waiting import patience, wait_until, wait_until_async


def get(port: int, path: str, timeout: float = 10.0) -> tuple[int, str]:
    """Return status and text of an answer; status 0 if there is none."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=timeout) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def samples(text: str) -> dict[str, float]:
    """Return the value of each series, as `name` or `name{value,value}`."""
    return {
        sample.name + (f"{{{','.join(sample.labels.values())}}}" if sample.labels else ""): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_a_master_that_waits_for_the_api_server_is_alive(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    http = free_port()
    with Proxy(control_plane, tmp_path) as proxy:
        proxy.faults = {0: 1.0}
        options = (
            "--http",
            f"127.0.0.1:{http}",
            "--config-map",
            f"{namespace}/job",
            "--kubeconfig",
            str(proxy.kubeconfig),
        )
        with ElasticJob(tmp_path, 0, 1, 1, options=options) as job:
            wait_until(lambda: job.log.read_text().count("ConfigMap not read") >= 2)
            assert get(http, "/livez") == (200, "ok\n")
            assert get(http, "/readyz")[0] == 503
            assert samples(get(http, "/metrics")[1]) == {}
            proxy.faults = {}
            wait_until(lambda: get(http, "/readyz") == (200, "ok\n"))
            with avactl_worker.connect(job.address, "w") as master:
                for number, _ in enumerate(master.dataset("train", 100, records_per_task=10, epochs=2), 1):
                    if number == 13:
                        break
                found = samples(get(http, "/metrics")[1])
            expected = {
                "avactl_master_workers": 1,
                "avactl_master_tasks{train,todo}": 8,
                "avactl_master_tasks{train,done}": 2,
                "avactl_master_tasks{train,doing}": 0,
                "avactl_master_epoch{train}": 1,
                "avactl_master_records_total{train}": 120,
                "avactl_master_workers_lost_total": 0,
            }
            assert {name: found[name] for name in expected} == expected
            proxy.faults = {0: 1.0}
            wait_until(lambda: "ConfigMap not written" in job.log.read_text())
            assert get(http, "/livez")[0] == get(http, "/readyz")[0] == 200
            assert job.master is not None
            job.master.send_signal(signal.SIGSTOP)
            assert get(http, "/livez", timeout=1.0) == (0, "")


def test_a_loop_that_does_not_turn_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk does not answer. The other loops turn."""
    ahead = 0.0

    def now() -> float:
        return monotonic() + ahead

    for module in ("daemon", "server"):
        monkeypatch.setattr(f"avactl.daemons.elastic.{module}.monotonic", now)
    monkeypatch.setattr(daemon, "_SYNC_INTERVAL_S", 0.01)

    async def run() -> None:
        nonlocal ahead
        replica = MasterDaemon(MasterOptions("127.0.0.1:0", tmp_path / "state"), None)
        assert replica._alive()
        assert not replica._ready()
        task = asyncio.ensure_future(replica.run())
        await wait_until_async(lambda: replica._ready() and "sync" in replica._turned)
        server = replica._server
        assert server is not None

        async def turn() -> None:
            began = now()
            await wait_until_async(lambda: min(replica._turned["sync"], server.ticked) > began)

        for _ in range(3):
            ahead += STUCK
            await turn()
            assert replica._alive()
        stuck = asyncio.Event()

        async def disk(_: Any) -> None:
            stuck.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(asyncio, "to_thread", disk)
        assert replica._service is not None
        replica._service.store.sequence += 1
        await wait_until_async(stuck.is_set)
        ahead += STUCK
        turned = now()
        await wait_until_async(lambda: server.ticked > turned)
        assert not replica._alive()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


def test_the_labels_are_bounded(tmp_path: Path) -> None:
    """Workers have any names, and there are as many datasets as scripts declare."""
    store = StateStore(tmp_path / "state", 0.0)
    service = Service(store, 0.0)
    for number in range(100):
        store.job.apply(Registered(definition([10], 2, name=f"d{number}")), 0.0)
    for number in range(1, 2001):
        store.job.apply(Joined(number, number, f"worker-{number}"), 0.0)
    store.job.apply(WorkerReplaced(7, 1.0, 0.1, "worker-7"), 0.0)
    service.expire(100.0)
    text = generate_latest(metrics.make_registry(lambda: service)).decode()
    found = samples(text)
    assert found["avactl_master_workers_lost_total"] == 2000
    assert found["avactl_master_tasks{d15,todo}"] == 5
    assert len(found) == 7 + 16 * 5
    assert "worker-" not in text
    store.close()


def test_an_address_in_use_is_named(tmp_path: Path) -> None:
    with ElasticJob(tmp_path, 0, 1, 1) as job:
        wait_until(lambda: "listening" in job.log.read_text())
        words = ("--state", str(tmp_path / "other"), "--listen", f"127.0.0.1:{free_port()}", "--http", job.address)
        command = [sys.executable, "-m", "avactl.cli.main", "elastic", "master", *words]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=patience())
    assert done.returncode == 3
    assert re.search(f"`--http {job.address}`: .*address already in use", done.stderr), done.stderr


def test_no_thread_outlives_the_connection(tmp_path: Path) -> None:
    """A daemon thread that is stopped while it holds a lock of gRPC keeps the process from ending."""
    before = set(threading.enumerate())
    with ElasticJob(tmp_path, workers=0, records=100, records_per_task=10) as job:
        for kills in (0, 1):
            master = avactl_worker.connect(job.address)
            if kills:
                job.kill_master()
                master.dataset("train", 100, records_per_task=10)
            assert set(threading.enumerate()) > before
            master.close()
            assert set(threading.enumerate()) <= before
