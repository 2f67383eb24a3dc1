"""Commit one spec file on a branch of its own, without touching the user's work tree, index or branches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from avactl.apply.publish.store import FILE, PublishError, PublishStore, StoreEntry
from avactl.apply.publish.target import Remote
from avactl.base.errors import HintedError
from avactl.base.exit_codes import USAGE
from avactl.compiler import Compilation
from avactl.compiler.driver import compile_change
from avactl.kinds.training.spec import TrainingJob, TrainingJobSpec
from avactl.program.program import Item
from avactl.spec.repository.git import GitAccess
from avactl.spec.repository.git_tree import GitTree
from avactl.spec.repository.tree import MAX_INPUT, OverlayTree, find_root
from avactl.spec.repository.tree_files import is_hidden

Job = Item[TrainingJobSpec]
_FILE_MODES = ("100644", "100755")


class RunError(HintedError):
    """The file cannot be run."""

    exit_code = USAGE


@dataclass(frozen=True, slots=True)
class BranchChange:
    """One file on a commit, and what it compiles to."""

    store: PublishStore
    base: str
    """The commit below."""
    path: str
    """The file, from the root of the specs."""
    data: bytes
    before: Compilation
    after: Compilation

    @property
    def jobs(self) -> list[Job]:
        """Training jobs of the file."""
        return [item for item in self.after.program.of_kind(TrainingJob) if item.doc.file == self.path]

    @property
    def known(self) -> list[Job]:
        """Training jobs of the commit below."""
        return self.before.program.of_kind(TrainingJob)

    def with_data(self, data: bytes) -> BranchChange:
        """Return the change with another content of the file."""
        return _compile_change(self.store, self.base, self.path, data)


def change_of(file: Path, base: str) -> BranchChange:
    """Read a file as a change of the commit `base`, and compile it there. Raises RunError, GitError, PublishError."""
    if file.is_symlink() or not file.is_file():
        raise RunError(f"{file}: not a regular file", "name a spec file")
    root = find_root(file).resolve()
    store = PublishStore(root)
    commit = store.resolve(base)
    if commit is None:
        raise RunError(f"`{base}` is not a commit", "commit the platform first; `--base` names another commit")
    try:
        if file.stat().st_size > MAX_INPUT:
            raise RunError(f"{file}: larger than {MAX_INPUT // 2**20} MiB", "name a spec file")
        data = file.read_bytes()
    except OSError as error:
        raise RunError(f"{file}: {(error.strerror or str(error)).lower()}") from None
    path = (file.parent.resolve() / file.name).relative_to(root).as_posix()
    if is_hidden(path.split("/")):
        raise RunError(f"{file}: hidden files are not specs", "give it a name without a leading dot")
    return _compile_change(store, commit, path, data)


def _compile_change(store: PublishStore, commit: str, path: str, data: bytes) -> BranchChange:
    below = GitTree(store.directory, commit)
    before, after = compile_change(below, OverlayTree(below, path, data))
    return BranchChange(store, commit, path, data, before, after)


def check(change: BranchChange) -> None:
    """Raise RunError if the file declares no job, or declares what the commit has already."""
    if not change.jobs:
        raise RunError(f"{change.path} declares no training job", "is it in a directory that avactl.yaml includes?")
    known = change.store.files(change.base).get(change.store.prefix + change.path)
    if known is not None and known.oid == change.store.oid(change.data):
        raise RunError(f"{change.path} is committed already", "`avactl jobs` shows whether it runs")


def count_other_changes(store: PublishStore, path: str) -> int:
    """Return the number of other uncommitted files below the root of the specs."""
    changed = {line[3:] for line in filter(None, store.status().split("\0"))}
    return len(changed - {store.prefix + path})


def commit(change: BranchChange, branch: str, message: str) -> tuple[str, str]:
    """Write the commit, and a new branch that points to it; return both names. An empty branch gets a name.

    Raises PublishError.
    """
    store = change.store
    files = store.files(change.base)
    place = store.prefix + change.path
    entry = files.get(place)
    if entry is not None and entry.mode not in _FILE_MODES:
        raise PublishError(f"{change.path} is not a regular file in {change.base[:10]}")
    if not store.succeeds("var", "GIT_AUTHOR_IDENT", access=GitAccess.WRITE):
        hint = "`git config --global user.name NAME`, and `git config --global user.email ADDRESS`"
        raise PublishError("git does not know who you are", hint)
    store.write_blobs([change.data])
    files[place] = StoreEntry(entry.mode if entry is not None else FILE, store.oid(change.data))
    made = store.write_commit(store.write_tree(files), change.base, message)
    branch = branch or f"run/{change.jobs[0].name}-{made[:8]}"
    reference = f"refs/heads/{branch}"
    if branch.startswith(("-", "refs/")) or not store.succeeds("check-ref-format", reference):
        raise PublishError(f"`{branch}` is not a valid branch name", "use a plain name such as `try-larger-batch`")
    if store.resolve(reference) is not None:
        raise PublishError(f"the branch {branch} exists already", "choose another one with `--branch`")
    store.run("update-ref", "-m", "avactl run", reference, made, "0" * len(made), access=GitAccess.WRITE)
    return branch, made


def push(change: BranchChange, branch: str, commit: str, remote: str) -> bool:
    """Push the branch; False if there is no remote of that name. Raises PublishError."""
    if remote not in change.store.run("remote").split():
        return False
    if not Remote(change.store, remote, branch).move(None, commit):
        raise PublishError(f"{remote} has another branch {branch}", "choose another one with `--branch`")
    return True
