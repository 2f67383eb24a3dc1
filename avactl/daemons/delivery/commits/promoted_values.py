"""Values of two services in the history of the branch: those that a promotion would move, and who changed them last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from typing import Any, NamedTuple

import orjson

from avactl.apply.publish.store import PublishError
from avactl.contracts.delivery import PromotedSpec, PromotionPlan, value_digest
from avactl.daemons.delivery.commits.repository import DeliveryError, Edited, Repository, is_declared
from avactl.kinds.serving.parts.promotion import PROMOTE_FROM, PromoteFrom, promoted_fields
from avactl.spec.documents.document import Document
from avactl.spec.documents.edit import EditError, set_values
from avactl.spec.documents.value_path import PathError, value_at
from avactl.spec.documents.yaml import load_yaml
from avactl.spec.repository.tree import MAX_INPUT

_MAX_COMMITS = 1000
"""Commits of the two files that are searched; what is older is forgotten."""
_MAX_MOVES = 16
"""Moves of the two specs to other files that are followed."""
_MAX_KNOWN = 4096


class SpecDeclaration(NamedTuple):
    """Where a service is declared, as `ServiceDeclaration`."""

    file: str
    document: str
    team: str


class SpecValues(NamedTuple):
    """The promoted values of one service at a commit."""

    values: tuple[object, ...]
    """Values in the order of the plan's fields; None where the spec has none."""
    digests: Mapping[str, str]

    @property
    def digest(self) -> str:
        """Digest of all values together."""
        return combined_digest(self.digests)


class PromotionValues(NamedTuple):
    """The values of both services at the head of the branch."""

    source: SpecValues
    target: SpecValues
    conflict: str
    """Why these values of the source are not promoted to this target, by the specs and their history; "" if they may
    be.
    """


class CommittedDigests(NamedTuple):
    """Digests of the values of both services after a commit; None for a service that is not declared there, and for a
    target without `promoteFrom`: what was changed before is no decision against a promotion.
    """

    commit: str
    source: str | None
    target: str | None


def combined_digest(digests: Mapping[str, str]) -> str:
    """Return the digest of several values together."""
    return value_digest(dict(digests))


