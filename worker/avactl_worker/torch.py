"""PyTorch: datasets for `torch.utils.data.DataLoader`, and synchronous steps (`avactl_worker.torch_group`)."""

from __future__ import annotations

from typing import Any, Iterator

import torch.utils.data  # type: ignore[import-not-found,unused-ignore]

from avactl_worker.dataset import Dataset
from avactl_worker.torch_group import average, group

__all__ = ["IterableDataset", "Sampler", "average", "group"]


class IterableDataset(torch.utils.data.IterableDataset):  # type: ignore[misc,unused-ignore]
    """Records of a dataset that has a `read` function. Count what was trained:

        loader = DataLoader(IterableDataset(data), batch_size=32)
        for epoch in data.passes():
            for batch in loader:
                train(batch)
                data.trained(len(batch))

    One pass of the loader ends when this worker gets no more tasks of the epoch. The loader must not have processes:
    see `Sampler` for these.
    """

    def __init__(self, data: Dataset[Any]) -> None:
        super().__init__()
        self._data = data

    def __iter__(self) -> Iterator[Any]:
        if torch.utils.data.get_worker_info() is not None:
            raise RuntimeError("IterableDataset needs DataLoader(num_workers=0); with processes, use Sampler")
        return self._data.stream()


class Sampler(torch.utils.data.Sampler):  # type: ignore[misc,unused-ignore]
    """Indices of records for a map-style dataset, whose loader may have processes. Files are in the declared order.

        loader = DataLoader(images, batch_size=32, sampler=Sampler(data), num_workers=8)

    Loop and count as with `IterableDataset`; `data` needs no `read` function.
    """

    def __init__(self, data: Dataset[Any]) -> None:
        self._data = data

    def __iter__(self) -> Iterator[int]:
        offsets = self._data.offsets()
        return self._data.stream(lambda file, start, end: range(offsets[file] + start, offsets[file] + end))
