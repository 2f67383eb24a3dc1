"""Python audit hook: refuses early and reports what was refused. Source: PEP 578.

It is not a security boundary: code that corrupts the interpreter's memory bypasses it. The kernel's filters are.
"""

from __future__ import annotations

import _imp
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any


class NotAllowedError(PermissionError):
    """A spec file tried a forbidden operation."""


_REFUSED_EVENTS = {
    "the network": ("socket.",),
    "other programs": ("subprocess.", "os.system", "os.exec", "os.spawn", "os.posix_spawn", "os.startfile"),
    "other processes": ("os.fork", "pty.", "os.kill", "signal.pthread_kill"),
    "the limits of processes": ("resource.",),
    "other interpreters": ("cpython.PyInterpreterState",),
    "native code": ("ctypes.", "code.__new__"),
    "the interpreter's memory": ("gc.",),
    "tracing": ("sys.settrace", "sys.setprofile", "sys.remote_"),
    "the system's log": ("syslog.",),
    "files": ("sqlite3.", "fcntl.", "os.chroot"),
    "another working directory": ("os.chdir", "os.fchdir"),
    "writing files": (
        "tempfile.",
        "shutil.",
        "os.remove",
        "os.rename",
        "os.rmdir",
        "os.mkdir",
        "os.link",
        "os.lockf",
        "os.symlink",
        "os.chmod",
        "os.chown",
        "os.chflags",
        "os.truncate",
        "os.utime",
        "os.setxattr",
    ),
}
"""Prefixes of audit events, by the name of the forbidden feature."""

_NATIVE_PACKAGES = frozenset(("ctypes", "cffi", "readline", "dbm", "multiprocessing"))
"""Packages that use system functions without an audit event."""

_BACK_DOORS = frozenset(
    (
        *("_ctypes", "_ctypes_test", "_cffi_backend", "_posixsubprocess", "_posixshmem", "_multiprocessing"),
        *("_xxsubinterpreters", "_xxinterpchannels", "_interpreters", "_interpchannels", "_interpqueues"),
        *("_testcapi", "_testinternalcapi", "_testlimitedcapi", "_testclinic", "_testbuffer", "_testmultiphase"),
        *("_testsinglephase", "_testimportmultiple", "_testexternalinspection", "_remote_debugging", "_xxtestfuzz"),
        *("_gdbm", "_dbm", "_tkinter", "_tracemalloc_test"),
    )
)
"""Extension modules that do so, by the last part of the name, from which the loader derives `PyInit_…`."""

_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def apply(readable: Sequence[str], listable: Sequence[str], native: Sequence[str]) -> None:
    """Refuse everything but reading below `readable` and listing `listable`; the first of `readable` is the repository.

    Extension modules are loaded from below `native` only. Irreversible.
    """
    _guard_builtins()
    real = os.path.realpath
    sys.addaudithook(_make_hook([real(p) for p in readable], [real(p) for p in listable], [real(p) for p in native]))


def _guard_builtins() -> None:
    """Refuse dangerous built-in modules: their loader raises no audit event."""
    create, doors, error = _imp.create_builtin, _BACK_DOORS, NotAllowedError

    def create_builtin(spec: Any) -> Any:
        if str(spec.name).rpartition(".")[2] in doors:
            raise error(f"importing `{spec.name}` is not allowed in a spec file")
        return create(spec)

    _imp.create_builtin = create_builtin


def _make_hook(readable: list[str], listable: list[str], native: list[str]) -> Callable[[str, tuple[Any, ...]], None]:
    # Everything the hook needs is bound here, so that a spec file cannot change it through this module or builtins.
    roots = tuple(path.rstrip("/") + "/" for path in readable)
    shown = frozenset(path.rstrip("/") + "/" for path in listable)
    natives, suffixes = tuple(path.rstrip("/") + "/" for path in native), (".so", ".dylib", ".pyd")
    installed = ("/site-packages/", "/dist-packages/")
    refused = {start: what for what, starts in _REFUSED_EVENTS.items() for start in starts}
    starts, packages, doors, writing = tuple(refused), _NATIVE_PACKAGES, _BACK_DOORS, _WRITE_FLAGS
    realpath, fsdecode, error, instance, integer = os.path.realpath, os.fsdecode, NotAllowedError, isinstance, int
    text, raw = str, bytes

    def plain(path: Any) -> str:
        """Return a path as an exact str: a path-like object could return different paths to the hook and the kernel."""
        if instance(path, text):
            return text.__str__(path)
        if instance(path, raw):
            return fsdecode(raw.__add__(path, b""))
        if path is None:
            return "."
        raise error("paths must be strings in a spec file")

    def resolve(path: Any) -> str:
        return realpath(plain(path)) + "/"

    def extension(name: str, file: str) -> None:
        """Refuse extension modules except those of Python and of avactl's own packages."""
        path = resolve(file)
        own = next((root for root in natives if path.startswith(root)), None)
        if own is None or any(part in path[len(own) - 1 :] for part in installed):
            what = name.partition(".")[0]
            raise error(f"importing `{what}` is not allowed in a spec file: it loads native code (`{name}`)")

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            if instance(path, integer):
                return  # an open descriptor
            if instance(flags, integer) and flags & writing:
                raise error("writing files is not allowed in a spec file")
            if not resolve(path).startswith(roots):
                raise error(f"reading `{plain(path)}` is not allowed in a spec file: it is not in the repository")
        elif event in ("os.listdir", "os.scandir"):
            if not instance(args[0], integer) and not (resolve(args[0]).startswith(roots) or resolve(args[0]) in shown):
                raise error("listing directories outside of the repository is not allowed in a spec file")
        elif event == "import":
            name, file = plain(args[0]), args[1]
            if name.partition(".")[0] in packages or name.rpartition(".")[2] in doors:
                raise error(f"importing `{name}` is not allowed in a spec file")
            if file is not None:
                if plain(file).rpartition("/")[2].partition(".")[0] in doors:
                    raise error(f"importing `{name}` is not allowed in a spec file")
                if plain(file).endswith(suffixes):
                    extension(name, file)
        elif event == "object.__setattr__":
            if args[1] == "__code__":
                raise error("changing code is not allowed in a spec file")
        elif event.startswith(starts):
            for start, what in refused.items():
                if event.startswith(start):
                    raise error(f"a spec file must not use {what}")

    return audit
