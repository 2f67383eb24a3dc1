"""Objects that make a GitOps engine follow a branch: for Flux, Argo CD or the Pulumi Kubernetes Operator.

They are compiled like any other object, so the engine also updates them; they are applied once by hand to
bootstrap. The platform's objects come first, then one unit per team: one team's error does not block the others.

API: fluxcd/source-controller v1, fluxcd/kustomize-controller v1, argoproj v1alpha1, pulumi.com/v1 (operator 2).
"""

from __future__ import annotations

from typing import Any

from avactl.program import registry
from avactl.program.lowering import k8s
from avactl.program.lowering.k8s import drop_none
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program
from avactl.spec.platform.cluster import ClusterSpec
from avactl.spec.platform.reconcile import Reconcile
from avactl.spec.repository.tree import ENVIRONMENT_VARIABLE
from avactl.spec.schema.base import GROUP
from avactl.spec.schema.reconcile_modes import rendered_branch
from avactl.spec.schema.values import duration_seconds

NAMESPACES = {"flux": "flux-system", "argocd": "argocd", "pulumiOperator": "pulumi-kubernetes-operator"}
"""Default namespace of each engine."""
_FLUX_SOURCE = "source.toolkit.fluxcd.io/v1"
_FLUX_KUSTOMIZE = "kustomize.toolkit.fluxcd.io/v1"
_DRIFT_INTERVAL = "10m"
_RETRY_INTERVAL = "1m"
_MAX_LABEL_LENGTH = 63
"""Maximum length of a unit's name: engines put it in labels."""


def build_engine_objects(item: Item[ClusterSpec], program: Program) -> list[Manifest]:
    """Return the objects of the cluster's engine; none if `repository` is not set."""
    spec = item.spec.reconcile
    if spec.repository is None:
        return []
    if spec.mode == "flux":
        return _build_flux(item, program)
    if spec.mode == "argocd":
        return _build_argocd(item, program)
    return _build_operator(item, program, spec.repository) if spec.mode == "pulumiOperator" else []


def teams_with_objects(program: Program, cluster: str) -> list[str]:
    """Teams with objects of their own in a cluster; each is a directory and a stack."""
    found = {
        spec.team
        for kind in registry.kind_names()
        if kind != "Team"
        for spec in program.of(kind)
        if spec.team and cluster in spec.clusters
    }
    return sorted(found)


def _unit_name(cluster: str, team: str) -> str:
    """Name of a team's unit; it ends up in labels, which are limited in length."""
    name = f"{cluster}-{team}"
    return (
        name
        if len(name) <= _MAX_LABEL_LENGTH
        else f"{name[: _MAX_LABEL_LENGTH - 11]}-{k8s.short_digest([cluster, team])}"
    )


def _build_object(item: Item[ClusterSpec], api_version: str, kind: str, name: str, spec: Body, **more: Any) -> Manifest:
    namespace = item.spec.reconcile.namespace or NAMESPACES[item.spec.reconcile.mode]
    return k8s.build_manifest(
        item, item.name, api_version, kind, name, namespace=namespace, component="reconcile", spec=spec, **more
    )


def _rendered_directory(item: Item[ClusterSpec], owner: str) -> str:
    """Directory of the rendered files of the platform (`_platform`) or a team in the branch; see
    `avactl.apply.files.paths`."""
    path = (item.spec.reconcile.path or "").strip("/")
    return "/".join(part for part in path.split("/") if part not in ("", ".")) + f"/{item.name}/{owner}"


def _build_flux(item: Item[ClusterSpec], program: Program) -> list[Manifest]:
    spec = item.spec.reconcile
    source = drop_none(
        url=spec.repository,
        ref={"branch": spec.branch or rendered_branch(program.environment)},
        interval=_flux_time(spec.interval or "1m"),
        secretRef={"name": spec.secret} if spec.secret else None,
    )
    # If these two left git, Flux would delete them and everything that they ever applied.
    stay = {"kustomize.toolkit.fluxcd.io/prune": "disabled"}

    def kustomization(name: str, owner: str, **more: Any) -> Manifest:
        body = drop_none(
            sourceRef={"kind": "GitRepository", "name": item.name},
            path=f"./{_rendered_directory(item, owner).lstrip('/')}",
            prune=True,
            # Not ready does not mean broken: machines are down, jobs wait for GPUs.
            wait=spec.wait and owner != "_platform",
            interval=_DRIFT_INTERVAL,
            retryInterval=_RETRY_INTERVAL,
            timeout="5m",
            serviceAccountName=spec.service_account,
        )
        annotations = stay if owner == "_platform" else None
        return _build_object(item, _FLUX_KUSTOMIZE, "Kustomization", name, {**body, **more}, annotations=annotations)

    return [
        _build_object(item, _FLUX_SOURCE, "GitRepository", item.name, source, annotations=stay),
        kustomization(item.name, "_platform"),
        *(
            kustomization(_unit_name(item.name, team), team, dependsOn=[{"name": item.name}])
            for team in teams_with_objects(program, item.name)
        ),
    ]


