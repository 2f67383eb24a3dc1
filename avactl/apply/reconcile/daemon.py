"""`avactl reconcile --watch`: follow a branch and correct drift."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from dataclasses import replace
from time import monotonic

from avactl.apply.reconcile.command import DesiredState, ReconcileRequest, compile_revision, source_of
from avactl.apply.reconcile.desired import leaves_replicas
from avactl.apply.reconcile.drift import DriftWatcher
from avactl.apply.reconcile.readiness import wait_healthy
from avactl.apply.reconcile.reconciler import Reconciler
from avactl.apply.reconcile.reporting import commit_status, metrics
from avactl.apply.reconcile.reporting.report import StepResult
from avactl.base.exit_codes import INCOMPLETE, MISSING, OK
from avactl.contracts.names import RECONCILER
from avactl.diagnostics.text import render_problems
from avactl.kube import logs
from avactl.kube.client import ApiError, Client, UnreachableError
from avactl.kube.daemons import run_until_signal
from avactl.kube.elected_daemon import ElectedDaemon, wait_first
from avactl.kube.leader import GIVE_WAY_S, LostLeaseError
from avactl.spec.repository.git import GitError

_SETTLE_TIME_S = 1.0
"""Seconds from drift to the run that corrects it: manual edits often come in bursts."""
_FIGHT_RANGE_S = (60.0, 300.0)
"""If drift recurs within this many seconds, another writer is fighting back: runs are then at least this far apart."""


class ReconcileDaemon(ElectedDaemon):
    """One replica of the reconciler."""

    registry, leader_gauge = metrics.REGISTRY, metrics.LEADER

    def __init__(self, request: ReconcileRequest) -> None:
        super().__init__(request.listen, None)
        self._request = request
        self._source = source_of(request)
        self._declared: DesiredState | None = None
        self._seen = ""
        """The newest commit, even if it does not compile."""
        self._told: object = None
        """The commit and status that were set last."""
        self._reconciler: Reconciler | None = None
        self._watcher: DriftWatcher | None = None
        self._health: asyncio.Task[None] | None = None
        self._drifted, self._pause = float("-inf"), _SETTLE_TIME_S
        self.exit_code = OK

    async def run(self) -> None:
        """Run until stopped, and give way to runs that ask for the lease. Raises LostError, in an exception group."""
        async with self._serve_probes():
            while not await self._look() and not self.stop.is_set():
                await self._sleep(self._request.interval)
            if self._declared is None:
                return
            # The name of the Cluster, which only the specs tell, selects the context.
            access = await asyncio.to_thread(self._request.connect, self._declared.cluster)
            async with Client(access, agent=RECONCILER) as client:
                while await self._join(client, self._declared):
                    await self._run_replica()
                    if self.stop.is_set() or self.exit_code != OK:
                        return
                    logs.info("giving way to a run by hand")
                    await self._sleep(GIVE_WAY_S)

    def leading(self) -> bool:
        """Return True if this replica holds the lease."""
        return self._leader is not None and self._leader.leading()

    async def _join(self, client: Client, declared: DesiredState) -> bool:
        """Prepare to be elected; return False if this is the wrong cluster."""
        self._reconciler = reconciler = Reconciler(client, declared.options)
        refused = await self._create_namespace(reconciler, declared)
        if refused:
            logs.error("refused", context=client.context, cluster=declared.cluster, problem=refused)
            self.exit_code = INCOMPLETE
            return False
        logs.info("identified", context=client.context, cluster=declared.cluster)
        self._leader = reconciler.lease
        self._watcher = DriftWatcher(client, reconciler.api, declared.options.inventory, declared.options.hands)
        return True

    async def _clean_up(self) -> None:
        if self._watcher is not None:
            await self._watcher.stop()
        if self._health is not None:
            self._health.cancel()

    def _is_ready(self) -> bool:
        return self._declared is not None

    def _is_stuck(self) -> bool:
        return False

    async def _create_namespace(self, reconciler: Reconciler, declared: DesiredState) -> str:
        """Create the system namespace, unless this is the wrong cluster; return the reason, or an empty string."""
        while not self.stop.is_set():
            try:
                refused = await reconciler.refusal()
                if not refused:
                    await reconciler.prepare(declared.wanted)
                return refused
            except (ApiError, UnreachableError) as error:
                logs.warn("cluster", error=str(error))
                await self._sleep(_SETTLE_TIME_S)
        return ""

    async def _work(self) -> None:
        """Reconcile until stopped, until another run asks for the lease, or the namespace of the lease changes."""
        reconciler, watcher = self._reconciler, self._watcher
        assert reconciler is not None
        assert watcher is not None
        reconciler.api.allowed = reconciler.lease.leading
        requested = reconciler.lease.requested
        look_again, all_again = 0.0, 0.0
        new = True
        while not self.stop.is_set() and not requested.is_set():
            now = monotonic()
            if now >= look_again:
                new = await self._look() or new
                look_again = monotonic() + self._request.interval
            assert self._declared is not None
            if self._declared.options.namespace != reconciler.options.namespace:
                logs.info("the system namespace was renamed; restarting")
                self.exit_code = INCOMPLETE
                return
            if new or watcher.differs.is_set() or now >= all_again:
                watcher.differs.clear()
                reconciler.options = replace(self._declared.options, wait=False)
                done = await self._once(reconciler)
                if new:
                    await watcher.watch(self._declared.wanted)
                new = False
                # Failures are retried soon; a full pass runs from time to time.
                all_again = monotonic() + (self._request.resync if done else self._request.interval)
                await self._sleep(self._pause, requested)
            await self._sleep(max(0.0, min(look_again, all_again) - monotonic()), watcher.differs, requested)

    async def _look(self) -> bool:
        """Fetch from git; return whether there is a new commit to apply."""
        try:
            revision = await asyncio.to_thread(self._source.newest)
            if revision.commit == self._seen:
                return False
            declared = await asyncio.to_thread(compile_revision, self._request, revision)
        except (GitError, ValueError) as error:
            metrics.GIT_ERRORS.inc()
            logs.warn("git", error=str(error))
            return False
        self._seen = revision.commit
        metrics.BROKEN.set(not declared.ok)
        if declared.ok:
            logs.info("new commit", commit=revision.commit, cluster=declared.cluster, objects=len(declared.wanted))
            self._declared = declared
            return True
        errors = sum(d.severity == "error" for d in declared.compilation.diagnostics)
        sys.stderr.write(render_problems(declared.compilation.diagnostics, declared.compilation.program.read_file))
        logs.error("commit does not compile; nothing was changed", commit=revision.commit, errors=errors)
        await commit_status.set_status(revision, declared.cluster, "failure", f"{errors} errors; nothing was changed")
        if self.leading() and self._reconciler is not None:
            reference = self._reconciler.records.reference(self._reconciler.record)
            await self._reconciler.events.report_broken(reference, revision.commit, errors)
        return False

    async def _once(self, reconciler: Reconciler) -> bool:
        """Run once; return whether everything was applied."""
        assert self._declared is not None
        if self._health is not None:
            self._health.cancel()
            self._health = None
        began, writes = monotonic(), reconciler.api.writes
        try:
            result = await reconciler.run(self._declared.wanted, holding=True)
        except (ApiError, UnreachableError) as error:
            logs.warn("run failed", error=str(error))
            metrics.RUNS.labels("failed").inc()
            return False
        metrics.count(result, monotonic() - began, reconciler.api.writes - writes)
        assert self._watcher is not None
        self._watcher.rewritten.clear()
        self._watcher.rewritten.update((step.key, step.differences) for step in result.rewritten)
        self._watcher.scaled.clear()
        left = (step.wanted for step in result.steps if step.wanted is not None)
        self._watcher.scaled.update(each.key for each in left if leaves_replicas(each))
        self._say(result)
        if result.drift:
            again = monotonic() - self._drifted < _FIGHT_RANGE_S[0]
            self._pause = min(2 * self._pause, _FIGHT_RANGE_S[1]) if again else _SETTLE_TIME_S
            self._drifted = monotonic()
        await reconciler.tell(result)
        self._health = asyncio.create_task(self._follow_health(reconciler, result))
        return result.complete

    def _say(self, result: StepResult) -> None:
        if not (result.changed or result.failed or result.problem):
            return
        say = logs.info if result.complete else logs.warn
        say("reconciled", commit=result.commit, **result.counts(), problem=result.problem)
        for step in result.drift:
            fields = [f"{d.field} (by {d.by})" if d.by else d.field for d in step.differences]
            logs.info("drift corrected", object=step.title, fields=fields, reason=step.reason)
        for step in result.failed:
            logs.warn("not applied", object=step.title, error=step.error)

    async def _follow_health(self, reconciler: Reconciler, result: StepResult) -> None:
        """Wait for health in the background, then set the commit status."""
        assert self._declared is not None
        revision, cluster = self._declared.revision, self._declared.cluster
        with suppress(ApiError, UnreachableError):
            result.health = await wait_healthy(
                reconciler.api, result.steps, reconciler.options.inventory, patience=self._request.timeout
            )
            metrics.HEALTH.clear()
            for health in result.health.values():
                metrics.HEALTH.labels(health.state.value).inc()
            words = commit_status.status_words(result)
            # An object that waits for an administrator fails in each run: the status is told once.
            if (result.commit, words) != self._told:
                self._told = (result.commit, words)
                await commit_status.set_status(revision, cluster, *words)

    async def _sleep(self, seconds: float, *events: asyncio.Event) -> None:
        """Sleep until the time is over, the daemon is stopped, or one of the events is set."""
        await wait_first(self.stop, *events, timeout=seconds)


async def follow_branch(request: ReconcileRequest) -> int:
    """Run until a signal; return the exit code."""
    daemon = ReconcileDaemon(request)
    try:
        await run_until_signal(daemon.run, daemon.stop.set)
    except* LostLeaseError as group:
        logs.error("lease lost", error=str(group.exceptions[0]))
        daemon.exit_code = MISSING
    return daemon.exit_code
