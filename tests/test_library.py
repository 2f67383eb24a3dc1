"""avactl as a Python library: typed specs in, objects or every problem out."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

import avactl
from avactl.kinds import Cluster, Metadata, NodePool, Quota, Team, TrainingJob
from avactl.kinds.node_pool import NodePoolSpec
from avactl.kinds.quota import GpuQuota, QuotaSpec
from avactl.kinds.training import TrainingJobSpec, Workers
from avactl.spec.schema.base import Resource


def platform() -> list[Resource]:
    return [
        Cluster(metadata=Metadata(name="main")),
        NodePool(metadata=Metadata(name="a10"), spec=NodePoolSpec(cluster="main", machine_type="a10", count=4)),
        Team(metadata=Metadata(name="vision")),
        Quota(
            metadata=Metadata(name="gpus", team="vision"),
            spec=QuotaSpec(gpus=[GpuQuota(gpu="A10", guaranteed=4)]),
        ),
    ]


def job(name: str, workers: Workers) -> TrainingJob:
    return TrainingJob(
        metadata=Metadata(name=name, team="vision"),
        spec=TrainingJobSpec(image="registry.example.com/train:1", workers=workers),
    )


def test_typed_specs_compile() -> None:
    result = avactl.compile([*platform(), *(job(f"fold-{i}", Workers(gpus=1)) for i in range(3))])
    jobs = [m.name for m in result.manifests if m.kind == "Job"]
    assert sorted(jobs) == sorted({name for i in range(3) for name in jobs if f"fold-{i}" in name})
    assert len(jobs) == 3


def test_all_problems_are_in_one_error() -> None:
    with pytest.raises(avactl.CompileError) as caught:
        avactl.compile([*platform(), job("a", Workers(gpus=16)), job("a", Workers()), job("b", Workers(gpus=16))])
    codes = [d.code for d in caught.value.diagnostics]
    assert codes.count("duplicate-name") == 1
    assert len(codes) >= 2


def test_types_are_checked_where_they_are_written() -> None:
    with pytest.raises(ValidationError, match="replicas"):
        job("a", Workers(replicas=0))


def test_specs_survive_the_way_to_yaml_and_back() -> None:
    spec = job("a", Workers(gpus=2, shared_memory="1Gi"))
    assert spec.to_dict()["spec"]["workers"] == {"gpus": 2, "sharedMemory": "1Gi"}
    assert TrainingJob.model_validate(spec.to_dict()) == spec


def test_problems_name_the_line_of_the_constructor() -> None:
    other = Quota(metadata=Metadata(name="b", team="visoin"), spec=QuotaSpec(cpu="4"))
    with pytest.raises(avactl.CompileError) as caught:
        avactl.compile([*platform(), job("a", Workers(gpus=16)), other])
    text = Path(__file__).read_text().splitlines()
    spans = {d.code: d.span for d in caught.value.diagnostics}
    assert {span.file for span in spans.values()} == {__file__}
    wrong = spans["missing-reference"]
    assert text[wrong.line - 1][wrong.column - 1 : wrong.end_column - 1] == '"visoin"'
    # The workers come from a variable, so the constructor is named.
    assert text[spans["pod-never-fits"].line - 1].strip() == "return TrainingJob("
    assert f"{__file__}:{wrong.line}:" in str(caught.value)


def test_a_manifest_as_yaml() -> None:
    result = avactl.compile(platform())
    (namespace,) = (m for m in result.manifests if m.kind == "Namespace" and m.name == "vision")
    assert namespace.to_yaml().startswith("apiVersion: v1\nkind: Namespace\nmetadata:\n")
    assert yaml.safe_load(namespace.to_yaml()) == namespace.body
