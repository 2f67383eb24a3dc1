"""The repository of the specs: what its branch says, and commits that change values of a file.

Only the newest commit of the branch counts. A commit is made on it, checked by compiling, and pushed if the branch has
not moved; a repetition finds the values that are there already, and does nothing.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol

from avactl.apply.publish.store import FILE, PublishError, PublishStore, StoreEntry
from avactl.apply.publish.target import Remote
from avactl.base.errors import HintedError
from avactl.compiler.driver import compile_change
from avactl.compiler.layers.environments import environments_of
from avactl.daemons.delivery.plans import PipelineTarget
from avactl.policy.path_patterns import matches_pattern
from avactl.spec.documents.document import Document
from avactl.spec.documents.edit import EditError, document_content, set_values
from avactl.spec.documents.value_path import PathError, value_at
from avactl.spec.documents.yaml import load_yaml
from avactl.spec.repository.git import GitAccess, GitError, init_bare, mask_credentials
from avactl.spec.repository.git_tree import GitTree
from avactl.spec.repository.tree import MAX_INPUT, OverlayTree, Tree

ATTEMPTS = 5
"""Pushes of one change, if others push at the same time."""
TRAILER, ROLLBACK_TRAILER, PROMOTION_TRAILER = "Avactl-Pipeline", "Avactl-Rollback", "Avactl-Promotion"
"""Trailers of commits by pipelines, for roll-backs, and for promotions. Commits with any of them trigger no pipeline.
"""
RECORD_TRAILER = "Avactl-Rollout"
"""Trailer of commits that record how a rollout ended."""
_MAX_COMMITS = 1000
"""Commits of the branch that are searched for a change of certain files."""
_MAX_BRANCHES = 10_000
"""Branches of the daemon that are read."""
_SERVING_KIND = "ServingDeployment"
_MAX_KNOWN = 10_000


class DeliveryError(HintedError):
    """The repository cannot be read or changed now; nothing is lost, and it is tried again."""


class CommitAuthor(NamedTuple):
    """Author of the commits."""

    name: str
    email: str


class ServiceDeclaration(Protocol):
    """Where a service is declared; `file` is its path from the root of the specs, `document` its name there."""

    @property
    def file(self) -> str: ...
    @property
    def document(self) -> str: ...
    @property
    def team(self) -> str: ...


class CommittedVersion(NamedTuple):
    """The text of a service's document at a commit."""

    commit: str
    content: str


class Edited(NamedTuple):
    """The new text of a file of the specs, and the message of its commit."""

    text: str
    message: str


class ModelOfService(NamedTuple):
    """The model of a service in the specs."""

    url: str
    version: str


