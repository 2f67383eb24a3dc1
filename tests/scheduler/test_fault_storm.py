"""Random faults of GPUs, device plugins, kubelets and machines under many jobs, with the real scheduler in memory.

The world around it is a model: kubelets that refuse pods or hand out devices, programs that crash or hang on a sick
GPU, a Job controller that counts failures, and monitors that learn of a fault only after a while.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from avactl.contracts import names
from avactl.contracts.gpu_faults import GpuFault, render_faults
from avactl.contracts.pod_annotations import DEVICES, GANG_SIZE, JOB_INDEX
from avactl.kube.timestamps import timestamp
from avactl.scheduler.cache.node_faults import suspended_pools
from avactl.scheduler.objects.config import ConfiguredPool
from avactl.scheduler.objects.pod_info import FAULT, PodInfo
from avactl.scheduler.writers.fault_evictions import FaultEvictions
from tests.hardware.topo_matrices import library_machine
from tests.scheduler.memory import Memory

GPUS = 8
RETRIES = 3
INTERVAL = 5
"""Steps between two checkpoints."""
GRACE = 2
"""Steps that a stopped pod takes to end."""
KINDS = ("gpu", "gpu later", "plugin", "refuses", "not ready", "gone", "machine")


@dataclass
class Host:
    """A machine as it is, and as its monitors see it."""

    name: str
    pool: str
    sick: set[int] = field(default_factory=set)
    known: dict[int, bool] = field(default_factory=dict)
    """GPUs whose fault the node daemon reports, and whether programs on them cannot go on."""
    withdrawn: set[int] = field(default_factory=set)
    """GPUs that the device plugin has withdrawn."""
    reported: set[int] = field(default_factory=set)
    """Those of them that the kubelet has reported, by their number."""
    refuses: bool = False
    ready: bool = True
    tainted: bool = False
    """Known as not ready."""
    gone: bool = False
    condition: bool = False
    """A fault of the machine, by the monitor of somebody else."""
    used: dict[str, set[int]] = field(default_factory=dict)
    """GPUs of containers, by pod."""

    def repair(self) -> None:
        self.sick.clear()
        self.known.clear()
        self.withdrawn.clear()

    @property
    def broken(self) -> bool:
        return bool(self.sick or self.withdrawn or self.refuses or not self.ready or self.gone or self.condition)


@dataclass
class Job:
    """A Job: gang of `size` pods, each with so many GPUs."""

    name: str
    size: int
    gpus: int
    work: int
    checkpoints: bool
    done: int = 0
    saved: int = 0
    lost: int = 0
    """Most steps lost at once."""
    failures: dict[int, int] = field(default_factory=dict)
    tries: int = 0
    pods: dict[int, str] = field(default_factory=dict)
    """Current pod of each index."""
    refused: Counter[str] = field(default_factory=Counter)
    """Pods that a machine has refused."""
    state: str = "runs"

    def begin_again(self) -> None:
        self.done, self.saved, self.state = 0, 0, "runs"
        self.failures.clear()
        self.refused.clear()
        self.pods.clear()


class Storm(Memory):
    """The cluster, its jobs, and what happens to them."""

    def __init__(self, random: Random, machines: int, jobs: int) -> None:
        super().__init__(machines=0)
        self.random = random
        machine = library_machine("v100-pcie-8")
        for pool, kubelet, policy in (("s", False, "evict"), ("k", True, "drain")):
            chosen = replace(machine, kubelet_chooses=kubelet)
            self.cache.put_pool(ConfiguredPool(pool, "devicePlugin", "nvidia.com/gpu", "", "", chosen, policy))
        self.hosts = {f"n{n}": Host(f"n{n}", "sk"[n % 3 == 2]) for n in range(machines)}
        self.work = [
            Job(f"job{n}", random.choice((1, 1, 1, 2, 2, 4)), random.choice((1, 1, 2, 4, 8)), random.randint(10, 40),
                random.random() < 0.8)
            for n in range(jobs)
        ]  # fmt: skip
        self.by_name = {job.name: job for job in self.work}
        self.ending: dict[str, int] = {}
        """Pods that have been stopped, by key: steps until they are gone."""
        self.stopped: list[str] = []
        self.later: list[tuple[int, Any]] = []
        """Steps at which something happens."""
        self.step_number = 0
        for host in self.hosts.values():
            self.report(host)

    # -- the API server's view of machines ----------------------------------------------------------------------------

    def report(self, host: Host) -> None:
        if host.gone:
            self.cache.drop_node(host.name)
            return
        usual = {"cpu": "640", "memory": "512Gi", "pods": "110"}
        conditions = []
        if host.known:
            faults = [GpuFault(gpu, evict, "sick") for gpu, evict in sorted(host.known.items())]
            conditions.append({"type": names.GPUS_CONDITION, "status": "False", "message": render_faults(faults)})
        if host.condition:
            conditions.append({"type": "GPUMissing", "status": "True", "message": "7 of 8"})
        host.tainted, host.reported = not host.ready, set(host.withdrawn)
        taints = [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}] if host.tainted else []
        healthy = str(GPUS - len(host.withdrawn))
        labels = {names.POOL_LABEL: host.pool, names.GPU_LABEL: "V100", "kubernetes.io/hostname": host.name}
        status = {
            "capacity": {**usual, "nvidia.com/gpu": str(GPUS)},
            "allocatable": {**usual, "nvidia.com/gpu": healthy},
            "conditions": conditions,
        }
        self.cache.put_node(
            {"metadata": {"name": host.name, "labels": labels}, "spec": {"taints": taints}, "status": status}
        )
        for key, gpus in host.used.items():
            item = self.items.get(key)
            if item is not None and item["metadata"]["uid"] and not item["metadata"].get("deletionTimestamp"):
                health = [
                    {"resourceID": f"GPU-{gpu}", "health": "Unhealthy" if gpu in host.withdrawn else "Healthy"}
                    for gpu in sorted(gpus)
                ]
                allocated = [{"name": "nvidia.com/gpu", "resources": health}]
                item["status"]["containerStatuses"] = [{"name": "main", "allocatedResourcesStatus": allocated}]
                self.pod_handler.put(item)

    # -- faults -------------------------------------------------------------------------------------------------------

    def strike(self) -> bool:
        """Something breaks, unless all that could is broken already; it is repaired later."""
        sound = [host for host in self.hosts.values() if not host.broken]
        if len(sound) <= 2 * len(self.hosts) // 3:
            return False  # so many that the rest of the pool is no longer evicted
        host, kind = self.random.choice(sound), self.random.choice(KINDS)
        delay, repair = self.random.randint(0, 2), self.random.randint(5, 15)
        if kind.startswith("gpu"):
            gpu, evict = self.random.randrange(GPUS), kind == "gpu"
            if evict:
                host.sick.add(gpu)
            self.after(delay, lambda: host.known.update({gpu: evict}), host)
            if host.pool == "k" or self.random.random() < 0.5:
                self.after(self.random.randint(0, 3), lambda: host.withdrawn.add(gpu), host)
            self.after(repair, host.repair, host)
        elif kind == "plugin":
            host.withdrawn = set(range(GPUS))
            self.after(delay, lambda: None, host)
            self.after(repair, host.withdrawn.clear, host)
        elif kind == "refuses":
            host.refuses = True
            self.after(repair, lambda: setattr(host, "refuses", False), host)
        elif kind == "not ready":
            host.ready = False
            self.after(delay, lambda: None, host)
            self.after(delay + 2, lambda: self.lose(host), host)
            self.after(repair, lambda: setattr(host, "ready", True), host)
        elif kind == "gone":
            host.gone = True
            self.after(0, lambda: self.lose(host), host)
            self.after(repair, lambda: setattr(host, "gone", False), host)
        else:
            host.condition = True
            self.after(repair, lambda: setattr(host, "condition", False), host)
            self.report(host)
        return True

    def after(self, steps: int, change: Any, host: Host) -> None:
        def act() -> None:
            change()
            self.report(host)

        self.later.append((self.step_number + steps, act))

    def lose(self, host: Host) -> None:
        """Kubernetes deletes the pods of a lost machine, which are disrupted."""
        for key in list(host.used):
            if key in self.items:
                self.note_loss(self.by_name[self.job_of(key)], hung=True)
                self.remove(key)

    # -- pods ---------------------------------------------------------------------------------------------------------

    def stop(self, pods: Sequence[PodInfo], reason: str, note: str, cause: str) -> None:
        """What the scheduler asks for: marked, then deleted, with a grace period."""
        assert (reason, cause) == (FAULT, "fault")
        for pod in pods:
            assert pod.uid not in self.stopped, "stopped twice"
            self.stopped.append(pod.uid)
        for pod in pods:
            item = self.items[pod.key]
            item["metadata"]["deletionTimestamp"] = timestamp(time.time() + 60)
            condition = {"type": "DisruptionTarget", "status": "True", "reason": reason}
            item["status"].setdefault("conditions", []).append(condition)
            self.ending[pod.key] = GRACE
            self.pod_handler.put(item)
        job = self.by_name[self.job_of(pods[0].key)]
        self.note_loss(job, hung=self.hangs(job))

    def note_loss(self, job: Job, hung: bool) -> None:
        """On SIGTERM the program saves its last step, unless a member hangs."""
        if not hung and job.checkpoints:
            job.saved = job.done
        job.lost = max(job.lost, job.done - job.saved)
        job.done = job.saved

    def job_of(self, key: str) -> str:
        return key.partition("/")[2].partition("-")[0]

    def remove(self, key: str) -> None:
        self.ending.pop(key, None)
        for host in self.hosts.values():
            host.used.pop(key, None)
        if key in self.items:
            self.drop(*key.split("/"))

    def fail(self, key: str, **status: Any) -> None:
        """A pod fails: its Job counts it, keeps it, and makes another."""
        job, item = self.by_name[self.job_of(key)], self.items[key]
        for host in self.hosts.values():
            host.used.pop(key, None)
        item["status"] |= {"phase": "Failed", "startTime": timestamp(), **status}
        self.pod_handler.put(item)
        index = next(index for index, name in job.pods.items() if f"team/{name}" == key)
        job.failures[index] = job.failures.get(index, 0) + 1
        if job.failures[index] > RETRIES:
            job.failures.clear()  # its user starts it again

    def refuse(self, key: str, host: Host) -> None:
        """The kubelet refuses a pod. Its job had to avoid machines that have done so, while others could take it."""
        job = self.by_name[self.job_of(key)]
        if job.refused[host.name] and self.has_idle_machines(job):
            job.state = "failed"
        self.fail(key, reason="UnexpectedAdmissionError")

    def has_idle_machines(self, job: Job) -> bool:
        """Return True if machines without faults, which have not refused pods of the job, could take all of it."""
        state = self.cache.tables.state
        sound = [host.name for host in self.hosts.values() if not (host.broken or job.refused[host.name])]
        slots = [state.slots[name] for name in sound if name in state.slots]
        return sum(int(state.whole[slot]).bit_count() // job.gpus for slot in slots) >= job.size

    def control(self) -> None:
        """The Job controller: pods that are gone or have failed are made anew."""
        for job in self.work:
            for index in range(job.size):
                name = job.pods.get(index)
                there = name is not None and f"team/{name}" in self.items
                if job.state != "runs" or (there and self.items[f"team/{name}"]["status"].get("phase") != "Failed"):
                    continue
                job.tries += 1
                job.pods[index] = f"{job.name}-{index}-{job.tries}"
                notes = {GANG_SIZE.name: str(job.size), JOB_INDEX.name: str(index)}
                labels = {names.GANG_LABEL: job.name, "batch.kubernetes.io/job-name": job.name}
                self.pod("team", job.pods[index], job.gpus, notes, labels)

    # -- kubelets and programs ----------------------------------------------------------------------------------------

    def admit(self) -> None:
        """Kubelets look at the pods that were bound to them."""
        refused: list[tuple[str, Host]] = []
        for key, item in list(self.items.items()):
            host = self.hosts.get(item["spec"].get("nodeName", ""))
            if host is None or key in host.used or item["status"].get("phase") == "Failed":
                continue
            faults = {gpu for gpu, _ in host.known.items()}
            assert not host.gone
            assert not host.tainted
            assert not host.condition, "the machine has a fault"
            if not host.ready:
                host.used[key] = set()  # its kubelet does not look at it
                continue
            count = int(item["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"])
            taken = set().union(*host.used.values()) if host.used else set()
            if host.pool == "s":
                gpus = {int(each) for each in item["metadata"]["annotations"][DEVICES.name].split(",")}
                assert not gpus & faults, "a GPU whose fault is known"
                assert not gpus & host.reported, "a withdrawn GPU"
                assert not gpus & taken
            else:
                free = [gpu for gpu in range(GPUS) if gpu not in taken | host.withdrawn]
                gpus = set(self.random.sample(free, count)) if len(free) >= count else set()
                assert not gpus & faults, "a GPU whose fault is known"
            if host.refuses or len(gpus) < count or gpus & host.withdrawn:
                self.refuse(key, host)
                refused.append((key, host))
                continue
            host.used[key] = gpus
            item["status"]["phase"] = "Running"
            self.pod_handler.put(item)
        for key, host in refused:  # pods of a gang are placed together
            self.by_name[self.job_of(key)].refused[host.name] += 1

    def hangs(self, job: Job) -> bool:
        return any(self.is_sick(f"team/{name}") for name in job.pods.values())

    def is_sick(self, key: str) -> bool:
        return any(
            host.used.get(key, set()) & host.sick or (key in host.used and not host.ready)
            for host in self.hosts.values()
        )

    def train(self) -> None:
        """Each gang that is whole makes a step; on a sick GPU it crashes, or hangs until it is stopped."""
        for job in self.work:
            keys = [f"team/{name}" for name in job.pods.values()]
            held = {key for host in self.hosts.values() for key in host.used}
            if job.state != "runs" or not all(key in held and key not in self.ending for key in keys):
                continue
            if self.hangs(job):
                lost = any(key in host.used and not host.ready for key in keys for host in self.hosts.values())
                if not lost and self.random.random() < 0.2:
                    self.note_loss(job, hung=True)
                    times = {"startedAt": timestamp(time.time() - 600), "finishedAt": timestamp()}
                    crashed = {"name": "main", "state": {"terminated": {"exitCode": 1, **times}}}
                    for key in keys:  # the others fail with it
                        self.fail(key, containerStatuses=[crashed])
                continue
            job.done += 1
            if job.checkpoints and job.done % INTERVAL == 0:
                job.saved = job.done
            if job.done >= job.work:
                job.state = "complete"
        for job in self.work:
            if job.state != "runs":
                for key in [key for key in self.items if self.job_of(key) == job.name]:
                    self.remove(key)

    def step(self) -> None:
        self.step_number += 1
        due = [act for at, act in self.later if at <= self.step_number]
        self.later = [each for each in self.later if each[0] > self.step_number]
        for act in due:
            act()
        for key in list(self.ending):
            self.ending[key] -= 1
            if self.ending[key] <= 0:
                self.remove(key)
        self.control()
        self.settle()
        self.admit()
        self.evict_by_faults()
        self.train()

    def evict_by_faults(self) -> None:
        FaultEvictions(self.cache, self.queue, self.budgets, self).tick()
        if self.cache.tables.stale:
            self.settle()
        if suspended_pools(self.cache.tables):
            return
        for host in self.hosts.values():
            certain = {gpu for gpu, evict in host.known.items() if evict}
            for key, gpus in host.used.items():
                if key not in self.ending and (host.pool == "s" or len(gpus) == GPUS):
                    assert not gpus & certain, "it has to leave"


def run(seed: int, machines: int, jobs: int, faults: int) -> Storm:
    random = Random(seed)
    storm = Storm(random, machines, jobs)
    struck = 0
    while struck < faults or any(job.state == "runs" for job in storm.work):
        if struck < faults and not any(job.state == "runs" for job in storm.work):
            for job in storm.work:  # they begin anew, for the faults that are left
                job.begin_again()
        struck += struck < faults and random.random() < 0.7 and storm.strike()
        storm.step()
        assert storm.step_number < 20_000, "jobs do not end"
        for job in storm.work:
            assert job.state != "failed", f"{job.name} came back to a machine that refuses it: {job.refused}"
            if job.checkpoints:
                assert job.lost <= INTERVAL, job.name
    return storm


def test_jobs_outlive_faults() -> None:
    storm = run(1, machines=12, jobs=20, faults=40)
    assert storm.stopped, "some had to leave"
    assert not storm.ending


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_hundred_jobs_outlive_two_hundred_faults(seed: int) -> None:
    run(seed, machines=30, jobs=100, faults=200)
