"""A model server: `python server.py FOLDER ADDRESS PORT [GRPC_PORT]`, with the variables of its pod.

It loads the version AVACTL_MODEL_VERSION of a scikit-learn model, and answers POST /predict with the digit of a
picture, GET /health and GET /metrics, and with `?wait=SECONDS` not before; by gRPC, `digits.Digits/Predict` with the
same JSON as messages. Responses name the version in `X-Version`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import grpc.aio
import joblib
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, Counter, Histogram, generate_latest

VERSION = os.environ["AVACTL_MODEL_VERSION"]
REQUESTS = Counter("digits_requests_total", "Predictions, by status.", ["code"])
SECONDS = Histogram(
    "digits_request_seconds", "Time of a prediction.", buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
)


class Server:
    """The ASGI application."""

    def __init__(self, folder: Path) -> None:
        self._model = joblib.load(folder / VERSION / "model.joblib")
        self._lookup = float(json.loads((folder / VERSION / "config.json").read_text())["lookup"])
        for code in ("200", "500"):
            REQUESTS.labels(code)

    async def __call__(self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Any) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        content = b""
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return
            content += message.get("body", b"")
            if not message.get("more_body"):
                break
        for seconds in parse_qs(scope["query_string"]).get(b"wait", ()):
            await asyncio.sleep(float(seconds))
        status, body = await self._answer(scope["path"], content)
        kind = CONTENT_TYPE_LATEST if scope["path"] == "/metrics" else "application/json"
        headers = [
            (b"content-length", str(len(body)).encode()),
            (b"content-type", kind.encode()),
            (b"x-version", VERSION.encode()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, path: str, content: bytes) -> tuple[int, bytes]:
        if path == "/metrics":
            return 200, generate_latest()
        if path == "/health":
            return 200, b"ok"
        if path != "/predict":
            return 404, b""
        return await self._predict(content)

    async def call(self, content: bytes, context: Any) -> bytes:
        """Answer one gRPC call."""
        await context.send_initial_metadata((("x-version", VERSION),))
        status, body = await self._predict(content)
        if status != 200:
            await context.abort(grpc.StatusCode.INTERNAL, body.decode())
        return body

    async def _predict(self, content: bytes) -> tuple[int, bytes]:
        began = time.perf_counter()
        if self._lookup:
            await asyncio.sleep(self._lookup)
        try:
            (digit,) = self._model.predict([json.loads(content)])
            status, body = 200, json.dumps(int(digit)).encode()
        except ValueError as error:
            status, body = 500, str(error).encode()
        REQUESTS.labels(str(status)).inc()
        SECONDS.observe(time.perf_counter() - began)
        return status, body


async def _serve(folder: str, address: str, port: str, *grpc_port: str) -> None:
    server = Server(Path(folder))
    config = uvicorn.Config(
        server,
        host=address,
        port=int(port),
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_keep_alive=120,
        timeout_graceful_shutdown=10,
    )
    calls = grpc.aio.server()
    handlers = {"Predict": grpc.unary_unary_rpc_method_handler(server.call)}
    calls.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("digits.Digits", handlers),))
    for each in grpc_port:
        calls.add_insecure_port(f"{address}:{each}")
    await calls.start()
    await uvicorn.Server(config).serve()
    await calls.stop(10)


def main() -> None:
    """Serve until SIGTERM; requests that have begun are answered."""
    asyncio.run(_serve(*sys.argv[1:]))


main()
