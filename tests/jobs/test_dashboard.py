"""`avactl dashboard`: who may open it, what it shows, and that a real browser shows it."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from avactl.kube.timestamps import timestamp
from avactl.workbench.jobs.dashboard.server import is_loopback
from tests.jobs.lab import NAMESPACE, Lab, job
from tools.programs import find_program

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("jobs")]
EVIL = "<img src=x onerror=\"document.title='owned'\">"
CHROMIUM = find_program("chromium")


class Served:
    """A running dashboard."""

    def __init__(self, lab: Lab, kubeconfig: Path, *options: str) -> None:
        command = lab.command("dashboard", "--listen", "127.0.0.1:0", *options, kubeconfig=kubeconfig)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split()[1]
        self.base = self.address.partition("/?")[0]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()

    @contextmanager
    def browser(self) -> Iterator[httpx.Client]:
        """A client that has logged in."""
        with httpx.Client(base_url=self.base, follow_redirects=True) as client:
            assert client.get(self.address).status_code == 200
            yield client

    def dom(self, path: str, folder: Path) -> tuple[str, list[str]]:
        """Return the elements that a browser makes of a page some seconds later, and what it complains about."""
        assert CHROMIUM is not None
        command = [
            CHROMIUM,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={folder}",
            "--enable-logging=stderr",
            "--virtual-time-budget=8000",
            "--dump-dom",
            self.address.replace("/?", f"{path}?"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=180)
        return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def jobs(lab: Lab) -> Iterator[None]:
    """An elastic job that trains, with a hostile name of its metric, and one that waits."""
    lab.apply(job("learns", "framework: custom, strategy: elastic, workers: {min: 1, max: 2, gpus: 4, gpu: V100}"))
    run = lab.until(lambda: (found := lab.state("learns", "running"))["workers"] == 2 and found)["run"]
    lab.apply(job("large", "strategy: allReduce, workers: {replicas: 2, gpus: 8, gpu: V100}"))
    lab.state("large", "queued")
    dataset = {
        "name": EVIL,
        "after": "",
        "epoch": 1,
        "epochs": 4,
        "tasks": 50,
        "done": 20,
        "records": 14_000,
        "size": 10_000,
        "metrics": {EVIL: 0.25},
    }
    progress = {
        "run": run,
        "at": timestamp(),
        "complete": False,
        "workers": 2,
        "stragglers": ["worker-1"],
        "slow": 1,
        "speed": 13.0,
        "datasets": [dataset],
        "metric": EVIL,
        "curve": [[n * 1000, 2 / n] for n in range(1, 15)],
    }
    body = {"metadata": {"annotations": {"avactl.dev/progress": json.dumps(progress)}}}
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/learns-master"
    lab.kube.request("PATCH", path, body=body, content_type="application/merge-patch+json")
    yield
    for name, role in (("learns", "worker"), ("learns", "master"), ("large", "worker")):
        lab.delete(name, role)


@pytest.fixture(scope="module")
def mine(lab: Lab, jobs: None) -> Iterator[Served]:
    served = Served(lab, lab.member, "-n", NAMESPACE)
    yield served
    served.close()


@pytest.fixture(scope="module")
def whole(lab: Lab, jobs: None) -> Iterator[Served]:
    served = Served(lab, lab.plane.kubeconfig)
    yield served
    served.close()


def test_only_its_caller_may_open_it(mine: Served) -> None:
    host = mine.base.removeprefix("http://")
    with httpx.Client(base_url=mine.base) as client:
        for path in ("/", "/job/vision/learns", "/?token=", "/?token=x", f"/?token={'é' * 9}", "/nothing"):
            answer = client.get(path)
            assert answer.status_code == 401, path
            assert "learns" not in answer.text.replace("/job/vision/learns", "")
        token = mine.address.partition("=")[2]
        for name in ("evil.example.com", f"evil.example.com:{host.partition(':')[2]}", "", "127.0.0.1"):
            answer = client.get(f"/?token={token}", headers={"Host": name})
            assert (answer.status_code, "set-cookie" in answer.headers) == (421, False)
        connection = http.client.HTTPConnection(host)
        connection.request("GET", f"//example.com/?token={token}")
        assert connection.getresponse().headers["Location"] == "/example.com/"
        connection.close()
        answer = client.get(mine.address)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        client.cookies.clear()
        assert client.get("/style.css").headers["content-type"].startswith("text/css")
    with mine.browser() as client:
        page = client.get("/")
        assert page.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
        assert page.headers["x-content-type-options"] == "nosniff"
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert client.request(method, "/").status_code == 405
        for path in ("/job/vision/nothing", "/static/style.css", "/..%2fserver.py", "/job/vision/%00", "/a" * 2000):
            assert client.get(path).status_code in (404, 414), path


def test_what_a_member_sees(mine: Served) -> None:
    with mine.browser() as client:
        page, own = client.get("/").text, client.get(f"/job/{NAMESPACE}/learns").text
    assert "Only jobs of namespace vision." in page
    assert f'<a href="/job/{NAMESPACE}/learns">{NAMESPACE}/learns</a>' in page
    assert "35% · epoch 2 of 4" in page
    assert "quota of team vision" in page.partition("<h2>Queue</h2>")[2].partition("<h2>")[0]
    assert 'title="worker-1: running on node-' in page
    # The machines of the platform, and who has which GPU, are not for members.
    assert "GPUs by job" not in page
    assert "node-1 GPU" not in page
    assert "20 of 50" in own
    assert "straggles: less than half of the median speed" in own
    assert own.count('class="curve"') == 1
    for text in (page, own):
        assert "<img" not in text
        assert not re.search(r"<[^>]* (style|on\w+)=", text)


def test_what_those_see_who_run_the_platform(whole: Served, lab: Lab) -> None:
    with whole.browser() as client:
        page = client.get("/").text
    assert "Only jobs of namespace" not in page
    assert "8</b><span>of 16 GPUs in use" in page
    assert "<td>vision</td><td>V100</td>" in page
    assert f"{NAMESPACE}/learns of vision" in page.partition("GPUs by job")[2]
    assert "<style" not in page


@pytest.mark.needs("chromium")
@pytest.mark.parametrize("path", ["/", f"/job/{NAMESPACE}/learns"])
def test_in_a_browser(whole: Served, tmp_path: Path, path: str) -> None:
    dom, complaints = whole.dom(path, tmp_path)
    assert complaints == []  # no script that fails, nothing that the content security policy refuses
    assert '<output class="live">live</output>' in dom  # the page has replaced its content
    assert "learns" in dom
    assert "owned" not in dom.partition("</title>")[0]
    assert "<img" not in dom
    assert 'class="curve"' in dom


def test_it_stays_on_this_machine(lab: Lab) -> None:
    assert [is_loopback(each) for each in ("127.0.0.1:1", "[::1]:1", "localhost:1", "127.9.9.9:1")] == [True] * 4
    for listen in ("0.0.0.0:8080", "[::]:8080", "192.0.2.1:80", "example.com:80", ":8080", "8080"):
        done = lab.avactl("dashboard", "--listen", listen)
        assert (done.returncode, listen in done.stderr) == (2, True), done.stderr
