"""Training with PyTorch that goes on from its last checkpoint."""

from __future__ import annotations

import linear
import torch
from avactl_worker.checkpoint import Checkpoints


def main() -> None:
    torch.set_default_dtype(torch.float64)
    features, targets = (torch.from_numpy(values) for values in linear.data())
    model = torch.nn.Linear(linear.FEATURES, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=linear.RATE)
    with Checkpoints(model=model, optimizer=optimizer) as checkpoints:
        start = checkpoints.restore()
        print(f"from epoch {start}", flush=True)
        for epoch in range(start, linear.EPOCHS):
            optimizer.zero_grad()
            squared_error = (model(features).squeeze(1) - targets).square().sum()
            (squared_error / linear.RECORDS).backward()
            optimizer.step()
            linear.show(epoch, squared_error.item())
            checkpoints.step(epoch + 1)
        checkpoints.save(linear.EPOCHS)


if __name__ == "__main__":
    main()
