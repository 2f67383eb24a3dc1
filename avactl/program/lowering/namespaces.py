"""Namespaces: claims of specs, reserved names, and pod-security labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from avactl.contracts.names import CACHE_NAMESPACE
from avactl.diagnostics import Diagnostic, Note
from avactl.program.lowering import k8s
from avactl.program.manifest import Manifest
from avactl.program.program import Item, Program
from avactl.spec.platform.cluster import ClusterSpec
from avactl.spec.platform.team import TeamSpec


class NamespaceClaim(NamedTuple):
    """A namespace that a spec claims; `path` leads to its name in the document."""

    name: str
    item: Item
    path: tuple[str | int, ...]
    what: str
    """Its purpose, e.g. `namespace of team vision`."""


def of_cluster(item: Item[ClusterSpec], program: Program) -> Iterator[NamespaceClaim]:
    """Namespaces of the cluster itself."""
    own = ("spec", "systemNamespace") if item.doc.get("spec", "systemNamespace") else ("metadata", "name")
    yield NamespaceClaim(item.spec.system_namespace, item, own, "namespace of avactl's daemons")
    for tier in program.tiers(item.name)[:1]:
        yield NamespaceClaim(CACHE_NAMESPACE, tier, ("metadata", "name"), "namespace of the cache tiers")
    for index, namespace in enumerate(item.spec.namespaces):
        path = ("spec", "namespaces", index, "name")
        yield NamespaceClaim(namespace.name, item, path, f"namespace of Cluster {item.name}")


def of_team(team: Item[TeamSpec]) -> Iterator[NamespaceClaim]:
    """Namespaces of a team, the default one first."""
    what = f"namespace of team {team.name}"
    if not team.spec.namespaces:
        yield NamespaceClaim(team.name, team, ("metadata", "name"), what)
    for index, namespace in enumerate(team.spec.namespaces or ()):
        yield NamespaceClaim(namespace.name, team, ("spec", "namespaces", index, "name"), what)


def _owning_claims(program: Program, cluster: str) -> dict[str, NamespaceClaim]:
    """Return the claim that owns each namespace of a cluster: first the cluster's own, then a team of that name,
    then the other teams by name."""
    return program.memo(("namespaces", cluster), lambda: _first_claims(program, cluster))


def _first_claims(program: Program, cluster: str) -> dict[str, NamespaceClaim]:
    first: dict[str, NamespaceClaim] = {}
    item = program.find_cluster(cluster)
    for claim in of_cluster(item, program) if item is not None else ():
        first.setdefault(claim.name, claim)
    claims = [claim for team in program.teams(cluster) for claim in of_team(team)]
    for claim in sorted(claims, key=lambda claim: claim.name != claim.item.name):
        first.setdefault(claim.name, claim)
    return first


def _rename_hint(claim: NamespaceClaim) -> str:
    if claim.path[0] == "spec":
        return "choose another name"
    return "rename the team, or set other namespaces: `namespaces: [{name: …}]`"


OF_OTHERS = frozenset(
    {
        "argocd",
        "cert-manager",
        "external-secrets",
        "gatekeeper",
        "gpu-operator",
        "ingress-nginx",
        "kyverno",
        "linkerd",
        "node-feature-discovery",
        "pulumi-kubernetes-operator",
        "rook-ceph",
        "tekton-pipelines",
        "vault",
    }
)
"""Namespaces of widespread operators."""
RESERVED_PREFIXES, RESERVED_SUFFIX = ("kube-", "openshift-"), "-system"
"""Parts of other reserved names, such as those of Flux and Istio."""


def _reserved_for(claim: NamespaceClaim, clusters: tuple[str, ...], program: Program) -> str:
    """Return the owner of a reserved name; empty: the name is free. The platform may claim names of operators."""
    name = claim.name
    if name == CACHE_NAMESPACE:
        return "avactl's cache tiers"
    if name == "default" or name.startswith("kube-"):
        return "Kubernetes"
    if claim.item.resource.owner is None:
        return ""
    specs = [program.cluster_spec(cluster) for cluster in clusters]
    if name in [spec.system_namespace for spec in specs]:
        return ""  # claimed by the cluster, which is reported with its place
    engines = [spec.reconcile.namespace for spec in specs]
    if name in OF_OTHERS or name in engines or name.startswith(RESERVED_PREFIXES) or name.endswith(RESERVED_SUFFIX):
        return "software of the platform"
    return ""


def check_claims(claims: Iterator[NamespaceClaim], clusters: tuple[str, ...], program: Program) -> Iterator[Diagnostic]:
    """Yield the problems of one spec's claims: reserved names, and names already claimed on one of the clusters."""
    for claim in claims:
        if owner := _reserved_for(claim, clusters, program):
            if claim.what == "namespace of the cache tiers":
                continue
            yield Diagnostic(
                "reserved-namespace",
                f"namespace `{claim.name}` is reserved for {owner}",
                claim.item.span(*claim.path),
                hint=_rename_hint(claim),
            )
            continue
        for cluster in clusters:
            other = _owning_claims(program, cluster)[claim.name]
            if (other.item, other.path) != (claim.item, claim.path):
                yield Diagnostic(
                    "duplicate-namespace",
                    f"namespace `{claim.name}` of cluster {cluster} is already declared: {other.what}",
                    claim.item.span(*claim.path),
                    hint=_rename_hint(claim),
                    notes=(Note(other.item.span(*other.path), other.what),),
                )
                break


def pod_security(program: Program, cluster: str, level: str) -> dict[str, str]:
    """Labels of pod-security admission: `level` is enforced, audited and warned about, all at the cluster's
    minor version, so that a Kubernetes upgrade changes them in one reviewed step.

    Source: https://kubernetes.io/docs/concepts/security/pod-security-admission/
    """
    version = "v" + ".".join(program.cluster_spec(cluster).kubernetes_version.split(".")[:2])
    labels = {}
    for mode in ("enforce", "audit", "warn"):
        labels[f"pod-security.kubernetes.io/{mode}"] = level
        labels[f"pod-security.kubernetes.io/{mode}-version"] = version
    return labels


def build_namespace(
    item: Item,
    program: Program,
    cluster: str,
    name: str,
    level: str,
    labels: Mapping[str, str],
    *,
    holds_data: bool,
    annotations: Mapping[str, str] | None = None,
) -> Manifest:
    """Build a Namespace. The spec's labels come first, so that they cannot weaken pod security."""
    extra = {**labels, **pod_security(program, cluster, level)}
    return k8s.build_manifest(
        item, cluster, "v1", "Namespace", name, extra_labels=extra, annotations=annotations, holds_data=holds_data
    )
