"""Pull requests are opened once, found again, and told from those that were closed; all forges."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from avactl.daemons.delivery.proposals import TokenFileProposals
from avactl.forges import FORGES, find_forge
from avactl.forges.proposals import Proposal, Proposals
from avactl.forges.rest import ForgeError
from tests.review.pulls import TOKEN, FakePulls, serve_pulls


@pytest.fixture(params=[forge.name for forge in FORGES if not forge.no_proposals])
def forge(request: pytest.FixtureRequest) -> Iterator[FakePulls]:
    with serve_pulls(request.param) as fake:
        yield fake


def of(forge: FakePulls, token: str = TOKEN, project: str = "acme/specs") -> Proposals:
    return find_forge(forge.forge).connect_proposals(forge.url, project, token, lambda seconds: None)


def test_opened_and_found(forge: FakePulls) -> None:
    proposals = of(forge)
    assert proposals.state("avactl/x-1") == ""
    url = proposals.open("avactl/x-1", "main", "web: deploy", "Run 1")
    assert url.endswith("/acme/specs/pull/1")
    assert (proposals.state("avactl/x-1"), proposals.state("avactl/x-2")) == ("open", "")
    assert forge.pulls[0] | {"number": 1} == {
        "branch": "avactl/x-1",
        "state": "open",
        "title": "web: deploy",
        "number": 1,
        "base": "main",
        "text": "Run 1",
    }
    forge.close()
    assert proposals.state("avactl/x-1") == "closed"
    proposals.open("avactl/x-1", "main", "again", "")
    forge.close(merged=True)
    assert proposals.state("avactl/x-1") == "merged"


def test_opened_once(forge: FakePulls) -> None:
    """An answer that was lost, and a second replica."""
    proposals = of(forge)
    forge.lost = 1
    first = proposals.open("avactl/x-1", "main", "web: deploy", "")
    assert first == proposals.open("avactl/x-1", "main", "web: deploy", "")
    assert len(forge.pulls) == 1


def test_withdrawn(forge: FakePulls) -> None:
    """One that was withdrawn is told from one that people have closed, and can be opened again."""
    proposals = of(forge)
    assert proposals.find("avactl/x-1") is None
    proposals.withdraw("avactl/x-1", "none is open")
    url = proposals.open("avactl/x-1", "main", "web: promote", "Healthy since noon")
    assert proposals.find("avactl/x-1") == Proposal("open", url)
    proposals.withdraw("avactl/x-1", "pods are not available")
    assert proposals.find("avactl/x-1") == Proposal("withdrawn", url)
    assert proposals.state("avactl/x-1") == "closed"
    assert (forge.pulls[0]["title"], forge.pulls[0]["text"]) == (
        "Withdrawn: web: promote",
        "Withdrawn: pods are not available\n\nHealthy since noon",
    )
    proposals.open("avactl/x-1", "main", "web: promote", "")
    forge.close()
    assert proposals.find("avactl/x-1") == Proposal("closed", f"{forge.url}/acme/specs/pull/2")
    proposals.open("avactl/x-1", "main", "web: promote", "")
    forge.close(merged=True)
    proposals.withdraw("avactl/x-1", "too late")
    assert proposals.find("avactl/x-1") == Proposal("merged", f"{forge.url}/acme/specs/pull/3")


@pytest.mark.parametrize("state", ["open", "closed", "merged"])
def test_forks_have_no_say(forge: FakePulls, state: str) -> None:
    """Anyone may open a pull request from a fork, of a branch with the name that the daemon takes next."""
    proposals = of(forge)
    forge.open_from_fork("avactl/x-1", state)
    assert proposals.state("avactl/x-1") == ""
    url = proposals.open("avactl/x-1", "main", "web: deploy", "")
    for _ in range(45):
        forge.open_from_fork("avactl/x-1", state)
    assert proposals.state("avactl/x-1") == "open"
    assert proposals.open("avactl/x-1", "main", "web: deploy", "") == url
    assert len(forge.pulls) == 47


def test_errors(forge: FakePulls, tmp_path: Path) -> None:
    with pytest.raises(ForgeError) as error:
        of(forge, token="wrong").state("x")
    assert "401" in str(error.value)
    assert "token" in error.value.hint
    with pytest.raises(ForgeError) as error:
        of(forge, project="acme/other").open("x", "main", "t", "")
    assert "does the repository exist" in error.value.hint
    proposals = TokenFileProposals(find_forge(forge.forge), forge.url, "acme/specs", tmp_path)
    with pytest.raises(ForgeError, match="No such file"):
        proposals.state("x")
    (tmp_path / "password").write_text("two words\n")
    with pytest.raises(ForgeError, match="invalid in a token"):
        proposals.state("x")
    (tmp_path / "password").write_text(f"{TOKEN}\n")
    assert proposals.state("x") == ""
