"""Models that come and go while a server answers: the real script, the real rclone, and an S3 endpoint."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.kinds.test_model_follower import Pod
from tools.objectstore import ACCESS_KEY, SECRET_KEY, ObjectStore
from tools.waiting import wait_until

VERSIONS = 100


class Server:
    """Answers `/MODEL/VERSION` for what the list of models names, with its file, read anew for each request.

    It polls the list as TensorFlow Serving does, and keeps no copy: a file that is taken away too early is a failed
    request.
    """

    def __init__(self, pod: Pod) -> None:
        self._pod = pod

    def body(self, path: str) -> bytes | None:
        model, _, version = path.strip("/").partition("/")
        entries = dict(re.findall(r"config \{ (\S+) ([\d ]+) \}", self._pod.models()))
        if version not in entries.get(model, "").split():
            return None
        file = self._pod.volume / "live" / model / version / "model"
        return file.read_bytes() if file.exists() else None


class Client:
    """Asks for a model all the time, and keeps what failed."""

    def __init__(self, url: str) -> None:
        self.url, self.requests, self.failed = url, 0, list[str]()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with httpx.Client(trust_env=False, timeout=10) as client:
            while not self._ended.is_set():
                answer = client.get(self.url)
                self.requests += 1
                if answer.status_code != 200:
                    self.failed.append(f"{answer.status_code} at request {self.requests}")

    @contextmanager
    def asking(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._ended.set()
            self._thread.join()


@pytest.mark.needs("rclone")
def test_a_model_is_added_and_versions_change_without_a_failed_request(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    try:
        with ObjectStore() as store:
            client = store.client()
            client.create_bucket(Bucket="models")
            for name in ("a/1", *(f"b/{version}" for version in range(1, VERSIONS + 1))):
                client.put_object(Bucket="models", Key=f"{name}/model", Body=name.encode() * 1000)
            pod.env |= {
                "RCLONE_CONFIG_S3_A_TYPE": "s3",
                "RCLONE_CONFIG_S3_A_PROVIDER": "AWS",
                "RCLONE_CONFIG_S3_A_ACCESS_KEY_ID": ACCESS_KEY,
                "RCLONE_CONFIG_S3_A_SECRET_ACCESS_KEY": SECRET_KEY,
                "RCLONE_CONFIG_S3_A_ENDPOINT": store.url,
            }
            added_while_serving(pod)
    finally:
        pod.server.shutdown()


def added_while_serving(pod: Pod) -> None:
    def declare_b(*versions: int) -> None:
        lines = [f"b/{version} s3_a:models/b/{version} all" for version in versions]
        pod.declare("b", *lines, config=f"config {{ b {' '.join(map(str, versions))} }}", health=f"/b/{versions[-1]}")

    pod.answers = Server(pod).body
    url = f"http://127.0.0.1:{pod.server.server_port}"
    pod.declare("a", "a/1 s3_a:models/a/1 all", config="config { a 1 }", health="/a/1")
    assert pod.once().returncode == 0
    with pod.following():
        wait_until(pod.ready, "ready")
        client = Client(f"{url}/a/1")
        with client.asking(), httpx.Client(trust_env=False) as other:
            declare_b(VERSIONS - 1)
            wait_until(lambda: other.get(f"{url}/b/{VERSIONS - 1}").status_code == 200, "the new model answers")
            declare_b(VERSIONS - 1, VERSIONS)
            wait_until(lambda: other.get(f"{url}/b/{VERSIONS}").status_code == 200, "its next version answers")
            # Of all that the store has, the declared ones only.
            assert pod.live() == {f"{name}/model" for name in ("a/1", f"b/{VERSIONS - 1}", f"b/{VERSIONS}")}
            declare_b(VERSIONS)
            wait_until(lambda: pod.live() == {"a/1/model", f"b/{VERSIONS}/model"}, "the version before is gone")
            assert other.get(f"{url}/b/{VERSIONS}").content == f"b/{VERSIONS}".encode() * 1000
            assert pod.ready()
        assert client.requests > 0
        assert client.failed == []
