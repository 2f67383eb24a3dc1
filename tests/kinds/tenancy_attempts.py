"""What a team member may try at the API server: attempts that leave the tenancy, and honest work."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from itertools import product
from typing import Any, NamedTuple

from avactl.contracts import names

Body = dict[str, Any]
OWN, OTHER, SYSTEM = "vision", "web", "avactl-system"
DEVICES = {"fieldRef": {"fieldPath": "metadata.annotations['avactl.dev/devices']"}}
MERGE = "application/merge-patch+json"


class Attempt(NamedTuple):
    """One request of a member, and the pattern of the refusal."""

    name: str
    refusal: str
    method: str
    path: str
    body: Body
    user: str = "ann"


def variable(name: str, value: Any) -> Body:
    return {"name": name, "value": value} if isinstance(value, str) else {"name": name, "valueFrom": value}


def container(name: str = "main", *env: Body, **fields: Any) -> Body:
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    given = list(env) or [variable("NVIDIA_VISIBLE_DEVICES", "void")]
    return {
        "name": name,
        "image": "registry.example.com/x:1",
        "command": ["sleep", "1"],
        "env": given,
        "securityContext": security,
        **fields,
    }


def pod_spec(**fields: Any) -> Body:
    """A pod as docs/security.md shows it."""
    security = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    return {
        "schedulerName": "avactl",
        "serviceAccountName": "avactl-run",
        "automountServiceAccountToken": False,
        "securityContext": security,
        "containers": [container()],
        **fields,
    }


KINDS: dict[str, tuple[str, str]] = {
    "Pod": ("v1", "pods"),
    "Deployment": ("apps/v1", "deployments"),
    "StatefulSet": ("apps/v1", "statefulsets"),
    "ReplicaSet": ("apps/v1", "replicasets"),
    "Job": ("batch/v1", "jobs"),
    "CronJob": ("batch/v1", "cronjobs"),
}


def workload(
    kind: str, spec: Body, name: str = "attempt", annotations: Body | None = None, namespace: str = OWN
) -> Body:
    """An object of this kind whose pods have this spec."""
    labels = {"app": name}
    notes = {"avactl.dev/gpu-share": "0.5", "avactl.dev/gang-size": "2"} if annotations is None else annotations
    labels |= {"avactl.dev/gang": name}
    template: Body = {"metadata": {"labels": labels, "annotations": notes}, "spec": deepcopy(spec)}
    restarts = "Never" if kind in ("Job", "CronJob") else "Always"
    template["spec"].setdefault("restartPolicy", restarts)
    selected = {"selector": {"matchLabels": labels}, "template": template}
    bodies: dict[str, Body] = {
        "Pod": template,
        "Deployment": {"spec": selected},
        "ReplicaSet": {"spec": selected},
        "StatefulSet": {"spec": {**selected, "serviceName": name}},
        "Job": {"spec": {"template": template}},
        "CronJob": {"spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": template}}}},
    }
    metadata = {**bodies[kind].get("metadata", {}), "name": name, "namespace": namespace}
    return {"apiVersion": KINDS[kind][0], "kind": kind, **bodies[kind], "metadata": metadata}


def service(namespace: str, name: str = "attempt", **spec: Any) -> Body:
    """A Service of type ClusterIP, if `spec` says nothing else."""
    metadata, given = {"name": name, "namespace": namespace}, {"ports": [{"port": 80}], "selector": {"a": "b"}, **spec}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": given}


def path(version: str, resource: str, name: str = "", namespace: str = OWN) -> str:
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    space = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{space}/{resource}" + (f"/{name}" if name else "")


# -- pods: each breach in each kind of workload ---------------------------------------------------------------------

_ALL = variable("NVIDIA_VISIBLE_DEVICES", "all")
_VOID = variable("NVIDIA_VISIBLE_DEVICES", "void")
_KEY = {"name": "x", "key": "x"}
BREACHES: dict[str, tuple[str, Body]] = {
    "scheduler of Kubernetes": ("scheduler-name", {"schedulerName": "default-scheduler"}),
    "unknown scheduler": ("scheduler-name", {"schedulerName": "avactl2"}),
    "no scheduler": ("scheduler-name", {"schedulerName": None}),
    "node": ("node-name", {"nodeName": "machine-1"}),
    "node critical": ("priority", {"priorityClassName": "system-node-critical"}),
    "cluster critical": ("priority", {"priorityClassName": "system-cluster-critical"}),
    "daemons' priority": ("priority", {"priorityClassName": "avactl-system"}),
    "services' priority": ("member-priority", {"priorityClassName": "avactl-serving"}),
    "high priority": ("member-priority", {"priorityClassName": "avactl-high"}),
    "workspaces' priority": ("member-priority", {"priorityClassName": "avactl-workspace"}),
    "follower's account": ("service-account", {"serviceAccountName": "resnet-follower"}),
    "platform's account": ("service-account", {"serviceAccountName": "deployer"}),
    "spot machines": (
        "spot",
        {"tolerations": [{"key": "avactl.dev/capacity", "operator": "Exists"}]},
    ),
    "all taints": ("tolerations", {"tolerations": [{"operator": "Exists"}]}),
    "all NoExecute taints": ("tolerations", {"tolerations": [{"operator": "Exists", "effect": "NoExecute"}]}),
    "control plane": (
        "tolerations",
        {"tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}]},
    ),
    "cordoned nodes": (
        "tolerations",
        {"tolerations": [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]},
    ),
    "foreign taint after an allowed one": (
        "tolerations",
        {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}, {"key": "infra", "value": "x"}]},
    ),
    "runtime class": ("runtime-class", {"runtimeClassName": "privileged"}),
    "an hour to terminate": ("termination", {"terminationGracePeriodSeconds": 3601}),
    "ages to terminate": ("termination", {"terminationGracePeriodSeconds": 2**31 - 1}),
    "no time to terminate": ("termination-at-once", {"terminationGracePeriodSeconds": 0}),
    "all GPUs": ("gpu-variables", {"containers": [container("main", _ALL)]}),
    "GPU 0": ("gpu-variables", {"containers": [container("main", variable("NVIDIA_VISIBLE_DEVICES", "0"))]}),
    "all GPUs in the second container": (
        "gpu-variables",
        {"containers": [container(), container("second", _ALL)]},
    ),
    "void, then all": ("gpu-variables", {"containers": [container("main", _VOID, _ALL)]}),
    "all, then void": ("gpu-variables", {"containers": [container("main", _ALL, _VOID)]}),
    "expanded": (
        "gpu-variables",
        {"containers": [container("main", variable("X", "all"), variable("NVIDIA_VISIBLE_DEVICES", "$(X)"))]},
    ),
    "from a ConfigMap": (
        "gpu-variables",
        {"containers": [container("main", variable("NVIDIA_VISIBLE_DEVICES", {"configMapKeyRef": _KEY}))]},
    ),
    "from a Secret": (
        "gpu-variables",
        {"containers": [container("main", variable("NVIDIA_VISIBLE_DEVICES", {"secretKeyRef": _KEY}))]},
    ),
    "from a label": (
        "gpu-variables",
        {
            "containers": [
                container(
                    "main", variable("NVIDIA_VISIBLE_DEVICES", {"fieldRef": {"fieldPath": "metadata.labels['gpus']"}})
                )
            ]
        },
    ),
    "from another annotation": (
        "gpu-variables",
        {
            "containers": [
                container(
                    "main",
                    variable("NVIDIA_VISIBLE_DEVICES", {"fieldRef": {"fieldPath": "metadata.annotations['gpus']"}}),
                )
            ]
        },
    ),
    "IMEX by the devices": (
        "gpu-variables",
        {"containers": [container("main", _VOID, variable("NVIDIA_IMEX_CHANNELS", DEVICES))]},
    ),
    "all GPUs in an init container": ("gpu-variables", {"initContainers": [container("init", _ALL)]}),
    "all GPUs in a sidecar": (
        "gpu-variables",
        {"initContainers": [container("side", _ALL, restartPolicy="Always")]},
    ),
    "image decides": ("gpu-visibility", {"containers": [container("main", variable("X", "1"))]}),
    "image of an init container decides": (
        "gpu-visibility",
        {"initContainers": [container("init", variable("X", "1"))]},
    ),
    "environment from a ConfigMap": (
        "gpu-visibility",
        {"containers": [container("main", variable("X", "1"), envFrom=[{"configMapRef": {"name": "own"}}])]},
    ),
    **{
        name: ("gpu-variables", {"containers": [container("main", _VOID, variable(name, "all"))]})
        for name in (*names.GPU_VARIABLES[1:], "DCU_VISIBLE_DEVICES", "NEW_VENDOR_VISIBLE_DEVICES")
    },
}
NETWORK_NOTES = (
    "v1.multus-cni.io/default-network",
    "k8s.v1.cni.cncf.io/networks",
    "cni.projectcalico.org/allowedSourcePrefixes",
    "cni.projectcalico.org/ipAddrsNoIpam",
    "k8s.ovn.org/pod-networks",
    "ovn.kubernetes.io/logical_switch",
    "second.team.ovn.kubernetes.io/ip_address",
    "policy.cilium.io/no-track-port",
    "io.cilium/shared-service",
    "ipam.antrea.io/pod-ips",
    "ipam.spidernet.io/ippool",
    "opflex.cisco.com/endpoint-group",
    "networking.gke.io/interfaces",
    "vpc.amazonaws.com/pod-eni",
    "k8s.aliyun.com/pod-networks",
    "danm.k8s.io/interfaces",
    "iam.amazonaws.com/role",
)
"""Annotations that take a pod out of the team's network, or give it a role of the cloud provider."""

