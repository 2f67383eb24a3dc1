"""Probes of a server: its health paths, those of the spec, or scripts that the spec brings."""

from __future__ import annotations

from math import ceil

from avactl.kinds.serving.runtime import ModelServer, runtime_of
from avactl.kinds.serving.spec import Check, Script, ServingDeploymentSpec
from avactl.program.lowering import pods
from avactl.program.manifest import Body
from avactl.spec.schema.values import duration_seconds

SCRIPTS = "/probes"
"""Directory of the scripts that probes run."""
KINDS = ("startup", "readiness", "liveness")
_DEFAULT_FAILURES = {"readiness": 3, "liveness": 6}
"""Slow does not mean dead: an overloaded server leaves the endpoints long before it is restarted."""


def declared_checks(spec: ServingDeploymentSpec) -> list[tuple[str, Check]]:
    """Return the health checks that a spec sets one by one, with their kinds."""
    if spec.probes is None:
        return []
    return [(kind, check) for kind in KINDS if (check := getattr(spec.probes, kind)) is not None]


def build_probes(spec: ServingDeploymentSpec, run: ModelServer) -> Body:
    """Startup, readiness and liveness probes, from the spec's checks or the runtime's health paths."""
    probe, default_startup = spec.probe, runtime_of(spec).startup
    if probe is None:
        period, timeout, startup = 10, run.timeout, default_startup
        ready, live, port = run.ready, run.live, run.ports["http"]
    else:
        period, timeout = max(1, ceil(duration_seconds(probe.period))), max(1, ceil(duration_seconds(probe.timeout)))
        startup = ceil(duration_seconds(probe.startup))
        ready, live, port = probe.path, probe.path, probe.port or run.ports["http"]
    every = {"periodSeconds": period, "timeoutSeconds": timeout}
    found: Body = {
        "startupProbe": {
            "httpGet": {"path": ready, "port": port},
            **every,
            "failureThreshold": max(1, ceil(startup / period)),
        },
        "readinessProbe": {"httpGet": {"path": ready, "port": port}, **every, "failureThreshold": 3},
        "livenessProbe": {"httpGet": {"path": live, "port": port}, **every, "failureThreshold": 6},
    }
    own = dict(declared_checks(spec))
    if spec.probes is not None:
        readiness = own.get("readiness")
        # Without checks of their own, startup waits for what readiness asks, and liveness keeps the runtime's path.
        for kind in KINDS:
            check = own.get(kind, readiness if kind == "startup" or run.live is None else None)
            if check is not None:
                name = kind if kind in own else "readiness"
                found[f"{kind}Probe"] = _build_probe(name, kind, check, run, default_startup)
    return found


def start_limit(spec: ServingDeploymentSpec, run: ModelServer) -> int:
    """Seconds in which a pod must be ready once its images are pulled and its files copied."""
    probe = build_probes(spec, run)["startupProbe"]
    return max(600, int(probe["periodSeconds"] * probe["failureThreshold"]) + 300)


def _build_probe(name: str, kind: str, check: Check, run: ModelServer, startup: int) -> Body:
    period = max(1, ceil(duration_seconds(check.period)))
    failures = check.failures if name == kind else None
    return {
        **_build_action(name, check, run),
        "periodSeconds": period,
        "timeoutSeconds": max(1, ceil(duration_seconds(check.timeout))),
        "failureThreshold": failures or _DEFAULT_FAILURES.get(kind) or max(1, ceil(startup / period)),
    }


def _build_action(name: str, check: Check, run: ModelServer) -> Body:
    if check.script is None:
        return {"httpGet": {"path": check.path, "port": check.port or run.ports["http"]}}
    return {"exec": {"command": [f"{SCRIPTS}/{name}/{_script_file(check.script)}", *check.script.args]}}


def _script_file(script: Script) -> str:
    return script.config_map.key if script.config_map is not None else (script.path or "").rpartition("/")[2]


def add_scripts(volumes: pods.PodVolumes, spec: ServingDeploymentSpec) -> None:
    """Add the scripts of probes: from a ConfigMap, or copied out of an image by an init container."""
    for kind, check in declared_checks(spec):
        script = check.script
        if script is None:
            continue
        name, directory = f"probe-{kind}", f"{SCRIPTS}/{kind}"
        if script.config_map is not None:
            volumes.config(name, script.config_map.name, directory, keys=[script.config_map.key], executable=True)
            continue
        volumes.empty(name, directory)
        mount = {"name": name, "mountPath": directory}
        copy = pods.build_helper(name, script.image, "", (), pods.build_resources("50m", "64Mi"), [mount])
        volumes.init.append({**copy, "command": ["cp", script.path, f"{directory}/{_script_file(script)}"]})
