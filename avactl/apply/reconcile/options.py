"""Options of a run of the reconciler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from avactl.apply.reconcile.diffing.field_policy import Hands


@dataclass(frozen=True, slots=True)
class ReconcileOptions:
    """Options of a run."""

    cluster: str = ""
    inventory: str = ""
    namespace: str = ""
    """Namespace of the Lease and the inventory: the cluster's system namespace."""
    commit: str = ""
    repository: str = ""
    timeout: float = 300.0
    """Seconds to wait for health, and for deletions."""
    wait: bool = True
    prune: bool = True
    allow_empty: bool = False
    take_over: bool = False
    carries: tuple[str, ...] = ()
    """Other Clusters that the Kubernetes cluster is known to carry."""
    accept_owners: bool = False
    """Apply the commit although the `owners` of the last one do not allow its specs."""
    owners: str = ""
    """`owners` of the commit as JSON."""
    not_owned: Callable[[str], str] = lambda owners: ""
    """Function from earlier `owners` to a problem of the specs; empty: none."""
    dry_run: bool = False
    hands: Hands = field(default_factory=Hands)
    patience: float = 60.0
    """Seconds for which a transient failure is retried."""
