"""The routers of vLLM and SGLang, as compiled: they find the pods of both roles at a real API server, with their own
account, and send each request to one pod of each."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from avactl.program.manifest import templates_of
from tests.kinds.compiling import DIGEST, compiled
from tools.controlplane import ControlPlane, KubeClient
from tools.controlplane.process import free_port, spawn, tail
from tools.frameworks.build import build_routers
from tools.waiting import wait_until

# The routers are a download of 60 MB: too much for the first run of `make test`.
pytestmark = [pytest.mark.controlplane, pytest.mark.slow, pytest.mark.xdist_group("routers")]
PLATFORM = f"""
kind: Cluster
metadata: {{name: main}}
spec:
  images: {{avactl: registry.example.com/avactl{DIGEST}}}
  leaderWorkerSet: {{}}
---
kind: Team
metadata: {{name: vision}}
spec: {{members: {{groups: [vision]}}}}
"""
# Loopback addresses that stand for pods: of each role, of a pod that only computes, and of another service.
ADDRESSES = {"prefill": "127.0.1.1", "decode": "127.0.1.2", "worker": "127.0.1.3", "other": "127.0.1.4"}


def service(runtime: str, port: int, metrics: int) -> str:
    # The servers of the test are on other addresses of the machine's loopback, with the port of the service.
    return f"""
---
kind: ServingDeployment
metadata: {{name: chat, team: vision}}
spec:
  model: {{name: chat, version: "1", path: /opt/chat-1}}
  runtime: {{name: {runtime}, image: "registry.example.com/{runtime}{DIGEST}", port: {port}}}
  llm:
    prefill:
      router:
        image: "registry.example.com/router{DIGEST}"
        args: [--host=127.0.0.1, --prometheus-host=127.0.0.1, --prometheus-port={metrics}]
"""


class Servers:
    """Model servers that record what they are asked."""

    def __init__(self, port: int) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self._running = [self._start(name, address, port) for name, address in ADDRESSES.items()]

    def _start(self, name: str, address: str, port: int) -> ThreadingHTTPServer:
        asked = self.asked

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                self._answer({"model_path": "/opt/chat-1", "data": [{"id": "chat", "object": "model"}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if self.path == "/v1/chat/completions":
                    asked.append((name, body))
                message = {"index": 0, "message": {"role": "assistant", "content": name}, "finish_reason": "stop"}
                moved = {"do_remote_prefill": True, "remote_host": ADDRESSES["prefill"]}
                self._answer({"id": "1", "model": "chat", "choices": [message], "kv_transfer_params": moved})

            def _answer(self, value: dict[str, Any]) -> None:
                content = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        server = ThreadingHTTPServer((address, port), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def close(self) -> None:
        for server in self._running:
            server.shutdown()
            server.server_close()


def add_pod(kube: KubeClient, name: str, labels: dict[str, str], notes: dict[str, str], ready: bool = True) -> None:
    metadata = {"name": name, "namespace": "vision", "labels": labels, "annotations": notes}
    container = {"name": "server", "image": "registry.example.com/x:1"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    kube.create(pod)
    state = "True" if ready else "False"
    status = {
        "phase": "Running",
        "podIP": ADDRESSES[name],
        "podIPs": [{"ip": ADDRESSES[name]}],
        "conditions": [{"type": "Ready", "status": state}, {"type": "ContainersReady", "status": state}],
    }
    kube.patch(
        {**{key: pod[key] for key in ("apiVersion", "kind", "metadata")}, "status": status}, subresource="/status"
    )


def ask(port: int, path: str, body: object = None) -> tuple[int, bytes]:
    """Return status and content of an answer; status 0 without one."""
    content = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", content, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError:
        return 0, b""


@contextmanager
def started(command: list[str], log: Path, kubeconfig: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = spawn(command, log, {**os.environ, "KUBECONFIG": str(kubeconfig)})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("runtime", ["vllm", "sglang"])
def test_a_request_reaches_a_pod_of_each_role(
    runtime: str, new_plane: Callable[..., ControlPlane], tmp_path: Path
) -> None:
    programs = build_routers()
    port, metrics = free_port(), free_port()
    result = compiled(PLATFORM + service(runtime, port, metrics))
    found = {(m.kind, m.name): m.body for m in result.manifests if m.item.kind == "ServingDeployment"}
    templates = {path[2]: each["metadata"] for path, each in templates_of(found["DisaggregatedSet", "chat"])}
    (container,) = found["Deployment", "chat-router"]["spec"]["template"]["spec"]["containers"]
    program, *words = container["command"]
    command = [str(programs / {"python3": "python"}.get(program, program)), *words, *container["args"]]
    plane = new_plane()
    servers = Servers(port)
    log = tmp_path / "router.log"
    try:
        with plane.client() as kube:
            kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "vision"}})
            for kind in ("ServiceAccount", "Role", "RoleBinding"):
                kube.apply(found[kind, "chat-router"])
            kube.apply(
                {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "vision"}}
            )
            notes = {role: metadata.get("annotations") or {} for role, metadata in templates.items()}
            add_pod(kube, "prefill", templates["prefill"]["labels"], notes["prefill"])
            labels = templates["decode"]["labels"]
            add_pod(kube, "worker", {**labels, "app.kubernetes.io/component": "worker"}, notes["decode"])
            add_pod(kube, "other", {**labels, "app.kubernetes.io/instance": "other"}, notes["decode"])
            kubeconfig = tmp_path / "kubeconfig"
            plane.write_kubeconfig(kubeconfig, plane.service_account_token("vision", "chat-router", 3600))
            path = container["readinessProbe"]["httpGet"]["path"]
            with started(command, log, kubeconfig) as process:
                # Without a pod that generates tokens, the router gets no requests.
                wait(lambda: ask(port, "/liveness")[0] == 200, process, log)
                wait(lambda: ask(port, path)[0] == 503, process, log)
                add_pod(kube, "decode", labels, notes["decode"])
                wait(lambda: ask(port, path)[0] == 200, process, log)
                prompt = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}
                status, content = ask(port, "/v1/chat/completions", prompt)
                assert (status, json.loads(content)["choices"][0]["message"]["content"]) == (200, "decode")
                assert ask(metrics, "/metrics")[0] == 200
    finally:
        servers.close()
    asked = dict(servers.asked)
    assert sorted(name for name, _ in servers.asked) == ["decode", "prefill"]
    if runtime == "vllm":
        assert asked["prefill"]["max_tokens"] == 1
        assert asked["prefill"]["kv_transfer_params"]["do_remote_decode"] is True
        assert asked["decode"]["kv_transfer_params"]["do_remote_prefill"] is True
    else:
        rooms = [(each["bootstrap_host"], each["bootstrap_port"], each["bootstrap_room"]) for each in asked.values()]
        assert rooms[0] == rooms[1]
        assert rooms[0][:2] == (ADDRESSES["prefill"], 8998)


def wait(condition: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    wait_until(condition, details=lambda: tail(log, 30), failed=lambda: process.poll() is not None)
