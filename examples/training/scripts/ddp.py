"""Data-parallel training with PyTorch, under torchrun."""

from __future__ import annotations

import linear
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        print(f"{size} workers", flush=True)
    torch.set_default_dtype(torch.float64)
    features, targets = (torch.from_numpy(values) for values in linear.data(rank, size))
    layer = torch.nn.Linear(linear.FEATURES, 1, bias=False)
    torch.nn.init.zeros_(layer.weight)
    model = DistributedDataParallel(layer)
    optimizer = torch.optim.SGD(model.parameters(), lr=linear.RATE)
    for epoch in range(linear.EPOCHS):
        optimizer.zero_grad()
        squared_error = (model(features).squeeze(1) - targets).square().sum()
        # DDP averages the gradients of the workers.
        (squared_error * size / linear.RECORDS).backward()
        optimizer.step()
        total = squared_error.detach()
        dist.all_reduce(total)
        if rank == 0:
            linear.show(epoch, total.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
