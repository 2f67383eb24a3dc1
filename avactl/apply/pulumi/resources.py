"""Manifests as Pulumi resources: each object is one resource below the component of its spec."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Mapping, Sequence

import pulumi

from avactl.apply.pulumi import resource_plan as pulumi_plan
from avactl.apply.pulumi.aliases import Aliases
from avactl.base.object_identity import ObjectKey
from avactl.compiler import Compilation
from avactl.program.dependencies import dependencies
from avactl.program.manifest import Manifest

_NO_ALIASES = Aliases()


class SpecComponent(pulumi.ComponentResource):
    """A spec: the parent of its objects, so that a preview has the structure of the specs."""

    def __init__(self, token: str, name: str, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(token, name, None, opts)


class KubernetesObject(pulumi.CustomResource):
    """One object, with the type of `pulumi_kubernetes` and the rendered manifest as inputs.

    The classes of `pulumi_kubernetes` are not used, because they support the kinds of one Kubernetes version only and
    rename keys.
    """

    def __init__(self, manifest: Manifest, opts: pulumi.ResourceOptions) -> None:
        super().__init__(pulumi_plan.type_token(manifest), pulumi_plan.object_name(manifest), manifest.body, opts)


def provider(
    cluster: str, *, context: str | None = None, kubeconfig: str | None = None, adopt: bool = False
) -> pulumi.ProviderResource:
    """Return the Kubernetes provider of a cluster, with server-side apply and forced ownership of avactl's fields.

    `context` is a kubeconfig context, `kubeconfig` a path; default: the environment. The cluster's identity is its
    name, whatever path or context is used. `adopt`: take over existing objects instead of failing.
    """
    inputs = pulumi_plan.provider_inputs(cluster, context=context, kubeconfig=kubeconfig, adopt=adopt)
    return pulumi.ProviderResource("kubernetes", cluster, inputs, pulumi.ResourceOptions(version=plugin_version()))


def plugin_version() -> str:
    """Return the version of the Kubernetes plugin: that of its Python package."""
    return importlib.metadata.version("pulumi-kubernetes")


def register_stack(
    compilation: Compilation,
    cluster: str,
    team: str | None = None,
    *,
    context: str | None = None,
    kubeconfig: str | None = None,
    adopt: bool = False,
    former: Aliases = _NO_ALIASES,
) -> dict[str, SpecComponent]:
    """Register the objects of one stack with the running engine; return the components by name.

    `former` are the former URNs of renamed specs (`pulumi_aliases.aliases`). Other options as for `provider`.
    """
    manifests = pulumi_plan.of_stack(compilation, cluster, team)
    forgets = pulumi_plan.adopts_by_itself(compilation, cluster)
    connection = provider(cluster, context=context, kubeconfig=kubeconfig, adopt=adopt or forgets)
    components: dict[str, SpecComponent] = {}
    parents: dict[tuple[str, str, str], pulumi.Resource] = {}
    for item in {manifest.item.key: manifest.item for manifest in manifests}.values():
        name = pulumi_plan.component_name(item)
        opts = pulumi.ResourceOptions(aliases=_alias_list(former.specs.get(item.key)))
        component = SpecComponent(pulumi_plan.component_type(item.kind), name, opts)
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
    """Register manifests, in apply order, below the components of their specs. `former`: URN → former URN.

    Without a `connection` the parents' or the program's provider is used. Objects that hold data are protected: the
    engine refuses to delete them. With `forgets` it drops them from its state instead, for unattended runs.
    """
    made: dict[ObjectKey, KubernetesObject] = {}
    for manifest in manifests:
        first = [made[key] for key in dependencies(manifest.body) if key in made]
        replaced = pulumi_plan.REPLACED_ON.get(manifest.kind)
        keeps = manifest.holds_data and not forgets
        opts = pulumi.ResourceOptions(
            parent=parents[manifest.item.key],
            provider=connection,
            version=None if connection is not None else plugin_version(),
            protect=True if keeps else None,
            retain_on_delete=True if manifest.holds_data and forgets else None,
            ignore_changes=list(manifest.owned) or None,
            depends_on=first or None,
            replace_on_changes=replaced,
            # The name stays, so the old object must be deleted before the new one is created.
            delete_before_replace=True if replaced else None,
            aliases=_alias_list(former.get(pulumi_plan.manifest_urn(manifest, pulumi.get_stack())) if former else None),
        )
        made[ObjectKey.of(manifest.body)] = KubernetesObject(manifest, opts)
    return list(made.values())


def _alias_list(urn: str | None) -> Sequence[str] | None:
    return [urn] if urn else None
