"""A new kind is one line in the registry; everything else that avactl does with kinds follows from it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import pytest
from pydantic import Field

from avactl.change.diff import Diff, compare
from avactl.change.plan.model import PlanVerdict
from avactl.change.plan.planner import make_plan
from avactl.compiler import Compilation, compile_tree
from avactl.compiler.json_schema import schema_files
from avactl.diagnostics import Diagnostic
from avactl.program import registry
from avactl.program.explain.explain import explain_text
from avactl.program.lowering import k8s, pods
from avactl.program.manifest import Manifest
from avactl.program.program import Item, Program
from avactl.program.registry import Kind, ObjectEffect
from avactl.program.workload import Lifecycle, WorkloadHooks, WorkloadRole
from avactl.spec.repository.tree import MemoryTree
from avactl.spec.schema.base import Model, Resource
from avactl.spec.schema.compute import Compute, DatasetMount
from avactl.spec.schema.values import ClusterRef, Count, Duration
from avactl.workbench.graph import draw
from tests.added_kind import added_kind
from tests.kinds.compiling import DIGEST, unchecked

PLATFORM = """\
apiVersion: avactl.dev/v1
kind: Cluster
metadata: {name: main}
---
apiVersion: avactl.dev/v1
kind: Team
metadata: {name: vision}
---
"""
NOTE = "apiVersion: avactl.dev/v1\nkind: Notebook\nmetadata: {name: n, team: vision}\nspec: {pages: 3}\n"


class NotebookSpec(Model):
    """Pages."""

    pages: Count = Field(description="How many pages.")


class Notebook(Resource):
    """A notebook of a team.

    Compiles to a ConfigMap.
    """

    KIND: ClassVar[str] = "Notebook"
    SCOPE: ClassVar[Literal["team"]] = "team"
    kind: Literal["Notebook"] = Field("Notebook", description="`Notebook`.")
    spec: NotebookSpec = Field(description="The notebook.")


def lower(item: Item[NotebookSpec], program: Program) -> list[Manifest]:
    return [k8s.config_map(item, item.cluster, item.name, item.ns, {"pages": str(item.spec.pages)})]


def check(item: Item[NotebookSpec], program: Program) -> Iterable[Diagnostic]:
    if item.spec.pages > 10:
        yield Diagnostic("invalid-value", "too many pages", item.span("spec", "pages"), hint="tear some out")


@pytest.fixture(autouse=True)
def notebook() -> Iterator[None]:
    with added_kind(Kind(Notebook, lower, check)):
        yield


def test_it_compiles() -> None:
    result = compile_tree(MemoryTree({"a.yaml": PLATFORM + NOTE}))
    assert result.diagnostics == ()
    bodies = [m.body for m in result.manifests if m.item.kind == "Notebook"]
    assert [(b["kind"], b["metadata"]["namespace"], b["data"]) for b in bodies] == [
        ("ConfigMap", "vision", {"pages": "3"})
    ]


def test_its_checks_and_slips_are_told() -> None:
    result = compile_tree(MemoryTree({"a.yaml": PLATFORM + NOTE.replace("3", "30")}))
    assert [(d.code, str(d.span)) for d in result.diagnostics] == [("invalid-value", "a.yaml:12:15")]
    result = compile_tree(MemoryTree({"a.yaml": PLATFORM + NOTE.replace("Notebook", "Notebok")}))
    assert [d.hint for d in result.diagnostics] == ["did you mean `Notebook`?"]


def test_schema_and_explanation_follow() -> None:
    schema = json.loads(schema_files()["notebook.schema.json"])
    assert schema["$defs"]["NotebookSpec"]["required"] == ["pages"]
    assert "How many pages." in explain_text("Notebook.pages")
    assert "A notebook of a team." in explain_text(None)


# -- a kind with GPU pods ----------------------------------------------------------------------------------------------


IMAGE = f"registry.example.com/x{DIGEST}"
GPU_PLATFORM = f"""
kind: Cluster
metadata: {{name: main}}
spec:
  images: {{avactl: registry.example.com/avactl{DIGEST}, alluxio: registry.example.com/alluxio{DIGEST}}}
  daemons: {{scheduler: true}}
