"""The picture of a pool."""

from __future__ import annotations

from random import Random
from typing import Any
from xml.etree import ElementTree

from avactl.scheduler.inspection import usage
from avactl.scheduler.inspection.pool_svg import draw
from tests.scheduler.offline import cache, node, pod

_SVG = "{http://www.w3.org/2000/svg}"


def titles(picture: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(picture).iter(f"{_SVG}title")]


def test_who_is_on_which_gpu() -> None:
    machines = [node("n1", rack="r1"), node("n2", rack="r2", unschedulable=True), node("other", 2, pool="")]
    pods = [
        pod("train-0", 4, "n1", "0,1,2,3", job="train"),
        pod("half", 0, "n1", "7", team="ads", gpu_share="0.5"),
        pod("strange", 2, "other", team="<x>"),
    ]
    made = cache(machines, pods)
    picture = draw(made)
    said = titles(picture)
    # A job's GPUs under one switch are one block; a share is told as one.
    assert "n1 GPUs 0, 1: vision/train of vision (pod vision/train-0)" in said
    assert "n1 GPUs 2, 3: vision/train of vision (pod vision/train-0)" in said
    assert "n1 GPU 7: ads/half of ads, 0.5 of it (pod ads/half)" in said
    assert "n2: cordoned" in said
    assert any("<x>/strange" in title for title in said)
    assert "n1" not in " ".join(titles(draw(made, [""])))
    machines.reverse()
    pods.reverse()
    assert draw(cache(machines, pods)) == picture


def test_a_thousand_machines_fit_on_a_page() -> None:
    random = Random(1)
    machines = [node(f"n{number}", rack=f"r{number // 16}") for number in range(1000)]
    pods: list[dict[str, Any]] = []
    for number in range(1000):
        free = list(range(8))
        while free and random.random() < 0.8:
            count = min(random.choice((1, 2, 4, 8)), len(free))
            mine, free = free[:count], free[count:]
            devices = ",".join(map(str, mine))
            team = random.choice(("vision", "ads", "video", "students"))
            pods.append(pod(f"p{len(pods)}", count, f"n{number}", devices, team, f"job{len(pods) // 9}"))
    picture = draw(cache(machines, pods))
    root = ElementTree.fromstring(picture)
    assert float(root.attrib["height"]) < 2.5 * float(root.attrib["width"])
    assert len(picture) < 3_000_000
    said = " ".join(titles(picture))
    assert len(pods) > 1000
    assert all(f"{pod['metadata']['name']})" in said for pod in pods)


def test_parts_of_gpus_are_told_too() -> None:
    made = cache([node("n1", gpus=0)], [])
    counters = {"slices": {"value": "7"}, "memory": {"value": "80Gi"}}
    sets = [{"name": f"gpu-{gpu}", "counters": counters} for gpu in range(2)]
    devices: list[dict[str, Any]] = []
    for gpu in range(2):
        for name, kind, taken in (
            (f"gpu-{gpu}", "gpu", counters),
            (f"gpu-{gpu}-2g", "mig", {"slices": {"value": "2"}, "memory": {"value": "20Gi"}}),
        ):
            attributes = {"type": {"string": kind}, "index": {"int": gpu}}
            takes = [{"counterSet": f"gpu-{gpu}", "counters": taken}]
            devices.append({"name": name, "attributes": attributes, "consumesCounters": takes})
    for number, more in enumerate(({"devices": devices}, {"sharedCounters": sets})):
        where = {"name": "n1", "generation": 1, "resourceSliceCount": 2}
        made.dra.put_slice(
            {
                "metadata": {"name": f"s{number}"},
                "spec": {"driver": "gpu.nvidia.com", "nodeName": "n1", "pool": where, **more},
            }
        )
    item = pod("mig", 0, "n1")
    item["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "part"}]
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-1-2g"}
    user = {"resource": "pods", "name": "mig", "uid": item["metadata"]["uid"]}
    made.claims.put(
        {
            "metadata": {"name": "part", "namespace": "vision", "uid": "c", "resourceVersion": "1"},
            "spec": {"devices": {"requests": []}},
            "status": {"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]},
        }
    )
    made.put_pod(item)
    made.rebuild()
    assert "n1 GPU 1: vision/mig of vision, 0.285 of it (pod vision/mig)" in titles(draw(made))
    (pool,) = usage.pools(made)
    assert (pool.gpus, pool.used, pool.whole) == (2, 0.285, 0)
    assert [team[:3] for team in usage.teams(made, made.tables.pods.values())] == [("vision", "A100", 0.285)]
    assert [job.gpus for job in usage.jobs(made, made.tables.pods.values())] == [0.285]


def test_faulty_gpus() -> None:
    sick = node("n1")
    message = "GPU 3 NoExecute: needs a reset; GPU 5 NoExecute: needs a reset"
    sick["status"]["conditions"] = [{"type": "avactl.dev/GPUsHealthy", "status": "False", "message": message}]
    said = titles(draw(cache([sick, node("n2")], [pod("old", 1, "n1", "5")])))
    assert "n1: fault" in said
    assert "n1 GPU 3: faulty" in said
    assert "n1 GPU 5: vision/old of vision (pod vision/old)" in said
    assert "n1 GPU 5: faulty" not in said
    assert "n2" in said
