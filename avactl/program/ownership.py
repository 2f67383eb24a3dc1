"""Fields that controllers write in compiled objects; avactl never reverts them.

Kinds declare their own (`Kind.owned`); this module lists the fields that Kubernetes itself writes. `avactl explain
--drift` shows both.
"""

from __future__ import annotations

from typing import NamedTuple


class Owned(NamedTuple):
    """A field owned by a controller."""

    kind: str
    """Kind of the Kubernetes object."""
    path: tuple[str, ...]
    by: str
    """The writer, and when it writes."""

    @property
    def field(self) -> str:
        """The path in the form that `Manifest.owned` and Pulumi use: `spec.replicas`."""
        return ".".join(self.path)

    def __str__(self) -> str:
        return "".join(f'["{step}"]' if "." in step or "/" in step else f".{step}" for step in self.path).lstrip(".")


_REVISION_ANNOTATION = "deployment.kubernetes.io/revision"

KUBERNETES = (
    Owned("*", ("status",), "the controller of the kind"),
    Owned("*", ("metadata", "finalizers"), "controllers that clean up before deletion"),
    Owned("*", ("metadata", "ownerReferences"), "garbage collection"),
    Owned("Namespace", ("spec", "finalizers"), "the namespace controller"),
    Owned("ServiceAccount", ("secrets",), "the token controller"),
    Owned("ServiceAccount", ("imagePullSecrets",), "cloud controllers that add registry credentials"),
    Owned("Node", ("spec", "podCIDR"), "the node controller"),
    Owned("Node", ("spec", "providerID"), "the cloud's controller"),
    Owned("Node", ("spec", "unschedulable"), "administrators and autoscalers that drain the node"),
    Owned("PersistentVolume", ("spec", "claimRef", "uid"), "the volume binder"),
    Owned("PersistentVolume", ("spec", "claimRef", "resourceVersion"), "the volume binder"),
    Owned("PersistentVolumeClaim", ("spec", "volumeName"), "the volume binder, unless the spec names a volume"),
    Owned("Service", ("spec", "clusterIP"), "the API server, unless the spec says `None`"),
    Owned("Service", ("spec", "clusterIPs"), "the API server"),
    Owned("Deployment", ("metadata", "annotations", _REVISION_ANNOTATION), "the deployment controller"),
    Owned(
        "Deployment",
        ("spec", "template", "metadata", "annotations", "kubectl.kubernetes.io/restartedAt"),
        "`kubectl rollout restart`",
    ),
    Owned(
        "StatefulSet",
        ("spec", "template", "metadata", "annotations", "kubectl.kubernetes.io/restartedAt"),
        "`kubectl rollout restart`",
    ),
    Owned(
        "DaemonSet",
        ("spec", "template", "metadata", "annotations", "kubectl.kubernetes.io/restartedAt"),
        "`kubectl rollout restart`",
    ),
    Owned(
        "DaemonSet",
        ("metadata", "annotations", "deprecated.daemonset.template.generation"),
        "the daemon-set controller",
    ),
    Owned("Job", ("spec", "selector"), "the API server"),
    Owned("Job", ("metadata", "labels", "batch.kubernetes.io/controller-uid"), "the API server"),
)
"""Fields that Kubernetes writes; `*` matches every kind. A field that a spec sets still belongs to the spec."""
