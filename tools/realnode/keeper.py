"""Runs as `python keeper.py FOLDER SHARED CGROUP…`: keeps a node's namespaces for as long as its stdin is open.

It creates the cgroups and forks the first process of new PID, mount and network namespaces, whose PID it prints. When
its owner closes stdin or dies, it kills that process, with which the kernel ends all others of the namespace, and
removes the cgroups and the folder. A program of its own, because a process with threads cannot be forked safely.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET = 0x00020000, 0x20000000, 0x40000000
PR_SET_PDEATHSIG = 1
MNT_DETACH = 2
CGROUP_TIMEOUT = 10.0  # seconds for the kernel to forget the processes of a cgroup

# The kubelet writes these of the whole machine. The node sees files with the values in their place.
TUNABLES = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


def main() -> None:
    """Create everything, print the PID of the node's first process, wait, and remove everything."""
    folder, shared, *groups = map(Path, sys.argv[1:])
    # The end of stdin is its signal.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        for group in groups:
            make_cgroup(group)
        first = _start(folder, shared)
        print(first, flush=True)
        try:
            sys.stdin.read()
        finally:
            os.kill(first, signal.SIGKILL)
            # The kernel reports its end after that of all other processes of the namespace.
            os.waitpid(first, 0)
    finally:
        for group in groups:
            remove_cgroup(group)
        shutil.rmtree(folder, ignore_errors=True)


def make_cgroup(group: Path) -> None:
    """Create a cgroup. In a version 1 cpuset hierarchy it needs CPUs and memory nodes before it takes processes."""
    group.mkdir()
    for name in ("cpuset.cpus", "cpuset.mems"):
        if (group.parent / name).exists():
            (group / name).write_text((group.parent / name).read_text())


def remove_cgroup(group: Path) -> None:
    """Remove a cgroup and those below it; none of them has a living process."""
    deadline = time.monotonic() + CGROUP_TIMEOUT
    while group.exists():
        for path, _, _ in os.walk(group, topdown=False):
            with suppress(OSError):
                Path(path).rmdir()
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)


def _start(folder: Path, shared: Path) -> int:
    _call("unshare", CLONE_NEWPID)
    ready, report = os.pipe()
    first = os.fork()
    if first == 0:
        try:
            os.close(ready)
            _isolate(folder, shared)
            os.write(report, b"ready")
            os.close(report)
            _reap()
        except BaseException as error:
            os.write(report, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(1)
    os.close(report)
    with os.fdopen(ready, "rb") as outcome:
        said = outcome.read().decode()
    if said != "ready":
        os.waitpid(first, 0)
        raise SystemExit(said)
    return first


def _isolate(folder: Path, shared: Path) -> None:
    """Enter new namespaces, whose root is a copy of the machine's: what the node writes is in memory or in `folder`.

    Only `shared` (with `folder` in it) is the same directory on both sides.
    """
    _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != 0 or os.getpid() != 1:
        raise RuntimeError("not the first process of its namespace")
    _call("unshare", CLONE_NEWNS | CLONE_NEWNET)
    _run("mount", "--make-rprivate", "/")
    changes = folder / "changes"
    _run("mount", "-t", "tmpfs", "tmpfs", _made(changes))
    upper, work, root = (_made(changes / name) for name in ("upper", "work", "root"))
    _run("mount", "-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={upper},workdir={work}", root)
    _run("mount", "-t", "proc", "proc", root / "proc")
    for name in ("dev", "sys"):
        _run("mount", "--rbind", f"/{name}", root / name)
    # Fixed paths of containerd and the kubelet.
    _run("mount", "-t", "tmpfs", "tmpfs", root / "run")
    for source, target in ((shared, shared), (folder / "kubelet", "/var/lib/kubelet"), (folder / "log", "/var/log")):
        _run("mount", "--bind", _made(Path(source)), _made(root / str(target).lstrip("/")))
    for name, value in TUNABLES.items():
        own = folder / name.replace("/", ".")
        own.write_text(f"{value}\n")
        _run("mount", "--bind", own, root / "proc/sys" / name)
    os.chdir(root)
    _call("pivot_root", b".", b".")
    _call("umount2", b".", MNT_DETACH)
    os.chdir("/")
    # Mounts made in one pod reach others, and stay in this namespace.
    _run("mount", "--make-rshared", "/")
    _run("ip", "link", "set", "lo", "up")


def _reap() -> None:
    # Blocked, so that none is lost between two calls.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        signal.sigwait({signal.SIGCHLD})


def _made(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")


def _call(function: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{function}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main()
