"""Take out of objects what the API server, controllers and deployment tools have filled in."""

from __future__ import annotations

import copy
from typing import Any

from avactl.workbench.importer.model import Body

_SERVER_METADATA = (
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "selfLink",
    "ownerReferences",
    "generateName",
)
_TOOL_ANNOTATIONS = (
    "kubectl.kubernetes.io/last-applied-configuration",
    "kubectl.kubernetes.io/restartedAt",
    "deployment.kubernetes.io/",
    "pv.kubernetes.io/",
    "volume.kubernetes.io/",
    "volume.beta.kubernetes.io/",
    "batch.kubernetes.io/",
    "deprecated.daemonset.template.generation",
    "endpoints.kubernetes.io/",
    "control-plane.alpha",
    "meta.helm.sh/",
    "helm.sh/",
    "argocd.argoproj.io/",
    "kustomize.toolkit.fluxcd.io/",
    "helm.toolkit.fluxcd.io/",
    "field.cattle.io/",
    "cattle.io/",
    "objectset.rio.cattle.io/",
    "pulumi.com/",
    "kopf.zalando.org/",
    "autoscaling.alpha.",
)
"""Prefixes of annotations of the server and of tools whose place avactl takes."""
_TEMPLATE_ANNOTATIONS = tuple(each for each in _TOOL_ANNOTATIONS if each != "kubectl.kubernetes.io/restartedAt")
"""Those of pod templates: to take out the time of a restart would restart the pods again."""
_TOOL_LABELS = (
    "helm.sh/chart",
    "app.kubernetes.io/managed-by",
    "argocd.argoproj.io/",
    "kustomize.toolkit.fluxcd.io/",
    "helm.toolkit.fluxcd.io/",
    "controller-uid",
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-name",
    "job-name",
    "pod-template-hash",
    "controller-revision-hash",
    "kubernetes.io/metadata.name",
    "heritage",
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
    "volcano.sh/",
    "training.kubeflow.org/",
    "avactl.dev/",
)
_GENERATED_LABELS = (
    "controller-uid",
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-name",
    "job-name",
    "pod-template-hash",
    "controller-revision-hash",
)
"""Labels of templates that controllers generate. Others are matched by selectors, and stay."""

_POD_DEFAULTS = {
    "restartPolicy": "Always",
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "terminationGracePeriodSeconds": 30,
    "securityContext": {},
    "enableServiceLinks": True,
    "preemptionPolicy": "PreemptLowerPriority",
}
"""Defaults of a pod's spec."""
_SERVER_POD_KEYS = ("priority", "nodeName")
"""Keys that admission and the scheduler fill in, in a Pod; in a template, the user has written them."""
_HOOKS = (
    "helm.sh/hook",
    "helm.sh/resource-policy",
    "argocd.argoproj.io/hook",
    "argocd.argoproj.io/sync-",
    "argocd.argoproj.io/compare-options",
)
"""Prefixes of annotations that tell a deployment tool when and how to apply the object."""
_CONTAINER_DEFAULTS = {
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "resources": {},
}
_PROBE_DEFAULTS = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
_BY_KIND: dict[str, Body] = {
    "Deployment": {
        "progressDeadlineSeconds": 600,
        "revisionHistoryLimit": 10,
        "strategy": {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}, "type": "RollingUpdate"},
    },
    "StatefulSet": {
        "podManagementPolicy": "OrderedReady",
        "revisionHistoryLimit": 10,
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
        "updateStrategy": {"rollingUpdate": {"partition": 0}, "type": "RollingUpdate"},
    },
    "DaemonSet": {
        "revisionHistoryLimit": 10,
        "updateStrategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}, "type": "RollingUpdate"},
    },
    "Job": {
        "completionMode": "NonIndexed",
        "suspend": False,
        "podReplacementPolicy": "TerminatingOrFailed",
        "manualSelector": False,
    },
    "CronJob": {
        "concurrencyPolicy": "Allow",
        "suspend": False,
        "successfulJobsHistoryLimit": 3,
        "failedJobsHistoryLimit": 1,
    },
    "Service": {
        "internalTrafficPolicy": "Cluster",
        "sessionAffinity": "None",
        "type": "ClusterIP",
        "ipFamilyPolicy": "SingleStack",
    },
    "PersistentVolumeClaim": {"volumeMode": "Filesystem"},
}


def clean_object(source: Body) -> Body:
    """Return a copy of an object without its status, and without values that its API server filled in."""
    body = copy.deepcopy(source)
    body.pop("status", None)
    metadata = body["metadata"]
    for key in _SERVER_METADATA:
        metadata.pop(key, None)
    if body["kind"] in ("PersistentVolumeClaim", "PersistentVolume", "Service", "Namespace", "Pod", "Job"):
        kept = [each for each in metadata.get("finalizers") or () if not each.startswith(_SERVER_FINALIZERS)]
        metadata["finalizers"] = kept
    _clean_metadata(metadata, template=False)
    spec = body.get("spec")
    if isinstance(spec, dict):
        _of_kind(body["kind"], spec)
        for path in (("template",), ("jobTemplate", "spec", "template")):
            template: Any = spec
            for step in path:
                template = template.get(step) if isinstance(template, dict) else None
            if isinstance(template, dict):
                clean_template(template, job=body["kind"] in ("Job", "CronJob"))
        if body["kind"] == "CronJob" and isinstance(spec.get("jobTemplate"), dict):
            _clean_metadata(spec["jobTemplate"].setdefault("metadata", {}), template=False)
            if isinstance(spec["jobTemplate"].get("spec"), dict):
                _of_kind("Job", spec["jobTemplate"]["spec"])
            if not spec["jobTemplate"]["metadata"]:
                del spec["jobTemplate"]["metadata"]
        if body["kind"] == "Pod":
            clean_pod(spec)
            for key in _SERVER_POD_KEYS:
                spec.pop(key, None)
    return {key: value for key, value in body.items() if value is not None}


