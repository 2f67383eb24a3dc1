"""Attacks of a spec file on what is outside of its sandbox. The test copies this file into a repository and runs it.

Each function succeeds without a sandbox, which the test checks too, and raises an exception within one.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import io
import json
import os
import posixpath
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

native: Any
try:
    import ctypes as native
except PermissionError:  # the audit hook is there: attacks by raw system calls fail here already
    native = None

GIVEN: dict[str, Any] = json.loads(Path("given.json").read_text())
CANARY, PARENT, SIBLING, VICTIM = GIVEN["canary"], GIVEN["parent"], GIVEN["sibling"], GIVEN["victim"]
DIRECTORY, NEW = posixpath.dirname(CANARY), posixpath.dirname(CANARY) + "/new"
X86 = os.uname().machine == "x86_64"

Attack = Callable[[], object]
KERNEL: dict[str, Attack] = {}
"""Attacks that the kernel's filters stop by themselves."""
HOOK: dict[str, Attack] = {}
"""Attacks on the interpreter: the audit hook alone stops them, and they harm nothing outside."""


def kernel(**attacks: Attack) -> None:
    KERNEL.update(attacks)


def raw(x86_64: int, aarch64: int, *arguments: Any) -> int:
    """Make a system call without any function of the C library or Python before it."""
    libc = native.CDLL(None, use_errno=True)
    result = libc.syscall(x86_64 if X86 else aarch64, *arguments)
    if result < 0:
        raise OSError(native.get_errno(), "raw")
    return int(result)


def _is_pipe(fd: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(fd).st_mode)
    except OSError:
        return False


ANSWER = next(fd for fd in range(3, 4096) if _is_pipe(fd))


def read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read(4096)


class TwoFaced:
    """A path that is harmless when asked a second time."""

    def __init__(self) -> None:
        self.answers = [CANARY]

    def __fspath__(self) -> str:
        return self.answers.pop() if self.answers else "given.json"


class Text(str):
    """A path that lies about itself."""

    def __str__(self) -> str:
        return "given.json"

    def startswith(self, *_: Any) -> bool:
        return False


@contextlib.contextmanager
def patched(module: ModuleType, **values: Any) -> Iterator[None]:
    before = {name: getattr(module, name) for name in values if hasattr(module, name)}
    vars(module).update({name: values[name] for name in before})
    try:
        yield
    finally:
        vars(module).update(before)


def monkeypatched_realpath() -> bytes:
    root = os.getcwd() + "/given.json"
    lies = {"realpath": lambda *_, **__: root, "_joinrealpath": lambda *_, **__: (root, True)}
    with patched(posixpath, **lies), patched(os, fsdecode=lambda *_: root, fspath=lambda *_: root):
        return read(CANARY)


def monkeypatched_builtins() -> bytes:
    import builtins

    with patched(builtins, isinstance=lambda *_: True, str=lambda *_: "given.json"):
        return read(CANARY)


def subinterpreter() -> None:
    code = f"import os\ndata = open({f'/proc/{PARENT}/environ'!r}, 'rb').read()\nos.write({ANSWER}, data)\n"
    if sys.version_info >= (3, 13):
        inner: Any = importlib.import_module("_interpreters")
        if inner.exec(inner.create(), code) is not None:
            raise PermissionError
    else:
        inner = importlib.import_module("_xxsubinterpreters")
        inner.run_string(inner.create(), code)


def listing(path: str) -> list[str]:
    with os.scandir(path) as entries:
        return [entry.name for entry in entries]


def fork() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def thread() -> None:
    started = threading.Thread(target=str)
    started.start()
    started.join()


def shell() -> None:
    if os.system("true") != 0:
        raise PermissionError


def abstract_socket() -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\0" + GIVEN["abstract"])
        client.send(b"x")


def queued_signal(thread: bool) -> int:
    # struct siginfo: si_signo, si_errno, si_code (SI_QUEUE).
    info = native.create_string_buffer(bytes(native.c_int(18)) + bytes(4) + bytes(native.c_int(-1)), 128)
    return raw(297, 240, SIBLING, SIBLING, 18, info) if thread else raw(129, 138, SIBLING, 18, info)


def own_limit() -> None:
    resource = importlib.import_module("resource")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def shared_memory() -> None:
    raw(31, 195, raw(29, 194, 0, 4096, 0o600), 0, None)


