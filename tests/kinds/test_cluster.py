"""The Cluster kind: what it compiles to, and that its RBAC is enough for a scheduler, and no more."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest

from avactl.contracts.document import load
from avactl.contracts.scheduling import PlacementPolicy
from avactl.kinds.cluster.daemons.rbac import ADMINISTRATORS
from avactl.program import registry
from tests.conftest import ROOT
from tests.kinds.compiling import DIGEST, apply, body, codes, compiled, names, unchecked
from tools.controlplane import ApiError, ControlPlane, KubeClient
from tools.waiting import wait_until

BARE = "kind: Cluster\nmetadata: {name: main}"
DAEMONS = f"""
kind: Cluster
metadata: {{name: main}}
spec:
  images: {{avactl: registry.example.com/avactl{DIGEST}, alluxio: registry.example.com/alluxio{DIGEST}}}
  daemons: {{scheduler: true}}
  pullSecrets: [registry]
"""
GROUPS = "  leaderWorkerSet: {}\n"
POOLS = """  exposure:
    gateway: {name: public, namespace: gateways, inferencePools: true}
    proxies: [{namespace: gateways}]
    domains: [{name: ai.example.com}]
"""
BUILTIN = "  reconcile: {mode: builtin, repository: 'https://git.example.com/platform/specs.git', secret: specs}\n"
TIER = """
---
kind: CacheTier
metadata: {name: read}
spec:
  cluster: main
  role: read
  masters: {replicas: 1}
  workers: {tiers: [{medium: MEM, quota: 64Gi}]}
  underStores: [{mount: /imagenet, url: "s3://imagenet"}]
"""
WRITE_TIER = (
    TIER.replace("{name: read}", "{name: write}")
    .replace("role: read", "role: write")
    .replace(
        "tiers: [{medium: MEM, quota: 64Gi}]",
        "replicas: 2, tiers: [{medium: MEM, quota: 8Gi}, {medium: SSD, quota: 64Gi}]",
    )
    + "  writeBack: {mode: async}\n"
)


def machine(model: str) -> str:
    name = model.lower()
    return f"""
---
kind: MachineType
metadata: {{name: {name}}}
spec: {{gpus: {{model: {model}, count: 8, memory: 40Gi}}, cpu: 64, memory: 512Gi}}
---
kind: NodePool
metadata: {{name: {name}}}
spec: {{cluster: main, machineType: {name}, count: 2, allocation: dra}}
"""


def own(result: Any) -> list[Any]:
    """The objects of the Cluster itself: these tests stand on their own feet."""
    return [manifest for manifest in result.manifests if manifest.item.kind == "Cluster"]


def test_a_bare_cluster_has_no_daemon_and_tells_its_name() -> None:
    result = compiled(BARE)
    assert names(result, "Namespace") == ["avactl-system"]
    policies = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    roles = {"Role", "RoleBinding"}
    assert {manifest.kind for manifest in own(result)} == {"Namespace", "PriorityClass", "ConfigMap", *policies, *roles}
    assert {manifest.name for manifest in own(result) if manifest.kind in roles} == {"avactl-identity"}


def test_pod_security_is_pinned_to_the_version() -> None:
    result = compiled(
        BARE
        + f"""
spec:
  kubernetesVersion: "1.35.2"
  images: {{alluxio: registry.example.com/alluxio{DIGEST}}}
  namespaces:
    - name: monitoring
      podSecurity: baseline
      labels: {{owner: sre}}