_SERVER_FINALIZERS = ("kubernetes.io/pv", "kubernetes", "service.kubernetes.io/", "batch.kubernetes.io/", "orphan")


def _clean_metadata(metadata: Body, *, template: bool) -> None:
    metadata.pop("creationTimestamp", None)
    for key, dropped in (
        ("annotations", _TEMPLATE_ANNOTATIONS if template else _TOOL_ANNOTATIONS),
        ("labels", _GENERATED_LABELS if template else _TOOL_LABELS),
    ):
        kept = {name: value for name, value in (metadata.get(key) or {}).items() if not name.startswith(dropped)}
        metadata[key] = kept
        if not kept:
            del metadata[key]
    for key in [key for key, value in metadata.items() if value in (None, [], {})]:
        del metadata[key]


def _of_kind(kind: str, spec: Body) -> None:
    for key, default in _BY_KIND.get(kind, {}).items():
        if spec.get(key) == default:
            del spec[key]
    if kind == "Job" and not spec.get("manualSelector"):
        spec.pop("selector", None)  # the controller generates it
    if kind == "Service":
        if spec.get("clusterIP") != "None":
            spec.pop("clusterIP", None)
        for key in ("clusterIPs", "ipFamilies", "healthCheckNodePort"):
            spec.pop(key, None)
        for port in spec.get("ports") or ():
            if isinstance(port, dict) and port.get("protocol") == "TCP":
                del port["protocol"]
            if isinstance(port, dict) and port.get("targetPort") == port.get("port"):
                port.pop("targetPort", None)
    if kind == "StatefulSet":
        for claim in spec.get("volumeClaimTemplates") or ():
            if isinstance(claim, dict):
                for key in ("status", "apiVersion", "kind"):
                    claim.pop(key, None)
                _clean_metadata(claim.setdefault("metadata", {}), template=True)
                if isinstance(claim.get("spec"), dict):
                    _of_kind("PersistentVolumeClaim", claim["spec"])
    if kind == "Namespace" and spec.get("finalizers") == ["kubernetes"]:
        del spec["finalizers"]


def hooks(metadata: Body) -> list[str]:
    """Return the annotations of an object that tell a deployment tool when and how to apply it."""
    return [str(key) for key in metadata.get("annotations") or {} if str(key).startswith(_HOOKS)]


def clean_template(template: Body, *, job: bool) -> None:
    """Clean a pod template in place."""
    metadata = template.get("metadata")
    if isinstance(metadata, dict):
        _clean_metadata(metadata, template=True)
        if not metadata:
            del template["metadata"]
    if isinstance(template.get("spec"), dict):
        clean_pod(template["spec"], job=job)


def clean_pod(pod: Body, *, job: bool = False) -> None:
    """Clean the spec of a pod in place."""
    for key, default in _POD_DEFAULTS.items():
        if key in pod and pod[key] == default and not (job and key == "restartPolicy"):
            del pod[key]
    account = pod.pop("serviceAccount", None)  # the former name of the key
    if account and not pod.get("serviceAccountName"):
        pod["serviceAccountName"] = account
    if pod.get("serviceAccountName") == "default":
        del pod["serviceAccountName"]
    for group in ("containers", "initContainers"):
        for container in pod.get(group) or ():
            if not isinstance(container, dict):
                continue
            for key, default in _CONTAINER_DEFAULTS.items():
                if container.get(key) == default:
                    del container[key]
            if container.get("imagePullPolicy") == default_pull(str(container.get("image"))):
                del container["imagePullPolicy"]
            for port in container.get("ports") or ():
                if isinstance(port, dict) and port.get("protocol") == "TCP":
                    del port["protocol"]
            for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
                if isinstance(container.get(probe), dict):
                    _clean_probe(container[probe])
            for entry in container.get("env") or ():
                field = ((entry.get("valueFrom") or {}).get("fieldRef") or {}) if isinstance(entry, dict) else {}
                if field.get("apiVersion") == "v1":
                    del field["apiVersion"]
    for volume in pod.get("volumes") or ():
        for source in ("configMap", "secret", "projected", "downwardAPI"):
            inner = volume.get(source) if isinstance(volume, dict) else None
            if isinstance(inner, dict) and inner.get("defaultMode") == 0o644:
                del inner["defaultMode"]
        if isinstance(volume, dict) and (volume.get("hostPath") or {}).get("type") == "":
            del volume["hostPath"]["type"]


def _clean_probe(probe: Body) -> None:
    for key, default in _PROBE_DEFAULTS.items():
        if probe.get(key) == default:
            del probe[key]
    if isinstance(probe.get("httpGet"), dict) and probe["httpGet"].get("scheme") == "HTTP":
        del probe["httpGet"]["scheme"]


def default_pull(image: str) -> str:
    """Return the pull policy that the API server gives to an image."""
    tag = image.rpartition("/")[2].partition("@")[0].partition(":")[2]
    return "Always" if "@" not in image and tag in ("", "latest") else "IfNotPresent"
