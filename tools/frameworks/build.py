"""Installs the frameworks, pinned by version and SHA-256, once, into a cache shared by all runs."""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from tools.controlplane import BuildError, UnavailableError, progress
from tools.controlplane.build import cache_dir, make_once, run_builder

WANTED = Path(__file__).with_name("requirements.in")
PINS = Path(__file__).with_name("requirements.txt")
DIGITS = PINS.with_name("digits.txt")
"""Pins of the model server of `benchmarks.canary`."""
_UNUSED = frozenset(("triton", "cuda-bindings", "cuda-pathfinder", "cuda-toolkit", "nvidia-nvtx", "nvidia-cuda-cccl"))
"""Packages that PyTorch requires but does not load without GPUs: 1.3 GB. It links the others."""
_HEAD = "# Written by `python -m tools.frameworks pin` from {}.\n"
_PYTHON = (3, 11)


def build_environment() -> Path:
    """Return the directory with `python`, installing the frameworks if they are not in the cache: see `_environment`.

    It takes 3 GB of downloads and 6 GB of disk: PyPI has PyTorch for Linux only with CUDA.
    """
    return _environment(PINS, "PyTorch, TensorFlow and JAX (3 GB)")


def build_mpi(library: str) -> Path:
    """Return the directory with `python` and the launcher of an MPI library: `openmpi` 5, `mpich` or `intel`.

    Each has an environment of its own with mpi4py, because their programs have the same names.
    """
    return _environment(PINS.with_name(f"{library}.txt"), f"MPI library {library}")


def build_digits(trainer: Path) -> tuple[Path, Path]:
    """Return the Python of a model server (scikit-learn, uvicorn and gRPC), and the models that `trainer` makes, once.

    `trainer` is a program with one argument, the folder that it writes.
    """
    python = _environment(DIGITS, "scikit-learn, uvicorn and gRPC (70 MB)") / "python"
    digest = hashlib.sha256(trainer.read_bytes()).hexdigest()
    models = python.parents[2] / f"models-{digest[:16]}"

    def train(folder: Path) -> None:
        with progress.step("training models of digits", "trained models of digits"):
            run_builder(
                "training", [python, trainer.resolve(), folder], folder.with_name("log"), os.environ, folder.parent
            )

    make_once(models, "waiting for another training", train)
    return python, models


def build_routers() -> Path:
    """Return the directory with `python` and the routers of vLLM and SGLang."""
    return _environment(PINS.with_name("routers.txt"), "the routers of vLLM and SGLang (60 MB)")


def build_hub() -> Path:
    """Return the directory with `python` and the library of Hugging Face's hub."""
    return _environment(PINS.with_name("hub.txt"), "huggingface_hub (10 MB)")


def build_label_studio() -> Path:
    """Return the directory with `python` and the server of Label Studio."""
    return _environment(PINS.with_name("labelstudio.txt"), "Label Studio (300 MB)")


def _environment(pins: Path, what: str) -> Path:
    """Install the wheels of a file of pins once, and return the directory with `python`.

    Any number of processes may call this at once: one installs, the others wait. Raises UnavailableError on a machine
    that the pins are not for; BuildError if pip fails or a wheel is not the pinned one.
    """
    if (sys.platform, platform.machine(), sys.version_info[:2]) != ("linux", "x86_64", _PYTHON):
        raise UnavailableError("frameworks unavailable: they are pinned for Linux on x86_64 and Python 3.11")
    digest = hashlib.sha256(pins.read_bytes()).hexdigest()
    folder = cache_dir() / "frameworks" / digest[:16]
    make_once(folder / "ready", f"waiting for another install of {what}", partial(_install, pins, what))
    return folder / "venv" / "bin"


def _install(pins: Path, what: str, ready: Path) -> None:
    # A virtual environment cannot be moved, so it is made where it stays, and complete if `ready` exists.
    venv = ready.parents[1] / "venv"
    shutil.rmtree(venv, ignore_errors=True)
    options = ("--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes", "--no-cache-dir")
    install: list[str | Path] = [venv / "bin" / "python", "-m", "pip", "install", *options, "--requirement", pins]
    log = ready.with_name("log")
    with progress.step(f"installing {what}", f"installed {what}"):
        run_builder("venv", [sys.executable, "-m", "venv", venv], log, os.environ, ready.parent)
        run_builder("pip", install, log, os.environ, ready.parent)
    ready.touch()


def pin(wanted: Path = WANTED) -> str:
    """Return the pins of a file such as requirements.in and everything that its packages need. Raises BuildError."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ("--quiet", "--dry-run", "--ignore-installed", "--only-binary", ":all:", "--no-cache-dir")
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            *options,
            "--requirement",
            str(wanted),
            "--report",
            str(report),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(f"pip ended with status {done.returncode}:\n{done.stderr}")
        found = json.loads(report.read_text())["install"]
    lines = [f"{line}\n" for line in wanted.read_text().splitlines() if line.startswith("--")]
    for item in found:
        name = item["metadata"]["name"].lower().replace("_", "-")
        if name not in _UNUSED:
            hashes = item["download_info"]["archive_info"]["hashes"]
            lines.append(f"{name}=={item['metadata']['version']} --hash=sha256:{hashes['sha256']}\n")
    return _HEAD.format(wanted.name) + "".join(sorted(lines))
