"""Synchronous training with PyTorch by workers that come and go."""

from __future__ import annotations

import avactl_worker
import linear
import torch
from avactl_worker.torch import average
from avactl_worker.torch import group as torch_group


def main() -> None:
    torch.set_default_dtype(torch.float64)
    model = torch.nn.Linear(linear.FEATURES, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=linear.RATE)
    with avactl_worker.connect() as master:
        group = torch_group(master, [model, optimizer])
        for step in group.steps(linear.EPOCHS):
            with step:
                features, targets = map(torch.from_numpy, linear.data(group.rank, group.size))
                optimizer.zero_grad()
                squared_error = (model(features).squeeze(1) - targets).square().sum()
                # The mean over workers of `size` times their parts is the sum over all records.
                (squared_error * group.size / linear.RECORDS).backward()
                (mean,) = average(step, model.parameters(), squared_error.detach())
                optimizer.step()
                if group.rank == 0:
                    linear.show(step.number - 1, mean * group.size)
        if group.leader:
            print(f"{group.size} workers at the end, sum of weights {model.weight.sum().item():.6f}", flush=True)


if __name__ == "__main__":
    main()
