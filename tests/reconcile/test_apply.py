"""Apply and prune: what holds data stays, runs are replaced or end first, one refusal stops only what needs it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import orjson
import pytest

from avactl.apply.reconcile.actions import Action, ReconcileStep
from avactl.apply.reconcile.options import ReconcileOptions
from avactl.apply.reconcile.reconciler import Reconciler
from avactl.apply.reconcile.reporting.commit_status import status_words
from avactl.apply.reconcile.reporting.report import StepResult, as_json, as_text
from avactl.kube import access
from avactl.kube.client import Client, UnreachableError
from avactl.kube.object_client import ObjectClient
from tests.compute_domains import define_compute_domains
from tests.definitions import define_monitoring, define_routes
from tests.kinds.compiling import DIGEST
from tests.proxy import Proxy
from tests.reconcile.world import ROOT, World
from tools.controlplane import ApiError
from tools.waiting import patience, wait_until

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("reconcile")]

JOB = """\
apiVersion: avactl.dev/v1
kind: TrainingJob
metadata: {name: train, team: vision}
spec:
  image: docker.io/pytorch/pytorch:2.8.0-cuda12.9-cudnn9-runtime
  command: [python, train.py]
  workers: {gpus: 1, cpu: "4", memory: 16Gi}
  checkpoint: {volume: 10Gi, deletionPolicy: POLICY}
  onChange: CHANGE
"""
WORKSPACE = """\
apiVersion: avactl.dev/v1
kind: Workspace
metadata: {name: ada, team: vision}
spec:
  {user: ada@example.com, gpus: 1, gpu: A10, image: DIGEST}
"""
WORKSPACE = WORKSPACE.replace("DIGEST", f"registry.example.com/lab{DIGEST}")
CLASSES = """\
apiVersion: avactl.dev/v1
kind: TrainingJob
metadata: {name: NAME, team: vision}
spec:
  image: docker.io/pytorch/pytorch:2.8.0-cuda12.9-cudnn9-runtime
  command: [python, train.py]
  workers: {gpus: 1, cpu: "4", memory: 16Gi}
"""
WIDGETS = """\
apiVersion: avactl.dev/v1
kind: KubernetesObjects
metadata: {name: widgets}
spec:
  namespace: NAME-vision
  objects:
    - apiVersion: apiextensions.k8s.io/v1
      kind: CustomResourceDefinition
      metadata: {name: widgets.NAME.example.com}
      spec:
        group: NAME.example.com
        scope: Namespaced
        names: {plural: widgets, singular: widget, kind: Widget}
        versions:
          - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: SPEC}}}
    - {apiVersion: NAME.example.com/v1, kind: Widget, metadata: {name: one}, spec: {}}
