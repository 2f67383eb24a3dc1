"""The page and its example: what docs/import.md shows is printed, and examples/import has what an import writes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

from avactl.workbench.importer.reading import read, read_scripts
from avactl.workbench.importer.session import import_objects, write
from avactl.workbench.importer.sources.context import ImportOptions
from tests import console, forked

ROOT = Path(__file__).parent.parent.parent
PAGE, EXAMPLE = ROOT / "docs/import.md", ROOT / "examples/import"


def test_the_page_shows_what_is_printed(tmp_path: Path, golden: Callable[[Path, str], None]) -> None:
    program = tmp_path / "bin" / "avactl"
    program.parent.mkdir()
    shutil.copytree(EXAMPLE / "manifests", tmp_path / "work/manifests")
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    settings = {"HOME": str(tmp_path), "PATH": path}
    with forked.executable(program):
        golden(PAGE, console.run(PAGE.read_text(), tmp_path / "work", settings))


def test_the_example_is_what_an_import_writes(tmp_path: Path) -> None:
    manifests, specs = EXAMPLE / "manifests", tmp_path / "specs"
    made, root = import_objects(read([manifests], BytesIO()), ImportOptions(cluster="lab"), specs)
    write(made, root)
    image = {"job": "registry.example.com/vision/finetune:2"}
    scripts = read_scripts([manifests / "finetune.sbatch"], BytesIO())
    made, root = import_objects(scripts, ImportOptions(namespace="vision", images=image), specs)
    write(made, root)
    written = {path.relative_to(specs): path.read_text() for path in specs.rglob("*.yaml")}
    kept = EXAMPLE / "specs"
    assert written == {path.relative_to(kept): path.read_text() for path in kept.rglob("*.yaml")}
