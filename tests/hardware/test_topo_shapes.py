"""Outputs that lost something on their way: read as if they had not, or refused, or told; never silently different."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from avactl.hardware.nvidia_topo import find
from avactl.hardware.topo_affinity import GpuAffinity, affinity
from avactl.hardware.topo_check import compare
from avactl.hardware.topo_matrix import Matrix, read
from avactl.hardware.topo_spec import GivenTopology, describe
from avactl.hardware.topo_text import Token, decode
from tests.hardware.topo_matrices import library_machine, nvidia_types, render, rows

HERE = Path(__file__).resolve().parents[1] / "golden" / "topo"
WITH_COLUMNS = ("h100-sxm-8-links-down", "dgx1-v100", "gb200-tray", "a40-8-bridges", "b200-8")
"""Samples of tabs or blanks, with and without NICs, with one, two and three columns behind the links."""


def spec(text: str) -> dict[str, Any] | str:
    """What is imported, or why it is not."""
    matrix = read(text, "a.txt")
    if not isinstance(matrix, Matrix):
        return matrix[0].message
    described = describe(matrix, GivenTopology(), None)
    return next((remark for remark in described.remarks if "are ignored" in remark), described.spec)


@cache
def sample(name: str) -> str:
    return (HERE / f"{name}.txt").read_text(encoding="utf-8")


# -- the columns behind the links ------------------------------------------------------------------------------------

ALL = ("CPU", "NUMA", "GPU NUMA")


@pytest.mark.parametrize(
    ("columns", "words", "glued", "expected"),
    [
        # Tabs between CPUs and node got lost: two ranges of one size, one range, CPUs that take turns.
        (ALL, "56-111,168-2231 N/A", False, ("56-111,168-223", "1", None)),
        (ALL, "0-55,112-1670N/A", False, ("0-55,112-167", "0", None)),
        (ALL[:2], "0-310", False, ("0-31", "0", None)),
        (ALL[:2], "32-631", True, ("32-63", "1", None)),
        (ALL[:2], "1,3,5,7,9,111", True, ("1,3,5,7,9,11", "1", None)),
        (ALL, "0-710 1", False, ("0-71", "0", "1")),
        # Only the tab in front of the CPUs got lost.
        (ALL, "0-55,112-167 0 N/A", True, ("0-55,112-167", "0", None)),
        (ALL[:1], "0-31", True, ("0-31", None, None)),
        ((), "0-31", True, ("0-31", None, None)),
        # Nothing got lost: machines with odd numbers of CPUs, with some of them in a container, with empty cells.
        (ALL, "64-127,192-238 1 N/A", False, ("64-127,192-238", "1", None)),
        (ALL[:2], "1-16 0", False, ("1-16", "0", None)),
        (ALL, "56 1 N/A", False, ("56", "1", None)),
        (ALL, "0 N/A", False, (None, "0", None)),
        (ALL, "N/A", False, (None, None, None)),
        (ALL[:2], "0 0-1", False, ("0", "0-1", None)),
        (ALL, "0-71 0,3-9,11-17 2", False, ("0-71", "0,3-9,11-17", "2")),
        ((), "NUMA 1", False, (None, "1", None)),
        # What can be read in two ways, or in none.
        (ALL[:2], "0-311", True, None),
        (ALL, "0-7101", True, None),
        (ALL, "0-71 0,3-9,11-172", False, None),
        (ALL, "0-710,3-9,11-17 2", False, None),
        (ALL[:2], "0-55,112-16 7 0", False, None),
        (ALL[:2], "00-1", False, None),
        (ALL[:2], "32-63-96-127 1", False, None),
        (ALL[:2], "0-55,112- 0", False, None),
    ],
)
def test_columns_behind_the_links(
    columns: tuple[str, ...], words: str, glued: bool, expected: tuple[str | None, ...] | None
) -> None:
    tail = [Token(word, 1, 1) for word in words.split()]
    assert affinity(columns, tail, glued) == (None if expected is None else GpuAffinity(*expected))


def test_words_behind_the_links_that_mean_nothing_are_told() -> None:
    """CPUs of some GPUs only would put the others on sockets of their own."""
    text = sample("a40-8-bridges").replace("32-63,96-127\t1", "32-63,96-12\t7\t1", 1)
    assert spec(text) == ("the affinity columns are ignored: `32-63,96-12 7 1` of GPU4 is ambiguous")


def test_cpus_that_two_nodes_would_share_are_told() -> None:
    text = sample("a40-8-bridges").replace("32-63,96-127\t1", "32-63\t1", 1)
    assert spec(text) == (
        "the affinity columns are ignored: the CPUs of GPU4 (32-63) and GPU5 (32-63,96-127) partly overlap"
    )


def test_empty_cells_of_some_gpus_are_told() -> None:
    found = find(matrix(sample("a40-8-bridges").replace("32-63,96-127\t1", "", 1)))
    assert "GPU4: no CPU or NUMA affinity, unlike the other GPUs" in found.remarks
    assert (found.cpus, found.sockets) == (None, 2)


def test_nodes_with_gaps_in_their_numbers() -> None:
    text = sample("v100-power9-numa-gaps")
    matrix = read(text, "a.txt")
    assert isinstance(matrix, Matrix)
    assert find(matrix).sockets == 2
    assert not [remark for remark in find(matrix).remarks if "NUMA nodes" in remark]


def test_sockets_are_numbered_by_nodes_where_cpus_are_not_said() -> None:
    found = spec(sample("h200-4-in-a-slurm-step"))
    assert isinstance(found, dict)
    assert [switch["socket"] for switch in found["switches"]] == [0, 0, 1, 1]
    assert [nic["socket"] for nic in found["nics"]] == [0, 1]
    # `56` is the CPU that the step may use, not the last of the machine.
    assert found["cpu"] == 32


@pytest.mark.parametrize("name", WITH_COLUMNS)
def test_any_lost_tab_is_made_good_or_told(name: str) -> None:
    text = re.sub(" {2,}", "\t", sample(name).partition("\nLegend:")[0])
    whole = spec(text)
    assert isinstance(whole, dict)
    told = 0
    tabs = list(re.finditer(r"(?<=\S)\t+(?=\S)", text))
    assert len(tabs) > 20
    for match in tabs:
        found = spec(text[: match.start()] + text[match.end() :])
        if isinstance(found, str):
            told += 1
        else:
            assert found == whole, text[: match.end()].split("\n")[-1]
    assert told <= (8 if name == "gb200-tray" else 0)


# -- around and between the cells ------------------------------------------------------------------------------------


def each(change: Callable[[int, str], str]) -> Callable[[str], str]:
    return lambda text: "\n".join(change(number, line) for number, line in enumerate(text.split("\n"), 1))


def table(text: str) -> str:
    return each(lambda _, line: "".join(f"<td>{cell.strip()}</td>" for cell in line.split("\t")))(text)


DISGUISES: dict[str, Callable[[str], str]] = {
    "numbered": each(lambda number, line: f"{number:4d}  {line}"),
    "numbered with colons": each(lambda number, line: f"{number}: {line}"),
    "log of a node": each(lambda _, line: f"2026-01-02T03:04:05Z node17 [1,0]<stdout>: {line}"),
    "HTML": lambda text: f"<pre><code>{html.escape(text)}</code></pre>",
    "HTML table": table,
    "HTML entities": lambda text: text.replace("\t", " &nbsp;&#160;&#9;"),
    "no-break blanks": lambda text: text.replace("\t", "\u00a0\u00a0"),
    "blanks without width": lambda text: text.replace("\t", "\t\u200b"),
    "dashes": lambda text: re.sub(r"(?<=\d)-(?=\d)", "\u2013", text),
    "blanks in names": lambda text: re.sub(r"(GPU|NIC)(?=\d)", r"\1 ", text),
    "one line of JSON": lambda text: text.replace("\n", "\\n").replace("\t", "\\t"),
    "blanks at the ends": each(lambda _, line: f"{line.rstrip()}   "),
    "UTF-16 without a mark": lambda text: decode(text.encode("utf-16-le")),
    "UTF-16 of the other order": lambda text: decode(text.encode("utf-16-be")),
}


@pytest.mark.parametrize("disguise", DISGUISES)
def test_decoration_does_not_matter(disguise: str) -> None:
    assert nvidia_types()
    for name in nvidia_types():
        text = render(rows(library_machine(name)))
        assert spec(DISGUISES[disguise](text)) == spec(text), name


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize(
    "name", ["h100-sxm-8-links-down", "dgx1-v100", "b200-8", "a800-sxm-8-no-legend", "a100-p4d-efa"]
)
def test_lines_that_a_terminal_broke(name: str, width: int) -> None:
    """Words may be cut in two: then it is refused, or said what is left out."""
    text = sample(name).expandtabs(8)
    whole = spec(text)
    broken = "\n".join(line[at : at + width] for line in text.split("\n") for at in range(0, max(1, len(line)), width))
    assert isinstance(found := spec(broken), str) or found == whole
    wrapped = "\n".join(
        textwrap.fill(line, width, drop_whitespace=False, replace_whitespace=False, break_on_hyphens=False)
        for line in text.split("\n")
    )
    assert spec(wrapped) == whole


# -- several matrices ------------------------------------------------------------------------------------------------

PAIR = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t{0}\t{1}\tN/A\nGPU1\t{0}\t X \t{1}\tN/A\n"


def matrix(text: str) -> Matrix:
    found = read(text, "a.txt")
    assert isinstance(found, Matrix), found
    return found


def test_another_machine_does_not_tell_what_nvlink_hides() -> None:
    found = matrix(PAIR.format("NV2", "0-23") + "elsewhere:\n" + PAIR.format("PHB", "0-11"))
    assert found.pcie_word(0, 1) is None
    assert found.remarks == ("the text has 2 matrices; using the first",)
    same = matrix(PAIR.format("NV2", "0-23") + PAIR.format("PHB", "0-23"))
    assert same.pcie_word(0, 1) == "PHB"


def test_pcie_matrix_may_come_first() -> None:
    commands = "$ nvidia-smi topo -mp\n{}$ nvidia-smi topo -m\n{}"
    found = matrix(commands.format(PAIR.format("PXB", "0-23"), PAIR.format("NV4", "0-23")))
    assert (found.links(0, 1), found.pcie_word(0, 1), found.others) == (4, "PXB", 0)
    # Without the commands they may be of two machines.
    found = matrix(PAIR.format("PXB", "0-23") + PAIR.format("NV4", "0-23"))
    assert (found.links(0, 1), found.others) == (0, 1)


def test_check_tells_of_further_matrices() -> None:
    text = render(rows(library_machine("t4-4")))
    found = matrix(text + text)
    result = compare(library_machine("t4-4"), found, find(found))
    assert (result.differences, result.infos) == ((), ("the text has 2 matrices; using the first",))


def test_lists_of_gpus_around_a_matrix_are_none() -> None:
    text = render(rows(library_machine("t4-4")))
    names = "".join(f"GPU{number}\n" for number in range(4))
    found = matrix(f"GPUs in use:\n{names}{text}Of them, busy:\n{names}\nLegend:\n\nNode 0:\n{names}")
    assert (found.others, found.words) == (0, matrix(text).words)


def test_numbers_of_empty_lines_are_no_nodes() -> None:
    text = "\tGPU0\tGPU1\n\nGPU0\t X \tNV4\n\nGPU1\tNV4\t X \n\n"
    numbered = DISGUISES["numbered"](text)
    assert matrix(numbered).affinities == matrix(text).affinities == (GpuAffinity(), GpuAffinity())


def test_long_names_of_nics_are_told() -> None:
    text = "\tGPU0\tNIC0\nGPU0\t X \tPIX\nNIC0\tPIX\t X \n\nNIC Legend:\n\n  NIC0: fabric_0_mlx5_bond_0\n"
    found = matrix(text)
    assert found.nics == ("c_0_mlx5_bond_0",)
    assert "fabric_0_mlx5_bond_0: names of NICs have at most 15 characters" in found.remarks[0]
