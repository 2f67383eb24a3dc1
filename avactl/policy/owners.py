"""`owners` in avactl.yaml: the teams and kinds that files may declare, by path."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import Annotated

from pydantic import AfterValidator, Field, TypeAdapter, WithJsonSchema

from avactl.diagnostics import Diagnostic, Reference
from avactl.diagnostics.model import OWNER
from avactl.diagnostics.suggest import WordIndex, did_you_mean, one_of
from avactl.policy.path_patterns import matches_pattern
from avactl.program import registry
from avactl.spec.documents.document import Document
from avactl.spec.schema.base import Model, Resource
from avactl.spec.schema.values import Name, Subject, value_error, want_length

ANY = "*"


def _check_pattern(value: str) -> str:
    want_length(value)
    if not value.strip("/") or "***" in value or re.search(r"[\s#!\[\]\\]", value) or ".." in value.split("/"):
        hint = "write `/teams/vision/`, `*.yaml` or `**/gpu/`; as in CODEOWNERS there is no `!`, `[` or `\\`"
        raise value_error(f"`{value[:80]}` is not a path pattern", hint)
    return value


def _check_kind(value: str) -> str:
    if value != ANY and value not in registry.kind_names():
        raise value_error(f"unknown kind `{value[:80]}`", did_you_mean(value, registry.kind_names(), "kinds"))
    return value


Pattern = Annotated[
    str,
    AfterValidator(_check_pattern),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^[^\s#!\[\]\\]*[^\s#!\[\]\\/]"
            r"[^\s#!\[\]\\]*$",
        }
    ),
]
"""A path pattern of a CODEOWNERS file."""
TeamName = Annotated[Name, Field()] | Annotated[str, Field(pattern=r"^\*$")]
KindName = Annotated[str, AfterValidator(_check_kind)]


class CodeOwner(Model):
    """The teams and kinds that the files of a path may declare."""

    path: Pattern = Field(description="Path pattern as in CODEOWNERS, relative to avactl.yaml; the last match wins.")
    teams: list[TeamName] = Field(
        default_factory=list, description='Teams whose specs the files may declare; `"*"`: every team, and no team.'
    )
    kinds: list[KindName] | None = Field(
        None, description='Kinds that the files may declare; `"*"`: all. Default: the kinds that teams own.'
    )
    members: Annotated[list[Subject], Field(min_length=1, max_length=1000)] | None = Field(
        None,
        description="Members for whom the files' specs run pods: `metadata.member`, and `user` of workspaces. Default: "
        "any member, or none.",
    )
    patches: list[Annotated[str, Field(pattern="^[A-Z][A-Za-z0-9]{1,62}$")]] | None = Field(
        None,
        description="Kubernetes kinds that patches of the files' specs may change; `[]`: none. Default: all that the "
        "owner of the spec may change.",
    )


Owners = tuple[CodeOwner, ...]


@cache
def _owners_adapter() -> TypeAdapter[Owners]:
    return TypeAdapter(Owners)


def as_json(owners: Owners) -> str:
    """Return `owners` as JSON; none are an empty text."""
    return _owners_adapter().dump_json(owners, by_alias=True).decode() if owners else ""


def from_json(text: str) -> Owners:
    """Return the `owners` that `as_json` was given. Raises pydantic's ValidationError."""
    return _owners_adapter().validate_json(text) if text else ()


def find(owners: Owners, path: str) -> CodeOwner | None:
    """Return the entry that applies to a file: the last one that matches."""
    return next((entry for entry in reversed(owners) if matches_pattern(entry.path, path)), None)


def team_kinds() -> list[str]:
    """Return the kinds that teams own: those that an entry without `kinds` allows."""
    return [name for name in registry.kind_names() if not registry.get_model(name).owned_by_platform()]


