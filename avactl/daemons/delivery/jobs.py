"""The Jobs of a pipeline's run: what they say, and starting and removing them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from avactl.base.errors import HintedError
from avactl.contracts import names
from avactl.contracts.document import dump
from avactl.contracts.pod_annotations import (
    DEFAULT_CONTAINER,
    KEPT_VERSIONS,
    LIVE_URL,
    REJECTED_OUTPUT,
    VERSION_LINEAGE,
)
from avactl.daemons.delivery.decide import STEPS, PipelineJob, Start, Status, Step
from avactl.daemons.delivery.plans import DeliveredPipeline
from avactl.daemons.delivery.provenance import provenance_of
from avactl.daemons.delivery.validation import MAX_TEXT
from avactl.kube.client import ApiError, Client, list_all

Body = dict[str, Any]
_ENDED: dict[str, Status] = {"Complete": "succeeded", "Failed": "failed"}
_UID, _NAME = "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"
_PAGE, _ANSWER = 50, 4 << 20
"""Maximum number of pods in one list request, and of bytes in a response that is parsed."""
_MAX_PODS = 64
"""Maximum number of containers of a pod that are read."""


class MissingTemplateError(HintedError):
    """A CronJob of the pipeline, from which its Jobs are made, does not exist."""


class Jobs:
    """The Jobs of one pipeline."""

    def __init__(self, client: Client, pipeline: DeliveredPipeline) -> None:
        self._client, self._pipeline = client, pipeline
        base = f"/namespaces/{pipeline.namespace}"
        self._jobs, self._templates = f"/apis/batch/v1{base}/jobs", f"/apis/batch/v1{base}/cronjobs"
        self._pods = f"/api/v1{base}/pods"

    def names_of(self, step: Step) -> tuple[str, ...]:
        """Return the names of a step's Jobs, which are those of their templates."""
        own = self._pipeline
        return {"train": own.train, "stage": (own.stage,), "validate": (own.validate,), "seal": (own.seal,)}[step]

    async def look(self, active: Step | None = None) -> dict[Step, PipelineJob]:
        """Return the state of each step that has Jobs, with messages of pods only for the active one.

        Raises ApiError and UnreachableError.
        """
        every = [name for step in STEPS for name in self.names_of(step)]
        found = dict(zip(every, await asyncio.gather(*map(self._find, every)), strict=True))
        steps: dict[Step, PipelineJob] = {}
        for step in STEPS:
            own = [each for name in self.names_of(step) if (each := found[name]) is not None]
            if own:
                job = _step_state(own, len(self.names_of(step)))
                if job is not None:
                    steps[step] = await self._with_messages(job, own, step) if step == active else job
        return steps

    async def _find(self, name: str) -> Body | None:
        """Return a Job by its name: members of the team may give others the pipeline's label, in any number."""
        query = {
            "labelSelector": f"{names.PIPELINE}={self._pipeline.name}",
            "fieldSelector": f"metadata.name={name}",
            "limit": "1",
        }
        return next(iter((await self._client.page(self._jobs, query))["items"] or ()), None)

    async def _with_messages(self, job: PipelineJob, jobs: list[Body], step: Step) -> PipelineJob:
        """Return the state of a step; if it has ended, with the messages and provenance of its pods."""
        if job.status == "failed":
            failed = next(each for each in jobs if _job_result(each)[0] == "failed")
            said = _newest_message(await self._pods_of(_UID, [failed["metadata"]["uid"]]), "Failed")
            return job._replace(message=f"{job.message}: {said}") if said else job
        if job.status == "running":
            return job
        pods = await self._pods_of(_UID, [each["metadata"]["uid"] for each in jobs])
        if step == "train":
            return job._replace(ran=provenance_of(pods))
        job = job._replace(message=_newest_message(pods, "Succeeded"))
        if step != "stage" or not self._pipeline.running:
            return job
        pods = await self._pods_of(_NAME, self._pipeline.running)
        # Those that have failed since the job began did not save what is published now.
        return job._replace(ran=provenance_of([pod for pod in pods if _pod_phase(pod) == "Running"] or pods))

    async def _pods_of(self, label: str, values: Iterable[str]) -> list[Body]:
        query = {"labelSelector": f"{label} in ({','.join(values)})", "limit": str(_PAGE)}

        async def page(asked: Mapping[str, str]) -> Any:
            return await self._client.page(self._pods, asked, most=_ANSWER)

        return await list_all(page, query, lambda pods: list(map(_reduce_pod, pods)))

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
            await self._client.send("POST", self._jobs, _make_job(template, name, start, keep))
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