_HOST = {"name": "host", "hostPath": {"path": "/"}}
_FAR: tuple[tuple[str, Body], ...] = (
    ("another team", {"namespaces": [OTHER]}),
    ("all teams", {"namespaceSelector": {}}),
)
_FOREIGN: Body = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}}
_REQUIRED, _PREFERRED = (f"{how}DuringSchedulingIgnoredDuringExecution" for how in ("required", "preferred"))
POD_BREACHES: dict[str, tuple[str, Body]] = {
    # Of pods alone: pod security and quotas count pods, not templates.
    "host path": ("PodSecurity", {"volumes": [_HOST]}),
    "host network": ("PodSecurity", {"hostNetwork": True}),
    "host processes": ("PodSecurity", {"hostPID": True}),
    "host IPC": ("PodSecurity", {"hostIPC": True}),
    "host port": ("PodSecurity", {"containers": [container(ports=[{"containerPort": 80, "hostPort": 80}])]}),
    "privileged": ("PodSecurity", {"containers": [container(securityContext={"privileged": True})]}),
    "root": ("PodSecurity", {"securityContext": {"runAsUser": 0}}),
    **{
        f"{how} {kind} with pods of {where}": (
            "exceeded quota: avactl-no-cross-namespace-affinity|status unknown for quota",
            {
                "affinity": {
                    kind: {
                        _REQUIRED if how == "required" else _PREFERRED: [
                            {**_FOREIGN, **term}
                            if how == "required"
                            else {"weight": 1, "podAffinityTerm": {**_FOREIGN, **term}}
                        ]
                    }
                }
            },
        )
        for how, kind, (where, term) in product(
            ("required", "preferred"),
            ("podAffinity", "podAntiAffinity"),
            _FAR,
        )
    },
}


