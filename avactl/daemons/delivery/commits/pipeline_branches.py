"""Branches of the pull requests of pipelines, and the pipelines that the specs still have."""

from __future__ import annotations

import re
from functools import lru_cache

from avactl.compiler.driver import compile_tree
from avactl.contracts.delivery import PLAN_KEY, PipelinePlan
from avactl.contracts.document import load
from avactl.contracts.names import CONFIG_LABEL, PIPELINE_CONFIG
from avactl.daemons.delivery.commits.messages import BRANCHES
from avactl.daemons.delivery.commits.repository import Repository

_RUN_BRANCH = re.compile(rf"{BRANCHES}([^/]+)/([^/]+)-([0-9]{{1,11}})").fullmatch


def abandoned_pipeline(repository: Repository, branch: str, tip: str) -> str:
    """Return TEAM/NAME of the pipeline that has proposed a branch, if no pipeline does so any more; else "".

    Empty also for branches with anything else than the commit of one run, and if the head does not compile. Raises
    DeliveryError.
    """
    run = _RUN_BRANCH(branch)
    if run is None or repository.only_file(branch) is None:
        return ""
    pipeline = f"{run[1]}/{run[2]}"
    # A branch of people may have such a name.
    if f"{pipeline} run {run[3]}" not in repository.trailers(tip):
        return ""
    declared = _proposing_pipelines(repository, repository.head)
    return "" if declared is None or pipeline in declared else pipeline


@lru_cache(maxsize=4)
def _proposing_pipelines(repository: Repository, head: str) -> frozenset[str] | None:
    """Return TEAM/NAME of the pipelines of all clusters and environments that deploy by pull request at the head.

    None if the specs have errors: a pipeline may be missing for that. Raises DeliveryError.
    """
    found = set()
    for tree in repository.trees():
        result = compile_tree(tree)
        if any(each.severity == "error" for each in result.diagnostics):
            return None
        for each in result.manifests:
            if (each.body["metadata"].get("labels") or {}).get(CONFIG_LABEL) == PIPELINE_CONFIG:
                plan = load(PipelinePlan, each.body["data"][PLAN_KEY])
                if plan.deploy is not None and plan.deploy.by == "pullRequest":
                    found.add(f"{plan.team}/{plan.name}")
    return frozenset(found)
