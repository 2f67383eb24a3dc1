"""Pipelines: the objects of `examples/pipelines`, one golden file each, and what counts for their GPUs."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from avactl.base.object_identity import ObjectKey
from avactl.change.plan.workloads import find_workloads
from avactl.compiler import Compilation, compile_tree
from avactl.contracts import names
from avactl.kinds import Pipeline
from avactl.program.capacity.capacity import gpu_demand
from avactl.program.lowering.pods import FETCH_SCRIPT
from avactl.program.manifest import templates_of
from avactl.program.registry import get_kind
from avactl.spec.repository.tree import MemoryTree
from tests.conftest import ROOT
from tests.example_trees import example_tree
from tests.kinds.compiling import DIGEST, codes, compiled, unchecked
from tests.kinds.specs import SCHEDULED, TEAM, joined
from tests.kinds.test_cluster import documented

GOLDEN = ROOT / "tests" / "golden" / "pipelines"
PIPELINES = ("ctr", "embeddings", "ranker", "spelling")
CLUSTER = (
    SCHEDULED.replace("scheduler: true", "scheduler: true, delivery: true")
    + "  delivery: {repository: 'https://github.com/example/specs', secret: avactl-delivery}\n"
)
POOL = "kind: NodePool\nmetadata: {name: v100}\nspec: {cluster: main, machineType: v100-pcie-8, count: 4}"
PIPELINE = f"""
kind: Pipeline
metadata: {{name: ranker, team: vision}}
spec:
  trigger: {{schedule: {{cron: "0 3 * * *"}}}}
  train:
    template:
      strategy: parameterServer
      framework: tensorflow
      image: registry.example.com/train{DIGEST}
      command: [python, train.py]
      workers: {{replicas: 2, gpus: 2, gpu: V100}}
      servers: {{replicas: 1}}
      checkpoint: {{path: "s3://models/training"}}
  validation:
    image: registry.example.com/check{DIGEST}
    resources: {{gpus: 1, gpu: V100}}
    metrics: [{{name: auc, min: 0.7}}]
  publish: {{to: "s3://models/published"}}
"""


@cache
def example() -> Compilation:
    return compile_tree(example_tree("pipelines"))


def objects(result: Compilation, name: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The objects of a pipeline by kind and name."""
    return {
        (each.kind, each.name): each.body
        for each in result.manifests
        if (each.item.kind, each.item.name) == ("Pipeline", name)
    }


def plan(result: Compilation, name: str) -> dict[str, Any]:
    space = result.program.get("Pipeline", name, result.program.of("Pipeline")[0].team).ns
    found: dict[str, Any] = json.loads(
        objects(result, name)["ConfigMap", f"pipeline.{space}.{name}"]["data"]["pipeline.json"]
    )
    return found


def test_the_example_has_every_trigger() -> None:
    assert list(example().diagnostics) == []
    assert {item.name for item in example().program.of("Pipeline")} == set(PIPELINES)
    triggers = {plan(example(), name)["trigger"]["kind"] for name in PIPELINES}
    assert triggers == {"schedule", "dataset", "commit", "checkpoint"}


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_objects(pipeline: str, golden: Callable[[Path, str], None]) -> None:
    bodies = json.dumps(list(objects(example(), pipeline).values()))
    bodies = bodies.replace(json.dumps(FETCH_SCRIPT), '"(FETCH_SCRIPT)"')  # it has tests of its own
    text = yaml.safe_dump_all(json.loads(bodies), sort_keys=False, width=120, allow_unicode=True)
    golden(GOLDEN / f"{pipeline}.yaml", text)


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_templates_start_nothing_and_know_their_run(pipeline: str) -> None:
    found = objects(example(), pipeline)
    assert not any(kind in ("Job", "Pod", "Deployment") for kind, _ in found)
    crons = [body for (kind, _), body in found.items() if kind == "CronJob"]
    steps = {body["metadata"]["annotations"][names.PIPELINE_STEP] for body in crons}
    assert steps == {"stage", "validate", "seal"} | (set() if pipeline == "ctr" else {"train"})
    for body in crons:
        assert body["spec"]["suspend"] is True
        assert "ttlSecondsAfterFinished" not in body["spec"]["jobTemplate"]["spec"]
        ((_, template),) = templates_of(body)
        assert template["spec"]["serviceAccountName"] == "avactl-run"
        assert template["spec"]["automountServiceAccountToken"] is False
        for container in template["spec"]["containers"]:
            # Kubernetes expands only what is defined before.
            assert container["env"][0]["name"] == "AVACTL_RUN"
            assert "$(AVACTL_RUN)" in json.dumps(container)


