"""Pull requests of roll-backs: open while the specs have the version that was rolled back, and no longer."""

from __future__ import annotations

import asyncio
from typing import Any, Literal, cast
from unittest.mock import AsyncMock, Mock

import pytest

from avactl.contracts.delivery import SERVICE_KEY
from avactl.contracts.document import dump
from avactl.daemons.delivery import rollbacks
from avactl.daemons.delivery.branch import SpecBranch
from avactl.daemons.delivery.commits.messages import rollback_branch
from avactl.daemons.delivery.commits.repository import DeliveryError, Repository
from avactl.daemons.delivery.commits.rollback import RollbackFinding, compiled_digest
from avactl.daemons.delivery.config_maps import ConfigMaps
from avactl.daemons.delivery.promotions import Promotions
from avactl.forges.proposals import Proposal
from tests.delivery.test_repository import Remote
from tests.delivery.test_repository import remote as remote
from tests.delivery.test_repository import repository as repository
from tests.delivery.test_rollback import PATH
from tests.delivery.test_rollback import WEB as BY_COMMIT
from tests.delivery.world import PLATFORM

WEB = BY_COMMIT.replace(by="pullRequest")
BY_PULL_REQUEST = PLATFORM.replace("TEAM", "vision").replace("forge: github", "forge: github, rollback: pullRequest")
REASON = "the specs do not ask to revert this version by pull request any more"


class Forge:
    """The newest pull request of each branch."""

    def __init__(self) -> None:
        self.states: dict[str, Literal["open", "closed", "merged", "withdrawn"]] = {}
        self.opened = 0
        self.said: list[str] = []

    def find(self, branch: str) -> Proposal | None:
        state = self.states.get(branch)
        return None if state is None else Proposal(state, "https://forge.example.com/1")

    def open(self, branch: str, base: str, title: str, text: str) -> str:
        assert self.states.get(branch) != "open"
        self.states[branch] = "open"
        self.opened += 1
        return "https://forge.example.com/1"

    def withdraw(self, branch: str, reason: str) -> None:
        if self.states.get(branch) == "open":
            self.states[branch] = "withdrawn"
            self.said.append(reason)


