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
        (["train", "\u0442\u0435\u0441\u04421", "--experiment=\u0442\u0435\u0441\u0442_2"], ""),
        (["train", "--data=/data/\u0442\u043e\u043c1/x", "\u03b1_1", "\u03c1_max", "\u03c41=0.9"], ""),
        (["train", "m\u043edel_2"], "error write `model_2`"),
        (["train", "\u2026"], "warning write the value"),
    ],
)
def test_words_of_a_command(command: list[str], told: str) -> None:
    text = JOB.format(command=json.dumps(command, ensure_ascii=False))
    problems = compile_tree(MemoryTree({**BASE, "job.yaml": text.encode()})).diagnostics
    assert [f"{d.severity} {d.hint}" for d in problems] == ([told] if told else [])


def test_values_of_env() -> None:
    env = '  env: {A: \u043c\u0435\u0442\u043a\u04301, B: \u0441\u0435\u04423, C: "\u2026"}\n'
    text = JOB.format(command="[train]") + env
    problems = compile_tree(MemoryTree({**BASE, "job.yaml": text.encode()})).diagnostics
    assert [f"{d.severity} {d.hint}" for d in problems] == ["warning write the value"]


def test_data_of_a_config_map_is_no_command() -> None:
    text = """apiVersion: avactl.dev/v1
kind: KubernetesObjects
metadata: {name: more, team: vision}
spec:
  objects:
    - {apiVersion: v1, kind: ConfigMap, metadata: {name: texts}, data: {args: "\u201cquoted\u201d", command: "\u2013x"}}
"""
    assert compile_tree(MemoryTree({**BASE, "more.yaml": text.encode()})).diagnostics == ()
