"""The Team kind: people, their namespaces, their buckets."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from avactl.kinds.base import Labels, Model, Resource
from avactl.kinds.fields.values import Bytes, CacheTierRef, ClusterRef, Cpu, Image, Name, ObjectUrl, bad


def _subject(value: str) -> str:
    if value.startswith("system:"):
        raise bad(f"`{value}` is a name of Kubernetes' own", "name a user or group of the identity provider")
    if not value or value.split() != [value]:
        what = f"`{value}` has a blank in it" if value else "the name is empty"
        raise bad(what, "write the name exactly as the identity provider gives it")
    return value


Subject = Annotated[
    str,
    Field(max_length=253),
    AfterValidator(_subject),
    WithJsonSchema({"type": "string", "pattern": r"^(?!system:)\S+$", "maxLength": 253}),
]
"""A user or group as the identity provider names it."""


class Members(Model):
    """Who belongs to the team, by the identity provider's names."""

    users: list[Subject] = Field(
        default_factory=list, description="OIDC users, who may read and write the team's work."
    )
    groups: list[Subject] = Field(default_factory=list, description="OIDC groups, with the same rights.")
    admins: list[Subject] = Field(default_factory=list, description="OIDC users who may also manage Secrets.")
    viewers: list[Subject] = Field(default_factory=list, description="OIDC groups that may only look.")


class Bucket(Model):
    """An object-store bucket that the team uses."""

    name: Name = Field(description="Name of the bucket in the team; also the directory that users see.")
    url: ObjectUrl = Field(description="Where it is.")
    access: Literal["read", "readWrite"] = Field("readWrite", description="What the team may do.")
    secret: Name | None = Field(
        None, description="Secret in the team's namespaces with the bucket's credentials. Needed without a tier."
    )
    tier: CacheTierRef | None = Field(None, description="Cache tier through which the bucket is read or written.")


class TeamNamespace(Model):
    """A namespace of the team."""

    name: Name = Field(description="Name of the namespace.")
    pod_security: Literal["restricted", "baseline"] = Field("restricted", description="Pod-security level enforced.")
    labels: Labels = Field(default_factory=dict, description="Further labels.")


class DefaultWorkspace(Model):
    """What a workspace of the team has where it does not say."""

    image: Image | None = Field(None, description="Image.")
    cpu: Cpu = Field("2", description="CPU cores.")
    memory: Bytes = Field("8Gi", description="Memory, bytes.")
    storage: Bytes = Field("20Gi", description="Home directory, bytes.")


class TeamSpec(Model):
    """A team."""

    clusters: list[ClusterRef] | None = Field(None, min_length=1, description="Clusters it works on. Default: all.")
    members: Members = Field(default_factory=Members, description="Who belongs to it.")
    namespaces: list[TeamNamespace] | None = Field(
        None, min_length=1, description="Its namespaces. Default: one of the team's name."
    )
    buckets: list[Bucket] = Field(default_factory=list, description="Buckets that it uses.")
    workspace: DefaultWorkspace = Field(default_factory=DefaultWorkspace, description="Defaults of its workspaces.")
    talks_to: list[Name] = Field(
        default_factory=list, description="Other teams whose pods may reach this team's services."
    )
    deletion_policy: Literal["retain", "delete"] = Field(
        "retain", description="What becomes of its namespaces, with all that is in them, when the team is deleted."
    )


class Team(Resource):
    """People who share namespaces, buckets and a quota.

    Compiles to namespaces, roles and bindings, network policies that keep tenants apart, a service account, and
    volumes of the buckets that have a cache tier.
    """

    KIND: ClassVar[str] = "Team"
    OBJECT_NAME_HINT: ClassVar[str] = "name the namespaces in `spec.namespaces`"
    SCOPE: ClassVar[Literal["platform"]] = "platform"
    kind: Literal["Team"] = Field("Team", description="`Team`.")
    spec: TeamSpec = Field(default_factory=TeamSpec, description="The team.")

    def placed_on(self, every: tuple[str, ...]) -> tuple[str, ...]:
        """The clusters that the team works on."""
        return tuple(self.spec.clusters or every)
