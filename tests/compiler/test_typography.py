"""Typographic characters in commands: what is told, how, and what is left alone."""

from __future__ import annotations

import json

import pytest

from avactl.compiler import compile_tree
from avactl.spec.repository.tree import MemoryTree
from tests.test_invalid import BASE

JOB = """apiVersion: avactl.dev/v1
kind: TrainingJob
metadata: {{name: sft, team: vision}}
spec:
  image: registry.example.com/vision/train:1
  command: {command}
"""


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["train", "\u2013epochs", "90"], "error write `--epochs`"),
        (["train", "\u2014e", "90"], "error write `-e`"),
        (["train", "\u2212\u2212lr"], "error write `--lr`"),
        (["train", "--prompt", "\u2014bonjour"], "warning write `--bonjour`"),
        (["train", "--seed", "\u22121"], "warning write `-1`"),
        (["train", "--prompt", "\u201c\u4f60\u597d\u201d"], "warning write `\u4f60\u597d`"),
        (["bash", "-c", "train \u2014epochs 90"], "warning write `--epochs`"),
        (["bash", "-c", "# \u201chere\u201d\ntrain \u2013 x"], ""),
        (["train", "--separator", "\u201c"], ""),
        (["train", "it\u2019s", "a\u2013b"], ""),
    ],
)
def test_words_of_a_command(command: list[str], told: str) -> None:
    text = JOB.format(command=json.dumps(command, ensure_ascii=False))
    problems = compile_tree(MemoryTree({**BASE, "job.yaml": text.encode()})).diagnostics
    assert [f"{d.severity} {d.hint}" for d in problems] == ([told] if told else [])


def test_data_of_a_config_map_is_no_command() -> None:
    text = """apiVersion: avactl.dev/v1
kind: KubernetesObjects
metadata: {name: more, team: vision}
spec:
  objects:
    - {apiVersion: v1, kind: ConfigMap, metadata: {name: texts}, data: {args: "\u201cquoted\u201d", command: "\u2013x"}}
"""
    assert compile_tree(MemoryTree({**BASE, "more.yaml": text.encode()})).diagnostics == ()
