"""What the history of the branch says of a promotion, and the commits that promote: on a real repository."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Literal, cast
from unittest.mock import Mock

import pytest

from avactl.contracts.delivery import (
    PROMOTION_KEY,
    STATE_KEY,
    HealthRecord,
    PromotedSpec,
    PromotionPlan,
    PromotionState,
    value_digest,
)
from avactl.contracts.document import dump
from avactl.daemons.delivery.branch import SpecBranch
from avactl.daemons.delivery.commits.messages import promotion_message, promotion_prefix
from avactl.daemons.delivery.commits.promoted_values import PromotionHistory, PromotionValues, changed_values
from avactl.daemons.delivery.commits.records import RecordedService
from avactl.daemons.delivery.commits.repository import CommitAuthor, DeliveryError, Repository
from avactl.daemons.delivery.config_maps import ConfigMaps
from avactl.daemons.delivery.promotions import Promotions
from avactl.forges.proposals import Proposal
from tests.delivery.test_repository import Remote
from tests.delivery.world import SERVICE

PROMOTE_FROM = "promoteFrom: {service: try, healthyFor: 2h, by: commit}"
TRY = SERVICE.replace("TEAM", "vision").replace("name: web", "name: try")
WEB = SERVICE.replace("TEAM", "vision").replace("spec:\n", f"spec:\n  {PROMOTE_FROM}\n", 1)
PLAN = PromotionPlan(
    team="vision",
    source=PromotedSpec(cluster="staging", namespace="vision", service="try", file="teams/try.yaml", document="try"),
    target=PromotedSpec(cluster="main", namespace="vision", service="web", file="teams/web.yaml", document="web"),
    fields=("spec.model.url", "spec.model.version", "spec.runtime.image"),
    window=7200,
    by="commit",
    rollout=True,
    terms=value_digest({"service": "try", "healthyFor": "2h", "by": "commit"}),
)


def text(base: str, version: str) -> str:
    return base.replace('"1"', f'"{version}"').replace("digits/1", f"digits/{version}")


class Branch:
    """The branch of the specs, with both services."""

    def __init__(self, folder: Path) -> None:
        self.remote = Remote(folder)
        self.repository = Repository(str(self.remote.url), "main", "specs", folder / "cache", CommitAuthor("a", "a@b"))
        self.history = PromotionHistory(self.repository)

    def commit(self, source: str = "", target: str = "") -> str:
        """Commit versions of the two services; return the commit as messages show it."""
        files = {"specs/teams/try.yaml": text(TRY, source)} if source else {}
        files |= {"specs/teams/web.yaml": text(WEB, target)} if target else {}
        return self.remote.commit(files)[:10]

    def read(self) -> PromotionValues:
        self.repository.fetch()
        return self.history.read(PLAN)

    def promote(self, wanted: PromotionValues) -> bool:
        return self.repository.change(
            PLAN.target.file, partial(self.history.edit, PLAN, wanted, "promote\n\nAvactl-Promotion: vision/web\n")
        )


@pytest.fixture
def branch(tmp_path: Path) -> Branch:
    return Branch(tmp_path)


def test_only_the_values_change_and_only_once(branch: Branch) -> None:
    branch.commit("1", "1")
    assert branch.read().source == branch.read().target
    branch.commit("2")
    wanted = branch.read()
    assert wanted.conflict == ""
    assert changed_values(PLAN, wanted) == [
        ("spec.model.url", "s3://data/published/digits/1", "s3://data/published/digits/2"),
        ("spec.model.version", "1", "2"),
    ]
    assert branch.promote(wanted)
    assert branch.remote.text() == text(WEB, "2").strip()
    # A daemon that was killed after its push decides the same again.
    assert not branch.promote(wanted)
    # A commit of a promotion begins no run of a pipeline.
    assert branch.repository.last_change(["specs/teams/web.yaml"]) != branch.repository.head


@pytest.mark.parametrize(("source", "target"), [("3", ""), ("", "h"), ("3", "2")])
def test_a_change_in_the_meantime_is_not_overwritten(branch: Branch, source: str, target: str) -> None:
    branch.commit("1", "1")
    branch.commit("2")
    wanted = branch.read()
    branch.commit(source, target)
    assert not branch.promote(wanted)
    assert branch.remote.text() == text(WEB, target or "1").strip()


def test_what_was_undone_stays_so(branch: Branch) -> None:
    branch.commit("1", "1")
    branch.commit("2")
    assert branch.promote(branch.read())
    undone = branch.commit(target="1")
    assert branch.read().conflict == f"commit {undone} has undone it"
    branch.remote.commit({"specs/teams/other.yaml": "# something else\n"})
    assert branch.read().conflict == f"commit {undone} has undone it"
    # Another version of the source is another decision, and so is the same one again.
    branch.commit("3")
    assert branch.read().conflict == ""
    branch.commit("2")
    assert branch.read().conflict == ""


@pytest.mark.parametrize("moved", ["target", "source", "both"])
def test_what_was_undone_stays_so_in_another_file(branch: Branch, moved: str) -> None:
    branch.commit("1", "1")
    branch.commit("2")
    assert branch.promote(branch.read())
    undone = branch.commit(target="1")
    files: dict[str, str] = {}
    plan = PLAN
    if moved != "source":
        files |= {"specs/teams/prod/web.yaml": text(WEB, "1"), "specs/teams/web.yaml": "# moved\n"}
        plan = plan.replace(target=plan.target.replace(file="teams/prod/web.yaml"))
    if moved != "target":
        files |= {"specs/teams/all.yaml": text(TRY, "2"), "specs/teams/try.yaml": "# moved\n"}
        plan = plan.replace(source=plan.source.replace(file="teams/all.yaml"))
    branch.remote.commit(files)
    branch.repository.fetch()
    assert branch.history.read(plan).conflict == f"commit {undone} has undone it"


def test_what_people_have_set_by_hand_stays_so(branch: Branch) -> None:
    branch.commit("1", "1")
    branch.commit("2")
    by_hand = branch.commit(target="hotfix")
    assert branch.read().conflict == f"commit {by_hand} has changed the target since the source got this version"
    branch.commit("3")
    assert branch.read().conflict == ""


def test_an_earlier_version_that_was_merged_late_holds_nothing_up(branch: Branch) -> None:
    branch.commit("1", "1")
    branch.commit("2")
    branch.commit("3")
    branch.commit(target="2")  # its pull request
    assert branch.read().conflict == ""


def test_what_was_before_the_promotion_is_no_decision(branch: Branch) -> None:
    branch.commit("2")
    plain = WEB.replace(f"  {PROMOTE_FROM}\n", "")
    branch.remote.commit({"specs/teams/web.yaml": text(plain, "2")})
    branch.remote.commit({"specs/teams/web.yaml": text(plain, "1")})
    wanted = branch.read()
    assert wanted.conflict == "the spec is not promoted from try any more"
    assert not branch.promote(wanted._replace(conflict=""))
    branch.commit(target="1")
    assert branch.read().conflict == ""


@pytest.mark.parametrize(
    "new", ["by: pullRequest", "healthyFor: 72h", "fields: [spec.model.version]", "fields: [spec.env]"]
)
def test_a_plan_that_is_not_that_of_the_branch_promotes_nothing(branch: Branch, new: str) -> None:
    """The specs are pushed, but not applied yet."""
    branch.commit("1", "1")
    branch.commit("2")
    wanted = branch.read()
    given = {"service": "try", "healthyFor": "2h", "by": "commit", **dict([new.split(": ")])}
    inner = ", ".join(f"{key}: {value}" for key, value in given.items())
    branch.remote.commit({"specs/teams/web.yaml": text(WEB, "1").replace(PROMOTE_FROM, f"promoteFrom: {{{inner}}}")})
    assert branch.read().conflict.startswith("the specs are not applied yet")
    assert not branch.promote(wanted)


def test_a_value_that_the_plan_does_not_know_promotes_nothing(branch: Branch) -> None:
    branch.commit("1", "1")
    wanted = branch.read()
    more = text(TRY, "2").replace('version: "2"', 'version: "2", dataset: {name: d, path: m}')
    assert "dataset" in more
    branch.remote.commit({"specs/teams/try.yaml": more})
    assert branch.read().conflict.startswith("the specs are not applied yet")
    assert not branch.promote(wanted)


def test_both_services_in_one_file(branch: Branch) -> None:
    plan = PLAN.replace(source=PLAN.source.replace(file="teams/web.yaml"))

    def commit(source: str, target: str) -> str:
        both = f"{text(TRY, source)}---\n{text(WEB, target)}"
        return branch.remote.commit({"specs/teams/web.yaml": both})[:10]

    def conflict() -> str:
        branch.repository.fetch()
        return branch.history.read(plan).conflict

    commit("1", "1")
    commit("2", "1")
    assert conflict() == ""
    commit("2", "2")
    undone = commit("2", "1")
    assert conflict() == f"commit {undone} has undone it"


def test_a_service_of_another_team_is_not_touched(branch: Branch) -> None:
    """Whatever the file has become since the plan was compiled."""
    branch.commit("1", "1")
    branch.commit("2")
    wanted = branch.read()
    branch.remote.commit({"specs/teams/web.yaml": WEB.replace("team: vision", "team: other")})
    with pytest.raises(DeliveryError, match="has no spec of ServingDeployment `web`"):
        branch.promote(wanted)
    branch.remote.commit({"specs/teams/web.yaml": WEB, "specs/teams/try.yaml": TRY.replace("vision", "other")})
    with pytest.raises(DeliveryError, match="has no spec of ServingDeployment `try`"):
        branch.promote(wanted)


def test_branches_are_listed_and_deleted(branch: Branch) -> None:
    branch.commit("1", "1")
    branch.commit("2")
    wanted, prefix = branch.read(), promotion_prefix("vision", "web")
    name = f"{prefix}{'0' * 16}"
    edited = partial(branch.history.edit, PLAN, wanted, "promote\n")
    for _ in range(2):  # a daemon that was killed pushes it again
        assert branch.repository.change_on(name, PLAN.target.file, edited)
    ((found, tip),) = branch.repository.branches(prefix).items()
    assert found == name
    assert not branch.repository.delete_branch(name, branch.repository.head)
    assert branch.repository.delete_branch(name, tip)
    assert branch.repository.branches(prefix) == {}


def test_the_message_says_what_the_gate_has_seen(branch: Branch) -> None:
    branch.commit("1", "1")
    branch.commit("2 [skip ci] @all")
    record = HealthRecord(values={}, template="", outcome="healthy", since=1_767_225_600.0, seen=1_767_232_920.0)
    message = promotion_message(PLAN, record, "version 2", changed_values(PLAN, branch.read()))
    assert message.splitlines() == [
        "web: promote version 2 from try",
        "",
        "From: try on cluster staging, to web on cluster main",
        "Healthy since: 2026-01-01T00:00:00Z, with all pods available",
        "Last seen healthy: 2026-01-01T02:02:00Z, after 2 h; required: 2 h",
        "spec.model.url: s3://data/published/digits/1 → s3://data/published/digits/2 (skip ci) @ all",
        "spec.model.version: 1 → 2 (skip ci) @ all",
        "",
        "Avactl-Promotion: vision/web",
    ]


def test_what_others_push_to_the_branch_of_a_pull_request_is_noticed(branch: Branch) -> None:
    branch.commit("1", "1")
    branch.commit("2")
    wanted, name = branch.read(), f"{promotion_prefix('vision', 'web')}{'0' * 16}"
    edited = partial(branch.history.edit, PLAN, wanted, "promote\n")

    def has_change() -> bool:
        (tip,) = branch.repository.branches(name).values()
        return branch.repository.has_change(name, tip, PLAN.target.file, edited)

    assert branch.repository.change_on(name, PLAN.target.file, edited)
    tip = branch.repository.branches(name)[name]
    branch.remote.commit({"specs/teams/other.yaml": "# the branch of the specs goes on\n"})
    branch.repository.fetch()
    assert has_change()
    tree = branch.repository.store.run("rev-parse", f"{tip}^^{{tree}}").strip()
    foreign = branch.repository.write_commit(tree, tip, "another change\n")
    assert branch.repository.remote(name).move(tip, foreign)
    assert not has_change()
    # Pushed after the branches were listed.
    assert not branch.repository.has_change(name, tip, PLAN.target.file, edited)
    assert branch.repository.delete_branch(name, foreign)
    assert branch.repository.has_change(name, foreign, PLAN.target.file, edited)


class Forge:
    """Pull requests by their branches: the newest state of each."""

    def __init__(self) -> None:
        self.states: dict[str, Literal["open", "withdrawn"]] = {}
        self.said: list[str] = []

    def find(self, branch: str) -> Proposal | None:
        state = self.states.get(branch)
        return None if state is None else Proposal(state, "https://forge.example.com/1")

    def open(self, branch: str, base: str, title: str, text: str) -> str:
        self.states[branch] = "open"
        self.said.append(title)
        return "https://forge.example.com/1"

    def withdraw(self, branch: str, reason: str) -> None:
        self.states[branch] = "withdrawn"
        self.said.append(reason)


class Maps:
    """ConfigMaps of one promotion."""

    def __init__(self, plan: PromotionPlan) -> None:
        self.plan, self.state = plan, PromotionState()

    def data(self, name: str) -> dict[str, str]:
        return (
            {STATE_KEY: dump(self.state)} if name.startswith("promotion-state.") else {PROMOTION_KEY: dump(self.plan)}
        )

    async def write_promotion(self, name: str, state: PromotionState) -> None:
        self.state = state


def test_a_pull_request_with_what_others_pushed_is_closed(branch: Branch) -> None:
    """And another one is opened, with the change of the promotion alone."""
    terms = value_digest({"service": "try", "healthyFor": "2h", "by": "pullRequest"})
    plan, name = PLAN.replace(by="pullRequest", rollout=False, terms=terms), "promotion.vision.web"
    branch.commit("1")
    web = text(WEB, "1").replace("by: commit", "by: pullRequest")
    branch.remote.commit({"specs/teams/web.yaml": web})
    branch.commit("2")
    branch.repository.fetch()
    values = branch.history.read(plan).source.digests
    healthy = HealthRecord(values=values, template="", outcome="healthy", since=0.0, seen=7200.0)
    specs, forge, maps = SpecBranch(branch.repository, 0), Forge(), Maps(plan)
    promotions = Promotions(Mock(**{"clock.now.return_value": 7200.0}), cast(ConfigMaps, maps), specs, forge, 0)

    async def passes() -> str:
        await promotions.advance(name)
        return maps.state.message

    async def story() -> None:
        await specs.record_health(RecordedService("staging", "vision", "try"), lambda _: healthy)
        await passes()
        assert [await passes() for _ in range(2)] == ["", ""]
        ((own, tip),) = branch.repository.branches("avactl/vision/promotion/").items()
        assert forge.states == {own: "open"}
        tree = branch.repository.store.run("rev-parse", f"{tip}^^{{tree}}").strip()
        foreign = branch.repository.write_commit(tree, tip, "another change\n")
        assert branch.repository.remote(own).move(tip, foreign)
        assert await passes() == "its branch had another change than that of the promotion"
        assert forge.states == {own: "withdrawn"}
        assert maps.state.url == ""
        assert await passes() == ""
        assert forge.states == {own: "open"}
        assert forge.said == [forge.said[0], "its branch had another change than that of the promotion", forge.said[0]]
        found = branch.repository.branches("avactl/vision/promotion/")
        assert found == {own: found[own]}
        assert found[own] != foreign

    asyncio.run(story())


def test_pull_requests_of_promotions_that_are_gone_are_closed(branch: Branch) -> None:
    """The plan goes with the promotion: the branch says of which spec it is."""
    terms = value_digest({"service": "try", "healthyFor": "2h", "by": "pullRequest"})
    plan, name = PLAN.replace(by="pullRequest", rollout=False, terms=terms), "promotion.vision.web"
    branch.commit("1")
    web = text(WEB, "1").replace("by: commit", "by: pullRequest")
    branch.remote.commit({"specs/teams/web.yaml": web})
    branch.commit("2")
    branch.repository.fetch()
    values = branch.history.read(plan).source.digests
    healthy = HealthRecord(values=values, template="", outcome="healthy", since=0.0, seen=7200.0)
    specs, forge, maps = SpecBranch(branch.repository, 0), Forge(), Maps(plan)
    promotions = Promotions(Mock(**{"clock.now.return_value": 7200.0}), cast(ConfigMaps, maps), specs, forge, 0)
    prefix = "avactl/vision/promotion/"

    async def propose() -> str:
        await promotions.advance(name)
        ((own, _),) = branch.repository.branches(prefix).items()
        assert forge.states[own] == "open"
        return own

    async def story() -> None:
        assert promotions.is_review_due([name])
        await specs.record_health(RecordedService("staging", "vision", "try"), lambda _: healthy)
        own = await propose()
        tip = branch.repository.branches(prefix)[own]
        # Those of other kinds, and of services of other clusters, which this daemon has no plan of, stay.
        assert branch.repository.remote("avactl/vision/training-1").move(None, tip)
        for still in (web, web.replace(", by: pullRequest", ""), f"{web}---\n[", web + "# more\n"):
            branch.remote.commit({"specs/teams/web.yaml": still})
            await promotions.close_abandoned()
            assert forge.states == {own: "open"}
        assert not promotions.is_review_due([name])
        assert promotions.is_review_due([]), "a plan is gone"
        for gone in (
            web.replace("  promoteFrom", "  # promoteFrom"),
            web.replace("by: pullRequest", "by: commit"),
            web.replace("name: web", "name: other"),
            "# no spec\n",
        ):
            branch.remote.commit({"specs/teams/web.yaml": gone})
            await promotions.close_abandoned()
            assert forge.states == {own: "withdrawn"}
            assert forge.said[-1] == "the service is not promoted by pull request any more"
            assert not branch.repository.branches(prefix)
            forge.states[own] = "open"
            assert branch.repository.remote(own).move(None, tip)
        assert branch.repository.branches("avactl/vision/training") == {"avactl/vision/training-1": tip}

    asyncio.run(story())