def test_the_plan_is_where_members_cannot_write() -> None:
    found = [body for (kind, name), body in objects(example(), "ranker").items() if name.startswith("pipeline.")]
    assert [body["metadata"]["namespace"] for body in found] == ["avactl-system"]
    deploy = plan(example(), "ranker")["deploy"]
    assert (deploy["file"], deploy["document"]) == ("teams/ranker.yaml", "ranker")
    assert deploy["paths"] == {"url": "spec.model.url", "version": "spec.model.version"}
    assert plan(example(), "ranker")["lineage"]["datasets"] == {"clicks": "week-47"}


def test_the_origin_of_a_running_jobs_models() -> None:
    """Data and code are those of the job, and only programs of the team count as what ran."""
    job = f"""
kind: TrainingJob
metadata: {{name: stream, team: vision}}
spec:
  strategy: elastic
  image: registry.example.com/train{DIGEST}
  command: [python, stream.py]
  code: {{git: {{url: "https://git.example.com/a.git", ref: main}}}}
  workers: {{gpus: 1, gpu: V100, min: 1, max: 2}}
  datasets: [{{name: clicks, mount: /data, version: v1}}]
  checkpoint: {{path: "s3://models/training"}}
---
kind: Dataset
metadata: {{name: clicks, team: vision}}
spec: {{size: 1Gi, versions: [{{name: v1, url: "s3://models/v1"}}, {{name: v2, url: "s3://models/v2"}}]}}
"""
    template = PIPELINE[PIPELINE.index("    template") : PIPELINE.index("  validation")]
    stream = PIPELINE.replace(template, '    job: stream\n    output: "export/*"\n    marker: _SUCCESS\n').replace(
        'schedule: {cron: "0 3 * * *"}', "checkpoint: {every: 30m}"
    )
    images = f"images: {{fetch: registry.example.com/fetch{DIGEST}, git: registry.example.com/git{DIGEST}, "
    cluster = CLUSTER.replace("images: {", images)
    found = plan(compiled(joined(cluster, TEAM, POOL, job, stream)), "ranker")
    assert found["lineage"]["datasets"] == {"clicks": "v1"}
    assert found["lineage"]["code"] == {"url": "https://git.example.com/a.git", "ref": "main"}
    assert found["lineage"]["job"] == "stream"
    assert found["train"] == {"jobs": [], "runningJobs": ["stream-worker"]}
    assert "job" not in plan(compiled(joined(CLUSTER, TEAM, POOL, PIPELINE)), "ranker")["lineage"]


def test_followers_find_the_run_of_their_leader() -> None:
    """Followers compare the annotation of the leading Job with that of their own pod."""
    result = compiled(joined(CLUSTER, TEAM, POOL, PIPELINE))
    crons = [body for (kind, _), body in objects(result, "ranker").items() if kind == "CronJob"]
    trains = [body for body in crons if body["metadata"]["annotations"][names.PIPELINE_STEP] == "train"]
    assert len(trains) == 3
    runs = {body["spec"]["jobTemplate"]["metadata"]["annotations"]["avactl.dev/run"] for body in trains}
    runs |= {templates_of(body)[0][1]["metadata"]["annotations"]["avactl.dev/run"] for body in trains}
    assert len(runs) == 1


