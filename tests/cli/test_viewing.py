"""Commands that look at a cluster, where there is none: one line on what is wrong, and what to do."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.cli.running import Run
from tests.diff.repository import Repository

GONE = """
current-context: x
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
users: [{name: u, user: {token: t}}]
"""


@pytest.mark.parametrize("command", ["top --once", "why job", "pool -o p.svg", "defrag job"])
def test_nobody_answers(avactl: Run, tmp_path: Path, command: str) -> None:
    (tmp_path / "config").write_text(GONE)
    done = avactl(*command.split(), "--kubeconfig", "config")
    assert done.returncode == 3
    first, hint = done.stderr.splitlines()
    assert first == "avactl: no answer from the API server http://127.0.0.1:1"
    assert "--kubeconfig" in hint
    assert not (tmp_path / "p.svg").exists()


def test_the_scheduler_is_told_wrong(avactl: Run) -> None:
    done = avactl("scheduler", "--config", "nowhere.json")
    assert (done.returncode, done.stderr) == (2, "avactl: nowhere.json: no such file or directory\n")


@pytest.mark.parametrize("command", ["scheduler --config policy.json", "reconcile specs --watch"])
def test_an_address_where_nobody_can_listen(avactl: Run, tmp_path: Path, command: str) -> None:
    (tmp_path / "config").write_text(GONE)
    (tmp_path / "policy.json").write_text('{"cluster": "c", "gpuDriver": "g", "systemNamespace": "s", "levels": []}')
    Repository(tmp_path / "specs").commit({"cluster.yaml": "kind: Cluster\nmetadata: {name: c}\n"})
    given = (*command.split(), "--kubeconfig", "config")
    done = avactl(*given, "--listen", "8080")
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "avactl: `--listen 8080` is not HOST:PORT")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        done = avactl(*given, "--listen", listen)
    assert done.returncode == 3
    assert done.stderr.startswith(f"avactl: `--listen {listen}`: ")
    assert done.stderr.strip().endswith("address already in use")


def test_a_context_is_chosen_by_name(avactl: Run, tmp_path: Path) -> None:
    there = GONE.replace("127.0.0.1:1", "127.0.0.1:2").replace("name: x", "name: there")
    (tmp_path / "config").write_text(there)
    done = avactl("snapshot", "--kubeconfig", "config", "--context", "there")
    assert (done.returncode, "127.0.0.1:2" in done.stderr) == (3, True), done.stderr
    done = avactl("why", "job", "--kubeconfig", "config", "--context", "their")
    assert (done.returncode, done.stderr) == (2, "avactl: config has no context `their`; its contexts: there\n")


@pytest.mark.parametrize("text", ["garbage: [", "", "[]", "current-context: other", GONE.replace("server:", "x:")])
def test_what_is_no_kubeconfig(avactl: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)
    done = avactl("why", "job", "--kubeconfig", "config")
    assert done.returncode == 2
    assert done.stderr.startswith("avactl: config: not a kubeconfig with a current context")
    assert len(done.stderr.splitlines()) == 1
