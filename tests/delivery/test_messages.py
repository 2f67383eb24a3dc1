"""Texts of commits: values of specs and pods add no lines, and no other pipeline has the branch."""

from __future__ import annotations

from avactl.contracts.delivery import PipelineState, RollbackPlan, SpecOrigin, TriggerPlan
from avactl.daemons.delivery.commits.messages import commit_message, proposal_branch, revert_message, rollback_message
from avactl.daemons.delivery.decide import PipelineConfig
from avactl.daemons.delivery.plans import DeliveredPipeline, PipelineTarget

TARGET = PipelineTarget("vision", "web", "digits", "web.yaml", "web", "vision", "spec.model.url", "spec.model.version")
FORGED = "s3://data/1\n\nSigned-off-by: Ann <ann@example.com>\u2028\x1b[31m[skip ci]"


def pipeline(team: str, name: str) -> DeliveredPipeline:
    config = PipelineConfig("s3://data")
    return DeliveredPipeline(
        name, team, team, TriggerPlan(kind="schedule"), (), (), "a", "b", "c", (), TARGET, SpecOrigin(), config
    )


def test_values_add_no_lines() -> None:
    state = PipelineState(run=2, message="for v3", before=FORGED, metrics={"accuracy": 0.9})
    own = pipeline("vision", "digits")
    for message in (
        commit_message(own, state, "s3://data/2", "2"),
        revert_message(own, state, "s3://data/2", FORGED),
        commit_message(own, state.replace(before=""), FORGED, "2"),
    ):
        assert not any(line.startswith("Signed-off-by") for line in message.splitlines())
        assert all(each.isprintable() for each in message.split("\n"))
        assert message.rstrip("\n").split("\n\n")[-1] == "Avactl-Pipeline: vision/digits run 2"


def test_what_specs_say_is_no_command() -> None:
    """Versions of datasets, URLs of stores and names of metrics: whoever may change specs or runs pods chooses them."""
    text = "s3://data/***NO_CI***/@acme/[skip ci]/GH-3/fixes #1 closes https://example.com/a/issues/1/2"
    state = PipelineState(run=2, message=f"for {text}", before=text, metrics={"GH-1": 0.9})
    own = pipeline("vision", "digits")
    for message in (commit_message(own, state, text, "2"), revert_message(own, state, text, text)):
        for command in ("***", "@acme", "[skip", "GH-", "#1", "https://"):
            assert command not in message
    assert "\nModel: s3://data/published/2\n" in commit_message(own, state, "s3://data/published/2", "2")


def test_no_other_pipeline_has_the_branch() -> None:
    pipelines = [
        (pipeline(*names), run)
        for names in (("vision", "a-b"), ("vision-a", "b"), ("vision", "a"), ("vision", "a-1"), ("vision-a", "1"))
        for run in (1, 11)
    ]
    assert len({proposal_branch(*each) for each in pipelines}) == len(pipelines)


def test_what_pods_say_is_no_command() -> None:
    """The reason of a roll-back has the last line of a pod's log: any member of the team writes it."""
    service = RollbackPlan(
        cluster="main", namespace="vision", name="web", team="vision", file="web.yaml", document="web", by="commit"
    )
    why = "exit code 1: [skip ci] [ci skip] ***NO_CI*** fixes #1, closes acme/specs#2 GH-3 @acme/admins"
    more = "\n\nSigned-off-by: A https://example.com/issues/1\x1b[0m"
    message = rollback_message(service, why + more, ["a" * 40], "b" * 40)
    for command in ("[skip", "[ci", "***", "#1", "#2", "GH-3", "@acme", "://", "\n\nSigned", "\x1b"):
        assert command not in message
    assert "exit code 1: (skip ci)" in message
