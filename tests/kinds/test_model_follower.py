"""The script that brings models into running pods, as a real process with the real rclone and a server of health."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from avactl.kinds.serving.follow import FOLLOW_SCRIPT
from tools.waiting import patience, wait_until


class Pod:
    """A store, a volume and a list of models in folders, and the HTTP port of a server."""

    def __init__(self, folder: Path) -> None:
        self.store, self.volume, self.list = folder / "store", folder / "models", folder / "list"
        for path in (self.store, self.volume, self.list):
            path.mkdir()
        self.loaded: set[str] = set()
        self.answers: Callable[[str], bytes | None] = lambda path: b"" if path in self.loaded else None
        pod = self

        class Server(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = pod.answers(self.path)
                self.send_response(404 if body is None else 200)
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.env = {
            "PATH": "/usr/bin:/bin:" + str(Path(shutil.which("rclone") or "/").parent),
            "LIST": str(self.list),
            "LIVE": str(self.volume / "live"),
            "WORK": str(self.volume / "work"),
            "PORT": str(self.server.server_port),
            "PERIOD": "0.2",
            "STORES": "S3_A",
            "RCLONE_CONFIG": "/notfound",
            "HOME": str(folder),
            "RCLONE_CONFIG_S3_A_TYPE": "alias",
            "RCLONE_CONFIG_S3_A_REMOTE": str(self.store),
        }

    def publish(self, path: str, text: str = "weights") -> None:
        (self.store / path).parent.mkdir(parents=True, exist_ok=True)
        (self.store / path).write_text(text)

    def declare(self, model: str, *lines: str, config: str = "", health: str = "") -> None:
        (self.list / f"{model}.health").write_text(f"{health}\n" if health else "")
        if config:
            (self.list / f"{model}.config").write_text(config + "\n")
        (self.list / f"{model}.sources").write_text("".join(f"{line}\n" for line in lines))

    def withdraw(self, model: str) -> None:
        for path in self.list.glob(f"{model}.*"):
            path.unlink()

    def once(self) -> subprocess.CompletedProcess[str]:
        command = ["sh", "-c", FOLLOW_SCRIPT]
        return subprocess.run(command, env={**self.env, "ONCE": "1"}, capture_output=True, text=True, check=False)

    @contextmanager
    def following(self) -> Iterator[None]:
        process = subprocess.Popen(["sh", "-c", FOLLOW_SCRIPT], env=self.env)
        try:
            yield
            assert process.poll() is None
        finally:
            process.terminate()
            process.wait(patience())

    def live(self) -> set[str]:
        base = self.volume / "live"
        return {str(path.relative_to(base)) for path in base.rglob("*") if path.is_file()}

    def models(self) -> str:
        path = self.volume / "models.config"
        return path.read_text() if path.exists() else ""

    def ready(self) -> bool:
        return (self.volume / "work" / "ready").exists()


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    made = Pod(tmp_path)
    yield made
    made.server.shutdown()


@pytest.mark.needs("rclone")
def test_models_come_and_go_while_the_server_runs(pod: Pod) -> None:
    pod.publish("a/3/saved_model.pb")
    pod.declare("a", "a/3 s3_a:a/3 all", config="config { a 3 }", health="/a/3")
    assert pod.once().returncode == 0
    assert pod.live() == {"a/3/saved_model.pb"}
    assert pod.models() == "model_config_list {\nconfig { a 3 }\n}\n"
    assert not pod.ready()
    with pod.following():
        pod.loaded.add("/a/3")
        wait_until(pod.ready, "ready")
        pod.publish("b/1/saved_model.pb")
        pod.declare("b", "b/1 s3_a:b/1 all", config="config { b 1 }", health="/b/1")
        wait_until(lambda: "b 1" in pod.models(), "b in the list")
        assert "b/1/saved_model.pb" in pod.live()
        assert pod.ready()  # although b is not loaded yet
        pod.withdraw("a")
        wait_until(lambda: "a 3" not in pod.models(), "a not in the list")
        wait_until(lambda: pod.live() == {"b/1/saved_model.pb"}, "the files of a are gone")


@pytest.mark.needs("rclone")
def test_a_model_that_is_not_there_keeps_the_entry_of_before(pod: Pod) -> None:
    pod.publish("a/3/saved_model.pb")
    pod.publish("b/1/saved_model.pb")
    pod.declare("a", "a/3 s3_a:a/3 all", config="config { a 3 }", health="/a/3")
    assert pod.once().returncode == 0
    pod.declare("a", "a/3 s3_a:a/3 all", "a/4 s3_a:a/4 all", config="config { a 3 4 }", health="/a/3")
    pod.declare("b", "b/1 s3_a:b/1 all", config="config { b 1 }")
    failed = pod.once()
    assert failed.returncode != 0
    assert "not copied: a" in failed.stderr
    assert pod.models() == "model_config_list {\nconfig { a 3 }\nconfig { b 1 }\n}\n"
    pod.publish("a/4/saved_model.pb")
    assert pod.once().returncode == 0
    assert "config { a 3 4 }" in pod.models()


@pytest.mark.needs("rclone")
def test_an_empty_prefix_is_an_error(pod: Pod) -> None:
    (pod.store / "a" / "3").mkdir(parents=True)
    pod.declare("a", "a/3 s3_a:a/3 all", config="config { a 3 }")
    failed = pod.once()
    assert failed.returncode != 0
    assert "s3_a:a/3 has no files" in failed.stderr
    assert "config { a 3 }" not in pod.models()


@pytest.mark.needs("rclone")
def test_a_repository_has_the_declared_versions_only(pod: Pod) -> None:
    for path in ("d/config.pbtxt", "d/labels.txt", "d/3/model.onnx", "d/4/model.onnx", "d/5/model.onnx"):
        pod.publish(path)
    base, three, four = "d s3_a:d unnumbered", "d/3 s3_a:d/3 all", "d/4 s3_a:d/4 all"
    pod.declare("d", base, three)
    assert pod.once().returncode == 0
    assert pod.live() == {"d/config.pbtxt", "d/labels.txt", "d/3/model.onnx"}
    pod.declare("d", base, four)
    with pod.following():
        wait_until(lambda: pod.live() == {"d/config.pbtxt", "d/labels.txt", "d/4/model.onnx"}, "version 4 instead of 3")


@pytest.mark.needs("rclone")
def test_a_model_that_stops_serving_makes_the_pod_unready(pod: Pod) -> None:
    pod.publish("a/3/saved_model.pb")
    pod.declare("a", "a/3 s3_a:a/3 all", config="config { a 3 }", health="/a/3")
    assert pod.once().returncode == 0
    pod.loaded.add("/a/3")
    with pod.following():
        wait_until(pod.ready, "ready")
        pod.loaded.clear()
        wait_until(lambda: not pod.ready(), "not ready")
        pod.loaded.add("/a/3")
        wait_until(pod.ready, "ready again")
