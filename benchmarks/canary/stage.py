"""Everything that a canary needs: API server, controllers, gateway, Prometheus, a machine, the daemon, and clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from avactl.compiler import compile_tree
from avactl.contracts.names import TEAM_LABEL
from avactl.diagnostics.text import render_text
from avactl.program.manifest import Manifest
from avactl.spec.repository.tree import MemoryTree
from benchmarks.canary.load import Answer, read
from benchmarks.canary.machine import COMPONENT, Command, Machine
from tools.controlplane import ControlPlane, KubeClient, build_binaries, process
from tools.controlplane.folder import OwnedFolder
from tools.definitions import GATEWAY_API, INFERENCE_EXTENSION, definitions
from tools.endpointpicker import MODULE as ENDPOINT_PICKER
from tools.frameworks.build import build_digits
from tools.istio import build as build_istio
from tools.leaderworkerset import MODULE as LEADER_WORKER_SETS
from tools.prometheus import Prometheus
from tools.prometheus import build_binary as build_prometheus
from tools.traefik import Traefik
from tools.traefik import build_binary as build_traefik
from tools.traefik.gateway import KINDS

TEAM, SERVICE = "product", "digits"
HOSTS = {"http": "digits.ai.example.com", "grpc": "digits-grpc.ai.example.com"}
DIGEST = f"@sha256:{'a' * 64}"
ROUTES = "gateway.networking.k8s.io/v1"
PODS = 4
PATIENCE = 180.0
"""Seconds after which something that should have happened has not."""
COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")


class Pace(NamedTuple):
    """How fast everything goes. Seconds."""

    throttle: float
    """Traefik's time between two changes of its configuration."""
    settle: float
    """The daemon's time for the gateway to see a change."""
    interval: float
    """Interval of the analysis."""
    pause: float
    """How long a step lasts."""
    steps: tuple[int, ...]
    drain: int
    rate: float = 200.0
    """Requests a second."""


SHORT = Pace(throttle=0.3, settle=1.2, interval=3.0, pause=3.0, steps=(10, 50), drain=2)
PICKED = Pace(throttle=0.0, settle=3.0, interval=5.0, pause=60.0, steps=(10, 50), drain=2, rate=60.0)
"""Envoy divides at random, so that a share needs thousands of requests."""
LONG = Pace(throttle=2.0, settle=5.0, interval=10.0, pause=20.0, steps=(5, 25, 50), drain=5)
"""As a cluster has it: Traefik's and the daemon's defaults."""

PLATFORM = f"""\
apiVersion: avactl.dev/v1
kind: Cluster
metadata: {{name: main}}
spec:
  images: {{avactl: registry.example.com/avactl{DIGEST}}}
  daemons: {{serving: true}}
  monitoring: {{prometheusOperator: false, prometheus: "URL", interval: 1s}}
  exposure:
    gateway: {{name: public, namespace: gateways}}
    proxies: [{{namespace: gateways}}]
    domains: [{{name: ai.example.com}}]
---
apiVersion: avactl.dev/v1
kind: Team
metadata: {{name: {TEAM}}}
spec: {{members: {{groups: [{TEAM}]}}}}
"""
_WHERE = 'namespace="{{namespace}}",pod=~"{{pods}}"'
_ALL = f"sum(rate(digits_requests_total{{{_WHERE}}}[{{{{interval}}}}]))"
_FAILED = f'sum(rate(digits_requests_total{{code="500",{_WHERE}}}[{{{{interval}}}}]))'
ERRORS = f"({_FAILED} or vector(0)) / ({_ALL} > 0)"
"""Part of the requests that a version fails, in PromQL."""
_MEDIAN = f"histogram_quantile(0.5, sum by (le) (rate(digits_request_seconds_bucket{{{_WHERE}}}[{{{{interval}}}}])))"


def prepare(*, analysed: bool = True, grouped: bool = False, picked: bool = False) -> tuple[Path, Path]:
    """Fetch and build everything that is not in the cache: the stage itself has no way out.

    `analysed`: with Prometheus, for rollouts with an analysis. `grouped`: with the controller of LeaderWorkerSets.
    `picked`: with an endpoint picker and Istio, instead of Traefik.

    Returns the Python of the model server, and the trained models. Raises UnavailableError and BuildError.
    """
    build_binaries(COMPONENTS)
    definitions(GATEWAY_API, *KINDS)
    if picked:
        definitions(INFERENCE_EXTENSION, "inferencepools")
        build_binaries(["lwepp"], [ENDPOINT_PICKER])
        build_istio()
    else:
        build_traefik()
    if analysed:
        build_prometheus()
    if grouped:
        build_binaries(["lws-manager"], [LEADER_WORKER_SETS])
    return build_digits(Path(__file__).with_name("train.py"))


class Moment(NamedTuple):
    """What was seen of the service at one time."""

    time: float
    phase: str
    step: int
    reached: float
    """When the daemon saw the step with its share (Unix seconds); 0: not yet."""
    reason: str


