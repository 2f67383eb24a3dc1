"""Gangs of all kinds on machines as declared: they start if an enumeration finds a placement, and else never fit."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest

from avactl.change.plan.cluster_state import declared_state
from avactl.change.plan.model import PlanVerdict
from avactl.change.plan.rollout import place_all
from avactl.change.plan.simulator import SimulatedCluster
from avactl.change.plan.verdicts import group_waits
from avactl.change.plan.workloads import find_surroundings, find_workloads
from avactl.compiler import Compilation
from avactl.scheduler.objects.pod_info import PodInfo
from tests.kinds.compiling import DIGEST, unchecked

IMAGE = f"registry.example.com/x{DIGEST}"


def platform(random: Random) -> str:
    """Two to five machines of two sizes, that differ in CPUs."""
    pools = []
    for name in ("one", "two"):
        gpus, cpu = random.choice((2, 4)), random.randrange(16, 65, 4)
        pools.append(
            f"kind: MachineType\nmetadata: {{name: {name}}}\n"
            f"spec: {{gpus: {{model: V100, count: {gpus}, memory: 16Gi}}, cpu: {cpu}, memory: 256Gi}}\n---\n"
            f"kind: NodePool\nmetadata: {{name: {name}}}\n"
            f"spec: {{cluster: main, machineType: {name}, count: {random.randint(1, 3)}}}\n"
        )
    images = ", ".join(f"{name}: registry.example.com/{name}{DIGEST}" for name in ("avactl", "kubectl"))
    return "---\n".join(
        (
            f"kind: Cluster\nmetadata: {{name: main}}\nspec:\n  images: {{{images}}}\n"
            "  daemons: {scheduler: true}\n  leaderWorkerSet: {}\n",
            *pools,
            "kind: Team\nmetadata: {name: ads}\nspec: {members: {groups: [ads]}}\n",
        )
    )


def compute(random: Random, gpus: int | None = None) -> str:
    gpus = random.choice((0, 1, 1, 2)) if gpus is None else gpus
    amounts = f"cpu: {random.randrange(4, 33, 2)}, memory: 4Gi, pool: {random.choice(('one', 'two'))}"
    amounts = amounts if random.random() < 0.2 else amounts.rpartition(",")[0]
    return f"{amounts}, gpus: {gpus}, gpu: V100" if gpus else amounts


def job(random: Random) -> str:
    kind = random.choice(("servers", "groups", "launcher", "master", "machines"))
    head = "metadata: {name: x, team: ads}\nspec:\n"
    if kind == "machines":
        return (
            f"kind: ServingDeployment\n{head}  model: {{name: m, version: '1', path: /models/m}}\n"
            f"  runtime: {{name: vllm, image: {IMAGE}}}\n"
            f"  resources: {{{compute(random, random.choice((1, 2)))}}}\n  replicas: 1\n"
            f"  llm: {{machines: {random.randint(2, 4)}}}\n"
        )
    head = f"kind: TrainingJob\n{head}  image: {IMAGE}\n"
    workers = f"  workers: {{replicas: {random.randint(2, 4)}, {compute(random, 1)}}}\n"
    if kind == "launcher":
        launcher = f"  launcher: {{cpu: {random.randrange(2, 33)}, memory: 4Gi}}\n"
        return f"{head}  strategy: mpi\n  command: [python, x.py]\n{launcher}{workers}"
    if kind == "master":
        least = random.randint(2, 3)
        return (
            f"{head}  strategy: elastic\n  command: [python, x.py]\n"
            f"  workers: {{min: {least}, max: {least + 2}, {compute(random, 1)}}}\n"
        )
    more = ""
    if kind == "groups":
        more = f"  workerGroups:\n    - {{name: more, replicas: {random.randint(1, 3)}, {compute(random, 1)}}}\n"
    return (
        f"{head}  strategy: parameterServer\n  framework: custom\n  command: [python, x.py]\n{workers}"
        f"  servers: {{replicas: {random.randint(1, 3)}, {compute(random, 0)}}}\n{more}"
    )


def fits(world: SimulatedCluster, pods: Iterable[PodInfo]) -> bool:
    """Compare all placements of pods on the empty machines."""
    cache, state = world.cache, world.cache.tables.state
    asked = []
    for pod in pods:
        request = cache.requests.request(pod.shape)
        allowed = tuple(state.allowed[request.nodes][: state.size].tolist())
        asked.append((request.gpus, request.amounts, allowed))
    asked.sort(reverse=True)
    seen = set()

    def place(number: int, free: tuple[tuple[int, ...], ...]) -> bool:
        if number == len(asked):
            return True
        if (number, free) in seen:
            return False
        seen.add((number, free))
        gpus, amounts, allowed = asked[number]
        wanted = (gpus, *amounts)
        for slot, left in enumerate(free):
            if allowed[slot] and all(have >= want for have, want in zip(left, wanted, strict=True)):
                after = tuple(have - want for have, want in zip(left, wanted, strict=True))
                if place(number + 1, (*free[:slot], after, *free[slot + 1 :])):
                    return True
        return False

    free = zip(state.gpu_count[: state.size].tolist(), *state.capacity[: state.size].T.tolist(), strict=True)
    return place(0, tuple(free))


def compare(seed: int) -> str:
    """Plan a random gang on random machines; return its kind if it fits."""
    random = Random(seed)
    result = unchecked("---\n".join((platform(random), job(random))))
    if not result.manifests:
        assert not result.ok
        return ""
    world = simulate(result)
    gangs = [unit for unit in world.queue.units.values() if unit.gang]
    assert len(gangs) == 1, seed
    unit = gangs[0]
    pods = sorted(unit.pods.values(), key=lambda pod: (pod.index, pod.name))
    needed = [pod for pod in pods if pod.first] + [pod for pod in pods if not pod.first]
    placed = [pod for pod in pods if pod.node]
    feasible = fits(world, needed[: unit.size])
    assert (len(placed) >= unit.size) == feasible, (seed, world.said, placed)
    if not feasible:
        assert not placed
        assert [wait.verdict for wait in group_waits(world, pods)] == [PlanVerdict.NEVER], (seed, world.said)
        return ""
    return str(pods[0].name)


def simulate(result: Compilation) -> SimulatedCluster:
    world = SimulatedCluster(declared_state(result.program, result.manifests, "main"))
    works = [work for work in find_workloads(result.manifests, "main").values() if work.id.namespace == "ads"]
    place_all(world, works, find_surroundings(result.manifests, "main"), "2026-01-01T00:00:00Z", "live")
    world.settle()
    return world


def test_gangs_of_all_kinds_start_if_they_fit() -> None:
    assert len([name for name in map(compare, range(40)) if name]) > 10


@pytest.mark.slow
def test_many_gangs_of_all_kinds_start_if_they_fit() -> None:
    assert len([name for name in map(compare, range(1000, 3000)) if name]) > 500