---
kind: MachineType
metadata: {{name: eight}}
spec: {{gpus: {{model: V100, count: 8, memory: 16Gi}}, cpu: 64, memory: 512Gi, sockets: 2}}
---
kind: NodePool
metadata: {{name: v100}}
spec: {{cluster: main, machineType: eight, count: 4}}
---
kind: Team
metadata: {{name: vision}}
spec: {{members: {{groups: [vision]}}, buckets: []}}
---
kind: Team
metadata: {{name: web}}
spec: {{members: {{groups: [web]}}}}
---
kind: CacheTier
metadata: {{name: read}}
spec:
  cluster: main
  role: read
  underStores: [{{url: "s3://ava/", mount: /ava, secret: ava}}]
  workers: {{pools: [v100], tiers: [{{medium: SSD, path: /mnt/cache, quota: 10Gi}}]}}
---
kind: Dataset
metadata: {{name: images}}
spec: {{tier: read, format: files, size: 1Gi, versions: [{{name: v1, url: "s3://ava/images"}}]}}
"""
QUOTA = """---
kind: Quota
metadata: {name: gpus, team: vision}
spec: {gpus: [{gpu: V100, guaranteed: 16, borrow: 0}]}
"""


def sweep(trials: int, gpus: int = 8, more: str = "", name: str = "lr") -> str:
    return f"""---
kind: Sweep
metadata: {{name: {name}, team: vision}}
spec:
  trials: {trials}
  compute: {{gpus: {gpus}, gpu: V100, cpu: 4, memory: 16Gi}}
  {more}