class Service:
    """A service whose second version was rolled back, and the daemon, which proposes the first one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, remote: Remote, repository: Repository) -> None:
        self.remote, self.repository, self.forge = remote, repository, Forge()
        # Without the pipeline, which would be an error once the service is gone.
        remote.commit({"specs/platform.yaml": BY_PULL_REQUEST, "specs/teams/digits.yaml": "# nothing\n"})
        repository.fetch()
        self.good = remote.text() + "\n"
        self.bad = self.good.replace("server@sha256", "worse@sha256")
        running = compiled_digest(repository, WEB)
        self.commit(self.bad)
        self.rejected = compiled_digest(repository, WEB)
        self.branch = rollback_branch(WEB, self.rejected)
        deployment: dict[str, Any] = {"metadata": {"name": "web", "namespace": "vision"}}
        finding = RollbackFinding(self.rejected, running, "latency 1.4")
        monkeypatch.setattr(rollbacks, "deployment_of", AsyncMock(return_value=deployment))
        monkeypatch.setattr(rollbacks, "replica_sets", AsyncMock(return_value=[]))
        monkeypatch.setattr(rollbacks, "_is_rolled_back", lambda _: True)
        monkeypatch.setattr(rollbacks, "find_rollback", lambda *_: finding)
        self.maps = Mock(**{"data.return_value": {SERVICE_KEY: dump(WEB)}, "of.return_value": []})

    def commit(self, text: str) -> None:
        self.remote.commit({PATH: text})
        self.repository.fetch()

    def advance(self) -> None:
        """Let a daemon that has just started look at the service."""
        branch = SpecBranch(self.repository, 0)
        daemon = rollbacks.Rollbacks(Mock(), cast(ConfigMaps, self.maps), branch, self.forge, 0)
        daemon._reports = Mock(**{"record": AsyncMock(), "invalid_plans.return_value": ""})
        daemon._emit_event = AsyncMock()  # type: ignore[method-assign]
        asyncio.run(daemon.advance("rollback.vision.web"))

    def close_abandoned(self) -> None:
        branch = SpecBranch(self.repository, 0)
        asyncio.run(Promotions(Mock(), cast(ConfigMaps, Mock()), branch, self.forge, 0).close_abandoned())

    @property
    def branches(self) -> list[str]:
        return list(self.repository.branches("avactl/"))


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, remote: Remote, repository: Repository) -> Service:
    made = Service(monkeypatch, remote, repository)
    made.advance()
    made.advance()
    assert (made.forge.states, made.forge.opened, made.branches) == ({made.branch: "open"}, 1, [made.branch])
    return made


def test_it_is_open_while_the_specs_have_the_version(service: Service) -> None:
    service.commit(f"{service.bad}# a comment\n")
    service.close_abandoned()
    service.commit(f"{service.bad}---\n[")  # what the specs have is not known
    service.close_abandoned()
    assert (service.forge.states, service.branches) == ({service.branch: "open"}, [service.branch])


@pytest.mark.parametrize("way", ["removed", "renamed", "mended", "rolling", "by commit", "moved away"])
def test_it_is_closed_when_they_do_not(service: Service, way: str) -> None:
    rolling = service.bad.partition("  rollout:")[0]
    files = {
        "removed": {PATH: "# nothing\n"},
        "renamed": {PATH: service.bad.replace("name: web", "name: other")},
        "mended": {PATH: service.bad.replace("worse@sha256", "better@sha256")},
        "rolling": {PATH: rolling},
        "by commit": {"specs/platform.yaml": PLATFORM.replace("TEAM", "vision")},
        "moved away": {PATH: service.bad.replace("team: vision", "team: other"), "specs/other.yaml": OTHER},
    }[way]
    service.remote.commit(files)
    before = service.remote.text()
    service.close_abandoned()
    assert (service.forge.states, service.forge.said) == ({service.branch: "withdrawn"}, [REASON])
    assert service.branches == []
    # A daemon that still has the plan of the service brings nothing back.
    if way != "by commit":
        service.advance()
    assert (service.forge.opened, service.branches, service.remote.text()) == (1, [], before)


OTHER = "apiVersion: avactl.dev/v1\nkind: Team\nmetadata: {name: other}\nspec: {members: {groups: [others]}}\n"


def test_branches_of_people_stay(service: Service) -> None:
    """With a name like one, but another commit, or without the trailer."""
    tip = service.repository.branches("avactl/")[service.branch]
    tree = service.repository.store.run("rev-parse", f"{tip}^{{tree}}").strip()
    more = service.repository.write_commit(tree, tip, "more\n\nAvactl-Rollback: vision/web\n")
    plain = service.repository.write_commit(tree, f"{tip}~1", "mine\n")
    names = {"avactl/vision/rollback/web-1a": more, "avactl/vision/rollback/web-2b": plain}
    for name, commit in names.items():
        assert service.repository.remote(name).move(None, commit)
    service.commit("# nothing\n")
    service.close_abandoned()
    assert service.branches == sorted(names)


@pytest.mark.parametrize("ended", ["merged", "withdrawn"])
def test_a_version_that_comes_back_is_proposed_again(service: Service, ended: Literal["merged", "withdrawn"]) -> None:
    """Also where the forge keeps branches of pull requests that were merged."""
    service.commit(service.good)
    service.forge.states[service.branch] = ended
    service.advance()
    assert (service.forge.opened, service.branches) == (1, [service.branch])
    service.commit(f"# once more\n{service.bad}")
    service.advance()
    assert (service.forge.states, service.forge.opened) == ({service.branch: "open"}, 2)
    assert service.remote.text(service.branch) == service.good.rstrip("\n")


def test_one_that_people_have_declined_is_not_opened_again(service: Service) -> None:
    service.forge.states[service.branch] = "closed"
    service.advance()
    service.close_abandoned()
    assert (service.forge.states, service.forge.opened) == ({service.branch: "closed"}, 1)


def test_a_branch_that_others_have_changed_is_not_proposed_again(service: Service) -> None:
    tip = service.repository.branches("avactl/")[service.branch]
    tree = service.repository.store.run("rev-parse", f"{tip}^{{tree}}").strip()
    assert service.repository.remote(service.branch).move(tip, service.repository.write_commit(tree, tip, "more\n"))
    service.forge.states[service.branch] = "merged"
    with pytest.raises(DeliveryError, match="has another change"):
        service.advance()
    assert service.forge.opened == 1