"""
WIDGETS = WIDGETS.replace("SPEC", "{spec: {type: object}}")


def job(policy: str = "retain", change: str = "replace") -> str:
    """A job with a checkpoint volume."""
    return JOB.replace("POLICY", policy).replace("CHANGE", change)


def by_title(result: StepResult) -> dict[str, ReconcileStep]:
    """The steps of a run by what they are about."""
    return {step.title: step for step in result.steps}


def live_job(world: World) -> dict[str, Any]:
    """The Job of `train`."""
    return world.kube.get("batch/v1", "Job", "train-worker", f"{world.name}-vision")


def test_what_left_git_is_pruned_and_data_stays(world: World) -> None:
    ns = f"{world.name}-vision"
    files = {"platform.yaml": world.specs(), "job.yaml": job("retain"), "home.yaml": WORKSPACE}
    world.commit(files)
    assert world.once().complete
    claim = world.kube.get("v1", "PersistentVolumeClaim", "train-checkpoint", ns)
    world.commit({"job.yaml": None, "home.yaml": None})
    result = world.once()
    steps = by_title(result)
    assert result.complete, as_text(result, False)
    assert steps[f"Job {ns}/train-worker"].action is Action.prune
    assert steps[f"PersistentVolumeClaim {ns}/train-checkpoint"].action is Action.keep
    assert steps[f"PersistentVolumeClaim {ns}/ada-home"].action is Action.keep
    assert world.kube.find("batch/v1", "Job", "train-worker", ns) is None
    kept = world.kube.get("v1", "PersistentVolumeClaim", "train-checkpoint", ns)
    assert kept["metadata"]["uid"] == claim["metadata"]["uid"]
    assert not kept["metadata"].get("deletionTimestamp")
    # It keeps its mark, so that a run says so every time; and nothing is written for it.
    again = world.once()
    assert not again.changed
    assert by_title(again)[f"PersistentVolumeClaim {ns}/train-checkpoint"].action is Action.keep
    # The team goes with all that is in it, but for the namespace of what is kept.
    world.commit({"platform.yaml": world.specs().partition("---\napiVersion: avactl.dev/v1\nkind: Team")[0]})
    result = world.once(wait=False)
    assert result.complete, as_text(result, False)
    assert by_title(result)[f"Namespace {ns}"].action is Action.keep
    assert by_title(result)[f"Namespace {ns}"].reason.startswith("needed by")
    assert not world.kube.get("v1", "Namespace", ns)["metadata"].get("deletionTimestamp")


def test_deletion_policy_delete_counts_as_it_was_applied(world: World) -> None:
    ns = f"{world.name}-vision"
    world.commit({"platform.yaml": world.specs(), "job.yaml": job("delete")})
    assert world.once().complete
    # Somebody takes the mark away: what cannot be known to be disposable stays.
    metadata = {"name": "train-checkpoint", "namespace": ns, "annotations": {"avactl.dev/deletion-policy": None}}
    world.kube.patch({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata})
    world.commit({"job.yaml": None})
    assert by_title(world.once())[f"PersistentVolumeClaim {ns}/train-checkpoint"].action is Action.keep
    world.commit({"job.yaml": job("delete")})
    assert world.once().complete
    world.commit({"job.yaml": None})
    assert by_title(world.once())[f"PersistentVolumeClaim {ns}/train-checkpoint"].action is Action.prune
    assert world.kube.find("v1", "PersistentVolumeClaim", "train-checkpoint", ns) is None


def test_a_changed_job_is_a_new_run_and_its_checkpoint_stays(world: World) -> None:
    ns = f"{world.name}-vision"
    world.commit({"platform.yaml": world.specs(), "job.yaml": job()})
    assert world.once().complete
    first, claim = live_job(world), world.kube.get("v1", "PersistentVolumeClaim", "train-checkpoint", ns)
    world.replace("job.yaml", "train.py", "train2.py")
    result = world.once()
    assert result.complete, as_text(result, False)
    assert by_title(result)[f"Job {ns}/train-worker"].action is Action.recreate
    second = live_job(world)
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert second["spec"]["template"]["spec"]["containers"][0]["command"] == ["python", "train2.py"]
    same = world.kube.get("v1", "PersistentVolumeClaim", "train-checkpoint", ns)
    assert same["metadata"]["uid"] == claim["metadata"]["uid"]


def test_on_change_finish_waits_for_the_end_of_the_run(world: World) -> None:
    ns = f"{world.name}-vision"
    world.commit({"platform.yaml": world.specs(), "job.yaml": job(change="finish")})
    assert world.once().complete
    first = live_job(world)
    world.replace("job.yaml", "train.py", "train2.py")
    result = world.once()
    assert result.complete
    assert by_title(result)[f"Job {ns}/train-worker"].action is Action.wait
    assert live_job(world)["metadata"]["uid"] == first["metadata"]["uid"]
    # The run ends: its pod is done, and the controller says so.
    world.kube.wait_for("batch/v1", "Job", "train-worker", ns, until=lambda job: job["status"].get("active"))
    pod = world.kube.list("v1", "Pod", ns)[0]
    pod["status"] = {**pod["status"], "phase": "Succeeded"}
    world.kube.replace(pod, subresource="/status")
    world.kube.wait_for(
        "batch/v1",
        "Job",
        "train-worker",
        ns,
        until=lambda job: any(c["type"] == "Complete" for c in job["status"].get("conditions", ())),
    )
    assert by_title(world.once())[f"Job {ns}/train-worker"].action is Action.recreate
    assert live_job(world)["metadata"]["uid"] != first["metadata"]["uid"]


def test_a_commit_that_does_not_compile_changes_nothing(world: World) -> None:
    world.commit({"platform.yaml": world.specs(), "job.yaml": job()})
    assert world.once().complete
    with Proxy(world.plane, world.folder) as proxy:
        world.kubeconfig = proxy.kubeconfig
        world.commit({"platform.yaml": world.specs().replace("guaranteed: 4", "garanteed: 4"), "job.yaml": None})
        run = world.run("--once")
        assert run.returncode == 1
        assert "unknown-key" in run.stderr
        assert "nothing was changed" in run.stderr
        assert proxy.writes() == 0
    assert live_job(world)


def test_one_refusal_stops_only_what_needs_it(world: World) -> None:
    """A policy of the cluster refuses one ConfigMap; its job is not made, all others are; then it may, and all is."""
    ns = f"{world.name}-vision"
    multi = CLASSES.replace("gpus: 1", "replicas: 2, gpus: 1").replace("spec:\n", "spec:\n  strategy: allReduce\n")
    world.commit({"platform.yaml": world.specs(multi.replace("NAME", "big"), CLASSES.replace("NAME", "small"))})
    policy = world.kube.create(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": world.name},
            "spec": {
                "matchConstraints": {
                    "resourceRules": [
                        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["services"]}
                    ]
                },
                "validations": [{"expression": "object.metadata.name != 'big-rendezvous'", "message": "not this one"}],
            },
        }
    ).body
    world.kube.create(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": world.name},
            "spec": {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]},
        }
    )
    try:
        _until_refused(world)
        run = world.run("--once", "--no-wait", "--format", "json")
        assert run.returncode == 5, run.stdout + run.stderr
        report = orjson.loads(run.stdout)
        failed = {entry["name"]: entry["error"] for entry in report["objects"] if entry["error"]}
        assert set(failed) == {"big-rendezvous", "big-worker"}
        assert "not this one" in failed["big-rendezvous"]
        assert "big-rendezvous" in failed["big-worker"]
        assert world.kube.find("batch/v1", "Job", "small-worker", ns)
        assert world.kube.find("batch/v1", "Job", "big-worker", ns) is None
    finally:
        for kind in ("ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy"):
            world.kube.delete("admissionregistration.k8s.io/v1", kind, world.name)
    _until_taken(world)
    assert world.run("--once", "--no-wait").returncode == 0
    world.want_state_of_git("lab")


def _probe(world: World) -> bool:
    body = {"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 1}]}}
    metadata = {"name": "big-rendezvous", "namespace": "default"}
    try:
        world.kube.create({**body, "metadata": metadata}, dry_run=True)
    except ApiError:
        return False
    return True


def _until_refused(world: World) -> None:
    wait_until(lambda: not _probe(world))


def _until_taken(world: World) -> None:
    wait_until(lambda: _probe(world))


def test_guards(world: World) -> None:
    world.commit({"platform.yaml": world.specs()})
    assert world.once().complete
    # The wrong repository for this cluster.
    other = World(world.plane, world.kube, world.folder / "other")
    other.folder.mkdir()
    other.commit({"platform.yaml": other.specs().replace(other.name, world.name), "OTHER.md": "another history\n"})
    refused = other.once()
    assert "belongs to another repository" in refused.problem
    assert not refused.changed
    # Objects of another inventory are not taken by accident.
    refused = other.once(inventory="mine")
    assert not refused.complete
    assert "owned by inventory lab" in refused.failed[0].error
    # A Cluster that left git takes nothing with it, unless that is meant.
    world.replace("platform.yaml", "name: lab}", "name: renamed}")
    world.replace("platform.yaml", "cluster: lab", "cluster: renamed")
    with pytest.raises(ValueError, match="no Cluster"):
        world.once("lab")
    assert "belongs to cluster lab" in world.once("renamed", inventory="lab").problem
    emptied = world.once("lab", allow_empty=True, wait=False)
    assert emptied.complete
    assert world.kube.find("v1", "ConfigMap", "avactl-pool-a10", f"{world.name}-system") is None


def test_a_field_that_cannot_change_in_place(world: World) -> None:
    """What holds nothing is made anew; what holds data is left, with a clear word."""
    ns = f"{world.name}-vision"
    slow = world.specs(WORKSPACE).replace("{mode: builtin}", "{mode: builtin}\n  storageClasses: {default: slow}")
    world.commit({"platform.yaml": slow})
    assert world.once().complete
    home = world.kube.get("v1", "PersistentVolumeClaim", "ada-home", ns)
    world.replace("platform.yaml", "default: slow", "default: fast")
    result = world.once(wait=False)
    failed = {step.title: step.error for step in result.failed}
    assert "would lose data" in failed[f"PersistentVolumeClaim {ns}/ada-home"]
    assert world.kube.get("v1", "PersistentVolumeClaim", "ada-home", ns)["metadata"]["uid"] == home["metadata"]["uid"]


def test_two_reconcilers_take_turns(world: World) -> None:
    world.commit({"platform.yaml": world.specs(), "job.yaml": job()})
    first, second = world.start("--once", "--no-wait", log="a"), world.start("--once", "--no-wait", log="b")
    assert first.wait(patience()) == 0, (world.folder / "a").read_text()
    assert second.wait(patience()) == 0, (world.folder / "b").read_text()
    world.want_state_of_git("lab")
    lease = world.kube.get("coordination.k8s.io/v1", "Lease", "avactl-reconcile-lab", f"{world.name}-system")
    assert not lease["spec"]["holderIdentity"]


def test_a_lease_that_is_not_given_back_is_not_waited_for_for_ever(world: World) -> None:
    world.commit({"platform.yaml": world.specs()})
    assert world.once(wait=False).complete
    name, namespace = "avactl-reconcile-lab", f"{world.name}-system"
    lease = world.kube.get("coordination.k8s.io/v1", "Lease", name, namespace)
    lease["spec"] |= {"holderIdentity": "elsewhere_1", "leaseDurationSeconds": 3600}
    world.kube.replace(lease)
    world.replace("platform.yaml", "guaranteed: 4", "guaranteed: 3")
    result = world.once(wait=False, timeout=1.0)
    assert "another run holds the lease avactl-reconcile-lab (elsewhere_1)" in result.problem
    assert not result.complete


def test_a_server_that_is_gone_costs_its_patience_once(world: World) -> None:
    """Not once for each wave and each object in the queue: a run against a dead server comes to its end."""
    many, patience = 200, 1.0
    with Proxy(world.plane, world.folder) as proxy:

        async def ask(api: ObjectClient) -> int:
            asked = (api.read("/api/v1/namespaces/default") for _ in range(many))
            answers = await asyncio.gather(*asked, return_exceptions=True)
            return sum(isinstance(answer, UnreachableError) for answer in answers)

        async def go() -> None:
            async with Client(access.find(proxy.kubeconfig)) as client:
                api = ObjectClient(client, patience=patience)
                proxy.faults = {0: 1.0}
                assert await ask(api) == many
                assert proxy.counts["GET"] > many, "they are tried again and again at first"
                proxy.counts.clear()
                assert await ask(api) == many
                assert 0 < proxy.counts["GET"] <= many
                proxy.faults = {}
                assert await ask(api) == 0
                api.patience, proxy.faults = 60.0, {0: 0.3}
                assert await ask(api) == 0, "one that answers is asked again"

        asyncio.run(go())


def test_secrets_are_masked_and_reports_are_whole(world: World) -> None:
    world.commit({"platform.yaml": world.specs()})
    assert world.once().complete
    name = {"name": "avactl-policy", "namespace": f"{world.name}-system"}
    token = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    world.kube.patch(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": name, "data": {"token": token}},
        field_manager="kubectl-edit",
    )
    result = world.once(dry_run=True)
    assert result.drift
    assert token not in as_text(result, False)
    assert token not in orjson.dumps(as_json(result)).decode()


def test_without_a_cluster_there_is_one_line(world: World) -> None:
    world.commit({"platform.yaml": world.specs()})
    run = subprocess.run(
        [sys.executable, "-m", "avactl.cli.main", "reconcile", str(world.repository), "--kubeconfig", "/nowhere"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2
    assert run.stderr.startswith("avactl: /nowhere: ")


def until_restricted(world: World, token: str) -> None:
    """Wait until the policy on the account is in force."""
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": "kube-system"}}
    with world.plane.client(token) as kube:

        def refusal() -> str:
            try:
                kube.create(body, dry_run=True)
            except ApiError as error:
                return str(error)
            return ""

        wait_until(lambda: "may only write in namespaces of avactl" in refusal(), details=refusal)


def test_a_new_kind_is_waited_for_until_discovery_lists_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is established a moment before, and its objects are of the next wave."""
    discover, late = ObjectClient._discover, iter(range(3))

    async def discover_late(client: ObjectClient, api_version: str) -> None:
        await discover(client, api_version)
        if client._served[api_version].keys() & {"Widget"} and next(late, None) is not None:
            del client._served[api_version]

    monkeypatch.setattr(ObjectClient, "_discover", discover_late)
    # The account of mode builtin may not write definitions.
    specs = world.specs(WIDGETS.replace("NAME", world.name)).replace("mode: builtin", "mode: files")
    world.commit({"platform.yaml": specs})
    result = world.once()
    assert result.complete, as_text(result, False)
    assert world.kube.get(f"{world.name}.example.com/v1", "Widget", "one", f"{world.name}-vision")["spec"] == {}


