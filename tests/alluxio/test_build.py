"""Without Java or Maven: a skip with one line, a failure in CI. Other jars than the pinned ones are always an error."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.alluxio import build, build_jars
from tools.alluxio.components import COMMON, SHELLS, classpath
from tools.controlplane import BuildError, UnavailableError

ROOT = Path(__file__).parents[2]
REASON = "Alluxio unavailable: no Java on PATH"
TEST = """
def test_first(alluxio_jars): pass
def test_second(alluxio_jars): pass
"""


def run(*command: str, ci: str | None, path: str = "/nowhere") -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "JAVA_", "CI", "MAKE"))}
    environment = {**kept, "PATH": path, **({} if ci is None else {"CI": ci})}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def run_tests(folder: Path, ci: str | None) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(TEST)
    plugins = ("-p", "no:cacheprovider", "-p", "tests.cluster_fixtures", "-p", "tests.alluxio_fixtures")
    options = ("-p", "tests.skips", "--rootdir", str(folder), "-ra", "-q", str(folder))
    return run(sys.executable, "-m", "pytest", *plugins, *options, ci=ci)


def test_tests_are_skipped_with_one_line(tmp_path: Path) -> None:
    done = run_tests(tmp_path, None)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = re.findall(r"^SKIPPED.*$", done.stdout, re.MULTILINE)
    assert line.startswith("SKIPPED [2] ")
    assert line.endswith(REASON)


def test_tests_fail_in_ci(tmp_path: Path) -> None:
    done = run_tests(tmp_path, "true")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 errors" in done.stdout
    assert f"{REASON} (skipped outside of CI)" in done.stdout


@pytest.mark.parametrize(
    ("ci", "status", "said"),
    [(None, 0, f"{REASON}; tests that need it are skipped\n"), ("true", 2, f"error: {REASON}\n")],
)
def test_make_stops_in_ci_only(ci: str | None, status: int, said: str) -> None:
    make = shutil.which("make")
    assert make is not None
    # The environment of this test stands in for .venv, which is taken as it is.
    done = run(make, "-o", ".venv/.ready", "alluxio", f"BIN={Path(sys.executable).parent}", ci=ci)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith(said)


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


@pytest.mark.usefixtures("alluxio_jars")
def test_java_takes_the_archive_of_classes() -> None:
    """Java ignores an archive that does not fit, unless it must not."""
    shared = ["-Xshare:on", f"-XX:SharedArchiveFile={build.build_class_archive()}"]
    command = [build.java(), *COMMON, *shared, "-Xlog:class+load", "-cp", classpath(build_jars()), SHELLS["fs"]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert re.search(rf"{re.escape(SHELLS['fs'])} source: shared objects file", done.stdout), done.stdout + done.stderr