def pods() -> Iterator[Attempt]:
    """Create a pod or a template that breaks one rule."""
    for kind, (what, (rule, change)) in product(KINDS, BREACHES.items()):
        body = workload(kind, pod_spec(**change))
        yield Attempt(f"{kind}: {what}", f" {rule}: ", "POST", path(*KINDS[kind]), body)
    for what, (rule, change) in POD_BREACHES.items():
        yield Attempt(f"Pod: {what}", rule, "POST", path("v1", "pods"), workload("Pod", pod_spec(**change)))
    own = path("v1", "pods/own")
    for annotation, rule in (
        ("avactl.dev/devices", "scheduler-annotations"),
        ("avactl.dev/preemption", "scheduler-annotations"),
        ("cdi.k8s.io/gpu", "runtime-annotations"),
        ("nvidia.cdi.k8s.io", "runtime-annotations"),
        ("nvidia.cdi.k8s.io/container.main", "runtime-annotations"),
        ("io.kubernetes.cri-o.Devices", "runtime-annotations"),
        ("devices.nri.io/container.main", "runtime-annotations"),
        ("devices.noderesource.dev/container.main", "runtime-annotations"),
        ("devices.crio.io", "runtime-annotations"),
        ("seccomp-profile.crio.io/main", "runtime-annotations"),
    ):
        noted = workload("Pod", pod_spec(), annotations={annotation: "0"})
        yield Attempt(f"Pod: {annotation}", f" {rule}: ", "POST", path("v1", "pods"), noted)
        change = {"metadata": {"annotations": {annotation: "0"}}}
        yield Attempt(f"annotate {annotation}", f" {rule}: ", "PATCH", own, change)
    for annotation in NETWORK_NOTES:
        for kind in KINDS:
            noted = workload(kind, pod_spec(), annotations={annotation: "kube-system/hosts"})
            yield Attempt(f"{kind}: {annotation}", " network-annotations: ", "POST", path(*KINDS[kind]), noted)
        for kind in ("Pod", "Deployment", "StatefulSet", "ReplicaSet", "CronJob"):
            template: Body = {"metadata": {"annotations": {annotation: "kube-system/hosts"}}}
            if kind == "CronJob":
                template = {"spec": {"jobTemplate": {"spec": {"template": template}}}}
            elif kind != "Pod":
                template = {"spec": {"template": template}}
            target = path(KINDS[kind][0], KINDS[kind][1], "own")
            yield Attempt(f"annotate {kind} with {annotation}", " network-annotations: ", "PATCH", target, template)
    for field, key, value in (
        ("annotations", "avactl.dev/gpu-share", "0.01"),
        ("annotations", "avactl.dev/gpu-share", None),
        ("annotations", "avactl.dev/preemptible", "false"),
        ("annotations", "avactl.dev/gang-size", "1"),
        ("labels", "avactl.dev/gang", "other"),
        ("labels", "avactl.dev/gang", None),
    ):
        change = {"metadata": {field: {key: value}}}
        yield Attempt(f"{key}: {value} in a running pod", " scheduler-requests: ", "PATCH", own, change)
    defaults = [
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for key in ("not-ready", "unreachable")
    ]
    tolerate = {"spec": {"tolerations": [*defaults, {"operator": "Exists"}]}}
    yield Attempt("a pod that runs tolerates all taints", " tolerations: ", "PATCH", own, tolerate)


