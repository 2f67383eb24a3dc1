"""`Cluster.spec.reconcile`: the engine that applies a cluster's objects, and its settings."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from avactl.spec.schema.base import Model
from avactl.spec.schema.values import Duration, Name, RelPath, Says, duration_seconds, value_error, want_length

Mode = Literal["pulumi", "files", "flux", "argocd", "pulumiOperator", "builtin"]

USED: dict[str, frozenset[str]] = {
    "flux": frozenset(("repository", "branch", "path", "interval", "secret", "service_account", "namespace", "wait")),
    "argocd": frozenset(("repository", "branch", "path", "namespace", "project")),
    "pulumiOperator": frozenset(
        (
            "repository",
            "branch",
            "path",
            "interval",
            "secret",
            "service_account",
            "namespace",
            "backend",
            "state_secret",
            "organization",
        )
    ),
    "builtin": frozenset(("repository", "branch", "path", "interval", "secret")),
}
"""Mode → fields besides `mode` that the mode uses; none for modes that are not listed."""

_URL_PART = r"[A-Za-z0-9_.~%-]+"
_URL_PATTERN = rf"^(https?|ssh)://([A-Za-z0-9_.-]+@)?[A-Za-z0-9.-]+(:[0-9]+)?(/{_URL_PART})+/?$"
_IS_URL = re.compile(_URL_PATTERN).fullmatch
_SCP_URL = re.compile(r"([A-Za-z0-9_.-]+@)?([A-Za-z0-9.-]+):(?!/)(\S+)").fullmatch
_BRANCH_PATTERN = r"^[A-Za-z0-9_]([-A-Za-z0-9_./+@#]*[A-Za-z0-9_+@#-])?$"
_IS_BRANCH = re.compile(_BRANCH_PATTERN).fullmatch
_BACKEND_SCHEMES = ("https", "s3", "gs", "azblob", "file")


def git_url(value: str) -> str:
    """Check the URL of a git repository."""
    want_length(value)
    place = value.partition("://")[2].partition("/")[0]
    if "@" in place and (value.startswith("http") or ":" in place.partition("@")[0]):
        raise value_error(
            "the repository URL contains a credential",
            "remove it from the URL and reference a Secret in `secret`",
        )
    if not _IS_URL(value):
        short = _SCP_URL(value)
        hint = "write `https://HOST/PATH` or `ssh://git@HOST/PATH`"
        if short and "://" not in value:
            hint = f"write `ssh://{short[1] or 'git@'}{short[2]}/{short[3]}`"
        raise value_error(f"`{value[:80]}` is not a git repository URL", hint)
    return value


def _check_branch(value: str) -> str:
    want_length(value)
    if value.startswith("refs/"):
        raise value_error(f"`{value[:80]}` is not a branch name", f"write `{value.removeprefix('refs/heads/')}`")
    if not _IS_BRANCH(value) or ".." in value or "//" in value or "@{" in value or value.endswith(".lock"):
        raise value_error(f"`{value[:80]}` is not a branch name", "use letters, digits, `-`, `_`, `.` and `/`")
    return value


def _check_interval(value: str) -> str:
    if duration_seconds(value) < 10:
        raise value_error(f"`{value}` is shorter than the minimum polling interval of 10 s", "write `1m`")
    return value


def _check_backend(value: str) -> str:
    want_length(value)
    scheme, _, rest = value.partition("://")
    if "@" in rest.partition("/")[0]:
        raise value_error("the backend URL contains a credential", "remove it from the URL and put it in `stateSecret`")
    if scheme not in _BACKEND_SCHEMES or not rest or not value.isprintable() or " " in value:
        raise value_error(
            f"`{value[:80]}` is not a Pulumi backend URL",
            "write `s3://BUCKET`, `gs://…`, `azblob://…` or `https://…`",
        )
    return value


GitUrl = Annotated[
    str,
    AfterValidator(git_url),
    WithJsonSchema({"type": "string", "pattern": _URL_PATTERN}),
    Says("URL of a git repository: `https://…`, `ssh://…`"),
]
"""URL of a git repository, without credentials."""
Branch = Annotated[str, AfterValidator(_check_branch), WithJsonSchema({"type": "string", "pattern": _BRANCH_PATTERN})]
"""A branch name."""
Interval = Annotated[Duration, AfterValidator(_check_interval)]
"""A duration of at least 10 s."""
Backend = Annotated[
    str,
    AfterValidator(_check_backend),
    WithJsonSchema({"type": "string", "pattern": rf"^({'|'.join(_BACKEND_SCHEMES)})://[^\s@]+$"}),
    Says("URL of a Pulumi backend: `s3://BUCKET`"),
]
"""URL of a Pulumi state backend, without credentials."""


class Reconcile(Model):
    """Engine that applies the compiled objects.

    With `repository`, avactl also compiles the objects that make the engine follow it, in the engine's namespace.
    """

    mode: Mode = Field(
        "pulumi",
        description="`pulumi`: `avactl up`. `files`: rendered manifests with kubectl. `flux`, `argocd`: the engine "
        "follows rendered manifests; objects that hold data are excluded from pruning. `pulumiOperator`: the "
        "Pulumi Kubernetes Operator runs the stacks in the cluster. `builtin`: `avactl reconcile`; with `repository`, "
        "as a Deployment in the cluster.",
    )
    repository: GitUrl | None = Field(
        None,
        description="Repository that the engine follows: the rendered manifests (`flux`, `argocd`) or the "
        "specs (`pulumiOperator`, `builtin`). If omitted, no objects are compiled for the engine.",
    )
    branch: Branch | None = Field(
        None,
        description="Branch that the engine follows. Default: `rendered`, the branch of `avactl render "
        "--publish rendered`; `main` for `pulumiOperator` and `builtin`.",
    )
    path: RelPath | None = Field(
        None,
        description="Directory of the rendered clusters in the branch; for `builtin`, of the specs. Default: the "
        "root. For `pulumiOperator`, directory of the Pulumi program. Default: `stacks`.",
    )
    interval: Interval | None = Field(
        None,
        description="Polling interval of the branch. Default: `1m`; `10m` for `pulumiOperator`, "
        "which also checks for drift.",
    )
    secret: Name | None = Field(
        None,
        description="Secret in the engine's namespace with the repository's credentials. Flux: keys `username` and "
        "`password`, or `identity` and `known_hosts`. Operator: key `accessToken`, or `sshPrivateKey`. `builtin`: in "
        "the system namespace, keys `username` and `password`.",
    )
    namespace: Name | None = Field(
        None, description="Namespace of the engine. Default: `flux-system`, `argocd`, `pulumi-kubernetes-operator`."
    )
    service_account: Name | None = Field(
        None,
        description="Service account in the engine's namespace that applies the objects. Flux: the controller's own "
        "by default. "
        "Operator: service account of the workspaces; required.",
    )
    wait: bool = Field(
        False,
        description="Flux: a team's Kustomization becomes ready when its objects are healthy, not when they are "
        "applied. "
        "Jobs that wait for GPUs count as unhealthy.",
    )
    project: Name | None = Field(None, description="Argo CD project of the Applications. Default: `default`.")
    backend: Backend | None = Field(
        None, description="Operator: URL of the Pulumi state backend, such as `s3://BUCKET`."
    )
    state_secret: Name | None = Field(
        None,
        description="Operator: Secret whose keys are environment variables of the engine, e.g. "
        "PULUMI_CONFIG_PASSPHRASE, PULUMI_ACCESS_TOKEN, AWS_ACCESS_KEY_ID.",
    )
    organization: Name | None = Field(
        None, description="Operator: organization of the stacks, if the state is in Pulumi Cloud."
    )
