"""Roll-backs in git: revert a spec whose version was rolled back to its earlier text for the running version.

The running version is identified by the digest of its pod template. An earlier text is used only if the specs at the
head compile to exactly that template with it, so a change outside the spec is never mistaken for one in it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from avactl.apply.publish.store import FailedError, PublishStore
from avactl.compiler.driver import compile_tree
from avactl.contracts.delivery import RollbackPlan
from avactl.contracts.names import TEMPLATE_DIGEST
from avactl.daemons.delivery.commits.messages import rollback_message
from avactl.daemons.delivery.commits.repository import CommittedVersion, DeliveryError, Edited, Repository
from avactl.program.manifest import Manifest
from avactl.spec.documents.edit import EditError, document_content, replace_document

_MAX_VERSIONS = 20
"""Maximum number of earlier texts that are compiled to find the running version."""


class NoTextError(DeliveryError):
    """No earlier text of a spec compiles to the running version; a retry at the same head would find none either."""

    def __init__(self, service: RollbackPlan, head: str) -> None:
        super().__init__(
            f"no earlier text of {service.document} in {service.file} compiles to the version that runs",
            f"the change is in another file, or older than the last {_MAX_VERSIONS} texts: revert it by a commit",
        )
        self.head = head


class RollbackFinding(NamedTuple):
    """Digests of the pod templates of the rejected and the running version, and the reason for the roll-back."""

    rejected: str
    running: str
    why: str


def rolled_back(repository: Repository, service: RollbackPlan, found: RollbackFinding) -> Edited | None:
    """Return a service's file with its spec reverted to that of the running version; None if there is nothing to do.

    There is nothing to do if the head does not compile to the version that was rolled back. Later changes of the spec
    are kept if they do not overlap with the reverted one. Raises NoTextError if no earlier text compiles to the running
    version, and DeliveryError.
    """
    if compiled_digest(repository, service) != found.rejected:
        return None
    text, document = repository.document(repository.head, service)
    head = document_content(text, document.index)
    undone: list[CommittedVersion] = []
    for version in islice(repository.versions(service), _MAX_VERSIONS):
        if version.content != head and _compiles_to(repository, service, found, version.content):
            content = _with_later_changes(repository, service, found, head, undone, version.content)
            message = rollback_message(service, found.why, [each.commit for each in undone], version.commit)
            return Edited(replace_document(text, document.index, content), message)
        undone.append(version)
    raise NoTextError(service, repository.head)


def compiled_digest(repository: Repository, service: RollbackPlan, content: str = "") -> str:
    """Return the digest of the pod template that the head compiles to, with another text of the spec if it is given.

    Empty if these specs do not compile, or have no such service with a rollout. Raises DeliveryError.
    """
    if not content:
        tree = repository.tree()
    else:
        text, document = repository.document(repository.head, service)
        try:
            tree = repository.tree(service.file, replace_document(text, document.index, content))
        except EditError as error:
            raise DeliveryError(f"{service.file}: {error}", error.hint) from None
    return digest_in(compile_tree(tree).manifests, service)


def digest_in(manifests: Iterable[Manifest], service: RollbackPlan) -> str:
    """Return the digest of a service's pod template in compiled objects; empty if they have no such service with a
    rollout."""
    for each in manifests:
        if (each.kind, each.cluster, each.namespace, each.name) == (
            "Deployment",
            service.cluster,
            service.namespace,
            service.name,
        ):
            return str((each.body["metadata"].get("annotations") or {}).get(TEMPLATE_DIGEST, ""))
    return ""


def _compiles_to(repository: Repository, service: RollbackPlan, found: RollbackFinding, content: str) -> bool:
    return compiled_digest(repository, service, content) == found.running


def _with_later_changes(
    repository: Repository,
    service: RollbackPlan,
    found: RollbackFinding,
    head: str,
    undone: list[CommittedVersion],
    good: str,
) -> str:
    """Return the good text with the changes that were made after the reverted one, if they can be merged.

    The reverted change is the oldest text after the good one; the differences between it and the head are kept, as by
    `git revert`.
    """
    if undone[-1].content == head:
        return good
    merged = _merge_texts(repository.store, head, undone[-1].content, good)
    return merged if merged is not None and _compiles_to(repository, service, found, merged) else good


def _merge_texts(store: PublishStore, mine: str, base: str, theirs: str) -> str | None:
    """Return the three-way merge of texts; None if they are in conflict."""
    with tempfile.TemporaryDirectory() as folder:
        names = []
        for name, text in (("mine", mine), ("base", base), ("theirs", theirs)):
            path = Path(folder) / name
            path.write_bytes(text.encode("utf-8", "surrogateescape"))
            names.append(str(path))
        try:
            return store.run("merge-file", "-p", "-q", *names)
        except FailedError:
            return None
