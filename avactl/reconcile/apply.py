"""Doing what the plan says: in apply order, independent objects at a time, one refusal stops only what needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import groupby
from time import monotonic
from typing import Any

from avactl.compiler.normalise import RANK
from avactl.diff.fields import Change, Entry
from avactl.diff.model import ABSENT as NOTHING
from avactl.diff.model import Disruption
from avactl.diff.rules import classify
from avactl.emit.pulumi_plan import Key
from avactl.kube.client import ApiError, UnreachableError
from avactl.reconcile.api import FIELD_MANAGER, Api, Body, Gvk
from avactl.reconcile.desired import PATCHED, inventory_of, marks
from avactl.reconcile.diffing import managed_fields
from avactl.reconcile.diffing.actions import Action, Step, holds_data
from avactl.reconcile.diffing.field_policy import Hands
from avactl.reconcile.diffing.managed_fields import ABSENT
from avactl.reconcile.diffing.object_diff import Difference, compare
from avactl.reconcile.health import State, health

APPLIED = frozenset({Action.create, Action.change, Action.recreate, Action.restore})
_HANDOVER = f"{FIELD_MANAGER}-handover"
_TRIES = 5
_POLL = 0.1
_AGAIN = 10.0
"""Seconds for which an object that is being deleted is waited for after another one was in vain."""
_ESTABLISHED = 30.0
"""Seconds for a new kind to be served."""

Name = tuple[str, str, str]


def to_do(steps: Iterable[Step]) -> bool:
    """Whether anything would be written."""
    return any(step.action in APPLIED or step.action is Action.prune for step in steps)


async def settle(api: Api, steps: Iterable[Step]) -> None:
    """Ask the API server where only it can tell whether two values are one. Nothing is written."""

    async def ask(step: Step) -> None:
        assert step.wanted is not None
        assert step.live is not None
        try:
            answer = await api.apply(step.wanted.body, dry_run=True)
        except ApiError:
            return  # it will say so again
        if _content(answer) == _content(step.live):
            step.action = Action.none
            step.comparison.apply.clear()

    alike = (Action.change, Action.restore)
    unsure = [step for step in steps if step.action in alike and step.live is not None and step.comparison.unsure]
    await asyncio.gather(*(ask(s) for s in unsure if not s.comparison.take_out and not s.comparison.hand_over))


def _content(live: Body) -> Body:
    bare = ("managedFields", "resourceVersion", "generation")
    return {**live, "metadata": {key: value for key, value in live["metadata"].items() if key not in bare}}


class Applier:
    """One run's writes."""

    def __init__(
        self,
        api: Api,
        inventory: str,
        hands: Hands,
        *,
        patience: float = 300.0,
        done: Callable[[Step], None] = lambda step: None,
    ) -> None:
        """`patience`: seconds for which an object that is being deleted is waited for; `done` hears of each step."""
        self._api, self._inventory, self._hands = api, inventory, hands
        self._patience, self._done = patience, done
        self._failed: dict[Name, str] = {}
        self._pending: dict[Name, asyncio.Event] = {}
        """What is being applied now: set when it has been, well or not."""

    async def run(self, steps: list[Step]) -> None:
        """Do everything; each step says how it went. Raises LostLeaseError."""
        for step in steps:
            if step.error:
                self._failed[_name(step.key)] = step.title
        forward = sorted((step for step in steps if step.action in APPLIED), key=lambda step: step.rank)
        for _, group in groupby(forward, key=_wave):
            several = list(group)
            self._pending = {_name(step.key): asyncio.Event() for step in several}
            await asyncio.gather(*map(self._in_turn, several))
            await asyncio.gather(*(self._established(step) for step in several if _defines(step)))
        prunes = [step for step in steps if step.action is Action.prune]
        for _, group in groupby(prunes, key=lambda step: step.rank):
            await asyncio.gather(*map(self._prune, list(group)))

    async def _in_turn(self, step: Step) -> None:
        """Apply once what it needs has been."""
        assert step.wanted is not None
        for name in step.wanted.needs:
            if name in self._pending:
                await self._pending[name].wait()
        try:
            await self._apply(step)
        finally:
            self._pending[_name(step.key)].set()

    async def _apply(self, step: Step) -> None:
        assert step.wanted is not None
        blocked = next((self._failed[name] for name in step.wanted.needs if name in self._failed), None)
        try:
            if blocked is not None:
                step.error, step.blocked = f"needs {blocked}, which could not be applied", True
            elif await self._api.find_kinds({step.wanted.gvk}):
                step.error = f"the API server serves no {step.wanted.gvk}"
            else:
                await self._put(step)
        except ApiError as error:
            step.error = _plain(error)
        except UnreachableError as error:
            step.error = f"no answer: {error}"
        except _StillThereError as error:
            step.error = str(error)
        if step.error:
            self._failed[_name(step.key)] = step.title
        self._done(step)

    async def _put(self, step: Step) -> None:
        assert step.wanted is not None
        if step.action is Action.recreate:
            await self._replace(step)
            return
        for body in step.first:
            await self._api.delete(body, "Background")
        live = step.live
        if live is not None and (step.comparison.same or live["metadata"].get("deletionTimestamp")):
            await self._gone(live)
            live = None
        if live is None:
            step.after = await self._api.apply(step.wanted.body)
            return
        for path in step.comparison.hand_over:
            await self._api.apply(_only(live, path), manager=_HANDOVER)
        if step.comparison.take_out:
            live = step.after = await self._take_out(step, live)
        if step.comparison.apply or step.comparison.hand_over:
            try:
                step.after = await self._api.apply(step.wanted.body)
            except ApiError as error:
                if error.status != 422:
                    raise
                self._want_replaceable(step, error)
                step.action = Action.recreate
                step.reason = "what changed cannot be changed in place"
                await self._replace(step)

    async def _take_out(self, step: Step, live: Body) -> Body:
        """Remove what was added by hand, of the object as it is in that moment."""
        assert step.wanted is not None
        differences: list[Difference] = step.comparison.take_out
        for _ in range(_TRIES):
            there = [d for d in differences if managed_fields.find(live, d.path) is not ABSENT]
            if not there:
                return live
            # The last entries of lists first: positions of the others stay.
            there.sort(key=lambda d: managed_fields.positions(live, d.path), reverse=True)
            done = await self._api.take_out(live, [managed_fields.pointer(live, d.path) for d in there])
            if done is not None:
                return done
            found = await self._api.get(step.wanted.gvk, step.key.namespace, step.key.name)
            if found is None:
                return live
            live = found
            again = compare(step.wanted.body, live, step.wanted.leave, self._hands).take_out
            differences = [d for d in differences if d.path in {other.path for other in again}]
        return live

    def _want_replaceable(self, step: Step, error: ApiError) -> None:
        """Raises the refusal again unless the object can be made anew without losing anything."""
        assert step.live is not None
        kind = step.key.kind
        classes = {classify(kind, _change(d), step.live)[0] for d in step.comparison.apply}
        if not classes & {Disruption.REPLACE, Disruption.DATA_LOSS}:
            raise error
        if Disruption.DATA_LOSS in classes or holds_data(step.live):
            raise ApiError(
                422, "Invalid",
                f"{', '.join(sorted({d.field for d in step.comparison.apply}))} cannot be changed in place, and made "
                f"anew the object would lose data: put back what was there, or delete it by hand ({_plain(error)})",
            )  # fmt: skip

    async def _replace(self, step: Step) -> None:
        """Delete and make anew; pods of a Job end first, so that two runs never write one checkpoint."""
        assert step.wanted is not None
        assert step.live is not None
        live: Body | None = step.live
        for _ in range(_TRIES):
            if live is None or await self._api.delete(live, "Foreground" if step.key.kind == "Job" else "Background"):
                break
            live = await self._api.get(step.wanted.gvk, step.key.namespace, step.key.name)
        else:
            raise _StillThereError("it changes while it is to be deleted: the next run goes on")
        await self._gone(step.live)
        step.after = await self._api.apply(step.wanted.body)

    async def _gone(self, live: Body) -> None:
        """Wait until just this object is not there any more."""
        found = await self._api.gone(live, self._patience)
        if found is not None:
            # Waves come one after another: the whole time is spent once, not in each of them.
            self._patience = min(self._patience, _AGAIN)
            held = ", ".join(found["metadata"].get("finalizers") or ())
            raise _StillThereError(
                "is still being deleted" + (f", held by {held}" if held else "") + ": the next run goes on"
            )

    async def _established(self, step: Step) -> None:
        """Wait until a new kind is served."""
        ends = monotonic() + _ESTABLISHED
        while not step.error:
            live = await self._api.get(Gvk("apiextensions.k8s.io/v1", "CustomResourceDefinition"), "", step.key.name)
            if live is not None and health(live).state is State.ready:
                return
            if monotonic() > ends:
                step.error = "its kind is not served yet: " + (health(live).reason if live else "it is gone")
                self._failed[_name(step.key)] = step.title
                return
            await asyncio.sleep(_POLL)

    async def _prune(self, step: Step) -> None:
        live = step.live
        if self._held(step):
            step.action, step.reason = Action.wait, "not pruned while something beside it could not be applied"
            return
        try:
            for _ in range(_TRIES):
                if live is None:
                    break
                if inventory_of(live) != self._inventory or holds_data(live):
                    step.action, step.reason = Action.keep, "somebody changed its marks in this moment"
                    break
                if PATCHED in marks(live):
                    metadata = {"name": step.key.name, "uid": live["metadata"]["uid"]}
                    await self._api.apply(
                        {"apiVersion": live["apiVersion"], "kind": live["kind"], "metadata": metadata}
                    )
                    step.reason = "the object stays, without our fields"
                    break
                if await self._api.delete(live, "Background"):
                    break
                live = await self._api.get(Gvk.of(live), step.key.namespace, step.key.name)
            else:
                step.error = "it changes while it is to be deleted: the next run goes on"
        except ApiError as error:
            step.error = _plain(error)
        except UnreachableError as error:
            step.error = f"no answer: {error}"
        self._done(step)

    def _held(self, step: Step) -> bool:
        """Whether something failed that may be meant to take its place."""
        return any(namespace == step.key.namespace for _, namespace, _ in self._failed)