def ownership_problem(owners: Sequence[Owners], doc: Document, spec: Resource) -> Diagnostic | None:
    """Return the problem of a spec that its files may not declare, if any; each of several `owners` must allow it.

    An overlay needs the rights of the spec that it changes, and a patch those of the file that it is in. The first
    are those of the tree itself (() for none), others those of an earlier revision.
    """
    for index, each in enumerate(owners):
        found = (
            next(filter(None, (_problem_of(each, source, doc, spec) for source in doc.sources)), None) if each else None
        )
        if found is not None and index:
            hint = f"{found.hint}. A change of `owners` applies to later changes only"
            return replace(found, message=f"{found.message} by the `owners` before this change", hint=hint)
        if found is not None:
            return found
    return None


def _problem_of(owners: Owners, doc: Document, merged: Document, spec: Resource) -> Diagnostic | None:
    """`doc`: the file's own document; `merged`: the spec with what it inherits."""
    entry, team = find(owners, doc.file), spec.owner
    verb = "declare" if doc is merged or doc.file == merged.file else "change"
    if entry is None:
        hint = "add its path to `owners` in avactl.yaml, or move the spec to a path of its owner"
        return Diagnostic("not-owner", f"{doc.file} may not {verb} any spec", doc.span("kind"), hint=hint)
    kinds = team_kinds() if entry.kinds is None else entry.kinds
    if spec.KIND not in kinds and ANY not in kinds:
        message = f"{doc.file} may not {verb} a {spec.KIND}"
        hint = f"`owners` in avactl.yaml allows {one_of(kinds)} here; move the spec to a path of its owner"
        return Diagnostic("not-owner", message, doc.span("kind"), hint=hint)
    for index, patch in enumerate(spec.patches):
        here = doc is merged or merged.span("patches", index).file == doc.file
        if here and entry.patches is not None and patch.target.kind not in entry.patches:
            allowed = f"only patches of {one_of(entry.patches)}" if entry.patches else "no patches"
            message = f"{doc.file} may not patch a {patch.target.kind}"
            hint = f"`owners` in avactl.yaml allows {allowed} here"
            return Diagnostic("not-owner", message, merged.span("patches", index, "target", "kind"), hint=hint)
    if ANY in entry.teams or (team in entry.teams if team else spec.SCOPE == "platform"):
        return _member_problem(entry, doc, spec, verb)
    own = f"team {one_of(entry.teams)}" if entry.teams else "no team"
    other = f"use that team, or move the spec to a path of team {team}" if team else "set `metadata.team`"
    path = ("metadata", "name" if spec.team is None else "team")
    message = f"{doc.file} may not {verb} " + (f"specs of team {team}" if team else f"a {spec.KIND} without a team")
    hint = f"`owners` in avactl.yaml allows {own} here; {other}"
    near = _names_of(tuple(entry.teams)).closest(team) if team else None
    about = Reference(OWNER, near, team or "") if near is not None else None
    return Diagnostic("not-owner", message, doc.span(*path), hint=hint, reference=about)


@lru_cache(maxsize=8)
def _names_of(teams: tuple[str, ...]) -> WordIndex:
    return WordIndex(teams)


def _member_problem(entry: CodeOwner, doc: Document, spec: Resource, verb: str) -> Diagnostic | None:
    """Return the problem of a spec with pods that do not count for a member of its files."""
    runs = registry.get_lifecycle(spec.KIND) is not None or spec.KIND in registry.written_kinds()
    if entry.members is None or spec.member in entry.members or not runs:
        return None
    whom = f"specs of {spec.member}" if spec.member else f"a {spec.KIND} without a member"
    hint = f"`owners` in avactl.yaml allows {one_of(entry.members)} here; set `{'.'.join(spec.MEMBER_PATH)}`"
    span = doc.span(*spec.MEMBER_PATH) if spec.member else doc.span("metadata", "name")
    return Diagnostic("not-owner", f"{doc.file} may not {verb} {whom}", span, hint=hint)
