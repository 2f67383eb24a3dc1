"""Pulumi's view of a manifest: type, name, dependencies, and fields that force a replacement. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from avactl.program.manifest import Manifest
from avactl.program.program import Item

if TYPE_CHECKING:
    from avactl.compiler import Compilation

PROJECT = "avactl"
"""Pulumi project of all stacks."""

REPLACED_ON: dict[str, list[str]] = {
    "Job": [
        f"spec.{field}"
        for field in ("completionMode", "podFailurePolicy", "backoffLimitPerIndex", "successPolicy", "managedBy")
    ],
    "PersistentVolume": ["spec.nodeAffinity", "spec.volumeMode"],
    "PersistentVolumeClaim": ["spec.dataSource", "spec.dataSourceRef", "spec.volumeMode"],
    "PriorityClass": ["value", "preemptionPolicy"],
    "ResourceClaimTemplate": ["spec"],
    "ComputeDomain": ["spec"],
    "StorageClass": ["reclaimPolicy", "volumeBindingMode"],
}
"""Immutable fields that the provider does not know: kind → property paths.

Source: the ValidateXUpdate functions of k8s.io/kubernetes/pkg/apis. The provider knows the rest (pod template of a
Job, claim templates of a StatefulSet, selectors, roleRef, names).
"""


def of_stack(compilation: Compilation, cluster: str, team: str | None = None) -> list[Manifest]:
    """Return the manifests of a stack in apply order: the platform's on a cluster, or a team's."""
    return [m for m in compilation.manifests if m.cluster == cluster and m.item.team == team]


def adopts_by_itself(compilation: Compilation, cluster: str) -> bool:
    """Return whether the stacks of a cluster take over existing objects unasked, because the operator applies them.

    It runs unattended, so nobody could exclude protected objects: they leave the state but stay in the cluster, and are
    adopted again if their spec returns.
    """
    mode: str = compilation.program.cluster_spec(cluster).reconcile.mode
    return mode == "pulumiOperator"


def provider_inputs(
    cluster: str, *, context: str | None = None, kubeconfig: str | None = None, adopt: bool = False
) -> dict[str, str]:
    """Return the inputs of a cluster's Kubernetes provider. Parameters as of `resources.provider`."""
    switches = ("enableServerSideApply", "enableConfigMapMutable", "enablePatchForce")
    inputs = {"clusterIdentifier": cluster, **dict.fromkeys(switches, "true")}
    given = {"upsertExistingObjects": "true" if adopt else "", "context": context, "kubeconfig": kubeconfig}
    return inputs | {name: value for name, value in given.items() if value}


def type_token(manifest: Manifest) -> str:
    """Return Pulumi's type: `kubernetes:apps/v1:Deployment`; for patches `kubernetes:core/v1:NodePatch`."""
    version: str = manifest.body["apiVersion"]
    module = version if "/" in version else f"core/{version}"
    return f"kubernetes:{module}:{manifest.kind}{'Patch' if manifest.patch else ''}"


def object_name(manifest: Manifest) -> str:
    """Return Pulumi's name of an object: its name in the cluster, independent of its spec."""
    return f"{manifest.namespace}/{manifest.name}" if manifest.namespace else manifest.name


def component_type(kind: str) -> str:
    """Return Pulumi's type of a kind's component."""
    return f"avactl:kinds:{kind}"


def component_name(item: Item) -> str:
    """Return Pulumi's name of a spec: `team/name`, or `name` for the platform."""
    return f"{item.team}/{item.spec_name}" if item.team else item.spec_name


def make_urn(stack: str, component: str, token: str, name: str) -> str:
    """Return the URN of an object below a component of this type; without `component`, of a top-level resource."""
    parents = f"{component}$" if component else ""
    return f"urn:pulumi:{stack}::{PROJECT}::{parents}{token}::{name}"


def manifest_urn(manifest: Manifest, stack: str) -> str:
    """Return the URN of an object in a stack."""
    return make_urn(stack, component_type(manifest.item.kind), type_token(manifest), object_name(manifest))


def manifest_parent(manifest: Manifest, stack: str) -> str:
    """Return the URN of the component of an object's spec in a stack."""
    return make_urn(stack, "", component_type(manifest.item.kind), component_name(manifest.item))