def test_the_compiled_account_can_do_the_whole_job(world: World) -> None:
    """All of examples/modern, by the account of mode builtin after an administrator has installed it: changed, pruned,
    made anew; what it may not write waits for an administrator, and is said."""
    define_compute_domains(world.kube)
    define_routes(world.kube)
    define_monitoring(world.kube)
    world.commit(example=ROOT / "examples" / "modern")
    world.replace(
        "platform.yaml",
        "reconcile: {mode: argocd}",
        "reconcile: {mode: builtin, repository: 'https://git.example.com/specs.git', secret: specs}",
    )
    installed = world.once(wait=False)
    assert installed.complete, as_text(installed, False)
    token = world.plane.service_account_token("avactl-system", "avactl-reconcile")
    administrator, restricted = world.kubeconfig, world.folder / "restricted"
    world.kubeconfig = restricted
    world.plane.write_kubeconfig(world.kubeconfig, token)
    until_restricted(world, token)
    result = world.once(wait=False)
    assert not result.changed, as_text(result, False)
    assert not result.unseen
    # Specs of teams: removed, and new again, with their namespaces, volumes and quotas.
    product = world.repository / "teams" / "product.yaml"
    text = product.read_text()
    product.unlink()
    world.commit()
    result = world.once(wait=False, timeout=5.0)
    assert result.complete, as_text(result, False)
    assert any(step.action is Action.prune for step in result.steps)
    world.commit({"teams/product.yaml": text})
    result = world.once(wait=False, timeout=60.0)
    assert result.complete, as_text(result, False)
    assert result.changed
    # Drift in the namespaces of daemons is put back.
    metadata = {"name": "avactl-policy", "namespace": "avactl-system"}
    world.kube.patch({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"policy.json": "{}"}})
    assert world.once(wait=False).drift
    # Another daemon: what only an administrator may write is said, and all else is applied.
    world.replace("platform.yaml", "daemons: {scheduler: true", "daemons: {scheduler: true, serving: true")
    result = world.once(wait=False)
    refused = {step.title for step in result.failed if not step.blocked}
    assert {step.title for step in result.failed if step.lacks_rights} == refused
    assert {f"{kind} avactl-serving" for kind in ("ClusterRole", "ValidatingAdmissionPolicy")} < refused
    assert "Deployment avactl-system/avactl-serving" in {step.title for step in result.failed}
    said = as_text(result, False)
    assert f"{len(refused)} objects for an administrator: " in said
    assert "`avactl reconcile --once`" in said
    assert status_words(result)[1].startswith("an administrator must run `avactl reconcile --once`")
    assert {each["name"] for each in as_json(result)["objects"] if each["needsAdministrator"]} >= {"avactl-serving"}
    world.kubeconfig = administrator
    assert world.once(wait=False).complete
    world.kubeconfig = restricted
    assert not world.once(wait=False).changed


