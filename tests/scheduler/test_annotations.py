"""Annotations that people write by hand: what means nothing is refused in words, and breaks nothing for others."""

from __future__ import annotations

import pytest

from avactl.scheduler.objects.pod_info import PodInfo
from tests.scheduler import offline


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("link", "nvlnik", "annotation avactl.dev/link: `nvlnik` is not one of nvlink, pcieSwitch, socket, node, any"),
        ("link_policy", "Required", "annotation avactl.dev/link-policy: `Required` is not one of preferred, required"),
        ("preemptible", "False", "annotation avactl.dev/preemptible: `False` is not one of true, false"),
        ("gang_size", "x", "avactl.dev/gang-size: `x` is not a number of pods such as 4"),
        ("gang_size", "0", "avactl.dev/gang-size: `0` is not a number of pods such as 4"),
        ("gang_size", "²", "avactl.dev/gang-size: `²` is not a number of pods such as 4"),
        ("gpu_share", "1.7", "annotation avactl.dev/gpu-share: `1.7` is not a share of one GPU such as 0.5"),
    ],
)
def test_wrong_ones_are_refused(name: str, value: str, words: str) -> None:
    item = offline.pod("odd", 0, **{name: value})
    item["metadata"]["labels"]["avactl.dev/gang"] = "g"
    pod = PodInfo(item, 0.0)
    assert pod.shape.refused == words
    # Whoever counts what pods ask for counts nothing that there is not.
    made = offline.cache([offline.node("a")], [item])
    assert pod.shape.share == 0
    made.requests.request(pod.shape)
    assert PodInfo(offline.pod("right", 0), 0.0).shape.refused == ""


def test_the_size_of_a_gang_may_be_a_label() -> None:
    item = offline.pod("odd", 1)
    item["metadata"]["labels"] |= {"avactl.dev/gang": "g", "avactl.dev/gang-size": "four"}
    assert PodInfo(item, 0.0).shape.refused == "avactl.dev/gang-size: `four` is not a number of pods such as 4"
    item["metadata"]["labels"]["avactl.dev/gang-size"] = "4"
    assert (PodInfo(item, 0.0).shape.refused, PodInfo(item, 0.0).gang_size) == ("", 4)


def test_devices_that_are_no_numbers_are_some_that_nobody_knows() -> None:
    made = offline.cache([offline.node("a")], [offline.pod("odd", 2, "a", "²,x,99")])
    assert made.tables.state.gpu_total[made.tables.state.slots["a"]] == 6000
