"""Tenancy on a real API server: no request of a team member leaves it, and honest work passes.

The objects are those that specs compile to: Roles, admission policies, quotas, pod security.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from avactl.kinds.team.names import RUN_ACCOUNT
from tests.conftest import ROOT
from tests.kinds.compiling import DIGEST, apply, body, codes, compiled, unchecked
from tests.kinds.tenancy_attempts import (
    DEVICES,
    KINDS,
    MERGE,
    NETWORK_NOTES,
    OTHER,
    OWN,
    Attempt,
    attempts,
    container,
    path,
    pod_spec,
    service,
    variable,
    workload,
)
from tools.controlplane import ApiError, ControlPlane, KubeClient
from tools.waiting import wait_until

CLUSTER = f"""
kind: Cluster
metadata: {{name: main}}
spec:
  images: {{avactl: registry.example.com/avactl{DIGEST}, kubectl: registry.example.com/kubectl{DIGEST}}}
  daemons: {{scheduler: true, serving: true}}
  leaderWorkerSet: {{}}
"""
TEAMS = """
---
kind: NodePool
metadata: {name: v100}
spec: {cluster: main, machineType: v100-pcie-8, count: 2, taints: [{key: nvidia.com/gpu, effect: NoSchedule}]}
---
kind: NodePool
metadata: {name: h100}
spec: {cluster: main, machineType: h100-sxm-8, count: 2, allocation: dra}
---
kind: NodePool
metadata: {name: k80}
spec: {cluster: main, machineType: k80-2x, count: 2, capacity: spot}
---
kind: Team
metadata: {name: vision}
spec: {members: {users: [ann], admins: [root], viewers: [auditors]}}
---
kind: Team
metadata: {name: web}
spec: {members: {users: [bob]}, memberPriority: high, serviceTypes: [ClusterIP, LoadBalancer]}
---
kind: ServingDeployment
metadata: {name: detect, team: vision}
spec:
  model: {name: m, version: "1"}
  runtime: {name: custom, image: "registry.example.com/m:1", port: 8080}
  probe: {path: /health}
