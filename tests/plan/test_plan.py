"""What a plan says of a change, on machines as the specs declare them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any

import orjson
import pytest

from avactl.change.diff import compare
from avactl.change.plan.cluster_state import configured_objects, declared_machines, declared_state
from avactl.change.plan.effects import owner_of
from avactl.change.plan.model import Plan, PlanEntry, PlannedOwner, PlanVerdict
from avactl.change.plan.output.text import render_text
from avactl.change.plan.planner import make_plan
from avactl.change.plan.rollout import place_all
from avactl.change.plan.simulator import SimulatedCluster
from avactl.change.plan.snapshot.loader import SnapshotError, read, strip_objects, write
from avactl.change.plan.uncounted import describe_uncounted
from avactl.change.plan.workloads import find_surroundings, find_workloads
from avactl.compiler import Compilation
from avactl.contracts.scheduling import PlacementPolicy
from avactl.scheduler.objects.pod_info import PodInfo
from tests.kinds.compiling import DIGEST, unchecked
from tests.scheduler.offline import pod

IMAGE = f"registry.example.com/x{DIGEST}"


def platform(count: int = 4, pool: str = "", cluster: str = "", quotas: str = "") -> str:
    """A cluster of machines with 8 V100 on two sockets, and two teams."""
    return f"""
kind: Cluster
metadata: {{name: main}}
spec:
  images: {{avactl: registry.example.com/avactl{DIGEST}, kubectl: registry.example.com/k{DIGEST}}}
  daemons: {{scheduler: true}}
  {cluster}
---
kind: MachineType
metadata: {{name: twosocket}}
spec: {{gpus: {{model: V100, count: 8, memory: 16Gi}}, cpu: 64, memory: 512Gi, sockets: 2}}
---
kind: NodePool
metadata: {{name: v100}}
spec: {{cluster: main, machineType: twosocket, count: {count}, labels: {{topology.kubernetes.io/rack: r1}} {pool}}}
---
kind: Team
metadata: {{name: vision}}
spec: {{members: {{groups: [vision]}}}}
---
kind: Team
metadata: {{name: ads}}
spec: {{members: {{groups: [ads]}}}}
{quotas}"""


def quota(team: str, guaranteed: int, borrow: int) -> str:
    return f"""---
kind: Quota
metadata: {{name: gpus, team: {team}}}
spec: {{gpus: [{{gpu: V100, guaranteed: {guaranteed}, borrow: {borrow}}}]}}
"""


def job(name: str, replicas: int, team: str = "vision", more: str = "", gpus: int = 8) -> str:
    strategy = "allReduce" if replicas > 1 else "single"
    return f"""---
kind: TrainingJob
metadata: {{name: {name}, team: {team}}}
spec:
  strategy: {strategy}
  image: {IMAGE}
  command: [python, x.py]
  workers: {{replicas: {replicas}, gpus: {gpus}, gpu: V100, cpu: 4, memory: 16Gi}}
{more}"""


def service(replicas: int, version: str = "1", surge: int = 1, name: str = "api") -> str:
    return f"""---
kind: ServingDeployment
metadata: {{name: {name}, team: vision}}
spec:
  model: {{name: m, version: "{version}"}}
  runtime: {{name: custom, image: {IMAGE}, port: 8080, args: ["{version}"]}}
  probe: {{path: /}}
  resources: {{gpus: 8, gpu: V100, cpu: 4, memory: 16Gi}}
  replicas: {replicas}
  maxSurge: {surge}
