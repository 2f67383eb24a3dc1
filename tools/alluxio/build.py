"""Fetches Alluxio's jars, pinned by version and SHA-256, once, into a cache shared by all runs."""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from functools import partial
from pathlib import Path

from tools.alluxio.components import COMMON, SHELLS, classpath, properties
from tools.controlplane import BuildError, UnavailableError, progress
from tools.controlplane.build import cache_dir, make_once, run_builder

HERE = Path(__file__).parent
POM = HERE / "pom.xml"
PINS = HERE / "jars.sha256"
LEAST_JAVA = 11


def java() -> str:
    """Return the path of Java. Raises UnavailableError if it is missing or too old."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    if found is None:
        raise UnavailableError("Alluxio unavailable: no Java on PATH")
    probe = subprocess.run([found, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(?:1\.)?(\d+)', probe.stderr)
    if match is None or int(match.group(1)) < LEAST_JAVA:
        said = (probe.stderr.strip().splitlines() or ["no version"])[0]
        raise UnavailableError(f"Alluxio unavailable: Java {LEAST_JAVA} or newer is needed: {said}")
    return found


def build_jars() -> Path:
    """Return the folder with all jars, fetching them if they are not in the cache (about 210 MB).

    Any number of processes may call this at once: one fetches, the others wait. Raises UnavailableError without Java,
    or without Maven on the first call; BuildError if Maven fails or a jar is not the pinned one.
    """
    java()
    digest = hashlib.sha256(POM.read_bytes() + PINS.read_bytes()).hexdigest()
    jars = cache_dir() / f"alluxio-{digest[:16]}" / "jars"
    make_once(jars, "waiting for another fetch of Alluxio", _fetch)
    return jars


def build_class_archive() -> Path:
    """Return the archive of a client's classes for `-XX:SharedArchiveFile`, making it if it is not in the cache.

    Java maps it: to read and to verify the classes is nearly half of the CPU time of a shell, which tests start often.
    It is good for one Java and one path of the jars. Raises as `build_jars`.
    """
    jars, program = build_jars(), java()
    probe = subprocess.run([program, "-version"], capture_output=True, check=True)
    digest = hashlib.sha256(b"%s %s" % (str(jars).encode(), probe.stderr)).hexdigest()
    archive = jars.with_name(f"classes-{digest[:16]}.jsa")
    make_once(archive, "waiting for another archive of Alluxio's classes", partial(_archive_classes, program, jars))
    return archive


def property_keys() -> str:
    """Return every property name that this Alluxio knows, one a line; patterns of names as ^…$. It needs a JDK."""
    command = [java(), "-cp", f"{build_jars()}/*", str(HERE / "PropertyKeys.java")]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def pin() -> int:
    """Write the SHA-256 of every jar that the pom asks for; return their number."""
    with tempfile.TemporaryDirectory() as folder:
        _maven(Path(folder) / "jars")
        sums = digests(Path(folder) / "jars")
    PINS.write_text("".join(f"{value}  {name}\n" for name, value in sums.items()))
    return len(sums)


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file in a folder by name."""
    result = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            result[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return result


def _fetch(jars: Path) -> None:
    with progress.step("fetching Alluxio (210 MB)", "fetched Alluxio"):
        _maven(jars)
        pinned = dict(line.split()[::-1] for line in PINS.read_text().splitlines())
        found = digests(jars)
        if wrong := sorted(name for name in pinned | found if pinned.get(name) != found.get(name)):
            raise BuildError(f"not as pinned in {PINS.name}: {', '.join(wrong[:5])} ({len(wrong)} in all)")


def _archive_classes(program: str, jars: Path, archive: Path) -> None:
    base = [program, "-cp", classpath(jars), *COMMON]
    names = archive.with_name("names")
    # No master answers, and that is late enough: by then a shell has loaded nearly all of its classes.
    values = {
        "alluxio.master.hostname": "127.0.0.1",
        "alluxio.master.rpc.port": "1",
        "alluxio.user.rpc.retry.max.duration": "1ms",
    }
    client = [*base, f"-XX:DumpLoadedClassList={names}", *properties(values), SHELLS["fs"], "ls", "/"]
    subprocess.run(client, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    dump = [*base, "-Xshare:dump", f"-XX:SharedClassListFile={names}", f"-XX:SharedArchiveFile={archive}"]
    run_builder("Java", dump, archive.with_name("log"), os.environ, archive.parent)


def _maven(jars: Path) -> None:
    """Copy the jars to a folder."""
    maven = shutil.which("mvn")
    if maven is None:
        raise UnavailableError("Alluxio unavailable: no Maven on PATH")
    goal = ("dependency:copy-dependencies", f"-DoutputDirectory={jars}")
    command = [maven, "--batch-mode", "--quiet", "--file", str(POM), *goal]
    run_builder("Maven", command, jars.with_name("log"), os.environ, jars.parent)
