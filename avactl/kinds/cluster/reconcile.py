"""Who applies a cluster's objects: `Cluster.spec.reconcile`, and what each engine needs to know."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from avactl.kinds.base import Model
from avactl.kinds.fields.values import Duration, Name, RelPath, Says, bad, seconds, want_length

Mode = Literal["pulumi", "files", "flux", "argocd", "pulumiOperator", "builtin"]

USED: dict[str, frozenset[str]] = {
    "flux": frozenset(
        ("repository", "branch", "path", "interval", "secret", "service_account", "namespace", "wait")
    ),
    "argocd": frozenset(("repository", "branch", "path", "namespace", "project")),
    "pulumiOperator": frozenset(
        (
            "repository", "branch", "path", "interval", "secret", "service_account", "namespace", "backend",
            "state_secret", "organization",
        )
    ),
    "builtin": frozenset(("repository", "branch", "path", "interval", "secret")),
}  # fmt: skip
"""Mode → fields beside `mode` that mean something there. Of the other modes there are none."""

_PART = r"[A-Za-z0-9_.~%-]+"
_URL_PATTERN = rf"^(https?|ssh)://([A-Za-z0-9_.-]+@)?[A-Za-z0-9.-]+(:[0-9]+)?(/{_PART})+/?$"
_URL = re.compile(_URL_PATTERN).fullmatch
_SCP = re.compile(r"([A-Za-z0-9_.-]+@)?([A-Za-z0-9.-]+):(?!/)(\S+)").fullmatch
_BRANCH_PATTERN = r"^[A-Za-z0-9_]([-A-Za-z0-9_./+@#]*[A-Za-z0-9_+@#-])?$"
_BRANCH = re.compile(_BRANCH_PATTERN).fullmatch
_BACKENDS = ("https", "s3", "gs", "azblob", "file")


def _git_url(value: str) -> str:
    want_length(value)
    place = value.partition("://")[2].partition("/")[0]
    if "@" in place and (value.startswith("http") or ":" in place.partition("@")[0]):
        raise bad(
            "a repository's URL holds a credential",
            "name the Secret that has it in `secret`, and leave it out of the URL",
        )
    if not _URL(value):
        short = _SCP(value)
        hint = "write `https://HOST/PATH` or `ssh://git@HOST/PATH`"
        if short and "://" not in value:
            hint = f"write `ssh://{short[1] or 'git@'}{short[2]}/{short[3]}`"
        raise bad(f"`{value[:80]}` is not the URL of a git repository", hint)
    return value


def _branch(value: str) -> str:
    want_length(value)
    if value.startswith("refs/"):
        raise bad(f"`{value[:80]}` is not the name of a branch", f"write `{value.removeprefix('refs/heads/')}`")
    if not _BRANCH(value) or ".." in value or "//" in value or "@{" in value or value.endswith(".lock"):
        raise bad(f"`{value[:80]}` is not the name of a branch", "use letters, digits, `-`, `_`, `.` and `/`")
    return value


def _interval(value: str) -> str:
    if seconds(value) < 10:
        raise bad(f"`{value}` is shorter than the 10 s that a git server should be left alone", "write `1m`")
    return value


def _backend(value: str) -> str:
    want_length(value)
    scheme, _, rest = value.partition("://")
    if "@" in rest.partition("/")[0]:
        raise bad("the URL of the state holds a credential", "leave it out of the URL, and put it into `stateSecret`")
    if scheme not in _BACKENDS or not rest or not value.isprintable() or " " in value:
        raise bad(
            f"`{value[:80]}` is not the URL of a Pulumi backend",
            "write `s3://BUCKET`, `gs://…`, `azblob://…` or `https://…`",
        )
    return value


GitUrl = Annotated[
    str,
    AfterValidator(_git_url),
    WithJsonSchema({"type": "string", "pattern": _URL_PATTERN}),
    Says("URL of a git repository: `https://…`, `ssh://…`"),
]
"""Where a git repository is, without credentials."""
Branch = Annotated[str, AfterValidator(_branch), WithJsonSchema({"type": "string", "pattern": _BRANCH_PATTERN})]
"""The name of a branch."""
Interval = Annotated[Duration, AfterValidator(_interval)]
"""A duration of at least 10 s."""
Backend = Annotated[
    str,
    AfterValidator(_backend),
    WithJsonSchema({"type": "string", "pattern": rf"^({'|'.join(_BACKENDS)})://[^\s@]+$"}),
    Says("URL of a Pulumi backend: `s3://BUCKET`"),
]
"""Where Pulumi keeps its state, without credentials."""


class Reconcile(Model):
    """Who applies the compiled objects.

    With `repository`, the objects that make the engine follow it are compiled too, in the engine's namespace.
    """

    mode: Mode = Field(
        "pulumi",
        description="`pulumi`: `avactl up`. `files`: rendered manifests and kubectl. `flux`, `argocd`: the engine "
        "follows rendered manifests; objects that hold data carry its mark against pruning. `pulumiOperator`: the "
        "Pulumi Kubernetes Operator runs the stacks in the cluster. `builtin`: `avactl reconcile`; with `repository` "
        "as a Deployment of the cluster.",
    )
    repository: GitUrl | None = Field(
        None,
        description="Repository that the engine follows: that of the rendered manifests (`flux`, `argocd`) or of the "
        "specs (`pulumiOperator`, `builtin`). Without it, no objects are compiled that make it follow one.",
    )
    branch: Branch | None = Field(
        None,
        description="Branch that it follows. Default: `rendered`, as `avactl render --publish rendered` writes it; "
        "`main` for `pulumiOperator` and `builtin`.",
    )
    path: RelPath | None = Field(
        None,
        description="Directory of the branch with the rendered clusters, for `builtin` with the specs; default: the "
        "top. For `pulumiOperator` the directory with the Pulumi program; default: `stacks`.",
    )
    interval: Interval | None = Field(
        None, description="How often the branch is looked at. Default: `1m`; for `pulumiOperator`, which then looks "
        "for drift too, `10m`.",
    )  # fmt: skip
    secret: Name | None = Field(
        None,
        description="Secret in the engine's namespace with which the repository is read. Flux: keys `username` and "
        "`password`, or `identity` and `known_hosts`. Operator: key `accessToken`, or `sshPrivateKey`. `builtin`: in "
        "the system namespace, keys `username` and `password`.",
    )
    namespace: Name | None = Field(
        None, description="Namespace of the engine. Default: `flux-system`, `argocd`, `pulumi-kubernetes-operator`."
    )
    service_account: Name | None = Field(
        None,
        description="Service account in the engine's namespace that applies. Flux: default is its controller's own. "
        "Operator: that of the workspaces; must be there.",
    )
    wait: bool = Field(
        False,
        description="Flux: a team's Kustomization is ready when its objects are healthy, not when they are applied. "
        "Jobs that wait for GPUs count as unhealthy.",
    )
    project: Name | None = Field(None, description="Argo CD project of the applications. Default: `default`.")
    backend: Backend | None = Field(None, description="Operator: URL of Pulumi's state, `s3://BUCKET`.")
    state_secret: Name | None = Field(
        None,
        description="Operator: Secret whose keys are environment variables of the engine, e.g. "
        "PULUMI_CONFIG_PASSPHRASE, PULUMI_ACCESS_TOKEN, AWS_ACCESS_KEY_ID.",
    )
    organization: Name | None = Field(
        None, description="Operator: organization of the stacks, where the state is kept in Pulumi Cloud."
    )
