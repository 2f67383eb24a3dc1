"""A cluster with running workloads is imported and adopted: by `--adopt`, and then by `avactl reconcile`.

The API server, controllers and scheduler are real; kwok plays the kubelets.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from avactl import compile_tree
from avactl.kube.access import find
from avactl.kube.client import Client
from avactl.spec.repository.tree import DirTree
from avactl.workbench.importer.adopt import Adoption, adopt_objects
from avactl.workbench.importer.live import read
from avactl.workbench.importer.session import import_objects
from avactl.workbench.importer.sources.context import ImportOptions
from tests.cli.running import Run
from tools.controlplane import ApiError, ControlPlane, KubeClient
from tools.waiting import wait_until

SPACES = ("shop", "lab")
_POD = {
    "containers": [
        {
            "name": "main",
            "image": "registry.example.com/main:1",
            "env": [{"name": "LEVEL", "value": "1"}],
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
        }
    ]
}


def _labelled(name: str, **spec: Any) -> dict[str, Any]:
    labels = {"app": name}
    return {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": _POD}, **spec}


def _objects() -> list[dict[str, Any]]:
    def made(version: str, kind: str, name: str, namespace: str = "shop", **rest: Any) -> dict[str, Any]:
        metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
        return {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}

    rbac = "rbac.authorization.k8s.io"
    role: dict[str, Any] = {"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]}
    binding: dict[str, Any] = {
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"kind": "Group", "apiGroup": rbac, "name": "shop-devs"}],
    }
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "none",
    }
    job = {"spec": {**_POD, "restartPolicy": "Never"}}
    nightly = {"schedule": "0 3 1 1 *", "jobTemplate": {"spec": {"template": job}}}
    budget = {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}}
    hidden = made("v1", "Secret", "token", stringData={"key": "planted-secret-text-99"})
    return [
        *(made("v1", "Namespace", name, "", metadata={"name": name, "labels": {"team": name}}) for name in SPACES),
        hidden,
        made("v1", "ResourceQuota", "pods", spec={"hard": {"pods": "50", "requests.cpu": "100"}}),
        made("v1", "LimitRange", "limits", "lab", spec={"limits": [{"type": "Container", "max": {"cpu": "8"}}]}),
        made(f"{rbac}/v1", "Role", "reader", **role),
        made(f"{rbac}/v1", "RoleBinding", "devs", **binding),
        made("v1", "ConfigMap", "settings", data={"level": "1"}),
        made("v1", "ServiceAccount", "runner"),
        made("v1", "PersistentVolumeClaim", "data", spec=claim),
        made("v1", "Service", "web", spec={"selector": {"app": "web"}, "ports": [{"port": 80}]}),
        made("v1", "Service", "db", spec={"selector": {"app": "db"}, "ports": [{"port": 80}], "clusterIP": "None"}),
        made("apps/v1", "Deployment", "web", spec=_labelled("web", replicas=3)),
        made("apps/v1", "StatefulSet", "db", spec=_labelled("db", replicas=2, serviceName="db")),
        made("apps/v1", "DaemonSet", "agent", spec=_labelled("agent")),
        made("batch/v1", "Job", "train", "lab", spec={"template": job, "parallelism": 2, "completions": 2}),
        made("batch/v1", "CronJob", "nightly", spec=nightly),
        made("policy/v1", "PodDisruptionBudget", "web", spec=budget),
    ]


class Cluster:
    """A cluster that somebody runs without avactl."""

    def __init__(self, plane: ControlPlane, kube: KubeClient) -> None:
        self.plane, self.kube = plane, kube

    def pods(self) -> dict[str, tuple[str, int, str]]:
        """Return all pods: UID, restarts of containers, and phase."""
        return {
            pod["metadata"]["name"]: (
                pod["metadata"]["uid"],
                sum(each.get("restartCount", 0) for each in pod["status"].get("containerStatuses") or ()),
                pod["status"].get("phase", ""),
            )
            for name in SPACES
            for pod in self.kube.list("v1", "Pod", name)
            if "deletionTimestamp" not in pod["metadata"]
        }

    def running(self, count: int) -> dict[str, tuple[str, int, str]]:
        """Wait until this many pods run; return all."""

        def running() -> dict[str, tuple[str, int, str]]:
            pods = self.pods()
            return pods if len(pods) == count and {phase for _, _, phase in pods.values()} == {"Running"} else {}

        return wait_until(running, f"{count} running pods", details=self.pods)

    def generations(self) -> dict[str, int]:
        """Return the generation of each workload, which every change of its spec raises."""
        found = {}
        for version, kind in (
            ("apps/v1", "Deployment"),
            ("apps/v1", "StatefulSet"),
            ("apps/v1", "DaemonSet"),
            ("batch/v1", "Job"),
            ("batch/v1", "CronJob"),
        ):
            for name in SPACES:
                for body in self.kube.list(version, kind, name):
                    found[f"{kind} {body['metadata']['name']}"] = body["metadata"]["generation"]
        return found


@pytest.fixture(scope="module")
def cluster(control_plane_binaries: None) -> Iterator[Cluster]:
    with ControlPlane(controller_manager=True, scheduler=True, kwok=True) as plane, plane.client() as kube:
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "110"}
        for index in range(2):
            more = {"nvidia.com/gpu": "8"} if index else {}
            labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"} if index else {}
            kube.create(
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {"name": f"node-{index}", "labels": labels},
                    "status": {"capacity": {**amounts, **more}, "allocatable": {**amounts, **more}},
                }
            )
        for body in _objects():
            kube.create(body)
            if body["kind"] == "Namespace":
                name = body["metadata"]["name"]
                account = {
                    "apiVersion": "v1",
                    "kind": "ServiceAccount",
                    "metadata": {"name": "default", "namespace": name},
                }
                kube.apply(account)
        yield Cluster(plane, kube)


@pytest.fixture(autouse=True)
def _unclaimed(cluster: Cluster) -> None:
    """Let each test adopt as another Cluster."""
    for name in ("policy", "inventory-imported", "inventory-other", "inventory-lab"):
        try:
            cluster.kube.request("DELETE", f"/api/v1/namespaces/avactl-system/configmaps/avactl-{name}")
        except ApiError as error:
            if error.status != 404:
                raise


def test_a_cluster_is_adopted_without_a_restart(cluster: Cluster, tmp_path: Path, avactl: Run) -> None:
    before = cluster.running(3 + 2 + 2 + 2)
    generations = cluster.generations()
    config, specs = str(cluster.plane.kubeconfig), tmp_path / "specs"

    looked = avactl("import", "--live", "--kubeconfig", config, "-n", "shop", "-n", "lab")
    assert looked.returncode == 0, looked.stderr
    assert "planted-secret" not in looked.stdout
    assert cluster.kube.get("apps/v1", "Deployment", "web", "shop")["metadata"].get("labels") is None

    words = ("import", "--live", "--kubeconfig", config, "-o", str(specs), "--adopt", "--format", "json")
    done = avactl(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    adopted = {each["object"] for each in report["adoption"]["objects"] if each["adopted"]}
    assert adopted >= {
        "Deployment shop/web",
        "StatefulSet shop/db",
        "DaemonSet shop/agent",
        "Job lab/train",
        "CronJob shop/nightly",
        "Namespace shop",
        "PersistentVolumeClaim shop/data",
        "ResourceQuota shop/pods",
        "RoleBinding shop/devs",
        "Service shop/web",
        "Node node-1",
    }
    assert [each for each in report["adoption"]["objects"] if each["reason"]] == []
    assert compile_tree(DirTree(specs)).ok
    assert b"planted-secret" not in b"".join(path.read_bytes() for path in specs.rglob("*.yaml"))
    labels = cluster.kube.get("apps/v1", "Deployment", "web", "shop")["metadata"]["labels"]
    assert labels["app.kubernetes.io/managed-by"] == "avactl"
    assert cluster.pods() == before
    assert cluster.generations() == generations

    # The engine agrees: what it changes are objects of the platform's own, and no workload.
    applied = avactl("reconcile", str(specs), "--once", "--no-wait", "--kubeconfig", config)
    assert applied.returncode == 0, applied.stdout + applied.stderr
    assert cluster.pods() == before
    assert cluster.generations() == generations
    again = avactl("reconcile", str(specs), "--once", "--no-wait", "--dry-run", "--kubeconfig", config)
    assert again.returncode == 0, again.stdout

    # From now on a change in git is a rollout: the objects are owned.
    path = next(specs.rglob("deployment-web.yaml"))
    path.write_text(path.read_text().replace('value: "1"', 'value: "2"'))
    applied = avactl("reconcile", str(specs), "--once", "--no-wait", "--kubeconfig", config)
    assert applied.returncode == 0, applied.stdout + applied.stderr
    assert cluster.generations()["Deployment web"] > generations["Deployment web"]


def test_what_would_restart_is_refused(cluster: Cluster, tmp_path: Path, avactl: Run) -> None:
    kube = cluster.kube
    pod = {
        "containers": [
            {
                "name": "main",
                "image": "registry.example.com/main:1",
                "env": [{"name": "DB_PASSWORD", "value": "planted-secret-text-99"}],
            }
        ]
    }
    name = "refused"
    kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "a"}}}
    spec["template"] = {"metadata": {"labels": {"app": "a"}}, "spec": pod}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "api", "namespace": name}, "spec": spec}
    kube.create(body)
    words = ("import", "--live", "--kubeconfig", str(cluster.plane.kubeconfig), "-n", name, "--adopt")
    done = avactl(*words, "-o", str(tmp_path / "specs"), "--cluster", "other")
    assert done.returncode == 5, done.stdout + done.stderr
    assert "not adopted: Deployment refused/api: its manifest differs from the source" in done.stdout
    assert "planted-secret" not in done.stdout
    live = kube.get("apps/v1", "Deployment", "api", name)
    assert (live["metadata"]["generation"], live["metadata"].get("labels")) == (1, None)


def test_an_engine_that_follows_a_branch_adopts_by_itself(cluster: Cluster, tmp_path: Path, avactl: Run) -> None:
    """Otherwise the next run, of a commit without the specs, would prune what carries its label."""
    kube, name = cluster.kube, "later"
    kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    kube.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one", "namespace": name}})
    config = str(cluster.plane.kubeconfig)
    (tmp_path / "avactl.yaml").write_text("include: [clusters, imported]\n")
    (tmp_path / "clusters").mkdir()
    platform = "apiVersion: avactl.dev/v1\nkind: Cluster\nmetadata: {name: lab}\nspec: {reconcile: {mode: builtin}}\n"
    (tmp_path / "clusters/lab.yaml").write_text(platform)
    words = ("import", "--live", "--kubeconfig", config, "-n", name, "--adopt", "-o", str(tmp_path / "imported"))
    done = avactl(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "`avactl reconcile` takes them over" in done.stdout
    assert kube.get("v1", "ConfigMap", "one", name)["metadata"].get("labels") is None


def test_what_would_change_is_refused_with_the_fields(cluster: Cluster, tmp_path: Path) -> None:
    """A spec that says something else than the cluster, because either has changed since the import."""
    kube, name = cluster.kube, "changed"
    kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    spec = _labelled("web", replicas=1)
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": name}, "spec": spec}
    kube.create(body)

    async def run() -> list[Adoption]:
        async with Client(find(cluster.plane.kubeconfig)) as client:
            objects, version = await read(client, [name])
            options = ImportOptions(cluster="changed", as_is=True)
            made, _ = import_objects(objects, options, tmp_path, version=version)
            (manifest,) = (each for each in made.compilation.manifests if each.kind == "Deployment")
            manifest.body["spec"]["template"]["spec"]["containers"][0]["image"] = "registry.example.com/main:2"
            return (await adopt_objects(client, made)).objects

    found = {each.title: each for each in asyncio.run(run())}
    assert found[f"Namespace {name}"].done
    refused = found[f"Deployment {name}/web"]
    assert (refused.done, refused.reason) == (False, "it would change: containers[main].image main:1 → :2")
    assert kube.get("apps/v1", "Deployment", "web", name)["metadata"]["generation"] == 1