"""


def after(*jobs: str) -> str:
    return f"  after: [{', '.join(jobs)}]\n"


def compile_(*parts: str) -> Compilation:
    result = unchecked("".join(parts))
    assert result.ok, result.diagnostics
    return result


def plan(base: Compilation | None, head: Compilation, **more: Any) -> Plan:
    return make_plan(base, head, "main", **more)


def entry(found: Plan, name: str) -> PlanEntry:
    return next(each for each in found.entries if each.owner.name == name)


def snapshot(result: Compilation, ended: Mapping[str, list[dict[str, str]]] = MappingProxyType({})) -> bytes:
    """A snapshot of a cluster where this runs, with the conditions of Jobs that may have ended."""
    world = SimulatedCluster(declared_state(result.program, result.manifests, "main"))
    works = [work for work in find_workloads(result.manifests, "main").values() if work.id.namespace != "avactl-system"]
    place_all(world, works, find_surroundings(result.manifests, "main"), "2026-01-01T00:00:00Z", "live")
    objects = {**configured_objects(result.manifests, "main"), **declared_machines(result.program, "main")}
    jobs = [
        {
            "metadata": {"namespace": work.id.namespace, "name": work.id.name, "annotations": {"x": "y"}},
            "spec": work.spec,
            "status": {"conditions": ended.get(work.id.name)},
        }
        for work in works
        if work.id.kind == "Job"
    ]
    world.put_objects({"jobs": jobs})
    world.settle()
    policy = PlacementPolicy(
        cluster="main",
        jobs=True,
        system_namespace="avactl-system",
        gpu_driver="gpu.nvidia.com",
        levels=("topology.kubernetes.io/rack",),
    )
    stripped = strip_objects({**objects, "jobs": jobs, "pods": list(world.items.values())})
    return write(policy, stripped, "2026-01-02T00:00:00Z")


def test_a_new_job_starts_and_says_where() -> None:
    found = plan(compile_(platform()), compile_(platform(), job("new", 2)))
    new = entry(found, "new")
    assert (new.verdict, new.pods, new.placed, new.change) == (PlanVerdict.STARTS, 2, 2, "added")
    assert [(place.pool, place.machines, place.domains) for place in new.places] == [("v100", 2, ("rack r1",))]
    assert found.fine
    assert [(pool.before, pool.after) for pool in found.pools] == [(0, 16)]


@pytest.mark.parametrize("live", [False, True])
def test_room_is_missing_beside_what_runs_already(live: bool) -> None:
    base = compile_(platform(), job("old", 3))
    head = compile_(platform(), job("old", 3), job("new", 2))
    new = entry(plan(base, head, live=read(snapshot(base), "s") if live else None), "new")
    assert new.verdict == PlanVerdict.ROOM
    assert "needs 2 machines with 8 free V100; only 1 available" in new.waits[0].words
    assert new.waits[0].room == "rack r1 has capacity for 1 of 2"


def test_the_limit_of_a_member_counts() -> None:
    quotas = quota("vision", 16, 16).replace("borrow: 16", "borrow: 16, perMember: 8")
    ann, bob = (f", member: {name}}}" for name in ("ann", "bob"))
    base = compile_(platform(quotas=quotas), job("old", 1).replace("}", ann, 1))
    other, same = (job(name, 1).replace("}", whom, 1) for name, whom in (("bobs", bob), ("anns", ann)))
    found = plan(base, compile_(platform(quotas=quotas), job("old", 1).replace("}", ann, 1), other, same))
    assert entry(found, "bobs").verdict == PlanVerdict.STARTS
    anns = entry(found, "anns")
    assert anns.verdict == PlanVerdict.QUOTA
    assert anns.waits[0].words.endswith("requests 8 V100, ann uses 8 of 8 of each member")


def test_pod_groups_of_kubernetes_are_gangs() -> None:
    """A gang of three that waits takes none of the two free machines from a new job."""
    base = compile_(platform(), job("old", 2))
    live = read(snapshot(base), "s")
    resources = {"requests": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "8"}}
    pods = [
        {
            "metadata": {
                "name": f"theirs-{number}",
                "namespace": "vision",
                "uid": f"theirs-{number}",
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {
                "schedulerName": "avactl",
                "containers": [{"name": "main", "image": "secret", "resources": resources}],
                "schedulingGroup": {"podGroupName": "theirs"},
            },
        }
        for number in range(3)
    ]
    group = {
        "metadata": {"name": "theirs", "namespace": "vision", "uid": "g", "labels": {"a": "b"}},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}},
    }
    more = strip_objects({"pods": pods, "podgroups": [group]})
    assert "secret" not in str(more)
    policy = live.policy.model_copy(update={"pod_groups": True})
    objects = {**live.objects, **more, "pods": [*live.objects["pods"], *more["pods"]]}
    live = replace(live, policy=policy, objects=objects)
    found = plan(base, compile_(platform(), job("old", 2), job("new", 2)), live=live)
    assert entry(found, "new").verdict == PlanVerdict.STARTS


def test_quota_says_its_numbers_and_beyond_the_cluster_is_never() -> None:
    quotas = quota("vision", 8, 8)
    base = compile_(platform(quotas=quotas), job("old", 1))
    new = entry(plan(base, compile_(platform(quotas=quotas), job("old", 1), job("new", 2))), "new")
    assert new.verdict == PlanVerdict.QUOTA
    assert "requests 16 V100, uses 8 of 16 (8 guaranteed + 8 borrowed)" in new.waits[0].words
    # The specs declare more machines than there are.
    few = read(snapshot(compile_(platform(count=1))), "s")
    assert entry(plan(None, compile_(platform(), job("new", 2)), live=few), "new").verdict == PlanVerdict.NEVER
    # Nor does a quota that gives way help then.
    full = compile_(platform(count=1, quotas=quotas), job("old", 1))
    head = compile_(platform(quotas=quotas), job("old", 1), job("new", 2))
    new = entry(plan(full, head, live=read(snapshot(full), "s")), "new")
    assert new.verdict == PlanVerdict.NEVER
    assert "requests 16 V100, uses 8" in new.waits[0].words
    assert new.waits[0].words.endswith("; the cluster is too small for it even if it is empty")


@pytest.mark.parametrize("live", [False, True])
def test_a_changed_job_restarts_and_others_stay(live: bool) -> None:
    base = compile_(platform(), job("a", 2), job("b", 2))
    head = compile_(platform(), job("a", 2), job("b", 2, more="  env: {X: '1'}\n"))
    found = plan(base, head, live=read(snapshot(base), "s") if live else None)
    assert [(e.owner.name, e.verdict, e.restarts) for e in found.entries] == [("b", PlanVerdict.STARTS, 2)]
    assert not found.effects


def test_a_run_that_may_end_first_is_not_stopped() -> None:
    base = compile_(platform(), job("a", 2))
    head = compile_(platform(), job("a", 2, more="  env: {X: '1'}\n  onChange: finish\n"))
    a = entry(plan(base, head), "a")
    assert (a.verdict, a.restarts, a.later) == (PlanVerdict.GOES_ON, 0, True)


def test_a_rollout_needs_room_for_its_surge() -> None:
    base, head = compile_(platform(), service(3)), compile_(platform(), service(3, "2"))
    api = entry(plan(base, head), "api")
    assert api.verdict == PlanVerdict.STARTS
    assert api.surge is not None
    assert (api.surge.wanted, api.surge.placed, api.placed) == (1, 1, 3)
    full = plan(compile_(platform(), service(4)), compile_(platform(), service(4, "2")))
    api = entry(full, "api")
    assert api.surge is not None
    assert (api.verdict, api.surge.placed, api.restarts) == (PlanVerdict.ROOM, 0, 0)
    assert "rollout stalls, the old pods keep running" in render_text([full])
    # One that stops a pod first needs none.
    api = entry(plan(compile_(platform(), service(4, surge=0)), compile_(platform(), service(4, "2", surge=0))), "api")
    assert (api.verdict, api.placed) == (PlanVerdict.STARTS, 4)


def groups(replicas: int, version: str = "1", surge: int = 1, name: str = "chat") -> str:
    return f"""---
