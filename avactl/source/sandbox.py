"""What keeps a Python spec file from doing more than computing. Runs in the child process; standard library only.

Three layers, each by itself enough for most: limits of the kernel (CPU, memory, no file grows), filters of the kernel
where it has them (Linux: no network, no programs, no files but the given ones), and an audit hook of Python, which is
everywhere and says what was refused. Sources: setrlimit(2), landlock(7), seccomp(2), PEP 578.
"""

from __future__ import annotations

import os
import resource
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any

MEMORY = 1 << 30
"""Address space of the child, bytes."""


class NotAllowedError(PermissionError):
    """A spec file tried what only programs may do."""


def enter(readable: Sequence[str], listable: Sequence[str], seconds: float) -> None:
    """Give up everything but reading below `readable` and listing `listable` too; there is no way back.

    `seconds` of CPU time are left. Call it in a process with one thread.
    """
    _limits(seconds)
    if sys.platform == "linux":
        _kernel_filters(readable, listable)
    sys.addaudithook(_hook([os.path.realpath(path) for path in readable], [os.path.realpath(p) for p in listable]))


def _limits(seconds: float) -> None:
    cpu = int(seconds) + 1
    wanted = {
        resource.RLIMIT_CPU: cpu,
        resource.RLIMIT_AS: MEMORY,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
    }
    for limit, value in wanted.items():
        hard = resource.getrlimit(limit)[1]
        lowered = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(limit, (lowered, lowered))
        except (OSError, ValueError):
            continue  # macOS does not take every limit; the parent's clock is there in any case


# -- Linux ---------------------------------------------------------------------------------------------------------

_CLONE_NEWUSER, _CLONE_NEWNET, _CLONE_NEWIPC = 0x10000000, 0x40000000, 0x08000000
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38

# Calls that are answered with EPERM, by machine: AUDIT_ARCH of linux/audit.h, then numbers of the system calls. In
# order: socket and socketpair, connect, bind, listen, accept, sendto, sendmsg; (v)fork, clone, clone3, execve(at);
# kill and its kin; ptrace, process_vm_*, pidfd_*; mount, unshare, setns; keys, bpf, perf, io_uring.
_REFUSED_CALLS: dict[str, tuple[int, tuple[int, ...]]] = {
    "x86_64": (
        0xC000003E,
        (
            *(41, 53, 42, 49, 50, 43, 44, 46, 57, 58, 56, 435, 59, 322, 62, 200, 234, 129, 101, 310, 311, 424, 434),
            *(438, 165, 272, 308, 248, 249, 250, 321, 298, 425),
        ),
    ),
    "aarch64": (
        0xC00000B7,
        (
            *(198, 199, 203, 200, 201, 202, 206, 211, 220, 435, 221, 281, 129, 130, 131, 138, 117, 270, 271, 424),
            *(434, 438, 40, 97, 268, 217, 218, 219, 280, 241, 425),
        ),
    ),
}
_X32 = 0x40000000
"""Bit of the x32 calls, which have other numbers."""

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_ALL = (1 << 13) - 1
"""Every right to files of Landlock's first version."""
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3

_SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache")
"""What extension modules of the standard library are linked with. The audit hook does not open them to Python."""


