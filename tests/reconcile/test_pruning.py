"""One rejected object keeps what depends on it, and nothing else."""

from __future__ import annotations

import io
from typing import Any

import pytest
import yaml

from avactl.apply.reconcile.actions import Action, ReconcileStep, plan
from avactl.apply.reconcile.desired import Wanted, wanted_of
from avactl.apply.reconcile.diffing.field_policy import Hands
from avactl.apply.reconcile.health import Health, HealthState
from avactl.apply.reconcile.inventory import InventoryRecord
from avactl.apply.reconcile.pruning import held_back
from avactl.apply.reconcile.reporting.progress import ReconcileProgress
from avactl.apply.reconcile.reporting.report import as_text
from avactl.base.object_identity import ObjectKey
from avactl.compiler import compile_tree
from avactl.spec.repository.tree import MemoryTree
from tests.reconcile.test_apply import by_title
from tests.reconcile.test_fields_of_others import WEB
from tests.reconcile.world import PLATFORM, World

JOB = """\
apiVersion: avactl.dev/v1
kind: TrainingJob
metadata: {name: NAME, team: vision}
spec:
  image: registry.example.com/train@sha256:5fc197963c82353a79543c56348ccfa631c386c5b9c4eb50de4fc9bcca31ceee
  command: [COMMAND]
  workers: {gpus: 1, cpu: "4", memory: 16Gi}
  checkpoint: {volume: 10Gi, deletionPolicy: delete}
"""
SERVICE = """\
apiVersion: avactl.dev/v1
kind: ServingDeployment
metadata: {name: NAME, team: vision}
spec:
  model: {name: m, version: "1", url: s3://models/m/1}
  runtime: {name: custom, image: IMAGE, command: [serve], port: 8080}
  resources: {cpu: "1", memory: 1Gi}
  replicas: 2
  probe: {path: /health}
"""
SERVICE = SERVICE.replace(
    "IMAGE", "registry.example.com/s@sha256:5fc197963c82353a79543c56348ccfa631c386c5b9c4eb50de4fc9bcca31ceee"
)


def job(name: str, command: str = "python, train.py") -> str:
    return JOB.replace("NAME", name).replace("COMMAND", command)


def manifests(*bodies: dict[str, Any], namespace: str = "one-vision") -> str:
    spec = {"namespace": namespace, "objects": list(bodies)}
    document = {"apiVersion": "avactl.dev/v1", "kind": "KubernetesObjects", "metadata": {"name": "own"}, "spec": spec}
    return yaml.safe_dump(document)


def config(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def web(reads: str, name: str = "web") -> dict[str, Any]:
    body: dict[str, Any] = yaml.safe_load(yaml.safe_dump(WEB))
    body["metadata"]["name"] = name
    body["spec"]["template"]["spec"]["containers"][0]["envFrom"] = [{"configMapRef": {"name": reads}}]
    return body


def declared(*specs: str, platform: str = PLATFORM) -> list[Wanted]:
    text = platform.replace("NAME", "one") + "".join(f"---\n{each}\n" for each in specs)
    result = compile_tree(MemoryTree({"specs.yaml": text}))
    assert result.ok, result.diagnostics
    return wanted_of(result, "lab", "lab")


def held(before: list[Wanted], after: list[Wanted], *rejected: str) -> dict[str, str]:
    """What is not pruned if these objects of the second commit are rejected."""
    live = {each.key: each.body for each in before}
    steps = plan(after, live, "lab", InventoryRecord(), Hands())
    for step in steps:
        if step.title in rejected:
            step.error = "rejected"
    assert sum(bool(step.error) for step in steps) == len(rejected)
    pruned = {str(step.key) for step in steps if step.action is Action.prune}
    assert pruned
    return {str(key): reason for key, reason in held_back(steps).items()}


def test_a_renamed_job_never_runs_twice() -> None:
    """Neither an unrelated object nor another job that is rejected keeps the old run."""
    before = declared(job("train"))
    after = declared(job("fit"), job("other", "./simulate, --steps, '9'"), manifests(config("a", x="1")))
    assert not held(before, after, "ConfigMap one-vision/a")
    assert not held(before, after, "Job one-vision/other-worker")
    # Nor does an object of its own that its pods do not need.
    assert "Job one-vision/train-worker" not in held(before, after, "PersistentVolumeClaim one-vision/fit-checkpoint")


def test_a_job_whose_new_name_is_rejected_goes_on() -> None:
    kept = held(declared(job("train")), declared(job("fit")), "Job one-vision/fit-worker")
    assert (
        kept["Job one-vision/train-worker"] == "Job one-vision/fit-worker, which may replace it, could not be applied"
    )
    assert (
        kept["PersistentVolumeClaim one-vision/train-checkpoint"] == "of the same spec as Job one-vision/train-worker"
    )


def test_a_service_goes_on_as_a_whole() -> None:
    before, after = (declared(SERVICE.replace("NAME", name)) for name in ("old", "new"))
    kept = held(before, after, "Deployment one-vision/new")
    assert {"Deployment one-vision/old", "Service one-vision/old"} <= kept.keys()
    assert not held(before, after, "PodDisruptionBudget one-vision/new").keys() & {"Deployment one-vision/old"}


def test_what_the_old_version_of_a_rejected_object_needs_stays() -> None:
    before = declared(manifests(config("a", x="1"), config("c", x="1"), web("a")))
    after = declared(manifests(config("b", x="1", y="2", z="3"), web("b")))
    assert held(before, after, "Deployment one-vision/web") == {
        "ConfigMap one-vision/a": "needed by Deployment one-vision/web"
    }


@pytest.mark.parametrize("labelled", [False, True])
def test_what_an_object_of_another_kind_would_replace_stays(labelled: bool) -> None:
    """As a service of one machine that becomes one of several: a LeaderWorkerSet in place of a Deployment."""
    old, new = web("c"), web("c", "web-set" if labelled else "web")
    new |= {"kind": "StatefulSet", "spec": {**new["spec"], "serviceName": "web"}}
    for body in (old, new) if labelled else ():
        body["metadata"]["labels"] = {"app.kubernetes.io/name": "server", "app.kubernetes.io/instance": "web"}
    before = declared(manifests(old, config("c", x="1")))
    after = declared(manifests(new, config("c", x="1"), config("a", x="1")))
    rejected = f"StatefulSet one-vision/{new['metadata']['name']}"
    kept = held(before, after, rejected)
    assert kept["Deployment one-vision/web"] == f"{rejected}, which may replace it, could not be applied"
    assert not held(before, after, "ConfigMap one-vision/a")


def test_what_is_only_named_stays() -> None:
    """The Service behind an Ingress: no field of its kind says so."""
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "front"}, "spec": {"ports": [{"port": 80}]}}
    path = {"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "front", "port": {"number": 80}}}}
    ingress: dict[str, Any] = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {"name": "way"},
        "spec": {"rules": [{"http": {"paths": [path]}}]},
    }
    fresh = {**ingress, "spec": {"defaultBackend": {"service": {"name": "web", "port": {"number": 80}}}}}
    before = declared(manifests(service, ingress, config("c", x="1")))
    after = declared(manifests(fresh, config("a", x="1", y="2")))
    assert held(before, after, "Ingress one-vision/way") == {
        "Service one-vision/front": "needed by Ingress one-vision/way"
    }


