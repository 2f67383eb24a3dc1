"""Preemption: victims for units that fit nowhere, and nominations that reserve their places until they have started.

A unit that fits nowhere but is entitled to resources by its quota or its rank gets a plan
(`avactl.hardware.placement.reclaim`). Its pods are nominated for nodes, the victims are evicted, and the resources that
they release are booked for the unit. After a restart all of that is read back from the API server: nominated nodes, and
annotations of pods and victims.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from time import monotonic

from avactl.hardware.placement.allocation import Booking, BookingError
from avactl.hardware.placement.masks import Mask
from avactl.hardware.placement.quota import TeamWorkload
from avactl.hardware.placement.reclaim import Reclaim, make_room
from avactl.kube import logs
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.cache.statement import Statement
from avactl.scheduler.interfaces import Eviction, EvictionSink, Victim
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.preemption.attempt import (
    PreemptionRequest,
    Trial,
    demand_as_work,
    describe_reclaims,
    new_preemption,
    new_victim,
    preempted_for_message,
    suitable_models,
    title,
)
from avactl.scheduler.preemption.candidates import BudgetChecker, Candidates
from avactl.scheduler.preemption.coming_machines import ComingMachines
from avactl.scheduler.preemption.reservations import NominatedPlace, Reservations, booking_keys
from avactl.scheduler.preemption.throttle import PreemptionThrottle
from avactl.scheduler.queue.scheduling_queue import QueuedPodGroup, SchedulingQueue

MAX_OVERDUE_S = 60.0
"""Seconds beyond a victim's grace period after which a nomination is given up."""
MAX_CANDIDATE_PODS = 200_000
"""Maximum number of pods in all candidates that are kept up to date, about 0.8 kB each; the last ones may have more."""
MAX_UNUSED_S = 60.0
"""Seconds without a search after which candidates are dropped."""
RENEWAL_INTERVAL_S = 1.0
"""Seconds after which all reservations are renewed, also those whose nodes have not changed."""
SECOND_EVICTION_DELAY_S = 30.0
"""Seconds before pods are evicted again for a unit that did not start in its reserved places."""


NominatedUsage = tuple[tuple[str, str, bool, str], Sequence[int]]
"""Team, GPU model, whether only guaranteed GPUs may be used, and member; GPU milli, CPU and memory."""


class Nomination:
    """Places that are reserved for a unit."""

    def __init__(
        self,
        places: Sequence[NominatedPlace],
        victims: Sequence[PodInfo],
        keys: set[Hashable],
        words: str,
        unix: float,
    ) -> None:
        self.places, self.victims, self.keys, self.words = places, victims, keys, words
        """`keys`: bookings whose release it waits for; `unix`: the current Unix time."""
        self.works: list[NominatedUsage] = []
        """Usage of the teams by the places, by GPU model."""
        left = (pod.ends - unix if pod.ends else pod.grace for pod in victims)
        self.until = monotonic() + MAX_OVERDUE_S + max(left, default=0.0)
        self.ready = False


