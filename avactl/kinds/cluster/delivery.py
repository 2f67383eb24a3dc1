"""`Cluster.spec.delivery`: the repository in which the delivery daemon commits, and its forge."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field, WithJsonSchema

from avactl.diagnostics import Diagnostic
from avactl.program.program import Item
from avactl.spec.platform.reconcile import Branch, git_url
from avactl.spec.repository.forges import forge_of
from avactl.spec.schema.base import Model
from avactl.spec.schema.values import Name, RelPath, Says, bad, want_length

ForgeKind = Literal["github", "gitlab"]
_FOLLOWS_SPECS = ("builtin", "pulumiOperator")
"""Modes of `reconcile` whose `repository` has the specs; that of others has rendered manifests."""


_SSH = re.compile(r"(?:ssh://)?(?:[^@/\s]+@)?([A-Za-z0-9.-]+)(?::[0-9]+/|[:/])/?([^\s:]+)").fullmatch
_URL_PATTERN = r"^https?://[A-Za-z0-9.-]+(:[0-9]+)?(/[A-Za-z0-9_.~%-]+)"
_API = re.compile(rf"{_URL_PATTERN}*/?$").fullmatch


def _pushed(value: str) -> str:
    want_length(value)
    ssh = _SSH(value) if value.startswith("ssh://") or "://" not in value else None
    if ssh:
        raise bad("the delivery daemon pushes by https", f"write `https://{ssh[1]}/{ssh[2].removesuffix('.git')}`")
    return git_url(value)


def _api(value: str) -> str:
    want_length(value)
    if not _API(value):
        whole = f"https://{value.removeprefix('//')}"
        hint = f"write `{whole}`" if "://" not in value and _API(whole) else "write `https://HOST/PATH`"
        raise bad("not the URL of an API", hint)
    return value


PushUrl = Annotated[
    str,
    AfterValidator(_pushed),
    WithJsonSchema({"type": "string", "pattern": f"{_URL_PATTERN}+/?$"}),
    Says("URL of a git repository: `https://…`"),
]
"""URL of a git repository that is pushed to with user name and password, which it does not contain."""
ApiUrl = Annotated[
    str,
    AfterValidator(_api),
    WithJsonSchema({"type": "string", "pattern": f"{_URL_PATTERN}*/?$"}),
    Says("URL of an API: `https://…`"),
]


class Author(Model):
    """Author of commits."""

    name: Annotated[str, Field(pattern=r"^[^<>\n]+$", min_length=1, max_length=100)] = Field(
        "avactl", description="Name."
    )
    email: Annotated[str, Field(pattern=r"^[^<>\s@]+@[^<>\s@]+$", max_length=200)] = Field(
        "avactl@localhost", description="E-mail address; that of the account which pushes, where the forge checks it."
    )


class Delivery(Model):
    """Repository in which the delivery daemon commits: new versions of models, and roll-backs."""

    repository: PushUrl | None = Field(
        None,
        description="Repository of the specs. Default: that of `reconcile`, where it has the specs "
        "(`builtin`, `pulumiOperator`).",
    )
    branch: Branch | None = Field(None, description="Its branch. Default: that of `reconcile`, else `main`.")
    path: RelPath | None = Field(
        None, description="Directory of the specs in it. Default: that of `reconcile` with `builtin`, else the root."
    )
    secret: Name | None = Field(
        None,
        description="Secret in the system namespace with the keys `username` and `password`, of an account that may "
        "push to the branch; for pull requests `password` is a token of the forge.",
    )
    forge: ForgeKind | None = Field(
        None, description="Forge of the repository, for pull requests. Default: by the host of its URL."
    )
    api: ApiUrl | None = Field(
        None,
        description="Root of the forge's REST API. Default: `https://api.github.com`, `https://HOST/api/v3` of GitHub "
        "Enterprise, `https://HOST/api/v4` of GitLab.",
    )
    author: Author = Field(default_factory=Author, description="Author of the commits.")
    rollback: Literal["commit", "pullRequest", "never"] = Field(
        "commit",
        description="How the service's spec in git is reverted after the serving daemon has rolled back a `canary` or "
        "`blueGreen` rollout. `never`: git keeps the version that was rolled back.",
    )


class Place(NamedTuple):
    """Where the daemon commits."""

    repository: str
    branch: str
    path: str
    secret: str
    forge: str
    """`github`, `gitlab`, or "" if it is unknown."""
    api: str
    project: str
    """Path of the repository on its host."""


def place(item: Item) -> Place | None:
    """Return where the daemon of a cluster commits; None without a repository of specs."""
    own, followed = item.spec.delivery or Delivery(), item.spec.reconcile
    specs = followed.mode in _FOLLOWS_SPECS
    repository = own.repository or (followed.repository if specs else None)
    if repository is None:
        return None
    same = specs and repository == followed.repository
    forge, api, project = forge_of(repository, own.forge or "")
    return Place(
        repository,
        own.branch or (followed.branch if same else None) or "main",
        own.path or (followed.path if same and followed.mode == "builtin" else None) or "",
        own.secret or "",
        forge,
        (own.api or api).rstrip("/"),
        project,
    )


def problems(item: Item) -> Iterator[Diagnostic]:
    """Yield the problems of one cluster's `delivery`."""
    spec = item.spec
    given: Delivery | None = spec.delivery
    if not spec.daemons.delivery:
        if given is not None:
            yield Diagnostic(
                "without-effect",
                f"`delivery` has no effect: cluster {item.name} does not run the delivery daemon",
                item.span("spec", "delivery", key=True),
                severity="warning",
                hint="write `daemons: {delivery: true}`, or remove the key",
            )
        return
    found = place(item)
    if found is None:
        yield Diagnostic(
            "missing-key",
            "the delivery daemon needs the repository of the specs, which `reconcile` with "
            f"`mode: {spec.reconcile.mode}` does not name",
            item.span("spec", "daemons", "delivery", key=True),
            hint="add `delivery: {repository: https://…, secret: NAME}`",
        )
        return
    own = given is not None and given.repository is not None
    at = ("spec", "delivery", "repository") if own else ("spec", "reconcile", "repository")
    if not found.repository.startswith("http"):
        yield Diagnostic(
            "invalid-value",
            f"spec.{'.'.join(at[1:])}: the delivery daemon pushes by https",
            item.span(*at),
            hint="add `delivery: {repository: https://…, secret: NAME}`, with the keys `username` and `password` in "
            "the Secret",
        )
    elif found.secret and found.repository.startswith("http:"):
        yield Diagnostic(
            "invalid-value",
            f"spec.{'.'.join(at[1:])}: http would send the credentials of `secret` unencrypted",
            item.span(*at),
            hint=f"write `https{found.repository[4:]}`",
        )
    if given is not None and given.rollback == "pullRequest" and not found.forge:
        yield Diagnostic(
            "missing-key",
            f"the forge of {found.repository} is unknown, and roll-backs are proposed by pull requests",
            item.span("spec", "delivery", "rollback"),
            hint="add `forge: github` or `gitlab` to `delivery`, or write `rollback: commit`",
        )
