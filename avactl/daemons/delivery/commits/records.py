"""How rollouts ended on a cluster, for pipelines on others: one branch for each cluster, one file for each model.

Only the delivery daemon of the cluster writes its branch, which has no history in common with the specs.
"""

from __future__ import annotations

from time import monotonic
from typing import Literal, NamedTuple

from avactl.apply.publish.store import FILE, PublishError, StoreEntry
from avactl.contracts.delivery import RolloutRecord
from avactl.contracts.document import DocumentError, dump, load
from avactl.daemons.delivery.commits.messages import record_message
from avactl.daemons.delivery.commits.repository import ATTEMPTS, DeliveryError, Repository

BRANCH_PREFIX = "avactl-rollouts/"
"""Beginning of the names of these branches; the name of the cluster follows."""


class RolledOutModel(NamedTuple):
    """A model of a service on a cluster."""

    cluster: str
    namespace: str
    service: str
    """Name of the Deployment."""
    model: str

    @property
    def branch(self) -> str:
        return f"{BRANCH_PREFIX}{self.cluster}"

    @property
    def path(self) -> str:
        return f"{self.namespace}/{self.service}/{self.model}.json"


class RolloutRecords:
    """Records in a repository. Not for several threads at once."""

    def __init__(self, repository: Repository, interval: float) -> None:
        """`interval`: seconds between two fetches of one branch by `read`."""
        self._repository, self._interval = repository, interval
        self._tips: dict[str, tuple[str | None, float]] = {}

    def read(self, model: RolledOutModel, *, fresh: bool = False) -> RolloutRecord | None:
        """Return how the last rollout of a model ended; None if none has.

        `fresh`: fetch the branch also before the interval has passed. Raises DeliveryError.
        """
        tip, fetched = self._tips.get(model.branch, (None, float("-inf")))
        if fresh or monotonic() - fetched >= self._interval:
            tip = self._fetch(model.branch)
        try:
            return self._record_at(tip, model)
        except DocumentError as error:
            raise DeliveryError(
                f"{model.path} on the branch {model.branch}: {error}", "delete the branch: it is written again"
            ) from None

    def write(self, model: RolledOutModel, url: str, outcome: Literal["promoted", "rejected"]) -> bool:
        """Record how the rollout of a model to a URL ended; False if that is recorded already.

        A version that was promoted stays so: what is rejected later with the same URL is another change of the service.
        Raises DeliveryError.
        """
        store, record = self._repository.store, RolloutRecord(url=url, outcome=outcome)
        for _ in range(ATTEMPTS):
            tip = self._fetch(model.branch)
            try:
                known = self._record_at(tip, model)
            except (DocumentError, DeliveryError):  # not a record: it is replaced
                known = None
            if known is not None and known.url == url and known.outcome in ("promoted", outcome):
                return False
            content = dump(record, indent=True).encode()
            try:
                files = {} if tip is None else store.files(tip)
                store.write_blobs([content])
                tree = store.write_tree({**files, model.path: StoreEntry(FILE, store.oid(content))})
                commit = self._repository.write_commit(tree, tip, record_message(*model[1:], url, outcome))
                if self._repository.remote(model.branch).move(tip, commit):
                    return True
            except PublishError as error:
                raise DeliveryError(str(error), error.hint) from None
        raise DeliveryError(f"others push to {model.branch} all the time: {ATTEMPTS} attempts")

    def _fetch(self, branch: str) -> str | None:
        try:
            tip = self._repository.remote(branch).tip()
        except PublishError as error:
            raise DeliveryError(str(error), error.hint) from None
        self._tips[branch] = tip, monotonic()
        return tip

    def _record_at(self, tip: str | None, model: RolledOutModel) -> RolloutRecord | None:
        text = None if tip is None else self._repository.file_at(tip, model.path, RolloutRecord.MAX_BYTES)
        return None if text is None else load(RolloutRecord, text)