def changes() -> Iterator[Attempt]:
    """Change what is there: the member's own workloads, and those that specs compiled to."""
    for kind in ("Deployment", "StatefulSet", "ReplicaSet"):
        own = path(KINDS[kind][0], KINDS[kind][1], "own")
        for what, (rule, change) in list(BREACHES.items())[:20]:
            if what == "no scheduler":
                change = {"schedulerName": ""}
            body = {"spec": {"template": {"spec": change}}}
            yield Attempt(f"change of {kind}: {what}", f" {rule}: ", "PATCH", own, body)
    detect = path("apps/v1", "deployments", "detect")
    image = {"spec": {"template": {"spec": {"activeDeadlineSeconds": None, "hostname": "mine"}}}}
    yield Attempt("pods of a service, at its priority", " member-priority: ", "PATCH", detect, image)


def services() -> Iterator[Attempt]:
    """Services that other tenants or the outside reach."""
    for what, rule, spec in (
        ("NodePort", "service-type", {"type": "NodePort"}),
        ("LoadBalancer", "service-type", {"type": "LoadBalancer"}),
        ("ExternalName", "service-type", {"type": "ExternalName", "externalName": "web.web.svc"}),
        ("external IPs", "external-ips", {"externalIPs": ["203.0.113.7"]}),
    ):
        yield Attempt(f"Service {what}", f" {rule}: ", "POST", path("v1", "services"), service(OWN, **spec))
        yield Attempt(f"Service becomes {what}", f" {rule}: ", "PATCH", path("v1", "services/own"), {"spec": spec})
        if what in ("NodePort", "ExternalName", "external IPs"):
            other = service(OTHER, **spec)
            name = f"Service {what}, of a team with load balancers"
            yield Attempt(name, f" {rule}: ", "POST", path("v1", "services", namespace=OTHER), other, "bob")


