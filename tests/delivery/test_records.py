"""How rollouts ended, in git: one branch for each cluster, which its daemon writes and pipelines of others read."""

from __future__ import annotations

from pathlib import Path

import pytest

from avactl.contracts.delivery import RolloutRecord
from avactl.daemons.delivery.commits.records import RolledOutModel, RolloutRecords
from avactl.daemons.delivery.commits.repository import CommitAuthor, DeliveryError, Repository
from tests.delivery.test_repository import Remote

EMBED = RolledOutModel("serve", "search", "embed", "embed")
URL = "s3://models/published/embed/"


@pytest.fixture
def remote(tmp_path: Path) -> Remote:
    return Remote(tmp_path)


def records(remote: Remote, cache: Path, interval: float = 0.0) -> RolloutRecords:
    """The records as one cluster's daemon has them."""
    author = CommitAuthor("avactl", "avactl@localhost")
    return RolloutRecords(Repository(str(remote.url), "main", "specs", cache, author), interval)


def commits(remote: Remote) -> list[str]:
    return remote.git("-C", str(remote.url), "log", "--format=%s", EMBED.branch).splitlines()


def forge(remote: Remote, text: str) -> None:
    """Write a record by hand."""
    remote.git("fetch", "-q", "origin")
    remote.git("checkout", "-q", "-B", "forged", f"origin/{EMBED.branch}")
    (remote._work / EMBED.path).write_text(text)
    remote.git("commit", "-q", "-am", "forged")
    remote.git("push", "-q", "origin", f"HEAD:{EMBED.branch}")
    remote.git("checkout", "-q", "-")


def test_one_cluster_writes_and_another_reads(remote: Remote, tmp_path: Path) -> None:
    serve, train = records(remote, tmp_path / "serve"), records(remote, tmp_path / "train")
    assert train.read(EMBED) is None
    main = remote.count()
    assert serve.write(EMBED, f"{URL}1", "promoted")
    assert train.read(EMBED) == RolloutRecord(url=f"{URL}1", outcome="promoted")
    assert train.read(EMBED._replace(cluster="other")) is None
    assert train.read(EMBED._replace(model="other")) is None
    assert serve.write(EMBED._replace(model="other"), f"{URL}9", "rejected")
    assert serve.write(EMBED, f"{URL}2", "rejected")
    assert train.read(EMBED) == RolloutRecord(url=f"{URL}2", outcome="rejected")
    assert commits(remote) == [
        "search/embed: embed rejected",
        "search/embed: other rejected",
        "search/embed: embed promoted",
    ]
    assert remote.count() == main
    # The branch has records only: no files of the specs, and no pipelines of a forge.
    files = remote.git("-C", str(remote.url), "ls-tree", "-r", "--name-only", EMBED.branch).splitlines()
    assert files == ["search/embed/embed.json", "search/embed/other.json"]


def test_a_repetition_writes_nothing(remote: Remote, tmp_path: Path) -> None:
    """A daemon that was killed after the push does not know that it has written."""
    for name in ("first", "second"):
        written = records(remote, tmp_path / name).write(EMBED, f"{URL}1", "promoted")
        assert written == (name == "first")
    assert len(commits(remote)) == 1


def test_a_promoted_version_stays_promoted(remote: Remote, tmp_path: Path) -> None:
    """What is rejected later with the same URL is another change of the service, such as its image."""
    serve = records(remote, tmp_path / "serve")
    assert serve.write(EMBED, f"{URL}1", "promoted")
    assert not serve.write(EMBED, f"{URL}1", "rejected")
    assert serve.read(EMBED) == RolloutRecord(url=f"{URL}1", outcome="promoted")
    # A person may deploy a rejected version again.
    assert serve.write(EMBED, f"{URL}2", "rejected")
    assert serve.write(EMBED, f"{URL}2", "promoted")


def test_a_lost_race_is_repeated(remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve, rival = records(remote, tmp_path / "serve"), records(remote, tmp_path / "rival")
    fetch = serve._fetch
    raced: list[bool] = []

    def fetch_late(branch: str) -> str | None:
        tip = fetch(branch)
        if not raced:
            raced.append(rival.write(EMBED._replace(model="other"), f"{URL}9", "promoted"))
        return tip

    monkeypatch.setattr(serve, "_fetch", fetch_late)
    assert serve.write(EMBED, f"{URL}1", "promoted")
    assert raced == [True]
    assert len(commits(remote)) == 2
    assert rival.read(EMBED) == RolloutRecord(url=f"{URL}1", outcome="promoted")


def test_reads_wait_for_their_interval(remote: Remote, tmp_path: Path) -> None:
    serve, train = records(remote, tmp_path / "serve"), records(remote, tmp_path / "train", 3600.0)
    assert train.read(EMBED) is None
    serve.write(EMBED, f"{URL}1", "promoted")
    assert train.read(EMBED) is None
    assert train.read(EMBED, fresh=True) is not None
    assert train.read(EMBED) is not None


@pytest.mark.parametrize("text", ["", "[]", '{"url": "s3://a/1", "outcome": "fine"}', '{"url": "' + "x" * 10_000])
def test_what_somebody_else_wrote(remote: Remote, tmp_path: Path, text: str) -> None:
    """Nothing is believed that is no record; the writer replaces it."""
    serve, train = records(remote, tmp_path / "serve"), records(remote, tmp_path / "train")
    serve.write(EMBED, f"{URL}1", "rejected")
    forge(remote, text)
    with pytest.raises(DeliveryError, match=r"search/embed/embed\.json"):
        train.read(EMBED)
    assert serve.write(EMBED, f"{URL}1", "promoted")
    assert train.read(EMBED) == RolloutRecord(url=f"{URL}1", outcome="promoted")
