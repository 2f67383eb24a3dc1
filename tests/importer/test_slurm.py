"""Slurm's batch scripts: `tests/golden/import-slurm/NAME.sbatch` and the report and specs that each becomes."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from avactl import compile_tree
from avactl.spec.repository.tree import DirTree
from avactl.workbench.importer import report
from avactl.workbench.importer.model import ImportResult
from avactl.workbench.importer.reading import read_scripts
from avactl.workbench.importer.session import import_objects, write
from avactl.workbench.importer.slurm.script import MAX_ELEMENTS, array_elements, parse
from avactl.workbench.importer.sources.context import ImportOptions
from tests.cli.running import Run
from tests.importer.importing import IMAGES

HERE = Path(__file__).parent.parent / "golden" / "import-slurm"
CASES = sorted(HERE.glob("*.sbatch"))
IMAGE = "registry.example.com/hpc/job:1"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_script(case: Path, tmp_path: Path, golden: Callable[[Path, str], None]) -> None:
    objects = read_scripts([case], BytesIO())
    made, _ = import_objects(objects, ImportOptions(namespace="hpc", images={**IMAGES, "job": IMAGE}), tmp_path)
    write(made, tmp_path)
    assert not made.files or compile_tree(DirTree(tmp_path)).ok
    lines = ["  ".join(row) for row in report.table_rows(made)]
    lines += [reason for reason, _ in report.group_by_reason(made)]
    lines += ["", *report.loss_lines(made.losses)]
    for path, data in sorted(made.files.items()):
        if path.startswith("teams/hpc/") and not path.endswith("/team.yaml"):
            lines += ["", f"--- {path}", data.decode().rstrip("\n")]
    text = ("\n".join(lines) + "\n").replace(str(case), case.name)
    assert "0123456789abcdef0123" not in text
    golden(case.with_suffix(".txt"), text)


def test_directives_end_at_the_first_command() -> None:
    script = parse("#!/bin/bash\n#SBATCH -N2 --gres=gpu:4  # two\n\ntrue\n#SBATCH --nodes=9\n")
    assert (script.get("nodes"), script.get("gres")) == ("2", "gpu:4")
    assert script.text == "\n\n\ntrue\n#SBATCH --nodes=9\n"


def test_a_script_without_an_image_says_how_to_name_one(tmp_path: Path) -> None:
    made, _ = import_objects(read_scripts([HERE / "single.sbatch"], BytesIO()), ImportOptions(), tmp_path)
    (outcome,) = made.outcomes
    assert outcome.result is ImportResult.left_out
    assert "--image job=IMAGE" in outcome.note


@pytest.mark.parametrize(
    ("text", "elements"),
    [
        ("0-3", [0, 1, 2, 3]),
        ("1,3,5-9:2%4", [1, 3, 5, 7, 9]),
        ("7", [7]),
        ("0-9999999", list(range(MAX_ELEMENTS + 1))),
        ("a", []),
        ("0-3:0", []),
    ],
)
def test_elements_of_an_array(text: str, elements: list[int]) -> None:
    assert array_elements(text) == elements


_ODD = (
    "",
    "#SBATCH",
    "#SBATCH --nodes=\npython x",
    "#SBATCH -N\nsrun\n",
    "'\nsrun 'a\n",
    "\\\n\\\n",
    "x\\",
    "#SBATCH --gres=gpu:x:y --mem=1e99G -t 9-9-9\nmpirun\n",
    "srun " + "-" * 5000,
    "export A='\npython $(",
)


@pytest.mark.parametrize("text", _ODD)
def test_odd_scripts_end_in_words(text: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.sbatch"
    path.write_text(text)
    options = ImportOptions(namespace="hpc", images={**IMAGES, "job": IMAGE})
    made, _ = import_objects(read_scripts([path], BytesIO()), options, tmp_path / "out")
    assert len(made.outcomes) == 1


def test_command(avactl: Run, tmp_path: Path) -> None:
    words = ("import", "slurm", str(HERE / "torchrun.sbatch"), "--image", f"job={IMAGE}", "-n", "llm", "-o", "specs")
    done = avactl(*words)
    assert done.returncode == 0, done.stderr
    assert avactl("validate", "specs").returncode == 0
    assert "strategy: allReduce" in (tmp_path / "specs/teams/llm/llama-pretrain.yaml").read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("", ["torchrun", "--nproc-per-node=1", "train.py"]),
        ("--nnodes 2 --nproc_per_node 2", ["torchrun", "--nproc_per_node", "2", "train.py"]),
        ("--nnodes=$SLURM_NNODES --nproc-per-node=4", ["torchrun", "train.py"]),
        ("--nproc_per_node gpu --rdzv_id $RANDOM", ["torchrun", "train.py"]),
    ],
)
def test_torchrun_starts_as_many_processes_as_before(options: str, words: list[str], tmp_path: Path) -> None:
    """avactl tells it to start one for each GPU, unless it is told otherwise."""
    script = tmp_path / "a.sbatch"
    script.write_text(f"#SBATCH -N 2 --ntasks-per-node=1 --gres=gpu:4 --mem=8G\nsrun torchrun {options} train.py\n")
    made, _ = import_objects(
        read_scripts([script], BytesIO()),
        ImportOptions(namespace="hpc", images={**IMAGES, "job": IMAGE}),
        tmp_path / "out",
    )
    (outcome,) = made.outcomes
    assert outcome.spec is not None
    assert outcome.spec.spec["command"] == words
