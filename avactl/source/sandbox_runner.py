"""Programs that may do nothing but compute: a child process behind `avactl.source.sandbox`, and what it answered.

The child has an empty environment, no network, no other programs, and reads only the repository's files and Python's
own; what it prints is dropped.
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

from avactl.source.sandbox import LAYERS, NOT_CONFINED

MAX_ANSWER = 32 * 1024 * 1024
"""Most bytes of an answer."""

TRUST = "AVACTL_TRUST_PYTHON"
"""Environment variable of a person who lets Python files run where the kernel cannot confine them, as `1`.

Not a setting of avactl.yaml: a branch that nobody has reviewed would bring its own.
"""

_BOOTSTRAP = (
    "import json, sys; request = json.loads(sys.argv[1]); sys.path += request['import']; "
    "from importlib import import_module; import_module(request['module']).main(request)"
)
_NEEDED = ("avactl", "pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection", "orjson")


class Answer(NamedTuple):
    """What a child wrote before it ended, or before it was ended."""

    data: bytes
    in_time: bool
    """False where it was still at work when its time was over."""
    missing: tuple[str, ...] = ()
    """Layers of the sandbox that this machine lacks: the child did not begin."""

    @property
    def too_long(self) -> bool:
        """Whether it wrote more than anybody reads."""
        return len(self.data) > MAX_ANSWER


class _Paths(NamedTuple):
    """Directories of the interpreter and of avactl's packages."""

    imports: list[str]
    """Where the child imports from; it may list them."""
    readable: list[str]
    native: list[str]
    """Where extension modules may be loaded from."""


@cache
def _python_paths() -> _Paths:
    packages, roots = [], []
    for name in _NEEDED:
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
    """Run `main(request)` of a module of avactl in the directory `root`, for so many seconds. Raises OSError.

    The request gets the keys of `sandbox.enter`. The child reads what is in `root` and `readable`. `untrusted` code
    does not run where a layer of the sandbox is missing, unless the environment of this process trusts it.
    """
    paths = _python_paths()
    reader, writer = os.pipe()
    whole = {
        **request,
        "module": module,
        "root": root,
        "answer": writer,
        "parent": os.getpid(),
        "required": untrusted and os.environ.get(TRUST) != "1",
        "seconds": seconds,
        "import": paths.imports,
        "readable": [root, *readable, *paths.readable],
        "listable": paths.imports,
        "native": paths.native,
    }
    # -S and -s: no code of the site's or the user's before ours. Sets of text have one order by the hash seed.
    command = [sys.executable, "-S", "-s", "-P", "-B", "-X", "utf8", "-c", _BOOTSTRAP, json.dumps(whole)]
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
        _end(child)
    missing: tuple[str, ...] = ()
    if child.returncode == NOT_CONFINED:
        missing = tuple(layer for layer in LAYERS if layer in data[:200].decode("ascii", "replace").split(","))
    return Answer(data, in_time and child.returncode != -signal.SIGXCPU, missing)


def _read(reader: int, deadline: float) -> tuple[bytes, bool]:
    """All bytes until the other side closes, or until they are too many, or until the deadline; whether before it."""
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


def _end(child: subprocess.Popen[bytes]) -> None:
    """The end of the child and of all that it may have started, as one process group."""
    # Who closed the pipe is about to end; waiting here for its status tells a limit's signal from ours.
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(0.2)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
