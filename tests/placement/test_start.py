"""What starts a compile does not pay for arrays."""

from __future__ import annotations

import subprocess
import sys


def test_the_command_line_starts_without_numpy() -> None:
    code = "import sys, avactl.cli.main, avactl.compiler.driver; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