@pytest.mark.parametrize(
    "spec", [None, "text", [], {"template": "text", "target": ["x"]}, {"template": {"metadata": 1}}]
)
def test_custom_resources_may_have_any_spec(spec: object) -> None:
    odd = {"apiVersion": "example.com/v1", "kind": "Odd", "metadata": {"name": "odd"}, "spec": spec}
    steps = plan(declared(manifests(web("a"), config("a", x="1"))), {}, "lab", InventoryRecord(), Hands())
    (failed,) = (step for step in steps if step.title == "Deployment one-vision/web")
    assert failed.wanted is not None
    failed.error, failed.live = "rejected", failed.wanted.body
    key = ObjectKey("example.com", "Odd", "one-vision", "odd")
    assert held_back([*steps, ReconcileStep(Action.prune, str(key), key, 0, live=odd)]) == {}


def test_a_namespace_that_is_rejected_keeps_what_would_move_into_it() -> None:
    before = declared(job("train"))
    moved = PLATFORM.replace("namespaces: [{name: NAME-vision}]", "namespaces: [{name: NAME-eyes}]")
    after = declared(job("train"), platform=moved)
    rejected = ("Namespace one-eyes", *(str(each.key) for each in after if each.key.namespace == "one-eyes"))
    kept = held(before, after, *rejected)
    assert {"Job one-vision/train-worker", "Namespace one-vision"} <= kept.keys()


@pytest.mark.parametrize("count", [2, 60])
def test_a_wait_names_all_objects(count: int) -> None:
    stream = io.StringIO()
    late = {f"Job vision/{number:02}": Health(HealthState.progressing, f"reason {number}") for number in range(count)}
    with ReconcileProgress(stream, quiet=False) as progress:
        progress.listener().waiting(late)
    text = stream.getvalue()
    assert text.startswith(f"waiting for {count} objects: Job vision/00: reason 0; Job vision/01: reason 1")
    assert text.count("\n") == 1
    assert ("and 20 more" in text) == (count == 60)


REFUSED = "{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: 203.0.113.7, ports: [{port: 80}]}}"


@pytest.mark.controlplane
@pytest.mark.xdist_group("reconcile")
def test_one_rejected_object_keeps_no_other_run(world: World) -> None:
    team = "apiVersion: avactl.dev/v1\nkind: KubernetesObjects\nmetadata: {name: own, team: vision}\n"
    world.commit({"platform.yaml": world.specs(), "job.yaml": job("train")})
    assert world.once(wait=False).complete
    world.commit({"job.yaml": job("fit"), "own.yaml": f"{team}spec:\n  objects:\n  - {REFUSED}\n"})
    result = world.once(wait=False)
    assert [step.title for step in result.failed] == [f"Service {world.name}-vision/a"]
    steps = by_title(result)
    assert steps[f"Job {world.name}-vision/fit-worker"].action is Action.create, as_text(result, False)
    assert steps[f"Job {world.name}-vision/train-worker"].action is Action.prune, as_text(result, False)
    # The live Job has defaults that git does not: a rename is recognised all the same.
    metadata = {"name": "no-jobs", "namespace": f"{world.name}-vision"}
    hard = {"hard": {"count/jobs.batch": "0"}}
    world.kube.create({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": hard})
    world.commit({"job.yaml": job("refit"), "own.yaml": None})
    result = world.once(wait=False)
    old, new = (by_title(result)[f"Job {world.name}-vision/{name}-worker"] for name in ("fit", "refit"))
    assert new.error
    assert (old.action, old.reason) == (
        Action.wait,
        f"not pruned: {new.title}, which may replace it, could not be applied",
    )
