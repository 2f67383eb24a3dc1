"""Random sets of jobs, their plan, and what the scheduler then does with them on a real API server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any, cast
from unittest.mock import patch

import orjson

from avactl.base.object_identity import ObjectKey
from avactl.change.plan import rollout
from avactl.change.plan.model import Plan, PlanVerdict
from avactl.change.plan.planner import make_plan
from avactl.change.plan.snapshot.capture import take_snapshot
from avactl.change.plan.snapshot.loader import read
from avactl.change.plan.workloads import KINDS, PlannedWorkload, WorkloadMaker, find_surroundings, find_workloads
from avactl.compiler import Compilation
from avactl.contracts.cache import STATUS_KEY, CacheStatus, DatasetStatus
from avactl.contracts.document import dump, load
from avactl.contracts.names import CACHE_NAMESPACE, CACHE_STATUS
from avactl.contracts.scheduling import PlacementPolicy
from avactl.kube.access import from_kubeconfig
from avactl.kube.client import Client
from avactl.program.manifest import Body
from avactl.scheduler.daemon import SchedulerDaemon, SchedulerOptions
from avactl.scheduler.writers.evictor import Evictor
from tests.kinds.compiling import DIGEST, apply, compiled, unchecked
from tools.controlplane import ApiError, ControlPlane, KubeClient
from tools.waiting import PATIENCE_S, wait_until

TEAMS = ("alpha", "beta", "gamma")
SYSTEM = "avactl-system"
KEEP = os.environ.get("AVACTL_KEEP_SETS", "")
"""A directory for the snapshots of sets on which the two differ."""
_NEVER = re.compile(
    r"even if it is empty|it can never start with this quota|"
    r"fits on none of (\d+) nodes?: \1 (?:is|are) excluded \((?!.*(taint|cordoned))"
)
_NAMES = re.compile(r"metadata: {name: ([^,]+), team: ([^}]+)}")
INSTANCE = "app.kubernetes.io/instance"
_STILL = 0.3
"""Seconds for which nothing changes any more once all is decided."""
_ENDING = 5.0
"""Seconds after which what kwok has left lying is taken away, as a kubelet would."""
_ORDERS = 24
"""In which equals are tried where plan and scheduler differ."""

PLATFORM = f"""
kind: Cluster
metadata: {{name: main}}
spec:
  images: {{avactl: r.example.com/avactl{DIGEST}, kubectl: r.example.com/k{DIGEST}, alluxio: r.example.com/a{DIGEST}}}
  daemons: {{scheduler: true, cache: true}}
  placement: {{levels: [example.com/rack, example.com/block]}}
---
kind: MachineType
metadata: {{name: twosocket}}
spec: {{gpus: {{model: V100, count: 8, memory: 16Gi}}, cpu: 64, memory: 512Gi, sockets: 2}}
---
kind: MachineType
metadata: {{name: small}}
spec: {{gpus: {{model: T4, count: 4, memory: 16Gi}}, cpu: 32, memory: 128Gi}}
---
kind: NodePool
metadata: {{name: v100}}
spec: {{cluster: main, machineType: twosocket, count: 40, devicesChosenBy: scheduler}}
---
kind: NodePool
metadata: {{name: t4}}
spec: {{cluster: main, machineType: small, count: 20, devicesChosenBy: scheduler}}
---
kind: CacheTier
metadata: {{name: read}}
spec:
  cluster: main
  role: read
  workers: {{tiers: [{{medium: SSD, quota: 100Gi}}]}}
  underStores: [{{mount: /data, url: "s3://data", secret: data-s3}}]
