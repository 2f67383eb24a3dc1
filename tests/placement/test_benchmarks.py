"""The simulations that benchmarks print, in small: what they count is so, whatever the figures are."""

from __future__ import annotations

from pathlib import Path
from random import Random

from avactl.hardware.placement.allocation import MILLI_PER_GPU
from avactl.hardware.placement.request import Request
from benchmarks import links, openb

NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(
    f"n{index},64000,262144,{4 if index % 2 else 2},{'V100' if index % 2 else 'T4'}\n" for index in range(8)
)
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n" + "".join(
    f"pod-{index:02},{4000 + 1000 * (index % 3)},1024,{gpus},{milli},{spec}\n"
    for index, (gpus, milli, spec) in enumerate([(1, 460, ""), (1, 1000, "T4|V100"), (2, 1000, ""), (0, 0, "")] * 5)
)


def trace(folder: Path) -> tuple[Path, Path]:
    nodes, pods = folder / openb.NODES, folder / "list.csv"
    nodes.write_text(NODES)
    pods.write_text(PODS)
    return nodes, pods


def test_the_trace_is_read_as_its_columns_say(tmp_path: Path) -> None:
    nodes, pods = trace(tmp_path)
    state = openb.fleet(nodes)
    assert (state.size, int(state.gpu_total.sum())) == (8, 24 * MILLI_PER_GPU)
    found = openb.requests(pods)
    assert found[:4] == [
        Request((4000, 1024), 1, 460),
        Request((5000, 1024), 1, models=frozenset({"T4", "V100"})),
        Request((6000, 1024), 2),
        Request((4000, 1024)),
    ]


def test_arrivals_end_just_below_130_percent(tmp_path: Path) -> None:
    pods = openb.requests(trace(tmp_path)[1])
    for capacity in (8_000, 24_000):
        arriving = openb.arrivals(pods, capacity, 42)
        assert arriving == openb.arrivals(pods, capacity, 42)
        assert arriving != openb.arrivals(pods, capacity, 43)
        assert 1.3 * capacity - 2 * MILLI_PER_GPU < sum(pod.total_milli for pod in arriving) <= 1.3 * capacity


def test_a_replay_allocates_no_more_than_there_is(tmp_path: Path) -> None:
    found = openb.replay(*trace(tmp_path), seed=42)
    assert 80 < found.at_100 <= found.at_130 <= 100


def test_links_are_chosen_and_machines_kept_whole() -> None:
    hardware = links.machine()
    jobs = links.stream(400, 6, 0.9, Random(3))
    ours = links.run(hardware, 6, jobs, links.engine())
    theirs = links.run(hardware, 6, jobs, links.kube_scheduler(Random(3)))
    assert ours.avoidable == 0 < theirs.avoidable
    assert ours.bandwidth > 1.5 * theirs.bandwidth
    assert ours.wait_8 < theirs.wait_8
