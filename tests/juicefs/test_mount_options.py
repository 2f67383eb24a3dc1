"""The list of mount options that specs are checked against is the engine's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from avactl.kinds.cache_tier.juicefs import known_options
from tests.test_layout import ROOT


def test_the_list_is_what_this_version_of_juicefs_knows(juicefs: None) -> None:
    command = [sys.executable, "-m", "tools.juicefs", "options"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    stored = Path(known_options.__file__).with_name("mount_options.txt").read_text(encoding="utf-8")
    assert printed == stored
    assert known_options.known_options()["read-only"].flag
    assert known_options.known_options()["cache-size"].description.startswith("size of cached object for read in MiB")
