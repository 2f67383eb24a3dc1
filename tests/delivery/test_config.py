"""Plans and states that the daemon reads: written by the compiler and itself, or damaged."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from avactl.compiler import compile_tree
from avactl.contracts.delivery import MetricBound, PipelineState, SpecOrigin
from avactl.contracts.document import DocumentError, dump
from avactl.daemons.delivery.decide import MAX_MESSAGE, PipelineConfig, PipelineJob, Seen, decide
from avactl.daemons.delivery.plans import read_plan, read_state
from tests.example_trees import example_tree


@cache
def plans() -> dict[str, str]:
    """The plans of `examples/pipelines` by pipeline."""
    found = {}
    for manifest in compile_tree(example_tree("pipelines")).manifests:
        text = (manifest.body.get("data") or {}).get("pipeline.json")
        if text is not None:
            found[json.loads(text)["name"]] = text
    return found


def test_the_plans_of_the_examples() -> None:
    ranker = read_plan(plans()["ranker"])
    assert ranker.config == PipelineConfig(
        "s3://search-models/published/ranker",
        True,
        (MetricBound(name="auc", min=0.7, at_least=0.99), MetricBound(name="loss", at_most=1.05)),
        "commit",
        True,
        "forbid",
        86400.0,
        False,
        json.loads(plans()["ranker"])["validate"]["digest"],
    )
    assert ranker.target is not None
    assert (ranker.target.file, ranker.target.url_path) == ("teams/ranker.yaml", "spec.model.url")
    assert ranker.trigger.version == "week-47"
    assert (ranker.train, str(ranker)) == (("ranker-train-worker",), "search/ranker")
    stream = read_plan(plans()["ctr"])
    assert (stream.config.trains, stream.trigger.every, stream.config.concurrency) == (False, 1800, "queue")
    assert (stream.running, ranker.running, stream.lineage.job) == (("ctr-stream-worker",), (), "ctr-stream")
    assert read_plan(plans()["embeddings"]).target is None
    assert read_plan(plans()["spelling"]).trigger.paths == ("spelling/**", "vocabulary.txt")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", "../x"),
        ("namespace", "a/b"),
        ("namespace", None),
        ("train", []),
        ("stage", "a b"),
        ("trigger", {"kind": "webhook"}),
        ("concurrency", "all"),
        ("timeout", "1h"),
        ("timeout", float("inf")),
        ("publish", {}),
        ("validate", {"job": "x", "metrics": [{"name": "auc", "min": True}]}),
        ("deploy", {"by": "force"}),
        ("deploy", []),
        ("lineage", 3),
    ],
)
def test_damaged_plans(key: str, value: Any) -> None:
    plan = {**json.loads(plans()["ranker"]), key: value}
    with pytest.raises(DocumentError):
        read_plan(json.dumps(plan))


@pytest.mark.parametrize("text", ["", "[]", "{", "x" * (1 << 21)])
def test_no_documents(text: str) -> None:
    with pytest.raises(DocumentError):
        read_plan(text)
    if text:
        with pytest.raises(DocumentError):
            read_state(text)


def test_states_survive() -> None:
    state = PipelineState(
        phase="rolling",
        run=7,
        begun=1.5,
        since=2.5,
        handled="v7",
        primed=True,
        queued="v8",
        commit="4f53",
        origin=SpecOrigin(image="x"),
        ran={"commits": ["4f53" * 10]},
        output="export/7",
        rejected="4f53 export/6",
        metrics={"auc": 0.8},
        before="s3://a/6",
        before_version="6",
        known={"s3://a/6": {"auc": 0.7}},
        reason="Running",
        message="for v7",
    )
    assert read_state(dump(state)) == state
    assert read_state(dump(PipelineState())) == read_state(None) == PipelineState()


def test_what_pods_write_stays_within_bounds() -> None:
    """A state that cannot be read again would stop its pipeline for good."""
    config = PipelineConfig("s3://models", bounds=(MetricBound(name="auc", min=0.7),))
    begun = PipelineState(phase="validating", run=1, primed=True, handled="v1", begun=1.0, since=1.0)
    shout = "\x1b[31m" + "x" * 10_000 + "\n\nAvactl-Pipeline: other"
    failed = decide(config, begun, Seen("v1", jobs={"validate": PipelineJob(1, "failed", shout)}), 2.0).state
    assert len(failed.message) <= MAX_MESSAGE
    assert failed.message.isprintable()
    assert read_state(dump(failed)) == failed
    noisy = {"auc": 0.9, "a\n\nb": 1.0, "y" * 64: 1.0, **{f"m{number}": 1.0 for number in range(60)}}
    judged = decide(
        config, begun, Seen("v1", jobs={"validate": PipelineJob(1, "succeeded", json.dumps(noisy))}), 2.0
    ).state
    assert judged.phase == "sealing"
    assert all(name.isidentifier() for name in judged.metrics)
    state = judged
    for run in range(1, 400):
        state = state.replace(phase="sealing", run=run)
        state = decide(config, state, Seen("v1", jobs={"seal": PipelineJob(run, "succeeded")}), 2.0).state
    assert len(dump(state)) < 50_000
    assert read_state(dump(state)) == state


@pytest.mark.parametrize(
    "damage",
    [
        {"phase": "flying"},
        {"run": -1},
        {"run": "7"},
        {"run": 1e12},
        {"primed": 1},
        {"handled": ["v1"]},
        {"ran": {"images": ["latest"]}},
        {"ran": {"commits": ["4f53" * 10] * 17}},
        {"rejected": 3},
        {"known": {"x": {"auc": "high"}}},
        {"known": {str(i): {} for i in range(300)}},
        {"message": "x" * 5000},
    ],
)
def test_damaged_states_begin_nothing(damage: dict[str, Any]) -> None:
    """A state that counts as empty would give a number to a version that exists."""
    with pytest.raises(DocumentError):
        read_state(json.dumps({"phase": "idle", "run": 3, **damage}))
