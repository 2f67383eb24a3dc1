"""`make check`: which tests it runs for what changed, and that they fit into the time."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_layout import ROOT
from tools.check import _import_pattern, typed_files
from tools.check import tests_named as named
from tools.check import tests_of as chosen


def test_a_name_is_a_folder_or_files() -> None:
    assert {path.parent.name for path in named("policy")} == {"policy"}
    assert ROOT / "tests/kinds/test_quota.py" in named("quota")
    assert named("nothing") == []


def test_tests_that_import_what_changed_come_first() -> None:
    files = chosen([ROOT / "avactl/scheduler/metrics.py"])
    assert ROOT / "tests/scheduler/test_metrics.py" in files[: files.index(named("metrics")[0]) + 1]
    assert set(named("metrics")) <= set(files)
    assert chosen([ROOT / "tests/test_codes.py"]) == [ROOT / "tests/test_codes.py"]
    assert chosen([ROOT / "tools/demo.py"]) == []
    assert chosen([ROOT / "tools/prometheus/__init__.py"]) != []
    assert ROOT / "tests/test_waiting.py" in chosen([ROOT / "tools/waiting.py"])
    assert set(named("layout")) <= set(chosen([ROOT / "worker/avactl_worker/__init__.py"]))
    (sandbox,) = named("sandbox")
    assert sandbox in chosen([ROOT / "tests/source/layers.py"])
    assert named("quota")[0] in chosen([ROOT / "avactl/kinds/quota/demand.py"])


@pytest.mark.parametrize(
    "line",
    [
        "import a.b",
        "import os, a.b as c",
        "from a import b",
        "from a import x as y, b",
        "from a import (\n    x,\n    b,\n)",
        "from a.b import x",
    ],
)
def test_all_forms_of_an_import_are_recognized(line: str) -> None:
    assert re.search(rf"\b(?:{_import_pattern('a.b')})\b", line)


@pytest.mark.parametrize("line", ["import a.bc", "from a import bc", "from a import x\nb = 1", "from aa import b"])
def test_imports_of_other_modules_are_not(line: str) -> None:
    assert not re.search(rf"\b(?:{_import_pattern('a.b')})\b", line)


def test_types_are_checked_as_in_the_settings_of_mypy() -> None:
    typed = ["avactl/__init__.py", "worker/avactl_worker/session.py", "tests/test_check.py"]
    others = ["examples/elastic/train.py", "tests/golden/x.py", "worker/examples/x.py"]
    assert typed_files([ROOT / name for name in typed + others]) == [ROOT / name for name in typed]


NEW = """
def test_new():
    import time
    while time.process_time() < 7.5: ...
def test_after_it(): ...
"""


def test_what_takes_too_long_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_slow(): ...\ndef test_quick(): ...\n" + NEW)
    record = tmp_path / ".pytest_cache/v/check/seconds"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"test_a.py::test_slow": 100.0, "test_a.py::test_quick": 0.01}))
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "tools.check", "--in-time", "--rootdir", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "test_a.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed, 1 deselected" in done.stdout
    assert "left out for time: 2 tests, and 0 files with tests" in done.stdout
    seconds = json.loads(record.read_text())
    assert seconds["test_a.py::test_slow"] == 100.0
    assert set(seconds) == {"test_a.py::test_slow", "test_a.py::test_quick", "test_a.py::test_new"}
