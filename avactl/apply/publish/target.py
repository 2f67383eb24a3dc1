"""The published branch: at a remote, or in this repository. A target reads its tip, and only moves it forward."""

from __future__ import annotations

import hashlib
import re
import time

from avactl.apply.publish.store import FailedError, PublishError, PublishStore
from avactl.forges import forge_names, join_hints
from avactl.spec.repository.git import GitAccess, mask_credentials

_IS_OVERTAKEN = re.compile(
    r"fetch first|non-fast-forward|stale info|cannot lock ref|failed to (?:update|lock)|reference already exists|"
    r"unable to (?:update local ref|create '.*\.lock')|incorrect old value|but expected",
    re.IGNORECASE,
)
"""git's messages after a lost race."""
_IS_ABSENT = re.compile(r"couldn't find remote ref|no such ref was fetched|Remote branch .* not found")


class Remote:
    """A branch at a remote: a configured name, or a URL."""

    def __init__(self, store: PublishStore, remote: str, branch: str) -> None:
        self._store, self._remote = store, remote
        self._branch, self.name = f"refs/heads/{branch}", branch
        remotes = store.run("remote").split()
        known = remote in remotes
        if not known and not re.search(r"[/:\\]", remote):
            hint = "`git remote add origin URL`; or `--no-push` for a branch here only"
            raise PublishError(f"unknown remote `{remote}`", f"remotes: {', '.join(remotes)}" if remotes else hint)
        self._shown = mask_credentials(remote)
        place = hashlib.sha256(remote.encode()).hexdigest()[:12]
        self.mirror = f"refs/remotes/{remote}/{branch}" if known else f"refs/avactl/{place}/{branch}"
        """Reference that stores the remote's tip in this repository."""

    def tip(self) -> str | None:
        """Fetch and return the newest commit of the branch; None if the branch does not exist."""
        depth = ["--depth=1"] if self._store.shallow else []
        # Fetch all files, also into a partial clone: later reads do not fetch.
        options = ("--quiet", "--no-tags", "--no-filter", "--no-write-fetch-head", "--recurse-submodules=no", *depth)
        for _ in range(20):
            try:
                self._store.run(
                    "fetch", *options, "--", self._remote, f"+{self._branch}:{self.mirror}", access=GitAccess.REMOTE
                )
            except FailedError as error:
                if _IS_ABSENT.search(error.said):
                    return None
                if not _IS_OVERTAKEN.search(error.said):  # another local process fetches into the same reference
                    message = f"cannot read {self.name} from {self._shown}: {error}"
                    raise PublishError(message, _push_remedy(error.said)) from None
                time.sleep(0.05)
            else:
                return self._store.resolve(self.mirror)
        raise PublishError(f"{self.mirror} is locked", "is another git command running in this repository?")

    def remembered(self) -> str | None:
        """Return the last known tip of the branch."""
        return self._store.resolve(self.mirror)

    def move(self, tip: str | None, commit: str) -> bool:
        """Move the branch forward to a child of its tip; False after a lost race."""
        options = ("--porcelain", "--quiet", "--no-verify", "--no-follow-tags", "--recurse-submodules=no")
        try:
            self._store.run("push", *options, "--", self._remote, f"{commit}:{self._branch}", access=GitAccess.REMOTE)
        except FailedError as error:
            if _IS_OVERTAKEN.search(error.said):
                return False
            raise self._refused(error) from None
        return True

    def delete(self, tip: str) -> bool:
        """Delete the branch if this is its tip; False if it has another one, or is gone."""
        options = ("--porcelain", "--quiet", "--no-verify", "--recurse-submodules=no")
        lease = f"--force-with-lease={self._branch}:{tip}"
        try:
            self._store.run("push", *options, lease, "--", self._remote, f":{self._branch}", access=GitAccess.REMOTE)
        except FailedError as error:
            if _IS_OVERTAKEN.search(error.said) or "remote ref does not exist" in error.said:
                return False
            raise self._refused(error) from None
        return True

    def _refused(self, error: FailedError) -> PublishError:
        lines = error.said.splitlines()
        remote = [line.removeprefix("remote:").strip() for line in lines if line.startswith("remote:")]
        line = next((line for line in lines if "rejected]" in line), "")
        reason = line.rpartition("(")[2].rstrip(")") or str(error)
        first = remote[0] if remote else ""
        said = next((text for text in remote if text.lower().startswith(("error", *forge_names()))), first)
        text = f"{reason}: {said}" if said else reason
        return PublishError(f"the push to {self.name} was refused: {text}", _push_remedy(error.said))


_PUSH_REMEDIES = (
    (
        r"protected branch|GH006|GH013|pre-receive hook declined|hook declined",
        "let the account that publishes push to "
        "this branch: an exception of its protection rule; reviews belong to the specs' branch",
    ),
    (
        r"403|[Pp]ermission|not allowed|denied",
        f"the account needs write permission: {join_hints(lambda forge: forge.push_rights)}",
    ),
    (
        r"could not read Username|Authentication failed|terminal prompts disabled|publickey",
        "git needs credentials: a credential helper, or an SSH key",
    ),
    (
        r"Could not resolve|unable to access|Connection|Could not read from remote|timed out",
        "is the network up, and the URL correct? Nothing was published",
    ),
    (r"does not appear to be a git repository|not found", "is the URL correct? `git remote -v`"),
)


def _push_remedy(said: str) -> str:
    return next((remedy for pattern, remedy in _PUSH_REMEDIES if re.search(pattern, said)), "")


class LocalTarget:
    """A branch of this repository."""

    def __init__(self, store: PublishStore, branch: str, remote: str) -> None:
        self._store = store
        self._ref = f"refs/heads/{branch}"
        self._upstream = f"refs/remotes/{remote}/{branch}"
        self.name = branch
        blocks = (block.split("\n") for block in store.run("worktree", "list", "--porcelain").split("\n\n"))
        place = next((block[0].partition(" ")[2] for block in blocks if f"branch {self._ref}" in block), None)
        if place is not None:
            raise PublishError(
                f"{branch} is checked out in {place}", "switch that work tree to another branch, or push: `--push`"
            )

    def tip(self) -> str | None:
        """Return the newest commit of the branch; None if the branch does not exist."""
        return self._store.resolve(self._ref)

    def remembered(self) -> str | None:
        """Return the last known tip of the remote branch with this name."""
        return self._store.resolve(self._upstream)

    def move(self, tip: str | None, commit: str) -> bool:
        """Move the branch; False after a lost race."""
        arguments = ("update-ref", "-m", "avactl render --publish", self._ref, commit, tip or "0" * len(commit))
        try:
            self._store.run(*arguments, access=GitAccess.WRITE)
        except FailedError as error:
            if _IS_OVERTAKEN.search(error.said):
                return False
            raise
        return True
