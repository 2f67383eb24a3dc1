"""A worker of PyTorch that makes 10 steps; with $STOP, it stops itself inside the third sum of gradients."""

from __future__ import annotations

import os
import signal

import avactl_worker
import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]
from avactl_worker.torch import average
from avactl_worker.torch import group as torch_group

real, calls = dist.all_reduce, 0


def all_reduce(*values: object, **options: object) -> object:
    global calls
    calls += 1
    if "STOP" in os.environ and calls == 4:  # the first one is of the set-up
        os.kill(os.getpid(), signal.SIGSTOP)
    return real(*values, **options)


dist.all_reduce = all_reduce
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with avactl_worker.connect() as master:
    group = torch_group(master, [model, optimizer], least=1 if os.environ.get("STOP") is None else 2)
    for step in group.steps(10):
        with step:
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            average(step, model.parameters())
            optimizer.step()
            print(f"step {step.number} of {group.size}", flush=True)
