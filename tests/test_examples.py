"""Every manifest of every example, on the real API server.

Applied in apply order with server-side apply and strict field validation: no rejection, no warning; applied again,
nothing changes. Pods of every workload pass pod security `restricted`, but for the exceptions that docs/security.md
lists, and the admission policies, quotas and limits of their own namespaces.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from avactl.compiler import Compilation, compile_tree
from avactl.kinds import MachineType, ServingDeployment, TrainingJob, Workspace
from avactl.program.manifest import Manifest, templates_of
from avactl.program.program import Item
from tests.compute_domains import define_compute_domains
from tests.definitions import define_groups, define_monitoring, define_pools, define_routes, define_scaling
from tests.example_trees import EXAMPLES, example_tree
from tools.controlplane import ApiError, ControlPlane, KubeClient
from tools.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent
FOREIGN = {
    "resource.nvidia.com": define_compute_domains,
    "gateway.networking.k8s.io": define_routes,
    "monitoring.coreos.com": define_monitoring,
    "keda.sh": define_scaling,
    "leaderworkerset.x-k8s.io": define_groups,
    "disaggregatedset.x-k8s.io": define_groups,
    "inference.networking.k8s.io": define_pools,
}
"""What makes the API server serve groups that are not Kubernetes' own."""


def compiled(example: str) -> Compilation:
    compilation = compile_tree(example_tree(example))
    assert [d for d in compilation.diagnostics if d.severity == "error"] == []
    return compilation


def clusters(example: str) -> list[list[Manifest]]:
    """The manifests of each cluster, in apply order."""
    found: dict[str, list[Manifest]] = {}
    for manifest in compiled(example).manifests:
        found.setdefault(manifest.cluster, []).append(manifest)
    return list(found.values())


@pytest.mark.parametrize("example", EXAMPLES)
def test_services_add_no_variables_to_pods(example: str) -> None:
    """Beside a Service `vllm`, Kubernetes would set VLLM_PORT=tcp://…, which vLLM reads as its own option."""
    result = compiled(example)
    own = [m for m in result.manifests if m.item.kind != "KubernetesObjects"]
    found = {(m.id, path): pod["spec"].get("enableServiceLinks") for m in own for path, pod in templates_of(m.body)}
    assert found
    assert set(found.values()) == {False}, found


def test_the_examples_are_what_they_promise() -> None:
    ava = compiled("ava").program
    jobs, models = ava.of_kind(TrainingJob), {m.spec.gpu_model for m in ava.of_kind(MachineType)}
    assert len(ava.of("Cluster")) == 2
    assert models == {"M4", "K80", "P100", "V100"}
    assert {job.spec.strategy for job in jobs} == {"single", "parameterServer", "allReduce", "mpi", "elastic"}
    assert {"mxnet", "caffe", "pytorch", "tensorflow"} <= {job.spec.framework for job in jobs}
    assert (len(jobs), len(ava.of("ServingDeployment")), len(ava.of("Team"))) == (12, 3, 4)
    modern = compiled("modern").program
    assert modern.get_kind(TrainingJob, "llm-70b", "foundation").spec.workers.replicas == 64
    # Its comment promises one rack of trays.
    assert modern.get_kind(TrainingJob, "moe-probe", "foundation").spec.workers.within == "nvidia.com/gpu.clique"
    platform = compiled("platform@prod").program
    teams = {team.name for team in platform.of("Team")}
    jobs, services = platform.of_kind(TrainingJob), platform.of_kind(ServingDeployment)
    spaces = platform.of_kind(Workspace)
    workloads: list[Item] = [*jobs, *services, *spaces]
    assert {job.name for job in platform.of("Cluster")} == {"train", "serve"}
    assert {item.cluster for item in workloads} == {"train", "serve"}
    assert {item.team for item in workloads} == teams
    assert len(teams) == 3
    settings = [
        *(job.spec.pod for job in jobs),
        *(each.spec.pod for each in services),
        *(each.spec.pod for each in spaces),
    ]
    assert any(pod is not None and pod.sidecars for pod in settings)
    quickstart = (ROOT / "examples/quickstart/platform.yaml").read_text()
    assert len(quickstart.splitlines()) <= 31


@pytest.mark.parametrize("example", EXAMPLES)
def test_applied_twice(example: str, new_plane: Callable[..., ControlPlane]) -> None:
    assert clusters(example)
    for manifests in clusters(example):
        plane = new_plane()
        with plane.client() as kube:
            groups = {manifest.body["apiVersion"].partition("/")[0] for manifest in manifests}
            for group, define in FOREIGN.items():
                if group in groups:  # each definition takes the API server a second
                    define(kube)
            versions = [_settled(kube, manifest) for manifest in manifests]
            assert [_apply(kube, manifest) for manifest in manifests] == versions
            _admitted(plane, kube, manifests)
            _restricted(kube, manifests)
        plane.close()


