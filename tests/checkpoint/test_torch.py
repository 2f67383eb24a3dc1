"""Checkpoints of scripts with torch, in the frameworks' environment."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from avactl_worker.checkpoint.stores import Directory

from tests.checkpoint.test_kills import rounds
from tools.elastic import environment
from tools.frameworks.build import build_environment

pytestmark = pytest.mark.frameworks


def run(script: str, *words: str | Path) -> str:
    """Run a script with torch."""
    command = [build_environment() / "python", "-c", script, *words]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


TRAIN = """
import sys, torch
from avactl_worker.checkpoint import Checkpoints

torch.manual_seed(int(sys.argv[3]))
layers = torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
ema = torch.optim.swa_utils.AveragedModel(model)
with Checkpoints(sys.argv[1], every=1e9, model=model, optimizer=optimizer, scheduler=scheduler, ema=ema) as checkpoints:
    for step in range(checkpoints.restore(), int(sys.argv[2])):
        batch = torch.randn(16, 8)
        loss = (model(batch).sum(1) - batch.sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        ema.update_parameters(model)
        print(step, loss.item())
        checkpoints.step(step + 1)
    checkpoints.save(int(sys.argv[2]))
"""


def test_training_goes_on_exactly(tmp_path: Path) -> None:
    """Parameters, moments, learning rates, averages and random numbers are those of an undisturbed run."""
    whole = run(TRAIN, tmp_path / "whole", "20", "1").splitlines()
    parts = run(TRAIN, tmp_path / "parts", "9", "1") + run(TRAIN, tmp_path / "parts", "20", "2")
    assert parts.splitlines() == whole


KINDS = """
import sys, torch
from avactl_worker.checkpoint import Checkpoints, load

kinds = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float8_e4m3fn]
kinds += [torch.int64, torch.uint8, torch.bool, torch.complex64]
state = {str(kind): torch.arange(24).reshape(2, 3, 4).to(kind) for kind in kinds}
state["transposed"] = state["torch.float32"].T[:, 1]
state["channels last"] = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
state["scalar"], state["empty"] = torch.tensor(2.5), torch.empty(0, 3)
state["parameter"] = torch.nn.Parameter(torch.ones(3))
state["sparse"] = torch.eye(3).to_sparse()
state["conjugate"] = state["torch.complex64"].conj()
state["gradient"] = torch.ones(2, requires_grad=True)
state["tied"] = state["torch.float32"]
with Checkpoints(sys.argv[1], state=state) as checkpoints:
    checkpoints.save(1)
found = load(sys.argv[1])["state"]
assert list(found) == list(state)
for name, value in state.items():
    again = found[name]
    assert type(again) is type(value) and again.dtype == value.dtype and again.shape == value.shape, name
    assert again.requires_grad == value.requires_grad, name
    one, other = (each.detach().to_dense().to(torch.complex64) for each in (again, value))
    assert torch.equal(one, other), name
print(len(found))
"""


def test_kinds_of_tensors(tmp_path: Path) -> None:
    assert run(KINDS, tmp_path) == "18\n"


OVERLAP = """
import sys, threading, torch
from unittest import mock
from avactl_worker.checkpoint import Checkpoints, load, snapshot
from tools.waiting import patience

gate, fill = threading.Event(), snapshot.Block._fill
late = []

def slow(self, sources):
    if sources and threading.current_thread() is not threading.main_thread():
        late.append(len(sources))
        assert gate.wait(patience())
    fill(self, sources)

mock.patch.object(snapshot.Block, "_fill", slow).start()
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

def train(loose=False):
    optimizer.zero_grad()
    model(torch.randn(16, 8)).square().mean().backward()
    if loose:
        with torch.no_grad():
            model[0].bias.add_(1.0)
    release = threading.Timer(0.1, gate.set)
    release.start()
    optimizer.step()
    release.join()
    gate.clear()

