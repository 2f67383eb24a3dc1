"""`Cluster.spec.delivery`: the repository in which the delivery daemon commits, and its forge."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from avactl.forges import FORGES, forge_names
from avactl.spec.platform.reconcile import Branch, git_url
from avactl.spec.schema.base import Model
from avactl.spec.schema.values import Name, RelPath, Says, value_error, want_length

if TYPE_CHECKING:
    ForgeName = str
else:
    ForgeName = Literal[tuple(forge_names())]


_SSH_URL = re.compile(r"(?:ssh://)?(?:[^@/\s]+@)?([A-Za-z0-9.-]+)(?::[0-9]+/|[:/])/?([^\s:]+)").fullmatch


_URL_PATTERN = r"^https?://[A-Za-z0-9.-]+(:[0-9]+)?(/[A-Za-z0-9_.~%-]+)"


_IS_API_URL = re.compile(rf"{_URL_PATTERN}*/?$").fullmatch


def _check_push_url(value: str) -> str:
    want_length(value)
    ssh = _SSH_URL(value) if value.startswith("ssh://") or "://" not in value else None
    if ssh:
        raise value_error(
            "the delivery daemon pushes by https", f"write `https://{ssh[1]}/{ssh[2].removesuffix('.git')}`"
        )
    return git_url(value)


def _check_api_url(value: str) -> str:
    want_length(value)
    if not _IS_API_URL(value):
        whole = f"https://{value.removeprefix('//')}"
        hint = f"write `{whole}`" if "://" not in value and _IS_API_URL(whole) else "write `https://HOST/PATH`"
        raise value_error("not the URL of an API", hint)
    return value


PushUrl = Annotated[
    str,
    AfterValidator(_check_push_url),
    WithJsonSchema({"type": "string", "pattern": f"{_URL_PATTERN}+/?$"}),
    Says("URL of a git repository: `https://…`"),
]
"""URL of a git repository that is pushed to with user name and password, which it does not contain."""


ApiUrl = Annotated[
    str,
    AfterValidator(_check_api_url),
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
    forge: ForgeName | None = Field(
        None, description="Forge of the repository, for pull requests. Default: by the host of its URL."
    )
    api: ApiUrl | None = Field(
        None,
        description=f"Root of the forge's REST API. Default: {', '.join(forge.api_default for forge in FORGES)}.",
    )
    author: Author = Field(default_factory=Author, description="Author of the commits.")
    rollback: Literal["commit", "pullRequest", "never"] = Field(
        "commit",
        description="How the service's spec in git is reverted after the serving daemon has rolled back a `canary` or "
        "`blueGreen` rollout. `never`: git keeps the version that was rolled back.",
    )