"""
MACHINES = {"v100": ("V100", 8, "64", "512Gi"), "t4": ("T4", 4, "32", "128Gi")}


def team(name: str, random: Random | None) -> str:
    """A team with a dataset, and a quota if there are numbers for one."""
    text = (
        f"kind: Team\nmetadata: {{name: {name}}}\nspec: {{members: {{groups: [{name}]}}}}\n---\n"
        f"kind: Dataset\nmetadata: {{name: clips, team: {name}}}\n"
        f'spec: {{tier: read, size: 10Gi, versions: [{{name: v1, url: "s3://data/{name}"}}]}}\n'
    )
    if random is None or random.random() < 0.15:
        return text
    gpus = [
        f"{{gpu: {model}, guaranteed: {random.choice((0, 4, 8, 16))}, borrow: {random.choice((0, 4, 8, 24))}}}"
        for model in ("V100", "T4")
    ]
    return f"{text}---\nkind: Quota\nmetadata: {{name: gpus, team: {name}}}\nspec: {{gpus: [{', '.join(gpus)}]}}\n"


def job(name: str, random: Random) -> str:
    """One job, service or workspace, of a random team."""
    owner = random.choice(TEAMS)
    gpu = random.choice(("V100", "V100", "T4"))
    gpus = random.choice((1, 2, 4, 8)) if gpu == "V100" else random.choice((1, 2, 4))
    size = f"gpus: {gpus}, gpu: {gpu}, cpu: {random.choice((1, 4, 8))}, memory: {random.choice((4, 16))}Gi"
    image = f"registry.example.com/x{DIGEST}"
    if random.random() < 0.1:
        replicas = random.randint(1, 3)
        return (
            f"kind: ServingDeployment\nmetadata: {{name: {name}, team: {owner}}}\nspec:\n"
            f'  model: {{name: m, version: "1"}}\n  runtime: {{name: custom, image: {image}, port: 8080}}\n'
            f"  probe: {{path: /}}\n  resources: {{{size}}}\n  replicas: {replicas}\n"
        )
    strategy = random.choice(("single", "single", "allReduce", "allReduce", "elastic"))
    workers = size
    if gpus > 1 and random.random() < 0.5:
        policy = random.choice(("required", "preferred"))
        workers += f", link: {random.choice(('socket', 'node'))}, linkPolicy: {policy}"
    if strategy == "allReduce":
        workers += f", replicas: {random.randint(2, 4)}"
    elif strategy == "elastic":
        least = random.randint(1, 3)
        workers += f", min: {least}, max: {least + random.randint(1, 3)}"
    more = "  preemptible: false\n" if random.random() < 0.15 else ""
    return (
        f"kind: TrainingJob\nmetadata: {{name: {name}, team: {owner}}}\nspec:\n  strategy: {strategy}\n"
        f"  image: {image}\n  command: [python, x.py]\n  workers: {{{workers}}}\n"
        f"  priority: {random.choice(('low', 'normal', 'high'))}\n{more}"
    )


def gated(text: str, random: Random, others: list[str]) -> str:
    """The same job with what it may wait for, and what does not count when it is placed: `others` are of its team."""
    if "kind: TrainingJob" not in text:
        return text
    if others and random.random() < 0.4:
        text += f"  after: [{', '.join(random.sample(others, random.randint(1, min(2, len(others)))))}]\n"
    if random.random() < 0.3:
        text += f"  datasets: [{{name: clips}}]\n  startWhen: {{warm: {random.choice((30, 60, 100))}%}}\n"
    if "strategy: allReduce" in text and random.random() < 0.4:
        text += "  healthCheck: {}\n"
    if "strategy: single" in text and random.random() < 0.15:
        text += '  schedule: "0 3 * * *"\n'
    return text


def specs(jobs: list[str], quotas: str) -> str:
    """A repository as one text."""
    return "---\n".join([PLATFORM.strip() + "\n", quotas, *jobs])


class Arena:
    """One plane on which sets take turns."""

    def __init__(self, plane: ControlPlane, kube: KubeClient) -> None:
        self.kube = kube
        self.access = from_kubeconfig(plane.kubeconfig)
        self.items: dict[str, Body] = {}
        self.counts: Counter[str] = Counter()
        """What became of specs."""
        self.furnished = -1
        """The seed of the machines that are there; -1: none are."""
        base = compiled(specs([], "---\n".join(team(name, None) for name in TEAMS)))
        apply(kube, (manifest for manifest in base.manifests if manifest.kind not in (*KINDS, "ResourceQuota")))
        policy = next(manifest.body for manifest in base.manifests if manifest.name == "avactl-policy")
        self.policy = load(PlacementPolicy, policy["data"]["policy.json"])

    # -- machines and objects ---------------------------------------------------------------------------------------

    def machines(self, seed: int) -> None:
        """Others than the specs declare, and fewer, so that some jobs find no room and some never do."""
        self.furnished, random = seed, Random(seed)
        self.kube.request("DELETE", "/api/v1/nodes")
        for number in range(random.randint(3, 7)):
            pool = "v100" if number < 2 else random.choice(("v100", "v100", "t4"))
            model, gpus, cpu, memory = MACHINES[pool]
            name = f"{pool}-{number}"
            amounts = {"cpu": cpu, "memory": memory, "pods": "110", "ephemeral-storage": "1Ti", "nvidia.com/gpu": gpus}
            amounts = {key: str(value) for key, value in amounts.items()}
            labels = {
                "kubernetes.io/hostname": name,
                "avactl.dev/pool": pool,
                "avactl.dev/gpu": model,
                "example.com/block": "b1",
                "example.com/rack": f"r{number % 2}",
            }
            status = {"capacity": amounts, "allocatable": amounts}
            metadata = {"name": name, "labels": labels}
            self.kube.create({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}, "status": status})
        self.until(lambda: not any(node["spec"].get("taints") for node in self.kube.list("v1", "Node")))

    def unfurnish(self) -> None:
        """No machine is left."""
        self.kube.request("DELETE", "/api/v1/nodes")
        self.furnished = -1

    def quotas(self, result: Compilation) -> None:
        """The set's quotas and no others."""
        wanted = [m for m in result.manifests if m.kind == "ConfigMap" and m.name.startswith("avactl-quota-")]
        names = {manifest.name for manifest in wanted}
        for item in self.kube.list("v1", "ConfigMap", SYSTEM):
            name = item["metadata"]["name"]
            if name.startswith("avactl-quota-") and name not in names:
                self.kube.delete("v1", "ConfigMap", name, SYSTEM)
        apply(self.kube, wanted)

    def create(self, result: Compilation, mark: str, known: set[str]) -> None:
        """The pods of workloads that are not known yet, as their controllers would make them, by name."""
        # Of job masters.
        apply(self.kube, [manifest for manifest in result.manifests if manifest.kind == "ServiceAccount"])
        maker = WorkloadMaker(find_surroundings(result.manifests, "main"), "", mark)
        works = find_workloads(result.manifests, "main")
        for id_ in sorted(works, key=lambda each: (each.namespace, each.name)):
            if str(id_) in known or id_.namespace not in TEAMS:
                continue
            known.add(str(id_))
            if id_.kind == "Job":
                self.create_job(id_, works[id_].body)
            for made in maker.pods(works[id_], range(works[id_].count())):
                metadata = {
                    key: value
                    for key, value in made.pod["metadata"].items()
                    if key not in ("uid", "creationTimestamp", "ownerReferences")
                }
                item = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": made.pod["spec"]}
                self.items[f"{metadata['namespace']}/{metadata['name']}"] = item
                self.kube.create(item)

    def create_job(self, id_: ObjectKey, body: Body) -> None:
        """A Job whose pods somebody else makes than Kubernetes' Job controller."""
        metadata = {"name": id_.name, "namespace": id_.namespace, "labels": body["metadata"].get("labels") or {}}
        spec = {**body["spec"], "managedBy": "example.com/arena"}
        self.kube.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec})

    def end_jobs(self, instance: str, *, failed: bool) -> None:
        """The Jobs of a spec have ended, and their pods are gone."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        for job in [each for name in TEAMS for each in self.kube.list("batch/v1", "Job", name)]:
            metadata = job["metadata"]
            if metadata["labels"].get(INSTANCE) != instance:
                continue
            path = f"/apis/batch/v1/namespaces/{metadata['namespace']}/jobs/{metadata['name']}/status"
            conditions = ("FailureTarget", "Failed") if failed else ("SuccessCriteriaMet", "Complete")
            status: Body = {
                "startTime": now,
                "conditions": [
                    {"type": kind, "status": "True", "reason": "Test", "lastTransitionTime": now, "lastProbeTime": now}
                    for kind in conditions
                ],
                "uncountedTerminatedPods": {},
            }
            if not failed:
                status |= {"completionTime": now, "succeeded": job["spec"].get("completions", 1)}
            self.kube.request("PUT", path, body={**job, "status": status})
        for key, pod in self.pods().items():
            if _name(pod) == instance:
                del self.items[key]
                path = f"/api/v1/namespaces/{key.replace('/', '/pods/')}"
                self.kube.request("DELETE", path, body={"gracePeriodSeconds": 0})

    def cache(self, percents: Mapping[str, float]) -> None:
        """What the cache daemon says of the teams' datasets; of the others it says nothing."""
        datasets = {
            f"{name}/clips/v1": DatasetStatus(percent=percent, claims=(name,)) for name, percent in percents.items()
        }
        metadata = {"name": CACHE_STATUS, "namespace": CACHE_NAMESPACE}
        data = {STATUS_KEY: dump(CacheStatus(datasets=datasets))}
        self.kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})

    def clear(self) -> None:
        """Nothing is left for the next set."""
        self.items.clear()
        for name in TEAMS:
            self.kube.request(
                "DELETE", f"/apis/batch/v1/namespaces/{name}/jobs", body={"propagationPolicy": "Background"}
            )
            self.kube.request("DELETE", f"/api/v1/namespaces/{name}/pods", body={"gracePeriodSeconds": 0})
        self.until(lambda: not self.pods())

    def pods(self) -> dict[str, dict[str, Any]]:
        """Pods of the teams."""
        found = [item for name in TEAMS for item in self.kube.list("v1", "Pod", name)]
        return {f"{item['metadata']['namespace']}/{item['metadata']['name']}": item for item in found}

    # -- the two answers --------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """What `avactl snapshot` says."""

        async def run() -> bytes:
            async with Client(self.access) as client:
                return await take_snapshot(client, SYSTEM)

        return asyncio.run(run())

    def plan(self, base: Compilation, head: Compilation, snapshot: bytes) -> Plan:
        """What `avactl plan` says."""
        live = read(snapshot, "snapshot")
        for pod in live.objects["pods"]:
            # Whoever makes pods anew here is no object of the API server.
            pod["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "test", "controller": True}]
        return make_plan(base, head, "main", live)

    def schedule(self) -> dict[str, dict[str, Any]]:
        """Let the daemon decide, with a controller's hand for pods that it stops; the pods in the end."""

        async def run() -> None:
            async with Client(self.access, "avactl-scheduler") as client:
                daemon = SchedulerDaemon(client, SchedulerOptions(self.policy.system_namespace, policy=self.policy))
                tasks = [asyncio.create_task(daemon.run()), asyncio.create_task(self._settled(daemon))]
                try:
                    done, _ = await asyncio.wait(tasks, return_when="FIRST_COMPLETED")
                    for task in done:
                        task.result()
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run(run())
        return self.pods()

    async def _settled(self, daemon: SchedulerDaemon) -> None:
        ending: dict[str, float] = {}
        seen, since, deadline = b"", time.monotonic(), time.monotonic() + 60
        while True:
            await asyncio.sleep(0.1)
            pods = await asyncio.to_thread(self.pods)
            for key, pod in pods.items():
                going = "deletionTimestamp" in pod["metadata"]
                if going and time.monotonic() - ending.setdefault(pod["metadata"]["uid"], time.monotonic()) > _ENDING:
                    path = f"/api/v1/namespaces/{key.replace('/', '/pods/')}"
                    with contextlib.suppress(ApiError):  # it is gone meanwhile
                        await asyncio.to_thread(self.kube.request, "DELETE", path, body={"gracePeriodSeconds": 0})
            now = orjson.dumps(
                {key: [_node(pod), _said(pod)] for key, pod in pods.items()}, option=orjson.OPT_SORT_KEYS
            )
            busy, gone = _busy(daemon, pods), sorted(self.items.keys() - pods.keys())
            if not busy:
                # As plans assume: earlier, chance would decide whether they or a growing gang get what is free.
                for key in gone:
                    await asyncio.to_thread(self.kube.create, self.items[key])
            if now != seen or busy or gone:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > _STILL:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"the scheduler does not come to an end: {busy}")

    def until(self, true: Any, timeout: float = PATIENCE_S) -> None:
        """Wait until it is so."""
        wait_until(true, timeout=timeout)