kind: ServingDeployment
metadata: {{name: {name}, team: vision}}
spec:
  model: {{name: m, version: "{version}", path: /opt/m-{version}}}
  runtime: {{name: vllm, image: {IMAGE}}}
  resources: {{gpus: 8, gpu: V100, cpu: 4, memory: 16Gi}}
  llm: {{machines: 2}}
  replicas: {replicas}
  maxSurge: {surge}
"""


GROUPS = platform(cluster="leaderWorkerSet: {}")


def test_groups_of_pods_start_whole_or_wait() -> None:
    chat = entry(plan(None, compile_(GROUPS, groups(2))), "chat")
    assert (chat.verdict, chat.pods, chat.placed) == (PlanVerdict.STARTS, 4, 4)
    assert chat.cost is not None
    assert chat.cost.gpus == {"V100": 32}
    # Three of four machines are left: one group starts, and no pod of the other.
    stays = job("a", 1, more="  preemptible: false\n")
    chat = entry(plan(compile_(GROUPS, stays), compile_(GROUPS, stays, groups(2))), "chat")
    assert (chat.pods, chat.placed) == (4, 2)


@pytest.mark.parametrize("live", [False, True])
def test_a_rollout_of_groups_needs_room_for_a_group(live: bool) -> None:
    def rolled(replicas: int, surge: int) -> PlanEntry:
        base, head = (compile_(GROUPS, groups(replicas, version, surge)) for version in "12")
        return entry(plan(base, head, live=read(snapshot(base), "s") if live else None), "chat")

    chat = rolled(1, 1)
    assert chat.surge is not None
    assert (chat.verdict, chat.surge.wanted, chat.surge.placed, chat.placed) == (PlanVerdict.STARTS, 2, 2, 2)
    chat = rolled(2, 1)
    assert chat.surge is not None
    assert (chat.verdict, chat.surge.placed, chat.restarts) == (PlanVerdict.ROOM, 0, 0)
    assert (rolled(2, 0).verdict, rolled(2, 0).placed) == (PlanVerdict.STARTS, 4)


@pytest.mark.parametrize("live", [False, True])
def test_fewer_groups_are_no_restart(live: bool) -> None:
    base, head = compile_(GROUPS, groups(2)), compile_(GROUPS, groups(1))
    chat = entry(plan(base, head, live=read(snapshot(base), "s") if live else None), "chat")
    assert (chat.verdict, chat.pods, chat.placed, chat.restarts, chat.ends) == (PlanVerdict.GOES_ON, 2, 2, 0, 2)


def roles(replicas: int, version: str = "1") -> str:
    return groups(replicas, version).replace("llm: {machines: 2}", f"llm: {{prefill: {{router: {{image: {IMAGE}}}}}}}")


@pytest.mark.parametrize("live", [False, True])
def test_both_roles_of_a_service_need_room(live: bool) -> None:
    """Of four machines, one reads prompts; the router needs no GPUs."""

    def after(base: Compilation, head: Compilation) -> PlanEntry:
        return entry(plan(base, head, live=read(snapshot(base), "s") if live else None), "chat")

    chat = entry(plan(None, compile_(GROUPS, roles(3))), "chat")
    assert (chat.verdict, chat.pods, chat.placed) == (PlanVerdict.STARTS, 5, 5)
    assert chat.cost is not None
    assert chat.cost.gpus == {"V100": 32}
    base = compile_(GROUPS, roles(2))
    more = after(base, compile_(GROUPS, roles(3)))
    assert (more.pods, more.placed, more.restarts) == (3, 3, 0)  # of the role that changes
    # Each role starts one pod of the new version before an old one stops, and there is room for one of them.
    newer = after(base, compile_(GROUPS, roles(2, "2")))
    assert newer.surge is not None
    assert (newer.verdict, newer.surge.wanted, newer.surge.placed) == (PlanVerdict.ROOM, 1, 0)


@pytest.mark.parametrize("live", [False, True])
def test_fewer_pods_are_no_restart(live: bool) -> None:
    base, head = compile_(platform(), service(3)), compile_(platform(), service(1))
    fewer = plan(base, head, live=read(snapshot(base), "s") if live else None)
    api = entry(fewer, "api")
    assert (api.verdict, api.pods, api.placed, api.restarts, api.ends) == (PlanVerdict.GOES_ON, 1, 1, 0, 2)
    assert "2 running pods stop for good" in render_text([fewer])
    # A Job is made anew for that: one of its pods does not come back.
    smaller = entry(plan(compile_(platform(), job("a", 3)), compile_(platform(), job("a", 2))), "a")
    assert (smaller.verdict, smaller.placed, smaller.restarts, smaller.ends) == (PlanVerdict.STARTS, 2, 2, 1)


def test_an_autoscaler_with_new_bounds_changes_how_many_pods_run() -> None:
    def scaled(least: int, most: int) -> Compilation:
        api = service(3).replace("replicas: 3", f"replicas: {{min: {least}, max: {most}}}")
        return compile_(platform(), job("a", 1), api)

    base = scaled(2, 4)
    more = entry(plan(base, scaled(3, 4)), "api")
    assert (more.verdict, more.pods, more.placed) == (PlanVerdict.STARTS, 3, 3)
    full = plan(base, scaled(4, 4))
    assert (entry(full, "api").verdict, entry(full, "api").placed) == (PlanVerdict.STARTS, 4)
    assert [(effect.owner.name, effect.what) for effect in full.effects] == [("a", "preempted")]
    assert not plan(base, scaled(2, 3)).entries  # two run, and two is what both ask for
    assert not plan(base, scaled(1, 4)).entries  # nobody stops one that runs but the load


def test_an_autoscaled_service_is_counted_as_it_runs_and_loses_first_what_waits() -> None:
    def scaled(most: int, version: str = "1") -> Compilation:
        prices = "prices: {currency: EUR, gpus: {V100: 1}}"
        api = service(4, version).replace("replicas: 4", f"replicas: {{min: 1, max: {most}}}")
        return compile_(platform(cluster=prices), api)

    # Four run of which the specs say no more than that it is one at least; or three, and one waits.
    data = orjson.loads(snapshot(compile_(platform(), service(4))))
    found = plan(scaled(4), scaled(2), live=read(orjson.dumps(data), "s"))
    assert (entry(found, "api").before.gpus, entry(found, "api").cost.gpus) == ({"V100": 32}, {"V100": 16})
    assert "-11,680 EUR per month" in render_text([found])
    first = next(pod for pod in data["objects"]["pods"] if pod["metadata"]["namespace"] == "vision")
    lost = first["spec"].pop("nodeName")
    data["objects"]["nodes"] = [node for node in data["objects"]["nodes"] if node["metadata"]["name"] != lost]
    live = orjson.dumps(data)
    assert entry(plan(scaled(4), scaled(3), live=read(live, "s")), "api").ends == 0
    assert entry(plan(scaled(4), scaled(2), live=read(live, "s")), "api").ends == 1
    assert entry(plan(scaled(4), scaled(2, "2"), live=read(live, "s")), "api").ends == 1


def test_whoever_borrowed_gives_back_and_whoever_waited_starts() -> None:
    quotas = quota("vision", 16, 16) + quota("ads", 16, 16)
    base = compile_(platform(quotas=quotas), job("borrows", 4, "ads"))
    taken = plan(base, compile_(platform(quotas=quotas), job("borrows", 4, "ads"), job("owner", 2)))
    assert entry(taken, "owner").verdict == PlanVerdict.STARTS
    effect = taken.effects[0]
    assert (effect.owner.name, effect.what, effect.pods, effect.reason) == ("borrows", "preempted", 4, "quota-reclaim")
    assert effect.by is not None
    assert effect.by.name == "owner"
    assert not taken.fine
    given = plan(
        compile_(platform(quotas=quotas), job("first", 4, "ads"), job("second", 3, "ads")),
        compile_(platform(quotas=quotas), job("second", 3, "ads")),
    )
    assert entry(given, "first").verdict == PlanVerdict.REMOVED
    assert [(effect.owner.name, effect.what, effect.pods) for effect in given.effects] == [("second", "starts", 3)]


@pytest.mark.parametrize("allocation", ["devicePlugin", "dra"])
def test_whoever_is_preempted_waits_behind_those_that_wait_already(allocation: str) -> None:
    quotas = quota("vision", 16, 0) + quota("ads", 0, 8)
    empty = platform(3, f", allocation: {allocation}", quotas=quotas)
    stays, moves = job("stays", 1, "ads", gpus=6), job("moves", 1, "ads", gpus=2)
    base = (empty, stays, moves, job("ends", 1, more="  priority: high\n", gpus=2))
    # Beside `stays` is room once `ends` is gone, and `large` needs the two other machines.
    found = plan(compile_(*base), compile_(empty, stays, moves, job("large", 2)))
    assert [(effect.owner.name, effect.what) for effect in found.effects] == [("moves", "restarts")]
    waits = job("waits", 1, "ads", gpus=2)
    found = plan(compile_(*base, waits), compile_(empty, stays, moves, waits, job("large", 2)))
    assert [(effect.owner.name, effect.what) for effect in found.effects] == [
        ("moves", "preempted"),
        ("waits", "starts"),
    ]


def test_what_its_machines_leave_stops() -> None:
    found = plan(compile_(platform(4), job("old", 4)), compile_(platform(2), "---\n" + job("tiny", 1, gpus=1)[4:]))
    assert entry(found, "old").verdict == PlanVerdict.REMOVED
    left = plan(compile_(platform(4), job("old", 2)), compile_(platform(1), service(1)))
    assert entry(left, "api").verdict == PlanVerdict.STARTS


def test_dra_claims_are_made_and_met() -> None:
    dra = platform(pool=", allocation: dra")
    found = plan(compile_(dra), compile_(dra, job("new", 3), job("more", 2)))
    assert sorted(each.verdict for each in found.entries) == sorted([PlanVerdict.STARTS, PlanVerdict.ROOM])
    assert found.pools[0].after in (16, 24)


def test_pods_of_kube_scheduler_are_an_estimate() -> None:
    text = platform().replace("daemons: {scheduler: true}", "")
    new = entry(plan(compile_(text), compile_(text, job("new", 2))), "new")
    assert (new.verdict, new.estimated) == (PlanVerdict.STARTS, True)


def test_hours_and_prices() -> None:
    prices = "prices: {currency: EUR, gpus: {V100: 2}, cpu: 0.01}"
    base = compile_(platform(cluster=prices), job("old", 1))
    head = compile_(platform(cluster=prices), job("new", 2, more="  timeout: 10h\n"), service(1), job("old", 1))
    found = plan(base, head)
    new, api = entry(found, "new"), entry(found, "api")
    assert new.cost.gpu_hours == 160
    assert new.cost.at_most == pytest.approx((16 * 2 + 8 * 0.01) * 10)
    assert api.cost.always
    assert api.cost.per_hour == pytest.approx(16.04)
    text = render_text([found])
    assert "160 GPU-hours at most (10 h)" in text
    assert "+11,709 EUR per month for continuous workloads" in text
    assert "320.80 EUR at most" in text


def test_everything_and_nothing() -> None:
    result = compile_(platform(), job("a", 2), service(1))
    assert not plan(result, result).entries
    assert "no workload changes" in render_text([plan(result, result)])
    assert {each.owner.name for each in plan(result, result, everything=True).entries} == {"main", "a", "api"}
    live = read(snapshot(result), "s")
    found = plan(result, result, everything=True, live=live)
    assert {each.owner.name: each.verdict for each in found.entries if each.owner.name != "main"} == {
        "a": PlanVerdict.GOES_ON,
        "api": PlanVerdict.GOES_ON,
    }


def test_suspended_jobs_and_elastic_ones() -> None:
    base = compile_(platform(2))
    elastic = """---
