"""Specs that tests of several features start from, without `apiVersion` (see `compiling.compiled`)."""

from __future__ import annotations

from tests.kinds.compiling import DIGEST

SCHEDULED = f"""
kind: Cluster
metadata: {{name: main}}
spec:
  daemons: {{scheduler: true}}
  images: {{avactl: registry.example.com/avactl{DIGEST}, kubectl: registry.example.com/kubectl{DIGEST}}}
"""
"""A cluster with avactl's scheduler."""
TEAM = """
kind: Team
metadata: {name: vision}
"""
JOB = """
kind: TrainingJob
metadata: {name: train, team: vision}
spec:
  image: registry.example.com/train:1
  command: [python, train.py]
"""
SERVICE = """
kind: ServingDeployment
metadata: {name: detector, team: vision}
spec:
  model: {name: detector, version: "3"}
  runtime: {name: triton, image: "registry.example.com/triton:24.05"}
"""
WORKSPACE = """
kind: Workspace
metadata: {name: lin, team: vision}
spec:
  user: lin@example.com
  image: jupyter/scipy-notebook:2025-03-14
"""


def joined(*specs: str) -> str:
    """Join specs into one text."""
    return "\n---\n".join(specs)