"""
        + TIER
    )
    monitoring = body(result, "Namespace", "monitoring")["metadata"]["labels"]
    assert monitoring["pod-security.kubernetes.io/enforce"] == "baseline"
    assert monitoring["pod-security.kubernetes.io/enforce-version"] == "v1.35"
    assert monitoring["owner"] == "sre"
    levels = {
        name: body(result, "Namespace", name)["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        for name in names(result, "Namespace")
    }
    assert levels == {"avactl-cache": "privileged", "avactl-system": "restricted", "monitoring": "baseline"}
    kept = [manifest.name for manifest in own(result) if manifest.kind == "Namespace" and manifest.holds_data]
    assert sorted(kept) == sorted(levels)


def test_priorities_are_ordered_and_low_pushes_nobody_out() -> None:
    result = compiled(BARE)
    classes = [body(result, "PriorityClass", name) for name in names(result, "PriorityClass")]
    order = [entry["metadata"]["name"] for entry in sorted(classes, key=lambda entry: -int(entry["value"]))]
    assert order == [
        "avactl-system",
        "avactl-serving",
        "avactl-high",
        "avactl-workspace",
        "avactl-normal",
        "avactl-low",
    ]
    assert [entry["metadata"]["name"] for entry in classes if entry["preemptionPolicy"] == "Never"] == ["avactl-low"]


def test_daemons_restart_when_their_policy_changes() -> None:
    def annotation(text: str) -> str:
        template = body(compiled(text), "Deployment", "avactl-scheduler", "avactl-system")["spec"]["template"]
        return str(template["metadata"]["annotations"]["avactl.dev/config"])

    assert annotation(DAEMONS) != annotation(DAEMONS + "  placement: {objective: links}\n")


@pytest.mark.parametrize(
    ("namespaces", "readers"),
    [("", ["monitoring"]), ("[observability, alerts]", ["alerts", "observability"]), ("[]", [])],
)
def test_only_monitoring_reads_metrics(namespaces: str, readers: list[str]) -> None:
    more = f", metricsFrom: {namespaces}" if namespaces else ""
    result = compiled(DAEMONS.replace("{scheduler: true}", f"{{scheduler: true{more}}}"))
    spec = body(result, "NetworkPolicy", "avactl-metrics-only", "avactl-system")["spec"]
    assert spec["policyTypes"] == ["Ingress"]
    peers = [peer for rule in spec["ingress"] for peer in rule["from"]]
    expressions = [each for peer in peers for each in peer["namespaceSelector"]["matchExpressions"]]
    assert [name for each in expressions for name in each["values"]] == readers


ALL_DAEMONS = DAEMONS.replace("scheduler: true", "scheduler: true, topology: true, cache: true, serving: true")
"""All daemons but that of pipelines, which needs a repository."""
EVERY_DAEMON = ALL_DAEMONS.replace("serving: true", "serving: true, delivery: true")


def test_no_rule_is_a_wildcard_or_reads_secrets() -> None:
    result = compiled(EVERY_DAEMON + BUILTIN + TIER)
    rules = [
        rule for manifest in own(result) if manifest.kind in ("Role", "ClusterRole") for rule in manifest.body["rules"]
    ]
    assert len(rules) > 15
    for rule in rules:
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        assert "secrets" not in rule["resources"]


def documented(heading: str) -> set[tuple[str, str, str]]:
    """Group, resource and verb of each rule in a table of docs/security.md."""
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    section = re.split(r"^#+ ", text.partition(f"### {heading}\n")[2], flags=re.M)[0]
    found = set()
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and "`" in cells[1]:
            groups = [re.sub("^core$", "", group.strip("` ")) for group in cells[0].split(",")]
            resources = re.findall(r"`([^`]+)`", cells[1].partition("(")[0])
            found |= {(g, r, v.strip()) for g in groups for r in resources for v in cells[2].split(",")}
    return found


def test_kinds_whose_pods_start_together_can_be_read() -> None:
    """The known ones and those that are added; one of the same kind replaces a known one."""
    gangs = """  placement:
    gangs:
      - {apiVersion: kubeflow.org/v1, kind: TFJob, resource: tfjobs, label: training.kubeflow.org/job-name,
         replicas: [spec.tfReplicaSpecs.*.replicas]}
      - {apiVersion: jobset.x-k8s.io/v1, kind: JobSet, resource: jobsets, label: jobset.sigs.k8s.io/jobset-name}
"""
    result = compiled(DAEMONS + gangs)
    text = body(result, "ConfigMap", "avactl-policy", "avactl-system")["data"]["policy.json"]
    kinds = {each.kind: each for each in load(PlacementPolicy, text).gang_kinds}
    assert list(kinds) == ["RayCluster", "MPIJob", "PyTorchJob", "TFJob", "JobSet"]
    assert kinds["TFJob"].replicas == ("spec.tfReplicaSpecs.*.replicas",)
    assert kinds["JobSet"].api_version == "jobset.x-k8s.io/v1"
    rules = body(result, "ClusterRole", "avactl-scheduler")["rules"]
    (mine,) = [rule for rule in rules if rule["apiGroups"] == ["kubeflow.org"]]
    assert mine["resources"] == ["mpijobs", "pytorchjobs", "tfjobs"]
    assert mine["verbs"] == ["get", "list", "watch"]


def test_docs_list_every_rule() -> None:
    team = """
