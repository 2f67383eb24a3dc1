"""Requests that are not what HTTP says: each has an answer below 500, and none a traceback."""

from __future__ import annotations

import asyncio
import logging
from itertools import product

import pytest
from prometheus_client import CollectorRegistry

from avactl.kube import http_server
from avactl.workbench.jobs.dashboard.server import Dashboard
from avactl.workbench.jobs.dashboard.source import DashboardSource
from avactl.workbench.jobs.state import TrainingJobState
from avactl.workbench.jobs.view import JobsView

_BYTES = (
    b"\xff\xfe",
    b"\x80",
    b"\xed\xa0\x80",
    b"\x00",
    b"%ff",
    b"%00",
    b"%ed%a0%80",
    b"%0d%0aX:%201",
    b"=",
    b"a" * 9000,
)
_TEMPLATES = (
    b"GET / HTTP/1.1\r\n%(host)sCookie: %(cookie)s=%(odd)s\r\n\r\n",
    b"GET / HTTP/1.1\r\n%(host)sCookie: %(odd)s=x\r\n\r\n",
    b"GET /?token=%(odd)s HTTP/1.1\r\n%(host)s\r\n",
    b"GET /%(odd)s?token=%(token)s HTTP/1.1\r\n%(host)s\r\n",
    b"GET /%(odd)s HTTP/1.1\r\n%(host)s\r\n",
    b"GET /job/%(odd)s/x HTTP/1.1\r\n%(host)sCookie: %(cookie)s=%(token)s\r\n\r\n",
    b"GET /metrics?%(odd)s HTTP/1.1\r\n%(host)s\r\n",
    b"GET /metrics HTTP/1.1\r\n%(host)sAccept-Encoding: %(odd)s\r\nRange: %(odd)s\r\n\r\n",
    b"GET / HTTP/1.1\r\n%(host)sAuthorization: Bearer %(odd)s\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: %(odd)s\r\n\r\n",
    b"%(odd)s / HTTP/1.1\r\n%(host)s\r\n",
    b"GET / HTTP/%(odd)s\r\n%(host)s\r\n",
    b"POST / HTTP/1.1\r\n%(host)sContent-Type: %(odd)s\r\nContent-Length: 2\r\n\r\n\xff\xff",
    b"POST / HTTP/1.1\r\n%(host)sContent-Length: %(odd)s\r\n\r\n",
)


class EmptySource(DashboardSource):
    """No jobs."""

    def jobs(self) -> list[TrainingJobState]:
        return []


async def _status(port: int, request: bytes) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    line = await asyncio.wait_for(reader.readline(), 30)
    writer.close()
    return int(line.split()[1])


def test_no_request_is_a_server_error(caplog: pytest.LogCaptureFixture) -> None:
    async def ask_all() -> list[tuple[bytes, int]]:
        dashboard = Dashboard(EmptySource(JobsView.__new__(JobsView), None))
        pages, address = await dashboard.start("127.0.0.1:0")
        metrics = await http_server.serve("127.0.0.1:0", lambda: True, lambda: True, lambda: None, CollectorRegistry())
        token = address.partition("token=")[2].encode()
        answers = []
        for server, template, odd in product((pages, metrics), _TEMPLATES, _BYTES):
            port = server.addresses[0][1]
            host = b"Host: 127.0.0.1:%d\r\nConnection: close\r\n" % port
            values = {b"host": host, b"cookie": b"avactl-dashboard-%d" % port, b"token": token, b"odd": odd}
            request = template % values
            answers.append((request, await _status(port, request)))
        for server in (pages, metrics):
            await server.cleanup()
        return answers

    caplog.set_level(logging.WARNING)
    answers = asyncio.run(ask_all())
    assert [(request, status) for request, status in answers if not 200 <= status < 500] == []
    assert {status for _, status in answers} >= {200, 303, 400, 401, 404, 421}
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