def message_queue() -> None:
    raw(71, 187, raw(68, 186, 0, 0o600), 0, None)


def executable_memory() -> None:
    page = native.create_string_buffer(8192)
    raw(10, 226, native.c_void_p((native.addressof(page) + 4095) & ~4095), native.c_size_t(4096), 7)


def extension_loader() -> ModuleType:
    found: Any = importlib.machinery.PathFinder.find_spec("_ctypes")
    path = found.origin
    loader = importlib.machinery.ExtensionFileLoader("x._ctypes", path)
    return loader.create_module(importlib.machinery.ModuleSpec("x._ctypes", loader, origin=path))


def package_path() -> ModuleType:
    package = ModuleType("x")
    package.__path__ = sys.path
    sys.modules["x"] = package
    return importlib.import_module("x._ctypes")


def through_subclasses() -> Any:
    found: Any = next(c for c in object.__subclasses__() if c.__name__ == "CDLL")
    return found.__init__.__globals__["memmove"]


def replaced_code() -> None:
    def one() -> None: ...
    def two() -> None: ...

    one.__code__ = two.__code__


def sockets(*arguments: int) -> None:
    socket.socket(*arguments).close()


kernel(
    read_open=lambda: read(CANARY),
    read_os_open=lambda: os.open(CANARY, os.O_RDONLY),
    read_two_faced=lambda: io.FileIO(TwoFaced(), "r").read(),
    read_subclass_of_str=lambda: io.FileIO(Text(CANARY)).read(),
    read_open_code=lambda: io.open_code(CANARY).read(),
    read_patched_path=monkeypatched_realpath,
    read_patched_builtins=monkeypatched_builtins,
    read_loader=lambda: importlib.machinery.SourceFileLoader("x", CANARY).get_data(CANARY),
    read_parent_environ=lambda: read(f"/proc/{PARENT}/environ"),
    read_parent_memory=lambda: read(f"/proc/{PARENT}/maps"),
    read_parent_cwd=lambda: os.readlink(f"/proc/{PARENT}/cwd"),
    read_own_memory=lambda: os.open("/proc/self/mem", os.O_RDONLY),
    read_subinterpreter=subinterpreter,
    read_raw=lambda: raw(257, 56, -100, CANARY.encode(), 0),
    list_directory=lambda: os.listdir(DIRECTORY),
    list_scandir=lambda: listing(DIRECTORY),
    list_proc=lambda: os.listdir("/proc"),
    write_open=lambda: open(CANARY, "ab").close(),
    write_create=lambda: open(NEW + "1", "xb").close(),
    write_repository=lambda: open("new", "xb").close(),
    write_raw=lambda: raw(257, 56, -100, CANARY.encode(), os.O_WRONLY),
    write_openat2=lambda: raw(437, 437, -100, CANARY.encode(), native.create_string_buffer(b"\1", 24), 24),
    write_temporary=lambda: raw(257, 56, -100, DIRECTORY.encode(), os.O_TMPFILE | os.O_RDWR, 0o600),
    truncate_open=lambda: raw(2, 56, CANARY.encode(), os.O_TRUNC) if X86 else os.truncate(CANARY, 100),
    truncate=lambda: os.truncate(CANARY, 100),
    truncate_raw=lambda: raw(76, 45, CANARY.encode(), native.c_long(100)),
    chmod=lambda: os.chmod(CANARY, 0o604),
    chmod_descriptor=lambda: os.fchmod(ANSWER, 0o600),
    chown=lambda: os.chown(CANARY, os.getuid(), os.getgid()),
    utime=lambda: os.utime(CANARY, (1, 1)),
    utime_raw=lambda: raw(280, 88, -100, CANARY.encode(), None, 0),
    rename=lambda: os.rename(CANARY + ".a", NEW + "2"),
    unlink=lambda: os.unlink(CANARY + ".b"),
    link=lambda: os.link(CANARY, NEW + "3"),
    symlink=lambda: os.symlink(CANARY, NEW + "4"),
    mkdir=lambda: os.mkdir(NEW + "5"),
    rmdir=lambda: os.rmdir(DIRECTORY + "/empty"),
    mkfifo=lambda: os.mkfifo(NEW + "6"),
    change_directory=lambda: os.chdir(os.getcwd()),
    kill=lambda: os.kill(SIBLING, signal.SIGCONT),
    kill_group=lambda: os.killpg(SIBLING, signal.SIGCONT),
    kill_raw=lambda: raw(62, 129, SIBLING, 18),
    kill_thread=lambda: raw(234, 131, SIBLING, SIBLING, 18),
    kill_queued=lambda: queued_signal(False),
    kill_thread_queued=lambda: queued_signal(True),
    kill_for_good=lambda: os.kill(VICTIM, signal.SIGKILL),
    priority=lambda: os.setpriority(os.PRIO_PROCESS, SIBLING, 5),
    affinity=lambda: os.sched_setaffinity(SIBLING, os.sched_getaffinity(SIBLING)),
    prlimit=lambda: importlib.import_module("resource").prlimit(SIBLING, 7, (32, 32)),
    prlimit_raw=lambda: raw(302, 261, SIBLING, 7, native.create_string_buffer(b"\x10" + bytes(7) + b"\x10", 16), None),
    prlimit_read=lambda: raw(302, 261, SIBLING, 7, None, native.create_string_buffer(16)),
    own_limit=own_limit,
    process_descriptor=lambda: os.close(os.pidfd_open(SIBLING)),
    signal_owner=lambda: importlib.import_module("fcntl").fcntl(ANSWER, 8, SIBLING),
    signal_mode=lambda: importlib.import_module("fcntl").fcntl(ANSWER, 4, os.O_WRONLY),
    signal_ioctl=lambda: importlib.import_module("fcntl").ioctl(ANSWER, 0x5452, bytes(4)),
    lock=lambda: importlib.import_module("fcntl").flock(ANSWER, 8),
    death_signal=lambda: raw(157, 167, 1, 0, 0, 0, 0),
    dumpable=lambda: raw(157, 167, 4, 1, 0, 0, 0),
    fork=fork,
    program=lambda: importlib.import_module("subprocess").run(["/bin/true"], check=True),
    program_spawn=lambda: os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0),
    program_shell=shell,
    thread=thread,
    socket_tcp=lambda: sockets(socket.AF_INET, socket.SOCK_STREAM),
    socket_udp=lambda: sockets(socket.AF_INET, socket.SOCK_DGRAM),
    socket_netlink=lambda: sockets(socket.AF_NETLINK, socket.SOCK_RAW),
    socket_pair=lambda: socket.socketpair()[0].close(),
    socket_abstract=abstract_socket,
    shared_memory=shared_memory,
    message_queue=message_queue,
    memory_file=lambda: os.close(os.memfd_create("x")),
    memory_executable=lambda: importlib.import_module("mmap").mmap(-1, 4096, 34, 7),
    memory_made_executable=executable_memory,
    pipes=lambda: os.close(os.pipe()[0]),
    inotify=lambda: os.close(raw(294, 26, 0)),
    epoll=lambda: importlib.import_module("select").epoll().close(),
    events=lambda: os.close(raw(290, 19, 0, 0)),
    ruleset=lambda: raw(444, 444, None, 0, 1),
    personality=lambda: raw(135, 92, native.c_ulong(0xFFFFFFFF)),
    process_group=lambda: raw(121, 155, SIBLING),
)

HOOK.update(
    extension_loader=extension_loader,
    package_path=package_path,
    ctypes_of_subclasses=through_subclasses,
    objects=lambda: importlib.import_module("gc").get_objects(),
    replaced_code=replaced_code,
    made_code=lambda: listing.__code__.replace(co_name="x"),
    back_door=lambda: importlib.import_module("_xxsubinterpreters" if sys.version_info < (3, 13) else "_interpreters"),
    foreign_extension=lambda: importlib.import_module("_imp").create_dynamic(
        importlib.machinery.ModuleSpec(GIVEN["extension"], None, origin=os.getcwd() + "/extension.so")
    ),
)


def run() -> None:
    """Try all attacks, and write the names of those that succeeded, with the errors of the others."""
    told = {}
    for name, attack in (*KERNEL.items(), *HOOK.items()):
        try:
            attack()
        except BaseException as error:
            told[name] = f"{type(error).__name__}: {error}"[:200]
        else:
            told[name] = ""
    os.write(ANSWER, b"\n" + json.dumps(told).encode() + b"\n")
    os._exit(0)


if __name__ != "tests.source.attacks":
    run()