kind: TrainingJob
metadata: {name: grows, team: vision}
spec:
  strategy: elastic
  image: IMAGE
  command: [python, x.py]
  workers: {min: 1, max: 4, gpus: 8, gpu: V100, cpu: 4, memory: 16Gi}
""".replace("IMAGE", IMAGE)
    found = plan(base, compile_(platform(2), elastic, job("still", 1, more="  suspended: true\n")))
    grows, still = entry(found, "grows"), entry(found, "still")
    assert (grows.verdict, grows.placed, grows.pods) == (PlanVerdict.STARTS, 3, 5)
    assert (still.verdict, still.pods) == (PlanVerdict.STOPPED, 0)
    assert "starts with 3 of 5 pods" in render_text([found])
    found = plan(compile_(platform(2), job("a", 1)), compile_(platform(2), job("a", 1, more="  suspended: true\n")))
    assert "1 running pod stops  " in render_text([found])  # and not for good


def test_a_cluster_comes_and_goes() -> None:
    other = platform().replace("main", "other").replace("name: v100}", "name: more}").replace("twosocket", "more")
    one = compile_(platform(), job("a", 2, more="  cluster: main\n"))
    both = compile_(platform(), job("a", 2, more="  cluster: main\n"), "---\n" + other.partition("---\nkind: Team")[0])
    came = make_plan(one, both, "other")
    assert [entry.verdict for entry in came.entries] == [PlanVerdict.STARTS]
    gone = make_plan(both, one, "other")
    assert [entry.verdict for entry in gone.entries] == [PlanVerdict.REMOVED]
    assert not make_plan(one, both, "main").entries


def test_budgets_protect_what_the_base_runs() -> None:
    result = compile_(platform(), service(3))
    world = SimulatedCluster(declared_state(result.program, result.manifests, "main"))
    works = find_workloads(result.manifests, "main")
    place_all(world, works.values(), find_surroundings(result.manifests, "main"), "2026-01-01T00:00:00Z", "base")
    for manifest in result.manifests:
        if manifest.kind == "PodDisruptionBudget":
            world.protect(manifest.body)
    api = next(work for id_, work in works.items() if id_.name == "api")
    assert len(world.budgets.protected_pods(world.pods_of(api))) == 2


@pytest.mark.parametrize(
    "place",
    [
        "nodes.0.metadata",
        "nodes.0.metadata.labels",
        "nodes.0.status.allocatable.cpu",
        "pods.0.metadata.namespace",
        "pods.0.spec.nodeName",
        "podSpecs.0.containers.0.resources.requests.cpu",
        "configmaps.0",
    ],
)
def test_a_snapshot_that_somebody_damaged_is_refused(place: str) -> None:
    data = orjson.loads(snapshot(compile_(platform(), job("old", 3))))
    read(orjson.dumps(data), "state.json")
    inner = data["objects"]
    *steps, last = (int(step) if step.isdecimal() else step for step in place.split("."))
    for step in steps:
        inner = inner[step]
    inner[last] = ["x"]
    with pytest.raises(SnapshotError, match="the snapshot is damaged"):
        read(orjson.dumps(data), "state.json")


def test_a_pod_without_labels_of_a_spec_is_its_own_owner() -> None:
    assert owner_of(PodInfo(pod("by-hand", 1), 0.0)) == PlannedOwner("Pod", "", "vision/by-hand")


def test_diff_and_plan_do_not_contradict_each_other() -> None:
    """A job that starts because others give way: the quota and the pool cannot hold all of them."""
    urgent = job("urgent", 2, more="  priority: high\n")
    for given in (platform(2), platform(4, quotas=quota("vision", 16, 0))):
        base, head = compile_(given, job("old", 2)), compile_(given, job("old", 2), urgent)
        assert entry(plan(base, head), "urgent").verdict is PlanVerdict.STARTS
        intent = next(each for each in compare(base, head).intents if each.item.name == "urgent")
        said = [each.text for each in intent.consequences if each.topic in ("capacity", "quota")]
        assert any("not all can run at once" in text for text in said)
        assert not any("wait" in text for text in said)


# -- jobs that start after others -------------------------------------------------------------------------------------


def test_a_job_that_waits_for_another_uses_no_quota() -> None:
    base = compile_(platform(4, quotas=quota("vision", 24, 0)), job("etl", 2), job("train", 2, more=after("etl")))
    head = compile_(
        platform(4, quotas=quota("vision", 24, 0)), job("etl", 2), job("train", 2, more=after("etl")), job("other", 1)
    )
    assert entry(plan(base, head), "other").verdict is PlanVerdict.STARTS
    everything = plan(base, head, everything=True)
    train = entry(everything, "train")
    assert (train.verdict, train.placed) == (PlanVerdict.LATER, 0)
    assert train.waits[0].words == "waits for Job etl-worker, which has not ended"
    assert everything.fine
    assert [(each.before, each.after) for each in plan(base, head).quotas] == [(16.0, 24.0)]


@pytest.mark.parametrize(
    ("conditions", "verdict", "words"),
    [
        ([{"type": "Complete", "status": "True", "message": "x"}], PlanVerdict.GOES_ON, ""),
        ([{"type": "Failed", "status": "True"}], PlanVerdict.WAITS, "waits for Job etl-worker, which has failed"),
        ([{"type": "Complete", "status": "False"}], PlanVerdict.LATER, "waits for Job etl-worker, which has not ended"),
    ],
)
def test_a_snapshot_knows_which_jobs_have_ended(
    conditions: list[dict[str, str]], verdict: PlanVerdict, words: str
) -> None:
    base = compile_(platform(3), job("etl", 1), job("train", 2, more=after("etl")))
    live = read(snapshot(base, {"etl-worker": conditions}), "state.json")
    found = entry(plan(base, base, live=live, everything=True), "train")
    assert (found.verdict, [wait.words for wait in found.waits]) == (verdict, [words] if words else [])


def test_a_new_run_of_a_job_is_waited_for() -> None:
    base = compile_(platform(4), job("etl", 1), job("train", 2, more=after("etl")))
    complete = {"etl-worker": [{"type": "Complete", "status": "True"}]}
    state = orjson.loads(snapshot(base, complete))
    state["objects"]["pods"] = [each for each in state["objects"]["pods"] if "train" not in each["metadata"]["name"]]
    live = read(orjson.dumps(state), "state.json")
    head = compile_(platform(4), job("etl", 2), job("train", 1, more=after("etl")))
    assert entry(plan(base, head, live=live), "train").verdict is PlanVerdict.LATER
    only = compile_(platform(4), job("etl", 1), job("train", 1, more=after("etl")))
    assert entry(plan(base, only, live=live), "train").verdict is PlanVerdict.STARTS
    alone = compile_(platform(4), job("train", 1))
    assert entry(plan(base, alone, live=live), "train").verdict is PlanVerdict.STARTS


@pytest.mark.parametrize(("gpus", "nics"), [(1, 1), (2, 2), (3, 3), (4, 5), (8, 10)])
def test_all_gpus_of_a_machine_can_be_used_beside_its_nics(gpus: int, nics: int) -> None:
    names = [f"mlx5_{number}" for number in range(10)]
    below = [names[:3], *([name] for name in names[3:])]
    switches = ", ".join(
        f"{{socket: {gpu // 4}, gpus: [{gpu}], nics: [{', '.join(nearest)}]}}" for gpu, nearest in enumerate(below)
    )
    cards = ", ".join(
        f"{{name: {name}, socket: {int(number > 5)}, bandwidth: 400, rdma: true}}" for number, name in enumerate(names)
    )
    machine = f"""---
