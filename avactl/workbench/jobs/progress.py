"""Progress of a job: of an elastic one as its master writes it into an annotation, of others as scripts print it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from avactl.base.terminal import amount_text
from avactl.contracts import names
from avactl.contracts.document import DocumentError, load
from avactl.contracts.elastic import DatasetProgress, ElasticProgress
from avactl.workbench.step_progress import StepProgress


class JobProgress(NamedTuple):
    """Progress of a job, at a time."""

    master: ElasticProgress
    """Progress as the job's master has written it, or as much of it as is known without one."""
    steps: StepProgress | None = None
    """Progress that the script printed, if there is none in datasets."""

    @property
    def training(self) -> list[DatasetProgress]:
        """Datasets that are not for evaluation."""
        return [data for data in self.master.datasets if not data.after]

    @property
    def fraction(self) -> float | None:
        """Part of all records of all epochs that is done, 0 to 1; None if nothing is declared yet."""
        if self.steps is not None:
            return self.steps.fraction
        total = sum(data.size * data.epochs for data in self.training)
        return min(1.0, sum(data.records for data in self.training) / total) if total else None

    @property
    def remaining(self) -> float | None:
        """Seconds until all records are done, at the current speed; None if it is unknown."""
        if self.steps is not None:
            return self.steps.remaining
        if self.master.complete:
            return 0.0
        total = sum(data.size * data.epochs for data in self.training)
        left = max(0, total - sum(data.records for data in self.training))
        return left / self.master.speed if self.master.speed and total else None

    @property
    def epoch(self) -> tuple[int, int]:
        """The current epoch, from 1, and the number of epochs; 0 if unknown."""
        if self.steps is not None:
            return self.steps.epoch, self.steps.epochs
        return next(((min(data.epoch + 1, data.epochs), data.epochs) for data in self.training if data.epochs), (0, 0))

    @property
    def rate(self) -> str:
        """Records per second, or steps with their unit; empty if it is unknown."""
        if self.master.speed is not None:
            return amount_text(self.master.speed)
        return "" if self.steps is None else self.steps.rate

    @property
    def loss(self) -> float | None:
        """Newest value of the metric."""
        if self.master.curve:
            return self.master.curve[-1][1]
        for data in self.training:
            if self.master.metric in data.metrics:
                return data.metrics[self.master.metric]
        return None

    def as_json(self) -> dict[str, Any]:
        """Return the progress for programs."""
        told = {name: getattr(self.master, name) for name in ElasticProgress.model_fields}
        return {
            **told,
            "replaced": [worker.model_dump() for worker in self.master.replaced],
            "datasets": [dataset.model_dump() for dataset in self.master.datasets],
            "steps": None if self.steps is None else self.steps._asdict(),
            "fraction": self.fraction,
            "remaining": self.remaining,
            "loss": self.loss,
        }


def read_progress(metadata: Mapping[str, Any]) -> JobProgress | None:
    """Return the progress in an object's annotation; None without one, or if it is malformed."""
    try:
        return JobProgress(load(ElasticProgress, (metadata.get("annotations") or {}).get(names.PROGRESS)))
    except DocumentError:
        return None
