"""Publish the compiled objects on a branch, without ever losing a commit.

Every published commit is a child of the branch's tip; nothing is force-pushed. A publisher that loses a race reads the
new tip and retries. The tip records the spec commit it was rendered from; an older commit never replaces a newer
one, in whatever order they finish. Files that avactl did not write are kept.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from avactl import __version__
from avactl.apply.files import contents as files
from avactl.apply.files import output
from avactl.apply.files.paths import object_path
from avactl.apply.publish.order import Order, find_relation, quiet_between
from avactl.apply.publish.store import FILE, PublishError, PublishStore, StoreEntry
from avactl.apply.publish.target import LocalTarget, Remote
from avactl.base.terminal import visible_text
from avactl.compiler import Compilation, compile_tree
from avactl.compiler.config import environment_paths, load_config
from avactl.compiler.selection import overlay_files, spec_files
from avactl.spec.repository.git_tree import GitTree
from avactl.spec.repository.tree import DirTree, chosen_environment
from avactl.spec.repository.tree_files import RENDERED
from avactl.spec.schema.reconcile_modes import FOLLOW_FILES, rendered_branch

SOURCE = ".avactl-source"
"""File on a published branch with the commit it was rendered from."""
TRAILER = "Avactl-Source"
_LIST_HEADER = "# Written by `avactl render --publish`; a change by hand is undone by the next commit of the specs.\n"
_MAX_ATTEMPTS = 60
_FLUX_KUSTOMIZATION = re.compile(r"([^/]+)/_platform/([^/]+)/kustomization\.kustomize\.toolkit\.fluxcd\.io-").match


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """Destination, and exceptions to accept."""

    branch: str
    remote: str = "origin"
    """Remote of the branch, also used to complete a shallow clone."""
    to: str | None = None
    """URL of another repository with the branch."""
    push: bool = True
    """False: a branch of this repository."""
    even_if_older: bool = False
    """Publish even if the branch has a newer or unrelated spec commit."""
    let_go: bool = False
    """Publish even if Flux would delete the teams' objects."""


@dataclass(frozen=True, slots=True)
class PublishOutcome:
    """Result of a run. `commit` is None if nothing was published."""

    source: str
    before: str | None
    """Spec commit that the branch had."""
    commit: str | None = None
    older: bool = False
    """The branch already has a newer spec commit."""
    objects: int = 0
    written: int = 0
    deleted: int = 0
    foreign: tuple[str, ...] = ()
    """Foreign commits on the branch since avactl's last one."""


@dataclass(frozen=True, slots=True)
class _Tip:
    """The current state of the branch."""

    commit: str
    files: Mapping[str, StoreEntry]
    source: str
    ours: frozenset[str]


def publish_commit(root: Path, options: PublishOptions) -> tuple[Compilation, PublishOutcome | None]:
    """Compile the last commit of a repository and publish its objects; None if the specs have errors.

    Raises PublishError.
    """
    store = PublishStore(root)
    valid = store.succeeds("check-ref-format", f"refs/heads/{options.branch}")
    if not valid or options.branch.startswith(("-", "refs/")):
        raise PublishError(f"`{options.branch}` is not a valid branch name", "use a plain name such as `rendered`")
    source = store.resolve("HEAD")
    if source is None:
        raise PublishError("the repository has no commit yet", "create a commit: only commits are published")
    _want_clean(store)
    target: Remote | LocalTarget
    if options.push:
        target = Remote(store, options.to or options.remote, options.branch)
    else:
        target = LocalTarget(store, options.branch, options.remote)
    compilation = compile_tree(GitTree(root, source))
    if not compilation.ok:
        return compilation, None
    return compilation, _Publisher(store, target, options, source, _rendered_files(compilation)).run()


def looks_elsewhere(compilation: Compilation, branch: str) -> list[str]:
    """Return a line for each cluster whose engine does not read the published place."""
    found = []
    for cluster in compilation.program.clusters():
        spec = cluster.spec.reconcile
        if spec.mode not in FOLLOW_FILES or spec.repository is None:
            continue
        followed = spec.branch or rendered_branch(compilation.program.environment)
        if followed != branch:
            found.append(f"{cluster} follows the branch {followed} (`reconcile.branch`)")
        elif (spec.path or "").strip("./"):
            found.append(f"{cluster} reads {spec.path} (`reconcile.path`), but the objects are published at the top")
    return found


