"""`avactl render` as it is called: what it writes, what it says, how it ends."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from avactl.apply.files.contents import object_text
from avactl.apply.files.paths import object_path
from avactl.compiler import compile_tree
from avactl.kinds import TrainingJob
from avactl.spec.repository.tree import DirTree, MemoryTree
from avactl.spec.repository.tree_files import RENDERED
from benchmarks.generate import repository, specs_of
from tests.cli.running import Run
from tests.conftest import ROOT


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "examples" / "ava", tmp_path / "specs"))


def rendered(directory: Path) -> dict[str, str]:
    found = (path for path in directory.rglob("*") if path.is_file() and path.name != RENDERED)
    return {path.relative_to(directory).as_posix(): path.read_text() for path in found}


def test_a_file_for_each_object(specs: Path, avactl: Run) -> None:
    expected = {object_path(m): object_text(m) for m in compile_tree(DirTree(specs)).manifests}
    for arguments in ([], ["--no-cache"], []):
        done = avactl("render", *arguments, "specs", "-o", "out")
        assert done.returncode == 0, done.stderr
        assert rendered(specs.parent / "out") == expected
    assert done.stdout == f"out: {len(expected)} objects (0 written, {len(expected)} kept, 0 deleted)\n"
    assert len(expected) > 100
    assert all(yaml.safe_load(text) for text in expected.values())


def test_one_change_writes_one_file(specs: Path, avactl: Run) -> None:
    avactl("render", "specs", "-o", "out")
    job = specs / "teams" / "vision" / "jobs.yaml"
    job.write_text(job.read_text().replace('--epochs, "90"', '--epochs, "91"'))
    assert "(1 written, " in avactl("render", "specs", "-o", "out").stdout
    job.write_text(job.read_text().replace("name: resnet50", "name: resnet101"))
    said = re.search(r"\((\d+) written, \d+ kept, (\d+) deleted\)", avactl("render", "specs", "-o", "out").stdout)
    assert said is not None
    assert int(said[1]) == int(said[2]) > 2


def test_rendered_below_the_specs(specs: Path, avactl: Run) -> None:
    """The output of one run is not taken for specs by the next."""
    (specs / "avactl.yaml").unlink()
    for _ in range(2):
        done = avactl("render", "-o", "out", cwd=specs)
        assert done.returncode == 0, done.stderr


def test_nothing_is_written_of_wrong_specs(specs: Path, avactl: Run) -> None:
    avactl("render", "specs", "-o", "out")
    before = rendered(specs.parent / "out")
    cluster = specs / "clusters" / "train.yaml"
    cluster.write_text(cluster.read_text().replace("daemons:", "demons:"))
    done = avactl("render", "specs", "-o", "out")
    assert done.returncode == 1
    assert "did you mean `daemons`?" in done.stderr
    assert done.stdout == ""
    assert rendered(specs.parent / "out") == before
    done = avactl("render", "specs", "-o", "-")
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["specs"], 2, "`render` requires a destination"),
        (["nowhere", "-o", "out"], 2, "no such file or directory"),
        (["specs", "-o", "/proc/x/out"], 3, "was not written"),
        (["specs", "-o", "specs"], 3, "is not empty, and `avactl render` did not write it"),
        (["specs", "-o", "specs/avactl.yaml"], 3, "is a file"),
        (["specs", "-o", "/"], 3, "is the root directory"),
    ],
)
def test_what_cannot_be(arguments: list[str], code: int, said: str, specs: Path, avactl: Run) -> None:
    done = avactl("render", *arguments)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 2


def test_changed_by_hand(specs: Path, avactl: Run) -> None:
    avactl("render", "specs", "-o", "out")
    path = next((specs.parent / "out").rglob("job-*.yaml"))
    path.write_text("mine\n")
    done = avactl("render", "specs", "-o", "out")
    assert done.returncode == 3
    assert path.name in done.stderr
    assert "--force" in done.stderr
    assert avactl("render", "specs", "-o", "out", "--force").returncode == 0
    assert path.read_text() != "mine\n"


def test_a_reader_that_stops(specs: Path) -> None:
    command = f"{sys.executable} -m avactl.cli.main render specs -o - | head -n 1"
    done = subprocess.run(command, shell=True, cwd=specs.parent, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("---\n", "")


def test_the_generated_repository_is_right_and_always_the_same() -> None:
    files = dict(repository(2))
    assert dict(repository(2)) == files
    assert dict(repository(2, seed=1)) != files
    result = compile_tree(MemoryTree(files))
    assert result.diagnostics == ()
    assert len([item for item in result.program.items if item.kind != "MachineType"]) == specs_of(2)
    assert {item.spec.strategy for item in result.program.of_kind(TrainingJob)} == {
        "single",
        "allReduce",
        "parameterServer",
        "mpi",
        "elastic",
    }
