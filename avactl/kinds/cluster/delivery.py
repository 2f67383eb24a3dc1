"""Where the delivery daemon of a cluster commits, and the checks of `Cluster.spec.delivery`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from avactl.base.terminal import join_words
from avactl.diagnostics import Diagnostic, Note, Span
from avactl.forges import find_forge, forge_names, forge_of_host, host_and_path
from avactl.program.program import Item
from avactl.spec.platform.cluster import ClusterSpec
from avactl.spec.platform.delivery import Delivery

_FOLLOWS_SPECS = ("builtin", "pulumiOperator")
"""Modes of `reconcile` whose `repository` has the specs; that of others has rendered manifests."""
_FORGE_NAMES = f"with {join_words([f'`{name}`' for name in forge_names()], 'or')}"


class CommitTarget(NamedTuple):
    """Where the daemon commits."""

    repository: str
    branch: str
    path: str
    secret: str
    forge: str
    """Name of the forge; "" if it is unknown."""
    api: str
    project: str
    """Path of the repository on its host."""
    no_proposals: str
    """Why pull requests cannot be opened there; "" if they can."""

    @property
    def source(self) -> tuple[str, str, str, str]:
        """Host and path of the repository, branch, and directory: equal for equal specs."""
        return (*host_and_path(self.repository), self.branch, self.path.strip("/"))

    def describe(self) -> str:
        """Return repository, branch and directory as a message shows them."""
        return f"{self.repository}@{self.branch}" + (f":{self.path}" if self.path.strip("/") else "")

    def refuse_proposals(
        self, use: str, instead: str, span: Span, notes: tuple[Note, ...] = ()
    ) -> Iterator[Diagnostic]:
        """Yield the problem of a use of pull requests if none can be opened; `instead` is the remedy for any forge."""
        if self.no_proposals:
            named = "" if self.forge else f"add `delivery: {{forge: NAME}}` to the Cluster, {_FORGE_NAMES}, or "
            code = "invalid-value" if self.forge else "missing-key"
            yield Diagnostic(
                code, f"{self.no_proposals}, and {use}", span, hint=f"{named}write `{instead}`", notes=notes
            )


def commit_place(item: Item[ClusterSpec]) -> CommitTarget | None:
    """Return where the daemon of a cluster commits; None without a repository of specs."""
    own, followed = item.spec.delivery or Delivery(), item.spec.reconcile
    specs = followed.mode in _FOLLOWS_SPECS
    repository = own.repository or (followed.repository if specs else None)
    if repository is None:
        return None
    same = specs and repository == followed.repository
    host, project = host_and_path(repository)
    forge = find_forge(own.forge) if own.forge else forge_of_host(host)
    return CommitTarget(
        repository,
        own.branch or (followed.branch if same else None) or "main",
        own.path or (followed.path if same and followed.mode == "builtin" else None) or "",
        own.secret or "",
        forge.name if forge else "",
        (own.api or (forge.api({}, host) if forge else "")).rstrip("/"),
        project,
        forge.no_proposals if forge else f"the forge of {repository} is unknown",
    )


def check_delivery(item: Item[ClusterSpec]) -> Iterator[Diagnostic]:
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
    found = commit_place(item)
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
    if given is not None and given.rollback == "pullRequest":
        span = item.span("spec", "delivery", "rollback")
        yield from found.refuse_proposals("roll-backs are proposed by pull requests", "rollback: commit", span)
