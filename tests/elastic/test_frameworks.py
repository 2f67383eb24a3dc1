"""The worker library's adapters, with the frameworks if they are installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import avactl_worker
import pytest

from tools.elastic import ElasticJob


@pytest.fixture
def data(tmp_path: Path) -> Iterator[tuple[ElasticJob, Any]]:
    """A dataset of two files, of which record 7 is 7.0."""
    with (
        ElasticJob(tmp_path, workers=0, records=1, records_per_task=1) as job,
        avactl_worker.connect(job.address) as master,
    ):
        starts = {"a": 0, "b": 50}

        def read(file: str, start: int, end: int) -> list[float]:
            return [float(starts[file] + index) for index in range(start, end)]

        yield job, master.dataset("train", [("a", 50), ("b", 30)], 7, epochs=2, seed=1, read=read)


def counted(job: ElasticJob) -> int:
    return int(job.status()["datasets"][0]["records"])


def test_torch_iterable_dataset(data: tuple[ElasticJob, Any]) -> None:
    torch = pytest.importorskip("torch")
    from avactl_worker.torch import IterableDataset

    job, train = data
    loader = torch.utils.data.DataLoader(IterableDataset(train), batch_size=16)
    found: list[float] = []
    for _ in train.passes():
        for batch in loader:
            assert counted(job) <= len(found)
            found += batch.tolist()
            train.trained(len(batch), loss=1.0)
    assert sorted(found) == sorted([float(index) for index in range(80)] * 2)
    assert counted(job) == 160
    with pytest.raises(RuntimeError, match="with processes, use Sampler"):
        list(torch.utils.data.DataLoader(IterableDataset(train), num_workers=1))


def test_torch_sampler_with_processes(data: tuple[ElasticJob, Any]) -> None:
    torch = pytest.importorskip("torch")
    from avactl_worker.torch import Sampler

    job, train = data
    loader = torch.utils.data.DataLoader(range(1000, 1080), batch_size=16, sampler=Sampler(train), num_workers=2)
    found: list[int] = []
    for _ in train.passes():
        for batch in loader:
            assert counted(job) <= len(found)
            found += batch.tolist()
            train.trained(len(batch))
    assert sorted(found) == sorted([*range(1000, 1080)] * 2)
    assert counted(job) == 160


def test_tensorflow_dataset_and_callback(data: tuple[ElasticJob, Any]) -> None:
    tf = pytest.importorskip("tensorflow")
    from avactl_worker.tensorflow import Trained, dataset

    job, train = data
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    batches = dataset(train, tf.TensorSpec((), tf.float32)).map(lambda x: (x[None] / 80.0, x[None] / 80.0)).batch(16)
    seen = 0
    for _ in train.passes():
        model.fit(batches, callbacks=[Trained(train, batch_size=16)], verbose=0)
        seen += 1
    assert seen >= 2
    assert counted(job) == 160
    assert "loss" in job.status()["datasets"][0]["results"][0]["metrics"]