def _busy(daemon: SchedulerDaemon, pods: dict[str, Body]) -> str:
    """What the scheduler does not know of these pods, or has left to do; it rests between two tries too."""
    cache, queue, room = daemon.cache, daemon.queue, daemon.cycle.preemptor
    known = {(key, pod.uid, pod.node) for key, pod in cache.tables.pods.items()}
    left = {
        "unknown": known ^ {(key, pod["metadata"]["uid"], _node(pod)) for key, pod in pods.items()},
        "going": {key for key, pod in pods.items() if "deletionTimestamp" in pod["metadata"]},
        "untold": {key for key, pod in pods.items() if not (_node(pod) or _said(pod))},
        "to be tried": queue.lengths()[0] or queue.retried != cache.tables.change_epoch,
        "to be planned": list(room._throttle._skipped),
        "nominated": list(room._nominations),
        "requests": daemon.binder.in_flight + len(cast(Evictor, room._evictor)._tasks),
    }
    return ", ".join(f"{what}: {value}" for what, value in left.items() if value)


def _node(pod: Body) -> str:
    node: str = pod["spec"].get("nodeName", "")
    return node


def _said(pod: Body) -> str:
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            message: str = condition.get("message", "")
            return message
    return ""


def _name(pod: Body) -> str:
    name: str = pod["metadata"]["labels"][INSTANCE]
    return name


