"""Models of Hugging Face's hub: the init container, and its script with the real library against a stub of its API."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from avactl.kinds.serving.hub import COPY_SCRIPT
from avactl.program.manifest import Body
from tests.kinds.test_serving import HEAD
from tests.kinds.test_serving_groups import objects
from tools.frameworks.build import build_hub

COMMIT = "9216db5781bf21249d130ec9da846c4624c16137"
URL = f"hf://Qwen/Qwen3@{COMMIT}"
SPEC = f"""{HEAD}
  model: {{name: chat, version: "1", url: "{URL}", secret: hub, size: 40Gi}}
  runtime: {{name: vllm, image: "vllm/vllm-openai:v0.33.0"}}
  env: {{HF_ENDPOINT: "https://hub.example.com"}}
"""


def container(found: dict[tuple[str, str], Body]) -> Body:
    (first, *_) = found["Deployment", "classifier"]["spec"]["template"]["spec"]["initContainers"]
    return dict(first)


@cache
def compiled_container() -> Body:
    return container(objects(SPEC))


def test_the_servers_image_copies_the_model_before_it_starts_offline() -> None:
    found = objects(SPEC)
    init = container(found)
    assert (init["name"], init["image"], init["command"]) == (
        "model",
        "vllm/vllm-openai:v0.33.0",
        ["python3", "-c", COPY_SCRIPT],
    )
    env = {each["name"]: each.get("value", each.get("valueFrom")) for each in init["env"]}
    assert (env["SOURCE"], env["TARGET"], env["SIZE"]) == (URL, "/models/chat", str(40 << 30))
    assert env["HF_TOKEN"] == {"secretKeyRef": {"name": "hub", "key": "token", "optional": True}}
    assert (env["HF_HUB_OFFLINE"], env["HF_ENDPOINT"]) == ("0", "https://hub.example.com")
    assert env["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert init["volumeMounts"] == [{"name": "model", "mountPath": "/models/chat"}]
    pod = found["Deployment", "classifier"]["spec"]["template"]["spec"]
    assert {"name": "model", "emptyDir": {"sizeLimit": "40Gi"}} in pod["volumes"]
    server = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    assert server["HF_HUB_OFFLINE"] == "1"
    assert "HF_TOKEN" not in server
    # The time of a copy is that of its size, as with other stores.
    plain = objects(SPEC.replace(URL, "s3://models/qwen"))
    deadline = found["Deployment", "classifier"]["spec"]["progressDeadlineSeconds"]
    assert deadline == plain["Deployment", "classifier"]["spec"]["progressDeadlineSeconds"]


def test_a_model_needs_no_token_and_an_adapter_may_come_from_the_hub() -> None:
    adapter = f"  llm: {{adapters: [{{name: sql, url: 'hf://vision/sql@{COMMIT}', files: ['*.json']}}]}}\n"
    found = objects(SPEC.replace("secret: hub, ", "") + adapter)
    first, second = found["Deployment", "classifier"]["spec"]["template"]["spec"]["initContainers"]
    env = {each["name"]: each.get("value") for each in second["env"]}
    assert "HF_TOKEN" not in {each["name"] for each in [*first["env"], *second["env"]]}
    assert (second["name"], env["SOURCE"], env["FILES"]) == (
        "adapter-0",
        f"hf://vision/sql@{COMMIT}",
        '["*.json"]',
    )


# -- the script, with the real library

FILES = {
    "config.json": b'{"model_type": "qwen3"}',
    "model-1.safetensors": b"\1" * 300_000,
    "model-2.safetensors": b"\2" * 5000,
    "pytorch_model.bin": b"\3" * 700_000,
    "original/consolidated.00.pth": b"\4" * 700_000,
}


class Hub:
    """What the hub answers for one model."""

    def __init__(self) -> None:
        self.files = dict(FILES)
        self.error = (0, "")
        """Status and X-Error-Code of all answers; 0: none."""
        self.cut = 0
        """Bytes after which the next connections break off."""
        self.tokens: set[str] = set()
        self.ranges: list[str] = []
        self.got: list[str] = []


def handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._serve(body=False)

        def do_GET(self) -> None:
            self._serve(body=True)

        def log_message(self, *_: object) -> None:
            pass

        def _serve(self, body: bool) -> None:
            hub.tokens.add(self.headers.get("Authorization", ""))
            status, code = hub.error
            path = urlsplit(self.path).path
            if status:
                self._send(status, b"{}", {"X-Error-Code": code} if code else {}, body)
            elif path.startswith("/api/models/Qwen/Qwen3"):
                siblings = [{"rfilename": name, "size": len(content)} for name, content in hub.files.items()]
                answer = {"id": "Qwen/Qwen3", "modelId": "Qwen/Qwen3", "sha": COMMIT, "siblings": siblings}
                if "/tree/" in path:
                    tree = [{"type": "file", "path": k, "size": len(v), "oid": "0"} for k, v in hub.files.items()]
                    self._send(200, json.dumps(tree).encode(), {}, body)
                    return
                self._send(200, json.dumps(answer).encode(), {}, body)
            elif (name := path.partition(f"/resolve/{COMMIT}/")[2]) in hub.files:
                self._file(name, body)
            else:
                self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"}, body)

        def _file(self, name: str, body: bool) -> None:
            content = hub.files[name]
            headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
            headers["Accept-Ranges"] = "bytes"
            start = re.fullmatch(r"bytes=(\d+)-.*", self.headers.get("Range", ""))
            status, first = 200, 0
            if start:
                hub.ranges.append(f"{name} {start[1]}")
                status, first = 206, int(start[1])
                headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
            if body:
                hub.got.append(name)
            self._send(status, content[first:], headers, body)

        def _send(self, status: int, content: bytes, headers: dict[str, str], body: bool) -> None:
            self.send_response(status)
            for key, value in {"Content-Length": str(len(content)), "Content-Type": "application/json"}.items():
                self.send_header(key, value)
            for key, value in headers.items():
                self.send_header(key, value)
            self.end_headers()
            if not body:
                return
            if hub.cut and len(content) > hub.cut:
                self.wfile.write(content[: hub.cut])
                self.wfile.flush()
                self.connection.close()
                self.close_connection = True
                return
            self.wfile.write(content)

    return Handler


@contextmanager
def served(hub: Hub) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(hub))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Copy:
    """The init container, as compiled, with the library of the pins."""

    def __init__(self, python: Path, endpoint: str, folder: Path) -> None:
        self._python, self.endpoint, self.folder = python, endpoint, folder / "model"
        self._home = folder / "home"
        self._home.mkdir()

    def run(self, token: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        init = compiled_container()
        env = {each["name"]: each["value"] for each in init["env"] if "value" in each}
        env |= {"HF_ENDPOINT": self.endpoint, "HOME": str(self._home), "HF_HOME": str(self._home / "hf")}
        env |= {"TARGET": str(self.folder), "NO_PROXY": "*", "HF_HUB_DOWNLOAD_TIMEOUT": "5", **more}
        if token:
            env["HF_TOKEN"] = token
        command = [str(self._python), *init["command"][1:]]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300)

    def copied(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in self.folder.rglob("*")
            if path.is_file() and ".cache" not in path.parts
        }


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
def copy(hub: Hub, tmp_path: Path) -> Iterator[Copy]:
    with served(hub) as endpoint:
        yield Copy(build_hub() / "python", endpoint, tmp_path)


# The library is a download of 10 MB: too much for the first run of `make test`.
LIBRARY = pytest.mark.slow


@LIBRARY
def test_the_safetensors_of_one_commit_are_copied(hub: Hub, copy: Copy) -> None:
    done = copy.run("hf_secret")
    assert (done.returncode, done.stderr) == (0, "")
    assert copy.copied() == {
        name: FILES[name] for name in ("config.json", "model-1.safetensors", "model-2.safetensors")
    }
    assert hub.tokens == {"Bearer hf_secret"}
    assert "hf_secret" not in done.stdout + done.stderr
    # A container that starts again copies nothing twice.
    hub.got.clear()
    assert copy.run("hf_secret").returncode == 0
    assert hub.got == []


@LIBRARY
def test_weights_of_a_part_are_not_those_of_the_model(hub: Hub, copy: Copy) -> None:
    """Sentence transformers have a layer of their own in a folder beside the model."""
    hub.files = {"config.json": b"{}", "pytorch_model.bin": b"w", "1_Dense/model.safetensors": b"d"}
    assert copy.run().returncode == 0
    assert copy.copied() == hub.files


@LIBRARY
@pytest.mark.parametrize("error", [(404, "RepoNotFound"), (500, "")])
def test_the_password_of_a_mirror_is_not_told(hub: Hub, copy: Copy, error: tuple[int, str]) -> None:
    hub.error = error
    mirror = copy.endpoint.replace("://", "://bob:S3cretPw@")
    done = copy.run(HF_ENDPOINT=mirror)
    assert done.returncode == 1
    assert "error: Qwen/Qwen3 on http://127.0.0.1:" in done.stderr
    assert "S3cretPw" not in done.stdout + done.stderr


@LIBRARY
def test_files_can_be_chosen(copy: Copy) -> None:
    assert copy.run(FILES='["*.json", "original/*"]').returncode == 0
    assert set(copy.copied()) == {"config.json", "original/consolidated.00.pth"}
    done = copy.run(FILES='["*.gguf"]')
    assert done.returncode == 1
    assert "none of 5 files matches ['*.gguf']" in done.stderr


@LIBRARY
def test_a_broken_connection_goes_on_where_it_was(hub: Hub, copy: Copy) -> None:
    # The library reads 10 MiB at a time.
    hub.files["model-1.safetensors"], hub.cut = b"\5" * (12 << 20), 11 << 20
    done = copy.run()
    assert done.returncode == 0, done.stderr
    assert copy.copied()["model-1.safetensors"] == hub.files["model-1.safetensors"]
    assert f"model-1.safetensors {10 << 20}" in hub.ranges


@LIBRARY
def test_a_container_that_was_killed_leaves_no_parts_behind(copy: Copy) -> None:
    part = copy.folder / ".cache/huggingface/download/model-1.safetensors.x.0123abcd.incomplete"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 1000)
    assert copy.run().returncode == 0
    assert not part.exists()


@LIBRARY
@pytest.mark.parametrize(
    ("error", "token", "said"),
    [
        ((401, "GatedRepo"), "", "is gated: there is no key `token` in `secret` of the model"),
        ((403, "GatedRepo"), "hf_x", "is gated: its account has not accepted the conditions"),
        ((401, "RepoNotFound"), "", "does not exist, or needs a token"),
        ((404, "RepoNotFound"), "hf_x", "does not exist, or the token may not read it"),
        ((404, "RevisionNotFound"), "", f"has no commit {COMMIT}"),
        ((401, ""), "hf_x", "the token is not valid"),
    ],
)
def test_refusals_are_told(hub: Hub, copy: Copy, error: tuple[int, str], token: str, said: str) -> None:
    hub.error = error
    done = copy.run(token)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: Qwen/Qwen3 on http://127.0.0.1:")
    assert said in last
    assert "hf_x" not in done.stderr


@LIBRARY
def test_a_model_larger_than_its_volume_is_refused_at_once(hub: Hub, copy: Copy) -> None:
    done = copy.run(SIZE="1000")
    assert done.returncode == 1
    assert "3 files have 0.0 GiB, and `size` of the model is 0.0 GiB" in done.stderr
    assert hub.got == []


@LIBRARY
def test_a_hub_that_does_not_answer(tmp_path: Path) -> None:
    done = Copy(build_hub() / "python", "http://127.0.0.1:9", tmp_path).run()
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("error: Qwen/Qwen3 on http://127.0.0.1:9: ")


@LIBRARY
def test_a_full_disk_is_told(copy: Copy, tmp_path: Path) -> None:
    # A program that has the library's writes fail, as on a full disk.
    broken = tmp_path / "full"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(
        "import huggingface_hub.file_download as f, errno\n"
        "def fail(*_, **__): raise OSError(errno.ENOSPC, 'No space left on device')\n"
        "f.http_get = fail\n"
    )
    done = copy.run(PYTHONPATH=str(broken))
    assert done.returncode == 1
    assert "no space left on the volume or the machine" in done.stderr