train()
with Checkpoints(sys.argv[1], every=0, overlap=True, model=model, optimizer=optimizer) as checkpoints:
    for step in range(1, 4):
        expected = {name: value.clone() for name, value in model.state_dict().items()}
        checkpoints.step(step)
        train()
        checkpoints.wait()
        found = load(sys.argv[1])["model"]
        assert all(torch.equal(found[name], value) for name, value in expected.items()), step
    print("copied later", late)
    checkpoints.step(4)
    train(loose=True)
    checkpoints._writer.wait()
    checkpoints.step(5)
    checkpoints.wait()
    print("then at once", late, sorted(checkpoints._store.steps()))
"""


def test_parameters_are_copied_while_training_goes_on(tmp_path: Path) -> None:
    # Adam has a step, two moments and a parameter for each of four tensors.
    later = [16, 16, 16]
    assert run(OVERLAP, tmp_path).splitlines() == [
        f"copied later {later}",
        f"then at once {[*later, 16]} [2, 3, 5]",
    ]


KILLED = """
import sys, torch
from avactl_worker.checkpoint import Checkpoints

model = torch.nn.ParameterList(torch.zeros(200_000) for _ in range(8))
optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=1e-30)
with Checkpoints(sys.argv[1], keep=2, overlap=True, model=model, optimizer=optimizer) as checkpoints:
    step = checkpoints.restore()
    assert all((each == step).all() for each in model.parameters()), "torn"
    print("restored", step, flush=True)
    while True:
        for each in model.parameters():
            each.grad = -torch.ones_like(each)
        optimizer.step()
        step += 1
        checkpoints.save(step)
"""


def test_kills_while_saving(tmp_path: Path) -> None:
    python = str(build_environment() / "python")
    rounds(tmp_path, 5, seed=3, script=KILLED, python=python)
    steps = Directory(tmp_path).steps()
    with subprocess.Popen(
        [python, "-c", KILLED, tmp_path], env=environment(), stdout=subprocess.PIPE, text=True
    ) as last:
        assert last.stdout is not None
        assert last.stdout.readline() == f"restored {steps[-1]}\n"
        last.kill()


URLS = """
import fsspec, numpy
from unittest import mock
from avactl_worker.checkpoint import CheckpointError, Checkpoints, load

with Checkpoints("memory://bucket/job", keep=2, state={"w": numpy.arange(3)}) as checkpoints:
    assert checkpoints.restore() == 0
    for step in (1, 2, 3):
        checkpoints.save(step)
assert load("memory://bucket/job", 2)["state"]["w"].tolist() == [0, 1, 2]
files = fsspec.filesystem("memory")
print([each.rpartition("/")[2] for each in files.ls("/bucket/job", detail=False)])

def torn(step, snapshot):
    yield b"avactl-checkpt 1"
    raise OSError("the connection was lost")

from avactl_worker.checkpoint import files as format
try:
    with mock.patch.object(format, "chunks", torn):
        with Checkpoints("memory://bucket/job", state={"w": numpy.arange(3)}) as checkpoints:
            checkpoints.save(4)
except CheckpointError as error:
    print(error)
print(len(files.ls("/bucket/job")))

def lost(*_, **__):
    raise OSError("no route to host")

# As after a restore that is terminated at once: the step is there already.
with Checkpoints("memory://bucket/job", state={"w": numpy.arange(3)}) as checkpoints:
    with mock.patch.object(checkpoints._store._files, "open", lost):
        try:
            checkpoints.save(3, wait=True)
        except CheckpointError as error:
            print(error)
print(len(files.ls("/bucket/job")))
files.pipe_file("/bucket/job/step-000000000003.ckpt", b"torn")
again = {}
with Checkpoints("memory://bucket/job", state=again) as checkpoints:
    print(checkpoints.restore(), again["w"].tolist())
"""


def test_object_stores_by_fsspec() -> None:
    assert run(URLS).splitlines() == [
        "['step-000000000002.ckpt', 'step-000000000003.ckpt']",
        "the checkpoint of step 4 could not be written to memory://bucket/job: the connection was lost",
        "2",
        "the checkpoint of step 3 could not be written to memory://bucket/job: no route to host",
        "2",
        "2 [0, 1, 2]",
    ]