---
kind: Team
metadata: {name: vision}
spec: {members: {users: [ann], admins: [root], viewers: [auditors]}}
"""
    grown = machine("H100").replace("count: 2,", "autoscaling: {max: 2, preemptAfter: 10m}, onFailedPods: cordon,")
    result = compiled(EVERY_DAEMON + BUILTIN + GROUPS + POOLS + WRITE_TIER + team + grown)

    def rules(kind: str, name: str, namespace: str = "") -> set[tuple[str, str, str]]:
        listed = body(result, kind, name, namespace)["rules"]
        triples = (product(rule["apiGroups"], rule["resources"], rule["verbs"]) for rule in listed)
        return {(group, resource, verb) for rule in triples for group, resource, verb in rule}

    system = "avactl-system"
    assert rules("Role", "avactl-identity", system) == documented("`avactl-identity`, in the system namespace")
    assert rules("ClusterRole", "avactl-scheduler") == documented("`avactl-scheduler`, in all namespaces")
    assert rules("Role", "avactl-scheduler", system) == documented("`avactl-scheduler`, in the system namespace")
    assert rules("Role", "avactl-scheduler", "avactl-cache") == documented("`avactl-scheduler`, in `avactl-cache`")
    assert rules("ClusterRole", "avactl-topology") == documented("`avactl-topology`, on all nodes")
    assert rules("Role", "avactl-topology", "default") == documented("`avactl-topology`, in `default`")
    assert rules("ClusterRole", "avactl-cache") == documented("`avactl-cache`, in all namespaces")
    assert rules("Role", "avactl-cache", "avactl-cache") == documented("`avactl-cache`, in `avactl-cache`")
    assert rules("ClusterRole", "avactl-serving") == documented("`avactl-serving`, in all namespaces")
    assert rules("Role", "avactl-serving", "vision") == documented("`avactl-serving`, in the namespaces of teams")
    assert rules("Role", "avactl-serving", "avactl-system") == documented("`avactl-serving`, in the system namespace")
    assert rules("Role", "avactl-delivery", system) == documented("`avactl-delivery`, in the system namespace")
    assert rules("ClusterRole", "avactl-reconcile") == documented("`avactl-reconcile`, in all namespaces")
    assert rules("Role", "avactl-reconcile", system) == documented("`avactl-reconcile`, in the system namespace")
    viewer = documented("`avactl-viewer`")
    assert rules("Role", "avactl-viewer", "vision") == viewer
    assert rules("Role", "avactl-member", "vision") == documented("`avactl-member`") | viewer
    assert rules("Role", "avactl-admin", "vision") == documented("`avactl-admin`")


def test_docs_list_every_rule_of_the_daemons_admission_policies() -> None:
    result = compiled(EVERY_DAEMON + BUILTIN + GROUPS + POOLS + WRITE_TIER)
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    section = text.partition("\n| account | rule |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(avactl-[a-z]+)` \| `([a-z-]+)` \|", section, re.M)
    policies = {account: body(result, "ValidatingAdmissionPolicy", account) for account, _ in rows}
    assert set(policies) == {"avactl-scheduler", "avactl-cache", "avactl-serving", "avactl-reconcile"}
    for account, policy in policies.items():
        rules = [each["message"].partition(": ")[0] for each in policy["spec"]["validations"]]
        assert sorted(rule for name, rule in rows if name == account) == sorted(rules)


def test_the_reconciler_only_reads_what_gives_power_over_the_cluster() -> None:
    result = compiled(EVERY_DAEMON + BUILTIN + TIER + machine("H100"))
    rules = body(result, "ClusterRole", "avactl-reconcile")["rules"]
    for rule in rules:
        for group in set(rule["apiGroups"]) & set(ADMINISTRATORS):
            if set(rule["resources"]) & set(ADMINISTRATORS[group]):
                assert set(rule["verbs"]) == {"get", "list", "watch"}
        if {"escalate", "bind", "impersonate"} & set(rule["verbs"]):
            assert rule["resources"] == ["roles"]
    compiled_kinds = {manifest.kind for manifest in own(result)}
    assert {"ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "PriorityClass"} < compiled_kinds


def test_device_classes_are_for_dra_pools_and_can_be_replaced() -> None:
    result = compiled(
        BARE
        + "\nspec:\n  deviceClasses: [{name: gpu-h100, cel: 'true'}, {name: nic, cel: 'device.driver == \"nic\"'}]"
        + machine("A10")
        + machine("H100")
        + machine("V100").replace("dra", "devicePlugin")
    )
    assert names(result, "DeviceClass") == ["gpu-a10", "gpu-h100", "nic"]
    replaced = body(result, "DeviceClass", "gpu-h100")["spec"]["selectors"][0]["cel"]["expression"]
    assert replaced == "true"


def test_facts_count_machines_and_gpus() -> None:
    result = compiled(BARE + machine("A10") + machine("H100"))
    item = result.program.get("Cluster", "main")
    facts = registry.get_kind("Cluster").facts(item, result.program)
    assert (facts["machines"], facts["GPUs"]) == (4, "16 A10, 16 H100")


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ("kubernetesVersion: 1.30", "invalid-value"),
        ('kubernetesVersion: "1.28"', "kubernetes-version"),
        ("egressAllowed: [10.0.0.1/8]", "invalid-value"),
        ("placement: {levels: [rack!]}", "invalid-value"),
        ("storageClasses: {default: Fast_SSD}", "invalid-value"),
        ("systemNamespace: kube-system", "reserved-namespace"),
    ],
)
def test_values(spec: str, code: str) -> None:
    assert codes(unchecked(f"{BARE}\nspec: {{{spec}}}")) == [code]


@pytest.fixture(scope="module")
def plane(control_plane_binaries: None) -> Iterator[ControlPlane]:
    with ControlPlane(controller_manager=True, scheduler=True) as running:
        yield running


EVERYTHING = EVERY_DAEMON + BUILTIN + WRITE_TIER + machine("A10") + machine("A100-80GB") + machine("H100")


@pytest.fixture(scope="module")
def admin(plane: ControlPlane) -> Iterator[KubeClient]:
    with plane.client() as client:
        apply(client, own(compiled(EVERYTHING)))
        yield client


def refused(act: Callable[..., object], *arguments: Any) -> bool:
    with pytest.raises(ApiError) as error:
        act(*arguments)
    return error.value.status == 403


def node(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}


def resource_slice(node_name: str, driver: str, devices: list[dict[str, Any]]) -> dict[str, Any]:
    pool = {"name": node_name, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node_name}-{driver.replace('.', '-')}"},
        "spec": {"driver": driver, "nodeName": node_name, "pool": pool, "devices": devices},
    }


def claim(namespace: str, name: str, device_class: str) -> dict[str, Any]:
    request = {"name": "gpus", "exactly": {"deviceClassName": device_class}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"requests": [request]}},
    }


def pod(namespace: str, name: str, scheduler: str = "avactl") -> dict[str, Any]:
    """A pod that wants the claim of its name."""
    container = {
        "name": "main",
        "image": "registry.example.com/main:1",
        "resources": {"claims": [{"name": "gpus"}]},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "schedulerName": scheduler,
            "containers": [container],
            "resourceClaims": [{"name": "gpus", "resourceClaimName": name}],
        },
    }


def test_apply_again_changes_nothing(admin: KubeClient) -> None:
    result = compiled(EVERYTHING)

    def versions() -> list[tuple[str, str, Any]]:
        # Controllers write the status of what has a generation, which is a new resourceVersion too.
        applied = [(found["kind"], found["metadata"]) for found in apply(admin, own(result))]
        return [(kind, meta["name"], meta.get("generation", meta["resourceVersion"])) for kind, meta in applied]

    assert versions() == versions()


def test_daemon_pods_pass_restricted_pod_security(admin: KubeClient) -> None:
    """The ReplicaSets make their pods: nothing is refused by admission, in a namespace that enforces `restricted`."""
    for name in ("avactl-scheduler", "avactl-reconcile", "avactl-cache", "avactl-serving"):
        ready = admin.wait_for(
            "apps/v1",
            "Deployment",
            name,
            "avactl-cache" if name == "avactl-cache" else "avactl-system",
            until=lambda found: found.get("status", {}).get("replicas") == found["spec"]["replicas"],
        )
        conditions = {entry["type"]: entry["status"] for entry in ready["status"].get("conditions", [])}
        assert conditions.get("ReplicaFailure") != "True"


def test_scheduler_role_is_enough_and_no_more(plane: ControlPlane, admin: KubeClient) -> None:
    team = "tenant"
    admin.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": team}})
    admin.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": team}})
    # Cordoned, so that kube-scheduler, which runs here too, keeps its own pods away.
    admin.apply({**node("machine"), "spec": {"unschedulable": True}})
    device = {"name": "gpu-0", "attributes": {"type": {"string": "gpu"}, "productName": {"string": "NVIDIA H100"}}}
    admin.apply(resource_slice("machine", "gpu.nvidia.com", [device]))
    admin.apply(claim(team, "train", "gpu-h100"))
    admin.create(pod(team, "train"))
    admin.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key", "namespace": team}})
    volume_claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    home: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "home", "namespace": team},
    }
    admin.create({**home, "spec": volume_claim})

    token = plane.service_account_token("avactl-system", "avactl-scheduler")
    with plane.client(token) as scheduler:
        for version, kind in (
            ("v1", "Node"),
            ("v1", "Namespace"),
            ("v1", "Pod"),
            ("v1", "PersistentVolumeClaim"),
            ("v1", "PersistentVolume"),
            ("storage.k8s.io/v1", "StorageClass"),
            ("storage.k8s.io/v1", "CSINode"),
            ("policy/v1", "PodDisruptionBudget"),
            ("resource.k8s.io/v1", "ResourceSlice"),
            ("resource.k8s.io/v1", "DeviceClass"),
            ("resource.k8s.io/v1", "ResourceClaim"),
        ):
            scheduler.list(version, kind)
        scheduler.list("v1", "ConfigMap", "avactl-system")

        waiting = pod(team, "train")
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU is free"}
        head = {key: waiting[key] for key in ("apiVersion", "kind", "metadata")}
        scheduler.patch({**head, "status": {"conditions": [condition]}}, subresource="/status")
        note = {"volume.kubernetes.io/selected-node": "machine"}
        scheduler.patch({**home, "metadata": {**home["metadata"], "annotations": note}})

        wanted = claim(team, "train", "gpu-h100")
        finalizers = ["resource.kubernetes.io/delete-protection"]
        name = {key: wanted[key] for key in ("apiVersion", "kind")}
        scheduler.patch({**name, "metadata": {**wanted["metadata"], "finalizers": finalizers}})
        uid = scheduler.get("v1", "Pod", "train", team)["metadata"]["uid"]
        result = {"request": "gpus", "driver": "gpu.nvidia.com", "pool": "machine", "device": "gpu-0"}
        status = {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": "train", "uid": uid}],
        }
        scheduler.patch({**name, "metadata": wanted["metadata"], "status": status}, subresource="/status")
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": "train", "annotations": {"avactl.dev/devices": "0"}},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "machine"},
        }
        scheduler.request("POST", f"/api/v1/namespaces/{team}/pods/train/binding", body=binding)
        bound = scheduler.get("v1", "Pod", "train", team)
        assert bound["spec"]["nodeName"] == "machine"
        assert bound["metadata"]["annotations"]["avactl.dev/devices"] == "0"

        event = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": "train.1", "namespace": team},
            "eventTime": "2026-01-01T00:00:00.000000Z",
            "reportingController": "avactl",
            "reportingInstance": "avactl-scheduler-0",
            "action": "Binding",
            "reason": "Scheduled",
            "type": "Normal",
            "regarding": {"apiVersion": "v1", "kind": "Pod", "name": "train", "namespace": team, "uid": uid},
        }
        scheduler.create(event)
        lease: dict[str, Any] = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        own_lease = {**lease, "metadata": {"name": "avactl-scheduler", "namespace": "avactl-system"}}
        scheduler.create(own_lease)
        held = scheduler.get("coordination.k8s.io/v1", "Lease", "avactl-scheduler", "avactl-system")
        scheduler.replace({**held, "spec": {"holderIdentity": "avactl-scheduler-0"}})
        scheduler.delete("v1", "Pod", "train", team)

        assert refused(scheduler.get, "v1", "Secret", "key", team)
        assert refused(scheduler.list, "v1", "Secret", "avactl-system")
        assert refused(scheduler.list, "v1", "ConfigMap", team)
        assert refused(scheduler.create, pod(team, "mine"))
        assert refused(scheduler.patch, {**node("machine"), "spec": {"unschedulable": False}})
        assert refused(scheduler.delete, "v1", "PersistentVolumeClaim", "home", team)
        assert refused(scheduler.delete, "resource.k8s.io/v1", "ResourceClaim", "train", team)
        other = {**lease, "metadata": {"name": "avactl-other", "namespace": "avactl-system"}}
        admin.create(other)
        assert refused(scheduler.get, "coordination.k8s.io/v1", "Lease", "avactl-other", "avactl-system")


def test_device_class_selects_exactly_its_model(plane: ControlPlane, admin: KubeClient) -> None:
    """kube-scheduler evaluates the CEL: parts of GPUs and models whose name only begins alike are left alone."""
    spec = "\nspec: {gpuDriver: gpu.example.com}"
    admin_classes = [m for m in own(compiled(BARE + spec + machine("T4"))) if m.kind == "DeviceClass"]
    apply(admin, admin_classes)
    team = "models"
    admin.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": team}})
    admin.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": team}})
    admin.apply(node("mixed"))
    # The controller manager taints a node that never reported; kube-scheduler wants it ready.
    ready = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "64", "pods": "100"}}
    admin.patch({**node("mixed"), "status": ready}, subresource="/status")

    def gpu(name: str, product: str, kind: str = "gpu") -> dict[str, Any]:
        return {"name": name, "attributes": {"type": {"string": kind}, "productName": {"string": product}}}

    devices = [
        gpu("a100-40", "NVIDIA A100-SXM4-40GB"),
        gpu("a10-mig", "NVIDIA A10", "mig"),
        gpu("a10", "NVIDIA A10"),
        gpu("a100-80", "NVIDIA A100-SXM4-80GB"),
        gpu("gh100", "NVIDIA GH100 480GB"),
        gpu("h100", "NVIDIA H100 80GB HBM3"),
    ]
    admin.apply(resource_slice("mixed", "gpu.nvidia.com", devices))
    others = [
        {"name": "t400", "attributes": {"model": {"string": "T400"}}},
        {"name": "nameless", "attributes": {"uuid": {"string": "T4"}}},
        {"name": "t4", "attributes": {"model": {"string": "tesla-t4"}}},
    ]
    admin.apply(resource_slice("mixed", "gpu.example.com", others))
    expected = {"gpu-a10": "a10", "gpu-a100-80gb": "a100-80", "gpu-h100": "h100", "gpu-t4": "t4"}
    for name in expected:
        admin.create(claim(team, name, name))
        admin.create(pod(team, name, scheduler="default-scheduler"))
    for name, device in expected.items():
        allocated = admin.wait_for(
            "resource.k8s.io/v1",
            "ResourceClaim",
            name,
            team,
            until=lambda found: found.get("status", {}).get("allocation"),
        )
        assert [result["device"] for result in allocated["status"]["allocation"]["devices"]["results"]] == [device]


def test_no_engine_takes_over_a_namespace_of_others(admin: KubeClient) -> None:
    """What any engine sends: server-side apply of a Team's Namespace, by an administrator."""
    team = body(compiled(f"{BARE}\n---\nkind: Team\nmetadata: {{name: payments}}"), "Namespace", "payments")
    other = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "payments", "labels": {"owner": "finance"}}}
    admin.create(other)

    def refusal() -> str:
        try:
            admin.apply(team, field_manager="pulumi", force=True, dry_run=True)
        except ApiError as error:
            return str(error)
        return ""

    # A new policy takes a moment.
    assert "`kubectl label namespace NAME app.kubernetes.io/managed-by=avactl`" in wait_until(refusal)
    with pytest.raises(ApiError, match="is not avactl's"):
        admin.apply(team, field_manager="pulumi", force=True)
    other["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "avactl"  # type: ignore[index]
    admin.apply(other, field_manager="kubectl", force=True)
    admin.apply(team, field_manager="pulumi", force=True)
    # A new one, and one of avactl's own that changes, need nobody.
    new = {**team, "metadata": {**team["metadata"], "name": "payments-2"}}
    admin.apply(new, field_manager="pulumi", force=True)
    new["metadata"]["labels"] = {**new["metadata"]["labels"], "example.com/floor": "3"}
    admin.apply(new, field_manager="pulumi", force=True)
