"""Probes of a server → `probes` of a ServingDeployment, and a patch for what it has no keys for."""

from __future__ import annotations

import re
from typing import Any

from avactl.workbench.importer.model import Body
from avactl.workbench.importer.sources.training import format_seconds

_KINDS = ("startup", "readiness", "liveness")
_CHECK_KEYS = {"httpGet", "periodSeconds", "timeoutSeconds", "failureThreshold"}


def probe_key(kind: str) -> str:
    """Return the key of a container for a kind of probe."""
    return f"{kind}Probe"


def health_path(container: Body) -> str:
    """Return a path that an HTTP probe of the container asks; "" if there is none."""
    for kind in ("readiness", "startup", "liveness"):
        probe = container.get(probe_key(kind))
        http = probe.get("httpGet") if isinstance(probe, dict) else None
        path = (http.get("path") or "/") if isinstance(http, dict) else ""
        if path:
            return str(path)
    return ""


def named_ports(container: Body) -> dict[str, int]:
    """Return the ports of a container that have names."""
    return {
        str(each["name"]): each["containerPort"]
        for each in container.get("ports") or ()
        if isinstance(each, dict) and each.get("name") and isinstance(each.get("containerPort"), int)
    }


def convert_probes(container: Body, port: int, path: str) -> tuple[Body, Body]:
    """Return the checks of `probes`, and the keys of the container that a patch must have.

    The pods get the probes of the source, and no others: a probe that the source does not have could end a server that
    loads its model. `path` is the health path that the spec must name even if no probe asks it.
    """
    checks: Body = {}
    patch: Body = {}
    ports = named_ports(container)
    for kind in _KINDS:
        probe = container.get(probe_key(kind))
        check = _make_check(probe, ports, port) if isinstance(probe, dict) else None
        if check is not None:
            checks[kind] = check
            continue
        if kind == "readiness" and path:
            checks[kind] = {"path": path}
        patch[probe_key(kind)] = {"$patch": "replace", **_with_numbers(probe, ports)} if probe else None
    return checks, patch


def _make_check(probe: Body, ports: dict[str, int], port: int) -> Body | None:
    """Return a probe as a check, or None if a check has no keys for it."""
    http = probe.get("httpGet")
    if not isinstance(http, dict) or set(probe) - _CHECK_KEYS or set(http) - {"path", "port"}:
        return None
    path, asked = http.get("path") or "/", ports.get(str(http.get("port")), http.get("port"))
    period, timeout = probe.get("periodSeconds") or 10, probe.get("timeoutSeconds") or 1
    if not re.fullmatch(r"/\S*", str(path)) or not isinstance(asked, int) or timeout > period:
        return None
    check: Body = {"path": path}
    if asked != port:
        check["port"] = asked
    if period != 10:
        check["period"] = format_seconds(period)
    return {**check, "timeout": format_seconds(timeout), "failures": probe.get("failureThreshold") or 3}


def _with_numbers(probe: Body, ports: dict[str, int]) -> Body:
    """Return a probe whose port is a number, since the container of the spec has other names, and without a host."""
    made: Body = dict(probe)
    for action in ("httpGet", "tcpSocket"):
        found: Any = made.get(action)
        if isinstance(found, dict):
            made[action] = {key: ports.get(value, value) if key == "port" else value for key, value in found.items()}
            made[action].pop("host", None)
    return made


def foreign_hosts(container: Body) -> dict[str, str]:
    """Return the hosts that probes ask in place of their pod, which those of a spec cannot, by kind of probe."""
    found = {}
    for kind in _KINDS:
        probe = container.get(probe_key(kind))
        for action in ("httpGet", "tcpSocket"):
            asked = probe.get(action) if isinstance(probe, dict) else None
            if isinstance(asked, dict) and asked.get("host"):
                found[probe_key(kind)] = str(asked["host"])
    return found
