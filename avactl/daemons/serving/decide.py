"""The next step of a rollout, from what is observed. Pure: a daemon that dies anywhere decides the same again.

Each pass returns actions, or, once the objects are as they should be, the next state. Every action may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import floor

from avactl.contracts.serving import RolloutState
from avactl.daemons.serving.revisions import ServingRevision, find, new_hash, revision_number, template_of
from avactl.daemons.serving.sizes import Sizes, next_sizes, step_sizes
from avactl.daemons.serving.view import (
    Action,
    AddService,
    Answers,
    AttachVersion,
    Create,
    Event,
    Reject,
    RemoveVersion,
    Scale,
    Select,
    ServingPlan,
    StartJob,
    View,
    Weigh,
)
from avactl.kube.pod_diagnosis import PodStage

REJECTING = frozenset({"AnalysisFailed", "ValidationFailed", "NotReady"})
"""Reasons of a roll-back after which the version is not tried again."""
PATIENCE = 10.0
"""Seconds after which it is asked why pods do not start."""
STUCK = 60.0
"""Seconds in which the stable version must have its pods back, before it gets them in place."""
_RETRY_INTERVAL_S = 15.0
"""Seconds between measurements that Prometheus did not answer, at most."""


def decide(view: View, now: float, settle: float, answers: Answers = Answers()) -> ServingPlan:  # noqa: B008 - immutable
    """Return the next plan. `settle`: seconds that gateways need to see changed Services and weights."""
    if not view.deployment["spec"].get("paused"):
        # It is about to become a rolling service, or somebody has resumed it: the Deployment controller acts too.
        return ServingPlan(view.state)
    if view.state.phase == "steady":
        return _decide_steady(view, now, answers)
    return Rollout(view, now, settle, answers).plan()


# -- outside of a rollout ----------------------------------------------------------------------------------------


def _decide_steady(view: View, now: float, answers: Answers) -> ServingPlan:
    state, template = view.state, template_of(view.deployment)
    stable = view.of(state.stable) or _running_version(view)
    target = find(view.revisions, template)
    if stable is None:
        if target is not None:
            return ServingPlan(state.replace(stable=target.hash))
        hash = new_hash(template, view.revisions)
        begun = state.replace(stable=hash, since=now, reason="Starting", message="")
        return ServingPlan(begun, [Create(hash, view.total, True)])
    if stable.hash != state.stable:
        # Of a service without pods it is not known whether it has served: then it is compared with the next version.
        return ServingPlan(state.replace(stable=stable.hash, proven=state.proven or not view.total))
    if target is not stable and not (target is not None and target.rejected):
        hash = target.hash if target is not None else new_hash(template, view.revisions)
        if not state.proven and not stable.ready:
            # The first version has never served: there is nothing to compare with, and nothing to lose.
            actions = [] if target is not None else [Create(hash, view.total, True)]
            return ServingPlan(state.replace(stable=hash, since=now, message=""), list(actions))
        return begin_rollout(RolloutState(stable=state.stable, proven=state.proven, phase="starting"), hash, now)
    plan = ServingPlan(state)
    serve_stable(view, stable, plan)
    if plan.actions:
        return plan
    if not stable.attached:
        plan.actions.append(Scale(stable, view.total) if stable.replicas != view.total else AttachVersion(stable, True))
        return plan
    _remove_idle_versions(view, stable, target, plan)
    if plan.actions:
        return plan
    if target is not stable:
        return plan  # rolled back: the condition keeps its reason
    return describe_stable(view, stable, now, answers)


def begin_rollout(begun: RolloutState, hash: str, now: float) -> ServingPlan:
    """Return the plan that begins a rollout to a version. `begun`: the stable version and the first phase."""
    state = begun.replace(canary=hash, since=now, reason="Starting", message=f"version {hash}")
    return ServingPlan(state, events=[Event("RolloutStarted", f"version {hash} replaces {begun.stable}")])


def describe_stable(view: View, stable: ServingRevision, now: float, answers: Answers) -> ServingPlan:
    """Return the state of a service that runs what its spec says, or why its first version does not start."""
    plan, state = ServingPlan(view.state), view.state
    if stable.ready or not view.total:
        proven = state.proven or stable.ready > 0
        plan.state = state.replace(proven=proven, reason="Stable", message=f"version {stable.hash}", weight=0)
    elif not state.proven and now - state.since >= PATIENCE:
        # The first version: no rollout waits for it, but somebody does.
        if answers.pods is None:
            return ServingPlan(state, ask="pods")
        if answers.pods.reason:
            text = f"0 of {view.total} pods are ready: {answers.pods.reason}"[:900]
            plan.state = state.replace(reason="Starting", message=text)
            plan.events += [] if state.message else [Event("RolloutStarting", text)]
    return plan


def _running_version(view: View) -> ServingRevision | None:
    """Return the version that runs where no state says it: the one with most ready pods, of the Deployment first; of a
    service without pods, the one that had the last ones."""
    active = [each for each in view.revisions.values() if each.replicas]
    if not active and not view.total:
        return max((each for each in view.revisions.values() if each.attached), key=revision_number, default=None)
    return max(active, key=lambda each: (each.attached, each.ready, each.replicas), default=None)


def serve_stable(view: View, stable: ServingRevision, plan: ServingPlan) -> None:
    """Give the stable version all requests."""
    if view.routes and not view.gateway_rules_problem():
        plan.actions += view.missing_backends(stable)
        if not plan.actions and view.unweighed(((stable.hash, 100),)):
            plan.actions.append(Weigh(((stable.hash, 100),)))
        if not plan.actions:
            plan.actions += view.idle_backends(stable)
    elif view.config.traffic == "service" and not view.selects(stable.hash):
        plan.actions.append(Select(stable.hash))


def _remove_idle_versions(
    view: View, stable: ServingRevision, target: ServingRevision | None, plan: ServingPlan
) -> None:
    """Remove versions that get no requests: their pods finish those that they have."""
    for each in view.revisions.values():
        if each is stable:
            continue
        if each.replicas:
            plan.actions.append(Scale(each, 0) if not each.attached else AttachVersion(each, False))
        elif not each.attached and each is not target:
            plan.actions.append(RemoveVersion(each))


# -- in a rollout ------------------------------------------------------------------------------------------------


class Rollout:
    """A rollout under way: one decision."""

    def __init__(self, view: View, now: float, settle: float, answers: Answers) -> None:
        self.view, self.now, self.settle, self.answers = view, now, settle, answers
        self.state, self.config, self.total = view.state, view.config, view.total
        self.stable, self.canary = view.of(view.state.stable), view.of(view.state.canary)
        self.by_replicas = view.config.traffic == "replicas"
        self.in_place = view.state.in_place or (self.by_replicas and not view.config.surge)

    def plan(self) -> ServingPlan:
        """Return the next plan."""
        if self.stable is None:
            # Somebody has deleted the stable version: what is left serves.
            return ServingPlan(self.state.replace(stable=self.state.canary, canary="", phase="steady", since=self.now))
        if self.state.phase != "aborting":
            target = find(self.view.revisions, template_of(self.view.deployment))
            gone = self.canary is None and self.state.phase != "starting"
            if target is self.stable or gone:
                return self._abort(
                    "Reverted", "the spec asks for the stable version again" if not gone else "it was deleted"
                )
            if self.canary is not None and target is not self.canary:
                return self._abort("Superseded", "the spec has another version")
        if self.state.phase in ("starting", "stepping"):
            if not self.total and self.config.analysis is not None:
                return self._decide_asleep()
            if not self.state.since:
                return ServingPlan(self.state.replace(since=self.now))
        phases: dict[str, Callable[[], ServingPlan]] = {
            "starting": self._decide_starting,
            "stepping": self._decide_stepping,
            "promoting": self._decide_promoting,
            "aborting": self._decide_aborting,
        }
        return phases[self.state.phase]()

    # -- phases

    def _decide_starting(self) -> ServingPlan:
        assert self.stable is not None
        problem = self.view.gateway_problem()
        if problem:
            return self._hold("GatewayUnavailable", problem, warning=True)
        if self.canary is None:
            if self.answers.room is None:
                return ServingPlan(self.state, ask="room")
            missing, in_place = self.answers.room, False
            if missing:
                if not self.config.in_place:
                    return self._hold("NoRoom", missing, warning=True)
                in_place = True
            hash = self.state.canary
            state = self.state.replace(in_place=in_place, reason="Starting", message=missing and f"in place: {missing}")
            return ServingPlan(state, [Create(hash, 0, False)])
        if self.stable.attached:
            return ServingPlan(self.state, [AttachVersion(self.stable, False)])
        if self.canary.attached:
            return ServingPlan(self.state, [AttachVersion(self.canary, False)])
        return ServingPlan(self.state.replace(phase="stepping", step=0, since=self.now, reached=0.0))

    def _decide_asleep(self) -> ServingPlan:
        """Wait without pods: there are no requests to measure, and no stable version to compare with."""
        assert self.stable is not None
        if not self.stable.attached:
            plan = self._shift_traffic(0, removing=True)
            if plan is not None:
                return plan
            if any(self.view.sizes()):
                return ServingPlan(self.state, self._scale_actions(Sizes(0, 0)))
        plan = self._hold("NoRequests", "the service has no pods: the rollout goes on when a request has started one")
        # The step begins again then; the time without pods does not count.
        plan.state = plan.state.replace(since=0.0, reached=0.0, passed=0, failed=0)
        return plan

    def _decide_stepping(self) -> ServingPlan:
        step = self.config.steps[min(self.state.step, len(self.config.steps) - 1)]
        plan = (
            self._reach_step(step.percent)
            or self._validate()
            or self._shift_traffic(0 if self.by_replicas else step.percent)
        )
        if plan is not None:
            return plan
        state = self.state
        if not state.reached:
            reached = state.replace(
                reached=self.now,
                measured=self.now,
                passed=0,
                failed=0,
                reason="Progressing",
                message=f"{step.percent}% of the requests",
            )
            return ServingPlan(
                reached, events=[Event("RolloutStep", f"version {state.canary} has {step.percent}% of the requests")]
            )
        plan = self._measure()
        if plan is not None:
            return plan
        queries = self.config.analysis is not None and self.config.analysis.queries
        if self.now - state.reached < step.pause or (queries and not state.passed):
            return ServingPlan(state)
        if state.step + 1 < len(self.config.steps):
            return ServingPlan(state.replace(step=state.step + 1, since=self.now, reached=0.0))
        return ServingPlan(
            state.replace(phase="promoting", since=self.now, reached=0.0, reason="Promoting", message="")
        )

    def _decide_promoting(self) -> ServingPlan:
        assert self.canary is not None
        if self.in_place and not self.by_replicas:
            plan = self._promote_in_place()
        else:
            kept = 0 if self.by_replicas else self.total
            plan = self._reach_sizes(Sizes(kept, self.total)) or self._shift_traffic(0 if self.by_replicas else 100)
        if plan is not None:
            return plan
        done = self.state.replace(
            stable=self.state.canary,
            canary="",
            phase="steady",
            weight=0,
            weighed=0.0,
            outcome="promoted",
            proven=True,
            version=self.state.canary,
            ended=self.now,
            reason="Promoted",
            message=f"version {self.state.canary}",
        )
        return ServingPlan(done, events=[Event("RolloutPromoted", f"version {self.state.canary} serves all requests")])

    def _decide_aborting(self) -> ServingPlan:
        state, sizes, ready = self.state, self.view.sizes(), self.view.ready()
        if self.canary is not None and state.reason in REJECTING and not self.canary.rejected:
            return ServingPlan(state, [Reject(self.canary, state.message)])
        assert self.stable is not None
        if not self.in_place:
            if ready.stable < self.total:
                # All of its pods first: what the new version leaves must not overload it.
                if sizes.stable < self.total:
                    return ServingPlan(state, self._scale_actions(Sizes(self.total, sizes.canary)))
                if self.now - state.since > STUCK:
                    return ServingPlan(state.replace(in_place=True))
                return ServingPlan(state)
            plan = self._shift_traffic(0, removing=True)
            if plan is not None:
                return plan
            if sizes.canary:
                return ServingPlan(state, self._scale_actions(Sizes(sizes.stable, 0)))
        else:
            plan = self._back_in_place(sizes, ready)
            if plan is not None:
                return plan
        return self._rolled_back()

    def _rolled_back(self) -> ServingPlan:
        state, rejected = self.state, self.state.reason in REJECTING
        done = state.replace(
            canary="",
            phase="steady",
            weight=0,
            weighed=0.0,
            in_place=False,
            outcome="rolledBack",
            version=state.canary,
            ended=self.now,
            reason="RolledBack" if rejected else "Stable",
            message=f"version {state.canary}: {state.message}",
        )
        return ServingPlan(done, events=[Event("RolloutRolledBack", done.message, rejected)])

    # -- parts of phases; None: done

    def _reach_step(self, percent: int) -> ServingPlan | None:
        goal = step_sizes(self.total, percent, by_replicas=self.by_replicas, in_place=self.in_place)
        return self._reach_sizes(goal)

    def _reach_sizes(self, goal: Sizes) -> ServingPlan | None:
        sizes, ready, most = self.view.sizes(), self.view.ready(), max(1, self.total)
        if self.in_place:
            limit, least = most, self.total - 1
        else:
            limit, least = most + (self.config.surge if self.by_replicas else most), self.total
        unready = self.view.unready()
        following = next_sizes(sizes, ready, unready, goal, limit=limit, floor=least, stable_first=False)
        if following != sizes:
            return ServingPlan(self.state, self._scale_actions(following))
        if sizes == goal and ready.canary >= goal.canary:
            return None
        if self.state.weight and unready.canary and not ready.canary and ready.stable:
            # All of its pods were lost: requests with its share would fail.
            plan = self._shift_traffic(0, removing=True)
            if plan is not None:
                return plan
        if self.state.reached:
            # Pods were lost, or an autoscaler asks for more: they have the same time as at first.
            return ServingPlan(self.state.replace(reached=0.0, since=self.now))
        return self._await_pods(goal.canary)

    def _describe_ready(self, wanted: int | Sequence[int]) -> str:
        """Return how many pods of the new version are ready, of which number; of roles, of the number of each."""
        assert self.canary is not None
        return f"{self.canary.ready} of {wanted} pods are ready"

    def _await_pods(self, wanted: int | Sequence[int]) -> ServingPlan:
        """Wait for pods of the new version, and give it up after their time."""
        waited = self.now - self.state.since
        if waited < min(PATIENCE, self.view.deadline):
            return ServingPlan(self.state)
        pods = self.answers.pods
        if pods is None:
            return ServingPlan(self.state, ask="pods")
        counted = self._describe_ready(wanted)
        why = f": {pods.reason}" if pods.reason else ""
        if pods.stage is PodStage.unscheduled:
            if self.config.in_place and not self.state.in_place:
                return ServingPlan(self.state.replace(in_place=True, message=f"in place{why}"))
            return self._hold("NoRoom", pods.reason, warning=True)
        if self.state.reason == "NoRoom":
            # They have a place now: the time without one does not count.
            return ServingPlan(self.state.replace(since=self.now, reason="Starting", message=f"{counted}{why}"))
        # A copy of the model takes as long as its size and its store demand; a start does not.
        if pods.prepared > self.state.prepared:
            self.state = self.state.replace(prepared=pods.prepared)
        started = max(self.state.since, self.state.prepared)
        late = pods.stage is not PodStage.preparing and self.now - started > self.view.start_limit
        if late or waited > self.view.deadline:
            return self._abort("NotReady", f"{counted} after {waited:.0f} s{why}")
        return self._hold("Starting", f"{counted}{why}")

    def _validate(self) -> ServingPlan | None:
        assert self.canary is not None
        analysis = self.config.analysis
        if analysis is None or not analysis.job or self.state.validated:
            return None
        if self.view.service_name(self.canary.hash) not in self.view.services:
            return ServingPlan(self.state, [AddService(self.canary)])
        assert self.stable is not None
        if self.view.service_name(self.stable.hash) not in self.view.services:
            return ServingPlan(self.state, [AddService(self.stable)])
        job = self.view.jobs.get(self.canary.hash)
        if job is None:
            return ServingPlan(self.state, [StartJob(self.canary)])
        for condition in (job.get("status") or {}).get("conditions") or ():
            if condition.get("status") == "True" and condition.get("type") == "Complete":
                return ServingPlan(self.state.replace(validated=True))
            if condition.get("status") == "True" and condition.get("type") == "Failed":
                why = f"{condition.get('reason', '')} {condition.get('message', '')}"[:400]
                return self._abort("ValidationFailed", f"Job {job['metadata']['name']}: {why}")
        if self.answers.pods is None:
            return ServingPlan(self.state, ask="pods")
        why = self.answers.pods.reason
        return self._hold(
            "Validating", f"Job {job['metadata']['name']} runs{f': {why}' if why else ''}", warning=bool(why)
        )

    def _shift_traffic(self, percent: int, *, removing: bool = False) -> ServingPlan | None:
        """Give the new version its share of the requests."""
        state, view = self.state, self.view
        if self.by_replicas:
            return None
        assert self.stable is not None
        if self.canary is None or (removing and not state.weight and not view.backed(state.canary)):
            if self.config.traffic == "service" and not view.selects(self.stable.hash):
                return ServingPlan(state, [Select(self.stable.hash)])
            return None
        if self.config.traffic == "service":
            chosen = self.canary.hash if percent else self.stable.hash
            if not view.selects(chosen):
                return ServingPlan(state, [Select(chosen)])
        else:
            problem = view.gateway_problem()
            if problem and not removing:
                return self._hold("GatewayUnavailable", problem, warning=True)
            if not view.routes:
                return None
            missing = view.missing_backends(self.stable, self.canary)
            if missing:
                return ServingPlan(state, missing)
            if not removing and len(view.backed(self.canary.hash)) < len(view.routes):
                # Without requests at first, so that the gateway knows the pods when they come.
                return ServingPlan(
                    state.replace(weighed=0.0, weight=0), [Weigh(((self.stable.hash, 100), (self.canary.hash, 0)))]
                )
            if not removing and not state.weighed:
                return ServingPlan(state.replace(weighed=self.now))
            if state.weight != percent and not removing and self.now - state.weighed < self.settle:
                return ServingPlan(state)
            weights = ((self.stable.hash, 100 - percent), (self.canary.hash, percent))
            if view.unweighed(weights):
                return ServingPlan(state, [Weigh(weights)])
        if state.weight != percent:
            return ServingPlan(state.replace(weight=percent, weighed=self.now))
        return ServingPlan(state) if self.now - state.weighed < self.settle else None

    def _measure(self) -> ServingPlan | None:
        analysis, state = self.config.analysis, self.state
        if (
            analysis is None
            or not analysis.queries
            or self.now - max(state.measured, state.reached) < analysis.interval_s
        ):
            return None
        if self.answers.measured is None:
            return ServingPlan(state, ask="measure")
        result, text = self.answers.measured
        if result == "passed":
            return ServingPlan(
                state.replace(measured=self.now, passed=state.passed + 1, failed=0, reason="Progressing", message=text)
            )
        if result == "failed":
            if state.failed + 1 >= analysis.failures:
                return self._abort("AnalysisFailed", text)
            return ServingPlan(state.replace(measured=self.now, failed=state.failed + 1, message=text))
        again = self.now - analysis.interval_s + min(analysis.interval_s, _RETRY_INTERVAL_S)
        reason = "PrometheusUnavailable" if result == "unavailable" else "NoRequests"
        plan = self._hold(reason, text, warning=result == "unavailable")
        plan.state = plan.state.replace(measured=again)
        return plan

    def _promote_in_place(self) -> ServingPlan | None:
        """Promote in place: requests follow the pods, and the last stable pod stops without requests."""
        sizes, ready = self.view.sizes(), self.view.ready()
        share = min(100, floor(100 * ready.canary / max(1, self.total)))
        if sizes.stable <= 1:
            share = 100
        absent = len(self.view.routes) < len(self.config.routes)
        if share > self.state.weight or absent or self.view.unweighed(self._weights(self.state.weight)):
            plan = self._shift_traffic(max(share, self.state.weight))
            if plan is not None:
                return plan
        goal, least = Sizes(0, self.total), self.total - 1
        following = next_sizes(
            sizes, ready, self.view.unready(), goal, limit=self.total, floor=least, stable_first=False
        )
        if following.stable == 0 and sizes.stable and self.now - self.state.weighed < self.settle:
            return ServingPlan(self.state)
        if following.stable == 0 and sizes.stable and self.state.weight < 100:
            following = Sizes(1, following.canary)
        if following != sizes:
            return ServingPlan(self.state, self._scale_actions(following))
        return None if (sizes.stable, ready.canary) == (0, self.total) else ServingPlan(self.state)

    def _back_in_place(self, sizes: Sizes, ready: Sizes) -> ServingPlan | None:
        least = self.total - 1
        if self.now - self.state.since > 3 * STUCK:
            least = min(least, ready.stable)  # the stable version has lost pods, too: less is better than wrong
        goal = Sizes(self.total, 0)
        following = next_sizes(
            sizes, ready, self.view.unready(), goal, limit=self.total, floor=least, stable_first=True
        )
        if following.canary < sizes.canary and not self.by_replicas:
            share = min(self.state.weight, floor(100 * following.canary / max(1, self.total)))
            plan = self._shift_traffic(share, removing=True)
            if plan is not None:
                return plan
        if following != sizes:
            return ServingPlan(self.state, self._scale_actions(following))
        late = self.now - self.state.since > 3 * STUCK
        if sizes.canary == 0 and (late or ready.stable >= self.total):
            return self._shift_traffic(0, removing=True)
        return ServingPlan(self.state)

    # -- helpers

    def _weights(self, percent: int) -> tuple[tuple[str, int], ...]:
        return ((self.state.stable, 100 - percent), (self.state.canary, percent))

    def _scale_actions(self, sizes: Sizes) -> list[Action]:
        """Return the changes: the version that grows first, so that a crash between them costs no capacity."""
        found: list[Scale] = [
            Scale(each, count)
            for each, count in ((self.stable, sizes.stable), (self.canary, sizes.canary))
            if each is not None and each.replicas != count
        ]
        found.sort(key=lambda each: each.revision.replicas > each.replicas)
        return list(found)

    def _hold(self, reason: str, message: str, warning: bool = False) -> ServingPlan:
        state = self.state.replace(reason=reason, message=message)
        told = [Event(f"Rollout{reason}", message, warning)] if state.reason != self.state.reason else []
        return ServingPlan(state, events=told)

    def _abort(self, reason: str, message: str) -> ServingPlan:
        state = self.state.replace(phase="aborting", since=self.now, reason=reason, message=message)
        return ServingPlan(
            state, events=[Event("RolloutAborting", f"version {state.canary}: {message}", reason in REJECTING)]
        )