def _flux_time(value: str) -> str:
    """Format a duration without days, which Go does not parse."""
    return f"{int(duration_seconds(value))}s" if "d" in value else value


def _build_argocd(item: Item[ClusterSpec], program: Program) -> list[Manifest]:
    spec = item.spec.reconcile
    # Pruning this object would delete everything that it applied.
    stay = {"argocd.argoproj.io/sync-options": "Prune=false,Delete=false"}

    def application(path: str) -> Body:
        return {
            "project": spec.project or "default",
            "source": {
                "repoURL": spec.repository,
                "targetRevision": spec.branch or rendered_branch(program.environment),
                "path": path,
                "directory": {"recurse": True},
            },
            "destination": {"server": "https://kubernetes.default.svc"},
            "syncPolicy": {
                "automated": {"prune": True, "selfHeal": True},
                # Without ApplyOutOfSyncOnly every change would replace, and so restart, every job of the team.
                "syncOptions": ["ApplyOutOfSyncOnly=true", "ServerSideApply=true", "RespectIgnoreDifferences=true"],
                # A team's namespaces belong to the platform's objects, which may be applied later.
                "retry": {"limit": 10, "backoff": {"duration": "10s", "factor": 2, "maxDuration": "5m"}},
            },
        }

    objects = [
        _build_object(
            item,
            "argoproj.io/v1alpha1",
            "Application",
            item.name,
            application(_rendered_directory(item, "_platform").lstrip("/")),
            annotations=stay,
        )
    ]
    elements = [
        {"name": _unit_name(item.name, team), "path": _rendered_directory(item, team).lstrip("/"), "team": team}
        for team in teams_with_objects(program, item.name)
    ]
    if elements:
        metadata = {
            "name": "{{.name}}",
            "labels": {**k8s.object_labels(item, "reconcile"), f"{GROUP}/team": "{{.team}}"},
            # A removed team's objects are pruned; objects that hold data carry a keep mark.
            "finalizers": ["resources-finalizer.argocd.argoproj.io"],
        }
        each = {
            "goTemplate": True,
            "goTemplateOptions": ["missingkey=error"],
            "generators": [{"list": {"elements": elements}}],
            "template": {"metadata": metadata, "spec": application("{{.path}}")},
        }
        name = f"{item.name}-teams" if len(item.name) <= _MAX_LABEL_LENGTH - 6 else _unit_name(item.name, "teams")
        objects.append(_build_object(item, "argoproj.io/v1alpha1", "ApplicationSet", name, each, annotations=stay))
    return objects


def _build_operator(item: Item[ClusterSpec], program: Program, repository: str) -> list[Manifest]:
    spec = item.spec.reconcile

    def stack(name: str, team: str | None) -> Manifest:
        called = f"{item.name}.{team}" if team else item.name
        body = drop_none(
            stack=f"{spec.organization}/{called}" if spec.organization else called,
            projectRepo=repository,
            branch=spec.branch or "main",
            repoDir=(spec.path or "stacks").strip("/"),
            gitAuth=_git_auth(repository, spec.secret) if spec.secret else None,
            backend=spec.backend,
            serviceAccountName=spec.service_account,
            refresh=True,
            continueResyncOnCommitMatch=True,
            resyncFrequencySeconds=max(60, int(duration_seconds(spec.interval or "10m"))),
            # Deleting this object, e.g. to migrate to another engine, must not delete the platform.
            destroyOnFinalize=False,
            prerequisites=[{"name": item.name}] if team else None,
            workspaceTemplate=_build_workspace(spec, program.environment),
        )
        return _build_object(item, "pulumi.com/v1", "Stack", name, body)

    return [
        stack(item.name, None),
        *(stack(_unit_name(item.name, team), team) for team in teams_with_objects(program, item.name)),
    ]


def _build_workspace(spec: Reconcile, environment: str) -> Body | None:
    found = drop_none(
        envFrom=[{"secretRef": {"name": spec.state_secret}}] if spec.state_secret else None,
        env=[{"name": ENVIRONMENT_VARIABLE, "value": environment}] if environment else None,
    )
    return {"spec": found} if found else None


def _git_auth(url: str, secret: str) -> Body:
    key = "sshPrivateKey" if url.startswith("ssh:") else "accessToken"
    reference = {"type": "Secret", "secret": {"name": secret, "key": key}}
    return {"sshAuth": {"sshPrivateKey": reference}} if key == "sshPrivateKey" else {"accessToken": reference}
