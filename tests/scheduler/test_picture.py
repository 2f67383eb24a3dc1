"""The picture of a pool."""

from __future__ import annotations

from random import Random
from typing import Any
from xml.etree import ElementTree

from avactl.scheduler.picture import draw
from tests.scheduler.offline import fleet, node, pod

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
    made = fleet(machines, pods)
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
    assert draw(fleet(machines, pods)) == picture


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
    picture = draw(fleet(machines, pods))
    root = ElementTree.fromstring(picture)
    assert float(root.attrib["height"]) < 2.5 * float(root.attrib["width"])
    assert len(picture) < 3_000_000
    said = " ".join(titles(picture))
    assert all(f"{pod['metadata']['name']})" in said for pod in pods)
