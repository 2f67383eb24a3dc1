"""Records of a cluster in git, for others: how rollouts ended, for pipelines, and the health of services, for
promotions.

There is one branch for each cluster, with one file for each model, and one for each service in a promotion.

Only the delivery daemon of the cluster writes its branch, which has no history in common with the specs.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Literal, NamedTuple, TypeVar

from avactl.apply.publish.store import FILE, PublishError, StoreEntry
from avactl.contracts.delivery import HealthRecord, RolloutRecord
from avactl.contracts.document import DocumentError, dump, load
from avactl.daemons.delivery.commits.messages import health_message, record_message
from avactl.daemons.delivery.commits.repository import ATTEMPTS, DeliveryError, Repository

BRANCH_PREFIX = "avactl-rollouts/"
"""Beginning of the names of these branches; the name of the cluster follows."""
R = TypeVar("R", RolloutRecord, HealthRecord)


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


class RecordedService(NamedTuple):
    """A service on a cluster."""

    cluster: str
    namespace: str
    service: str
    """Name of the Deployment."""

    @property
    def branch(self) -> str:
        return f"{BRANCH_PREFIX}{self.cluster}"

    @property
    def path(self) -> str:
        return f"{self.namespace}/{self.service}.json"


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
        return self._read(model, RolloutRecord, fresh=fresh)

    def read_health(self, service: RecordedService) -> HealthRecord | None:
        """Return what is recorded of a service's health; None if nothing is. Raises DeliveryError."""
        return self._read(service, HealthRecord, fresh=False)

    def write(self, model: RolledOutModel, url: str, outcome: Literal["promoted", "rejected"]) -> bool:
        """Record how the rollout of a model to a URL ended; False if that is recorded already.

        A version that was promoted stays so: what is rejected later with the same URL is another change of the service.
        Raises DeliveryError.
        """
        record = RolloutRecord(url=url, outcome=outcome)

        def change(known: RolloutRecord | None) -> RolloutRecord | None:
            same = known is not None and known.url == url and known.outcome in ("promoted", outcome)
            return None if same else record

        return self._write(model, RolloutRecord, change, record_message(*model[1:], url, outcome))

    def write_health(
        self, service: RecordedService, change: Callable[[HealthRecord | None], HealthRecord | None]
    ) -> HealthRecord | None:
        """Record the health of a service, and return the record that the branch then has.

        `change` returns the new record from the present one, and is called again if others push meanwhile; None:
        nothing to do. Raises DeliveryError.
        """
        after: list[HealthRecord | None] = []

        def changed(known: HealthRecord | None) -> HealthRecord | None:
            new = change(known)
            after[:] = [known if new is None else new]
            return new

        self._write(service, HealthRecord, changed, lambda record: health_message(*service[1:], record))
        return after[0]

    def _read(self, place: RecordedService | RolledOutModel, model: type[R], *, fresh: bool) -> R | None:
        tip, fetched = self._tips.get(place.branch, (None, float("-inf")))
        if fresh or monotonic() - fetched >= self._interval:
            tip = self._fetch(place.branch)
        try:
            return self._record_at(tip, place, model)
        except DocumentError as error:
            raise DeliveryError(
                f"{place.path} on the branch {place.branch}: {error}", "delete the branch: it is written again"
            ) from None

    def _write(
        self,
        place: RecordedService | RolledOutModel,
        model: type[R],
        change: Callable[[R | None], R | None],
        message: str | Callable[[R], str],
    ) -> bool:
        store = self._repository.store
        for _ in range(ATTEMPTS):
            tip = self._fetch(place.branch)
            try:
                known = self._record_at(tip, place, model)
            except (DocumentError, DeliveryError):  # not a record: it is replaced
                known = None
            record = change(known)
            if record is None:
                return False
            content = dump(record, indent=True).encode()
            try:
                files = {} if tip is None else store.files(tip)
                store.write_blobs([content])
                tree = store.write_tree({**files, place.path: StoreEntry(FILE, store.oid(content))})
                text = message if isinstance(message, str) else message(record)
                commit = self._repository.write_commit(tree, tip, text)
                if self._repository.remote(place.branch).move(tip, commit):
                    self._tips[place.branch] = commit, monotonic()
                    return True
            except PublishError as error:
                raise DeliveryError(str(error), error.hint) from None
        raise DeliveryError(f"others push to {place.branch} all the time: {ATTEMPTS} attempts")

    def _fetch(self, branch: str) -> str | None:
        try:
            tip = self._repository.remote(branch).tip()
        except PublishError as error:
            raise DeliveryError(str(error), error.hint) from None
        self._tips[branch] = tip, monotonic()
        return tip

    def _record_at(self, tip: str | None, place: RecordedService | RolledOutModel, model: type[R]) -> R | None:
        text = None if tip is None else self._repository.file_at(tip, place.path, model.MAX_BYTES)
        return None if text is None else load(model, text)
