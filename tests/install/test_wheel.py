"""The distribution: what it contains, and the README from an installed wheel, without the source tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from avactl import __version__
from avactl.workbench.scaffold import template_files
from avactl.workbench.scaffold.choice import ScaffoldChoice, source_of
from tests import console
from tests.conftest import ROOT

WHEEL = f"avactl-{__version__}-py3-none-any.whl"
PARENTS = ("", "worker/", "client/", "components/")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel and source archive, built from the tracked files only."""
    place = tmp_path_factory.mktemp("dist")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(place / "index"),
        "setuptools",
    ]
    if subprocess.run(pip, capture_output=True, check=False).returncode != 0:
        pytest.skip("pip reaches no package index and has no cache: wheels are neither built nor installed")
    source = place / "source"
    for name in _tracked():
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target, follow_symlinks=False)
    command = [sys.executable, "-m", "build", "--outdir", str(place / "dist"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    shutil.rmtree(source)
    return place / "dist"


def _tracked(*patterns: str) -> list[str]:
    out = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in out.stdout.split("\0") if name and os.path.lexists(ROOT / name)]


def test_it_has_all_files_of_the_packages(dist: Path) -> None:
    assert {path.name for path in dist.iterdir()} == {WHEEL, f"avactl-{__version__}.tar.gz"}
    wheel = set(zipfile.ZipFile(dist / WHEEL).namelist())
    with tarfile.open(dist / f"avactl-{__version__}.tar.gz") as archive:
        source = {name.partition("/")[2] for name in archive.getnames()}
    packages = ("avactl", "avactl_worker", "avactl_client", "avactl_components")
    for parent, package in zip(PARENTS, packages, strict=True):
        needed = {name for name in _tracked(f"{parent}{package}") if not (ROOT / name).is_dir()}
        assert len(needed) > 3
        assert needed - source == set()
        assert {name.removeprefix(parent) for name in needed} - wheel == set()
    example = {f"avactl/workbench/scaffold/{name}" for name in _tracked("examples/ava")}
    assert len(example) > 20
    assert example - wheel == set()
    assert f"avactl-{__version__}.dist-info/licenses/LICENSE" in wheel
    assert "LICENSE" in source
    assert [
        name for name in wheel if name.partition("/")[0] not in (*packages, f"avactl-{__version__}.dist-info")
    ] == []


def test_the_readme_runs_from_the_wheel(dist: Path, tmp_path: Path, golden: Callable[[Path, str], None]) -> None:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    work = tmp_path / "work"
    shutil.copytree(dist, work / "dist")
    readme = ROOT / "README.md"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    environment = {
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PIP_CACHE_DIR": str(cache / "pip"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
    }
    golden(readme, console.run(readme.read_text(), work, environment, end=-1))
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def program(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(work / ".venv" / "bin" / words[0]), *words[1:]]
        return subprocess.run(command, cwd=work, env=clean, capture_output=True, text=True, check=False)

    assert program("python", "-c", "import avactl; print(avactl.__file__)").stdout.startswith(str(work))
    done = program("avactl", "top")
    wheel = work / "dist" / WHEEL
    assert (done.returncode, f"pip install 'avactl[cluster] @ file://{wheel}'" in done.stderr) == (3, True), done.stderr


def test_pipelines_install_no_other_file(dist: Path, tmp_path: Path) -> None:
    """The line that `init` writes for a wheel, with its URL filled in: pip takes this file only."""
    (line,) = [
        data.decode()
        for path, data in template_files(ScaffoldChoice("none", source=source_of(str(dist / WHEEL)))).items()
        if path == "requirements.txt"
    ]
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(line.replace("https://REPLACE.example.com/", f"{dist.as_uri()}/"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path / "there")]
    done = subprocess.run([*pip, "-r", str(requirements)], capture_output=True, text=True, check=False)
    assert (done.returncode, (tmp_path / "there" / "avactl").is_dir()) == (0, True), done.stderr
    digest = source_of(str(dist / WHEEL)).sha256
    requirements.write_text(requirements.read_text().replace(digest, "0" * 64))
    done = subprocess.run([*pip, "-r", str(requirements)], capture_output=True, text=True, check=False)
    assert (done.returncode, "DO NOT MATCH THE HASHES" in done.stderr) == (1, True), done.stderr
