"""Manifests to Pulumi resources: each object is one resource, below the component of the spec that asked for it."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Mapping, Sequence

import pulumi

from avactl.compiler import Compilation
from avactl.emit import pulumi_plan
from avactl.emit.pulumi_aliases import Aliases
from avactl.kinds.manifest import Manifest

_NO_ALIASES = Aliases()


class Spec(pulumi.ComponentResource):
    """One spec: the parent of its objects, so that a preview reads as the spec does."""

    def __init__(self, token: str, name: str, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(token, name, None, opts)


class KubernetesObject(pulumi.CustomResource):
    """One object. The type is that of `pulumi_kubernetes`, the inputs are the manifest as it is rendered.

    The classes of `pulumi_kubernetes` are left out between: they know the kinds of one Kubernetes version only, and
    name keys in another way.
    """

    def __init__(self, manifest: Manifest, opts: pulumi.ResourceOptions) -> None:
        super().__init__(pulumi_plan.type_token(manifest), pulumi_plan.object_name(manifest), manifest.body, opts)


def provider(
    cluster: str, *, context: str | None = None, kubeconfig: str | None = None, adopt: bool = False
) -> pulumi.ProviderResource:
    """The Kubernetes provider of a cluster: server-side apply, and avactl's fields are avactl's.

    `context` is a context of the kubeconfig, `kubeconfig` a path; without them the environment's. The cluster is
    known by its name: another path or context does not make it another one. `adopt`: objects that are there already
    are taken over instead of refused.
    """
    inputs = {
        "clusterIdentifier": cluster,
        "enableServerSideApply": "true",
        "enableConfigMapMutable": "true",
        "enablePatchForce": "true",
    }
    if adopt:
        inputs["upsertExistingObjects"] = "true"
    if context:
        inputs["context"] = context
    if kubeconfig:
        inputs["kubeconfig"] = kubeconfig
    return pulumi.ProviderResource("kubernetes", cluster, inputs, pulumi.ResourceOptions(version=_plugin()))


def _plugin() -> str:
    """Version of the Kubernetes plugin: that of its Python package."""
    return importlib.metadata.version("pulumi-kubernetes")


def of_stack(compilation: Compilation, cluster: str, team: str | None = None) -> list[Manifest]:
    """The manifests of a stack, in apply order: those of the platform on a cluster, or those of a team."""
    return [m for m in compilation.manifests if m.cluster == cluster and m.item.team == team]


def register(
    compilation: Compilation,
    cluster: str,
    team: str | None = None,
    *,
    context: str | None = None,
    kubeconfig: str | None = None,
    adopt: bool = False,
    former: Aliases = _NO_ALIASES,
) -> dict[str, Spec]:
    """Register the objects of one stack with the engine that runs this program; the components by name.

    `former` are the URNs of what was renamed (`pulumi_past.aliases`). The other options are those of `provider`.
    """
    manifests = of_stack(compilation, cluster, team)
    # The operator runs this without anybody who could leave protected objects out; they stay in the cluster, and are
    # taken back when their spec comes back.
    forgets = compilation.program.cluster_spec(cluster).reconcile.mode == "pulumiOperator"
    connection = provider(cluster, context=context, kubeconfig=kubeconfig, adopt=adopt or forgets)
    components: dict[str, Spec] = {}
    parents: dict[tuple[str, str, str], pulumi.Resource] = {}
    for item in {manifest.item.key: manifest.item for manifest in manifests}.values():
        name = pulumi_plan.component_name(item)
        opts = pulumi.ResourceOptions(aliases=_alias(former.specs.get(item.key)))
        component = Spec(pulumi_plan.component_type(item.kind), name, opts)
        parents[item.key] = components[f"{item.kind} {name}"] = component
    register_objects(manifests, parents, connection, former.objects, forgets=forgets)
    for component in components.values():
        component.register_outputs({})
    return components


def register_objects(
    manifests: Iterable[Manifest],
    parents: Mapping[tuple[str, str, str], pulumi.Resource],
    connection: pulumi.ProviderResource | None,
    former: Mapping[str, str],
    *,
    forgets: bool = False,
) -> list[KubernetesObject]:
    """Register manifests, in apply order, below the parents of their specs. `former`: URN → the URN before.

    Without a `connection` the parents' provider is used, or the program's default one. What holds data is protected: an
    engine refuses to delete it. With `forgets` it lets go of it instead, where nobody is there to say so.
    """
    made: dict[tuple[str, str, str], KubernetesObject] = {}
    for manifest in manifests:
        first = [made[key] for key in dict.fromkeys(pulumi_plan.needs(manifest.body)) if key in made]
        replaced = pulumi_plan.REPLACED_ON.get(manifest.kind)
        keeps = manifest.holds_data and not forgets
        opts = pulumi.ResourceOptions(
            parent=parents[manifest.item.key],
            provider=connection,
            version=None if connection is not None else _plugin(),
            protect=True if keeps else None,
            retain_on_delete=True if manifest.holds_data and forgets else None,
            ignore_changes=list(manifest.owned) or None,
            depends_on=first or None,
            replace_on_changes=replaced,
            # The name stays, so there is no room for the new one beside the old one.
            delete_before_replace=True if replaced else None,
            aliases=_alias(former.get(pulumi_plan.manifest_urn(manifest, pulumi.get_stack())) if former else None),
        )
        made[manifest.kind, manifest.namespace, manifest.name] = KubernetesObject(manifest, opts)
    return list(made.values())


def _alias(urn: str | None) -> Sequence[str] | None:
    return [urn] if urn else None