def _make_job(template: Body, name: str, start: Start, keep: str) -> Body:
    """Return the Job of a template: the number of its run, and what its pods are told."""
    made = template["spec"]["jobTemplate"]
    spec, run = dict(made["spec"]), str(start.run)
    pods = spec["template"]
    notes = {**(pods["metadata"].get("annotations") or {}), LIVE_URL.name: start.live}
    if REJECTED_OUTPUT.name in notes:
        notes[REJECTED_OUTPUT.name] = start.rejected
    if start.lineage is not None:
        notes |= {
            VERSION_LINEAGE.name: dump(start.lineage),
            KEPT_VERSIONS.name: keep,
        }
    labels = {**(pods["metadata"].get("labels") or {}), names.RUN: run}
    spec["template"] = {**pods, "metadata": {**pods["metadata"], "labels": labels, "annotations": notes}}
    metadata = made.get("metadata") or {}
    owner = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "name": template["metadata"]["name"],
        "uid": template["metadata"]["uid"],
        "blockOwnerDeletion": False,
    }
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


def _job_result(job: Body) -> tuple[Status, str]:
    """Return the state of a Job, and why it failed."""
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition.get("status") == "True" and condition.get("type") in _ENDED:
            why = " ".join(filter(None, (condition.get("reason"), condition.get("message"))))
            return _ENDED[condition["type"]], f"Job {job['metadata']['name']}: {why}"[:1000]
    return "running", ""


def _step_state(jobs: list[Body], wanted: int) -> PipelineJob | None:
    """Return the state of a step; None if Jobs of it are still to be created."""
    runs = [_run(job) for job in jobs]
    if any("deletionTimestamp" in job["metadata"] for job in jobs):
        # It counts until its pods are gone, too.
        return PipelineJob(runs[0], "running")
    if len(set(runs)) > 1:
        return PipelineJob(min(runs), "running")  # Jobs of an old run beside those of a new one: they go first
    results = [(job, *_job_result(job)) for job in jobs]
    failed = next((why for _, status, why in results if status == "failed"), None)
    if failed is not None:
        return PipelineJob(runs[0], "failed", failed)
    if len(jobs) < wanted:
        return None
    # The others, such as parameter servers, have followers that end them.
    leading = [status for job, status, _ in results if _is_leading_job(job)] or [status for _, status, _ in results]
    return PipelineJob(runs[0], "succeeded" if all(status == "succeeded" for status in leading) else "running")


def _newest_message(pods: Iterable[Body], phase: str) -> str:
    """Return the text that the newest pod with this phase has written; "" if there is none."""
    ended = [pod for pod in pods if _pod_phase(pod) == phase]
    ended.sort(key=lambda pod: str(pod["metadata"].get("creationTimestamp")), reverse=True)
    for pod in ended:
        status = pod["status"]
        for each in [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]:
            found = (each.get("state") or {}).get("terminated") or {}
            if found.get("message") and (phase == "Succeeded" or found.get("exitCode")):
                # Beyond the limit of Kubernetes, a text is not from the kubelet.
                return str(found["message"])[: MAX_TEXT + 1]
    return ""


def _reduce_pod(pod: Body) -> Body:
    """Return the part of a pod that is read: members of the team give pods any size, and these labels to any number."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    main = (metadata.get("annotations") or {}).get(DEFAULT_CONTAINER.name)
    kinds = ("containerStatuses", "initContainerStatuses")
    containers = {
        kind: [
            {key: each.get(key) for key in ("name", "imageID", "state")}
            for each in (status.get(kind) or ())[:_MAX_PODS]
        ]
        for kind in kinds
    }
    return {
        "metadata": {
            "creationTimestamp": metadata.get("creationTimestamp"),
            "annotations": {} if main is None else {DEFAULT_CONTAINER.name: str(main)[:63]},
        },
        "status": {"phase": status.get("phase"), **containers},
    }


def _pod_phase(pod: Body) -> str:
    return str((pod.get("status") or {}).get("phase"))


def _is_leading_job(job: Body) -> bool:
    """Return True for a Job with which the training ends: its pods have no follower."""
    return all(each["name"] != names.FOLLOWER for each in job["spec"]["template"]["spec"]["containers"])
