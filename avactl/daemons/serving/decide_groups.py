"""The next step of a rollout of groups of pods, one after the other. Pure, as `decide`.

Requests follow the groups: the new version gets none before each role has a ready group of it, and the stable version
keeps its last group until the new one has all requests. A version is stable once all groups have it: only then their
controller starts stopped groups with it. Roles move side by side, each by its own number of groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor

from avactl.contracts.serving import GROUPS_HOLD, RolloutState
from avactl.daemons.serving.decide import REJECTING, Rollout, begin_rollout, describe_stable, serve_stable
from avactl.daemons.serving.groups import GroupSet, GroupView
from avactl.daemons.serving.view import Action, Answers, Event, HoldGroups, RemoveService, ServingPlan, StopGroup
from avactl.kube.pod_diagnosis import is_ready

_INCOMPLETE = "RolesDiffer"


def decide_groups(view: GroupView, now: float, settle: float, answers: Answers) -> ServingPlan:
    """Return the next plan for a service of groups; arguments as of `decide`."""
    if view.problem:
        # Nothing may be replaced by what is only a part of a version.
        return ServingPlan(view.state.replace(reason=_INCOMPLETE, message=view.problem), _hold_all(view))
    if view.state.reason == _INCOMPLETE:
        reason = "" if view.state.phase == "steady" else "Progressing"
        return ServingPlan(view.state.replace(reason=reason, message=""))
    if not view.target:
        return ServingPlan(view.state)  # the controller has not observed the spec: a version has no name yet
    if view.state.phase == "steady":
        return _decide_steady(view, now, answers)
    return _GroupRollout(view, now, settle, answers).plan()


def _hold_all(view: GroupView) -> list[Action]:
    """Return what keeps the controller from replacing groups of any role."""
    return [HoldGroups(each.name, GROUPS_HOLD) for each in view.sets if each.partition != GROUPS_HOLD]


def _decide_steady(view: GroupView, now: float, answers: Answers) -> ServingPlan:
    state, target = view.state, view.target
    if not state.stable:
        # Of groups that run before their first rollout, those of the revision with which stopped ones come back.
        return ServingPlan(state.replace(stable=view.current or target, since=now, reason="Starting", message=""))
    if state.rejected and state.rejected != target:
        return ServingPlan(state.replace(rejected=""))
    other = _find_other_stable(view)
    if other:
        return ServingPlan(state.replace(stable=other, since=now, proven=bool(view.current)))
    stable = view.revisions[state.stable]
    if target not in (stable.hash, state.rejected):
        if not view.total or (not state.proven and not stable.ready):
            # There is nothing to compare with, and nothing to lose.
            return ServingPlan(state.replace(stable=target, since=now, message=""))
        return begin_rollout(RolloutState(stable=stable.hash, proven=True, phase="stepping"), target, now)
    plan = ServingPlan(state)
    for each in view.sets:
        others = each.others(stable.hash)
        if target == stable.hash:
            # The controller knows best how to replace groups by those of the spec.
            partition = 0 if others or each.current not in ("", target) else GROUPS_HOLD
        else:
            partition = GROUPS_HOLD
        if each.partition != partition:
            plan.actions.append(HoldGroups(each.name, partition))
        elif target != stable.hash and each.current in ("", stable.hash):
            plan.actions += [StopGroup(leader) for leader in others]
    if plan.actions:
        return plan
    serve_stable(view, stable, plan)
    if not plan.actions:
        plan.actions += [RemoveService(each) for each in view.old_services]
    if plan.actions or target != stable.hash:
        return plan
    return describe_stable(view, stable, now, answers)


def _find_other_stable(view: GroupView) -> str:
    """Return what runs instead of the stable version of the state; empty if that is right.

    The service had, or had no, roles before, so that its groups have versions by another label. Groups of roles that
    have none by it are replaced at once: no pool can select them.
    """
    versions = {version for each in view.sets for version, _ in each.leaders.values()}
    if not versions or not view.state.proven or view.state.stable in versions:
        return ""
    known = view.current or ("" if any(versions) else view.target)
    return known if known != view.state.stable else ""


class _GroupRollout(Rollout):
    """A rollout that moves partitions instead of replicas."""

    view: GroupView

    def __init__(self, view: GroupView, now: float, settle: float, answers: Answers) -> None:
        super().__init__(view, now, settle, answers)
        self.in_place = False
        self.ready = [each.ready(view.state.canary) for each in view.sets]
        """Ready groups of the new version by role."""
        self.goals = [
            max(1, min(each.total, each.most - 1 - len(each.others(self.state.stable, self.state.canary))))
            for each in view.sets
        ]
        """Groups of the new version by role when it takes over. Without `maxSurge`, the last one of the stable version
        stops when it gets no requests; groups of a version before it are of no use."""

    def plan(self) -> ServingPlan:
        state, view = self.state, self.view
        taken = [each.current == state.canary for each in view.sets]
        if state.phase == "promoting" and all(taken):
            return self._promoted()
        changed = view.target != state.canary or state.phase == "aborting"
        if any(taken) and changed and state.phase in ("promoting", "aborting") and state.reason not in REJECTING:
            return self._go_on(taken)
        if not self.total and state.phase != "aborting":
            return self._abort("Reverted", "the service has no pods")
        if state.phase != "aborting" and view.target != state.canary:
            reverted = view.target == state.stable
            return self._abort(
                "Reverted" if reverted else "Superseded",
                "the spec asks for the stable version again" if reverted else "the spec has another version",
            )
        phases = {
            "stepping": self._decide_stepping,
            "promoting": self._decide_promoting,
            "aborting": self._decide_aborting,
        }
        return phases[state.phase]()

    def _go_on(self, taken: Sequence[bool]) -> ServingPlan:
        """Keep a version that has all requests and cannot be taken back: groups of a role that stop come back with it.

        What the spec says instead is the next version. Its groups replace those of the highest ordinals first: in a
        role that has not finished, these are the only ones of this version.
        """
        target, hash = self.view.target, self.state.canary
        unfinished = [
            each
            for each, done in zip(self.view.sets, taken, strict=True)
            if not done and each.ready(hash) < 2 and (target == hash or not each.of_version(target))
        ]
        if not unfinished:
            return self._promoted()
        if self.state.phase == "aborting":
            return ServingPlan(self.state.replace(phase="promoting", since=self.now))
        if target == hash:
            return self._decide_promoting()
        held = _hold_all(self.view)
        if held:
            return ServingPlan(self.state, held)
        return self._hold(
            "Unfinished",
            f"version {hash} has all requests, and {unfinished[0].name} has a group that is not ready with it: apply "
            f"version {hash} again until it is promoted",
            warning=True,
        )

    def _reach_step(self, percent: int) -> ServingPlan | None:
        goals = [
            min(goal, max(1, ceil(each.total * percent / 100)))
            for each, goal in zip(self.view.sets, self.goals, strict=True)
        ]
        ready, state = sum(self.ready), self.state
        if ready > state.groups:
            return ServingPlan(state.replace(groups=ready, since=self.now))
        if all(have >= goal for have, goal in zip(self.ready, goals, strict=True)):
            # From now on, another change of the spec replaces none of them.
            held = _hold_all(self.view)
            if held or ready < state.groups:  # fewer, because the service has fewer: none of them was lost
                return ServingPlan(state.replace(groups=ready), held)
            return None
        if not all(self.ready) and state.weight:
            plan = self._shift_traffic(0, removing=True)
            if plan is not None:
                return plan
        if ready < state.groups:
            # Groups were lost: they have the same time as at first.
            return ServingPlan(state.replace(reached=0.0, groups=ready, since=self.now))
        plan = self._start_groups(goals)
        if state.reached and plan.state.phase == "aborting":
            # An autoscaler asks for more, perhaps again and again: those of the step serve, and its pause goes on.
            return self._hold("Starting", plan.state.message, warning=True)
        return plan

    def _start_groups(self, goals: Sequence[int]) -> ServingPlan:
        """Let the controller start groups of the new version, and wait for them."""
        held: list[Action] = []
        for each, goal in zip(self.view.sets, goals, strict=True):
            partition = each.partition_for(self.state.canary, goal)
            if each.partition != partition:
                held.append(HoldGroups(each.name, partition))
        return ServingPlan(self.state, held) if held else self._await_pods(goals)

    def _describe_ready(self, wanted: int | Sequence[int]) -> str:
        goals = [wanted] if isinstance(wanted, int) else list(wanted)
        if len(goals) == 1:
            return super()._describe_ready(goals[0])
        parts = [
            f"{have} of {goal} of {each.name}"
            for each, have, goal in zip(self.view.sets, self.ready, goals, strict=True)
        ]
        return f"{' and '.join(parts)} are ready"

    def _decide_promoting(self) -> ServingPlan:
        ready, weight, sets = sum(self.ready), self.state.weight, self.view.sets
        if ready > self.state.groups:
            return ServingPlan(self.state.replace(groups=ready, since=self.now))
        lacking = [have < goal for goal, have in zip(self.goals, self.ready, strict=True)]
        if not self.by_replicas:
            share = _smallest_share(sets, self.ready) if any(lacking) else 100
            plan = self._shift_traffic(max(share, weight))
            if plan is not None:
                return plan
        if any(lacking):
            return self._start_groups([min(goal, have + 1) for goal, have in zip(self.goals, self.ready, strict=True)])
        # The rest gets no requests. Once it is replaced, groups that stop come back with the new version.
        plan = self._start_groups([each.most for each in sets])
        if plan.state.phase == "aborting":
            # A machine is broken, perhaps. The groups that serve all requests do not stop for that.
            return self._hold("Starting", plan.state.message, warning=True)
        return plan

    def _promoted(self) -> ServingPlan:
        hash = self.state.canary
        done = RolloutState(
            stable=hash,
            proven=True,
            outcome="promoted",
            version=hash,
            ended=self.now,
            reason="Promoted",
            message=f"version {hash}",
        )
        return ServingPlan(done, events=[Event("RolloutPromoted", f"version {hash} serves all requests")])

    def _decide_aborting(self) -> ServingPlan:
        state, view = self.state, self.view
        held = _hold_all(view)
        if held:
            return ServingPlan(state, held)
        if state.reason in REJECTING and state.rejected != state.canary:
            return ServingPlan(state.replace(rejected=state.canary))
        superseded = [
            leader
            for each in view.sets
            if each.current in ("", state.stable)
            for leader in each.others(state.stable, state.canary)
        ]
        if superseded:
            return ServingPlan(state, [StopGroup(each) for each in superseded])
        stable = [each.ready(state.stable) for each in view.sets]
        if sum(stable) > state.groups:
            return ServingPlan(state.replace(groups=sum(stable), since=self.now))
        # Without a ready group of the stable version, those of the new one serve until it has one.
        late = all(stable) and self.now - state.since > view.deadline
        new = [each.of_version(state.canary) for each in view.sets]
        serving = [[leader for leader in leaders if is_ready(leader)] for leaders in new]
        broken = [leader for leaders in new for leader in leaders if not is_ready(leader)]
        if not all(serving):
            plan = self._shift_traffic(0, removing=True)
            if plan is not None:
                return plan
        if broken:
            return ServingPlan(state, [StopGroup(each) for each in broken])
        for each, back, left in zip(view.sets, stable, serving, strict=True):
            returning = each.current in ("", state.stable)
            if returning and back < each.total and back + len(left) < each.most and not late:
                return self._await_stable(each, back)  # the group that was stopped last is not back
        if any(serving):
            # As many requests return as there are groups for them.
            kept = [
                min(max(0, len(left) - 1), max(0, each.total - back))
                for each, back, left in zip(view.sets, stable, serving, strict=True)
            ]
            share = min(state.weight, _smallest_share(view.sets, kept))
            stopped = [
                StopGroup(leader)
                for count, left in zip(kept, serving, strict=True)
                for leader in left[: len(left) - count]
            ]
            return self._shift_traffic(share, removing=True) or ServingPlan(state, list(stopped))
        return self._rolled_back()

    def _await_stable(self, groups: GroupSet, ready: int) -> ServingPlan:
        """Wait for a group of the stable version, and say so if it does not start again."""
        state = self.state
        mark = f"version {state.stable} does not start again"
        if self.now - state.since <= self.view.deadline or mark in state.message:
            return ServingPlan(state)
        message = f"{state.message}; {mark}: {ready} of {groups.total} groups of {groups.name} are ready"
        if self.view.serves(state.canary):
            message += f", and version {state.canary} keeps the requests"
        return ServingPlan(state.replace(message=message), events=[Event("RolloutNotReturned", message, True)])

    def _abort(self, reason: str, message: str) -> ServingPlan:
        plan = super()._abort(reason, message)
        plan.state = plan.state.replace(groups=0)
        return plan


def _smallest_share(sets: Sequence[GroupSet], groups: Sequence[int]) -> int:
    """Return the percent of the requests for which these groups of each role suffice."""
    return min(floor(100 * count / max(1, each.total)) for each, count in zip(sets, groups, strict=True))
