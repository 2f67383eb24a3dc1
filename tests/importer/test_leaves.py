"""Nothing is lost in silence: each value that changes, goes or comes gives another spec or another line of the report.

Otherwise a line says that nothing at its place is carried over, or the change has no effect, for a reason given here.
"""

from __future__ import annotations

import random
import re
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from avactl.base.quantity import parse_quantity
from avactl.workbench.importer.cleaning import default_pull
from avactl.workbench.importer.model import GivenValue, ImportProblem
from avactl.workbench.importer.reading import read
from avactl.workbench.importer.session import Imported, import_objects
from avactl.workbench.importer.sources.context import ImportOptions
from tests.conftest import SOAK
from tests.importer.importing import IMAGES
from tests.importer.leaves import ABSENT, Change, apply, changes, told, value_at
from tests.importer.test_manifests import CASES

EXAMPLES = sorted((Path(__file__).parents[2] / "examples/import/manifests").glob("*.yaml"))
_SAMPLE = 3
"""Changes of each file that are tried in `make test`; `make soak` tries all."""

_DEFAULTS: tuple[tuple[str, str, Any], ...] = (
    (".*", r"enableServiceLinks$", True),
    (".*", r"(spec|ReplicaSpecs\.\w+|tasks\[\])\.(replicas|parallelism|completions)$", 1),
    ("Job|CronJob", r"spec\.completionMode$", "NonIndexed"),
    ("Job|CronJob", r"spec\.backoffLimit$", 6),
    ("Job|CronJob", r"spec\.(suspend|manualSelector)$", False),
    ("Job|CronJob", r"spec\.podReplacementPolicy$", "TerminatingOrFailed"),
    ("CronJob", r"spec\.successfulJobsHistoryLimit$", 3),
    ("CronJob", r"spec\.failedJobsHistoryLimit$", 1),
    ("CronJob", r"spec\.concurrencyPolicy$", "Allow"),
    (
        "DaemonSet",
        r"spec\.updateStrategy$",
        {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
    ),
    ("DaemonSet", r"spec\.updateStrategy\.type$", "RollingUpdate"),
    ("Deployment|Rollout", r"spec\.strategy\.type$", "RollingUpdate"),
    ("Deployment|StatefulSet|DaemonSet|Rollout", r"spec\.revisionHistoryLimit$", 10),
    ("Deployment", r"spec\.progressDeadlineSeconds$", 600),
    ("StatefulSet", r"spec\.podManagementPolicy$", "OrderedReady"),
    ("Job", r"spec\.queue$", "default"),
    ("InferenceService", r"predictor\.minReplicas$", 1),
    ("PyTorchJob", r"spec\.nprocPerNode$", "auto"),
    ("TrainJob", r"numProcPerNode$", "auto"),
    ("TrainJob", r"runtimeRef\.kind$", "ClusterTrainingRuntime"),
    ("TrainJob", r"runtimeRef\.apiGroup$", "trainer.kubeflow.org"),
    (".*", r"terminationMessagePath$", "/dev/termination-log"),
    (".*", r"terminationMessagePolicy$", "File"),
    (".*", r"dnsPolicy$", "ClusterFirst"),
    (".*", r"schedulerName$", "default-scheduler"),
    (".*", r"terminationGracePeriodSeconds$", 30),
    (".*", r"(readiness|liveness|startup)Probe\.(periodSeconds)$", 10),
    (".*", r"(readiness|liveness|startup)Probe\.(failureThreshold)$", 3),
    (".*", r"(readiness|liveness|startup)Probe\.(timeoutSeconds|successThreshold)$", 1),
    (".*", r"httpGet\.scheme$", "HTTP"),
    (".*", r"protocol$", "TCP"),
    ("Service", r"spec\.type$", "ClusterIP"),
    ("Service", r"spec\.sessionAffinity$", "None"),
    ("Service", r"spec\.internalTrafficPolicy$", "Cluster"),
    ("Service", r"spec\.ipFamilyPolicy$", "SingleStack"),
    ("Service", r"spec\.allocateLoadBalancerNodePorts$", True),
    ("PersistentVolumeClaim|StatefulSet", r"volumeMode$", "Filesystem"),
    ("ClusterQueue|Cohort", r"nominalQuota$", 0),
    ("ClusterQueue", r"fairSharing\.weight$", 1),
    ("HorizontalPodAutoscaler", r"minReplicas$", 1),
    ("ServiceAccount", r"automountServiceAccountToken$", True),
    (".*", r"tolerations\[\]\.operator$", "Equal"),
    (".*", r"readOnly$", False),
    # Of avactl's pods.
    (".*", r"runAsNonRoot$", True),
    (".*", r"allowPrivilegeEscalation$", False),
    (".*", r"privileged$", False),
)
"""Kind, path, value: what is absent has that value, in the API or in avactl's pods."""

_WORKLOADS = "Deployment|StatefulSet|DaemonSet|Job|CronJob|Rollout"
_SERVER = (
    (".*", r"creationTimestamp$"),
    (".*", r"metadata\.(finalizers.*|uid|managedFields|generation|resourceVersion|selfLink|deletion\w+)$"),
    (".*", r"metadata\.(labels|annotations)\[(batch\.kubernetes\.io|kubernetes\.io)/[\w.-]+\]$"),
    (".*", r"metadata\.labels\.(controller-uid|job-name|pod-template-hash)$"),
    (
        ".*",
        r"metadata\.annotations\[(kubectl\.kubernetes\.io/last-applied-configuration"
        r"|(deployment|pv|volume|volume\.beta)\.kubernetes\.io/[\w.-]+)\]$",
    ),
    ("Job|CronJob", r"(^|\.)spec\.selector(\..*)?$"),
    ("Namespace", r"^spec(\.finalizers.*)?$"),
    ("PersistentVolumeClaim", r"^spec\.volumeName$"),
    ("Pod", r"^spec\.(nodeName|priority)$"),
    ("Service", r"^spec\.(clusterIPs?(\[\])?|ipFamilies(\[\])?|healthCheckNodePort)$"),
    ("StatefulSet", r"volumeClaimTemplates\[\]\.(apiVersion|kind|status)$"),
    ("ServiceAccount", r"^secrets"),
)
"""Kind, path: the API server, a controller or the scheduler fills it in."""

_REFUSED = (
    (".*", r"resources\.limits\[(nvidia\.com/gpu|amd\.com/gpu|habana\.ai/gaudi|google\.com/tpu)\]$"),
    ("Service", r"^spec\.ports(\[\](\.name)?)?$"),
    ("Deployment|Rollout", r"maxUnavailable$"),
    ("StatefulSet", r"^spec\.serviceName$"),
)
"""Kind, path: an object without it is refused, or gets what avactl's has: a limit that is the request, the server's
port with its name, of few pods none that may be missing, and a host name."""

_TOOLS = (
    r"metadata\.(labels|annotations)\[(helm\.sh/chart|meta\.helm\.sh/[\w-]+|app\.kubernetes\.io/managed-by"
    r"|argocd\.argoproj\.io/(instance|tracking-id))\]$",
    r"metadata\.labels\.heritage$",
)
"""Paths: by which a deployment tool knows its own objects; avactl takes its place."""

_NO_EFFECT = (
    (_WORKLOADS, r"^spec\.selector(\..*)?$", "it selects the pods of the template, which have avactl's labels"),
    (".*", r"template\.spec\.containers\[\]\.name$", "avactl names the container, and the report says so"),
    (_WORKLOADS, r"template\.metadata\.name$", "a controller generates the names of pods"),
    (
        ".*",
        r"containers\[\]\.ports(\[\](\..*)?)?$",
        "ports are informative; those that probes and Services name are kept",
    ),
    ("Deployment", r"spec\.progressDeadlineSeconds$", "it stops nothing, and avactl's follows from the probes"),
    ("ClusterQueue|Cohort", r"coveredResources(\[\])?$", "it repeats the names of the flavors' resources"),
    ("RoleBinding", r"(subjects\[\]|roleRef)\.apiGroup$", "the API accepts one value"),
    ("TrainJob", r"runtimeRef\.apiGroup$", "the API accepts one value"),
    ("RoleBinding", r"subjects\[\]\.namespace$", "users and groups are in no namespace"),
    (
        "PyTorchJob|TFJob|MPIJob",
        r"template\.spec\.restartPolicy$",
        "the operator gives that of the role to the pods",
    ),
    ("HorizontalPodAutoscaler", r"metrics\[\]\.(containerResource|external|object|pods)$", "another type of metric"),
    ("Service", r"^spec\.selector\[", "the Service of the spec selects its pods, and those of no other object"),
    ("PyTorchJob", r"^spec\.nprocPerNode$", "without a number, it is that of the GPUs"),
    ("HorizontalPodAutoscaler", r"scaleTargetRef\.apiVersion$", "the API has one kind of that name"),
    ("Job", r"^spec\.tasks\[\]\.name$", "names of a single task are in host names only, which contracts look for"),
    ("Job", r"^spec\.plugins(\.\w+)?$", "what a plugin gives to the pods is looked for in their programs"),
    (
        "Job|MPIJob|PyTorchJob|TFJob|Deployment|StatefulSet",
        r"tolerations(\[\](\.\w+)?)?$",
        "pods with GPUs tolerate the taints of the pools that have them, whatever the source wrote",
    ),
    (
        "Node",
        r"^(metadata\.(labels|annotations)|spec\.(podCIDRs?|providerID|externalID|configSource)"
        r"|status\.(capacity|allocatable)(\.pods|\[[\w./-]+\])?$|status\.capacity\.(cpu|memory)$"
        r"|spec\.taints\[\](\.timeAdded)?)",
        "the node stays as it is; its pool reads its name, its GPUs, and what pods can have of CPU and memory",
    ),
)
"""Kind, path, and why it has no effect."""


def _reason(given: GivenValue, change: Change, ports: dict[Any, Any]) -> str:
    """Return why a change has no effect; empty if it has."""
    path, kind = change.text, given.kind
    old = value_at(given.value, change.path)
    other = change.value if old is ABSENT else old if change.value is ABSENT else ...
    for kinds, pattern, default in _DEFAULTS:
        if re.fullmatch(kinds, kind) and re.search(pattern, path) and other == default:
            return "a default"
    if path.endswith("template.spec.serviceAccount"):  # read only without the key that took its place
        found = value_at(given.value, (*change.path[:-1], "serviceAccountName"))
        return "without effect" if found is not ABSENT else ""
    if kind == "Node" and path == "status.allocatable.memory" and change.how == "changed":
        return "rounded to GiB" if parse_quantity(old) // 2**30 == parse_quantity(change.value) // 2**30 else ""
    if given.kind == "Service" and path == "spec.ports[].targetPort":
        return "a default" if value_at(given.value, (*change.path[:-1], "port")) in ports.get(other, {other}) else ""
    if change.value is ABSENT and any(re.fullmatch(kinds, kind) and re.search(at, path) for kinds, at in _REFUSED):
        return "the API refuses it"
    if path.endswith("imagePullPolicy"):
        return "a default" if other == default_pull(str(value_at(given.value, (*change.path[:-1], "image")))) else ""
    if re.search(r"resources\.requests(\..*|\[.*\])?$", path) or "resourcesPerNode.requests" in path:
        limits = value_at(given.value, tuple("limits" if step == "requests" else step for step in change.path))
        wanted = other if isinstance(other, dict) else {"": other}
        known = limits if isinstance(limits, dict) else {"": limits}
        return "a default" if wanted.items() <= known.items() else ""
    if kind == "Job" and path == "spec.minAvailable":
        return "a default" if other == sum(each.get("replicas", 1) for each in given.value["spec"]["tasks"]) else ""
    for kinds, pattern in _SERVER:
        if re.fullmatch(kinds, kind) and re.search(pattern, path):
            return "the server's"
    if any(re.search(pattern, path) for pattern in _TOOLS):
        return "a tool's"
    found = next((why for kinds, at, why in _NO_EFFECT if re.fullmatch(kinds, kind) and re.search(at, path)), "")
    if not found and isinstance(other, dict) and other:
        # A mapping goes or comes without effect if each of its values does.
        each = [_reason(given, change._replace(path=(*change.path, key), value=ABSENT), ports) for key in other]
        found = each[0] if change.value is ABSENT and all(each) else ""
    return found


def _named_ports(objects: list[GivenValue]) -> dict[Any, set[Any]]:
    """Return the numbers of the ports of all containers, by name; containers may share names."""
    containers = [
        container
        for each in objects
        for container in each.get("spec", "template", "spec", "containers") or ()
        if isinstance(container, dict)
    ]
    found: dict[Any, set[Any]] = {}
    for port in (port for each in containers for port in each.get("ports") or ()):
        found.setdefault(port.get("name"), set()).add(port.get("containerPort"))
    return found


def _imported(objects: list[GivenValue], directory: Path) -> Imported:
    return import_objects(objects, ImportOptions(images=IMAGES), directory)[0]


@pytest.mark.parametrize("case", [*CASES, *EXAMPLES], ids=lambda case: case.stem)
def test_no_change_is_silent(case: Path, tmp_path: Path) -> None:
    target = tmp_path / "none"
    objects = read([case], BytesIO())
    ports = _named_ports(objects)
    every = [(index, change) for index, each in enumerate(objects) for change in changes(each.value)]
    some = every if SOAK else random.Random(case.stem).sample(every, min(_SAMPLE, len(every)))
    made = _imported(read([case], BytesIO()), target)
    before = told(made)
    silent = []
    for index, change in some:
        objects = read([case], BytesIO())
        given = objects[index]
        if _reason(given, change, ports) or before.covers(given, change, made):
            continue
        objects[index] = GivenValue(apply(given.value, change), given.doc, given.path)
        try:
            after = told(_imported(objects, target))
        except ImportProblem:
            continue  # the whole import is refused, with the place
        if (after.files, after.words) == (before.files, before.words):
            silent.append(f"{given}: {change}")
    assert silent == []


def test_changes_cover_what_can_happen() -> None:
    """Values change, go and come; also keys of pods that the source does not have, and second containers."""
    (given,) = read([next(case for case in CASES if case.stem == "job-single-gpu")], BytesIO())
    every = {f"{change.how} {change.text}" for change in changes(given.value)}
    pod = "spec.template.spec"
    assert every >= {
        f"changed {pod}.containers[].image",
        f"removed {pod}.containers[].image",
        f"added {pod}.containers[]",
        f"added {pod}.containers[].livenessProbe",
        f"added {pod}.hostPID",
        "added spec.podFailurePolicy",
    }