---
kind: TrainingJob
metadata: {name: cheap, team: vision}
spec:
  image: registry.example.com/m:1
  command: [./train]
  workers: {gpus: 1, gpu: K80}
  checkpoint: {path: s3://vision/cheap}
  spot: require
---
kind: Quota
metadata: {name: gpus, team: vision}
spec: {gpus: [{gpu: V100, guaranteed: 1}, {gpu: K80, guaranteed: 1}], cpu: 4, memory: 8Gi}
"""
ATTEMPTS = attempts()


@pytest.fixture(scope="module")
def plane(control_plane_binaries: None) -> Iterator[ControlPlane]:
    # Each controller as its own account, as kubeadm has it.
    arguments = {"kube-controller-manager": ["--use-service-account-credentials=true"]}
    users: dict[str, list[str]] = {"ann": [], "bob": [], "eve": ["auditors"]}
    with ControlPlane(controller_manager=True, users=users, arguments=arguments) as running:
        yield running


def ready(client: KubeClient, namespace: str) -> None:
    """Wait until the policies are in force."""
    probes = [
        workload("Pod", pod_spec(nodeName="x"), namespace=namespace),
        workload("Pod", pod_spec(), annotations={"cdi.k8s.io/x": "x"}, namespace=namespace),
        service(namespace, externalIPs=["203.0.113.7"]),
    ]
    wait_until(lambda: all("ValidatingAdmissionPolicy" in client.refusal(probe) for probe in probes))


@pytest.fixture(scope="module")
def admin(plane: ControlPlane) -> Iterator[KubeClient]:
    with plane.client() as client:
        apply(client, compiled(CLUSTER + TEAMS).manifests)
        for namespace in (OWN, OTHER):
            client.wait_for("v1", "ServiceAccount", "default", namespace, until=bool)
            for account in ("resnet-follower", "deployer"):
                metadata = {"name": account, "namespace": namespace}
                client.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
        sandbox = {"metadata": {"name": "privileged"}, "handler": "runc"}
        client.create({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", **sandbox})
        ready(client, OWN)
        yield client


@pytest.fixture(scope="module")
def member(plane: ControlPlane, admin: KubeClient) -> Iterator[Callable[[str], KubeClient]]:
    """Clients of the members; `ann` has an object of each kind, called `own`."""
    clients = {name: plane.client(plane.token(name)) for name in ("ann", "bob", "eve")}
    for found in honest():
        clients["ann"].create(found)
    yield lambda name: clients[name]
    for client in clients.values():
        client.close()


def honest() -> Iterator[dict[str, Any]]:
    """What a member writes by hand."""
    metadata = {"name": "own", "namespace": OWN}
    for kind in KINDS:
        yield workload(kind, pod_spec(), "own")
    yield service(OWN, "own")
    yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"NVIDIA_VISIBLE_DEVICES": "all"}}
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    yield {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": claim}
    exactly = {"deviceClassName": "gpu-h100", "allocationMode": "ExactCount", "count": 1}
    devices = {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}
    for kind, spec in (("ResourceClaim", devices), ("ResourceClaimTemplate", {"spec": devices})):
        yield {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec}
    budget = {"selector": {"matchLabels": {"app": "own"}}, "maxUnavailable": 1}
    yield {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": budget}


def status_writer(name: str, namespace: str = "kube-system") -> Iterator[dict[str, Any]]:
    """An account that may write the status of pods, as kubelets do, and may not bind them."""
    rbac, account = "rbac.authorization.k8s.io", {"name": name, "namespace": namespace}
    rule = {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]}
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account}
    yield {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": [rule]}
    reference = {"apiGroup": rbac, "kind": "ClusterRole", "name": name}
    yield {
        "apiVersion": f"{rbac}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": reference,
        "subjects": [{"kind": "ServiceAccount", **account}],
    }


def test_there_are_at_least_200_attempts() -> None:
    assert len(ATTEMPTS) > 200


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.name)
def test_attempt(member: Callable[[str], KubeClient], attempt: Attempt) -> None:
    kind = MERGE if attempt.method == "PATCH" else "application/json"
    with pytest.raises(ApiError, match=attempt.refusal) as error:
        member(attempt.user).request(
            attempt.method, attempt.path, body=attempt.body, query={"dryRun": "All"}, content_type=kind
        )
    assert error.value.status in (403, 422)


@pytest.mark.parametrize("pretended", ["system:admin", "bob", "system:serviceaccount:avactl-system:avactl-scheduler"])
def test_a_member_impersonates_no_one(plane: ControlPlane, admin: KubeClient, pretended: str) -> None:
    headers = (("Impersonate-User", pretended),)
    with (
        KubeClient(plane.url, plane.token("ann"), plane.ca_file, headers) as client,
        pytest.raises(ApiError, match="cannot impersonate") as refused,
    ):
        client.request("GET", "/api/v1/nodes")
    assert refused.value.status == 403


def test_a_pods_own_account_can_do_nothing(plane: ControlPlane, admin: KubeClient) -> None:
    with plane.client(plane.service_account_token(OWN, RUN_ACCOUNT)) as account:
        for attempt in ATTEMPTS[:5]:
            with pytest.raises(ApiError, match="cannot create resource"):
                account.request(attempt.method, attempt.path, body=attempt.body)
        for kind in ("Pod", "Secret", "ConfigMap"):
            with pytest.raises(ApiError, match="cannot list resource"):
                account.list("v1", kind, OWN)


def reason(client: KubeClient, kind: str, name: str) -> str:
    """The message with which a controller could not create an object of a workload."""

    def message() -> str:
        for event in client.list("v1", "Event", OWN):
            about = event["involvedObject"]
            if (about["kind"], about["name"], event["reason"]) == (kind, name, "FailedCreate"):
                return str(event["message"])
        return ""

    return wait_until(message, f"an event FailedCreate of {kind} {name}")


def test_what_controllers_create_for_a_member_is_refused(
    admin: KubeClient, member: Callable[[str], KubeClient]
) -> None:
    """Neither annotations of pods nor volumes of claims are checked in templates, so the objects themselves are."""
    ann = member("ann")
    ann.create(workload("Job", pod_spec(), "marked", {"avactl.dev/devices": "0,1,2,3,4,5,6,7"}))
    ann.create(workload("Job", pod_spec(volumes=[{"name": "host", "hostPath": {"path": "/"}}]), "host"))
    foreign = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}, "namespaceSelector": {}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [foreign]}}
    ann.create(workload("Job", pod_spec(affinity=affinity), "alone"))
    thief = workload("StatefulSet", pod_spec(), "thief")
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "volumeName": "web-bucket",
    }
    thief["spec"]["volumeClaimTemplates"] = [{"metadata": {"name": "data"}, "spec": claim}]
    ann.create(thief)
    for kind, name, rule in (
        ("Job", "marked", "scheduler-annotations: "),
        ("Job", "host", "PodSecurity"),
        ("Job", "alone", "exceeded quota: avactl-no-cross-namespace"),
        ("StatefulSet", "thief", "volume-name: "),
    ):
        assert rule in reason(admin, kind, name)


def test_those_with_more_rights_cannot_put_devices_into_pods_of_teams(
    admin: KubeClient, member: Callable[[str], KubeClient]
) -> None:
    """The policies are about pods, not about persons: an administrator who debugs a pod gives it no GPUs either."""
    debugger = {
        "name": "debug",
        "image": "registry.example.com/x:1",
        "env": [variable("NVIDIA_VISIBLE_DEVICES", "all")],
    }
    security = container()["securityContext"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "own", "namespace": OWN}}
    for debugged, rule in (
        ({**debugger, "securityContext": security}, "gpu-variables: "),
        ({**debugger, "securityContext": security, "env": []}, "gpu-visibility: "),
    ):
        with pytest.raises(ApiError, match=rule):
            admin.patch({**pod, "spec": {"ephemeralContainers": [debugged]}}, subresource="/ephemeralcontainers")
    allowed = {**debugger, "securityContext": security, "env": [variable("NVIDIA_VISIBLE_DEVICES", "void")]}
    admin.patch({**pod, "spec": {"ephemeralContainers": [allowed]}}, subresource="/ephemeralcontainers")


def test_the_scheduler_writes_its_annotations(plane: ControlPlane, admin: KubeClient) -> None:
    """By Binding and by status, as `avactl.scheduler.writers` does; nobody else may, whatever the subresource."""
    for name in ("one", "two"):
        admin.create(workload("Pod", pod_spec(), name))
    admin.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "machine"}})
    metadata = {"name": "one", "namespace": OWN, "annotations": {"avactl.dev/devices": "0"}}
    target = {"apiVersion": "v1", "kind": "Node", "name": "machine"}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
    status = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "annotations": {"avactl.dev/preemption": "u/1"}},
    }
    for found in status_writer("kubelet"):
        admin.create(found)
    token = plane.service_account_token("avactl-system", "avactl-scheduler")
    with (
        plane.client(plane.service_account_token("kube-system", "kubelet")) as kubelet,
        plane.client(token) as scheduler,
    ):
        with pytest.raises(ApiError, match="scheduler-annotations: "):
            kubelet.patch(status, subresource="/status")
        scheduler.patch(status, subresource="/status")
        scheduler.request("POST", f"/api/v1/namespaces/{OWN}/pods/one/binding", body=binding)
    notes = admin.get("v1", "Pod", "one", OWN)["metadata"]["annotations"]
    assert (notes["avactl.dev/devices"], notes["avactl.dev/preemption"]) == ("0", "u/1")


def test_the_platform_and_network_plugins_annotate_pods(
    plane: ControlPlane, admin: KubeClient, member: Callable[[str], KubeClient]
) -> None:
    """Specs of the platform may choose a network; plugins note what a pod got; a member changes neither."""
    chosen, got = "k8s.v1.cni.cncf.io/networks", "cni.projectcalico.org/podIP"
    admin.create(workload("Job", pod_spec(), "fabric", {chosen: "fabric/rail-1"}))
    (pod,) = wait_until(
        lambda: [pod for pod in admin.list("v1", "Pod", OWN) if pod["metadata"]["labels"].get("job-name") == "fabric"]
    )
    assert pod["metadata"]["annotations"][chosen] == "fabric/rail-1"
    for found in network_plugin("calico"):
        admin.create(found)
    name = pod["metadata"]["name"]

    def annotate(**notes: str | None) -> dict[str, Any]:
        metadata = {"name": name, "namespace": OWN, "annotations": notes}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}

    with plane.client(plane.service_account_token("default", "calico")) as plugin:
        plugin.patch(annotate(**{got: "10.0.0.7"}))
    ann = member("ann")
    ann.patch(annotate(note="mine"))
    for notes in ({got: "10.0.0.8"}, {got: None}, {chosen: None}, {chosen: "kube-system/hosts"}):
        with pytest.raises(ApiError, match=" network-annotations: "):
            ann.patch(annotate(**notes))


@pytest.mark.parametrize("key", NETWORK_NOTES)
def test_specs_cannot_have_them_either(key: str) -> None:
    noted = TEAMS.replace(
        "{name: detect, team: vision}", f'{{name: detect, team: vision, annotations: {{"{key}": x}}}}'
    )
    text = CLUSTER + noted
    assert codes(unchecked(text)) != []


def network_plugin(name: str) -> Iterator[dict[str, Any]]:
    """An account that annotates pods, and writes their status."""
    for found in status_writer(name, "default"):
        if found["kind"] == "ClusterRole":
            found["rules"].append({"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]})
        yield found


# -- honest work ----------------------------------------------------------------------------------------------------


def test_the_pods_of_a_members_workloads_are_created(admin: KubeClient, member: Callable[[str], KubeClient]) -> None:
    ann = member("ann")
    for version, kind, name, field in (
        ("apps/v1", "Deployment", "own", "replicas"),
        ("apps/v1", "StatefulSet", "own", "replicas"),
        ("apps/v1", "ReplicaSet", "own", "replicas"),
        ("batch/v1", "Job", "own", "active"),
        ("apps/v1", "Deployment", "detect", "replicas"),
    ):
        ann.wait_for(version, kind, name, OWN, until=partial(counts, field))


def counts(field: str, found: dict[str, Any]) -> bool:
    return bool(found.get("status", {}).get(field) == 1)


def test_honest_pods_by_hand(member: Callable[[str], KubeClient]) -> None:
    chosen = container(
        "main", variable("NVIDIA_VISIBLE_DEVICES", DEVICES), resources={"limits": {"nvidia.com/gpu": "1"}}
    )
    claims = [{"name": "gpus", "resourceClaimTemplateName": "own"}]
    many = [variable(f"X{index}", "x" * 100) for index in range(500)]
    affinity = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "own"}}}
    for what in (
        {"containers": [chosen], "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]},
        {"containers": [container(resources={"claims": [{"name": "gpus"}]})], "resourceClaims": claims},
        {"priorityClassName": "avactl-low"},
        {"priorityClassName": "avactl-normal", "terminationGracePeriodSeconds": 3600},
        {"serviceAccountName": "default"},
        {"nodeSelector": {"avactl.dev/gpu": "V100"}, "hostname": "x", "subdomain": "y"},
        {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [affinity]}}},
        {"initContainers": [container("init"), container("side", restartPolicy="Always")]},
        {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "own"}}, {"name": "tmp", "emptyDir": {}}]},
        {
            "containers": [
                container(
                    "main",
                    variable("NVIDIA_VISIBLE_DEVICES", "void"),
                    variable("CUDA_VISIBLE_DEVICES", "0"),
                    variable("NVIDIA_DRIVER_CAPABILITIES", "all"),
                    envFrom=[{"configMapRef": {"name": "own"}}],
                )
            ]
        },
        # Within the cost limits of the API server.
        {"containers": [container(f"c{n}", *many, variable("NVIDIA_VISIBLE_DEVICES", "void")) for n in range(20)]},
    ):
        for kind in KINDS:
            member("ann").create(workload(kind, pod_spec(**what), "honest"), dry_run=True)


def test_devices_stay_with_the_pod_that_uses_them(admin: KubeClient, member: Callable[[str], KubeClient]) -> None:
    """A claim or pod that is gone while its program runs would free devices that the program still has."""
    ann, finalizer = member("ann"), "resource.kubernetes.io/delete-protection"
    claim, pods = path("resource.k8s.io/v1", "resourceclaims/own"), path("v1", "pods")
    admin.request("PATCH", claim, body={"metadata": {"finalizers": [finalizer]}}, content_type=MERGE)
    for finalizers in (None, [], ["example.com/other"]):
        with pytest.raises(ApiError, match=" claim-in-use: "):
            ann.request("PATCH", claim, body={"metadata": {"finalizers": finalizers}}, content_type=MERGE)
    found = ann.get("resource.k8s.io/v1", "ResourceClaim", "own", OWN)
    del found["metadata"]["finalizers"]
    with pytest.raises(ApiError, match=" claim-in-use: "):
        ann.request("PUT", claim, body=found)
    change = {"metadata": {"labels": {"a": "b"}, "finalizers": [finalizer, "example.com/other"]}}
    ann.request("PATCH", claim, body=change, content_type=MERGE)
    admin.request("PATCH", claim, body={"metadata": {"finalizers": None}}, content_type=MERGE)
    for name in ("runs", "waits"):
        ann.create(
            {**workload("Pod", pod_spec(), name), "metadata": {"name": name, "namespace": OWN, "labels": {"a": "b"}}}
        )
    target = {"apiVersion": "v1", "kind": "Node", "name": "n0"}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "runs"}, "target": target}
    admin.request("POST", f"{pods}/runs/binding", body=binding)
    eviction: dict[str, Any] = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "runs"}}
    now = {"gracePeriodSeconds": 0}
    for method, where, given in (
        ("DELETE", f"{pods}/runs", now),
        ("POST", f"{pods}/runs/eviction", {**eviction, "deleteOptions": now}),
    ):
        with pytest.raises(ApiError, match=" forced-deletion: "):
            ann.request(method, where, body=given)
    assert "deletionTimestamp" not in ann.get("v1", "Pod", "runs", OWN)["metadata"]
    ann.request("POST", f"{pods}/runs/eviction", body=eviction)
    assert "deletionTimestamp" in ann.get("v1", "Pod", "runs", OWN)["metadata"]
    with pytest.raises(ApiError, match=" forced-deletion: "):
        ann.request("DELETE", f"{pods}/runs", body=now)
    admin.request("DELETE", f"{pods}/runs", body=now)
    ann.request("DELETE", f"{pods}/waits", body=now)
    assert admin.find("v1", "Pod", "waits", OWN) is None


def test_a_pod_without_a_grace_period_can_be_deleted(admin: KubeClient, member: Callable[[str], KubeClient]) -> None:
    """Pods from before the policies may have none: who deletes one, such as a scheduler that preempts, gives none."""
    pod = {"containers": [container("main", variable("NVIDIA_VISIBLE_DEVICES", "void"))]}
    made = workload("Pod", pod_spec(**pod, terminationGracePeriodSeconds=0), "at-once")
    admin.create({**made, "metadata": {"name": "at-once", "namespace": OWN}})
    target = {"apiVersion": "v1", "kind": "Node", "name": "n0"}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "at-once"}, "target": target}
    admin.request("POST", path("v1", "pods/at-once/binding"), body=binding)
    member("ann").request("DELETE", path("v1", "pods/at-once"))
    assert admin.find("v1", "Pod", "at-once", OWN) is None


def test_honest_changes(admin: KubeClient, member: Callable[[str], KubeClient]) -> None:
    ann, apps = member("ann"), path("apps/v1", "deployments")
    restart = {"template": {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}}}
    image = {"template": {"spec": {"containers": [container(image="registry.example.com/x:2")]}}}
    for where, spec in (
        # A service at the priority of services may be restarted and scaled; its pods come from the spec.
        (f"{apps}/detect", restart),
        (f"{apps}/detect/scale", {"replicas": 3}),
        (f"{apps}/detect", {"replicas": 2}),
        (f"{apps}/own", restart),
        (f"{apps}/own", image),
        (path("v1", "services/own"), {"sessionAffinity": "ClientIP"}),
        (path("v1", "persistentvolumeclaims/own"), {}),
        (path("batch/v1", "jobs/own"), {"suspend": True}),
    ):
        ann.request("PATCH", where, body={"spec": spec}, content_type=MERGE)
    own = path("v1", "pods/own")
    for change in (
        {"metadata": {"annotations": {"note": "x"}, "labels": {"a": "b"}}},
        {"spec": {"activeDeadlineSeconds": 3600}},
    ):
        ann.request("PATCH", own, body=change, content_type=MERGE)
    ann.delete("v1", "Pod", "own", OWN)


def test_what_the_team_allows(member: Callable[[str], KubeClient]) -> None:
    bob = member("bob")
    bob.create(service(OTHER, type="LoadBalancer"), dry_run=True)
    bob.create(workload("Job", pod_spec(priorityClassName="avactl-high"), namespace=OTHER), dry_run=True)
    with pytest.raises(ApiError, match=" member-priority: "):
        bob.create(workload("Job", pod_spec(priorityClassName="avactl-serving"), namespace=OTHER), dry_run=True)


def test_only_the_declared_controller_makes_pods_of_services(plane: ControlPlane, admin: KubeClient) -> None:
    """That of LeaderWorkerSets and DisaggregatedSets; not another account with the same rights."""
    rbac, role = "rbac.authorization.k8s.io", "statefulset-writer"
    admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "lws-system"}})
    rule = {"apiGroups": ["apps"], "resources": ["statefulsets"], "verbs": ["create"]}
    admin.create({"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": role}, "rules": [rule]})
    accounts = [{"name": name, "namespace": "lws-system"} for name in ("lws-controller-manager", "other")]
    for account in accounts:
        admin.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    reference = {"apiGroup": rbac, "kind": "ClusterRole", "name": role}
    subjects = [{"kind": "ServiceAccount", **account} for account in accounts]
    admin.create(
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": role},
            "roleRef": reference,
            "subjects": subjects,
        }
    )
    made = workload("StatefulSet", pod_spec(priorityClassName="avactl-serving"), "chat")
    with plane.client(plane.service_account_token("lws-system", "lws-controller-manager")) as controller:
        controller.create(made, dry_run=True)
    with (
        plane.client(plane.service_account_token("lws-system", "other")) as other,
        pytest.raises(ApiError, match=" member-priority: "),
    ):
        other.create(made, dry_run=True)


def test_policies_are_type_checked_and_documented(admin: KubeClient) -> None:
    """The API server has no warning about any expression; docs/security.md has each rule, and no other."""
    version, kind, rules = "admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", set()
    for manifest in (m for m in compiled(CLUSTER + TEAMS).manifests if m.kind == kind):
        found = admin.wait_for(
            version, kind, manifest.name, until=lambda found: "typeChecking" in found.get("status", {})
        )
        assert found["status"]["typeChecking"] == {}
        assert found["spec"]["failurePolicy"] == "Fail"
        if manifest.name in ("avactl-scheduler", "avactl-serving"):
            continue  # tests/kinds/test_cluster.py compares the rules on accounts of daemons
        rules |= {validation["message"].partition(": ")[0] for validation in found["spec"]["validations"]}
    plain = compiled(CLUSTER.replace("scheduler: true", "scheduler: false") + TEAMS)
    rules |= {
        validation["message"].partition(": ")[0]
        for validation in body(plain, kind, "avactl-team-pods")["spec"]["validations"]
    }
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    section = text[text.index("## Admission policies") :].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([a-z-]+)` \|", section, re.M)) == rules


# -- without avactl's scheduler -------------------------------------------------------------------------------------


def test_without_a_scheduler_of_its_own(new_plane: Callable[..., ControlPlane]) -> None:
    """The device plugin chooses the GPUs: only the containers that request some may leave the variable to it."""
    plain = CLUSTER.replace("scheduler: true", "scheduler: false")
    gpus = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    unset, source = variable("X", "1"), {"configMapRef": {"name": "own"}}

    def pod(*containers: dict[str, Any]) -> dict[str, Any]:
        return workload("Pod", pod_spec(schedulerName="default-scheduler", containers=list(containers)))

    plane = new_plane(users={"ann": []})
    with plane.client() as admin, plane.client(plane.token("ann")) as ann:
        apply(admin, compiled(plain + TEAMS).manifests)
        ready(admin, OWN)
        # No controller counts here.
        for quota in admin.list("v1", "ResourceQuota", OWN):
            admin.delete("v1", "ResourceQuota", quota["metadata"]["name"], OWN)
        for containers in (
            [container()],
            [container("main", unset, **gpus), container("second")],
            [container("main", unset, envFrom=[{"prefix": "AVACTL_BUCKET_", **source}], **gpus)],
        ):
            ann.create(pod(*containers), dry_run=True)
        for rule, containers in (
            ("gpu-visibility", [container("main", unset)]),
            ("gpu-visibility", [container("main", unset, **gpus), container("second", unset)]),
            ("gpu-variables", [container("main", variable("NVIDIA_VISIBLE_DEVICES", "all"), **gpus)]),
            ("gpu-env-from", [container("main", unset, envFrom=[source], **gpus)]),
            ("gpu-env-from", [container("main", unset, envFrom=[{"prefix": "NVIDIA_", **source}], **gpus)]),
        ):
            with pytest.raises(ApiError, match=f" {rule}: "):
                ann.create(pod(*containers), dry_run=True)