def claims() -> Iterator[Attempt]:
    """Volumes and devices of others."""
    spec = {"accessModes": ["ReadOnlyMany"], "resources": {"requests": {"storage": "1Mi"}}, "storageClassName": ""}
    metadata = {"name": "attempt", "namespace": OWN}
    body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata}
    theft = {**body, "spec": {**spec, "volumeName": "web-bucket"}}
    collection = path("v1", "persistentvolumeclaims")
    yield Attempt("claim a given volume", " volume-name: ", "POST", collection, theft)
    yield Attempt(
        "give a claim a volume", " volume-name: ", "PATCH", f"{collection}/own", {"spec": {"volumeName": "web-bucket"}}
    )
    exactly = {"deviceClassName": "gpu-h100", "allocationMode": "All", "adminAccess": True}
    devices = {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}
    for kind, given in (("ResourceClaim", devices), ("ResourceClaimTemplate", {"spec": devices})):
        body = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": given}
        place = path("resource.k8s.io/v1", f"{kind.lower()}s")
        yield Attempt(f"{kind} with adminAccess", "admin access to devices", "POST", place, body)


# -- rights that a member does not have -----------------------------------------------------------------------------

_RBAC, _DRA, _ADMISSION = "rbac.authorization.k8s.io/v1", "resource.k8s.io/v1", "admissionregistration.k8s.io/v1"
_GATEWAY = "gateway.networking.k8s.io/v1"
_UNREACHED: tuple[tuple[str, str], ...] = (
    # In the team's own namespace.
    (_RBAC, "roles"),
    (_RBAC, "rolebindings"),
    ("networking.k8s.io/v1", "networkpolicies"),
    ("networking.k8s.io/v1", "ingresses"),
    (_GATEWAY, "httproutes"),
    (_GATEWAY, "grpcroutes"),
    ("v1", "resourcequotas"),
    ("v1", "limitranges"),
    ("v1", "serviceaccounts"),
    ("v1", "secrets"),
    ("v1", "endpoints"),
    ("discovery.k8s.io/v1", "endpointslices"),
    ("v1", "events"),
    ("v1", "replicationcontrollers"),
    ("v1", "podtemplates"),
    ("apps/v1", "daemonsets"),
    ("apps/v1", "controllerrevisions"),
    ("coordination.k8s.io/v1", "leases"),
)
_SUBRESOURCES = (
    ("POST", "v1", "pods/own/binding"),
    ("POST", "v1", "bindings"),
    ("PATCH", "v1", "pods/own/status"),
    ("PATCH", "v1", "pods/own/ephemeralcontainers"),
    ("PATCH", "v1", "pods/own/resize"),
    ("GET", "v1", "pods/own/proxy/metrics"),
    ("GET", "v1", "services/own/proxy/"),
    ("PATCH", "v1", "services/own/status"),
    ("PATCH", "v1", "persistentvolumeclaims/own/status"),
    ("POST", "v1", "serviceaccounts/avactl-run/token"),
    ("POST", "v1", "serviceaccounts/default/token"),
    ("PATCH", "apps/v1", "deployments/own/status"),
    ("PATCH", "apps/v1", "replicasets/own/scale"),
    ("PATCH", "batch/v1", "jobs/own/status"),
    ("PATCH", _DRA, "resourceclaims/own/status"),
    ("PATCH", "policy/v1", "poddisruptionbudgets/own/status"),
)
_CLUSTER = (
    ("v1", "namespaces"),
    ("v1", "nodes"),
    ("v1", "persistentvolumes"),
    (_RBAC, "clusterroles"),
    (_RBAC, "clusterrolebindings"),
    ("storage.k8s.io/v1", "storageclasses"),
    ("storage.k8s.io/v1", "csidrivers"),
    ("scheduling.k8s.io/v1", "priorityclasses"),
    ("node.k8s.io/v1", "runtimeclasses"),
    (_DRA, "deviceclasses"),
    (_DRA, "resourceslices"),
    (_ADMISSION, "validatingadmissionpolicies"),
    (_ADMISSION, "validatingadmissionpolicybindings"),
    (_ADMISSION, "mutatingwebhookconfigurations"),
    (_ADMISSION, "validatingwebhookconfigurations"),
    ("apiextensions.k8s.io/v1", "customresourcedefinitions"),
    ("apiregistration.k8s.io/v1", "apiservices"),
    ("certificates.k8s.io/v1", "certificatesigningrequests"),
    ("flowcontrol.apiserver.k8s.io/v1", "flowschemas"),
    ("networking.k8s.io/v1", "ingressclasses"),
)
_NAMED = {
    "namespaces": OWN,
    "priorityclasses": "avactl-serving",
    "validatingadmissionpolicies": "avactl-team-pods",
    "validatingadmissionpolicybindings": "avactl-team-pods",
    "clusterroles": "avactl-scheduler",
}
_ELSEWHERE = (
    ("GET", "v1", "pods"),
    ("GET", "v1", "secrets"),
    ("GET", "v1", "configmaps"),
    ("POST", "v1", "pods"),
    ("POST", "v1", "configmaps"),
    ("POST", "v1", "services"),
    ("POST", "batch/v1", "jobs"),
    ("POST", "apps/v1", "deployments"),
    ("DELETE", "v1", "pods/x"),
    ("POST", "v1", "pods/x/eviction"),
    ("POST", "v1", "pods/x/exec"),
    ("GET", "v1", "pods/x/log"),
    ("PATCH", "apps/v1", "deployments/x/scale"),
    ("POST", "v1", "serviceaccounts/default/token"),
    ("POST", _DRA, "resourceclaims"),
)