@pytest.mark.parametrize(
    ("old", "new", "gpus"),
    [
        ("", "", 4),
        ("replicas: 2, gpus: 2", "replicas: 4, gpus: 2", 8),
        ("resources: {gpus: 1", "resources: {gpus: 8", 8),
        ("  publish", "  suspended: true\n  publish", None),
    ],
)
def test_the_largest_step_counts(old: str, new: str, gpus: int | None) -> None:
    result = compiled(joined(CLUSTER, TEAM, POOL, PIPELINE.replace(old, new) if old else PIPELINE))
    item = result.program.get("Pipeline", "ranker", "vision")
    assert gpu_demand(item, result.program).get(("main", "V100")) == gpus


@pytest.mark.parametrize(("gpus", "found"), [(4, []), (3, ["quota-exceeded"])])
def test_the_quota_of_the_team(gpus: int, found: list[str]) -> None:
    quota = f"kind: Quota\nmetadata: {{name: gpus, team: vision}}\nspec: {{gpus: [{{gpu: V100, guaranteed: {gpus}}}]}}"
    assert codes(unchecked(joined(CLUSTER, TEAM, POOL, quota, PIPELINE))) == found


def test_a_plan_is_for_the_time_of_a_run() -> None:
    found = find_workloads(compiled(joined(CLUSTER, TEAM, POOL, PIPELINE)).manifests, "main")
    counts = {id_.name: work.count() for id_, work in found.items() if id_.kind == "Job"}
    assert counts == {"ranker-train-chief": 1, "ranker-train-server": 1, "ranker-train-worker": 1}
    assert found[ObjectKey("batch", "Job", "vision", "ranker-train-chief")].owner.name == "ranker"
    idle = PIPELINE.replace("  publish", "  suspended: true\n  publish")
    assert find_workloads(compiled(joined(CLUSTER, TEAM, POOL, idle)).manifests, "main").keys() == {
        each for each in found if each.kind != "Job"
    }


def test_facts_and_look() -> None:
    program = example().program
    item = program.get_kind(Pipeline, "ranker", "search")
    train = item.spec.train.template
    assert train is not None
    assert get_kind("Pipeline").facts(item, program) == {
        "trigger": "new version of clicks",
        "GPUs": "16 A100",
        "image": train.image,
        "metrics": "auc, loss",
        "publish": "s3://search-models/published/ranker, 10 kept",
        "deploy": "ranker by commit",
    }
    hooks = get_kind("Pipeline").workload
    assert hooks is not None
    assert hooks.summary(item) == "new version of clicks · ranker"


def test_docs_list_the_rights_of_the_daemon() -> None:
    found = objects(example(), "ranker")
    rules = found["Role", "ranker-delivery"]["rules"]
    triples = {(g, r, v) for rule in rules for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]}
    assert triples == documented("`NAME-delivery`, in the namespaces of teams")
    state = found["Role", "pipeline-state.search.ranker"]["rules"]
    assert state == [
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "verbs": ["patch"],
            "resourceNames": ["pipeline-state.search.ranker"],
        }
    ]


def test_secrets_of_source_and_target() -> None:
    """The pod that publishes has one set of credentials."""
    team = """
kind: Team
metadata: {name: vision}
spec:
  buckets:
    - {name: a, url: "s3://models/training", secret: a-s3}
    - {name: b, url: "s3://models/published", secret: b-s3}
"""
    assert codes(unchecked(joined(CLUSTER, team, POOL, PIPELINE))) == ["bucket-access"]
    assert codes(unchecked(joined(CLUSTER, team.replace("b-s3", "a-s3"), POOL, PIPELINE))) == []


DELIVERY = "  delivery: {secret: avactl-delivery}\n"
DAEMONS = "  daemons: {scheduler: true, serving: true, delivery: true, metricsFrom: [monitoring]}\n"
SPECS = 'repository: "https://github.com/example/specs"'