class PromotionHistory:
    """Reads and changes the values of promotions in a repository. Not for several threads at once."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._read: dict[PromotedSpec, tuple[str, PromotionPlan, PromotionValues]] = {}
        """Head, plan and values of the last read, by target."""
        self._known: dict[tuple[str, PromotionPlan, PromotedSpec], str | None] = {}

    def read(self, plan: PromotionPlan, repository: Repository | None = None) -> PromotionValues:
        """Return the values of both services at the head; `repository`: at that of a copy of the repository.

        Raises DeliveryError if a service is not where the plan says.
        """
        repository = repository or self._repository
        known = self._read.get(plan.target)
        if known is not None and known[:2] == (repository.head, plan):
            return known[2]
        found = self._read_head(plan, repository)
        if repository is self._repository:
            self._read[plan.target] = repository.head, plan, found
        return found

    def _read_head(self, plan: PromotionPlan, repository: Repository) -> PromotionValues:
        source, target = (
            repository.document(repository.head, _declaration(plan, spec))[1] for spec in (plan.source, plan.target)
        )
        found = PromotionValues(_spec_values(plan, source.value), _spec_values(plan, target.value), "")
        if not _is_promoted(plan, target.value):
            return found._replace(conflict=f"the spec is not promoted from {plan.source.document} any more")
        if not _is_planned(plan, source.value, target.value):
            return found._replace(conflict="the specs are not applied yet: the spec has another `promoteFrom`")
        if found.source.digest == found.target.digest:
            return found
        heads = {plan.source: found.source.digest, plan.target: found.target.digest}
        states = self._states(plan, heads, repository)
        return found._replace(conflict=find_conflict(states, found.source.digest, found.target.digest))

    def edit(self, plan: PromotionPlan, wanted: PromotionValues, message: str, repository: Repository) -> Edited | None:
        """Return the target's file with the source's values at the head of a repository.

        None if the values of the source or the target, or their history, are not as they were decided on. Raises
        DeliveryError.
        """
        if self.read(plan, repository) != wanted:
            return None
        text, document = repository.document(repository.head, _declaration(plan, plan.target))
        edits = [
            (path, None if new is None else orjson.dumps(new).decode()) for path, _, new in changed_values(plan, wanted)
        ]
        try:
            return Edited(set_values(plan.target.file, text, document.index, edits), message)
        except (EditError, PathError) as error:
            raise DeliveryError(f"{plan.target.file}: {error}", error.hint) from None

    def _states(
        self,
        plan: PromotionPlan,
        heads: Mapping[PromotedSpec, str | None],
        repository: Repository,
        moves: int = _MAX_MOVES,
    ) -> Iterator[CommittedDigests]:
        """Yield the values of both services after each commit that changed one of their files, the newest first.

        The history goes on in the files that the specs were moved from.
        """
        blobs: dict[str, str] = {}
        for commit, changes in _changes(repository, sorted({plan.source.file, plan.target.file})):
            for file, (_, new) in changes.items():
                blobs.setdefault(file, new)
            # Without a blob, no later commit changed the file.
            yield CommittedDigests(
                commit,
                *(
                    self._digest_in(plan, spec, blobs[spec.file], repository) if spec.file in blobs else heads[spec]
                    for spec in (plan.source, plan.target)
                ),
            )
            blobs.update({file: old for file, (old, _) in changes.items()})
            moved = self._before_move(plan, commit, changes, repository) if moves else None
            if moved is not None:
                before = copy(repository)
                before.head = f"{commit}^1"
                specs = ((plan.source, moved.source), (plan.target, moved.target))
                digests = {
                    new: heads[old]
                    if new == old and old.file not in blobs
                    else self._digest_in(moved, new, before.blob_of(new.file), before)
                    for old, new in specs
                }
                yield from self._states(moved, digests, before, moves - 1)
                return

    def _before_move(
        self, plan: PromotionPlan, commit: str, changes: Mapping[str, tuple[str, str]], repository: Repository
    ) -> PromotionPlan | None:
        """Return the plan with the files that had the specs before a commit moved them; None if it moved none."""
        found = {}
        for side, spec in (("source", plan.source), ("target", plan.target)):
            old, new = changes.get(spec.file, ("", ""))
            if (
                not new
                or self._declares(plan, spec, old, repository)
                or not self._declares(plan, spec, new, repository)
            ):
                continue
            for file, blob in repository.replaced(commit):
                if file != spec.file and self._declares(plan, spec, blob, repository):
                    found[side] = spec.replace(file=file)
                    break
        return plan.replace(**found) if found else None

    def _declares(self, plan: PromotionPlan, spec: PromotedSpec, blob: str, repository: Repository) -> bool:
        if not blob.strip("0"):
            return False
        try:
            repository.document_in(blob, _declaration(plan, spec))
        except DeliveryError:
            return False
        return True

    def _digest_in(self, plan: PromotionPlan, spec: PromotedSpec, blob: str, repository: Repository) -> str | None:
        key = (blob, plan, spec)
        if key not in self._known:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[key] = _digest_in_blob(plan, spec, blob, repository)
        return self._known[key]


def changed_values(plan: PromotionPlan, seen: PromotionValues) -> list[tuple[str, object, object]]:
    """Return path, old and new value of each field that a promotion changes."""
    every = zip(plan.fields, seen.target.values, seen.source.values, strict=True)
    return [(path, old, new) for path, old, new in every if value_digest(old) != value_digest(new)]


def find_conflict(states: Iterable[CommittedDigests], wanted: str, present: str) -> str:
    """Return why values that the source has now are not promoted; "" if they may be.

    `states`: the history, the newest first. Since the source has these values,

    - the target must not have had them: somebody, or a roll-back, has undone the promotion; and
    - the target must not have got values that are new: somebody has decided otherwise.
    """
    newer = changed = ""
    streak = True
    for commit, source, target in states:
        streak = streak and source == wanted
        if target is None:
            break
        if not streak and not changed:
            return ""
        if streak and target == wanted:
            return f"commit {newer[:10]} has undone it"
        if target != present:
            changed = changed or newer
        elif changed:
            return ""  # the target went back to what it had before
        if changed and source == present:
            return ""  # an earlier version of the source
        newer = commit
    return f"commit {changed[:10]} has changed the target since the source got this version" if changed else ""


def _changes(repository: Repository, files: list[str]) -> Iterator[tuple[str, dict[str, tuple[str, str]]]]:
    """Yield the commits of the branch that change some files, the newest first, with the old and new blob of each."""
    paths = {repository.path_of(file): file for file in files}
    options = ("--first-parent", "-m", "--raw", "--no-abbrev", "--no-renames", "-z", "--format=%H")
    try:
        text = repository.store.run("log", *options, f"--max-count={_MAX_COMMITS}", repository.head, "--", *paths)
    except PublishError as error:
        raise DeliveryError(str(error), error.hint) from None
    commit, changes = "", dict[str, tuple[str, str]]()
    parts = iter(text.split("\0"))
    for part in parts:
        about = part.lstrip("\n")
        if about.startswith(":"):
            _, _, old, new, *_ = about.split()
            file = paths.get(next(parts, ""))
            if file is not None:
                changes[file] = old, new
        elif about:
            if commit:
                yield commit, changes
            commit, changes = about, {}
    if commit:
        yield commit, changes


def is_proposed(repository: Repository, branch: str, team: str, document: str) -> bool:
    """Return True if the branch of a pull request changes one file, whose spec at the head is promoted by such ones.

    Also if the branch is gone, or has anything else: that is left to the daemon of the spec's cluster. Raises
    DeliveryError.
    """
    file = repository.only_file(branch)
    if file is None:
        return True
    text = repository.file_at(repository.head, repository.path_of(file), MAX_INPUT)
    documents, problems = load_yaml(file, (text or "").encode("utf-8", "surrogateescape"))
    if text is not None and any(each.severity == "error" for each in problems):
        return True
    declared = SpecDeclaration(file, document, team)
    # None if it was removed, or moved, so that the branch changes nothing of it.
    found = next((each for each in documents if is_declared(each, declared)), None)
    chosen = None if found is None else value_at(found.value, PROMOTE_FROM)
    return isinstance(chosen, dict) and chosen.get("by", PromoteFrom.model_fields["by"].default) == "pullRequest"


def _declaration(plan: PromotionPlan, spec: PromotedSpec) -> SpecDeclaration:
    return SpecDeclaration(spec.file, spec.document, plan.team)


def _is_promoted(plan: PromotionPlan, target: Any) -> bool:
    return bool(value_at(target, f"{PROMOTE_FROM}.service") == plan.source.document)


def _is_planned(plan: PromotionPlan, source: Any, target: Any) -> bool:
    """Return True if a plan is what the specs of both services say now."""
    terms = value_digest(value_at(target, PROMOTE_FROM))
    return terms == plan.terms and tuple(promoted_fields(target, source)) == plan.fields


def _spec_values(plan: PromotionPlan, root: Any) -> SpecValues:
    values = tuple(value_at(root, path) for path in plan.fields)
    return SpecValues(values, {path: value_digest(each) for path, each in zip(plan.fields, values, strict=True)})


def _digest_in_blob(plan: PromotionPlan, spec: PromotedSpec, blob: str, repository: Repository) -> str | None:
    if not blob.strip("0"):
        return None
    try:
        document: Document = repository.document_in(blob, _declaration(plan, spec))
    except DeliveryError:
        return None
    if spec == plan.target and not _is_promoted(plan, document.value):
        return None
    return _spec_values(plan, document.value).digest
