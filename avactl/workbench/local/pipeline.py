"""A run of a pipeline on one machine: its steps one after the other, with a directory instead of the object store."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from avactl.base.exit_codes import PROBLEMS
from avactl.base.terminal import visible_text
from avactl.contracts import names
from avactl.contracts.delivery import VersionLineage
from avactl.contracts.document import DocumentError, dump, load_file
from avactl.contracts.pod_annotations import LIVE_URL, VERSION_LINEAGE
from avactl.daemons.delivery.publish import LINEAGE
from avactl.daemons.delivery.validation import MetricsError, missed_bounds, parse_metrics
from avactl.kinds.pipeline.lower import build_metric_bound
from avactl.kinds.pipeline.spec import PipelineSpec
from avactl.kinds.pipeline.steps import RESULT_FILE, SEAL, STAGE, VALIDATE, step_name, versions_directory
from avactl.kinds.pipeline.training import RUN, checkpoint_directory, job_of
from avactl.kinds.training.local import local_run
from avactl.program.local_run import LocalRole, LocalRun
from avactl.program.manifest import Manifest
from avactl.program.program import Item, Program
from avactl.workbench.local.errors import LocalUsageError
from avactl.workbench.local.start import lock_run_directory, run_in

STORE = "store"
"""Directory of the published versions and checkpoints, below that of the run."""
_METRICS_FILE = "metrics.json"
Body = dict[str, Any]


def run_pipeline(
    item: Item[PipelineSpec], program: Program, manifests: Iterable[Manifest], checkout: Path, given: Mapping[str, str]
) -> int:
    """Train, stage, validate and publish once; return the exit code: 1 if the model misses a bound.

    Checkpoints and versions are in directories, which the next run finds: its live version is the last one that was
    published. Raises LocalRunError and LocalUsageError, before anything is started.
    """
    job = job_of(item, run=True)
    if job is None:
        raise LocalUsageError(
            f"{item} publishes from the job `{item.spec.train.job}`, which runs without end",
            "run that job here; only pipelines with `train.template` run as a whole",
        )
    own = [each for each in manifests if each.item is item]
    with lock_run_directory(item, checkout) as where:
        shutil.rmtree(where / "pods", ignore_errors=True)
        run = _PipelineRun(item, program, own, where)
        steps: list[tuple[str, Item, LocalRun]] = [
            ("train", job, local_run(job)),
            *((step, item, _single_run(item, step)) for step in (STAGE, VALIDATE, SEAL)),
        ]
        print(f"{item}: run {run.number}, live: {run.live or 'none'}, in {run.store}")
        for step, of, how in steps:
            if step == SEAL and (code := run.judge()):
                return code
            code = run_in(where, f"{item}, {step}", of, how, run.objects(), checkout, given)
            if code:
                return code
        print(f"{item}: published version {run.number} in {run.versions / str(run.number)}")
        return 0


def _single_run(item: Item[PipelineSpec], step: str) -> LocalRun:
    return LocalRun(
        [LocalRole(step, step_name(item, step), leads=True, replicas=1)],
        data=[(mount.mount, mount.name) for mount in item.spec.validation.datasets] if step == VALIDATE else [],
    )


class _PipelineRun:
    """One run: what its pods are told, and what they have told."""

    def __init__(self, item: Item[PipelineSpec], program: Program, manifests: list[Manifest], where: Path) -> None:
        self._item, self._manifests = item, manifests
        self.store = where / STORE
        self.versions, saved = self.store / "published", self.store / "training"
        self.versions.mkdir(parents=True, exist_ok=True)
        self._result = where / _METRICS_FILE
        known = [int(path.name) for path in self.versions.iterdir() if path.name.isdecimal()]
        sealed = [number for number in known if (self.versions / str(number) / LINEAGE).exists()]
        self.number = max(known, default=0) + 1
        self.live = str(self.versions / str(max(sealed))) if sealed else ""
        self._live_metrics = _read_metrics(Path(self.live) / LINEAGE) if sealed else None
        self._measured: Mapping[str, float] = {}
        source = checkpoint_directory(item, program)
        assert source is not None
        # Longer ones first: one may contain the other's beginning.
        places = {versions_directory(item): str(self.versions), source.removesuffix(f"/{RUN}"): str(saved)}
        self._places = sorted(places.items(), key=lambda each: -len(each[0]))

    def objects(self) -> list[Manifest]:
        """Return the objects with Jobs instead of their templates, and local paths, for one step."""
        self._result.write_text("", encoding="utf-8")  # each pod has a file of its own
        return [self._localize(each) for each in self._manifests]

    def _localize(self, manifest: Manifest) -> Manifest:
        body = manifest.body
        if manifest.kind == "CronJob":
            made = body["spec"]["jobTemplate"]
            pods = made["spec"]["template"]
            labels = {**pods["metadata"]["labels"], names.RUN: str(self.number)}
            notes = {**pods["metadata"]["annotations"], LIVE_URL.name: self.live}
            if VERSION_LINEAGE.name in notes:
                notes[VERSION_LINEAGE.name] = dump(VersionLineage(run=self.number, metrics=self._measured))
            template = {**pods, "metadata": {**pods["metadata"], "labels": labels, "annotations": notes}}
            body = {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": body["metadata"],
                "spec": {"completions": 1, **made["spec"], "template": template},
            }
        text = json.dumps(body).replace(RESULT_FILE, str(self._result))
        for url, path in self._places:
            text = text.replace(url, path)
        return Manifest(manifest.item, manifest.cluster, json.loads(text))

    def judge(self) -> int:
        """Print what the validation has measured, and return 0 if the model passes."""
        bounds = [build_metric_bound(metric) for metric in self._item.spec.validation.metrics]
        try:
            measured = parse_metrics(self._result.read_text(encoding="utf-8", errors="replace"))
        except MetricsError as error:
            print(f"{self._item}: {error}; the validation writes them to the file $AVACTL_METRICS")
            return PROBLEMS
        self._measured = measured.values
        for name, value in sorted(measured.values.items()):
            before = measured.live.get(name, (self._live_metrics or {}).get(name))
            print(visible_text(f"  {name} {value:.6g}" + ("" if before is None else f" (live {before:.6g})")))
        missed = missed_bounds(bounds, measured, self._live_metrics)
        for each in missed:
            print(visible_text(f"  missed: {each}"))
        if missed:
            print(f"{self._item}: run {self.number} is not published")
        return PROBLEMS if missed else 0


def _read_metrics(file: Path) -> Mapping[str, float]:
    try:
        return load_file(VersionLineage, file).metrics
    except (OSError, DocumentError):
        return {}
