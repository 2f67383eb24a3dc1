"""`avactl topo import` of AMD's tables. The inputs have the facts of outputs that people have posted.

`tests/golden/topo-amd/NAME.txt` is an output, `NAME.yaml` the machine type; `damaged/NAME.err` has the diagnostic.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from avactl.cli.cluster.topo import topo
from avactl.hardware import amd_topo
from avactl.hardware.topo_gpu import listed, parse_name
from avactl.hardware.topo_matrix import Matrix
from tests.hardware.topo_matrices import library_machine

HERE = Path(__file__).resolve().parents[1] / "golden" / "topo-amd"
CASES = sorted(HERE.glob("*.txt"))
DAMAGED = sorted((HERE / "damaged").glob("*.txt"))
Golden = Callable[[Path, str], None]


def run(*args: str, text: str | None = None, command: str = "import") -> Any:
    return CliRunner().invoke(topo, [command, *args], input=text)


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_import(file: Path, golden: Golden) -> None:
    done = run(str(file))
    assert done.exit_code == 0, done.output
    golden(file.with_suffix(".yaml"), done.stdout)


@pytest.mark.parametrize("file", DAMAGED, ids=lambda file: file.stem)
def test_what_is_damaged_is_refused(file: Path, golden: Golden) -> None:
    done = run("-", text=file.read_text(encoding="utf-8"))
    assert (done.exit_code, done.stdout) == (1, "")
    golden(file.with_suffix(".err"), done.stderr)


def matrix(name: str) -> Matrix:
    found = amd_topo.read((HERE / f"{name}.txt").read_text(encoding="utf-8"), name)
    assert isinstance(found, Matrix)
    return found


def test_mi300x_is_the_machine_of_the_library() -> None:
    spec = yaml.safe_load(run(str(HERE / "mi300x-8-rocm-smi.txt")).stdout)["spec"]
    machine = library_machine("mi300x-8")
    assert machine.nvlink is not None
    assert [tuple(pair["gpus"]) for pair in spec["nvlink"]["pairs"]] == [
        (pair.first, pair.second) for pair in machine.nvlink.pairs
    ]
    assert [(switch["socket"], tuple(switch["gpus"])) for switch in spec["switches"]] == [
        (switch.socket, switch.gpus) for switch in machine.switches
    ]
    assert spec["bandwidth"]["nvlink"] == machine.nvlink.link_gbps
    assert spec["gpus"] == {"model": "MI300X", "count": 8, "memory": "192Gi"}


def test_paths_over_other_gpus_are_no_links() -> None:
    """Every path over Infinity Fabric has one hop; the weight tells which are direct (rocm-systems issue 5763)."""
    links = {(pair.first, pair.second) for pair in matrix("mi250x-8-amd-smi").fabric}
    assert len(links) == 12
    assert all(sum(gpu in pair for pair in links) == 3 for gpu in range(8))


def test_between_hives_is_pcie() -> None:
    found = matrix("mi100-8-two-hives")
    assert {(pair.first // 4, pair.second // 4) for pair in found.fabric} == {(0, 0), (1, 1)}
    assert found.word(0, 4) == "SYS"


def test_without_weights_every_link_counts_and_numa_tells_the_path() -> None:
    text = (HERE / "mi100-8-two-hives.txt").read_text(encoding="utf-8")
    alone = text[text.rindex("\n", 0, text.index("Link Type")) + 1 :]
    found = amd_topo.read(alone, "x")
    assert isinstance(found, Matrix)
    assert len(found.fabric) == 12
    assert found.word(0, 4) == "SYS"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("GPU0         GPU1", "GPU0         GPU0", "are not the names of GPUs"),
        ("XGMI", "XGMJ", "`XGMJ` between GPU0 and GPU1 is no link type"),
        ("15 ", "-1 ", "`-1` between GPU0 and GPU1 is no weight"),
        ("15 ", "1" * 200 + " ", "is no weight"),
    ],
)
def test_other_damage(old: str, new: str, said: str) -> None:
    text = (HERE / "mi300a-4-rocm-smi.txt").read_text(encoding="utf-8").replace(old, new, 1)
    found = amd_topo.read(text, "x")
    assert isinstance(found, list)
    assert said in found[0].message


def test_too_many_gpus() -> None:
    names = [f"GPU{number}" for number in range(17)]
    text = "=== Link Type between two GPUs ===\n" + " ".join(names) + "\n"
    text += "".join(f"{name} " + " ".join("0" if name == other else "XGMI" for other in names) + "\n" for name in names)
    found = amd_topo.read(text, "x")
    assert isinstance(found, list)
    assert found[0].code == "topo-unsupported"


HOSTILE = ["", "x" * 5_000_000, "=" * 1_000_000, "LINK TYPE TABLE:\n" * 50_000, "GPU[0] : " * 9999]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_ends(text: str) -> None:
    assert not isinstance(amd_topo.read(text, "x"), Matrix)


def test_check_does_not_compare_them() -> None:
    done = run(str(HERE / "mi300x-8-rocm-smi.txt"), "--type", "mi300x-8", command="check")
    assert done.exit_code == 2
    assert "not tables of AMD" in done.stderr


@pytest.mark.parametrize(
    ("product", "model", "memory"),
    [
        ("AMD Instinct MI300X OAM", "MI300X", 192),
        ("AMD Instinct MI300X VF", "MI300X", 192),
        ("Instinct MI210", "MI210", 64),
        ("AMD Instinct MI325X", "MI325X", 256),
    ],
)
def test_product_names(product: str, model: str, memory: int) -> None:
    assert parse_name(product) == (model, memory)
    found = listed(f"GPU[0]\t\t: Card Series: \t\t{product}\nGPU[0]\t\t: Card Model: \t\t0x74b5\n")
    assert found is not None
    assert found.products == (product,)


def test_the_help_names_the_programs() -> None:
    assert re.search(r"rocm-smi\s+--showtopo", run("--help").stdout)
