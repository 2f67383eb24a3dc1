"""The images: built once from Debian packages, wheels and this source tree, and kept in the cache."""

import glob
import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from avactl.workbench.scaffold import LOCK
from tools.controlplane import progress
from tools.controlplane.build import BuildError, UnavailableError, build_binaries, cache_dir, make_once
from tools.image import debian, oci
from tools.image.oci import Image

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
PATH = "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
SITE = f"usr/local/lib/{PYTHON}/dist-packages"
"""Where Debian's Python looks for packages that Debian did not install."""
_SHELL = {"Env": [PATH], "Cmd": ["sh"]}
_LAUNCHER = f"#!/usr/bin/{PYTHON}\nfrom avactl.cli.main import main\nmain()\n"
KEPT = 86400  # seconds that a layer or image is kept without use: one of avactl is made for every change


def pause() -> Image:
    """Return the image of pod sandboxes: one static program, which the C compiler makes."""
    source = HERE / "pause.c"

    def fill(root: Path) -> None:
        root.mkdir()
        _run(["gcc", "-Os", "-static", "-o", str(root / "pause"), str(source)])

    if shutil.which("gcc") is None:
        raise UnavailableError("images unavailable: gcc is not on PATH")
    return _image("pause", [_layer("pause", [source.read_text()], fill)], {"Entrypoint": ["/pause"]})


def busybox() -> Image:
    """Return an image with a shell and small commands only."""
    return _image("busybox", [_system("busybox")], _SHELL)


def python(*packages: str) -> Image:
    """Return an image with Debian's Python, busybox, and further Debian packages."""
    name = "-".join(("python", *packages))
    return _image(name, [_system(name, "python3", *packages)], _SHELL)


def shell(*packages: str) -> Image:
    """Return an image with a shell and Debian packages."""
    name = "-".join(packages)
    return _image(name, [_system(name, *packages)], _SHELL)


def kubectl() -> Image:
    """Return an image with kubectl and a shell, for the followers of training jobs."""
    return program(build_binaries(["kubectl"])["kubectl"])


def program(binary: Path) -> Image:
    """Return an image with a program that is linked statically, and a shell."""
    return programs(binary.name, {f"usr/local/bin/{binary.name}": binary})


def programs(name: str, files: Mapping[str, Path], *packages: str, entrypoint: Sequence[str] = ()) -> Image:
    """Return an image with programs at paths below its root, a shell, and Debian packages."""
    inputs = [f"{path} {hashlib.sha256(file.read_bytes()).hexdigest()}" for path, file in sorted(files.items())]

    def fill(root: Path) -> None:
        for path, file in files.items():
            target = root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
            target.chmod(0o755)

    system = _system("-".join(packages) or "busybox", *packages)
    config = {**_SHELL, "Entrypoint": list(entrypoint)} if entrypoint else _SHELL
    return _image(name, [system, _layer(name, inputs, fill)], config)


def avactl() -> Image:
    """Return the image of avactl's command line and daemons: this source tree, its locked wheels, Python and git."""
    config = {"Env": [PATH, "HOME=/tmp"], "Entrypoint": ["avactl"], "User": "1000:1000"}
    return _image("avactl", _avactl_layers(), config)


def training(*directories: Path) -> Image:
    """Return an image that runs `python scripts/…`, the scripts of all directories, with NumPy and avactl-worker."""
    files = sorted(file for directory in directories for file in directory.glob("*.py"))

    def fill(root: Path) -> None:
        target = root / "workspace/scripts"
        target.mkdir(parents=True)
        for file in files:
            shutil.copyfile(file, target / file.name)
        _link_python(root)

    own = _layer("training", [f"{file.name}\0{file.read_text()}" for file in files], fill)
    return _image("training", [*_avactl_layers(), own], {**_SHELL, "WorkingDir": "/workspace"})


def model_server(server: Path, models: Path, pins: Path) -> Image:
    """Return an image that runs `python /server.py /models`, with the wheels of a file of pins."""
    found = (path for path in models.rglob("*") if path.is_file())
    files = {"server.py": server, **{f"models/{path.relative_to(models)}": path for path in found}}
    inputs = [f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}" for name, path in sorted(files.items())]

    def fill(root: Path) -> None:
        for name, path in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, root / name)
        _link_python(root)

    name = f"model-server-{pins.stem}"
    layers = [_python_system(), _wheels(pins.stem, pins.read_text()), _layer(name, inputs, fill)]
    return _image(name, layers, _SHELL)


def _link_python(root: Path) -> None:
    program = root / "usr/local/bin/python"
    program.parent.mkdir(parents=True)
    program.symlink_to(f"/usr/bin/{PYTHON}")


def _avactl_layers() -> list[Path]:
    return [_python_system(), _wheels("avactl", _locked_wheels()), _source()]