OWNERS = """\
owners:
  - {path: "*", teams: ["*"], kinds: ["*"]}
  - {path: /teams/vision/, teams: [TEAMS]}
"""


def test_owners_of_the_last_commit_apply_to_the_next(world: World) -> None:
    ads = "apiVersion: avactl.dev/v1\nkind: Team\nmetadata: {name: ads}\nspec: {namespaces: [{name: NAME-ads}]}"
    narrow, wide = OWNERS.replace("TEAMS", "vision"), OWNERS.replace("TEAMS", "vision, ads")
    world.commit({"specs.yaml": world.specs(ads.replace("NAME", world.name)), "avactl.yaml": narrow})
    assert world.once(wait=False).complete
    stolen = CLASSES.replace("NAME", "miner").replace("team: vision", "team: ads")
    world.commit({"teams/vision/miner.yaml": stolen, "avactl.yaml": wide})
    done = world.run("--no-wait")
    assert done.returncode == 5, done.stderr
    assert "teams/vision/miner.yaml:3:31: teams/vision/miner.yaml may not declare specs of team ads" in done.stdout
    assert "--accept-owners" in done.stdout
    assert world.kube.find("batch/v1", "Job", "miner-worker", f"{world.name}-ads") is None
    # Reverted and split into two commits, it needs nobody.
    world.commit({"teams/vision/miner.yaml": None})
    assert not world.once(wait=False).problem
    world.commit({"teams/vision/miner.yaml": stolen})
    assert not world.once(wait=False).problem
    # A person may also accept both at once.
    world.commit({"teams/vision/miner.yaml": None, "avactl.yaml": narrow})
    assert not world.once(wait=False).problem
    world.commit({"teams/vision/miner.yaml": stolen, "avactl.yaml": wide})
    assert "--accept-owners" in world.once(wait=False).problem
    assert not world.once(wait=False, accept_owners=True).problem
    assert world.kube.find("batch/v1", "Job", "miner-worker", f"{world.name}-ads") is not None


