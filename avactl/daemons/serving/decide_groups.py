"""The next step of a rollout of groups of pods, one after the other. Pure, as `decide`.

Requests follow the groups: the new version gets none before its first group is ready, and the stable version keeps its
last group until the new one has all requests. A version is stable once all groups have it: only then its controller
starts stopped groups with it.
"""

from __future__ import annotations

from math import ceil, floor

from avactl.contracts.serving import GROUPS_HOLD, RolloutState
from avactl.daemons.serving.decide import REJECTING, Rollout, begin_rollout, describe_stable, serve_stable
from avactl.daemons.serving.groups import GroupView, revision_of
from avactl.daemons.serving.sizes import Sizes
from avactl.daemons.serving.view import Answers, Event, HoldGroups, RemoveService, ServingPlan, StopGroup
from avactl.kube.pod_diagnosis import is_ready


def decide_groups(view: GroupView, now: float, settle: float, answers: Answers) -> ServingPlan:
    """Return the next plan for a service of groups; arguments as of `decide`."""
    if not view.target:
        return ServingPlan(view.state)  # the controller has not observed the spec: a version has no name yet
    if view.state.phase == "steady":
        return _decide_steady(view, now, answers)
    return _GroupRollout(view, now, settle, answers).plan()


def _decide_steady(view: GroupView, now: float, answers: Answers) -> ServingPlan:
    state, target = view.state, view.target
    if not state.stable:
        # Of groups that run before their first rollout, those of the revision with which stopped ones come back.
        return ServingPlan(state.replace(stable=view.current or target, since=now, reason="Starting", message=""))
    if state.rejected and state.rejected != target:
        return ServingPlan(state.replace(rejected=""))
    stable = view.revisions[state.stable]
    if target not in (stable.hash, state.rejected):
        if not view.total or (not state.proven and not stable.ready):
            # There is nothing to compare with, and nothing to lose.
            return ServingPlan(state.replace(stable=target, since=now, message=""))
        return begin_rollout(RolloutState(stable=stable.hash, proven=True, phase="stepping"), target, now)
    plan = ServingPlan(state)
    others = [each for each in view.leaders.values() if revision_of(each) != stable.hash]
    if target == stable.hash:
        # The controller knows best how to replace groups by those of the spec.
        partition = 0 if others or view.current not in ("", target) else GROUPS_HOLD
    else:
        partition = GROUPS_HOLD
        plan.actions += [StopGroup(each) for each in others]
    if view.partition != partition:
        plan.actions = [HoldGroups(partition)]
    if plan.actions:
        return plan
    serve_stable(view, stable, plan)
    if not plan.actions:
        plan.actions += [RemoveService(each) for each in view.old_services]
    if plan.actions or target != stable.hash:
        return plan
    return describe_stable(view, stable, now, answers)


class _GroupRollout(Rollout):
    """A rollout that moves the partition instead of replicas."""

    view: GroupView

    def __init__(self, view: GroupView, now: float, settle: float, answers: Answers) -> None:
        super().__init__(view, now, settle, answers)
        self.in_place = False
        self.goal = min(self.total, view.most - 1)
        """Groups of the new version when it takes over; without `maxSurge`, the last one of the stable version stops
        when it gets no requests."""

    def plan(self) -> ServingPlan:
        state, view = self.state, self.view
        if state.phase == "promoting" and view.current == state.canary:
            return self._promoted()
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

    def _step_sizes(self, percent: int) -> Sizes:
        count = min(self.goal, max(1, ceil(self.total * percent / 100)))
        return Sizes(self.view.most - count, count)

    def _reach_sizes(self, goal: Sizes) -> ServingPlan | None:
        assert self.canary is not None
        ready, state = self.canary.ready, self.state
        if ready > state.groups:
            return ServingPlan(state.replace(groups=ready, since=self.now))
        if ready >= goal.canary:
            # From now on, another change of the spec replaces none of them.
            return None if self.view.partition == GROUPS_HOLD else ServingPlan(state, [HoldGroups(GROUPS_HOLD)])
        if not ready and state.weight:
            plan = self._shift_traffic(0, removing=True)
            if plan is not None:
                return plan
        if state.reached or ready < state.groups:
            # Groups were lost: they have the same time as at first.
            return ServingPlan(state.replace(reached=0.0, groups=ready, since=self.now))
        return self._start_groups(goal.canary)

    def _start_groups(self, count: int) -> ServingPlan:
        """Let the controller start groups of the new version, and wait for them."""
        partition = max(0, self.view.most - count)
        if self.view.partition != partition:
            return ServingPlan(self.state, [HoldGroups(partition)])
        return self._await_pods(count)

    def _decide_promoting(self) -> ServingPlan:
        assert self.canary is not None
        ready, weight = self.canary.ready, self.state.weight
        if ready > self.state.groups:
            return ServingPlan(self.state.replace(groups=ready, since=self.now))
        if not self.by_replicas:
            share = 100 if ready >= self.goal else floor(100 * ready / max(1, self.total))
            plan = self._shift_traffic(max(share, weight))
            if plan is not None:
                return plan
        if ready < self.goal:
            return self._start_groups(ready + 1)
        # The rest gets no requests. Once it is replaced, groups that stop come back with the new version.
        plan = self._start_groups(self.view.most)
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
        assert self.stable is not None
        if view.partition != GROUPS_HOLD:
            return ServingPlan(state, [HoldGroups(GROUPS_HOLD)])
        if state.reason in REJECTING and state.rejected != state.canary:
            return ServingPlan(state.replace(rejected=state.canary))
        superseded = [each for each in view.leaders.values() if revision_of(each) not in (state.stable, state.canary)]
        if superseded:
            return ServingPlan(state, [StopGroup(each) for each in superseded])
        ready = self.stable.ready
        if ready > state.groups:
            return ServingPlan(state.replace(groups=ready, since=self.now))
        # Without a ready group of the stable version, those of the new one serve until it has one.
        late = ready > 0 and self.now - state.since > view.deadline
        new = view.of_version(state.canary)
        serving, broken = [each for each in new if is_ready(each)], [each for each in new if not is_ready(each)]
        if not serving:
            plan = self._shift_traffic(0, removing=True)
            if plan is not None:
                return plan
        if broken:
            return ServingPlan(state, [StopGroup(each) for each in broken])
        if ready < self.total and ready + len(serving) < view.most and not late:
            return ServingPlan(state)  # the group that was stopped last is not back
        if serving:
            # As many requests return as there are groups for them.
            left = min(len(serving) - 1, max(0, self.total - ready))
            plan = self._shift_traffic(min(state.weight, floor(100 * left / max(1, self.total))), removing=True)
            return plan or ServingPlan(state, [StopGroup(each) for each in serving[: len(serving) - left]])
        return self._rolled_back()

    def _abort(self, reason: str, message: str) -> ServingPlan:
        plan = super()._abort(reason, message)
        plan.state = plan.state.replace(groups=0)
        return plan
