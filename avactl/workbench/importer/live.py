"""Read what a cluster runs, to import it. Only reads, and never Secrets."""

from __future__ import annotations

import asyncio

from avactl.base.object_identity import Gvk, controller_of
from avactl.contracts import names
from avactl.diagnostics import Span
from avactl.kube.client import ApiError, Client
from avactl.kube.object_client import ObjectClient
from avactl.spec.documents.document import Document, FixedLocator
from avactl.workbench.importer.model import LIVE, Body, GivenValue, ImportProblem
from avactl.workbench.importer.reading import MAX_OBJECTS
from avactl.workbench.importer.sources.tenants import is_system

_LISTED_KINDS = {
    "v1": (
        "Namespace",
        "Node",
        "PersistentVolumeClaim",
        "Service",
        "ConfigMap",
        "ServiceAccount",
        "ResourceQuota",
        "LimitRange",
        "Pod",
    ),
    "apps/v1": ("Deployment", "StatefulSet", "DaemonSet"),
    "batch/v1": ("Job", "CronJob"),
    "rbac.authorization.k8s.io/v1": ("Role", "RoleBinding"),
    "policy/v1": ("PodDisruptionBudget",),
    "autoscaling/v2": ("HorizontalPodAutoscaler",),
    "networking.k8s.io/v1": ("NetworkPolicy", "Ingress"),
    "kubeflow.org/v1": ("PyTorchJob", "TFJob", "MPIJob", "XGBoostJob", "PaddleJob"),
    "kubeflow.org/v2beta1": ("MPIJob",),
    "trainer.kubeflow.org/v1alpha1": ("TrainJob",),
    "batch.volcano.sh/v1alpha1": ("Job",),
    "ray.io/v1": ("RayCluster", "RayJob", "RayService"),
    "kueue.x-k8s.io/v1beta1": ("ClusterQueue", "Cohort", "LocalQueue", "ResourceFlavor"),
}
_GENERATED_NAMES = {
    "ConfigMap": ("kube-root-ca.crt", "istio-ca-root-cert", "openshift-service-ca.crt"),
    "ServiceAccount": ("default",),
    "Service": ("kubernetes",),
}
"""Objects that clusters make in each namespace."""


async def read(client: Client, only: list[str]) -> tuple[list[GivenValue], str]:
    """Return the objects of a cluster, and its version. `only`: these namespaces; empty: all but the system's.

    Objects of controllers and of avactl, and Jobs that have ended, are left out. Raises ApiError, UnreachableError and
    ImportProblem.
    """
    api = ObjectClient(client, patience=15.0)
    kinds = {Gvk(version, kind) for version, listed in _LISTED_KINDS.items() for kind in listed}
    served = sorted(kinds - await api.find_kinds(kinds))
    found: list[GivenValue] = []
    for gvk in served:
        try:
            bodies = await api.items(gvk)
        except ApiError as error:
            if error.forbidden and gvk.kind == "Node":
                continue  # members of a team may not list them
            raise
        found += [_make_given(body) for body in bodies if _is_wanted(body, only)]
        if len(found) > MAX_OBJECTS:
            raise ImportProblem(f"the cluster has more than {MAX_OBJECTS:,} objects", "choose namespaces with `-n`")
        await asyncio.sleep(0)
    return found, await _server_version(client)


async def _server_version(client: Client) -> str:
    about = await client.request("GET", "/version")
    minor = "".join(char for char in str(about.get("minor", "")) if char.isdigit())
    return f"{about.get('major', '1')}.{minor or '36'}"


def _is_wanted(body: Body, only: list[str]) -> bool:
    metadata, kind = body["metadata"], body["kind"]
    if controller_of(metadata):
        return False
    if (metadata.get("labels") or {}).get(names.MANAGED_BY) == names.MANAGER or metadata.get("deletionTimestamp"):
        return False
    if metadata["name"] in _GENERATED_NAMES.get(kind, ()) or metadata["name"].startswith("system:"):
        return False
    if kind == "Job" and any(
        each.get("type") in ("Complete", "Failed") and each.get("status") == "True"
        for each in (body.get("status") or {}).get("conditions") or ()
    ):
        return False
    if kind in ("Node", "ClusterQueue", "ResourceFlavor"):
        return not only
    namespace = metadata["name"] if kind == "Namespace" else metadata.get("namespace", "")
    if only:
        return namespace in only
    return not is_system(namespace) or (namespace == "default" and kind != "Namespace")


def _make_given(body: Body) -> GivenValue:
    return GivenValue(body, Document(LIVE, 0, body, FixedLocator(Span(LIVE))))