class Repository:
    """A clone of the repository of the specs. Not for several threads at once."""

    def __init__(self, url: str, branch: str, path: str, cache: Path, author: CommitAuthor) -> None:
        """`path`: directory of the specs in the repository. `cache`: directory for the clone."""
        self.branch, self.url = branch, url
        self._url, self._author = url, author
        self._prefix = f"{path.strip('/')}/" if path.strip("/") else ""
        shown = re.sub(r"[^A-Za-z0-9]+", "-", mask_credentials(url)).strip("-")[-40:]
        self._place = cache / f"{shown}-{hashlib.sha256(url.encode()).hexdigest()[:12]}.git"
        self._open: PublishStore | None = None
        self._known: dict[tuple[str, PipelineTarget], ModelOfService] = {}
        self.shown = mask_credentials(url)
        """The URL without credentials."""
        self.head = ""
        """Newest commit that is known; "" before `fetch`."""

    @property
    def store(self) -> PublishStore:
        """Object store of the clone, which is made when it is first needed. Raises DeliveryError."""
        if self._open is None:
            try:
                if not (self._place / ".git" / "HEAD").exists():
                    init_bare(self._place)
                self._open = PublishStore(self._place)
            except (GitError, PublishError) as error:
                raise DeliveryError(str(error), error.hint) from None
        return self._open

    # -- reading -------------------------------------------------------------------------------------------------------

    def fetch(self) -> str:
        """Read the newest commit of the branch. Raises DeliveryError."""
        try:
            tip = Remote(self.store, self._url, self.branch).tip()
        except PublishError as error:
            raise DeliveryError(str(error), error.hint) from None
        if tip is None:
            raise DeliveryError(f"the repository has no branch `{self.branch}`")
        self.head = tip
        return tip

    def served(self, target: PipelineTarget) -> ModelOfService:
        """Return the model's URL and version at the head; empty where the spec does not have them.

        Raises DeliveryError if the service is not where the plan says.
        """
        return self._served_at(self.head, target)

    def _served_at(self, commit: str, target: PipelineTarget) -> ModelOfService:
        known = self._known.get((commit, target))
        if known is not None:
            return known
        _, document = self.document(commit, target)
        found = [value_at(document.value, path) for path in (target.url_path, target.version_path)]
        served = ModelOfService(*("" if value is None else str(value)[:4000] for value in found))
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[commit, target] = served
        return served

    def last_change(self, paths: Sequence[str]) -> str:
        """Return the newest commit of the branch, of the last 1000, that changes a file of these patterns; "" if none.

        Deployments by pipelines do not count. A merge counts with what it brings to the branch.
        """
        return _last_change(self.store, self.head, tuple(paths))

    def before(self, target: PipelineTarget) -> ModelOfService | None:
        """Return the model that was served before the one at the head came; None if the history does not tell.

        A version that was rolled back does not count: what counts is what preceded the first commit with the present
        URL, of the last 1000 that changed the file.
        """
        history = []
        for commit in self._commits(target.file):
            try:
                history.append(self._served_at(commit, target))
            except DeliveryError:
                break  # the file was another one then
        if not history:
            return None
        now = history[0].url
        first = max(index for index, each in enumerate(history) if each.url == now)
        return next((each for each in history[first + 1 :] if each.url and each.url != now), None)

    def versions(self, declared: ServiceDeclaration) -> Iterator[CommittedVersion]:
        """Yield the different texts of a document, from the newest to the oldest, each with its newest commit.

        Stops at the first commit at which this file does not have the document.
        """
        seen = set()
        for commit in self._commits(declared.file):
            try:
                text, document = self.document(commit, declared)
            except DeliveryError:
                return  # at that commit, the spec was in another file
            content = document_content(text, document.index)
            if content not in seen:
                seen.add(content)
                yield CommittedVersion(commit, content)

    def _commits(self, file: str) -> list[str]:
        """Return the newest commits of the branch that change a file. Raises DeliveryError."""
        arguments = ("log", "--first-parent", "--format=%H", f"--max-count={_MAX_COMMITS}", self.head)
        try:
            return self.store.run(*arguments, "--", self._prefix + file).split()
        except PublishError as error:
            raise DeliveryError(str(error), error.hint) from None

    def tree(self, file: str = "", text: str = "") -> Tree:
        """Return the specs at the head, with another text of one file if it is given. Raises DeliveryError."""
        try:
            below = GitTree(self.store.directory / self._prefix, self.head)
        except GitError as error:
            raise DeliveryError(str(error), error.hint) from None
        return OverlayTree(below, file, text.encode("utf-8", "surrogateescape")) if file else below

    def trees(self) -> list[Tree]:
        """Return the specs at the head, once in each environment of the repository. Raises DeliveryError."""
        folder = self.store.directory / self._prefix
        try:
            environments = environments_of(GitTree(folder, self.head, environment="")) or [""]
            return [GitTree(folder, self.head, environment=each) for each in environments]
        except GitError as error:
            raise DeliveryError(str(error), error.hint) from None

    def trailers(self, commit: str, key: str) -> list[str]:
        """Return the values of a commit's trailers with a key. Raises DeliveryError."""
        form = f"--format=%(trailers:key={key},valueonly)"
        try:
            return self.store.run("log", "--max-count=1", form, commit).strip().splitlines()
        except PublishError as error:
            raise DeliveryError(str(error), error.hint) from None

    def file_at(self, commit: str, path: str, max_bytes: int) -> str | None:
        """Return the text of a file of the repository at a commit; None if there is no such file.

        Raises DeliveryError, also if it is larger than `max_bytes`.
        """
        store = self.store
        try:
            entry = store.run("ls-tree", "-z", "--full-tree", commit, "--", path).rstrip("\0")
            mode, _, oid = entry.partition("\t")[0].split() if entry else ("", "", "")
            if mode not in ("100644", "100755"):
                return None
        except PublishError as error:
            raise DeliveryError(str(error), error.hint) from None
        return self._blob(oid, path, max_bytes)

    def _blob(self, oid: str, path: str, max_bytes: int) -> str:
        """Return the text of a blob. Raises DeliveryError, also if it is larger than `max_bytes`."""
        try:
            if int(self.store.run("cat-file", "-s", oid)) > max_bytes:
                raise DeliveryError(f"{path} is larger than {max_bytes >> 10} KiB")
            return self.store.run("cat-file", "blob", oid)
        except PublishError as error:
            raise DeliveryError(str(error), error.hint) from None

    def blob_of(self, file: str) -> str:
        """Return the blob of a file of the specs at the head; "" if there is none. Raises DeliveryError."""
        try:
            entry = self.store.run("ls-tree", "-z", "--full-tree", self.head, "--", self.path_of(file))
        except PublishError as error:
            raise DeliveryError(str(error), error.hint) from None
        return entry.partition("\t")[0].split()[2] if entry else ""

    def replaced(self, commit: str) -> list[tuple[str, str]]:
        """Return the YAML files of the specs that a commit changes or deletes, at most 1000, and their blobs before it.

        Raises DeliveryError.
        """
        options = ("-r", "--raw", "--no-abbrev", "--no-renames", "--diff-filter=DM", "-z")
        if not self.store.succeeds("rev-parse", "--verify", "--quiet", f"{commit}^1"):
            return []  # the first commit
        try:
            parts = self.store.run("diff-tree", *options, f"{commit}^1", commit).split("\0")
        except PublishError as error:
            raise DeliveryError(str(error), error.hint) from None
        named = zip(parts[::2], parts[1::2], strict=False)
        return [
            (path.removeprefix(self._prefix), about.split()[2])
            for about, path in named
            if path.startswith(self._prefix) and path.endswith((".yaml", ".yml"))
        ][:_MAX_COMMITS]

    def branches(self, prefix: str) -> dict[str, str]:
        """Return the branches of the remote whose names begin like this, with their tips.

        Raises DeliveryError.
        """
        try:
            text = self.store.run(
                "ls-remote", "--heads", "--", self._url, f"refs/heads/{prefix}*", access=GitAccess.REMOTE
            )
        except PublishError as error:
            raise DeliveryError(str(error), error.hint) from None
        found: dict[str, str] = {}
        for line in text.splitlines()[:_MAX_BRANCHES]:
            tip, _, name = line.partition("\t")
            if name.startswith(f"refs/heads/{prefix}"):  # the pattern also matches the ends of other names
                found[name.removeprefix("refs/heads/")] = tip
        return found

    def delete_branch(self, branch: str, tip: str) -> bool:
        """Delete a branch of the remote if this is its tip; False if others have pushed. Raises DeliveryError."""
        try:
            return self.remote(branch).delete(tip)
        except PublishError as error:
            raise DeliveryError(str(error), error.hint) from None

    def remote(self, branch: str) -> Remote:
        """Return a branch of the repository. Raises DeliveryError."""
        try:
            return Remote(self.store, self._url, branch)
        except PublishError as error:
            raise DeliveryError(str(error), error.hint) from None

    def write_commit(self, tree: str, parent: str | None, message: str) -> str:
        """Write a commit of the daemon's author to the clone, and return it. Raises DeliveryError."""
        who = {
            f"GIT_{role}_{key}": value
            for role in ("AUTHOR", "COMMITTER")
            for key, value in (("NAME", self._author.name), ("EMAIL", self._author.email))
        }
        try:
            return self.store.write_commit(tree, parent, message, who)
        except PublishError as error:
            raise DeliveryError(str(error), error.hint) from None

    # -- changes -------------------------------------------------------------------------------------------------------

    def deploy(
        self, target: PipelineTarget, wanted: ModelOfService, message: str, *, unless: str = "", only: str = ""
    ) -> bool:
        """Commit the URL and version of a service's model to the branch, and push it; False if nothing was to be done.

        Nothing is done where the URL is `wanted` or `unless`, or is not `only`. Raises DeliveryError.
        """

        def edited(repository: Repository) -> Edited | None:
            now = repository.served(target)
            if now.url == wanted.url or (unless and now.url == unless) or (only and now.url != only):
                return None
            return Edited(repository._with_values(target, wanted), message)

        return self.change(target.file, edited)

    def propose(self, target: PipelineTarget, wanted: ModelOfService, message: str, branch: str) -> None:
        """Push a branch with the change; a branch with the same change is left unchanged. Raises DeliveryError."""
        self.change_on(branch, target.file, lambda repository: Edited(repository._with_values(target, wanted), message))

    def change(self, file: str, edited: Callable[[Repository], Edited | None]) -> bool:
        """Commit another text of a file of the specs, and push it; False if nothing was to be done.

        `edited` returns the text at the newest commit, and is called again if others push meanwhile; None: nothing to
        do. Raises DeliveryError, also if the change would add compile errors.
        """
        for _ in range(ATTEMPTS):
            head = self.fetch()
            new = edited(self)
            if new is None:
                return False
            commit = self._commit(file, new)
            try:
                if Remote(self.store, self._url, self.branch).move(head, commit):
                    self.head = commit
                    return True
            except PublishError as error:
                raise DeliveryError(str(error), error.hint) from None
        raise DeliveryError(f"others push to {self.branch} all the time: {ATTEMPTS} attempts")

    def change_on(self, branch: str, file: str, edited: Callable[[Repository], Edited | None]) -> bool:
        """Push a branch with a change, as `change` makes it; a branch with the same change is left unchanged.

        Raises DeliveryError.
        """
        try:
            remote = Remote(self.store, self._url, branch)
            tip = remote.tip()
            self.fetch()
            if tip is None:
                new = edited(self)
                return new is not None and remote.move(None, self._commit(file, new))
            if not self._is_change(tip, file, edited):
                # A contributor could push another change to this branch, and the daemon's account would propose it.
                raise DeliveryError(f"the branch {branch} has another change", "delete the branch")
        except PublishError as error:
            raise DeliveryError(str(error), error.hint) from None
        return True

    def has_change(self, branch: str, tip: str, file: str, edited: Callable[[Repository], Edited | None]) -> bool:
        """Return True if a branch of the remote is at this tip and has the change of `change_on`, or is gone.

        Raises DeliveryError.
        """
        try:
            found = Remote(self.store, self._url, branch).tip()
            return found is None or (found == tip and self._is_change(tip, file, edited))
        except PublishError as error:
            raise DeliveryError(str(error), error.hint) from None

    def only_file(self, branch: str) -> str | None:
        """Return the file of the specs that a branch of the remote changes, which has one commit more than they have.

        None if the branch is gone, or has anything else. Raises DeliveryError.
        """
        store = self.store
        try:
            tip = Remote(store, self._url, branch).tip()
            parents = store.run("rev-list", "--parents", "--max-count=1", tip).split()[1:] if tip else []
            if len(parents) != 1 or not store.succeeds("merge-base", "--is-ancestor", parents[0], self.head):
                return None
            found = store.run("diff-tree", "-r", "--name-only", "--no-renames", "-z", parents[0], str(tip)).split("\0")
        except PublishError as error:
            raise DeliveryError(str(error), error.hint) from None
        files = [each.removeprefix(self._prefix) for each in found if each and each.startswith(self._prefix)]
        return files[0] if len(files) == len(found) - 1 == 1 else None

    def _is_change(self, commit: str, file: str, edited: Callable[[Repository], Edited | None]) -> bool:
        """Return True if a commit does nothing but change a file as `edited` says, on a commit of the branch."""
        store = self.store
        parents = store.run("rev-list", "--parents", "--max-count=1", commit).split()[1:]
        if len(parents) != 1 or not store.succeeds("merge-base", "--is-ancestor", parents[0], self.head):
            return False
        before = copy(self)
        before.head = parents[0]
        try:
            new = edited(before)
        except DeliveryError:
            return False
        tree = store.run("rev-parse", f"{commit}^{{tree}}").strip()
        return new is not None and before._tree_with(file, new) == tree

    def _with_values(self, target: PipelineTarget, wanted: ModelOfService) -> str:
        """Return the text of the target's file at the head, with this URL and version."""
        text, document = self.document(self.head, target)
        edits: list[tuple[str, str | None]] = [
            (target.url_path, wanted.url),
            (target.version_path, f'"{wanted.version}"' if wanted.version else None),
        ]
        if not wanted.version and value_at(document.value, target.version_path) is None:
            edits.pop()
        try:
            return set_values(target.file, text, document.index, edits)
        except (EditError, PathError) as error:
            raise DeliveryError(f"{target.file}: {error}", error.hint) from None

    def _commit(self, file: str, new: Edited) -> str:
        """Return a commit on the head with another text of a file."""
        self._want_no_new_errors(file, new.text.encode("utf-8", "surrogateescape"))
        return self.write_commit(self._tree_with(file, new), self.head, new.message)

    def _tree_with(self, file: str, new: Edited) -> str:
        """Return the tree of the head with another text of a file."""
        store, path = self.store, self._prefix + file
        changed = new.text.encode("utf-8", "surrogateescape")
        try:
            files = store.files(self.head)
            mode = files[path].mode if path in files else FILE
            store.write_blobs([changed])
            files[path] = StoreEntry(mode, store.oid(changed))
            return store.write_tree(files)
        except PublishError as error:
            raise DeliveryError(str(error), error.hint) from None

    def _want_no_new_errors(self, file: str, changed: bytes) -> None:
        below = self.tree()
        try:
            before, after = compile_change(below, OverlayTree(below, file, changed))
        except (GitError, HintedError) as error:
            raise DeliveryError(f"the specs cannot be compiled: {error}") from None
        left = Counter((each.code, each.message) for each in before.untraced)
        for each in after.untraced:
            if each.severity != "error":
                continue
            left[each.code, each.message] -= 1
            if left[each.code, each.message] < 0:
                raise DeliveryError(f"the specs would not compile: {each.message}", each.hint or "")

    def document(self, commit: str, declared: ServiceDeclaration) -> tuple[str, Document]:
        """Return the text of a service's file at a commit, and its document there. Raises DeliveryError."""
        path = self.path_of(declared.file)
        text = self.file_at(commit, path, MAX_INPUT)
        if text is None:
            raise DeliveryError(f"{path} is not a file of {self.branch} at {commit[:10]}")
        return text, self._find_document(text, declared, f"{path} at {commit[:10]}")

    def document_in(self, blob: str, declared: ServiceDeclaration) -> Document:
        """Return the document of a service in a blob that its file was. Raises DeliveryError."""
        text = self._blob(blob, declared.file, MAX_INPUT)
        return self._find_document(text, declared, f"{declared.file} in {blob[:10]}")

    def path_of(self, file: str) -> str:
        """Return the path in the repository of a file of the specs."""
        return self._prefix + file

    def _find_document(self, text: str, declared: ServiceDeclaration, shown: str) -> Document:
        documents, _ = load_yaml(declared.file, text.encode("utf-8", "surrogateescape"))
        found = [each for each in documents if is_declared(each, declared)]
        if len(found) != 1:
            count = "several specs" if found else "no spec"
            raise DeliveryError(f"{shown} has {count} of {_SERVING_KIND} `{declared.document}`")
        return found[0]


