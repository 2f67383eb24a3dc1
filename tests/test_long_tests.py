"""The list of tests that are left to CI is true."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from tests.conftest import ROOT
from tests.long_tests import LIST, read_list


def test_every_entry_is_a_test() -> None:
    listed = read_list()
    assert sorted(set(listed)) == listed, "sorted, each once"
    files = sorted({entry.partition("::")[0] for entry in listed})
    assert all((ROOT / file).is_file() for file in files), files
    for entry in listed:
        file, _, test = entry.partition("::")
        if test:
            pattern = rf"^(async )?def {re.escape(test.partition('[')[0].rpartition('::')[2])}\("
            assert re.search(pattern, (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), entry


def test_make_test_leaves_them_out_and_ci_runs_them() -> None:
    # Without the variables of the `make` that runs this test.
    env = {key: value for key, value in os.environ.items() if "MAKE" not in key and key not in ("ALL", "MFLAGS")}

    def selected(*variables: str) -> str:
        command = ["make", "--dry-run", "--always-make", "unit", *variables]
        return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout

    assert "not long" in selected()
    assert "not long" not in selected("ALL=1")
    assert "make test ALL=1" in (ROOT / ".ci/run").read_text(encoding="utf-8")


def test_they_are_marked() -> None:
    first = read_list()[0]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-n",
        "0",
        "-m",
        "long",
        first.partition("::")[0],
    ]
    collected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert first in collected, (LIST, collected)
