"""The Jobs of a pipeline's run: what they say, and starting and removing them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from avactl import names
from avactl.delivery.config import Pipeline
from avactl.delivery.decide import STEPS, Job, Start, Status, Step
from avactl.delivery.validation import MAX_TEXT
from avactl.errors import HintedError
from avactl.kube.client import ApiError, Client, list_all

Body = dict[str, Any]
_ENDED: dict[str, Status] = {"Complete": "succeeded", "Failed": "failed"}
_LABEL = "batch.kubernetes.io/controller-uid"


class MissingTemplateError(HintedError):
    """A CronJob of the pipeline, from which its Jobs are made, does not exist."""


class Jobs:
    """The Jobs of one pipeline."""

    def __init__(self, client: Client, pipeline: Pipeline) -> None:
        self._client, self._pipeline = client, pipeline
        base = f"/namespaces/{pipeline.namespace}"
        self._jobs, self._templates = f"/apis/batch/v1{base}/jobs", f"/apis/batch/v1{base}/cronjobs"
        self._pods = f"/api/v1{base}/pods"

    def names_of(self, step: Step) -> tuple[str, ...]:
        """Return the names of a step's Jobs, which are those of their templates."""
        own = self._pipeline
        return {"train": own.train, "stage": (own.stage,), "validate": (own.validate,), "seal": (own.seal,)}[step]

    async def look(self) -> dict[Step, Job]:
        """Return the state of each step that has Jobs. Raises ApiError and UnreachableError."""
        query = {"labelSelector": f"{names.PIPELINE}={self._pipeline.name}", "limit": "500"}
        found = {each["metadata"]["name"]: each for each in await list_all(self._page, query)}
        steps: dict[Step, Job] = {}
        for step in STEPS:
            own = [found[name] for name in self.names_of(step) if name in found]
            if own:
                job = await self._step(own, len(self.names_of(step)))
                if job is not None:
                    steps[step] = job
        return steps

    async def _page(self, query: Mapping[str, str]) -> Any:
        return await self._client.page(self._jobs, query)

    async def _step(self, jobs: list[Body], wanted: int) -> Job | None:
        """Return the state of a step; None if Jobs of it are still to be created."""
        runs = [_run(job) for job in jobs]
        if any("deletionTimestamp" in job["metadata"] for job in jobs):
            # It counts until its pods are gone, too.
            return Job(runs[0], "running")
        if len(set(runs)) > 1:
            return Job(min(runs), "running")  # Jobs of an old run beside those of a new one: they go first
        results = [(job, *_result(job)) for job in jobs]
        failed = next(((job, why) for job, status, why in results if status == "failed"), None)
        if failed is not None:
            said = await self._message(failed[0], "Failed")
            return Job(runs[0], "failed", f"{failed[1]}: {said}" if said else failed[1])
        leading = [(job, status) for job, status, _ in results if _leads(job)]
        if len(jobs) < wanted:
            return None
        # The others, such as parameter servers, have followers that end them.
        if all(status == "succeeded" for _, status in leading or [(job, status) for job, status, _ in results]):
            return Job(runs[0], "succeeded", await self._message(jobs[0], "Succeeded") if wanted == 1 else "")
        return Job(runs[0], "running")

    async def _message(self, job: Body, phase: str) -> str:
        """Return the text that the newest pod of a Job with this phase has written; "" if there is none."""
        query = {"labelSelector": f"{_LABEL}={job['metadata']['uid']}", "limit": "500"}

        async def page(asked: Mapping[str, str]) -> Any:
            return await self._client.page(self._pods, asked)

        pods = [pod for pod in await list_all(page, query) if (pod.get("status") or {}).get("phase") == phase]
        pods.sort(key=lambda pod: str(pod["metadata"].get("creationTimestamp")), reverse=True)
        for pod in pods:
            status = pod["status"]
            for each in [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]:
                ended = (each.get("state") or {}).get("terminated") or {}
                if ended.get("message") and (phase == "Succeeded" or ended.get("exitCode")):
                    # Beyond the limit of Kubernetes, a text is not from the kubelet.
                    return str(ended["message"])[: MAX_TEXT + 1]
        return ""

    async def start(self, start: Start, keep: Iterable[str]) -> None:
        """Create the Jobs of a step that do not exist, from their templates.

        `keep`: numbers of versions that publishing does not remove. Raises ApiError, UnreachableError and
        MissingTemplateError.
        """
        await asyncio.gather(*(self._create(name, start, ",".join(keep)) for name in self.names_of(start.step)))

    async def _create(self, name: str, start: Start, keep: str) -> None:
        try:
            template = await self._client.request("GET", f"{self._templates}/{name}")
        except ApiError as error:
            if error.status == 404:
                raise MissingTemplateError(
                    f"CronJob {self._pipeline.namespace}/{name} does not exist", "are the specs applied?"
                ) from None
            raise
        try:
            await self._client.send("POST", self._jobs, _job(template, name, start, keep))
        except ApiError as error:
            if error.reason != "AlreadyExists":  # made before a crash
                raise

    async def remove(self, step: Step) -> None:
        """Delete the Jobs of a step; they are gone once their pods are. Raises ApiError and UnreachableError."""
        for name in self.names_of(step):
            try:
                await self._client.send("DELETE", f"{self._jobs}/{name}", {"propagationPolicy": "Foreground"})
            except ApiError as error:
                if error.status != 404:
                    raise


def _job(template: Body, name: str, start: Start, keep: str) -> Body:
    """Return the Job of a template: the number of its run, and what its pods are told."""
    made = template["spec"]["jobTemplate"]
    spec, run = dict(made["spec"]), str(start.run)
    pods = spec["template"]
    notes = {**(pods["metadata"].get("annotations") or {}), names.LIVE_URL: start.live}
    if start.step == "seal":
        notes |= {names.LINEAGE: orjson.dumps(start.lineage, option=orjson.OPT_SORT_KEYS).decode(), names.KEEP: keep}
    labels = {**(pods["metadata"].get("labels") or {}), names.RUN: run}
    spec["template"] = {**pods, "metadata": {**pods["metadata"], "labels": labels, "annotations": notes}}
    metadata = made.get("metadata") or {}
    owner = {
        "apiVersion": "batch/v1", "kind": "CronJob", "name": template["metadata"]["name"],
        "uid": template["metadata"]["uid"], "blockOwnerDeletion": False,
    }  # fmt: skip
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "labels": {**(metadata.get("labels") or {}), names.RUN: run},
            "annotations": metadata.get("annotations") or {},
            # Not its controller: the CronJob controller would count it among its own runs.
            "ownerReferences": [owner],
        },
        "spec": spec,
    }


def _run(job: Body) -> int:
    text = str((job["metadata"].get("labels") or {}).get(names.RUN, ""))
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _result(job: Body) -> tuple[Status, str]:
    """Return the state of a Job, and why it failed."""
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition.get("status") == "True" and condition.get("type") in _ENDED:
            why = " ".join(filter(None, (condition.get("reason"), condition.get("message"))))
            return _ENDED[condition["type"]], f"Job {job['metadata']['name']}: {why}"[:1000]
    return "running", ""


def _leads(job: Body) -> bool:
    """Return True for a Job with which the training ends: its pods have no follower."""
    return all(each["name"] != names.FOLLOWER for each in job["spec"]["template"]["spec"]["containers"])