kind: MachineType
metadata: {{name: h100x}}
spec:
  gpus: {{model: H100, count: 8, memory: 80Gi}}
  cpu: 192
  memory: 1536Gi
  sockets: 2
  switches: [{switches}]
  nvlink: {{generation: 4, nvswitchLinks: 18}}
  nics: [{cards}]
---
kind: NodePool
metadata: {{name: h100}}
spec: {{cluster: main, machineType: h100x, count: 1, rdmaResource: nvidia.com/hostdev}}
"""
    jobs = [
        job(f"j{number}", 1, gpus=gpus).replace("V100", "H100").replace("cpu: 4", "cpu: 4, rdma: true")
        for number in range(8 // gpus)
    ]
    head = compile_(platform(), machine, *jobs)
    requested = {
        manifest.body["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/hostdev"]
        for manifest in head.manifests
        if manifest.kind == "Job" and manifest.name.startswith("j")
    }
    assert requested == {str(nics)}
    found = plan(compile_(platform(), machine), head)
    assert {each.verdict for each in found.entries} == {PlanVerdict.STARTS}
    assert len(found.entries) == 8 // gpus


OTHERS = """---
kind: KubernetesObjects
metadata: {name: others}
spec:
  objects:
    - apiVersion: ray.io/v1
      kind: RayJob
      metadata: {name: tune, namespace: vision}
      spec:
        rayClusterSpec:
          headGroupSpec: {template: {spec: {containers: [{name: head, image: IMAGE}]}}}
          workerGroupSpecs:
            - {groupName: w, replicas: 2, numOfHosts: 1, template: {spec: {containers: [{name: w, image: IMAGE,
               resources: {limits: {nvidia.com/gpu: 8}}}]}}}
    - apiVersion: jobset.x-k8s.io/v1alpha2
      kind: JobSet
      metadata: {name: pretrain, namespace: vision}
      spec:
        replicatedJobs:
          - {name: w, replicas: 2, template: {spec: {parallelism: 2, completions: 2, template: {spec: {containers:
             [{name: w, image: IMAGE, resources: {limits: {nvidia.com/gpu: "8"}}}]}}}}}
