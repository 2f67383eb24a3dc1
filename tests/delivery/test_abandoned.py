"""Pull requests of pipelines that are gone, or that deploy otherwise, are closed; all other branches stay."""

from __future__ import annotations

import asyncio
from typing import cast
from unittest.mock import Mock

import pytest

from avactl.daemons.delivery.branch import SpecBranch
from avactl.daemons.delivery.commits.repository import ModelOfService, Repository
from avactl.daemons.delivery.config_maps import ConfigMaps
from avactl.daemons.delivery.promotions import Promotions
from tests.delivery.test_promotion_history import Forge
from tests.delivery.test_repository import TARGET, URL, Remote
from tests.delivery.test_repository import remote as remote
from tests.delivery.test_repository import repository as repository
from tests.delivery.world import PIPELINE

BRANCH = "avactl/vision/digits-7"
FILE = "specs/teams/digits.yaml"
OWN = PIPELINE.replace("TEAM", "vision").replace("by: commit", "by: pullRequest")
REASON = "the pipeline does not deploy by pull request any more"


@pytest.mark.parametrize(
    "gone",
    [
        "# nothing\n",
        OWN.replace("by: pullRequest", "by: commit"),
        OWN.replace("name: digits, team", "name: other, team"),
    ],
    ids=["removed", "by-commit", "renamed"],
)
def test_a_pipeline_that_is_gone(remote: Remote, repository: Repository, gone: str) -> None:
    remote.commit({FILE: OWN})
    repository.fetch()
    forge, specs = Forge(), SpecBranch(repository, 0)
    promotions = Promotions(Mock(), cast(ConfigMaps, Mock()), specs, forge, 0)

    def close() -> dict[str, str]:
        asyncio.run(promotions.close_abandoned())
        return repository.branches("avactl/")

    message = "deploy\n\nAvactl-Pipeline: vision/digits run 7\n"
    repository.propose(TARGET, ModelOfService(f"{URL}7", "7"), message, BRANCH)
    tip = repository.branches("avactl/")[BRANCH]
    # Branches of people with such names, with anything else, and of other runs.
    merged = repository.write_commit(repository.store.run("rev-parse", f"{tip}^{{tree}}").strip(), tip, "more\n")
    for name, commit in {"digits-8": tip, "digits-x": tip, "other-7": tip, "digits-9": merged}.items():
        assert repository.remote(f"avactl/vision/{name}").move(None, commit)
    others = {name: at for name, at in repository.branches("avactl/").items() if name != BRANCH}
    assert len(others) == 4
    forge.states = dict.fromkeys([BRANCH, *others], "open")
    for still in (OWN, f"{OWN}# more\n", f"{OWN}---\n[", OWN.replace("team: vision", "team: nobody")):
        remote.commit({FILE: still})
        assert close() == {BRANCH: tip, **others}
    remote.commit({FILE: gone})
    assert close() == others
    assert forge.states == {BRANCH: "withdrawn", **dict.fromkeys(others, "open")}
    assert forge.said == [REASON]


def test_a_pipeline_of_another_environment_stays(remote: Remote, repository: Repository) -> None:
    """The daemon of one environment leaves those of the others alone."""
    config = "environments: {staging: {include: [only/staging]}, prod: {include: [only/prod]}}\n"
    own = "specs/only/prod/digits.yaml"
    remote.commit({"specs/avactl.yaml": config, own: OWN, "specs/only/staging/a.yaml": "# a\n", FILE: "# moved\n"})
    repository.fetch()
    message = "deploy\n\nAvactl-Pipeline: vision/digits run 7\n"
    repository.propose(TARGET, ModelOfService(f"{URL}7", "7"), message, BRANCH)
    forge = Forge()
    promotions = Promotions(Mock(), cast(ConfigMaps, Mock()), SpecBranch(repository, 0), forge, 0)
    asyncio.run(promotions.close_abandoned())
    assert list(repository.branches("avactl/")) == [BRANCH]
    assert forge.said == []
    remote.commit({own: "# nothing\n"})
    asyncio.run(promotions.close_abandoned())
    assert not repository.branches("avactl/")
    assert forge.said == [REASON]
