"""Worker library of avactl's elastic jobs: data in tasks from the job's master, and synchronous steps.

    import avactl_worker

    master = avactl_worker.connect()
    data = master.dataset("train", [("a.npy", 50_000), ("b.npy", 50_000)], records_per_task=500, epochs=3, seed=7)
    for task in data:
        train(load(task.file)[task.start : task.end])

Workers may come and go, and so may the master; each record is counted once an epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from avactl_worker.progress import report

if TYPE_CHECKING:
    from avactl_worker.dataset import Dataset, Task
    from avactl_worker.group import Group
    from avactl_worker.manifest import ManifestError, records
    from avactl_worker.master import Clock, Master, connect
    from avactl_worker.session import MasterError
    from avactl_worker.shards import RecordError, read_records
    from avactl_worker.step import Step

__all__ = [
    "Clock",
    "Dataset",
    "Group",
    "ManifestError",
    "Master",
    "MasterError",
    "RecordError",
    "Step",
    "Task",
    "connect",
    "read_records",
    "records",
    "report",
]

__version__ = "0.1.0"

_MODULES = {
    "Clock": "master",
    "Dataset": "dataset",
    "Group": "group",
    "ManifestError": "manifest",
    "Master": "master",
    "MasterError": "session",
    "RecordError": "shards",
    "Step": "step",
    "Task": "dataset",
    "connect": "master",
    "read_records": "shards",
    "records": "manifest",
}


def __getattr__(name: str) -> Any:
    """Import what needs gRPC on first use: images that only check their nodes or save checkpoints may lack it."""
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"avactl_worker.{_MODULES[name]}"), name)