"""


class SweepSpec(Model):
    """Trials of a hyperparameter search."""

    cluster: ClusterRef | None = Field(None, description="Cluster.")
    trials: Count = Field(description="How many pods.")
    compute: Compute = Field(description="CPU, memory and GPUs of one trial.")
    datasets: list[DatasetMount] = Field(default_factory=list, description="Datasets to mount.")
    timeout: Duration | None = Field(None, description="Longest run.")
    callers: list[str] = Field(default_factory=list, description="Teams that may connect.")


class Sweep(Resource):
    """Trials of a hyperparameter search. Compiles to a Job."""

    KIND: ClassVar[str] = "Sweep"
    SCOPE: ClassVar[Literal["team"]] = "team"
    kind: Literal["Sweep"] = Field("Sweep", description="`Sweep`.")
    spec: SweepSpec = Field(description="The search.")


def lower_sweep(item: Item[SweepSpec], program: Program) -> list[Manifest]:
    spec = item.spec
    gpu = pods.GpuRequest(item, program, spec.compute, "trial")
    volumes = pods.PodVolumes(item, program)
    volumes.datasets(spec.datasets)
    resources = pods.build_resources(spec.compute.cpu, spec.compute.memory, gpu.resources())
    container = {"name": "trial", "image": IMAGE, "resources": resources}
    pod = pods.pod_spec(
        item, program, container, volumes=volumes, gpu=gpu, service_account="default", restartPolicy="Never"
    )
    body = {
        "parallelism": spec.trials,
        "completions": spec.trials,
        "template": {"metadata": {"labels": k8s.object_labels(item, "trial")}, "spec": pod},
    }
    return [
        k8s.build_manifest(
            item, item.cluster, "batch/v1", "Job", item.name, namespace=item.ns, component="trial", spec=body
        )
    ]


def impact(old: Item, new: Item, effects: Sequence[ObjectEffect]) -> str | None:
    return "the search begins anew" if any(effect.starts_pods for effect in effects) else None


def roles(item: Item[SweepSpec]) -> list[WorkloadRole]:
    return [
        WorkloadRole(("spec", "compute"), item.spec.compute, item.spec.trials, item.spec.trials, ("spec", "trials"))
    ]


def sweep_kind(lifecycle: Lifecycle) -> Kind[SweepSpec]:
    hooks: WorkloadHooks[SweepSpec] = WorkloadHooks(
        lifecycle,
        "sweep",
        roles,
        badge="sweep",
        summary=lambda item: f"{item.spec.trials} trials",
        timeout=lambda item: item.spec.timeout,
        has_checkpoint=lambda item: False,
        exposed_to=lambda item: item.spec.callers,
        stop="lower `trials`",
    )
    return Kind(Sweep, lower_sweep, workload=hooks, impact=impact)


@pytest.fixture(params=[Lifecycle.JOB])
def lifecycle(request: pytest.FixtureRequest) -> Iterator[Lifecycle]:
    with added_kind(sweep_kind(request.param)):
        yield request.param


def compiled(*parts: str) -> Compilation:
    result = unchecked("".join([GPU_PLATFORM, *parts]))
    assert result.ok, result.diagnostics
    return result


def told(*parts: str) -> list[tuple[str, str, str]]:
    return [(d.code, d.severity, d.message) for d in unchecked("".join([GPU_PLATFORM, *parts])).diagnostics]


def test_its_pods_are_held_against_the_machines(lifecycle: Lifecycle) -> None:
    assert told(sweep(4)) == []
    assert [(code, severity) for code, severity, _ in told(sweep(1, gpus=16))] == [("pod-never-fits", "error")]
    assert [(code, severity) for code, severity, _ in told(sweep(5))] == [("gang-never-fits", "error")]


def test_a_job_beyond_its_quota_is_an_error(lifecycle: Lifecycle) -> None:
    assert told(QUOTA, sweep(2), sweep(2, name="other")) == []
    assert told(QUOTA, sweep(3)) == [
        ("quota-exceeded", "error", "team vision requests 24 V100; its quota allows 16"),
    ]


@pytest.mark.parametrize("lifecycle", [Lifecycle.SERVICE], indirect=True)
def test_services_must_fit_their_quota_together(lifecycle: Lifecycle) -> None:
    assert told(QUOTA, sweep(1), sweep(2, name="other")) == [
        ("quota-exceeded", "error", "team vision requests 24 V100; its quota allows 16")
    ]


@pytest.mark.parametrize("lifecycle", [Lifecycle.SERVICE], indirect=True)
def test_teams_that_may_call_a_service_reach_it(lifecycle: Lifecycle) -> None:
    def reachable(more: str) -> list[str]:
        made = compiled(sweep(1, more=more)).manifests
        policy = next(each.body["spec"] for each in made if (each.namespace, each.name) == ("web", "allow-egress"))
        (team,) = policy["egress"][1]["to"][0]["namespaceSelector"]["matchExpressions"]
        return list(team["values"])

    assert reachable("") == ["web"]
    assert reachable("callers: [web]") == ["vision", "web"]


@pytest.mark.parametrize("lifecycle", [Lifecycle.SESSION], indirect=True)
def test_sessions_beyond_their_quota_are_a_warning(lifecycle: Lifecycle) -> None:
    result = unchecked("".join([GPU_PLATFORM, QUOTA, sweep(1), sweep(2, name="other")]))
    (problem,) = result.diagnostics
    assert (problem.code, problem.severity, problem.label) == ("quota-waits", "warning", "2 sweeps")
    assert problem.message == "the sweeps of team vision request 24 V100; its quota allows 16, so some wait"
    assert problem.hint.startswith("lower `trials`; or raise")


def test_the_graph_shows_it(lifecycle: Lifecycle) -> None:
    drawn = draw(compiled(QUOTA, sweep(2, more="datasets: [{name: images, version: v1}]")))
    shown = re.findall(r">([^<>]+)</text>", drawn)
    row = shown.index("lr")
    assert shown[row - 1 : row + 3] == ["sweep", "lr", "2 trials", "16 V100"]
    assert "requests 16 of 16 + 0" in shown
    assert "requested at full size: 16 of 32 (50%)" in shown
    for line in ("Sweep vision/lr may run in pool v100", "Sweep vision/lr reads images through read"):
        assert line in drawn


def test_datasets_are_mounted_where_it_runs(lifecycle: Lifecycle) -> None:
    def claims(more: str) -> list[str]:
        made = compiled(sweep(1, more=more)).manifests
        return [manifest.name for manifest in made if manifest.kind == "PersistentVolumeClaim"]

    assert claims("") == []
    assert claims("datasets: [{name: images, version: v1}]") == ["dataset-images-v1"]


def changes(before: str, after: str) -> Diff:
    return compare(compiled(QUOTA, before), compiled(QUOTA, after))


def test_the_diff_tells_capacity_quota_and_impact(lifecycle: Lifecycle) -> None:
    (intent,) = changes(sweep(1), sweep(2)).intents
    assert [(consequence.topic, consequence.text) for consequence in intent.consequences] == [
        ("run", "the search begins anew"),
        ("capacity", "fits pool v100 (specs request 16 of 32 V100)"),
        ("quota", "quota vision 8 → 16 of 16 V100"),
    ]


def test_a_rename_is_one_unless_the_identity_differs(lifecycle: Lifecycle) -> None:
    before, after = sweep(1), sweep(1, name="other")
    assert [intent.op for intent in changes(before, after).intents] == ["renamed"]
    with added_kind(replace(sweep_kind(lifecycle), identity=lambda item: item.spec_name)):
        assert sorted(intent.op for intent in changes(before, after).intents) == ["added", "removed"]


def test_the_plan_starts_it(lifecycle: Lifecycle) -> None:
    base, head = compiled(sweep(1, name="old")), compiled(sweep(1, name="old"), sweep(2))
    found = make_plan(base, head, "main")
    (entry,) = found.entries
    assert (str(entry.owner), entry.verdict, entry.pods, entry.placed) == ("Sweep vision/lr", PlanVerdict.STARTS, 2, 2)
    assert entry.cost.gpus == {"V100": 16}
    assert [(pool.before, pool.after) for pool in found.pools] == [(8, 24)]


def test_the_plan_names_it_where_others_take_its_gpus(lifecycle: Lifecycle) -> None:
    lends = """---
