"""The sandbox's layers, taken away one by one for tests.

They are taken away in the parent, by another bootstrap of the child: no file of a repository reaches that.
"""

from __future__ import annotations

import os
import re
import textwrap
from pathlib import Path

import pytest

from avactl.spec.python_files import sandbox, sandbox_runner
from avactl.spec.python_files.sandbox import audit, landlock, limits, process, seccomp
from avactl.spec.python_files.sandbox_runner import Answer

NO_HOOK = "sandbox._forget_ctypes = lambda: None; audit.apply = lambda *_: None; import ctypes"
NO_NAMESPACES = "process.enter_namespaces = lambda libc: False"
NO_LANDLOCK = "landlock.apply = lambda *_: True"
NO_SECCOMP = "seccomp.apply = lambda *_: True"
NO_LIMITS = "limits.apply = lambda *_: True"
NO_DROP = "process.drop_privileges = lambda *_: True"
OLD_LANDLOCK = "landlock.landlock_abi = lambda libc: 1"
DARWIN = "import types; sandbox.sys = types.SimpleNamespace(platform='darwin')"
NOTHING = (NO_HOOK, NO_NAMESPACES, NO_LANDLOCK, NO_SECCOMP, NO_LIMITS, NO_DROP)
_MODULES = {
    "sandbox": sandbox,
    "audit": audit,
    "landlock": landlock,
    "limits": limits,
    "process": process,
    "seccomp": seccomp,
}

PIPE = """
import json, os, stat
def is_pipe(fd):
    try:
        return stat.S_ISFIFO(os.fstat(fd).st_mode)
    except OSError:
        return False
out = next(fd for fd in range(3, 4096) if is_pipe(fd))
"""


def change(monkeypatch: pytest.MonkeyPatch, *statements: str) -> None:
    """Let children run these Python statements before their sandbox begins.

    Raises AttributeError if they replace an attribute of the sandbox that does not exist.
    """
    for module, name in re.findall(r"\b(\w+)\.(\w+) = ", "; ".join(statements)):
        if module in _MODULES:
            getattr(_MODULES[module], name)
    imports = "from avactl.spec.python_files import sandbox; "
    imports += "from avactl.spec.python_files.sandbox import audit, landlock, limits, process, seccomp"
    begin, end = sandbox_runner._BOOTSTRAP_CODE.split("; from importlib")
    boot = "; ".join((begin, imports, *statements, f"from importlib{end}"))
    monkeypatch.setattr(sandbox_runner, "_BOOTSTRAP_CODE", boot)


def run(root: Path, source: str, seconds: float = 30.0) -> Answer:
    (root / "spec.py").write_text(textwrap.dedent(source))
    return sandbox_runner.run("avactl.program.python_capture", os.path.realpath(root), seconds, {"path": "spec.py"})