""".replace("IMAGE", IMAGE)


def test_gpus_of_unknown_controllers_are_named() -> None:
    plan = make_plan(unchecked(platform()), unchecked(platform() + OTHERS), "main")
    assert plan.uncounted == (
        "not counted, here and in quotas: 48 GPUs of JobSet vision/pretrain, RayJob vision/tune, whose controllers "
        "avactl does not know"
    )
    assert plan.uncounted in render_text([plan], width=200)


def _uncounted(*bodies: dict[str, Any]) -> str:
    given = [{"apiVersion": "example.com/v1", "metadata": {"name": "x", "namespace": "v"}, **body} for body in bodies]
    return describe_uncounted([SimpleNamespace(body=body) for body in given], ["nvidia.com/gpu"])  # type: ignore[misc]


def _pod(gpus: object) -> dict[str, Any]:
    return {"template": {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": gpus}}}]}}}


@pytest.mark.parametrize(
    ("kind", "spec", "gpus"),
    [
        ("PyTorchJob", {"pytorchReplicaSpecs": {"Master": _pod(8), "Worker": {"replicas": 3, **_pod("8")}}}, 32),
        ("MPIJob", {"mpiReplicaSpecs": {"Launcher": _pod(0), "Worker": {"replicas": 2, **_pod(4)}}}, 8),
        ("RayCluster", {"workerGroupSpecs": [{"minReplicas": 3, "numOfHosts": 2, **_pod(1)}]}, 6),
        ("JobSet", {"replicatedJobs": [{"template": {"spec": {"parallelism": 4, "completions": 2, **_pod(1)}}}]}, 2),
        ("TrainJob", {"trainer": {"numNodes": 3, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}}}, 24),
        ("Odd", {"replicas": "x", "parallelism": None, **_pod("1Gi")}, 1),
        ("Suspended", {"suspend": True, **_pod(8)}, 0),
    ],
)
def test_gpus_of_other_kinds(kind: str, spec: dict[str, Any], gpus: int) -> None:
    text = _uncounted({"kind": kind, "spec": spec})
    assert text.startswith(f"not counted, here and in quotas: {gpus} GPU") if gpus else not text


def test_gpus_in_the_runtime_of_a_train_job() -> None:
    runtime = {"mlPolicy": {"numNodes": 2}, "template": {"spec": {"replicatedJobs": [{"template": {"spec": _pod(4)}}]}}}
    given = {"kind": "ClusterTrainingRuntime", "metadata": {"name": "torch"}, "spec": runtime}
    assert _uncounted(given) == ""
    assert "8 GPUs of TrainJob v/x," in _uncounted(
        given, {"kind": "TrainJob", "spec": {"runtimeRef": {"name": "torch"}}}
    )


def test_many_unknown_objects_are_counted_and_some_named() -> None:
    text = _uncounted(*({"kind": f"K{number}", "spec": _pod(1)} for number in range(5)))
    assert text.startswith("not counted, here and in quotas: 5 GPUs of K0 v/x, K1 v/x, K2 v/x and 2 more,")