class Gateway(Protocol):
    """What clients send requests to."""

    @property
    def url(self) -> str: ...

    @property
    def ca_file(self) -> Path: ...

    @property
    def folder(self) -> Path:
        """Directory of its logs."""

    def close(self) -> None: ...


def compile_specs(specs: str) -> list[Manifest]:
    """Return the objects of specs without a diagnostic, except those that change an existing one."""
    result = compile_tree(MemoryTree({"platform.yaml": specs.encode()}))
    assert not result.diagnostics, render_text(result.diagnostics, lambda path: specs)
    return [each for each in result.manifests if not each.patch]


class Stage:
    """One service of four pods, and its clients."""

    protocols: tuple[str, ...] = tuple(HOSTS)
    kind = ("apps/v1", "Deployment")
    options: tuple[str, ...] = ()
    """Options of the daemon."""
    pods = PODS
    """Pods that serve outside of rollouts."""

    def __init__(self, pace: Pace, stack: ExitStack, *, analysed: bool = True) -> None:
        self.pace, self._stack = pace, stack
        python, self._models = self._prepare(analysed)
        self._owned = OwnedFolder()
        stack.callback(self._owned.remove)
        self.folder = self._owned.path
        # The node is no one's but ours: its controller would look for a kubelet's lease.
        controllers = {"kube-controller-manager": ["--controllers=*,-node-lifecycle-controller"]}
        self._plane = stack.enter_context(ControlPlane(controller_manager=True, scheduler=True, arguments=controllers))
        self.kube: KubeClient = stack.enter_context(self._plane.client())
        self._gateway = self._open_gateway()
        stack.callback(self._gateway.close)
        self._prometheus = stack.enter_context(Prometheus(self._plane, 0.5)) if analysed else None
        self._machine = stack.enter_context(
            Machine(self._plane, "node-0", python, self._models, self.folder, self._commands())
        )
        self._children: list[subprocess.Popen[bytes]] = []
        stack.callback(self._end)
        self._load = 0

    def _prepare(self, analysed: bool) -> tuple[Path, Path]:
        return prepare(analysed=analysed)

    def _open_gateway(self) -> Gateway:
        return Traefik(
            self._plane,
            *HOSTS.values(),
            namespace="gateways",
            name="public",
            team_label=TEAM_LABEL,
            throttle=self.pace.throttle,
        )

    def _commands(self) -> Mapping[str, Command]:
        """Return the commands of pods besides servers and workers, by component."""
        return {}

    def run(self, module: str, *arguments: str, log: str) -> subprocess.Popen[bytes]:
        """Start a Python module as a process that ends with the stage."""
        command = [sys.executable, "-m", module, *arguments]
        child = process.spawn(command, self.folder / log, os.environ)
        self._children.append(child)
        return child

    # -- specs

    def deploy(self, version: int, *, in_place: bool = False) -> None:
        """Apply the platform, and the service with this version of its model."""
        for manifest in compile_specs(PLATFORM.replace("URL", self._measures) + self._service(version, in_place)):
            self.kube.apply(manifest.body, field_manager="avactl")

    def _service(self, version: int, in_place: bool) -> str:
        pace = self.pace
        steps = ", ".join(f"{{percent: {percent}, pause: {pace.pause:g}s}}" for percent in pace.steps)
        queries = self.analysis(
            f"{{name: errors, max: 0.01, promql: '{ERRORS}'}}", f"{{name: median, maxRatio: 5, promql: '{_MEDIAN}'}}"
        )
        return f"""---
apiVersion: avactl.dev/v1
kind: ServingDeployment
metadata: {{name: {SERVICE}, team: {TEAM}}}
spec:
  model: {{name: digits, version: "{version}"}}
  runtime: {{name: custom, image: "registry.example.com/digits{DIGEST}", port: 8080, grpcPort: 9090}}
  probe: {{path: /health}}
  resources: {{cpu: 1, memory: 1Gi}}
  replicas: {PODS}
  drain: {pace.drain}s
  expose: {{host: {HOSTS["http"]}, grpc: {{host: {HOSTS["grpc"]}, services: [digits.Digits]}}}}
  rollout:
    canary:
      inPlace: {str(in_place).lower()}
      steps: [{steps}]{queries}
"""

    def analysis(self, *queries: str) -> str:
        """Return the lines of an analysis with these queries; none without Prometheus."""
        if self._prometheus is None:
            return ""
        lines = "".join(f"\n          - {each}" for each in queries)
        return f"\n      analysis:\n        interval: {self.pace.interval:g}s\n        query:{lines}"

    @property
    def _measures(self) -> str:
        """Address of Prometheus; one that nothing listens at, without it."""
        return "http://127.0.0.1:9" if self._prometheus is None else self._prometheus.url

    def fill_quota(self, full: bool) -> None:
        """Give the team as many pods as the service has, or as many as it likes."""
        metadata = {"name": "pods", "namespace": TEAM}
        if full:
            body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata}
            self.kube.apply({**body, "spec": {"hard": {"pods": str(PODS)}}})
            self.until(lambda: self._used() == str(PODS))
        else:
            self.kube.delete("v1", "ResourceQuota", "pods", TEAM)

    def _used(self) -> str:
        body = self.kube.get("v1", "ResourceQuota", "pods", TEAM)
        return str(((body.get("status") or {}).get("used") or {}).get("pods", ""))

    # -- daemon and clients

    def start_daemon(self) -> None:
        """Start the daemon with its own account."""
        config = self.folder / "daemon"
        token = self._plane.service_account_token("avactl-system", "avactl-serving", 36_000)
        self._plane.write_kubeconfig(config, token)
        self.run(
            "avactl.cli.main",
            "serving",
            "run",
            "--kubeconfig",
            str(config),
            "--settle",
            str(self.pace.settle),
            "--interval",
            "0.2",
            "--prometheus",
            self._measures,
            *self.options,
            log="serving.log",
        )

    @contextmanager
    def load(
        self, seconds: float, rate: float | None = None, protocol: str = "http"
    ) -> Iterator[Callable[[], list[Answer]]]:
        """Send requests during the `with` block, for at most these seconds; then the function returns the answers.

        `rate`: requests a second; None: as many as the pace has.
        """
        self._load += 1
        file = self.folder / f"load-{self._load}"
        clients = self.run(
            "benchmarks.canary.load",
            protocol,
            self._gateway.url,
            HOSTS[protocol],
            str(self._gateway.ca_file),
            str(self._models / "samples.json"),
            str(rate or self.pace.rate),
            str(seconds),
            str(file),
            log="load.log",
        )
        self.until(lambda: file.exists() and file.stat().st_size)
        yield lambda: read(file)
        clients.terminate()
        clients.wait(30)
        self._children.remove(clients)

    # -- observation

    def moment(self) -> Moment:
        """Return the state of the rollout."""
        state = self.state()
        return Moment(
            time.time(),
            state.get("phase", "steady"),
            int(state.get("step", 0)),
            float(state.get("reached", 0.0)),
            state.get("reason", ""),
        )

    def state(self) -> dict[str, Any]:
        """Return the state that the daemon has written; {} before."""
        notes = self.kube.get(*self.kind, SERVICE, TEAM)["metadata"].get("annotations") or {}
        state: dict[str, Any] = json.loads(notes.get("avactl.dev/rollout-state", "{}"))
        return state

    def versions(self) -> dict[str, int]:
        """Return the ready pods that answer requests by version, without those that are terminating."""
        found: dict[str, int] = {}
        for pod in self.kube.list("v1", "Pod", TEAM):
            conditions = (pod.get("status") or {}).get("conditions") or ()
            if pod["metadata"].get("deletionTimestamp") or pod["metadata"]["labels"].get(COMPONENT) != "server":
                continue
            if any(each["type"] == "Ready" and each["status"] == "True" for each in conditions):
                env = pod["spec"]["containers"][0]["env"]
                version = next(each["value"] for each in env if each["name"] == "AVACTL_MODEL_VERSION")
                found[version] = found.get(version, 0) + 1
        return found

    def settled(self, version: int) -> bool:
        """Return True if all pods have this version, and no rollout is under way."""
        phase = self.state().get("phase", "steady")
        return self.versions() == {str(version): self.pods} and phase == "steady" and self._backends() == 1

    def _backends(self) -> int:
        routes = [self.kube.find(ROUTES, kind, f"{SERVICE}-rollout", TEAM) for kind in ("HTTPRoute", "GRPCRoute")]
        rules = [((route or {"spec": {}})["spec"].get("rules") or [{}])[0] for route in routes]
        return max(len(rule.get("backendRefs") or ()) for rule in rules)

    def until(self, true: Callable[[], Any], patience: float = PATIENCE) -> Any:
        """Wait until this is true. Raises AssertionError with the end of all logs."""
        ends = time.monotonic() + patience
        while time.monotonic() < ends and not self._machine.error:
            found = true()
            if found:
                return found
            if any(child.poll() is not None for child in self._children):
                break
            time.sleep(0.05)
        logs = [
            f"{path.name}:\n{process.tail(path, 15)}"
            for folder in (self.folder, self._gateway.folder)
            for path in sorted(folder.glob("*.log"))
        ]
        raise AssertionError(f"{self._machine.error}{self.state()} {self.versions()}\n" + "\n".join(logs))

    def serving(self, version: int) -> None:
        """Wait until the gateway answers with this version."""

        def answered(protocol: str) -> bool:
            with self.load(1.0, protocol=protocol) as answers:
                time.sleep(1.0)
            return all(each.status == 200 and each.version == str(version) for each in answers())

        for protocol in self.protocols:
            self.until(partial(answered, protocol))

    def _end(self) -> None:
        for child in self._children:
            process.terminate(child, grace=0)


@contextmanager
def stage(pace: Pace, *, analysed: bool = True) -> Iterator[Stage]:
    """Start a stage with version 1, which answers through the gateway."""
    with ExitStack() as stack:
        made = Stage(pace, stack, analysed=analysed)
        present(made)
        yield made


def present(made: Stage) -> None:
    """Start version 1 and the daemon, and wait until it answers through the gateway."""
    made.deploy(1)
    made.start_daemon()
    made.until(lambda: made.settled(1))
    made.serving(1)