def need(pods: dict[str, Body], name: str) -> int:
    """Pods without which a spec does not run."""
    mine = [pod for pod in pods.values() if _name(pod) == name]
    notes = mine[0]["metadata"].get("annotations") or {}
    return int(notes.get("avactl.dev/gang-size", len(mine)))


def seen(pods: dict[str, Body], name: str) -> str:
    """What became of a spec: starts, waits or never."""
    mine = [pod for pod in pods.values() if _name(pod) == name]
    waiting = [pod for pod in mine if not _node(pod)]
    placed = len(mine) - len(waiting)
    if placed >= need(pods, name):
        return "starts"
    words = _said(waiting[0])
    return "never" if _NEVER.search(words) else "waits"


def foretold(plan: Plan) -> dict[str, str]:
    """What the plan says of each spec, in the same words."""
    short = {PlanVerdict.STARTS: "starts", PlanVerdict.GOES_ON: "starts", PlanVerdict.NEVER: "never"}
    return {entry.owner.name: short.get(entry.verdict, "waits") for entry in plan.entries}


def agree(arena: Arena, seed: int, gates: bool = False) -> list[str]:
    """Where plan and scheduler differ on one random set: jobs that run or wait, and more that come.

    With `gates`, some of them wait for others, some of which have ended, or for datasets.
    """
    random = Random(seed)
    if arena.furnished != seed // 5:
        arena.machines(seed // 5)
    quotas = "---\n".join(team(name, random) for name in TEAMS)
    old = [job(f"old-{number}", random) for number in range(random.randint(0, 5))]
    new = [job(f"new-{number}", random) for number in range(random.randint(1, 6))]
    kept: list[str] = []
    if gates:
        others: dict[str, list[str]] = defaultdict(list)
        for jobs in (old, new):
            for number, text in enumerate(jobs):
                name, owner = _NAMES.findall(text)[0]
                jobs[number] = gated(text, random, others[owner])
                if "kind: TrainingJob" in text:
                    others[owner].append(name)
        arena.cache({name: random.choice((0.0, 40.0, 99.0, 100.0)) for name in TEAMS if random.random() < 0.9})
    for text in [*old, *new]:
        # What the compiler refuses never comes to a cluster.
        if unchecked(specs([*kept, text], quotas)).ok:
            kept.append(text)
    base = compiled_with_warnings(specs([text for text in kept if text in old], quotas))
    head = compiled_with_warnings(specs(kept, quotas))
    arena.quotas(base)
    known: set[str] = set()
    arena.create(base, "a", known)
    if arena.items:
        arena.schedule()
    if gates and arena.items:
        for text in kept:
            if text in old and "kind: TrainingJob" in text and random.random() < 0.4:
                arena.end_jobs(_NAMES.findall(text)[0][0], failed=random.random() < 0.25)
        arena.schedule()
    before = running(arena.pods())
    snapshot = arena.snapshot()
    plan = arena.plan(base, head, snapshot)
    arena.create(head, "b", known)
    made = {_name(pod): pod["metadata"]["creationTimestamp"] for pod in arena.pods().values()}
    pods = arena.schedule()
    expected, found = outcomes(plan, before, pods)
    if expected != found:
        # Who comes first of those that have one priority and were made in one second, no rule says.
        def shuffled(works: Iterable[PlannedWorkload]) -> list[PlannedWorkload]:
            return sorted(works, key=lambda work: (made.get(work.origin.key[2], ""), random.random()))

        for _ in range(_ORDERS):
            with patch.object(rollout, "_in_order", shuffled):
                other = arena.plan(base, head, snapshot)
            if outcomes(other, before, pods)[0] == found:
                expected = found
                arena.counts["of equals another"] += 1
                break
    arena.clear()
    arena.counts.update(found.values())
    wrong = sorted(name for name in expected if expected[name] != found[name])
    if wrong and KEEP:
        Path(KEEP, f"set-{seed}.json").write_bytes(snapshot)
    return [f"set {seed}, {name}: plan `{expected[name]}`, scheduler `{found[name]}`" for name in wrong]


def outcomes(plan: Plan, before: Counter[str], pods: dict[str, Body]) -> tuple[dict[str, str], dict[str, str]]:
    """What the plan says of each spec, and what became of it in the end, where these pods ran `before`."""
    expected, after = foretold(plan), running(pods)
    found = {name: seen(pods, name) for name in expected}
    counts = Counter(before)
    for effect in plan.effects:
        counts[effect.owner.name] += {"starts": 1, "restarts": 0}.get(effect.what, -1) * effect.pods
    # How far elastic jobs grow into what is left depends on whose pods are gone first: whether they run does not.
    for name in {_name(pod) for pod in pods.values()} - expected.keys():
        expected[name], found[name] = (
            "runs" if each[name] >= need(pods, name) else "rests" for each in (counts, after)
        )
    return expected, found


def running(pods: dict[str, Body]) -> Counter[str]:
    """Pods with a machine, by the spec's name."""
    return Counter(_name(pod) for pod in pods.values() if _node(pod))


def compiled_with_warnings(text: str) -> Compilation:
    """Compile documents that may have warnings."""
    result = unchecked(text)
    assert result.ok, result.diagnostics
    return result
