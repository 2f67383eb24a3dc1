"""`avactl topo check`: a machine against its declared type."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from avactl.cli.cluster.topo import topo
from tests.hardware.topo_matrices import library_machine, nvidia_types, render, rows

HERE = Path(__file__).resolve().parents[1] / "golden" / "topo"


def check(text: str, name: str, *args: str) -> Any:
    return CliRunner().invoke(topo, ["check", "-", "--type", name, *args], input=text)


def changed(name: str, *changes: tuple[int, int, str]) -> str:
    """The matrix of a shipped type with some cells changed, on both sides."""
    table = rows(library_machine(name))
    for i, j, word in changes:
        table[i + 1][j + 1] = table[j + 1][i + 1] = word
    return render(table)


@pytest.mark.parametrize("name", nvidia_types())
def test_machine_of_its_type(name: str) -> None:
    done = check(render(rows(library_machine(name))), name)
    assert (done.exit_code, done.stdout) == (0, f"ok: the machine matches {name}\n")


@pytest.mark.parametrize(
    ("sample", "name"),
    [
        ("dgx-a100-quoted", "a100-sxm-8"),
        ("dgx-h100-eaten-tabs", "h100-sxm-8"),
        ("dgx1-v100", "dgx1-v100"),
        ("dgx1-p100-glued-header", "dgx1-p100"),
        ("a100-p4d-efa", "a100-sxm-8"),
    ],
)
def test_real_machines_are_of_the_shipped_types(sample: str, name: str) -> None:
    done = check((HERE / f"{sample}.txt").read_text(encoding="utf-8"), name)
    expected = 1 if sample == "a100-p4d-efa" else 0  # four cards of four times the speed, not eight
    assert done.exit_code == expected, done.output


@pytest.mark.parametrize("name", [name for name in nvidia_types() if library_machine(name).gpus > 1])
def test_other_numbering_is_the_same_machine(name: str) -> None:
    machine = library_machine(name)
    order = list(range(machine.gpus))
    Random(name).shuffle(order)
    done = check(render(rows(machine, order)), name)
    assert done.exit_code == 0, done.output
    assert done.stdout.endswith(f"ok: the machine matches {name}\n")


def test_numbering_is_told() -> None:
    table = rows(library_machine("v100-pcie-8"), [4, 5, 6, 7, 0, 1, 2, 3])
    done = check(render(table), "v100-pcie-8")
    assert done.exit_code == 0
    assert "info: same up to numbering: GPU0 ↔ GPU4 of the type, GPU1 ↔ GPU5 of the type" in done.stdout


def test_broken_link_between_two_gpus() -> None:
    done = check(changed("dgx1-v100", (0, 3, "NV1")), "dgx1-v100")
    assert done.exit_code == 1
    assert "GPU0 to GPU3: 1 NVLink, the type has 2: 1 NVLink down" in done.stdout
    done = check(changed("dgx1-v100", (0, 4, "SYS")), "dgx1-v100")
    assert "GPU0 to GPU4: no NVLink (SYS), the type has 2 NVLinks" in done.stdout
    assert "1 difference from dgx1-v100" in done.stdout


def test_gpu_that_lost_links_to_nvswitch_is_told_once() -> None:
    weak = [(2, other, "NV16") for other in range(8) if other != 2]
    done = check(changed("h100-sxm-8", *weak), "h100-sxm-8")
    assert done.exit_code == 1
    assert "GPU2: 16 of 18 NVLinks to NVSwitch: 2 down\n1 difference" in done.stdout
    gone = [(7, other, "NODE" if other > 3 else "SYS") for other in range(7)]
    done = check(changed("h100-sxm-8", *gone), "h100-sxm-8")
    assert "GPU7: 0 of 18 NVLinks to NVSwitch: all down\n1 difference" in done.stdout


def test_fewer_gpus() -> None:
    table = rows(library_machine("t4-4"))
    fewer = [[cell for column, cell in enumerate(row) if column != 3] for index, row in enumerate(table) if index != 3]
    done = check(render(fewer), "t4-4")
    assert done.exit_code == 1
    assert "3 GPUs, the type has 4; GPU2 missing" in done.stdout


def test_other_level() -> None:
    done = check(changed("v100-pcie-8", (0, 1, "NODE"), (0, 2, "NODE"), (0, 3, "NODE")), "v100-pcie-8")
    assert done.exit_code == 1
    assert "GPU0 to GPU1: NODE (one socket), the type says one PCIe switch" in done.stdout
    assert "GPU0 to GPU4" not in done.stdout


def test_missing_nic() -> None:
    table = [row for row in rows(library_machine("dgx1-v100")) if row[0] != "mlx5_0"]
    column = table[0].index("mlx5_0")
    done = check(render([row[:column] + row[column + 1 :] for row in table]), "dgx1-v100")
    assert done.exit_code == 1
    assert "GPU0: no NIC under its PCIe switch, the type has 1" in done.stdout


def test_missing_nic_of_a_machine_with_another_numbering_is_the_only_difference() -> None:
    order = [1, 0, 2, 3, 4, 5, 6, 7]
    table = [row for row in rows(library_machine("dgx1-v100"), order) if row[0] != "mlx5_3"]
    column = table[0].index("mlx5_3")
    done = check(render([row[:column] + row[column + 1 :] for row in table]), "dgx1-v100")
    assert done.exit_code == 1
    assert "info: the GPUs are the same up to numbering: GPU" in done.stdout
    assert "2 differences from dgx1-v100" in done.stdout
    assert done.stdout.count("no NIC under its PCIe switch") == 2


@pytest.mark.parametrize("path", sorted(HERE.glob("*.txt")), ids=lambda path: path.stem)
def test_machine_is_of_the_type_that_was_imported_from_it(path: Path, tmp_path: Path) -> None:
    (tmp_path / "machine.yaml").write_bytes(path.with_suffix(".yaml").read_bytes())
    name = yaml.safe_load((tmp_path / "machine.yaml").read_text(encoding="utf-8"))["metadata"]["name"]
    done = CliRunner().invoke(topo, ["check", str(path), "--type", name, str(tmp_path)])
    if path.stem == "h100-sxm-8-links-down":
        assert "GPU2: 16 of 18 NVLinks to NVSwitch: 2 down" in done.stdout
    else:
        assert done.exit_code == 0, done.output


def test_type_of_the_repository_goes_before_the_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "apiVersion: avactl.dev/v1\nkind: MachineType\nmetadata: {name: t4-4}\n"
        "spec:\n  gpus: {model: T4, count: 2, memory: 16Gi}\n  cpu: 8\n  memory: 32Gi\n"
    )
    text = render(rows(library_machine("t4-4")))
    assert check(text, "t4-4").exit_code == 0
    done = check(text, "t4-4", str(tmp_path))
    assert done.exit_code == 1
    assert "4 GPUs, the type has 2" in done.stdout


def test_unknown_type_and_damaged_matrix() -> None:
    done = check("", "h100-sxm8")
    assert done.exit_code == 2
    assert "did you mean `h100-sxm-8`?" in done.stderr
    done = check("GPU0 GPU1\nGPU0 X SYS\n", "t4")
    assert done.exit_code == 1
    assert "error[topo-damaged]: column GPU1 has no row" in done.stderr