def test_a_namespace_of_somebody_else_is_refused(world: World) -> None:
    name = f"{world.name}-vision"
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    world.kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    world.commit({"specs.yaml": world.specs()})
    result = world.once(wait=False)
    (refused,) = [step for step in result.failed if not step.blocked]
    assert (refused.title, refused.action) == (f"Namespace {name}", Action.refuse)
    assert f"kubectl label namespace {name} app.kubernetes.io/managed-by=avactl" in refused.error
    assert world.kube.get("v1", "Namespace", name)["metadata"]["labels"] == labels | {
        "kubernetes.io/metadata.name": name
    }
    # Nothing is put into it.
    assert world.kube.list("rbac.authorization.k8s.io/v1", "RoleBinding", name) == []
    assert world.kube.list("networking.k8s.io/v1", "NetworkPolicy", name) == []
    body = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "avactl"}},
    }
    world.kube.apply(body, field_manager="kubectl", force=True)
    assert world.once(wait=False).complete
    enforced = world.kube.get("v1", "Namespace", name)["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    assert enforced == "restricted"


def test_the_system_namespace_of_a_run_without_specs_is_avactls(world: World) -> None:
    """A run creates it for its Lease; a later commit that declares it applies."""
    world.commit({"specs.yaml": world.specs()})

    async def prepare() -> None:
        async with Client(access.find(world.kubeconfig)) as client:
            await Reconciler(client, ReconcileOptions(namespace=f"{world.name}-system")).prepare(())

    asyncio.run(prepare())
    assert world.kube.get("v1", "Namespace", f"{world.name}-system")
    assert world.once(wait=False).complete
