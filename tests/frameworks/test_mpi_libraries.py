"""Open MPI 5, MPICH and Intel MPI start ranks on workers without ssh, through the compiled agents and scripts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from avactl.kinds.training import followers, mpi
from tests.kinds.on_base import Objects, objects
from tests.kinds.training import HEAD, container, env
from tests.local.running import EXAMPLE, copy_example, local_run, losses, plain_losses, rewrite
from tools.frameworks.build import build_mpi

pytestmark = pytest.mark.frameworks
LIBRARIES = ("openmpi", "mpich", "intel")
EXACT = 2e-6
WORKERS = 2
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
ON_FEW_CORES = {
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "FI_PROVIDER": "tcp",
    "I_MPI_FABRICS": "ofi",
    "I_MPI_PIN": "0",
}


@contextmanager
def workers(found: Objects, folder: Path, caller: dict[str, str]) -> Iterator[None]:
    """The loops of the workers, and between launcher and workers what publisher and followers do."""
    text = container(found, "worker")["command"][2]
    started = []
    for index in range(WORKERS):
        own = folder / f"worker-{index}"
        own.mkdir()
        command = ["sh", "-c", text.replace(followers.DIRECTORY, str(own))]
        started.append(subprocess.Popen(command, env=caller, start_new_session=True))
    ended = threading.Event()

    def publish() -> None:
        while not ended.wait(0.1):
            for index in range(WORKERS):
                source = folder / "launcher" / "commands" / f"w{index}"
                if source.exists():
                    shutil.copy(source, folder / "next")
                    (folder / "next").replace(folder / f"worker-{index}" / "command")

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        yield
    finally:
        ended.set()
        publisher.join()
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.parametrize("library", LIBRARIES)
def test_ranks_start_on_workers(library: str, tmp_path: Path) -> None:
    path = build_mpi(library)
    found = objects(
        HEAD.replace("train.py", "scripts/mpi.py")
        + f"  strategy: mpi\n  mpi: {{implementation: {library}}}\n  slotsPerWorker: 2\n"
        + f"  workers: {{replicas: {WORKERS}}}\n"
    )
    data = found["ConfigMap", "net-rendezvous"]["data"]
    launch, config = tmp_path / "launcher", tmp_path / "config"
    for directory in (launch / "next", launch / "commands", config):
        directory.mkdir(parents=True)
    for name in ("agent", "hostfile"):
        (config / name).write_text(data[name].replace(followers.DIRECTORY, str(launch)))
    (config / "agent").chmod(0o755)
    caller = {"PATH": f"{path}:{os.environ['PATH']}", "HOME": str(tmp_path), **AS_ROOT, **ON_FEW_CORES}
    own = {key: value.replace(mpi.CONFIG, str(config)) for key, value in env(found, "launcher").items()}
    own |= {key: "lo" for key in own if key.endswith("_IFACE")}
    command = container(found, "launcher")["command"]
    with workers(found, tmp_path, caller):
        done = subprocess.run(
            command, cwd=EXAMPLE, env={**caller, **own}, capture_output=True, text=True, check=False, timeout=120
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{2 * WORKERS} ranks\n" in done.stdout
    assert losses(done.stdout) == pytest.approx(plain_losses(), abs=EXACT)
    # Each worker got its own command.
    assert [(tmp_path / f"worker-{index}" / "started").exists() for index in range(WORKERS)] == [True] * WORKERS


@pytest.mark.parametrize("library", LIBRARIES)
def test_local_runs(library: str, tmp_path: Path) -> None:
    training = copy_example(tmp_path)
    rewrite(training, "mpi", "  strategy: mpi\n", f"  strategy: mpi\n  mpi: {{implementation: {library}}}\n")
    path = f"{build_mpi(library)}:{os.environ['PATH']}"
    done = local_run(training, "jobs/mpi.yaml", PATH=path, **ON_FEW_CORES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "│ 4 ranks\n" in done.stdout
    assert losses(done.stdout) == pytest.approx(plain_losses(), abs=EXACT)
