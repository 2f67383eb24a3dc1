"""Fields that controllers write in objects that avactl compiles: nobody puts those back.

Kinds of avactl declare theirs (`Kind.owned`); here is what Kubernetes itself writes. `avactl explain --drift` shows
both.
"""

from __future__ import annotations

from typing import NamedTuple


class Owned(NamedTuple):
    """A field that is a controller's."""

    kind: str
    """Kind of the Kubernetes object."""
    path: tuple[str, ...]
    by: str
    """Who writes it, and when."""

    @property
    def field(self) -> str:
        """The path as `Manifest.owned` and Pulumi write it: `spec.replicas`."""
        return ".".join(self.path)

    def __str__(self) -> str:
        return "".join(f'["{step}"]' if "." in step or "/" in step else f".{step}" for step in self.path).lstrip(".")


_REVISION = "deployment.kubernetes.io/revision"

KUBERNETES = (
    Owned("*", ("status",), "the controller of the kind"),
    Owned("*", ("metadata", "finalizers"), "whoever has to clean up before the object goes"),
    Owned("*", ("metadata", "ownerReferences"), "garbage collection"),
    Owned("Namespace", ("spec", "finalizers"), "the namespace controller"),
    Owned("ServiceAccount", ("secrets",), "the token controller"),
    Owned("ServiceAccount", ("imagePullSecrets",), "clouds that add credentials of their registry"),
    Owned("Node", ("spec", "podCIDR"), "the node controller"),
    Owned("Node", ("spec", "providerID"), "the cloud's controller"),
    Owned("Node", ("spec", "unschedulable"), "people and autoscalers who drain the machine"),
    Owned("PersistentVolume", ("spec", "claimRef", "uid"), "the volume binder"),
    Owned("PersistentVolume", ("spec", "claimRef", "resourceVersion"), "the volume binder"),
    Owned("PersistentVolumeClaim", ("spec", "volumeName"), "the volume binder, where the spec names no volume"),
    Owned("Service", ("spec", "clusterIP"), "the API server, where the spec does not say `None`"),
    Owned("Service", ("spec", "clusterIPs"), "the API server"),
    Owned("Deployment", ("metadata", "annotations", _REVISION), "the deployment controller"),
    Owned("Deployment", ("spec", "template", "metadata", "annotations", "kubectl.kubernetes.io/restartedAt"),
          "`kubectl rollout restart`"),
    Owned("StatefulSet", ("spec", "template", "metadata", "annotations", "kubectl.kubernetes.io/restartedAt"),
          "`kubectl rollout restart`"),
    Owned("DaemonSet", ("spec", "template", "metadata", "annotations", "kubectl.kubernetes.io/restartedAt"),
          "`kubectl rollout restart`"),
    Owned("DaemonSet", ("metadata", "annotations", "deprecated.daemonset.template.generation"),
          "the daemon-set controller"),
    Owned("Job", ("spec", "selector"), "the API server"),
    Owned("Job", ("metadata", "labels", "batch.kubernetes.io/controller-uid"), "the API server"),
)  # fmt: skip
"""What Kubernetes writes beside us: `*` is every kind. A field that a spec sets is the spec's all the same."""