def rights() -> Iterator[Attempt]:
    """Requests that RBAC must refuse."""
    for version, resource in _UNREACHED:
        for method, name in (("POST", ""), ("PATCH", "own"), ("DELETE", "own")):
            yield _denied(method, path(version, resource, name))
    yield _denied("GET", path("v1", "secrets"))
    yield _denied("GET", path("v1", "secrets/own"))
    for method, version, resource in _SUBRESOURCES:
        yield _denied(method, path(version, resource))
    for version, resource in _CLUSTER:
        for method, name in (("POST", ""), ("PATCH", _NAMED.get(resource, "x")), ("DELETE", _NAMED.get(resource, "x"))):
            yield _denied(method, path(version, resource, name, namespace=""))
    for method, node in (("GET", "nodes"), ("GET", "nodes/x/proxy/pods"), ("GET", "persistentvolumes")):
        yield _denied(method, path("v1", node, namespace=""))
    for namespace, (method, version, resource) in product((OTHER, SYSTEM, "kube-system", "default"), _ELSEWHERE):
        yield _denied(method, path(version, resource, namespace=namespace))


def _denied(method: str, where: str) -> Attempt:
    return Attempt(f"{method} {where}", r'User "ann" cannot ', method, where, {})


def attempts() -> list[Attempt]:
    """All of them."""
    found = [*pods(), *changes(), *services(), *claims(), *rights()]
    assert len({attempt.name for attempt in found}) == len(found)
    return found
