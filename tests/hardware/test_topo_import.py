"""`avactl topo import`: real outputs of all generations, and damaged ones.

`tests/golden/topo/NAME.txt` is an output as people paste it, `NAME.yaml` the machine type; `damaged/NAME.err` holds
the exact diagnostic.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from avactl.cli.cluster.topo import topo
from avactl.compiler.validate import validate_document
from avactl.hardware.machine import Machine
from avactl.hardware.placement.links import links
from avactl.hardware.topo_gpu import listed, parse_name
from avactl.hardware.topo_matrix import Matrix, read
from avactl.hardware.topo_spec import GivenTopology, describe
from avactl.hardware.topo_text import decode
from avactl.hardware.topology import topology_of
from avactl.kinds.machine_type import MachineType
from avactl.program.capacity.machine_hardware import machine_facts
from avactl.spec.documents.yaml import load_yaml
from tests.hardware.topo_matrices import library_machine, nvidia_types, render, rows

HERE = Path(__file__).resolve().parents[1] / "golden" / "topo"
CASES = sorted(HERE.glob("*.txt"))
DAMAGED = sorted((HERE / "damaged").glob("*.txt"))
Golden = Callable[[Path, str], None]


def run(*args: str, text: str | bytes | None = None) -> Any:
    return CliRunner().invoke(topo, ["import", *args], input=text)


def imported(text: str | bytes, *args: str) -> dict[str, Any]:
    done = run("-", *args, text=text)
    assert done.exit_code == 0, done.output
    spec: dict[str, Any] = yaml.safe_load(done.stdout)["spec"]
    return spec


def machine(text: str, *args: str) -> Machine:
    done = run("-", *args, text=text)
    assert done.exit_code == 0, done.output
    documents, found = load_yaml("imported.yaml", done.stdout.encode())
    assert not found
    resource = validate_document(documents[0])
    assert isinstance(resource, MachineType), resource
    return Machine.from_facts(machine_facts(resource.spec))


def case(name: str) -> str:
    return (HERE / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_import(path: Path, golden: Golden) -> None:
    done = run(str(path))
    assert done.exit_code == 0, done.output
    golden(path.with_suffix(".yaml"), done.stdout)


@pytest.mark.parametrize("path", DAMAGED, ids=lambda path: path.stem)
def test_damaged_is_refused_at_its_cell(path: Path, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    done = run(path.name)
    assert done.exit_code == 1
    assert done.stdout == ""
    assert f"--> {path.name}:" in done.stderr
    assert "help:" in done.stderr
    golden(path.with_suffix(".err"), done.stderr)


def test_there_are_samples_of_all_generations() -> None:
    assert len(CASES) >= 40
    assert len(PLAIN) == len(CASES) - 2
    assert len(DAMAGED) >= 20


@pytest.mark.parametrize("name", nvidia_types())
def test_round_trip_of_the_library(name: str) -> None:
    """A shipped type, rendered as a matrix and imported, has the same levels, speeds, NICs and sockets."""
    declared = library_machine(name)
    found = machine(render(rows(declared)), "--gpu", declared.gpu)
    one, other = topology_of(declared), topology_of(found)
    assert found.gpus == declared.gpus
    pairs = [(i, j) for i in range(one.count) for j in range(one.count)]
    assert [other.level(i, j) for i, j in pairs] == [one.level(i, j) for i, j in pairs]
    nvlink = [(i, j) for i, j in pairs if i != j and one.level(i, j) == "nvlink"]
    assert [other.bandwidth(i, j) for i, j in nvlink] == [one.bandwidth(i, j) for i, j in nvlink]
    if declared.nics:
        assert [links(found).nic(gpu) for gpu in range(found.gpus)] == [
            links(declared).nic(gpu) for gpu in range(found.gpus)
        ]
    assert [nic.socket for nic in found.nics] == [nic.socket for nic in declared.nics]
    if any(switch.nics for switch in declared.switches) or not declared.nvlink:
        assert {switch.gpus for switch in found.switches} == {switch.gpus for switch in declared.switches}
        assert [switch.socket for switch in found.switches] == [switch.socket for switch in declared.switches]


def test_shipped_types_have_all_that_a_round_trip_compares() -> None:
    machines = [library_machine(name) for name in nvidia_types()]
    assert any(machine.nics for machine in machines)
    assert any(machine.nvlink for machine in machines)
    assert any(switch.nics for machine in machines for switch in machine.switches)


@pytest.mark.parametrize("name", [name for name in nvidia_types() if library_machine(name).gpus > 1])
def test_any_single_damage_is_refused_at_its_line(name: str) -> None:
    """A cell gone, one too many or changed on one side, or a row gone: at the line of that row, or said which."""
    table = rows(library_machine(name))
    devices = range(1, len(table))
    for at in devices:
        for cell in devices:
            row = table[at]
            gone = row[:cell] + row[cell + 1 :]
            twice = [*row[:cell], row[cell], *row[cell:]]
            other = [*row[:cell], "PXB", *row[cell + 1 :]]
            for changed in (gone, twice, other):
                result = read(render([*table[:at], changed, *table[at + 1 :]]), "a.txt")
                assert isinstance(result, list), changed
                lines = {problem.span.line for problem in result} | {n.span.line for p in result for n in p.notes}
                assert at + 1 in lines, (changed, result)
        if table[at][0].startswith("GPU"):
            result = read(render([*table[:at], *table[at + 1 :]]), "a.txt")
            assert isinstance(result, list)
            assert f"column {table[at][0]} has no row" in result[0].message


# -- what stands around and between the cells ------------------------------------------------------------------------

PLAIN = [path for path in CASES if path.stem not in ("cloud-vm-t4-4-crlf", "a100-2-html-breaks")]
DISGUISES: dict[str, Callable[[str], str]] = {
    "windows": lambda text: text.replace("\n", "\r\n"),
    "byte order mark": lambda text: "\ufeff" + text,
    "quoted": lambda text: "".join(f"> {line}\n" for line in text.split("\n")),
    "quoted twice": lambda text: "".join(f">> {line}\n" for line in text.split("\n")),
    "indented": lambda text: "".join(f"      {line}\n" for line in text.split("\n")),
    "fenced": lambda text: f"Topology:\n```\n{text}\n```\n",
    "tabs as blanks": lambda text: text.replace("\t", "   "),
    "two tabs": lambda text: text.replace("\t", "\t\t"),
    "tabs and blanks": lambda text: text.replace("\t", " \t "),
    "trailing": lambda text: "".join(f"{line}\t \n" for line in text.split("\n")),
    "spaced": lambda text: text.replace("\n", "\n\n"),
    "commented": lambda text: "".join(f"# {line}\n" for line in text.split("\n")),
    "without legend": lambda text: re.sub(r"(?m)^\W*(?:Legend:|[A-Z#]+ *= .*)$", "", text),
    "prompt": lambda text: f"root@node-1:~# nvidia-smi topo -m\n{text}root@node-1:~# exit\n",
    "bold": lambda text: re.sub(r"(NV[0-9]+)", r"**\1**", text),
    "escapes": lambda text: text.replace("CPU Affinity", "\x1b[4mCPU Affinity\x1b[0m"),
    "escapes written out": lambda text: text.replace("CPU Affinity", "^[[4mCPU Affinity^[[m"),
    "escapes without ESC": lambda text: text.replace("CPU Affinity", "[4mCPU Affinity[0m"),
}


@cache
def decided(text: str) -> dict[str, Any]:
    """What the matrix decides of the machine type."""
    matrix = read(text, "a.txt")
    assert isinstance(matrix, Matrix), matrix
    spec = describe(matrix, GivenTopology(), listed(text)).spec
    return {key: spec.get(key) for key in ("gpus", "sockets", "switches", "nvlink", "nics")}


@pytest.mark.parametrize("disguise", DISGUISES)
def test_decoration_does_not_matter(disguise: str) -> None:
    for path in PLAIN:
        text = path.read_text(encoding="utf-8")
        assert decided(decode(DISGUISES[disguise](text).encode())) == decided(text), path.stem


def test_utf16_of_powershell() -> None:
    assert imported(case("pcie-6-uneven").encode("utf-16")) == imported(case("pcie-6-uneven"))


def test_markdown_table_of_any_matrix() -> None:
    for name in nvidia_types():
        table = rows(library_machine(name))
        width = len(table[0])
        lines = ["| " + " | ".join([*row, *[""] * (width - len(row))]) + " |" for row in table]
        lines.insert(1, "|---" * width + "|")
        assert imported("\n".join(lines)) == imported(render(table)), name


def test_all_tabs_lost() -> None:
    """Copied out of a web page: nothing but the letters themselves tells the cells apart."""
    for name in nvidia_types():
        table = rows(library_machine(name))
        glued = "\n".join("".join(cell.strip() for cell in row) for row in table)
        assert imported(glued) == imported(render(table)), name


# -- what is concluded -----------------------------------------------------------------------------------------------


def test_shared_nic_shows_the_switch_that_nvlink_hides() -> None:
    spec = imported(case("dgx2-v100-16"))
    assert [switch["gpus"] for switch in spec["switches"]] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
        [12, 13, 14, 15],
    ]
    assert spec["nvlink"] == {"generation": 2, "nvswitchLinks": 6}


def test_many_numa_nodes_are_two_sockets() -> None:
    spec = imported(case("dgx-a100-quoted"))
    assert spec["sockets"] == 2
    assert [switch["socket"] for switch in spec["switches"]] == [0, 0, 1, 1]


def test_affinity_that_tells_gpus_apart_decides_on_sockets() -> None:
    assert imported(case("rtx4090-8-sys-in-socket"))["sockets"] == 2
    assert imported(case("cloud-vm-4-all-sys"))["sockets"] == 4


def test_direct_mesh_is_no_nvswitch() -> None:
    mesh = imported(case("a100-sxm-4-affinity-first"))
    assert [pair["links"] for pair in mesh["nvlink"]["pairs"]] == [4] * 6
    assert imported(case("gb200-tray"))["nvlink"] == {"generation": 5, "nvswitchLinks": 18}


def test_generation_is_that_of_the_model() -> None:
    assert imported(case("b200-8"))["nvlink"]["generation"] == 5
    text = case("h100-sxm-8-escapes")
    assert imported(text)["nvlink"]["generation"] == 4
    assert imported(text, "--gpu", "B200")["nvlink"]["generation"] == 5


def test_model_that_cannot_have_so_many_links() -> None:
    done = run(str(HERE / "h100-sxm-8-escapes.txt"), "--gpu", "V100")
    assert done.exit_code == 0
    assert "18 NVLinks per GPU exceed NVLink 2: treated as NVLink 4" in done.stdout


def test_links_down_are_told_and_not_taken_over() -> None:
    done = run(str(HERE / "h100-sxm-8-links-down.txt"))
    assert "GPU2 has 16 of 18 NVLinks: some are down" in done.stdout
    assert yaml.safe_load(done.stdout)["spec"]["nvlink"]["nvswitchLinks"] == 18


# -- options ---------------------------------------------------------------------------------------------------------


def test_options_replace_what_was_assumed() -> None:
    options = ("--name", "dgx", "--gpu", "H100", "--memory", "80Gi", "--cpu", "216", "--memory-host", "1900Gi")
    done = run(str(HERE / "dgx-h100-eaten-tabs.txt"), *options, "--nic-gbit", "400")
    document = yaml.safe_load(done.stdout)
    assert document["metadata"] == {"name": "dgx"}
    spec = document["spec"]
    assert spec["gpus"] == {"model": "H100", "count": 8, "memory": "80Gi"}
    assert (spec["cpu"], spec["memory"]) == (216, "1900Gi")
    assert {nic["bandwidth"] for nic in spec["nics"]} == {400}
    assert "assumed" not in done.stderr


def test_list_of_gpus_by_option(tmp_path: Path) -> None:
    (tmp_path / "gpus.csv").write_text("index, name, memory.total [MiB]\n" + "0, Tesla T4, 15360 MiB\n" * 2)
    spec = imported(case("t4-2-blank-in-name"), "--query", str(tmp_path / "gpus.csv"))
    assert spec["gpus"] == {"model": "T4", "count": 2, "memory": "15Gi"}


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [("--gpu", "H100!", "GPU model"), ("--name", "My Machine", "valid name"), ("--memory", "80GB", "write `80G`")],
)
def test_wrong_options_write_nothing(option: str, value: str, told: str) -> None:
    done = run(str(HERE / "pcie-6-uneven.txt"), option, value)
    assert done.exit_code == 2
    assert told in done.stderr
    assert done.stdout == ""


def test_missing_file_is_one_line() -> None:
    done = run("nowhere.txt")
    assert done.exit_code == 2
    assert "nowhere.txt: No such file" in done.stderr


@pytest.mark.parametrize(
    ("product", "model", "memory"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100", 80),
        ("Tesla V100-SXM2-32GB", "V100", 32),
        ("NVIDIA H100 80GB HBM3", "H100", 80),
        ("NVIDIA GeForce RTX 3090", "RTX3090", 24),
        ("NVIDIA RTX A6000", "A6000", 48),
        ("NVIDIA GH200 480GB", "GH200", None),
        ("NVIDIA GB200", "GB200", 186),
    ],
)
def test_product_names(product: str, model: str, memory: int | None) -> None:
    assert parse_name(product) == (model, memory)


def test_lists_of_gpus_in_all_forms() -> None:
    uuid = "(UUID: GPU-00000000-0000-0000-0000-000000000000)"
    assert listed(f"GPU 0: NVIDIA A10 {uuid}\nGPU 1: NVIDIA A10 {uuid}\n") == (("NVIDIA A10",), None)
    assert listed("NVIDIA H100 PCIe, 81559 MiB\nNVIDIA H100 PCIe, 81559 MiB\n") == (("NVIDIA H100 PCIe",), 81559)
    assert listed("GPU 0,1: NVIDIA H200\nGPU 0,1 Compute Capability: 9.0\n") == (("NVIDIA H200",), None)
    table = "|   5  NVIDIA L40S     On  | 00000000:C3:00.0 Off |\n| N/A   29C    P0   69W / 350W | 0MiB /  46068MiB |\n"
    assert listed(table) == (("NVIDIA L40S",), 46068)
    assert listed("nothing of the kind") is None
