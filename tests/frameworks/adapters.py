"""The worker library's adapters in the Python of the frameworks: `python adapters.py FUNCTION MASTER`.

The dataset has two files, of which record 7 is 7.0.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

import avactl_worker
import grpc
from avactl_worker import messages
from avactl_worker.dataset import Dataset

STARTS = {"a": 0, "b": 50}
SIZES = [("a", 50), ("b", 30)]
EPOCHS = 2
RECORDS = [*range(80)] * EPOCHS


class Job:
    """A dataset, and what its master says of it."""

    def __init__(self, address: str, data: Dataset[Any]) -> None:
        self.address, self.data = address, data

    def status(self) -> dict[str, Any]:
        with grpc.insecure_channel(self.address) as channel:
            raw = channel.unary_unary(messages.STATUS)(messages.StatusRequest().encode(), wait_for_ready=True)
        dataset: dict[str, Any] = json.loads(messages.StatusAnswer.decode(raw).json)["datasets"][0]
        return dataset

    def count_records(self) -> int:
        return int(self.status()["records"])


def torch_iterable_dataset(job: Job) -> None:
    loading = import_module("torch.utils.data")
    dataset = import_module("avactl_worker.torch").IterableDataset(job.data)
    loader = loading.DataLoader(dataset, batch_size=16)
    records: list[float] = []
    for _ in job.data.passes():
        for batch in loader:
            assert job.count_records() <= len(records)
            records += batch.tolist()
            job.data.trained(len(batch), loss=1.0)
    assert sorted(records) == sorted(map(float, RECORDS))
    assert job.count_records() == len(RECORDS)
    refusal = ""
    try:
        list(loading.DataLoader(dataset, num_workers=1))
    except RuntimeError as error:
        refusal = str(error)
    assert "with processes, use Sampler" in refusal


def torch_sampler_with_processes(job: Job) -> None:
    loading = import_module("torch.utils.data")
    sampler = import_module("avactl_worker.torch").Sampler(job.data)
    loader = loading.DataLoader(range(1000, 1080), batch_size=16, sampler=sampler, num_workers=2)
    records: list[int] = []
    for _ in job.data.passes():
        for batch in loader:
            assert job.count_records() <= len(records)
            records += batch.tolist()
            job.data.trained(len(batch))
    assert sorted(records) == sorted(1000 + record for record in RECORDS)
    assert job.count_records() == len(RECORDS)


def tensorflow_dataset_and_callback(job: Job) -> None:
    tf = import_module("tensorflow")
    adapters = import_module("avactl_worker.tensorflow")
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    values = adapters.dataset(job.data, tf.TensorSpec((), tf.float32))
    batches = values.map(lambda x: (x[None] / 80.0, x[None] / 80.0)).batch(16)
    passes = 0
    for _ in job.data.passes():
        model.fit(batches, callbacks=[adapters.Trained(job.data, batch_size=16)], verbose=0)
        passes += 1
    assert passes >= EPOCHS
    assert job.count_records() == len(RECORDS)
    assert "loss" in job.status()["results"][0]["metrics"]


def read(file: str, start: int, end: int) -> list[float]:
    return [float(STARTS[file] + index) for index in range(start, end)]


def main(function: str, address: str) -> None:
    with avactl_worker.connect(address) as master:
        globals()[function](Job(address, master.dataset("train", SIZES, 7, epochs=EPOCHS, seed=1, read=read)))


if __name__ == "__main__":
    main(*sys.argv[1:])