class _StillThereError(Exception):
    """An object that is being deleted takes longer than this run waits."""


def _wave(step: Step) -> int:
    """What must be complete before the next begins: namespaces and new kinds; all that pods find when they start;
    what has pods; kinds that are not Kubernetes'. Within one, objects go in the table's order, at the same time as
    far as none needs another."""
    if step.rank <= RANK["CustomResourceDefinition"]:
        return 0
    return 1 if step.rank < RANK["DaemonSet"] else 2 if step.rank < len(RANK) else 3


def _name(key: Key) -> Name:
    return (key.kind, key.namespace, key.name)


def _defines(step: Step) -> bool:
    return step.key.kind == "CustomResourceDefinition" and not step.error


def _plain(error: ApiError) -> str:
    """Render an answer of the API server; the object is named elsewhere."""
    return f"{error.message or error} ({error.status})"


def _only(live: Body, path: tuple[str, ...]) -> Body:
    """An object with one field as it is."""
    metadata = {key: live["metadata"][key] for key in ("name", "namespace") if key in live["metadata"]}
    body: Body = {"apiVersion": live["apiVersion"], "kind": live["kind"], "metadata": metadata}
    at: dict[str, Any] = body
    for step in path[:-1]:
        at = at.setdefault(step[2:], {})
    at[path[-1][2:]] = managed_fields.find(live, path)
    return body


def _change(difference: Difference) -> Change:
    """A difference as the rules of the diff read it."""
    path = tuple(step[2:] if step.startswith("f:") else Entry(step[2:]) for step in difference.path)
    old, new = (NOTHING if value is ABSENT else value for value in (difference.old, difference.new))
    op = "added" if old is NOTHING else "removed" if new is NOTHING else "changed"
    return Change(path, op, old, new)  # type: ignore[arg-type]
