"""Slurm's batch scripts: `tests/golden/import-slurm/NAME.sbatch` and the report and specs that each becomes."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from avactl import compile_tree
from avactl.spec.repository.tree import DirTree
from avactl.workbench.importer import report
from avactl.workbench.importer.model import ImportReader, ImportResult
from avactl.workbench.importer.reading import read_scripts
from avactl.workbench.importer.session import import_objects, write
from avactl.workbench.importer.slurm.convert import convert_script
from avactl.workbench.importer.slurm.script import MAX_ELEMENTS, array_elements, parse, read_script
from avactl.workbench.importer.sources.context import Context, ImportOptions
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


def _spec(script: str) -> dict[str, Any]:
    (given,) = read_script("a.sbatch", script.encode())
    made = convert_script(Context(ImportOptions(namespace="hpc", images={"job": IMAGE}), [given]), ImportReader(given))
    assert not isinstance(made, str), made
    return made.spec


@pytest.mark.parametrize(
    ("script", "key", "value"),
    [
        ("module load impi\nmpirun -ppn 4 -n 8 solver\n", "mpi", {"implementation": "intel"}),
        ("mpiexec.hydra -n 8 solver\n", "mpi", {"implementation": "mpich"}),
        ("export A=$(id -un)\nmpiexec -f hosts -n 8 solver\n", "mpi", {"implementation": "mpich"}),
        ("mpirun -n 8 solver\n", "mpi", None),
        ("mpirun --mca a b --hostfile h x -f y\n", "command", ["mpirun", "--mca", "a", "b", "x", "-f", "y"]),
        ("#SBATCH --image=docker:nersc/pytorch:24\nsrun shifter python t.py\n", "image", "nersc/pytorch:24"),
        ("srun --container-image=nvcr.io#nvidia/nemo:24 python t.py\n", "image", "nvcr.io/nvidia/nemo:24"),
    ],
)
def test_libraries_and_images(script: str, key: str, value: object) -> None:
    made = _spec(f"#SBATCH -N 2 --ntasks-per-node=4 --mem=8G\n{script}")
    assert made.get(key) == value
    assert "-x" not in str(made.get("command")) or key != "mpi"


@pytest.mark.parametrize(
    ("options", "workers"),
    [
        ("-C gpu --gpus-per-node=4", {"gpus": 4}),
        ("-C 'gpu&a100' --gpus-per-node=4", {"gpus": 4, "gpu": "A100"}),
        ("--gpus=h100:2", {"gpus": 2, "gpu": "H100"}),
    ],
)
def test_models_of_gpus(options: str, workers: dict[str, object]) -> None:
    made = _spec(f"#SBATCH -N 1 --mem=8G {options}\npython t.py\n")
    assert made["workers"] == {"cpu": "1", "memory": "8Gi", **workers}


@pytest.mark.parametrize(
    ("option", "memory"), [("--mem=1000mb", "1000Mi"), ("--mem-per-cpu=2gb", "8Gi"), ("--mem=4GB", "4Gi")]
)
def test_sizes_of_memory(option: str, memory: str) -> None:
    """Slurm reads the unit in either case, with or without `b`."""
    made = _spec(f"#SBATCH -N 1 -c 4 {option}\npython t.py\n")
    assert made["workers"]["memory"] == memory


def test_what_scripts_share_is_said_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.sbatch").write_text("#SBATCH --array=1-3 --mem=8G -p gpu\npython t.py\n")
    options = ImportOptions(namespace="hpc", images={**IMAGES, "job": IMAGE})
    files = [tmp_path / "a.sbatch", tmp_path / "b.sbatch"]
    made, _ = import_objects(read_scripts(files, BytesIO()), options, tmp_path / "out")
    lines = report.loss_lines(made.losses)
    assert sum("homes and file systems" in line for line in lines) == 1
    assert sum("pools take the place" in line for line in lines) == 2
    assert any(line.endswith(" and 1 more  (object)") for line in lines)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--nnodes=2", ["torchrun", "--nproc-per-node=1", "train.py"]),
        ("--nnodes 2 --nproc_per_node 2", ["torchrun", "--nproc_per_node", "2", "train.py"]),
        ("--nnodes=$SLURM_NNODES --nproc-per-node=4", ["torchrun", "train.py"]),
        ("--nnodes 2 --nproc_per_node gpu --rdzv_id $RANDOM", ["torchrun", "train.py"]),
    ],
)
def test_torchrun_starts_as_many_processes_as_before(options: str, words: list[str]) -> None:
    """avactl tells it to start one for each GPU, unless it is told otherwise."""
    script = f"#SBATCH -N 2 --ntasks-per-node=1 --gres=gpu:4 --mem=8G\nsrun torchrun {options} train.py\n"
    assert _spec(script)["command"] == words


@pytest.mark.parametrize("options", ["", "--nnodes=1", "--nnodes 1:1 --nproc-per-node=4", "--rdzv_id $RANDOM"])
def test_torchrun_that_joins_no_machines_finds_no_variables(options: str) -> None:
    """By PET_NNODES it would wait for the other machines; under Slurm it starts on each by itself."""
    spec = _spec(f"#SBATCH -N 2 --ntasks-per-node=1 --gres=gpu:4 --mem=8G\nsrun torchrun {options} train.py\n")
    assert spec["framework"] == "custom"
    assert " ".join(f"srun 1 torchrun {options} train.py".split()) in " ".join(spec["args"][0].split())


def test_no_report_repeats_the_credentials_of_an_image(tmp_path: Path) -> None:
    script = tmp_path / "a.sbatch"
    script.write_text(
        "#!/bin/bash\n#SBATCH -N 1\n"
        "srun --container-image='docker://user:Sup3rPw0rd@registry.example.com/x:1' python t.py\n"
    )
    made, comparison = import_objects(read_scripts([script], BytesIO()), ImportOptions(images=IMAGES), tmp_path)
    told = repr((made.losses, made.outcomes, comparison))
    assert "is not an image reference" in told
    assert "Sup3rPw0rd" not in told
