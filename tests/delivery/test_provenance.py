"""What pods ran, by their status, and what of that goes into a lineage."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from avactl.contracts.delivery import MAX_ORIGINS, PipelineState, SpecOrigin
from avactl.contracts.document import dump, load
from avactl.daemons.delivery.decide import PipelineConfig, PipelineJob, Seen, Start, Step, decide
from avactl.daemons.delivery.jobs import Jobs
from avactl.daemons.delivery.plans import DeliveredPipeline, read_plan
from avactl.daemons.delivery.provenance import provenance_of
from avactl.kube.client import ApiError
from tests.delivery.test_config import plans

A, B = "a" * 64, "b" * 64
COMMIT = "4f53c1a2b0" * 4
Body = dict[str, Any]


def pod(image_id: Any, *, name: str = "worker", commit: Any = None, code: int = 0, phase: str = "Succeeded") -> Body:
    """A pod with one program and, with `commit`, code from git."""
    init = {"name": "code", "state": {"terminated": {"exitCode": code, "message": commit}}}
    return {
        "metadata": {
            "name": "p",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {"kubectl.kubernetes.io/default-container": "worker"},
        },
        "status": {
            "phase": phase,
            "containerStatuses": [{"name": name, "imageID": image_id}],
            "initContainerStatuses": [] if commit is None else [init],
        },
    }


@pytest.mark.parametrize(
    ("image_id", "found"),
    [
        (f"registry.example.com:5000/search/train@sha256:{A}", f"registry.example.com:5000/search/train@sha256:{A}"),
        (f"docker-pullable://train@sha256:{A}", f"train@sha256:{A}"),
        (f"docker://sha256:{A}", f"sha256:{A}"),
        (f"sha256:{A}", f"sha256:{A}"),
        (f"train@sha512:{A}{A}", f"train@sha512:{A}{A}"),
        ("", None),
        (None, None),
        (["x"], None),
        ("train:v1", None),
        (f"train@sha256:{A[:-1]}", None),
        (f"train@sha256:{A}\n", None),
        (f"<script>@sha256:{A}", None),
        (f"{'x' * 300}@sha256:{A}", None),
        (f"{'x' * 2_000_000}@sha256:{A}", None),
    ],
)
def test_names_of_images(image_id: Any, found: str | None) -> None:
    assert provenance_of([pod(image_id)]) == ({} if found is None else {"images": [found]})


def test_only_the_training_program_counts() -> None:
    assert provenance_of([pod(f"sha256:{A}", name="sidecar")]) == {}
    assert provenance_of([{"metadata": {}, "status": {"containerStatuses": [{"imageID": f"sha256:{A}"}]}}]) == {}
    assert provenance_of([{"metadata": {}}]) == {}
    server = pod(f"sha256:{B}", name="follower")
    server["status"]["initContainerStatuses"] = [{"name": "worker", "imageID": f"sha256:{A}"}]
    assert provenance_of([server]) == {"images": [f"sha256:{A}"]}


@pytest.mark.parametrize(
    ("said", "code", "found"),
    [
        (f"{COMMIT}\n", 0, COMMIT),
        (A, 0, A),
        (COMMIT, 66, None),
        ("main", 0, None),
        (COMMIT.upper(), 0, None),
        (f"{COMMIT} and more", 0, None),
        ("", 0, None),
        ({"a": 1}, 0, None),
    ],
)
def test_commits_of_code(said: Any, code: int, found: str | None) -> None:
    assert provenance_of([pod("", commit=said, code=code)]) == ({} if found is None else {"commits": [found]})


def test_pods_that_differ() -> None:
    found = provenance_of([pod(f"sha256:{each}", commit=COMMIT) for each in (B, A, B)])
    assert found == {"images": [f"sha256:{A}", f"sha256:{B}"], "commits": [COMMIT]}
    many = provenance_of(pod(f"sha256:{number:064x}", commit=f"{number:040x}") for number in range(500))
    assert [len(each) for each in many.values()] == [MAX_ORIGINS, MAX_ORIGINS]
    state = PipelineState(ran=many)
    assert load(PipelineState, dump(state)) == state


class FakeClient:
    """Jobs and pods by the selector that asks for them."""

    def __init__(self, jobs: list[Body], pods: Mapping[str, list[Body]]) -> None:
        self._jobs, self._pods = jobs, pods
        self.asked: list[str] = []

    async def page(self, path: str, query: Mapping[str, str], most: int = 0) -> Any:
        self.asked.append(query["labelSelector"])
        named = query.get("fieldSelector", "").removeprefix("metadata.name=")
        jobs = [each for each in self._jobs if each["metadata"]["name"] == named]
        items = jobs if path.endswith("/jobs") else self._pods.get(query["labelSelector"], [])
        return {"items": items, "metadata": {}}


def job(name: str, run: int, condition: str = "Complete") -> Body:
    """A Job that has ended."""
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": {"avactl.dev/pipeline-run": str(run)}},
        "spec": {"template": {"spec": {"containers": [{"name": "worker"}]}}},
        "status": {"conditions": [{"type": condition, "status": "True"}]},
    }


def looked(pipeline: DeliveredPipeline, client: FakeClient, step: Any) -> Mapping[Any, PipelineJob]:
    return asyncio.run(Jobs(client, pipeline).look(step))  # type: ignore[arg-type]


def test_the_training_of_a_run() -> None:
    ranker = read_plan(plans()["ranker"])
    pods = {"batch.kubernetes.io/controller-uid in (uid-ranker-train-worker)": [pod(f"sha256:{A}"), pod(f"sha256:{B}")]}
    client = FakeClient([job("ranker-train-worker", 7)], pods)
    found = looked(ranker, client, "train")
    assert found["train"].ran == {"images": [f"sha256:{A}", f"sha256:{B}"]}
    # Pods are asked for only in the step that they are of.
    client.asked.clear()
    assert looked(ranker, client, "stage")["train"].ran == {}
    assert set(client.asked) == {"avactl.dev/pipeline=ranker"}


def test_a_job_without_end() -> None:
    """Pods that have failed since the job began are not what saved the newest export."""
    stream = read_plan(plans()["ctr"])
    assert stream.running == ("ctr-stream-worker",)
    alive = [pod(f"sha256:{A}", phase="Failed"), pod(f"sha256:{B}", phase="Running")]
    pods = {"batch.kubernetes.io/job-name in (ctr-stream-worker)": alive}
    assert looked(stream, FakeClient([job("ctr-stage", 3)], pods), "stage")["stage"].ran == {"images": [f"sha256:{B}"]}
    alive[1]["status"]["phase"] = "Failed"
    found = looked(stream, FakeClient([job("ctr-stage", 3)], pods), "stage")["stage"]
    assert found.ran == {"images": [f"sha256:{A}", f"sha256:{B}"]}


def test_a_repetition_writes_the_same_lineage() -> None:
    """What ran is kept when the training ends: later its pods may be gone."""
    config, ran = PipelineConfig("s3://models"), {"images": [f"sha256:{A}"], "commits": [COMMIT]}
    begun = PipelineState(
        phase="training", run=1, primed=True, handled="v1", begun=1.0, since=1.0, origin=SpecOrigin(image="train:v1")
    )
    state = decide(config, begun, Seen("v1", jobs={"train": PipelineJob(1, "succeeded", "", ran)}), 2.0).state
    assert (state.phase, state.ran) == ("staging", ran)
    sealing = state.replace(phase="sealing", metrics={"auc": 0.9})
    later: list[Mapping[Step, PipelineJob]] = [{}, {"train": PipelineJob(1, "succeeded")}]
    plans = [decide(config, sealing, Seen("v1", jobs=jobs), 2.0) for jobs in later]
    lineages = [start.lineage for plan in plans for start in plan.actions if isinstance(start, Start)]
    assert lineages[0] == lineages[1]
    assert lineages[0] is not None
    assert lineages[0].ran == ran
    # The next run begins without it.
    assert decide(config, state.replace(phase="idle"), Seen("v2"), 3.0).state.ran == {}


def test_api_errors_are_those_of_the_pass() -> None:
    class Refusing(FakeClient):
        async def page(self, path: str, query: Mapping[str, str], most: int = 0) -> Any:
            if path.endswith("/pods"):
                raise ApiError(403, "Forbidden", "pods")
            return await super().page(path, query)

    with pytest.raises(ApiError, match="Forbidden"):
        looked(read_plan(plans()["ranker"]), Refusing([job("ranker-train-worker", 7)], {}), "train")
