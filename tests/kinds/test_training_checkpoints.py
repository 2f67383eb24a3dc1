"""Jobs that save their checkpoints to one place."""

from __future__ import annotations

import pytest

from tests.kinds.compiling import DIGEST, unchecked
from tests.kinds.test_training_lifecycle import PLATFORM

SHARED = PLATFORM.replace("spec: {images", "spec: {daemons: {scheduler: true}, images")


def saves(name: str, path: str, more: str = "") -> str:
    return (
        f"---\nkind: TrainingJob\nmetadata: {{name: {name}, team: vision}}\nspec:\n  strategy: single\n"
        f"  image: registry.example.com/x{DIGEST}\n  command: [python, x.py]\n  workers: {{cpu: 1, memory: 1Gi}}\n"
        f'  checkpoint: {{path: "{path}"}}\n{more}'
    )


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ("s3://b/ckpt/x", "s3://b/ckpt/x", "TrainingJob vision/a saves its checkpoints in the same directory"),
        ("s3://b/ckpt/x/", "s3://b/ckpt/x", "the same directory"),
        ("s3://b/ckpt", "s3://b/ckpt/x/y", "the directory around it, s3://b/ckpt"),
        ("s3://b/ckpt/x/y", "s3://b/ckpt", "the directory around it, s3://b/ckpt"),
        ("s3://b/ckpt/x", "s3://b/ckpt/xy", ""),
        ("s3://b/ckpt/x", "s3://c/ckpt/x", ""),
    ],
)
def test_jobs_with_one_checkpoint_directory(one: str, other: str, said: str) -> None:
    problems = unchecked(SHARED + saves("a", one) + saves("b", other)).diagnostics
    found = [(each.code, said in each.message) for each in problems if each.severity == "error"]
    assert found == ([("shared-checkpoint", True)] if said else [])


@pytest.mark.parametrize(("middle", "shared"), [("  after: [a]\n", False), ("", True), ("  after: [b]\n", False)])
def test_jobs_that_follow_each_other_may_share_a_directory(middle: str, shared: bool) -> None:
    chain = saves("b", "s3://b/other", middle.replace("[b]", "[a]")) + saves("c", "s3://b/x", "  after: [b]\n")
    found = unchecked(SHARED + saves("a", "s3://b/x") + chain).diagnostics
    assert [each.code for each in found if each.severity == "error"] == (["shared-checkpoint"] if shared else [])
