"""Branches of the pull requests of pipelines and roll-backs, and what the specs still have of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from avactl.compiler.driver import compile_tree
from avactl.contracts.delivery import PLAN_KEY, SERVICE_KEY, PipelinePlan, RollbackPlan
from avactl.contracts.document import load
from avactl.contracts.names import CONFIG_LABEL, PIPELINE_CONFIG, ROLLBACK_CONFIG
from avactl.daemons.delivery.commits.messages import BRANCHES, rollback_branch
from avactl.daemons.delivery.commits.repository import ROLLBACK_TRAILER, TRAILER, Repository
from avactl.daemons.delivery.commits.rollback import digest_in
from avactl.program.manifest import Manifest

_RUN_BRANCH = re.compile(rf"{BRANCHES}([^/]+)/([^/]+)-([0-9]{{1,11}})").fullmatch
_ROLLBACK_BRANCH = re.compile(rf"{BRANCHES}([^/]+)/rollback/([^/]+)-[0-9a-z]+").fullmatch


class AbandonedProposal(NamedTuple):
    """A pull request that the specs do not ask for any more."""

    spec: str
    """TEAM/NAME of its pipeline or service."""
    reason: str


def find_abandoned(repository: Repository, branch: str, tip: str) -> AbandonedProposal | None:
    """Return what has proposed a branch, if the specs at the head would not propose it any more; else None.

    None also for branches with anything else than the commit of one run or roll-back, and if the head does not compile.
    Raises DeliveryError.
    """
    run, rollback = _RUN_BRANCH(branch), _ROLLBACK_BRANCH(branch)
    found = run or rollback
    if found is None or repository.only_file(branch) is None:
        return None
    spec = f"{found[1]}/{found[2]}"
    key, trailer = (TRAILER, f"{spec} run {run[3]}") if run is not None else (ROLLBACK_TRAILER, spec)
    # A branch of people may have such a name.
    if trailer not in repository.trailers(tip, key):
        return None
    proposed = _find_proposed(repository, repository.head)
    if proposed is None or (spec in proposed.pipelines if run is not None else branch in proposed.rollbacks):
        return None
    if run is not None:
        return AbandonedProposal(spec, "the pipeline does not deploy by pull request any more")
    return AbandonedProposal(spec, "the specs do not ask to revert this version by pull request any more")


class _Proposed(NamedTuple):
    """Proposals that the specs of all clusters and environments may make."""

    pipelines: frozenset[str]
    """TEAM/NAME of those that deploy by pull request."""
    rollbacks: frozenset[str]
    """Branches of roll-backs of the versions that services have."""


@lru_cache(maxsize=4)
def _find_proposed(repository: Repository, head: str) -> _Proposed | None:
    """Return what the head may propose; None if the specs have errors: something may be missing for that.

    Raises DeliveryError.
    """
    pipelines: set[str] = set()
    rollbacks: set[str] = set()
    for tree in repository.trees():
        result = compile_tree(tree)
        if any(each.severity == "error" for each in result.diagnostics):
            return None
        for plan in _plans(result.manifests, PIPELINE_CONFIG):
            pipeline = load(PipelinePlan, plan[PLAN_KEY])
            if pipeline.deploy is not None and pipeline.deploy.by == "pullRequest":
                pipelines.add(f"{pipeline.team}/{pipeline.name}")
        for plan in _plans(result.manifests, ROLLBACK_CONFIG):
            service = load(RollbackPlan, plan[SERVICE_KEY])
            if service.by == "pullRequest":
                rollbacks.add(rollback_branch(service, digest_in(result.manifests, service)))
    return _Proposed(frozenset(pipelines), frozenset(rollbacks))


def _plans(manifests: Iterable[Manifest], kind: str) -> list[dict[str, str]]:
    """Return the data of the ConfigMaps with plans of a kind."""
    return [
        each.body["data"] for each in manifests if (each.body["metadata"].get("labels") or {}).get(CONFIG_LABEL) == kind
    ]
