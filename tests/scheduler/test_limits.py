"""Pods and selectors beyond the bounds: refused by themselves, in words, and what they hold stays booked."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from avactl.base.quantity import MOST, resource_amount, whole_units
from avactl.contracts.pod_annotations import MAX_TEXT_CHARS
from avactl.scheduler.cel.compiler import CelDevice, CelError, compile_selector
from avactl.scheduler.objects.limits import bounded, quote
from avactl.scheduler.objects.pod_info import read_pod
from tests.scheduler import offline

LONG = "9" * 5000


def _affinity(expressions: int, values: int = 1) -> dict[str, Any]:
    term = {
        "matchExpressions": [
            {"key": f"k{number}", "operator": "In", "values": [f"v{each}" for each in range(values)]}
            for number in range(expressions)
        ]
    }
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def _pod_affinity(terms: int, namespaces: int = 0) -> dict[str, Any]:
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"a": "b"}},
        "namespaces": [f"n{number}" for number in range(namespaces)],
    }
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term] * terms}}


@pytest.mark.parametrize("text", ["1e-99999999", "1e99999999", "1e-41", LONG, "1" * 65, f"0.{LONG}", "1e" + LONG])
def test_quantities_beyond_the_bounds_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        whole_units(text)


def test_amounts_are_capped() -> None:
    assert resource_amount("memory", "9E") == MOST
    assert resource_amount("cpu", "9E") == MOST
    assert resource_amount("memory", "512Gi") == 512 << 30


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (
            "gpu_share",
            "1e-99999999",
            "annotation avactl.dev/gpu-share: `1e-99999999` is not a share of one GPU such as 0.5",
        ),
        ("gpu_share", LONG, "annotation avactl.dev/gpu-share: its value has 5000 characters; at most 64 are read"),
        ("devices", LONG, "annotation avactl.dev/devices: its value has 5000 characters; at most 64 are read"),
        ("link", "x\x1b[31m\n" * 4, "`x?[31m?x?[31m?x?[31m?x?[31m?` is not one of nvlink,"),
        ("within", "x" * 318, "annotation avactl.dev/within: its value has 318 characters; at most 317 are read"),
    ],
)
def test_annotations_beyond_the_bounds_are_refused_in_words(name: str, value: str, words: str) -> None:
    pod = read_pod(offline.pod("odd", 2, **{name: value}), 0.0)
    assert words in pod.shape.refused
    assert len(pod.shape.refused) < 300
    assert pod.shape.amounts["nvidia.com/gpu"] == 2


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"affinity": _affinity(65)}, "nodeAffinity has 65 expressions; at most 64 are read"),
        ({"affinity": _affinity(2, 5000)}, "nodeAffinity: its expressions list 10000 values; at most 8192 are read"),
        ({"affinity": _pod_affinity(17)}, "podAntiAffinity has 17 terms; at most 16 are read"),
        ({"affinity": _pod_affinity(1, 9000)}, "podAntiAffinity: 9000 namespaces; at most 8192 are read"),
        ({"tolerations": [{"operator": "Exists"}] * 129}, "it has 129 tolerations; at most 128 are read"),
        ({"nodeSelector": {f"k{n}": "v" for n in range(65)}}, "it has 65 entries in nodeSelector; at most 64 are read"),
        ({"volumes": [{"name": f"v{n}", "emptyDir": {}} for n in range(257)]}, "it has 257 volumes"),
        (
            {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "a"}] * 17},
            "it has 17 topology spread constraints; at most 16 are read",
        ),
        ({"resourceClaims": [{"name": f"c{n}"} for n in range(65)]}, "it has 65 resource claims; at most 64 are read"),
    ],
)
def test_a_pod_with_too_much_of_anything_is_refused_and_keeps_its_gpus(spec: dict[str, Any], words: str) -> None:
    item = offline.pod("odd", 3, "a", "0,1,2")
    item["spec"] |= spec
    assert words in read_pod(item, 0.0).shape.refused
    made = offline.cache([offline.node("a")], [item])
    assert made.tables.state.gpu_total[made.tables.state.slots["a"]] == 5000
    assert int(made.tables.state.whole[made.tables.state.slots["a"]]) == 0b11111000


def test_ordinary_pods_are_left_as_they_are() -> None:
    item = offline.pod("fine", 1)
    item["spec"] |= {"affinity": {**_affinity(64, 128), **_pod_affinity(16)}}
    item["metadata"]["annotations"]["example.com/notes"] = LONG
    assert bounded(item) == (item, "")


def test_nobody_books_more_gpus_than_were_asked_for() -> None:
    made = offline.cache([offline.node("a")], [offline.pod("greedy", 1, "a", "0,1,2,3,4,5,6,7")])
    assert made.tables.state.gpu_total[made.tables.state.slots["a"]] == 7000


def test_a_gpu_is_the_pods_that_was_bound_first() -> None:
    """However the pods are listed: by name comes first what claims another's GPU."""
    honest = offline.pod("z-honest", 1, "a", "0")
    honest["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    ]
    thief = copy.deepcopy(honest)
    thief["metadata"] |= {"name": "a-thief", "uid": "thief"}
    thief["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-02T00:00:00Z"
    made = offline.cache([offline.node("a")], [thief, honest])
    assert made.tables.state.bookings[honest["metadata"]["uid"]].gpus == 1
    assert made.tables.state.bookings["thief"].gpus == 2
    # Neither does one more of them make all be built anew.
    late = copy.deepcopy(thief)
    late["metadata"] |= {"name": "b-thief", "uid": "late"}
    made.put_pod(late)
    assert not made.tables.stale
    assert made.tables.state.bookings["late"].gpus == 4


def test_devices_are_believed_of_avactls_own_pods_only() -> None:
    item = offline.pod("foreign", 1, "a", "7")
    item["spec"]["schedulerName"] = "default-scheduler"
    made = offline.cache([offline.node("a")], [item])
    assert made.tables.state.bookings[item["metadata"]["uid"]].gpus == 1


def test_an_index_of_thousands_of_digits_leaves_the_pod_in_the_books() -> None:
    item = offline.pod("odd", 2, "a", "0,1")
    item["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] = LONG
    item["metadata"]["labels"]["avactl.dev/gang"] = "g"
    made = offline.cache([offline.node("a")], [item])
    assert made.tables.state.gpu_total[made.tables.state.slots["a"]] == 6000


def test_a_pod_that_cannot_be_read_at_all_is_in_the_books() -> None:
    item = offline.pod("odd", 2, "a", "0,1")
    item["spec"]["volumes"] = [{"persistentVolumeClaim": {}}]  # no API server lets that through
    made = offline.cache([offline.node("a")], [item])
    assert made.tables.state.gpu_total[made.tables.state.slots["a"]] == 6000
    assert "cannot parse this pod" in made.tables.pods["vision/odd"].shape.refused


def test_requests_beyond_all_machines_do_not_overflow() -> None:
    running = [offline.pod(f"odd-{number}", 0, "a") for number in range(64)]
    for item in running:
        item["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "9E", "memory": "9E"}
    made = offline.cache([offline.node("a"), offline.node("b")], running)
    cpu = made.tables.state.free[made.tables.state.slots["a"]][0]
    assert cpu < 0
    assert made.tables.state.free[made.tables.state.slots["b"]][0] > 0


def test_resources_of_odd_nodes_are_bounded() -> None:
    odd = [offline.node(f"odd-{number}") for number in range(8)]
    for number, item in enumerate(odd):
        item["status"]["allocatable"] |= {f"example.com/r{number}-{each}": "9E" for each in range(500)}
    made = offline.cache([offline.node("a"), *odd], [offline.pod("fine", 1)])
    assert len(made.tables.state.resources) <= 4 + 512
    made.requests.request(made.tables.pods["vision/fine"].shape)


def test_quotes_are_one_short_line() -> None:
    assert quote("plain") == "plain"
    assert quote("a\nb\x1b") == "a?b?"
    assert len(quote("x" * 1000)) == MAX_TEXT_CHARS
    assert quote("x" * 1000).endswith("…")


DEVICE = CelDevice("gpu.example.com", {"gpu.example.com": {"name": "x"}}, {})


@pytest.mark.parametrize(
    "expression",
    [
        "!" * 5000 + "true",
        "-" * 5000 + "1 == 1",
        "+".join(["1"] * 5000) + " == 5000",
        "(" * 3000 + "true" + ")" * 3000,
        f"{LONG} == 1",
        f"semver('1.0.0-{LONG}').major() == 1",
        f"quantity('{LONG}').isInteger()",
        "cel.bind(a, 'xxxxxxxxxxxxxxxx', "
        + "".join(
            f"cel.bind(b{n}, {'a' if n == 0 else f'b{n - 1}'} + {'a' if n == 0 else f'b{n - 1}'}, " for n in range(36)
        )
        + "b35 == a"
        + ")" * 37,
        "[" + ",".join("12345678") + "].all(a, " * 1 + "[1,2,3,4,5,6,7,8].all(b, [1,2,3,4,5,6,7,8].all(c, "
        "[1,2,3,4,5,6,7,8].all(d, [1,2,3,4,5,6,7,8].all(e, a + b + c + d + e > 0)))))",
    ],
    ids=["not", "minus", "sum", "nested", "number", "version", "quantity", "doubling", "loops"],
)
def test_selectors_that_never_end_are_refused(expression: str) -> None:
    with pytest.raises(CelError):
        compile_selector(expression)(DEVICE)


def test_a_selector_that_is_slow_for_every_device_is_given_up() -> None:
    slow = compile_selector("[1,2,3,4,5,6,7,8].all(a, [1,2,3,4,5,6,7,8].all(b, [1,2,3,4,5,6,7,8].all(c, a+b+c > 0)))")
    answers = [slow(DEVICE) for _ in range(100)]
    assert all(answers)
    with pytest.raises(CelError, match="steps per device"):
        slow(DEVICE)
