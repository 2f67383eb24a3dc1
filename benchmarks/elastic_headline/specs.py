"""The jobs and the service as specs, and the objects that they compile to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from avactl.compiler import compile_tree
from avactl.diagnostics.text import render_text
from avactl.program.manifest import Manifest
from avactl.spec.repository.tree import MemoryTree

NAMESPACE = "research"
_DIGEST = "sha256:" + "0" * 64
_PLATFORM = f"""\
apiVersion: avactl.dev/v1
kind: Cluster
metadata: {{name: bench}}
spec:
  daemons: {{scheduler: true}}
  images: {{avactl: "example.com/avactl@{_DIGEST}", kubectl: "example.com/kubectl@{_DIGEST}"}}
---
apiVersion: avactl.dev/v1
kind: Team
metadata: {{name: {NAMESPACE}}}
spec: {{members: {{groups: [{NAMESPACE}]}}}}
"""
_JOB = """\
apiVersion: avactl.dev/v1
kind: TrainingJob
metadata: {{name: {name}, team: research}}
spec:
  strategy: elastic
  framework: custom
  image: example.com/train:1
  command: [python, -m, benchmarks.elastic_headline.worker]
  env: {env}
  workers: {{min: {least}, max: {most}, cpu: "1", memory: 1Gi}}
  master: {{cpu: 50m, memory: 256Mi}}
"""
_SERVICE = """\
apiVersion: avactl.dev/v1
kind: ServingDeployment
metadata: {{name: web, team: research}}
spec:
  model: {{name: web, version: "1"}}
  runtime: {{name: custom, image: "example.com/web:1", command: [sleep, infinity], port: 80}}
  probe: {{path: /health}}
  resources: {{cpu: "1", memory: 1Gi}}
  replicas: {replicas}
"""
# Avactl's scheduler runs as a process here.
_NOT_HERE = ("Deployment", "avactl-scheduler")


class Job(NamedTuple):
    """An elastic job; with `least` equal to `most`, a gang."""

    name: str
    least: int
    most: int
    records: int
    """One record is one second of one CPU, in published time."""
    records_per_task: int
    second: float
    """Real seconds of a published one."""

    def spec(self, timeline: str) -> str:
        """`timeline`: directory in which its workers write what they did."""
        env = {
            "RECORDS": str(self.records),
            "RECORDS_PER_TASK": str(self.records_per_task),
            "SECOND": str(self.second),
            "TIMELINE": timeline,
        }
        shown = "{" + ", ".join(f'{name}: "{value}"' for name, value in env.items()) + "}"
        return _JOB.format(name=self.name, least=self.least, most=self.most, env=shown)


def service(replicas: int) -> str:
    """Return the spec of the service."""
    return _SERVICE.format(replicas=replicas)


def platform() -> list[Manifest]:
    """Return the objects without jobs and services."""
    return _compiled({})


def objects(specs: Mapping[str, str]) -> list[Manifest]:
    """Return the objects of specs, by name, without the platform's."""
    before = {manifest.id for manifest in platform()}
    return [manifest for manifest in _compiled(specs) if manifest.id not in before]


def _compiled(specs: Mapping[str, str]) -> list[Manifest]:
    files = {"platform.yaml": _PLATFORM, **{f"{name}.yaml": text for name, text in specs.items()}}
    result = compile_tree(MemoryTree({name: text.encode() for name, text in files.items()}))
    errors = [each for each in result.diagnostics if each.severity == "error"]
    if errors:
        raise RuntimeError(render_text(errors, lambda path: files[path]))
    return list(_here(result.manifests))


def _here(manifests: Iterable[Manifest]) -> Iterable[Manifest]:
    return (manifest for manifest in manifests if (manifest.kind, manifest.name) != _NOT_HERE)