def _kernel_filters(readable: Sequence[str], listable: Sequence[str]) -> None:
    """Namespaces, Landlock, seccomp: each where the kernel has it and lets us."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    # Within a container unshare is often forbidden; seccomp below stops sockets there.
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWIPC):
        libc.unshare(_CLONE_NEWNET)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        _landlock(ctypes, libc, readable, listable)
        _seccomp(ctypes, libc)
    # Whoever imports it again asks the audit hook.
    for name in [name for name in sys.modules if name.partition(".")[0] in ("ctypes", "_ctypes")]:
        del sys.modules[name]


def _landlock(ctypes: Any, libc: Any, readable: Sequence[str], listable: Sequence[str]) -> None:
    handled = ctypes.c_uint64(_LANDLOCK_ALL)
    ruleset = libc.syscall(_LANDLOCK_CREATE, ctypes.byref(handled), ctypes.sizeof(handled), 0)
    if ruleset < 0:
        return
    rules = [(path, _READ_FILE | _READ_DIR) for path in (*readable, *_SYSTEM_LIBRARIES)]
    rules += [(path, _READ_DIR) for path in listable]
    for path, rights in rules:
        try:
            beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        rights = rights if os.path.isdir(path) else _READ_FILE  # noqa: PTH112 - no pathlib in the sandbox
        # struct landlock_path_beneath_attr is packed: u64 rights, s32 descriptor.
        rule = struct.pack("=Qi", rights, beneath)
        libc.syscall(_LANDLOCK_ADD, ruleset, 1, ctypes.c_char_p(rule), 0)
        os.close(beneath)
    libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)


def _seccomp(ctypes: Any, libc: Any) -> None:
    machine = os.uname().machine
    if machine not in _REFUSED_CALLS:
        return
    arch, refused = _REFUSED_CALLS[machine]
    load, equal, at_least, end = 0x20, 0x15, 0x35, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_JMP|JGE|K, BPF_RET|K
    refuse, allow = 0x00050000 | 1, 0x7FFF0000  # SECCOMP_RET_ERRNO with EPERM, SECCOMP_RET_ALLOW
    count = len(refused)
    program = [(load, 0, 0, 4), (equal, 0, count + 3, arch), (load, 0, 0, 0), (at_least, count + 1, 0, _X32)]
    program += [(equal, count - index, 0, number) for index, number in enumerate(refused)]
    program += [(end, 0, 0, allow), (end, 0, 0, refuse)]
    raw = b"".join(
        code.to_bytes(2, sys.byteorder) + bytes((yes, no)) + k.to_bytes(4, sys.byteorder)
        for code, yes, no, k in program
    )
    buffer = ctypes.create_string_buffer(raw, len(raw))
    fprog = struct.pack("@HP", len(program), ctypes.addressof(buffer))
    libc.prctl(_PR_SET_SECCOMP, 2, ctypes.c_char_p(fprog), 0, 0)


# -- Python --------------------------------------------------------------------------------------------------------

_REFUSED_EVENTS = (
    ("socket.", "the network"),
    ("subprocess.", "other programs"),
    ("os.system", "other programs"),
    ("os.exec", "other programs"),
    ("os.spawn", "other programs"),
    ("os.posix_spawn", "other programs"),
    ("os.startfile", "other programs"),
    ("os.fork", "other processes"),
    ("pty.", "other processes"),
    ("os.kill", "other processes"),
    ("signal.pthread_kill", "other processes"),
    ("ctypes.", "native code"),
    ("code.__new__", "native code"),
    ("gc.", "the interpreter's memory"),
    ("sys.settrace", "tracing"),
    ("sys.setprofile", "tracing"),
    ("sqlite3.", "files"),
    ("fcntl.", "files"),
    ("tempfile.", "writing files"),
    ("shutil.", "writing files"),
    ("os.remove", "writing files"),
    ("os.rename", "writing files"),
    ("os.rmdir", "writing files"),
    ("os.mkdir", "writing files"),
    ("os.link", "writing files"),
    ("os.symlink", "writing files"),
    ("os.chmod", "writing files"),
    ("os.chown", "writing files"),
    ("os.truncate", "writing files"),
    ("os.utime", "writing files"),
    ("os.setxattr", "writing files"),
    ("os.chroot", "files"),
)
"""Beginnings of audit events, and what they are refused as."""

_NATIVE_MODULES = frozenset(("ctypes", "_ctypes", "cffi", "_cffi_backend", "_posixsubprocess", "readline", "dbm"))
"""Modules that reach the system without an audit event."""

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _hook(readable: list[str], listable: list[str]) -> Callable[[str, tuple[Any, ...]], None]:
    # All that the hook needs is bound here: what a spec file does to this module or to builtins changes nothing.
    roots = tuple(path.rstrip("/") + "/" for path in readable)
    shown = frozenset(path.rstrip("/") + "/" for path in listable)
    repository = roots[0]
    refused = dict(_REFUSED_EVENTS)
    starts, native, writing = tuple(refused), _NATIVE_MODULES, _WRITING
    realpath, fsdecode, error, instance, integer = os.path.realpath, os.fsdecode, NotAllowedError, isinstance, int

    def resolve(path: Any) -> str:
        found: str = realpath(fsdecode("." if path is None else path))
        return found + "/"

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            if instance(path, integer):
                return  # a descriptor that is open already
            if instance(flags, integer) and flags & writing:
                raise error("writing files is not allowed in a spec file")
            if not resolve(path).startswith(roots):
                raise error(f"reading `{fsdecode(path)}` is not allowed in a spec file: it is not in the repository")
        elif event in ("os.listdir", "os.scandir"):
            if not instance(args[0], integer) and not (resolve(args[0]).startswith(roots) or resolve(args[0]) in shown):
                raise error("listing directories outside of the repository is not allowed in a spec file")
        elif event == "import":
            name, file = args[0], args[1]
            if name.partition(".")[0] in native or (file is not None and resolve(file).startswith(repository)):
                raise error(f"importing `{name}` is not allowed in a spec file")
        elif event == "object.__setattr__":
            if args[1] == "__code__":
                raise error("changing code is not allowed in a spec file")
        elif event.startswith(starts):
            for start, what in refused.items():
                if event.startswith(start):
                    raise error(f"a spec file may not use {what}")

    return audit
