"""The KubernetesObjects kind: manifests as they are."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from avactl.spec.schema.base import Model, Resource
from avactl.spec.schema.values import ClusterRef, Name, RepositoryFile


class KubernetesObjectsSpec(Model):
    """Manifests, in the spec or in files beside it."""

    cluster: ClusterRef | None = Field(
        None, description="Cluster. Default: the team's, if it uses one; all for the platform."
    )
    namespace: Name | None = Field(
        None,
        description="Namespace of objects that name none. Default: the team's; none for the platform.",
    )
    objects: Annotated[list[dict[str, Any]], Field(max_length=1000)] = Field(
        default_factory=list, description="The manifests."
    )
    files: Annotated[list[RepositoryFile], Field(max_length=200)] = Field(
        default_factory=list,
        description="YAML or JSON files with manifests, or directories of them, such as the output of `helm template`. "
        "List them under `exclude` in avactl.yaml, because they are not specs.",
    )
    deletion_policy: Literal["retain", "delete"] = Field(
        "retain",
        description="What happens to claims, volumes, namespaces and CustomResourceDefinitions when they are removed.",
    )


class KubernetesObjects(Resource):
    """Kubernetes manifests that no other kind compiles to: of the platform, or of a team within its rights.

    They have the same ownership, order, diff, pruning and policies as all other objects.
    """

    KIND: ClassVar[str] = "KubernetesObjects"
    SCOPE: ClassVar[Literal["either"]] = "either"
    kind: Literal["KubernetesObjects"] = Field("KubernetesObjects", description="`KubernetesObjects`.")
    spec: KubernetesObjectsSpec = Field(description="The manifests.")

    def needs_one_cluster(self) -> bool:
        """Return True for the objects of a team: elsewhere they would be a second copy that nobody has asked for."""
        return self.team is not None
