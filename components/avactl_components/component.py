"""A kind as a Pulumi component: the typed spec is compiled with its surroundings, its objects are the children."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pulumi
from pydantic import BaseModel

from avactl.apply.pulumi.resources import register_objects
from avactl.base.object_identity import ObjectKey
from avactl.compiler import PASSES, Compilation, compile_tree
from avactl.compiler.pass_state import PassState
from avactl.diagnostics import Span
from avactl.diagnostics.text import render_text
from avactl.program import registry
from avactl.program.manifest import Manifest
from avactl.spec.documents.document import Document, FixedLocator
from avactl.spec.repository.tree import DirTree, MemoryTree
from avactl.spec.schema.base import API_VERSION, Resource
from avactl_components.arguments import arguments_of

PACKAGE = "avactl"


class SpecComponent(pulumi.ComponentResource):
    """A spec of one kind and the Kubernetes objects that it compiles to.

    Arguments, as a mapping:
    `spec`: the spec, typed (`avactl.kinds`) or as it stands in YAML. `metadata`: the same; `name` is the component's
    name if it is left out. `platform`: directory of a spec repository with what the spec refers to: cluster, team,
    quotas, datasets. `documents`: further specs, typed or as mappings. `cluster`: whose objects to register, where
    the spec goes to several.

    The objects go where the `provider` option leads; `avactl.apply.pulumi.resources.provider` makes one with the
    options that avactl's stacks use. Raises pulumi.RunError with every problem of the specs.
    """

    # Not annotated: Pulumi would take every annotation of a component for one of its outputs.
    KIND = ""

    def __init__(self, name: str, args: Mapping[str, Any], opts: pulumi.ResourceOptions | None = None) -> None:
        manifests = compile_component(self.KIND, name, args)
        super().__init__(f"{PACKAGE}:index:{self.KIND}", name, None, opts)
        parents = {manifest.item.key: self for manifest in manifests}
        register_objects(manifests, parents, None, {})
        keys = [ObjectKey.of(manifest.body) for manifest in manifests]
        self._objects = pulumi.Output.from_input([str(key) for key in keys])
        self.register_outputs({"objects": self._objects})

    @property
    def objects(self) -> pulumi.Output[list[str]]:
        """The objects, as `Job vision/resnet50-worker`."""
        return self._objects


@cache
def component(kind: str) -> type[SpecComponent]:
    """The component of a kind."""
    model = registry.get_kind(kind).model
    arguments = arguments_of(model)

    def __init__(  # noqa: N807 - the class's own: its annotations are what the package's schema is made of
        self: SpecComponent, name: str, args: Mapping[str, Any], opts: pulumi.ResourceOptions | None = None
    ) -> None:
        SpecComponent.__init__(self, name, args, opts)

    __init__.__annotations__ = {"name": str, "args": arguments, "opts": pulumi.ResourceOptions | None}
    body = {
        "KIND": kind,
        "__init__": __init__,
        "__module__": __name__,
        "__doc__": inspect.cleandoc(model.__doc__ or ""),
        "__annotations__": {"objects": pulumi.Output[list[str]]},
    }
    return type(kind, (SpecComponent,), body)


def compile_component(kind: str, name: str, args: Mapping[str, Any]) -> list[Manifest]:
    """The manifests of one spec, in apply order. Raises pulumi.RunError with every problem of the specs."""
    metadata = {"name": name, **_plain(args.get("metadata") or {})}
    own = {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": _plain(args.get("spec") or {})}
    others = [_plain(document) for document in args.get("documents") or ()]
    compilation = _compile(args.get("platform"), [own, *others], name)
    manifests = [
        manifest for manifest in compilation.manifests if manifest.item.kind == kind and manifest.item.doc.value is own
    ]
    clusters = sorted({manifest.cluster for manifest in manifests})
    wanted = args.get("cluster")
    if wanted is None and len(clusters) > 1:
        raise pulumi.RunError(f"{kind} {name} goes to clusters {', '.join(clusters)}: say which one with `cluster`")
    return [manifest for manifest in manifests if wanted in (None, manifest.cluster)]


def _compile(platform: str | None, documents: list[Any], name: str) -> Compilation:
    tree = DirTree(platform) if platform is not None else MemoryTree({})
    if platform is not None and not Path(platform).is_dir():
        raise pulumi.RunError(f"platform: there is no directory {platform}")

    def add(state: PassState) -> PassState:
        found = [
            Document(f"<{name}>", index, value, FixedLocator(Span(f"<{name}>", index + 1)))
            for index, value in enumerate(documents)
        ]
        return PassState(state.tree, documents=tuple(found))

    compilation = compile_tree(tree, (add, *PASSES))
    if not compilation.ok:
        raise pulumi.RunError(render_text(compilation.diagnostics, lambda file: None))
    return compilation


def _plain(value: Any) -> Any:
    """Typed parts as mappings; whole numbers as such, which other languages hand over as fractions."""
    if isinstance(value, Resource):
        return value.to_dict()
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