kind: Quota
metadata: {name: gpus, team: vision}
spec: {gpus: [{gpu: V100, guaranteed: 0, borrow: 32}]}
---
kind: Quota
metadata: {name: gpus, team: web}
spec: {gpus: [{gpu: V100, guaranteed: 32, borrow: 0}]}
"""
    owner = sweep(2, name="owner").replace("team: vision", "team: web")
    found = make_plan(compiled(lends, sweep(4)), compiled(lends, sweep(4), owner), "main")
    assert [(str(effect.owner), effect.what, str(effect.by)) for effect in found.effects] == [
        ("Sweep vision/lr", "shrinks", "Sweep web/owner")
    ]


def test_ready_made_policies_know_it(lifecycle: Lifecycle) -> None:
    tree = MemoryTree(
        {
            "avactl.yaml": "policies: {checkpoints: {gpuHours: 100}, jobs-end: warning}\n",
            "specs.yaml": "".join(
                f"apiVersion: avactl.dev/v1\n{part.strip()}\n---\n"
                for part in (GPU_PLATFORM + sweep(2)).split("\n---\n")
            ),
        }
    )
    assert [(problem.rule, problem.message) for problem in compile_tree(tree).diagnostics] == [
        ("jobs-end", "the job has no `timeout`: if it hangs, it keeps its GPUs"),
        ("checkpoints", "16 GPUs without a timeout and without a checkpoint"),
    ]


def test_workloads_belong_to_teams() -> None:
    class Shared(Sweep):
        KIND: ClassVar[str] = "Shared"
        SCOPE: ClassVar[Any] = "either"

    with pytest.raises(ValueError, match="its model needs SCOPE = 'team'"):
        Kind(Shared, lower_sweep, workload=WorkloadHooks(Lifecycle.JOB, "sweep", roles))


@pytest.mark.parametrize("name", registry.kind_names())
def test_the_registry_knows_lifecycles_without_an_import(name: str) -> None:
    workload = registry.get_kind(name).workload
    assert registry.get_lifecycle(name) == (workload.lifecycle if workload is not None else None)
    assert (name in registry.written_kinds()) is registry.get_kind(name).has_written