def _want_clean(store: PublishStore) -> None:
    """Refuse uncommitted changes, because they would unexpectedly not be published."""
    status = store.status()
    tree = DirTree(store.directory)
    config, _ = load_config(tree)
    wanted, paths = environment_paths(config, tree.environment), tree.paths()
    specs = {
        *spec_files(wanted.include, wanted.exclude, paths),
        *overlay_files(wanted.overlays, config.exclude, paths),
    }
    changed = []
    for line in filter(None, status.split("\0")):
        path = line[3:].removeprefix(store.prefix)
        if line[:2] != "??" or path in specs:
            changed.append(path)
    if changed:
        hint = "only the last commit is published: commit, or `git stash`"
        raise PublishError(f"not committed: {output.join_first(changed, 3)}", hint)


def _rendered_files(compilation: Compilation) -> dict[str, str]:
    """Return every file that `avactl render` writes, including its lists."""
    texts = {object_path(manifest): files.object_text(manifest) for manifest in compilation.manifests}
    return texts | output.directory_lists({path: sha256(text.encode()).hexdigest() for path, text in texts.items()})


def _is_object(path: str) -> bool:
    """Return whether a file is an object's, not a list."""
    return path.rpartition("/")[2] != RENDERED


class _Publisher:
    def __init__(
        self,
        store: PublishStore,
        target: Remote | LocalTarget,
        options: PublishOptions,
        source: str,
        texts: Mapping[str, str],
    ) -> None:
        self._store, self._target, self._options = store, target, options
        self._source, self._texts = source, texts
        place, environment = store.prefix.rstrip("/") or ".", chosen_environment()
        self._place = f"{place} (environment {environment})" if environment else place
        self._wanted = {path: store.oid(text.encode()) for path, text in texts.items()}
        self._objects = sum(map(_is_object, texts))

    def run(self) -> PublishOutcome:
        """Publish, and retry after lost races."""
        for attempt in range(_MAX_ATTEMPTS):
            at = self._target.tip()
            base = at or self._remembered_tip()
            tip = self._read(base) if base else None
            outcome = self._next_outcome(tip, gone=at is None)
            if outcome.commit is None or self._target.move(at, outcome.commit):
                return outcome
            time.sleep(random.uniform(0.02, 0.1 * min(attempt + 1, 10)))  # noqa: S311 - jitter
        raise PublishError(f"{self._target.name} moved {_MAX_ATTEMPTS} times during the run", "run it again")

    def _remembered_tip(self) -> str | None:
        """Return the last known tip of a deleted branch, if this commit belongs to the same history."""
        commit = self._target.remembered()
        if commit is None:
            return None
        try:
            order = find_relation(self._store, self._read(commit).source, self._source, None)
        except PublishError:
            return None
        return None if order is Order.UNRELATED else commit

    def _read(self, commit: str) -> _Tip:
        """Read the branch. Raises PublishError if avactl does not own it."""
        files = self._store.files(commit)
        name = self._target.name
        if SOURCE not in files:
            message = f"{name} is not a branch of rendered manifests: it has no {SOURCE}"
            raise PublishError(message, "choose a branch of its own")
        kept = {path: entry.oid for path, entry in files.items() if path.rpartition("/")[2] in (RENDERED, SOURCE)}
        texts = self._store.contents(kept.values())
        about = dict(line.partition(": ")[::2] for line in texts[kept[SOURCE]].splitlines() if line[:1] != "#")
        if not re.fullmatch("[0-9a-f]{40,64}", about.get("commit", "")):
            raise PublishError(f"{SOURCE} of {name} has no commit", f"restore the file: `git log {name}`")
        if about.get("path") != self._place:
            message = f"{name} was rendered from {about.get('path')}, not from {self._place}"
            raise PublishError(message, "give each spec repository a branch of its own")
        ours = {SOURCE}
        for path, oid in kept.items():
            if path != SOURCE:
                ours |= {path, *output.listed_paths(path.removesuffix(RENDERED), texts[oid])}
        return _Tip(commit, files, about["commit"], frozenset(ours & files.keys()))

    def _next_outcome(self, tip: _Tip | None, *, gone: bool) -> PublishOutcome:
        """Return the outcome on top of a tip, creating the next commit if needed."""
        before = tip.source if tip else None
        if tip is not None:
            order = find_relation(self._store, tip.source, self._source, self._options.remote)
            if order is Order.OLDER and not self._options.even_if_older:
                return PublishOutcome(self._source, before, older=True, objects=self._objects)
            if order is Order.UNRELATED and not self._options.even_if_older:
                raise PublishError(
                    f"{tip.source[:10]}, which {self._target.name} was rendered from, is not an ancestor of "
                    f"{self._source[:10]}",
                    "publish from the same branch as before; if its history was rewritten, use `--even-if-older`",
                )
            self._want_followed(tip)
        files, written, deleted = self._merge(tip)
        if tip is not None and not written and not deleted:
            if order is Order.SAME or quiet_between(self._store, tip.source, self._source, self._compiles_to_same):
                # A deleted branch is restored with its last tip.
                return PublishOutcome(self._source, before, tip.commit if gone else None, objects=self._objects)
            subject = f"Nothing changed up to {self._source[:10]}"
        else:
            subject = self._store.run("log", "-1", "--format=%s", self._source).strip() or "Without a subject"
        said = f"{_LIST_HEADER}commit: {self._source}\npath: {self._place}\n".encode()
        files[SOURCE] = StoreEntry(FILE, self._store.oid(said))
        had = {entry.oid for entry in tip.files.values()} if tip else set()
        new = (self._texts[path].encode() for path, oid in self._wanted.items() if oid not in had)
        self._store.write_blobs([said, *new])
        objects, lost = list(filter(_is_object, written)), list(filter(_is_object, deleted))
        message = (
            f"{subject}\n\n{self._objects} objects, {len(objects)} written, {len(lost)} deleted.\n\n"
            f"{TRAILER}: {self._source}\nAvactl-Version: {__version__}\n"
        )
        tree = self._store.write_tree(files)
        commit = self._store.write_copy(tree, tip.commit if tip else None, message, self._source)
        return PublishOutcome(
            self._source,
            before,
            commit,
            objects=self._objects,
            written=len(objects),
            deleted=len(lost),
            foreign=self._foreign_commits(tip.commit) if tip else (),
        )

    def _merge(self, tip: _Tip | None) -> tuple[dict[str, StoreEntry], list[str], list[str]]:
        """Return all files of the next commit, and which of ours are written and deleted."""
        result = {path: StoreEntry(FILE, oid) for path, oid in self._wanted.items()}
        if tip is None:
            return result, list(result), []
        directories = {path[:cut] for path in result for cut in range(len(path)) if path[cut] == "/"}
        for path, entry in tip.files.items():
            above = {path[:cut] for cut in range(len(path)) if path[cut] == "/"}
            if path not in tip.ours and path not in directories and above.isdisjoint(result):
                result.setdefault(path, entry)
        written = [path for path, oid in self._wanted.items() if tip.files.get(path) != StoreEntry(FILE, oid)]
        deleted = [path for path in tip.ours if path not in result and path != SOURCE]
        return result, written, deleted

    def _compiles_to_same(self, compilation: Compilation) -> bool:
        """Return whether another commit compiles to the same objects, or does not compile."""
        return not compilation.ok or _rendered_files(compilation) == self._texts

    def _want_followed(self, tip: _Tip) -> None:
        """Refuse to remove Flux's own objects from a directory it follows: Flux would delete all it applied."""
        if self._options.let_go:
            return
        had = {match.groups() for path in tip.ours if (match := _FLUX_KUSTOMIZATION(path))}
        has = {match.groups() for path in self._wanted if (match := _FLUX_KUSTOMIZATION(path))}
        clusters = {path.partition("/")[0] for path in self._wanted}
        for cluster, namespace in sorted(had - has):
            if cluster in clusters:
                raise PublishError(
                    f"cluster {cluster} removes Flux from {namespace}, which would delete its teams' objects",
                    f"first `flux -n {namespace} suspend kustomization --all`, then publish with `--let-go`",
                )

    def _foreign_commits(self, tip: str) -> tuple[str, ...]:
        """Return foreign commits since our last one, newest first."""
        # NUL cannot occur in names and subjects.
        form = f"--format=%h %an: %s%x00%(trailers:key={TRAILER},valueonly)"
        fields = self._store.run("log", "-z", "--first-parent", "--max-count=20", form, tip).split("\0")
        found = []
        for line, trailer in zip(fields[::2], fields[1::2], strict=False):
            if trailer.strip():
                break
            found.append(visible_text(line))
        return tuple(found)
