"""Everything at once: work that comes and goes, and a daemon that dies, hangs, is cut off and is refused."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from tests import forked
from tests.proxy import Ask, Proxy
from tests.scheduler.auditor import Auditor, patient, unsettled, waiting
from tests.scheduler.workload import Workload
from tests.scheduler.world import LEASE, SYSTEM, World
from tools.controlplane import KubeClient
from tools.waiting import patience

pytestmark = pytest.mark.controlplane
FAULTS = {409: 0.02, 429: 0.03, 500: 0.015, 410: 0.04, 0: 0.02, -1: 0.02, -500: 0.01}
_LOOKS_AROUND = 4.0
"""Seconds in which a new process decides on all that waits."""
_PAGE = 20
"""Objects of a page of a list: with so few of all, each list has several."""
_PODS = "/pods/"
MOMENTS: dict[str, Callable[[Ask], bool]] = {
    "list": lambda ask: ask.method == "GET" and not ask.watch and ask.path.count("/") <= 4,
    "finalize": lambda ask: ask.method == "PATCH" and "/resourceclaims/" in ask.path and b'"finalizers"' in ask.body,
    "allocate": lambda ask: ask.method == "PATCH" and ask.path.endswith("/status") and b'"allocation"' in ask.body,
    "bind": lambda ask: ask.path.endswith("/binding"),
    "nominate": lambda ask: ask.method == "PATCH" and b'"nominatedNodeName":"' in ask.body,
    "mark": lambda ask: ask.method == "PATCH" and b'"DisruptionTarget"' in ask.body,
    "evict": lambda ask: ask.method == "DELETE" and _PODS in ask.path,
    "explain": lambda ask: ask.method == "PATCH" and b'"PodScheduled"' in ask.body,
    "lease": lambda ask: ask.method in ("PUT", "POST") and "/leases" in ask.path,
}
"""Requests at which a replica is killed."""


class Chaos:
    """Replicas, and what happens to them."""

    def __init__(self, world: World, proxy: Proxy, seed: int) -> None:
        self._world, self._proxy, self._chance = world, proxy, random.Random(seed)
        self._replicas: dict[str, tuple[str, forked.Process]] = {}
        """By token: the name in the Lease, and the process."""
        self._dead: list[forked.Process] = []
        self._killed = threading.Event()
        self.kills: Counter[str] = Counter()
        self.others: Counter[str] = Counter()
        self._number = 0

    def start(self) -> None:
        """One replica more."""
        self._number += 1
        name = f"replica{self._number}"
        token = patient(lambda: self._world.plane.service_account_token(SYSTEM, LEASE, 36_000))
        kubeconfig = self._proxy.user(name, token)
        self._replicas[token] = name, self._world.start("--gang-grace", "3", kubeconfig=kubeconfig, name=name)

    def kill(self) -> None:
        """One kill -9, at a request or after a time."""
        wanted = 1 if self._chance.random() < 0.6 else 2
        while len(self._replicas) < wanted:
            self.start()
        what = self._chance.choice(["time", "time", *MOMENTS])
        left = self._chance.randint(1, 3)
        answered = self._chance.random() < 0.5
        self._killed.clear()

        def look(ask: Ask) -> None:
            nonlocal left
            replica = self._replicas.get(ask.token)
            if self._killed.is_set() or replica is None or not MOMENTS[what](ask):
                return
            left -= 1
            if left <= 0:
                self._end(replica[1])
                self._killed.set()
                raise ConnectionError("killed")

        if what != "time":
            self._proxy.after, self._proxy.before = (look, _nothing) if answered else (_nothing, look)
            hit = self._killed.wait(self._chance.uniform(4.0, 8.0))
        else:
            hit = self._killed.wait(self._chance.uniform(0.3, 4.0))
        self._proxy.before = self._proxy.after = _nothing
        if not hit:
            token = self._leader() or self._chance.choice(list(self._replicas))
            self._end(self._replicas[token][1])
        self.kills[what if hit else "time"] += 1
        self._bury()

    def _end(self, process: forked.Process) -> None:
        self._dead.append(process)
        process.kill()

    def _leader(self) -> str:
        lease = patient(lambda: self._world.kube.find("coordination.k8s.io/v1", "Lease", LEASE, SYSTEM)) or {}
        holder = lease.get("spec", {}).get("holderIdentity", "").partition("_")[0]
        return next((token for token, (name, _) in self._replicas.items() if name == holder), "")

    def _bury(self) -> None:
        """Take the dead away, and mostly their lease: nobody has to wait until it runs out."""
        leader, dead = self._leader(), []
        for process in self._dead:
            process.wait(patience())
        # What it has sent is done by the time that somebody else leads: a lease runs for seconds.
        time.sleep(0.3)
        self._dead.clear()
        for token, (_, process) in list(self._replicas.items()):
            if process.poll() is not None:
                assert process.returncode == -signal.SIGKILL, f"ended with status {process.returncode}"
                dead.append(token)
                del self._replicas[token]
                self._world.running.remove(process)
        if leader in dead and not (self._replicas and self._chance.random() < 0.08):
            patient(self._world.free_lease)
        elif leader in dead:
            self.others["leases that ran out"] += 1
            self._world.wait(self._leader, 60)

    def restart(self) -> None:
        """The API server dies."""
        self.others["API server killed"] += 1
        self._world.plane.kill("kube-apiserver")
        time.sleep(self._chance.uniform(0.0, 2.0))
        self._world.plane.start("kube-apiserver")

    def drop(self) -> None:
        """All watches break."""
        self.others["watches dropped"] += 1
        self._proxy.drop_watches()

    def stall(self) -> None:
        """Watches hang: what is done meanwhile is seen later, and others may take over before it is."""
        self.others["watches stalled"] += 1
        self._proxy.stalled = True
        threading.Timer(self._chance.uniform(1.0, 6.0), self._flow).start()

    def _flow(self) -> None:
        self._proxy.stalled = False

    def freeze(self) -> None:
        """The leader stops for so long that another takes over, and comes back."""
        while len(self._replicas) < 2:
            self.start()
        self._world.wait(self._leader, 60)
        token = self._leader()
        _, process = self._replicas[token]
        self.others["leaders frozen"] += 1
        process.send_signal(signal.SIGSTOP)
        try:
            self._world.wait(lambda: self._leader() not in ("", token), 60)
            if self._chance.random() < 0.5:
                self._proxy.stalled = False
            time.sleep(self._chance.uniform(0.0, 3.0))
        finally:
            process.send_signal(signal.SIGCONT)
        time.sleep(1.0)

    def calm(self) -> None:
        """Whoever is left goes on, and nothing is in its way."""
        self._proxy.faults, self._proxy.stalled = {}, False
        if not self._replicas:
            self.start()

    def afresh(self) -> None:
        """One replica that has seen nothing of what was."""
        for _, process in self._replicas.values():
            self._world.kill(process)
        self._replicas.clear()
        patient(self._world.free_lease)
        self.start()
        self._world.wait(self._leader, 60)


def gangs(kube: KubeClient, namespaces: Iterable[str]) -> list[str]:
    """Describe the pods of gangs, for whoever reads a failure."""
    found = []
    for pod in (pod for namespace in namespaces for pod in kube.list("v1", "Pod", namespace)):
        metadata, status = pod["metadata"], pod.get("status", {})
        if gang := metadata["labels"].get("avactl.dev/gang"):
            said = [(each["type"], each["status"], each.get("message")) for each in status.get("conditions") or ()]
            place = f"on {pod['spec'].get('nodeName')}, {status.get('phase')}, ends {metadata.get('deletionTimestamp')}"
            found.append(f"{metadata['namespace']}/{metadata['name']} of {gang} {place}: {said}")
    return found


def _nothing(_: Ask) -> None:
    pass


def soak(world: World, seed: int, kills: int, others: float = 1.0, settle: float = 180.0, afresh: bool = False) -> None:
    """`others`: how often all that is no kill happens; `afresh`: a new process must find nothing to do in the end."""
    chance = random.Random(seed)
    with Proxy(world.plane, world.folder, seed) as proxy, Workload(world, seed) as workload:
        proxy.faults, proxy.page = dict(FAULTS), _PAGE
        chaos = Chaos(world, proxy, seed)
        with Auditor(world.plane, workload.limits, workload.guaranteed) as auditor:
            for _ in range(kills):
                for share, happen in (
                    (0.05, chaos.restart),
                    (0.15, chaos.drop),
                    (0.12, chaos.stall),
                    (0.03, chaos.freeze),
                ):
                    if chance.random() < share * others:
                        happen()
                chaos.kill()
                assert not auditor.findings, list(auditor.findings)
                assert not workload.errors, workload.errors
            workload.calm()
            chaos.calm()
            left: list[str] = []

            def settled() -> bool:
                nonlocal left
                workload.let_go(always=False)
                left = unsettled(world.kube, workload.spaces, afresh) or auditor.behind()
                return not left

            try:
                world.wait(settled, settle)
            except TimeoutError:
                raise AssertionError("\n".join([*left, *gangs(world.kube, workload.spaces), *world.logged()])) from None
            before: dict[str, str] = {}
            if afresh:
                before = waiting(world.kube, workload.spaces)
                chaos.afresh()
                time.sleep(_LOOKS_AROUND)
                after = waiting(world.kube, workload.spaces)
                late = sorted(name for uid, name in before.items() if uid not in after)
                assert not late, f"waited, though there was a place for them: {late}"
            assert not auditor.findings, list(auditor.findings)
            assert auditor.events > 0, "the auditor saw nothing"
        print(
            f"seed {seed}: {dict(chaos.kills)}, {dict(chaos.others)}, {auditor.events} changes looked at, "
            f"no gang in part for more than {auditor.longest:.0f} s, {len(before)} wait for room"
        )


@pytest.mark.xdist_group("scheduler")
def test_killed_in_the_middle_of_everything(world: World) -> None:
    soak(world, seed=1, kills=3, others=0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.xdist_group(f"soak-{seed}")) for seed in (1, 2, 3, 4)]
)
def test_killed_at_two_hundred_moments(world: World, seed: int) -> None:
    """50 of them for each seed."""
    soak(world, seed, kills=50, settle=300.0, afresh=True)