def is_declared(document: Document, declared: ServiceDeclaration) -> bool:
    """Return True if a document is that of a service."""
    metadata = document.get("metadata")
    return (
        document.get("kind") == _SERVING_KIND
        and isinstance(metadata, dict)
        and metadata.get("name") == declared.document
        and metadata.get("team", declared.team) == declared.team
    )


@lru_cache(maxsize=256)
def _last_change(store: PublishStore, head: str, paths: tuple[str, ...]) -> str:
    # Contributors choose trailers and file names, so the separator must be unpredictable.
    mark, trailers = secrets.token_hex(16), (TRAILER, ROLLBACK_TRAILER, PROMOTION_TRAILER)
    keys = ",".join(f"key={each}" for each in trailers)
    form = f"--format={mark}%H%n%(trailers:{keys},valueonly,separator=%x2C){mark}"
    try:
        text = store.run(
            "log",
            "--first-parent",
            "-m",
            "--name-only",
            "-z",
            f"--max-count={_MAX_COMMITS}",
            "--no-renames",
            form,
            head,
        )
    except PublishError as error:
        raise DeliveryError(str(error), error.hint) from None
    parts = text.split(mark)[1:]
    for about, names in zip(parts[::2], parts[1::2], strict=True):
        commit, _, trailer = about.partition("\n")
        if not trailer.strip() and any(
            matches_pattern(path, name) for name in names.strip("\n\0").split("\0") for path in paths
        ):
            return commit
    return ""
