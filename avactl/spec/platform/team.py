"""The Team kind: members, namespaces and buckets."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from avactl.contracts.names import MANAGER
from avactl.spec.schema.base import Annotations, Labels, Model, Resource
from avactl.spec.schema.monitoring import Notify
from avactl.spec.schema.values import (
    Bytes,
    CacheTierRef,
    ClusterRef,
    Image,
    Name,
    ObjectUrl,
    PodCpu,
    Subject,
    TeamRef,
    value_error,
)

ServiceType = Literal["ClusterIP", "NodePort", "LoadBalancer"]


class Members(Model):
    """Members of the team, by their names in the identity provider."""

    users: list[Subject] = Field(
        default_factory=list, description="OIDC users who may read and write the team's workloads."
    )
    groups: list[Subject] = Field(default_factory=list, description="OIDC groups with the same permissions as `users`.")
    admins: list[Subject] = Field(default_factory=list, description="OIDC users who may also manage Secrets.")
    viewers: list[Subject] = Field(default_factory=list, description="OIDC groups with read-only access.")


class Bucket(Model):
    """An object-store bucket of the team."""

    name: Name = Field(description="Name of the bucket within the team; also its directory in pods.")
    url: ObjectUrl = Field(description="URL of the bucket.")
    access: Literal["read", "readWrite"] = Field("readWrite", description="Access of the team.")
    secret: Name | None = Field(
        None, description="Secret in the team's namespaces with the bucket's credentials. Required without a tier."
    )
    shared_with: list[TeamRef] = Field(
        default_factory=list, description="Other teams whose buckets and datasets may overlap with this bucket."
    )
    tier: CacheTierRef | None = Field(None, description="Cache tier to read and write the bucket through.")


class TeamNamespace(Model):
    """A namespace of the team."""

    name: Name = Field(description="Name of the namespace.")
    pod_security: Literal["restricted", "baseline"] = Field("restricted", description="Enforced pod-security level.")
    host_network: bool = Field(
        False,
        description="Let specs use the host's network, which pod security `restricted` and `baseline` forbid. Only "
        "specs can create pods in the namespace.",
    )
    labels: Labels = Field(default_factory=dict, description="Additional labels.")


def _check_account(value: str) -> str:
    if value == "default" or value.startswith(f"{MANAGER}-"):
        raise value_error(
            f"`{value}` is an account of {'Kubernetes' if value == 'default' else MANAGER}", "choose another name"
        )
    return value


class TeamAccount(Model):
    """A service account that specs of the team may use, in each of its namespaces."""

    name: Annotated[Name, AfterValidator(_check_account)] = Field(description="Name of the account.")
    annotations: Annotations = Field(
        default_factory=dict,
        description="Annotations, by which clouds give its pods a role: `eks.amazonaws.com/role-arn`, "
        "`iam.gke.io/gcp-service-account`, `azure.workload.identity/client-id`.",
    )


class DefaultWorkspace(Model):
    """Defaults for the team's workspaces."""

    image: Image | None = Field(None, description="Image.")
    cpu: PodCpu = Field("2", description="CPU cores.")
    memory: Bytes = Field("8Gi", description="Memory, bytes.")
    storage: Bytes = Field("20Gi", description="Size of the home directory, in bytes.")


class TeamSpec(Model):
    """Members, namespaces and buckets of a team."""

    clusters: list[ClusterRef] | None = Field(
        None, min_length=1, description="Clusters that the team uses. Default: all."
    )
    members: Members = Field(default_factory=Members, description="Members of the team.")
    namespaces: list[TeamNamespace] | None = Field(
        None, min_length=1, description="Namespaces of the team. Default: one with the team's name."
    )
    buckets: list[Bucket] = Field(default_factory=list, description="Object-store buckets of the team.")
    workspace: DefaultWorkspace = Field(
        default_factory=DefaultWorkspace, description="Defaults for the team's workspaces."
    )
    service_accounts: list[TeamAccount] = Field(
        default_factory=list,
        max_length=64,
        description="Service accounts for `pod.serviceAccountName` of specs. Whoever writes specs of the team has "
        "their rights.",
    )
    pull_secrets: list[Name] = Field(
        default_factory=list,
        max_length=16,
        description="Image pull Secrets of the team's pods, in addition to the Cluster's; they must exist in its "
        "namespaces.",
    )
    talks_to: list[Name] = Field(
        default_factory=list,
        description="Other teams whose pods may reach this team's services, but not its jobs and workspaces.",
    )
    notify: Notify | None = Field(
        None, description="Who is told of the states of the team's jobs and services, unless they have a `notify`."
    )
    member_priority: Literal["low", "normal", "high"] = Field(
        "normal",
        description="Highest priority of pods that members create themselves, without a spec. Specs set their own.",
    )
    service_types: list[ServiceType] = Field(
        ["ClusterIP"], min_length=1, description="Types of Services that the team's namespaces may have."
    )
    deletion_policy: Literal["retain", "delete"] = Field(
        "retain", description="What happens to the team's namespaces and their contents when the team is deleted."
    )


class Team(Resource):
    """Members who share namespaces, buckets and a quota.

    Compiles to namespaces, roles and bindings, network policies that isolate tenants, a service account, and
    volumes of the buckets that have a cache tier.
    """

    KIND: ClassVar[str] = "Team"
    OBJECT_NAME_HINT: ClassVar[str] = "list the namespaces in `spec.namespaces`"
    SCOPE: ClassVar[Literal["platform"]] = "platform"
    kind: Literal["Team"] = Field("Team", description="`Team`.")
    spec: TeamSpec = Field(default_factory=TeamSpec, description="The team.")

    @property
    def owner(self) -> str:
        """The team itself."""
        return self.metadata.name

    def placed_on(self, every: tuple[str, ...]) -> tuple[str, ...]:
        """Return the clusters that the team uses."""
        return tuple(self.spec.clusters or every)
