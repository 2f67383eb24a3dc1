"""`spec.promoteFrom` of a ServingDeployment: the service whose proven version it takes over."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from avactl.base.errors import HintedError
from avactl.contracts.delivery import MAX_FIELDS
from avactl.spec.documents.value_path import parse_path, value_at
from avactl.spec.schema.base import Model
from avactl.spec.schema.values import Name, PositiveDuration, value_error

PROMOTED_KEYS = ("batching", "env", "llm", "model", "models", "runtime")
"""Keys of a service's spec that decide what its pods run, and not where or how many."""
PROMOTE_FROM = "spec.promoteFrom"
"""Path of the promotion in the document of a service."""
_DEFAULT = ("spec.model.url", "spec.model.version", "spec.model.dataset", "spec.runtime.image")
_PATTERN = rf"^spec\.({'|'.join(PROMOTED_KEYS)})(\.[^.\[\]]+|\[[^\[\]0-9][^\[\]]*\])*$"
_EXAMPLE = "write e.g. `spec.runtime.args`"


def _check_field(value: str) -> str:
    try:
        steps = parse_path(value)
    except HintedError as error:
        raise value_error(str(error), error.hint or _EXAMPLE) from None
    if len(steps) < 2 or steps[0] != "spec" or steps[1] not in PROMOTED_KEYS:
        keys = ", ".join(f"`spec.{key}`" for key in PROMOTED_KEYS)
        raise value_error(f"`{value[:80]}` does not decide what pods run: promoted are values of {keys}", _EXAMPLE)
    if any(isinstance(step, int) for step in steps):
        # The entries of two services have no common order.
        raise value_error(f"`{value[:80]}` names an entry by its number", "write `[name=NAME]`, or the whole list")
    return value


FieldPath = Annotated[
    str,
    AfterValidator(_check_field),
    WithJsonSchema({"type": "string", "pattern": _PATTERN, "maxLength": 200}),
]


class PromoteFrom(Model):
    """Promotion: this service gets the version that another service of the team has run in good health."""

    service: Name = Field(description="ServingDeployment of the team, such as that of a staging cluster.")
    healthy_for: PositiveDuration = Field(
        "1h",
        description="How long that service must have been healthy with a version: its rollout is complete, and all of "
        "its pods are available. A change of its pods begins this time anew.",
    )
    by: Literal["commit", "pullRequest"] = Field(
        "pullRequest",
        description="`pullRequest`: a pull request that somebody approves and merges. `commit`: a commit on the branch "
        "that the cluster follows.",
    )
    fields: Annotated[list[FieldPath], Field(min_length=1, max_length=MAX_FIELDS)] | None = Field(
        None,
        description="Paths of the values to promote, as `avactl set` takes them. Default: `url`, `version` and "
        "`dataset` of the model, and `spec.runtime.image`.",
    )


def promoted_fields(target: Any, source: Any) -> list[str]:
    """Return the paths of the values that a service gets from another one, from valid documents of both.

    Those of the default are in one of the two.
    """
    chosen = value_at(target, f"{PROMOTE_FROM}.fields")
    if chosen is not None:
        return list(dict.fromkeys(chosen))
    return [path for path in _DEFAULT if any(value_at(each, path) is not None for each in (target, source))]
