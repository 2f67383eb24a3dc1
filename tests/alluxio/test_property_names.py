"""The list of property names that specs are checked against is the engine's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from avactl.kinds.cache_tier.alluxio import known_properties

ROOT = Path(__file__).parents[2]


def test_the_list_is_what_this_version_of_alluxio_knows(alluxio_jars: None) -> None:
    keys = [sys.executable, "-m", "tools.alluxio", "keys"]
    printed = subprocess.run(keys, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    stored = Path(known_properties.__file__).with_name("property_names.txt").read_text(encoding="utf-8")
    assert sorted(printed.splitlines()) == stored.splitlines()
    assert len(stored.splitlines()) > 900