def _settled(kube: KubeClient, manifest: Manifest) -> str:
    """The version after the first apply.

    Of a claim, after the second: the API server stores a new claim without `status.phase`, reads it with the default,
    and so writes it once more at the next apply, whatever that holds.
    """
    version = _apply(kube, manifest)
    return _apply(kube, manifest) if manifest.kind == "PersistentVolumeClaim" else version


def _apply(kube: KubeClient, manifest: Manifest) -> str:
    try:
        reply = kube.apply(manifest.body)
    except ApiError as error:
        pytest.fail(f"{manifest}: {error}")
    assert reply.warnings == [], f"{manifest}: {reply.warnings}"
    version: str = reply.body["metadata"]["resourceVersion"]
    return version


def exceptions() -> set[str]:
    """`Kind purpose` of the workloads that docs/security.md excepts from `restricted`."""
    text = (ROOT / "docs/security.md").read_text()
    section = text[text.index("## Pod security exceptions") :]
    return set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))


def _admitted(plane: ControlPlane, kube: KubeClient, manifests: list[Manifest]) -> None:
    """The pod of each workload, in its own namespace, as Kubernetes' controllers create it."""
    account = {"name": "job-controller", "namespace": "kube-system"}
    kube.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    for quota in (m for m in manifests if m.kind == "ResourceQuota"):
        # No controller counts here.
        hard = quota.body["spec"]["hard"]
        metadata = {"name": quota.name, "namespace": quota.namespace}
        status = {"hard": hard, "used": dict.fromkeys(hard, "0")}
        kube.patch(
            {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "status": status}, subresource="/status"
        )
    teams = {m.name for m in manifests if m.kind == "Namespace" and m.item.kind == "Team"}
    created = 0
    with plane.client(plane.service_account_token("kube-system", "job-controller")) as controller:
        for manifest in manifests:
            if manifest.namespace not in teams:
                continue
            claims = manifest.body["spec"].get("volumeClaimTemplates", []) if "spec" in manifest.body else []
            mounts = [
                {"name": c["metadata"]["name"], "persistentVolumeClaim": {"claimName": c["metadata"]["name"]}}
                for c in claims
            ]
            for _, template in templates_of(manifest.body):
                spec = {**template["spec"], "volumes": [*mounts, *template["spec"].get("volumes", [])]}
                metadata = {**template["metadata"], "name": "check", "namespace": manifest.namespace}
                pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
                if not created:
                    _in_force(controller, {**pod, "spec": {**spec, "nodeName": "x"}})
                try:
                    controller.create(pod, dry_run=True)
                except ApiError as error:
                    pytest.fail(f"{manifest}: {error}")
                created += 1
    assert created


def _in_force(client: KubeClient, refused: dict[str, Any]) -> None:
    """Wait until the admission policies are in force."""
    wait_until(lambda: " node-name: " in client.refusal(refused))


def _pod(namespace: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": "check", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**spec, "restartPolicy": "Never"}}


def _level(namespace: Manifest) -> str:
    level: str = namespace.body["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    return level


def _restricted(kube: KubeClient, manifests: list[Manifest]) -> None:
    """Each workload's pod, tried in a namespace that enforces `restricted`."""
    namespace = "restricted-check"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}})
    templates = [template for m in manifests for _, template in templates_of(m.body)]
    accounts = {template["spec"].get("serviceAccountName", "default") for template in templates}
    for account in {*accounts, "default"}:
        kube.create(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": namespace}}
        )
    with pytest.raises(ApiError, match="PodSecurity"):
        kube.create(
            _pod(namespace, {"containers": [{"name": "main", "image": "registry.example.com/x:1"}]}), dry_run=True
        )
    assert templates
    allowed = exceptions()
    # Namespaces for which a Team says `podSecurity: baseline`.
    lenient = {m.name for m in manifests if m.kind == "Namespace" and m.item.kind == "Team" and _level(m) == "baseline"}
    refused: set[str] = set()
    for manifest, template in ((m, template) for m in manifests for _, template in templates_of(m.body)):
        if manifest.namespace in lenient:
            continue
        claims = manifest.body["spec"].get("volumeClaimTemplates", [])
        volumes = [{"name": c["metadata"]["name"], "emptyDir": {}} for c in claims] + template["spec"].get(
            "volumes", []
        )
        try:
            kube.create(_pod(namespace, {**template["spec"], "volumes": volumes}), dry_run=True)
        except ApiError as error:
            if "PodSecurity" not in str(error):
                pytest.fail(f"{manifest}: {error}")
            component = manifest.body["metadata"]["labels"].get("app.kubernetes.io/component", "")
            refused.add(f"{manifest.item.kind} {component}")
    assert refused <= allowed, "not listed in docs/security.md"