class Preemptor:
    """Finds victims, and reserves the places that they free. `choose` returns a booking of one pod on some nodes."""

    def __init__(
        self,
        cache: ClusterCache,
        queue: SchedulingQueue,
        budgets: BudgetChecker,
        evictor: EvictionSink | None,
        choose: Callable[[PodInfo, Mask], Booking | None],
        share: float,
        clock: Callable[[], float] = time.time,
        waits_for_machines: bool = False,
    ) -> None:
        """`share`: largest share of time that may be spent on failed attempts; `clock`: that of deletion times.

        `waits_for_machines`: nobody is preempted for pods that fit on machines on their way.
        """
        self._cache, self._queue, self._budgets, self._evictor, self._choose = cache, queue, budgets, evictor, choose
        self._throttle = PreemptionThrottle(queue, share)
        self._clock = clock
        self.machines = ComingMachines(cache, queue, clock, waits_for_machines)
        self._nominations: dict[str, Nomination] = {}
        self._reservations = Reservations(cache)
        self._candidates: dict[tuple[str, str], tuple[Candidates, float]] = {}
        """Candidates by team and GPU model, the least recently used first, and when they were used."""
        self._blocked_until: dict[str, float] = {}
        """Monotonic time until which no pod is evicted for a unit."""
        self._synced_epoch, self._synced_at = -1, 0.0
        self._restored = False
        self.sees_own_places = False
        """True while the unit being decided sees its own reservations as free."""

    # -- keeping up ---------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Renew reservations after changes, and queue the units whose victims have ended."""
        now = monotonic()
        if not self._restored:
            self._restore()
        if self._cache.tables.nominated:
            self._adopt_requested(now)
        self._throttle.resume_skipped()
        if self.machines.sync():
            self._cache.tables.change_epoch += 1
        if self._synced_epoch == self._cache.tables.change_epoch and now - self._synced_at < RENEWAL_INTERVAL_S:
            return
        overdue = now - self._synced_at >= RENEWAL_INTERVAL_S
        self._synced_epoch = self._cache.tables.change_epoch
        self._blocked_until = {key: until for key, until in self._blocked_until.items() if now < until}
        self._candidates = {key: kept for key, kept in self._candidates.items() if now < kept[1] + MAX_UNUSED_S}
        slots = self._cache.tables.state.slots
        for key, nomination in list(self._nominations.items()):
            nomination.keys = {booking for booking in nomination.keys if self._is_booked(booking)}
            if not any(place.pod.waiting for place in nomination.places):
                self._remove_nomination(key)  # another scheduler has bound them
            elif now > nomination.until or any(place.node not in slots for place in nomination.places):
                logs.warn("room given up", unit=key, left=len(nomination.keys))
                self.abandon(key)
            elif not nomination.keys and not nomination.ready:
                nomination.ready = True
                self._activate(key)
        self._renew_reservations(all_of_them=overdue)

    def _booking_keys(self, pods: Sequence[PodInfo]) -> set[Hashable]:
        return set(booking_keys(self._cache, pods))

    def _is_booked(self, key: Hashable) -> bool:
        return key in self._cache.tables.state.bookings or bool(self._cache.dra.devices.held(str(key)))

    def _activate(self, key: str) -> None:
        unit = self._queue.units.get(key)
        if unit is not None and unit.waiting:
            self._queue.push(unit)

    def _renew_reservations(self, *, all_of_them: bool = False) -> None:
        """Renew the reservations on nodes that have changed, or all."""
        if self._cache.tables.stale:
            return  # all reservations are renewed once the state is
        if all_of_them:
            self._synced_at = monotonic()
            for nomination in self._nominations.values():
                nomination.works = []  # their team may be another one
        self._count_nominations()
        places = {key: nomination.places for key, nomination in self._nominations.items()}
        ready = {key for key, nomination in self._nominations.items() if not nomination.keys}
        self._reservations.renew(places, self._ending_pods(), ready, all_of_them=all_of_them)

    def _count_nominations(self, without: str = "") -> None:
        """Count the reserved places in the teams' usage."""
        sums: dict[tuple[str, str, bool, str], list[int]] = {}
        for key, nomination in self._nominations.items():
            if key == without:
                continue
            nomination.works = nomination.works or self._nominated_works(nomination)
            for usage, amounts in nomination.works:
                total = sums.setdefault(usage, [0, 0, 0])
                for index, amount in enumerate(amounts):
                    total[index] += amount
        self._cache.quotas.nominated_works = [
            TeamWorkload(
                ("nominated", team, model, guaranteed_only, member),
                team,
                1,
                gpus,
                model,
                preemptible=False,
                amounts=(cpu, memory),
                guaranteed_only=guaranteed_only,
                member=member,
            )
            for (team, model, guaranteed_only, member), (gpus, cpu, memory) in sums.items()
        ]

    def reset(self) -> None:
        """Have all reservations restored in a new state."""
        self._throttle.clear()
        self.machines.reset()
        self._candidates.clear()
        self._reservations.forget_all()
        self._restored = False

    def has_nomination(self, key: str) -> bool:
        """Return True if a unit has a nomination."""
        return key in self._nominations

    def forget(self, pod: PodInfo) -> None:
        """Abandon the nomination of a pod that was removed, or of its gang."""
        key = pod.gang or pod.uid
        nomination = self._nominations.get(key)
        if nomination is not None and any(place.pod is pod for place in nomination.places):
            self.abandon(key)

    def abandon(self, key: str) -> None:
        """Drop the nomination of a unit and its reservations."""
        nomination = self._remove_nomination(key)
        if nomination is None:
            return
        self._renew_reservations()
        self._blocked_until[key] = monotonic() + SECOND_EVICTION_DELAY_S
        self._clear_nominations([place.pod for place in nomination.places])
        self._cache.tables.change_epoch += 1

    def _remove_nomination(self, key: str) -> Nomination | None:
        """Remove a nomination. Its victims that have not been deleted yet are spared."""
        nomination = self._nominations.pop(key, None)
        for pod in nomination.victims if nomination is not None else ():
            pod.evicting = False
        return nomination

    def _clear_nominations(self, pods: Iterable[PodInfo]) -> None:
        waiting = [pod for pod in pods if pod.waiting]
        if waiting and self._evictor is not None:
            self._evictor.clear(waiting)

    def _team_has_ending_victims(self, nomination: Nomination) -> bool:
        """Return True if victims of another unit belong to its team: they count against the quota until they end."""
        quotas = self._cache.quotas
        team = quotas.team(nomination.places[0].pod)
        return any(
            quotas.team(pod) == team and pod.key in self._cache.tables.pods
            for other in self._nominations.values()
            for pod in other.victims
        )

    @contextmanager
    def own_places_released(self, unit: QueuedPodGroup) -> Iterator[None]:
        """Free the reservations of a unit while it is decided; reserve its places again if it still waits."""
        nomination = self._nominations.get(unit.key)
        if nomination is None:
            yield
            return
        if not nomination.keys and not self._team_has_ending_victims(nomination):
            # Enough is free already; if it still does not start, preemption is not the reason.
            self._remove_nomination(unit.key)
            self._blocked_until[unit.key] = monotonic() + SECOND_EVICTION_DELAY_S
        self._reservations.release(unit.key)
        self._count_nominations(without=unit.key)
        self.sees_own_places = True
        try:
            yield
        finally:
            self.sees_own_places = False
            pods = [place.pod for place in nomination.places]
            if not any(pod.waiting for pod in pods):
                self._remove_nomination(unit.key)
                self._blocked_until.pop(unit.key, None)
            elif unit.key not in self._nominations:
                logs.warn("unit did not fit after preemption", unit=unit.key)
                self._clear_nominations(pods)
            self._renew_reservations()
            if unit.key not in self._nominations:
                self._cache.tables.change_epoch += 1

    # -- planning -----------------------------------------------------------------------------------------------------

    def preempt(self, need: PreemptionRequest, message: str, group: Hashable) -> str:
        """Evict pods if there is a plan, and return the message for a unit that waits because of `message`.

        `group`: key of all units that have a plan if and only if this one has.
        """
        key, now = need.unit.key, monotonic()
        nomination = self._nominations.get(key)
        if nomination is not None:
            return f"{message}; {nomination.words}"
        if (
            self._evictor is None
            or any(pod.never_preempts for pod in need.pods)
            or now < self._blocked_until.get(key, 0.0)
        ):
            return message
        known = self._throttle.recall_failure(group, self._cache.tables.change_epoch)
        if known is not None:
            return f"{message}; {known}" if known else message
        models = suitable_models(self._cache, need)
        if not any(self._cache.quotas.may_yield_to(pod, models) for pod in need.pods[:1]):
            return message
        if not self._throttle.may_begin(key, group, self._cache.quotas.team(need.pods[0])):
            return message
        words = self._find_victims(need, models)
        if key not in self._nominations:
            self._throttle.record_failure(group, self._cache.tables.change_epoch, words)
        return f"{message}; {words}" if words else message

    def _find_victims(self, need: PreemptionRequest, models: Sequence[str]) -> str:
        team = self._cache.quotas.team(need.pods[0])
        going = self._ending_pods()
        with self._with_ending_pods_gone(need, going):
            for model in models:
                works = self._collect_candidates(team, model, going)
                mask, wanted = (
                    self._cache.quotas.model_mask(model) if model else None,
                    demand_as_work(self._cache, need, team, model),
                )
                with self._nominations_counted(works), Statement(self._cache, need.restricted) as statement:
                    trial = Trial(self._cache, statement, need, works, mask)
                    takes = make_room(works.ledger, wanted, enough=trial.enough, near=trial.near, hopeful=trial.hopeful)
                    if takes == []:
                        # Victims of other units, or pods that end by themselves, will free enough.
                        return "enough capacity will be free once terminating pods have ended" if going else ""
                    if takes is not None and trial.enough(takes) and trial.bookings is not None:
                        bookings, victims = trial.bookings, works.victims(takes)
                        break
            else:
                return ""
            for other in (model, *(each for each in models if each != model)):
                nodes = self._cache.quotas.model_mask(other) if other else None
                if words := self.machines.wait(need, other, nodes):
                    return words
        self._start_preemption(need, team, takes, works, bookings, victims)
        return self._nominations[need.unit.key].words

    def _nominated_works(self, nomination: Nomination) -> list[NominatedUsage]:
        """Return what a nominated unit counts in its team's usage, by GPU model."""
        places, state = nomination.places, self._cache.tables.state
        team, member = self._cache.quotas.team(places[0].pod), self._cache.quotas.member(places[0].pod)
        guaranteed_only = not all(place.pod.preemptible for place in places)
        sums: dict[str, list[int]] = {}
        for _, _, booking in places:
            model = state.models[state.model[booking.node]] if booking.gpus else ""
            mine = sums.setdefault(model, [0, 0, 0])
            mine[0] += booking.gpus.bit_count() * booking.milli
            mine[1] += booking.amounts[0]
            mine[2] += booking.amounts[1]
        return [((team, model, guaranteed_only, member), amounts) for model, amounts in sums.items()]

    def _start_preemption(
        self,
        need: PreemptionRequest,
        team: str,
        takes: Sequence[Reclaim],
        works: Candidates,
        bookings: Sequence[Booking],
        victims: list[PodInfo],
    ) -> None:
        unit, state = need.unit, self._cache.tables.state
        places = [
            NominatedPlace(pod, str(state.names[booking.node]), booking)
            for pod, booking in zip(need.pods, bookings, strict=True)
        ]
        for pod in victims:
            pod.evicting = True
        self._nominations[unit.key] = Nomination(
            places,
            victims,
            self._booking_keys(victims),
            describe_reclaims(unit, takes, works),
            self._clock(),
        )
        self._renew_reservations()
        take_of = {pod: take for take in takes for pod in works.victims([take])}
        evictions = [new_victim(unit, team, pod, take_of[pod], works) for pod in victims]
        nodes = {place.pod: place.node for place in places}
        hosts = len({place.node for place in places})
        logs.info("preemption started", unit=title(unit), victims=len(victims), nodes=hosts)
        assert self._evictor is not None
        self._evictor.evict(Eviction(unit.key, new_preemption(need.pods), nodes, evictions))

    # -- the expected state -------------------------------------------------------------------------------------------

    def _will_end(self, pod: PodInfo) -> bool:
        """Return True if a pod will release its resources; False if it should have ended long ago."""
        return pod.evicting or (pod.deleting and self._clock() < pod.ends + MAX_OVERDUE_S)

    def _ending_pods(self) -> set[PodInfo]:
        quotas = self._cache.quotas
        victims = (pod for nomination in self._nominations.values() for pod in nomination.victims if pod.evicting)
        works = quotas.current_ledger().works
        return {pod for pod in (*victims, *quotas.deleting_pods()) if pod in works and self._will_end(pod)}

    def _collect_candidates(self, team: str, model: str, going: set[PodInfo]) -> Candidates:
        """Return the current candidates for eviction."""
        candidates, _ = self._candidates.pop((team, model), (None, 0.0))
        if candidates is None:
            candidates = Candidates(self._cache, self._queue, self._budgets, team, model)
        candidates.update(going)
        count = candidates.pod_count + sum(kept.pod_count for kept, _ in self._candidates.values())
        while self._candidates and count > MAX_CANDIDATE_PODS:
            dropped, _ = self._candidates.pop(next(iter(self._candidates)))
            count -= dropped.pod_count
        self._candidates[team, model] = candidates, monotonic()
        return candidates

    @contextmanager
    def _nominations_counted(self, candidates: Candidates) -> Iterator[None]:
        """Count the reserved places as work that cannot be preempted."""
        nominated = self._cache.quotas.nominated_works
        for work in nominated:
            candidates.ledger.start(work)
        try:
            yield
        finally:
            for work in nominated:
                candidates.ledger.end(work.key)

    @contextmanager
    def _with_ending_pods_gone(self, need: PreemptionRequest, going: set[PodInfo]) -> Iterator[None]:
        """Evict all ending pods and reserve all nominated places within the context."""
        with self._reservations.kept(), Statement(self._cache, need.restricted) as statement:
            statement.evict_only(going)
            self._reservations.release_within(statement)
            for nomination in self._nominations.values():
                for place in nomination.places:
                    with suppress(BookingError):
                        statement.reserve(*place)
            yield

    # -- after a restart or rebuild -----------------------------------------------------------------------------------

    def _restore(self) -> None:
        """Restore the nominations from before a rebuild or a restart."""
        self._restored = True
        before, self._nominations = self._nominations, {}
        marked = self._victims_by_preemption()
        for unit in self._queue:
            nodes = {pod: pod.nominated for pod in unit.waiting if pod.nominated}
            preemption = next((pod.preemption for pod in nodes if pod.preemption), "")
            victims = marked.get(preemption, [])
            if unit.key in before:
                old = before.pop(unit.key)
                nodes = {place.pod: place.node for place in old.places}
                victims = [pod for pod in old.victims if pod.key in self._cache.tables.pods]
                self._nominate(unit, nodes, victims, old.words)
            elif nodes and self._nominate(unit, nodes, victims, "terminating pods will free capacity for it"):
                self._resume_evictions(unit, preemption, nodes, victims, "resumed")
        for key, nomination in before.items():
            self._nominations[key] = nomination
            self.abandon(key)

    def _adopt_requested(self, now: float) -> None:
        """Adopt nominations that another program requested by marking victims and nominating pods (`avactl defrag`)."""
        keys = self._cache.tables.nominated - self._nominations.keys()
        self._cache.tables.nominated = set()
        marked = self._victims_by_preemption() if keys else {}
        for key in sorted(keys):
            unit = self._queue.units.get(key)
            if unit is None or now < self._blocked_until.get(key, 0.0):
                continue
            nodes = {pod: pod.nominated for pod in unit.waiting if pod.nominated}
            preemption = next((pod.preemption for pod in nodes if pod.preemption), "")
            victims = marked.get(preemption, [])
            if victims and len(nodes) >= unit.missing > 0:
                logs.info("preemption resumed on request", unit=title(unit), victims=len(victims))
                if self._nominate(unit, nodes, victims, "pods are being moved to free capacity for it"):
                    self._resume_evictions(unit, preemption, nodes, victims, "defrag")

    def _victims_by_preemption(self) -> dict[str, list[PodInfo]]:
        """Return the victims that have not ended, by preemption."""
        victims: dict[str, list[PodInfo]] = {}
        for pod in self._cache.tables.pods.values():
            if pod.preempted_for and not pod.ended:
                victims.setdefault(pod.preempted_for, []).append(pod)
        return victims

    def _resume_evictions(
        self, unit: QueuedPodGroup, preemption: str, nodes: Mapping[PodInfo, str], victims: Sequence[PodInfo], why: str
    ) -> None:
        """Evict the remaining victims of a preemption that is marked already."""
        note = f"{preempted_for_message(unit)}preemption resumed after a restart"
        left = [Victim(pod, why, note) for pod in victims if not pod.deleting]
        if left and self._evictor is not None:
            self._evictor.evict(Eviction(unit.key, preemption, nodes, left))

    def _nominate(
        self, unit: QueuedPodGroup, nodes: Mapping[PodInfo, str], victims: Sequence[PodInfo], words: str
    ) -> bool:
        places: list[NominatedPlace] = []
        for pod in victims:
            pod.evicting = True
        keys = self._booking_keys(victims)
        ending = {pod for pod in self._ending_pods() if not pod.preempted_for}
        with Statement(self._cache) as statement, suppress(BookingError):
            statement.evict_only(ending.union(victims))
            for pod, node in nodes.items():
                booking = self._choose(pod, self._cache.tables.mask([node]))
                if booking is None:
                    break
                statement.reserve(pod, node, booking)
                places.append(NominatedPlace(pod, node, booking))
        if len(places) < len(nodes) or len(nodes) < unit.missing:
            # No pod was evicted yet, or the freed capacity has been taken: the unit is planned again.
            for pod in victims:
                pod.evicting = False
            self._clear_nominations(nodes)
            return False
        self._nominations[unit.key] = Nomination(places, victims, keys, words, self._clock())
        self._renew_reservations()
        return True
