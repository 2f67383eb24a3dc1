"""Without what a real node needs, one line says what to do; tests are skipped with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.controlplane import UnavailableError
from tools.realnode import check, requirements
from tools.realnode.requirements import find_obstacle

ROOT = Path(__file__).parents[2]


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("apt-get", "runc", "iptables"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(UnavailableError, match=r"run `apt-get install containerd .*iproute2 util-linux openssl gcc"):
        check()


def test_other_systems_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UnavailableError, match="Debian is needed"):
        check()


def test_root_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: program)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UnavailableError, match="it needs root"):
        check()


@pytest.mark.parametrize(
    ("status", "options", "delegated", "obstacle"),
    [
        (1, "", "", "no namespaces: Operation not permitted"),
        (0, "rw,cpu,memory,pids", None, "no cgroups for cpuset"),
        (0, "rw,nsdelegate", "cpu io\n", "no cgroups for cpuset, memory, pids"),
        (0, "rw,cpu,cpuacct,cpuset,memory,pids", None, None),
        (0, "rw,nsdelegate", "cpuset cpu io memory pids\n", None),
    ],
)
def test_the_kernel_has_to_permit_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    options: str,
    delegated: str | None,
    obstacle: str | None,
) -> None:
    probe = subprocess.CompletedProcess[str]([], status, "", "Operation not permitted\n")
    monkeypatch.setattr(shutil, "which", lambda program: program)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: probe)
    monkeypatch.setattr(requirements, "_read_cgroup_mounts", lambda: [(tmp_path, options.split(","))])
    if delegated is not None:
        (tmp_path / "cgroup.subtree_control").write_text(delegated)
    assert find_obstacle() == obstacle
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


def test_cgroups_have_to_be_writable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None if program == "unshare" else program)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(requirements, "_read_cgroup_mounts", lambda: [(Path("/nowhere"), ["rw"])])
    assert str(find_obstacle()).startswith("no cgroups: [Errno 2] No such file or directory: '/nowhere/")


def test_make_leaves_real_pods_out_with_one_line() -> None:
    """Makefile adds the tests marked `short` where the command prints a word."""
    command = [sys.executable, "-m", "tools.realnode", "--permitted"]
    environment = {**os.environ, "PATH": "/nowhere"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert done.stderr == "no real pods on this machine: it is made of Debian packages, so Debian is needed\n"


def test_tests_are_skipped_with_one_line() -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "CI"))}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n0", "-q", "-m", "e2e", "tests/e2e"]
    done = subprocess.run(
        command, cwd=ROOT, env={**environment, "PATH": "/nowhere"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert len(lines) == 1, done.stdout
    assert lines[0].endswith("real node unavailable: it is made of Debian packages, so Debian is needed")