def _python_system() -> Path:
    packages = (f"{PYTHON}-minimal", f"lib{PYTHON}-stdlib", "libstdc++6", "git", "ca-certificates")
    return _system("avactl-system", *packages, compiled=True)


def _system(name: str, *packages: str, compiled: bool = False) -> Path:
    files = debian.closure([*packages, "busybox-static"])

    def fill(root: Path) -> None:
        debian.unpack(files, root)
        if compiled:
            _compile(root, root / "usr/lib" / PYTHON)

    return _layer(name, sorted(files.values()), fill)


def _wheels(name: str, locked: str) -> Path:
    def fill(root: Path) -> None:
        requirements = root.with_suffix(".txt")
        requirements.write_text(locked)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        options = ["--no-compile", "--only-binary=:all:", "--require-hashes", "--requirement", str(requirements)]
        _run([*pip, *options, "--target", str(root / SITE)])
        _compile(root, root / SITE)

    return _layer(f"{name}-wheels", [locked], fill)


def _source() -> Path:
    files = {
        str(path.relative_to(parent)): path
        for parent, package in ((ROOT, "avactl"), (ROOT / "worker", "avactl_worker"))
        # Path.rglob does not follow links, such as that of the examples.
        for path in map(Path, sorted(glob.glob(f"{parent}/{package}/**", recursive=True)))  # noqa: PTH207
        if path.is_file() and "__pycache__" not in path.parts
    }
    digests = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}

    def fill(root: Path) -> None:
        for name, path in files.items():
            target = root / SITE / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        launcher = root / "usr/local/bin/avactl"
        launcher.parent.mkdir(parents=True, exist_ok=True)
        launcher.write_text(_LAUNCHER)
        launcher.chmod(0o755)
        _compile(root, root / SITE)

    return _layer("avactl-source", [f"{name} {digest}" for name, digest in digests.items()], fill)


def _compile(root: Path, folder: Path) -> None:
    # Pods have read-only root file systems: Python could not keep what it compiles.
    command = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    _run([*command, "-s", str(root), "-p", "/", str(folder)])


def _locked_wheels() -> str:
    """Return the lines of the scaffold's lock, with hashes, for the packages that `avactl[cluster]` needs here."""
    blocks = re.split(r"\n(?=\S)", (ROOT / "avactl/workbench/scaffold/template" / LOCK).read_text().strip())
    locked: dict[str, str] = {canonicalize_name(block.partition("==")[0]): block for block in blocks}
    needed = _dependencies("avactl", frozenset({"cluster"})) - {"avactl"}
    if missing := sorted(needed - locked.keys()):
        raise BuildError(f"{LOCK} lacks {', '.join(missing)}")
    return "\n".join(locked[name] for name in sorted(needed)) + "\n"


def _dependencies(name: str, extras: frozenset[str], known: frozenset[str] = frozenset()) -> frozenset[str]:
    found = known | {canonicalize_name(name)}
    for text in metadata.requires(name) or ():
        needed = Requirement(text)
        applies = needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in ("", *extras))
        if applies and canonicalize_name(needed.name) not in found:
            found = _dependencies(needed.name, frozenset(needed.extras), found)
    return found


def _layer(name: str, inputs: Iterable[str], fill: Callable[[Path], None]) -> Path:
    """Return the layer, made anew if its inputs changed. `fill` makes the root directory."""

    def make(path: Path) -> None:
        root = path.with_suffix(".root")
        fill(root)
        oci.write_layer(path, root)

    return _cached("layers", name, inputs, make)


def _image(name: str, layers: Sequence[Path], config: Mapping[str, Any]) -> Image:
    def make(path: Path) -> None:
        oci.write(path, layers, f"localhost/{name}", config)

    return oci.read(_cached("images", name, [*map(str, layers), json.dumps(config)], make))


def _cached(kind: str, name: str, inputs: Iterable[str], make: Callable[[Path], None]) -> Path:
    # The code that makes it is an input too.
    own = [path.read_text() for path in sorted(HERE.glob("*.py"))]
    key = hashlib.sha256("\0".join([*own, *inputs]).encode()).hexdigest()[:16]
    folder = cache_dir() / kind
    path = folder / f"{name}-{key}.tar"

    def build(aside: Path) -> None:
        _prune(folder)
        with progress.step(f"building {name} ({kind})", f"built {name}"):
            make(aside)

    make_once(path, f"waiting for another build of {kind}", build)
    path.touch()
    return path


def _prune(folder: Path) -> None:
    for old in folder.glob("*.tar"):
        if time.time() - old.stat().st_mtime > KEPT:
            old.unlink()


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command[:4])} ended with status {done.returncode}:\n{done.stderr[-2000:]}")
