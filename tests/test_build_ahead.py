"""A long build begins with the tests of its group and ends with them, at a low priority."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytest_plugins = ("pytester",)
BUILDER = """
    import os, signal, sys
    from pathlib import Path

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    name = Path(sys.modules["__main__"].__file__).stem
    Path(name + ".aside").write_text(f"{os.nice(0)} {sys.argv[1:]}")
    Path(name + ".aside").rename(name + ".began")
    try:
        signal.pause()
    finally:
        Path(name + ".ended").touch()
"""


def test_a_build_begins_and_ends_with_the_tests_of_its_group(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{pytester.path}")
    pytester.makepyfile(builder=BUILDER, unneeded=BUILDER)
    pytester.makeconftest(
        """
    from tests import conftest

    conftest.BUILDERS |= {"long": "builder", "other": "unneeded"}
    pytest_plugins = ["tests.build_ahead"]
        """
    )
    pytester.makepyfile(
        test_it="""
    from pathlib import Path

    import pytest

    from tools.waiting import wait_until

    @pytest.mark.xdist_group("long")
    def test_it():
        wait_until(Path("builder.began").exists)
        """
    )
    pytester.runpytest_subprocess("-n", "1", "--dist", "loadgroup").assert_outcomes(passed=1)
    assert (pytester.path / "builder.began").read_text() == f"{min(os.nice(0) + 5, 19)} ['--optional']"
    assert (pytester.path / "builder.ended").exists()
    assert not (pytester.path / "unneeded.began").exists()


def test_a_session_is_as_nice_as_its_process(tmp_path: Path) -> None:
    """Linux weighs sessions against each other, and only within one its processes."""
    session = "/proc/self/autogroup"
    program = "import os; print(os.nice(0))"
    if os.access(session, os.W_OK):
        program += f"; print(open({session!r}).read().split()[-1])"
    spawn = (
        "import os, sys; from pathlib import Path; from tools.controlplane import process; "
        "sys.exit(process.spawn([sys.executable, '-c', sys.argv[1]], Path(sys.argv[2]), os.environ).wait())"
    )
    nice = shutil.which("nice")
    assert nice
    log = tmp_path / "log"
    command = [nice, "-n", "7", sys.executable, "-c", spawn, program, str(log)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(log.read_text().split()) == {str(min(os.nice(0) + 7, 19))}