def two_clusters(file: str = "", old: str = "", new: str = "") -> Compilation:
    """Compile `examples/two-clusters`, with another text in one file."""
    root = ROOT / "examples" / "two-clusters"
    files = {str(path.relative_to(root)): path.read_text() for path in root.rglob("*.yaml")}
    if file:
        assert files[file].count(old) == 1
        files[file] = files[file].replace(old, new)
    return compile_tree(MemoryTree({name: text.encode() for name, text in files.items()}))


def test_a_service_on_another_cluster() -> None:
    """Each cluster gets what its own daemon needs, and no rights beyond that."""
    result = two_clusters()
    assert codes(result) == []
    own = [each for each in result.manifests if (each.item.kind, each.item.name) == ("Pipeline", "embed")]
    there = [each for each in own if each.cluster == "serve"]
    assert {each.cluster for each in own} == {"train", "serve"}
    assert [(each.kind, each.namespace, each.name) for each in there] == [
        ("ConfigMap", "avactl-system", "rollout-report.search.embed")
    ]
    assert json.loads(there[0].body["data"]["report.json"]) == {
        "cluster": "serve",
        "model": "embed",
        "namespace": "search",
        "service": "embed",
    }
    item = result.program.get_kind(Pipeline, "embed", "search")
    assert get_kind("Pipeline").facts(item, result.program)["deploy"] == "embed on serve by commit"
    deploy = plan(result, "embed")["deploy"]
    assert (deploy["cluster"], deploy["rollout"], deploy["file"]) == ("serve", True, "teams/embed.yaml")
    (role,) = (each.body for each in own if (each.kind, each.name) == ("Role", "embed-delivery"))
    assert "apps" not in {group for rule in role["rules"] for group in rule["apiGroups"]}
    # Its daemon reads the rollout there with the rights that roll-backs need anyway.
    rules = [each.body["rules"] for each in result.manifests if (each.kind, each.name) == ("Role", "embed-rollback")]
    assert rules[0][0]["resourceNames"] == ["embed"]
    assert "cluster" not in plan(example(), "ranker")["deploy"]


@pytest.mark.parametrize(
    ("file", "old", "new", "found"),
    [
        (
            "clusters/serve.yaml",
            DAEMONS + DELIVERY,
            DAEMONS.replace("delivery: true, ", ""),
            "error[missing-daemon] write `daemons: {delivery: true}` in Cluster serve, with `delivery: {secret: NAME}`",
        ),
        ("clusters/serve.yaml", DELIVERY, "  delivery: {}\n", "error[missing-key] add `delivery: {secret: NAME}` to"),
        (
            "clusters/serve.yaml",
            DELIVERY,
            DELIVERY.replace("}", ", rollback: never}"),
            "error[conflicting-keys] write `rollback: commit` in `delivery` of Cluster serve",
        ),
        (
            "clusters/serve.yaml",
            SPECS,
            f"{SPECS}, branch: production",
            "error[other-cluster] let both clusters follow one branch of one repository",
        ),
        ("clusters/serve.yaml", SPECS, SPECS.replace("specs", "other"), "error[other-cluster] let both clusters"),
        ("clusters/train.yaml", SPECS, f"{SPECS}, path: prod", "error[other-cluster] let both clusters"),
    ],
)
def test_what_a_service_on_another_cluster_needs(file: str, old: str, new: str, found: str) -> None:
    problems = [each for each in two_clusters(file, old, new).diagnostics if each.severity == "error"]
    assert [f"error[{each.code}] {each.hint}"[: len(found)] for each in problems] == [found]


def test_a_service_on_another_cluster_without_rollout() -> None:
    """Nothing says how its rollout ends, so nothing is recorded, and nothing but git is needed there."""
    text = (ROOT / "examples" / "two-clusters" / "teams" / "embed.yaml").read_text()
    rollout = text[text.index("  rollout:\n") :]
    result = two_clusters("teams/embed.yaml", rollout, "")
    assert codes(result) == ["no-rollout"]
    assert {each.cluster for each in result.manifests if each.item.kind == "Pipeline"} == {"train"}
    deploy = plan(result, "embed")["deploy"]
    assert (deploy["cluster"], deploy["rollout"]) == ("serve", False)
