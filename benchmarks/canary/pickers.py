"""A service with endpoint pickers behind a gateway that routes to InferencePools: Istio, with an Envoy of its own."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import httpx

from avactl.contracts.names import TEAM_LABEL
from avactl.kinds.serving.groups import API, KIND
from avactl.kinds.serving.picker import COMPONENT as PICKER
from benchmarks.canary.language import LanguageStage
from benchmarks.canary.machine import COMPONENT, Command
from benchmarks.canary.scenario import LONGEST
from benchmarks.canary.stage import (
    DIGEST,
    HOSTS,
    PLATFORM,
    PODS,
    ROUTES,
    SERVICE,
    TEAM,
    Gateway,
    Pace,
    prepare,
    present,
)
from tools.endpointpicker import EndpointPicker
from tools.istio import Istio
from tools.leaderworkerset import LeaderWorkerSets

LATEST_S = 30.0
"""Seconds after which an answer that was due has not come."""
GONE_S = 8.0
"""How long a version stays without pods."""
POOLS = (SERVICE, f"{SERVICE}-alt")


class PickerStage(LanguageStage):
    """One service of four pods, with two pools and the lightweight picker for each."""

    options: tuple[str, ...] = ("--pools",)
    platform = PLATFORM.replace("namespace: gateways}", "namespace: gateways, listener: http, inferencePools: true}", 1)
    llm = f"""
    endpointPicker:
      image: registry.example.com/picker{DIGEST}
      cpu: 100m
      memory: 64Mi
      args: [--secure-serving=false]   # Istio asks pickers without TLS"""

    def __init__(self, pace: Pace, stack: ExitStack) -> None:
        super().__init__(pace, stack, analysed=True)
        self._applied = False

    def deploy(self, version: int, *, in_place: bool = False) -> None:
        """Apply the platform, and the service with this version of its model; start the pickers."""
        super().deploy(version)
        if not self._applied:
            self._applied = True
            for picker in self._pickers.values():
                self._stack.enter_context(picker)

    def _prepare(self, analysed: bool) -> tuple[Path, Path]:
        return prepare(analysed=analysed, picked=True)

    def _open_gateway(self) -> Gateway:
        return Istio(self._plane, namespace="gateways", name="public", team_label=TEAM_LABEL)

    def _commands(self) -> Mapping[str, Command]:
        """Return the command of each picker's pod: it has the address, and asks the picker, which has a port."""
        deployments = {each.name: each.body for each in self.compile(1) if each.kind == "Deployment"}
        self._pickers: dict[str, EndpointPicker] = {}
        found: dict[str, Command] = {}
        for pool in POOLS:
            template = deployments[f"{pool}-{PICKER}"]["spec"]["template"]
            (container,) = template["spec"]["containers"]
            account = (TEAM, template["spec"]["serviceAccountName"])
            picker = EndpointPicker(self._plane, account, container["args"], self.folder, pool)
            self._pickers[pool] = picker
            found[template["metadata"]["labels"][COMPONENT]] = partial(_stream, picker.address)
        return found

    def ask(self, wait: float) -> int:
        """Return the status of the answer to a request that the server answers after these seconds."""
        picture = json.loads((self._models / "samples.json").read_text())["pictures"][0]
        answer = httpx.post(
            f"{self._gateway.url}/predict?wait={wait:g}",
            headers={"Host": HOSTS["http"]},
            json=picture,
            timeout=wait + LATEST_S,
            trust_env=False,
        )
        return answer.status_code

    def lose(self, version: int) -> None:
        """Kill the pods of a version, and wait until none is ready."""
        self._machine.kill(str(version))
        self.until(lambda: not self.versions().get(str(version)))

    def picked(self) -> Mapping[str, int]:
        """Return how many requests each picker has been asked for."""
        return {pool: picker.log.read_text().count("Processing new stream") for pool, picker in self._pickers.items()}


class RoleStage(PickerStage):
    """One service of prefill and decode pods, by the real controller of LeaderWorkerSets. The lightweight picker knows
    no roles, so requests go to pods of either, which all answer them."""

    kind = (API, KIND)
    names = (SERVICE, f"{SERVICE}-prefill")
    pods = PODS + 2
    options = ("--groups", "--pools")
    platform = PickerStage.platform.replace(
        "daemons: {serving: true}", "daemons: {serving: true}\n  leaderWorkerSet: {}"
    )
    llm = f"""{PickerStage.llm}
    prefill:
      replicas: 2
      sidecar: {{image: "registry.example.com/sidecar{DIGEST}", cpu: 100m, memory: 64Mi}}
  balance: gateway"""

    def __init__(self, pace: Pace, stack: ExitStack) -> None:
        super().__init__(pace, stack)
        stack.enter_context(LeaderWorkerSets(self._plane, self.kube, self.folder))

    def _prepare(self, analysed: bool) -> tuple[Path, Path]:
        return prepare(analysed=analysed, picked=True, grouped=True)


def _stream(picker: str, address: str, ports: Sequence[str]) -> Sequence[str | Path]:
    return [sys.executable, "-m", "tools.endpointpicker.duplex", f"{address}:{ports[0]}", picker]


class Lost(NamedTuple):
    """Requests while a version has no pods."""

    requests: int
    failed: dict[str, int]


def lose_pods(stage: PickerStage, old: int, new: int) -> Lost:
    """Roll a version out to its last step, kill its pods, and return to the old version; return what was asked for
    while no pod of the new version was ready.
    """
    last = len(stage.pace.steps) - 1

    def reached() -> bool:
        moment = stage.moment()
        return (moment.phase, moment.step) == ("stepping", last) and bool(moment.reached)

    with stage.load(LONGEST) as answers:
        stage.deploy(new)
        stage.until(reached, LONGEST)
        stage.lose(new)
        began = time.time()
        time.sleep(GONE_S)
        ended = time.time()
        stage.deploy(old)
        stage.until(lambda: stage.settled(old))
    asked = [each for each in answers() if began <= each.sent <= ended]
    failed = Counter(f"{each.status} {each.version} {each.error}"[:80] for each in asked if each.status != 200)
    return Lost(len(asked), dict(failed))


def measure_timeouts(stage: PickerStage, version: int) -> dict[str, int]:
    """Return the status of answers after some seconds, by the timeout of the spec; empty: the runtime's."""
    found: dict[str, int] = {}
    for timeout, waits in (("", (16,)), ("2s", (1, 5)), ("9s", (5,))):
        stage.expose = f"{{host: {HOSTS['http']}{f', timeout: {timeout}' if timeout else ''}}}"
        stage.deploy(version)
        wanted = [{"request": timeout or "3600s"}]
        stage.until(partial(_has_timeouts, stage, wanted))
        time.sleep(stage.pace.settle)  # until the gateway knows
        found |= {f"{timeout or 'default'}, {wait} s": stage.ask(wait) for wait in waits}
    return found


def _has_timeouts(stage: PickerStage, wanted: list[dict[str, str]]) -> bool:
    route = stage.kube.get(ROUTES, "HTTPRoute", f"{SERVICE}-rollout", TEAM)
    return [rule.get("timeouts") for rule in route["spec"].get("rules") or ()] == wanted


@contextmanager
def picker_stage(pace: Pace, kind: type[PickerStage] = PickerStage) -> Iterator[PickerStage]:
    """Start a stage with version 1, which answers through the gateway."""
    with ExitStack() as stack:
        made = kind(pace, stack)
        present(made)
        yield made
