"""Whatever text comes: a matrix or diagnostics, never a traceback; and what is imported is always valid."""

from __future__ import annotations

from pathlib import Path
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from avactl.compiler.validate import validate_document
from avactl.hardware.machine_type_yaml import machine_type_yaml
from avactl.hardware.topo_gpu import listed
from avactl.hardware.topo_matrix import Matrix, read
from avactl.hardware.topo_spec import GivenTopology, describe
from avactl.kinds.machine_type.check import check_machine_type
from avactl.program.program import Item
from avactl.spec.documents.yaml import load_yaml

SAMPLES = [
    path.read_text(encoding="utf-8")
    for path in sorted((Path(__file__).resolve().parents[1] / "golden" / "topo").glob("*.txt"))
]
_WORDS = [
    *("GPU0", "GPU1", "GPU2", "GPU10", "NIC0", "mlx5_0", "mlx5_bond_0", "GPU0GPU1", "X", "PIX", "PXB", "PHB", "NODE"),
    *("SYS", "SOC", "NV1", "NV12", "NV99", "NV", "SYSSYS", "N/A", "0-19,40-59", "0", "CPU Affinity", "NUMA Affinity"),
    *(
        "GPU NUMA ID",
        "Affinity",
        "Legend:",
        "NIC0: mlx5_0",
        "|",
        ">",
        "\x1b[4m",
        "[0m",
        "OK",
        "GNS",
        "é",
        "<br>",
        "\\t",
        "\\n",
        "0-310",
        "1-16",
        "8-3,",
        "-7",
        "9" * 5000,
    ),
]


def holds(text: str) -> None:
    result = read(text, "a.txt")
    if not isinstance(result, Matrix):
        assert result
        for problem in result:
            assert problem.hint
            assert 1 <= problem.span.line <= text.count("\n") + 1
            assert problem.span.column <= len(text.split("\n")[problem.span.line - 1]) + 1
        return
    described = describe(result, GivenTopology(), listed(text))
    out = machine_type_yaml(described.name, described.spec, described.remarks, described.assumed)
    documents, found = load_yaml("a.yaml", out.encode())
    assert not found, out
    resource = validate_document(documents[0])
    assert not isinstance(resource, list), (resource, out)
    assert list(check_machine_type(Item(documents[0], resource))) == []


@given(st.text())
def test_any_text(text: str) -> None:
    holds(text)


@given(st.lists(st.lists(st.sampled_from(_WORDS), max_size=8).map("\t".join), max_size=8).map("\n".join))
@settings(max_examples=300)
def test_words_of_a_matrix_in_any_order(text: str) -> None:
    holds(text)


@given(st.sampled_from(SAMPLES), st.randoms(use_true_random=False), st.integers(1, 6))
@settings(max_examples=300, deadline=None)
def test_real_matrices_with_something_changed(text: str, random: Random, times: int) -> None:
    for _ in range(times):
        at = random.randrange(len(text))
        length = random.choice((0, 1, 1, 3, 20))
        text = text[:at] + random.choice(("", "", " ", "\n", "\t", random.choice(_WORDS))) + text[at + length :] or " "
    holds(text)


@given(st.integers(1, 16), st.randoms(use_true_random=False), st.booleans(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_symmetric_matrix_gives_a_valid_machine(count: int, random: Random, affinity: bool, nics: bool) -> None:
    """Links that no machine has, but that a matrix can say."""
    names = [f"GPU{i}" for i in range(count)] + [f"NIC{i}" for i in range(random.randrange(5) if nics else 0)]
    words = random.sample(["PIX", "PXB", "PHB", "NODE", "SYS", "SOC", "NV1", "NV2", "NV4", "NV12", "NV18", "NV36"], 3)
    pcie = [word for word in words if not word.startswith("NV")] or ["SYS"]
    cells = {}
    for i in range(len(names)):
        for j in range(i):
            cells[i, j] = cells[j, i] = random.choice(words if i < count else pcie)
    lines = ["\t" + "\t".join(names) + ("\tCPU Affinity\tNUMA Affinity" if affinity else "")]
    for i, name in enumerate(names):
        row = [name, *(cells.get((i, j), "X") for j in range(len(names)))]
        if affinity and i < count:
            node = random.randrange(9)
            row += random.choice(([f"{8 * node}-{8 * node + 7}", str(node)], ["N/A", "N/A"], [], [f"{node}", "N/A"]))
        lines.append("\t".join(row))
    text = "\n".join(lines) + "\n"
    assert isinstance(read(text, "a.txt"), Matrix), text
    holds(text)
