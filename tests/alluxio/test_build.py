"""Without Java or Maven: a skip with one line, in CI too. A jar that is not the pinned one is an error everywhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.alluxio import build, build_jars
from tools.controlplane import BuildError, UnavailableError

ROOT = Path(__file__).parents[2]
TEST = """
def test_first(alluxio_jars): pass
def test_second(alluxio_jars): pass
"""


def run(*command: str, ci: str | None, path: str = "/nowhere") -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "JAVA_", "CI", "MAKE"))}
    environment = {**kept, "PATH": path, **({} if ci is None else {"CI": ci})}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("ci", [None, "true"])
def test_tests_are_skipped_with_one_line(tmp_path: Path, ci: str | None) -> None:
    (tmp_path / "test_it.py").write_text(TEST)
    plugins = ("-p", "no:cacheprovider", "-p", "tests.cluster_fixtures", "-p", "tests.alluxio_fixtures")
    options = ("--rootdir", str(tmp_path), "-ra", "-q", str(tmp_path))
    done = run(sys.executable, "-m", "pytest", *plugins, *options, ci=ci)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = re.findall(r"^SKIPPED.*$", done.stdout, re.MULTILINE)
    assert line.startswith("SKIPPED [2] ")
    assert line.endswith("Alluxio unavailable: no Java on PATH")


@pytest.mark.parametrize("ci", [None, "true"])
def test_make_goes_on(ci: str | None) -> None:
    make = shutil.which("make")
    assert make is not None
    # The environment of this test stands in for .venv, which is taken as it is.
    done = run(make, "-o", ".venv/.ready", "alluxio", f"BIN={Path(sys.executable).parent}", ci=ci)
    said = "Alluxio unavailable: no Java on PATH; tests that need it are skipped\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "", said)


def test_a_build_that_was_asked_for_fails() -> None:
    done = run(sys.executable, "-m", "tools.alluxio", "build", ci=None)
    assert (done.returncode, done.stderr) == (1, "error: Alluxio unavailable: no Java on PATH\n")


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for programs that stand in for Java and Maven, alone on PATH, and an empty cache."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("AVACTL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return folder


def program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_old_java_and_no_maven_are_unavailable(tools: Path) -> None:
    program(tools, "java", "echo 'openjdk version \"1.8.0_392\"' >&2")
    with pytest.raises(UnavailableError, match="Java 11 or newer is needed: openjdk version"):
        build_jars()
    program(tools, "java", "echo 'openjdk version \"17.0.15\"' >&2")
    with pytest.raises(UnavailableError, match="no Maven on PATH"):
        build_jars()


def test_only_pinned_jars(tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tools, "java", "echo 'openjdk version \"17.0.15\"' >&2")
    copies = "for word; do case $word in -DoutputDirectory=*) out=${word#*=} ;; esac; done; /bin/mkdir -p $out"
    program(tools, "mvn", f"{copies}; printf a > $out/a.jar; printf b > $out/b.jar; echo x >> {tmp_path}/runs")
    monkeypatch.setattr(build, "PINS", tmp_path / "jars.sha256")
    assert build.pin() == 2
    assert {path.name for path in build_jars().iterdir()} == {"a.jar", "b.jar"}
    build_jars()
    assert (tmp_path / "runs").read_text() == "x\nx\n"  # one for the pins, one for the cache
    build.PINS.write_text(build.PINS.read_text().replace("a.jar", "c.jar"))
    with pytest.raises(BuildError, match=r"not as pinned in jars.sha256: a.jar, c.jar \(2 in all\)"):
        build_jars()
    program(tools, "mvn", "echo no network; exit 1")
    with pytest.raises(BuildError, match=r"(?s)Maven ended with status 1.*no network"):
        build_jars()
