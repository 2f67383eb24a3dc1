"""HTTP server of the dashboard.

It listens on loopback. Other users of the machine can connect there, and pages of other sites can make the browser do
so: a request needs a token, which only the address in the caller's terminal has, and the right Host header.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import secrets
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from importlib.resources import files
from time import monotonic

from aiohttp import web

from avactl.base.terminal import duration_text
from avactl.kube import http_server
from avactl.kube.listen import split_address
from avactl.workbench.jobs.dashboard import pages
from avactl.workbench.jobs.dashboard.markup import Markup
from avactl.workbench.jobs.dashboard.source import DashboardSource

_SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_STATIC_FILES = {"style.css": "text/css", "live.js": "text/javascript"}
_VIEW_LIFETIME_S = 1.0
"""Seconds for which a page is kept: several browsers cost no more than one."""
_MAX_KEPT = 50
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def is_loopback(listen: str) -> bool:
    """Return True if an address is of loopback. Raises ValueError for what is no address."""
    host = split_address(listen)[0]
    return host == "localhost" or ipaddress.ip_address(host).is_loopback


class Dashboard:
    """The pages, and who may see them."""

    def __init__(self, source: DashboardSource) -> None:
        self._source = source
        self._token = secrets.token_urlsafe(24)
        self._hosts: frozenset[str] = frozenset()
        self._cookie = ""
        self._kept: dict[str, tuple[float, str, int]] = {}

    async def start(self, listen: str) -> tuple[web.AppRunner, str]:
        """Listen at HOST:PORT; return the runner and the address to open. Raises ListenError."""

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._guard(request, handler)

        app = web.Application(middlewares=[guard], client_max_size=1024)
        app.router.add_get("/", self._overview)
        app.router.add_get("/job/{namespace}/{name}", self._job)
        app.router.add_get("/{name:style.css|live.js}", self._static)
        runner = await http_server.start(app, listen)
        host, port = split_address(listen)[0], runner.addresses[0][1]
        named = f"[{host}]" if ":" in host else host
        self._cookie = f"avactl-dashboard-{port}"
        self._hosts = frozenset(f"{name}:{port}" for name in (named, "localhost", "127.0.0.1", "[::1]"))
        return runner, f"http://{named}:{port}/?token={self._token}"

    # -- who ---------------------------------------------------------------------------------------------------------

    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = self._refusal(request) or await handler(request)
        except web.HTTPException as error:
            response = _problem_response(
                "Not found" if error.status == 404 else "Not possible", error.reason, error.status
            )
        response.headers.update(_SECURITY_HEADERS)
        return response

    def _refusal(self, request: web.Request) -> web.Response | None:
        """Return the answer to a request that may see nothing, or that logs in."""
        if request.headers.get("Host", "") not in self._hosts:
            # A name of another site that resolves to loopback (DNS rebinding).
            return web.Response(status=421, text="this is not the host of the dashboard\n")
        if self._is_token(request.query.get("token", "")):
            answer = web.Response(status=303, headers={"Location": f"/{request.rel_url.raw_path.lstrip('/')}"})
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="Strict", path="/")
            return answer
        if self._is_token(request.cookies.get(self._cookie, "")) or request.path[1:] in _STATIC_FILES:
            return None
        return _problem_response(
            "Not signed in", "Open the address that `avactl dashboard` printed; it contains a token.", 401
        )

    def _is_token(self, text: str) -> bool:
        # The bytes of a header that are not UTF-8 are surrogates.
        return hmac.compare_digest(text.encode(errors="surrogateescape"), self._token.encode())

    # -- pages -------------------------------------------------------------------------------------------------------

    async def _overview(self, request: web.Request) -> web.Response:
        def build() -> tuple[str, Markup, int]:
            found = self._source.jobs()
            return "Training jobs", pages.overview_page(found, self._source.cluster(), self._notes(), _utc_now()), 200

        return self._answer("", build)

    async def _job(self, request: web.Request) -> web.Response:
        place = request.match_info["namespace"], request.match_info["name"]

        def build() -> tuple[str, Markup, int]:
            found = [job for job in self._source.jobs() if (job.namespace, job.name) == place]
            if not found:
                why = "It was deleted, or you may not see it."
                return "No such job", pages.problem_page("There is no such job", why), 404
            return "/".join(place), pages.job_page(found[0], _utc_now()), 200

        return self._answer("/".join(place), build)

    def _answer(self, key: str, build: Callable[[], tuple[str, Markup, int]]) -> web.Response:
        kept = self._kept.get(key)
        if kept is None or monotonic() - kept[0] > _VIEW_LIFETIME_S:
            title, main, status = build()
            kept = monotonic(), pages.page_document(title, main), status
            if len(self._kept) >= _MAX_KEPT:
                self._kept.clear()
            self._kept[key] = kept
        return web.Response(text=kept[1], status=kept[2], content_type="text/html")

    def _notes(self) -> list[str]:
        view = self._source.view
        found = []
        if view.namespace:
            found.append(f"Only jobs of namespace {view.namespace}.")
        if view.hidden:
            found.append("Progress is not shown: this account is not permitted to read ConfigMaps.")
        if view.silent is not None:
            silent = duration_text(monotonic() - view.silent)
            found.append(f"No answer from the API server for {silent}; this is the last known state.")
        return found

    async def _static(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        text = files("avactl.workbench.jobs.dashboard").joinpath("static", name).read_text(encoding="utf-8")
        return web.Response(text=text, content_type=_STATIC_FILES[name])


def _problem_response(title: str, text: str, status: int) -> web.Response:
    return web.Response(
        text=pages.page_document(title, pages.problem_page(title, text)), status=status, content_type="text/html"
    )


def _utc_now() -> datetime:
    return datetime.now(UTC)


async def serve(source: DashboardSource, listen: str, told: Callable[[str], None]) -> None:
    """Serve until cancelled; `told` gets the address. Raises ListenError."""
    runner, address = await Dashboard(source).start(listen)
    told(address)
    try:
        await source.follow()
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
