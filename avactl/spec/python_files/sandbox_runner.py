"""Run untrusted programs in a child process behind `avactl.spec.python_files.sandbox`, and return their answer.

The child has an empty environment, no network and no other programs, and reads only the repository's files and Python's
own; its output is discarded.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import selectors
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from avactl.spec.python_files.sandbox import LAYERS, NOT_CONFINED

MAX_ANSWER = 32 * 1024 * 1024
"""Largest answer in bytes."""

TRUST = "AVACTL_TRUST_PYTHON"
"""Environment variable set to `1` to run Python files without a sandbox if the kernel does not support one.

It is not a setting of avactl.yaml, because an unreviewed branch could change that.
"""

_BOOTSTRAP_CODE = (
    "import json, sys; request = json.loads(sys.argv[1]); sys.path += request['import']; "
    "from importlib import import_module; import_module(request['module']).main(request)"
)
_NEEDED_PACKAGES = (
    "avactl",
    "pydantic",
    "pydantic_core",
    "annotated_types",
    "typing_extensions",
    "typing_inspection",
    "orjson",
)


class Answer(NamedTuple):
    """Output of a child until it ended or was killed."""

    data: bytes
    in_time: bool
    """False if the child was killed at its deadline."""
    missing: tuple[str, ...] = ()
    """Sandbox layers that this machine lacks: the child did not start."""

    @property
    def too_long(self) -> bool:
        """True if the child exceeded the limit on the answer."""
        return len(self.data) > MAX_ANSWER


class _Paths(NamedTuple):
    """Directories of the interpreter and of avactl's packages."""

    imports: list[str]
    """Import paths of the child, which it may list."""
    readable: list[str]
    native: list[str]
    """Directories from which extension modules may be loaded."""


@cache
def _python_paths() -> _Paths:
    packages, roots = [], []
    for name in _NEEDED_PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        package = Path(spec.origin).resolve()
        package = package.parent if package.name.startswith("__init__.") else package
        packages.append(str(package))
        roots.append(str(package.parent))
    installed = [root for root in dict.fromkeys(roots) if Path(root).name in ("site-packages", "dist-packages")]
    library = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    readable = list(dict.fromkeys([*packages, *installed, *library, "/usr/share/zoneinfo"]))
    return _Paths(list(dict.fromkeys(roots)), readable, list(dict.fromkeys([*packages, *library])))


def run(
    module: str,
    root: str,
    seconds: float,
    request: Mapping[str, Any],
    readable: tuple[str, ...] = (),
    *,
    untrusted: bool = True,
) -> Answer:
    """Run `main(request)` of an avactl module in the directory `root` for at most `seconds`. Raises OSError.

    `request` gets the keys of `sandbox.enter`. The child can read `root` and `readable`. `untrusted` code does not run
    if a sandbox layer is missing, unless the environment variable allows it.
    """
    paths = _python_paths()
    reader, writer = os.pipe()
    whole = {
        **request,
        "module": module,
        "root": root,
        "answer": writer,
        "parent": os.getpid(),
        "seconds": seconds,
        "required": untrusted and os.environ.get(TRUST) != "1",
        "import": paths.imports,
        "listable": paths.imports,
        "native": paths.native,
        "readable": [root, *readable, *paths.readable],
    }
    # -S and -s: no site or user code before ours. A fixed hash seed makes the order of string sets deterministic.
    command = [sys.executable, "-S", "-s", "-P", "-B", "-X", "utf8", "-c", _BOOTSTRAP_CODE, json.dumps(whole)]
    try:
        child = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(writer,),
            cwd=root,
            env={"PYTHONHASHSEED": "0"},
            start_new_session=True,
        )
    finally:
        os.close(writer)
    try:
        data, in_time = _read(reader, time.monotonic() + seconds)
    finally:
        os.close(reader)
        _kill_child(child)
    missing: tuple[str, ...] = ()
    if child.returncode == NOT_CONFINED:
        missing = tuple(layer for layer in LAYERS if layer in data[:200].decode("ascii", "replace").split(","))
    return Answer(data, in_time and child.returncode != -signal.SIGXCPU, missing)


def _read(reader: int, deadline: float) -> tuple[bytes, bool]:
    """Read until EOF, the size limit or the deadline; return the bytes and True if the deadline was met."""
    answer = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(reader, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if not selector.select(left):
                continue
            chunk = os.read(reader, 1 << 20)
            answer += chunk
            if not chunk or len(answer) > MAX_ANSWER:
                return bytes(answer), True
    return bytes(answer), False


def _kill_child(child: subprocess.Popen[bytes]) -> None:
    """Kill the child's process group, and reap the child."""
    # A child that closed the pipe is about to exit; wait briefly to distinguish a limit's signal from ours.
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(0.2)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
