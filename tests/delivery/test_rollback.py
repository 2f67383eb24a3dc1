"""Roll-backs in git: the spec is set back to the text that compiles to the version that runs, and to no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from avactl.contracts.delivery import RollbackPlan
from avactl.daemons.delivery.commits.repository import CommitAuthor, DeliveryError, Repository
from avactl.daemons.delivery.commits.rollback import RollbackFinding, compiled_digest, rolled_back
from tests.delivery.test_repository import Remote

WEB = RollbackPlan(
    cluster="main", namespace="vision", name="web", team="vision", file="teams/web.yaml", document="web", by="commit"
)
PATH = f"specs/{WEB.file}"


@pytest.fixture
def remote(tmp_path: Path) -> Remote:
    return Remote(tmp_path)


@pytest.fixture
def repository(remote: Remote, tmp_path: Path) -> Repository:
    return Repository(str(remote.url), "main", "specs", tmp_path / "cache", CommitAuthor("avactl", "avactl@localhost"))


class History:
    """Commits of the service's file, and the digests of the versions that they compile to."""

    def __init__(self, remote: Remote, repository: Repository) -> None:
        self.remote, self.repository = remote, repository
        repository.fetch()
        self.digests = [compiled_digest(repository, WEB)]

    def replace(self, old: str, new: str, message: str = "by hand") -> str:
        text = self.remote.text()
        assert old in text
        return self.commit(text.replace(old, new), message)

    def commit(self, text: str, message: str = "by hand") -> str:
        commit = self.remote.commit({PATH: text if text.endswith("\n") else f"{text}\n"}, message)
        self.repository.fetch()
        self.digests.append(compiled_digest(self.repository, WEB))
        return commit

    def roll_back(self, to: int = 0, why: str = "latency 1.4") -> bool:
        """Do what the daemon does after the newest version was rolled back to an earlier one."""
        found = RollbackFinding(self.digests[-1], self.digests[to], why)
        return self.repository.change(WEB.file, lambda repository: rolled_back(repository, WEB, found))


@pytest.fixture
def history(remote: Remote, repository: Repository) -> History:
    return History(remote, repository)


def test_the_text_before(history: History) -> None:
    before = history.remote.text()
    bad = history.replace("server@sha256", "worse@sha256")
    assert len(set(history.digests)) == 2
    assert history.roll_back(why="p99 of latency: 1.4\nAvactl-Pipeline: forged")
    assert history.remote.text() == before
    message = history.remote.git("-C", str(history.remote.url), "log", "-1", "--format=%B", "main")
    assert message.splitlines()[0] == "web: roll back to the version that runs"
    assert "Why: p99 of latency: 1.4 Avactl-Pipeline: forged" in message.splitlines()
    assert f"Undone: {bad[:10]}" in message
    trailers = history.remote.git("-C", str(history.remote.url), "log", "-1", "--format=%(trailers:only)", "main")
    assert trailers == "Avactl-Rollback: vision/web"
    # Once more: the head does not ask for the version any more.
    count = history.remote.count()
    assert not history.roll_back()
    assert history.remote.count() == count


def test_several_bad_versions_in_a_row(history: History) -> None:
    before = history.remote.text()
    history.replace("server@sha256", "worse@sha256")
    history.replace("worse@sha256", "worst@sha256")
    assert history.roll_back()
    assert history.remote.text() == before


def test_later_changes_of_the_spec_stay(history: History) -> None:
    history.replace("server@sha256", "worse@sha256")
    history.replace("  replicas: 4", "  replicas: 6  # a busy week")
    assert history.digests[1] == history.digests[2]  # the pods are the same
    assert history.roll_back()
    text = history.remote.text()
    assert "server@sha256" in text
    assert "replicas: 6  # a busy week" in text


def test_later_changes_that_touch_the_same_lines(history: History) -> None:
    before = history.remote.text()
    history.replace("  replicas: 4\n", '  env: {MODE: "1"}\n  replicas: 4\n')
    history.replace('  env: {MODE: "1"}\n  replicas: 4\n', '  env: {MODE: "1"}  # on\n  replicas: 5\n')
    assert history.roll_back()
    # The two cannot be told apart, so all goes back.
    assert history.remote.text() == before


def test_other_documents_of_the_file_stay(history: History) -> None:
    text = history.remote.text()
    other = text.replace("name: web", "name: other").split("apiVersion", 1)[1]
    history.commit(f"# Two services.\n---\n{text}\n--- # the other\napiVersion{other}\n")
    history.replace("server@sha256", "worse@sha256")  # both
    assert history.roll_back()
    documents = history.remote.text().split("--- # the other")
    assert "server@sha256" in documents[0]
    assert "worse@sha256" in documents[1]
    assert history.remote.text().startswith("# Two services.\n---\n# The version is set by the pipeline.\n")


def test_somebody_has_mended_it_already(history: History) -> None:
    history.replace("server@sha256", "worse@sha256")
    found = RollbackFinding(history.digests[1], history.digests[0], "")
    history.replace("worse@sha256", "mended@sha256")
    assert rolled_back(history.repository, WEB, found) is None


def test_a_change_that_is_not_in_the_spec(history: History) -> None:
    """The pods of all services change with the platform: no text of this spec undoes that."""
    platform = history.remote.git("-C", str(history.remote.url), "show", "main:specs/platform.yaml")
    history.remote.commit({"specs/platform.yaml": platform.replace("registry.example.com/rclone", "mirror/rclone")})
    history.repository.fetch()
    history.digests.append(compiled_digest(history.repository, WEB))
    assert history.digests[0] != history.digests[1]
    with pytest.raises(DeliveryError, match="no earlier text of web in teams/web"):
        history.roll_back()
    assert history.remote.count() == 2


def test_patches_count(history: History) -> None:
    """The pods that a patch of the spec changes are another version."""
    before = history.remote.text()
    patch = "patches:\n  - target: {kind: Deployment}\n    merge: {spec: {template: {spec: {hostname: web}}}}\n"
    history.commit(f"{before}\n{patch}")
    assert len(set(history.digests)) == 2
    assert all(history.digests)
    assert history.roll_back()
    assert history.remote.text() == before


def test_specs_that_do_not_compile(history: History) -> None:
    history.replace("server@sha256", "worse@sha256")
    history.remote.commit({"specs/teams/broken.yaml": "kind: [\n"})
    # What the head asks for is not known: nothing is done until it is.
    assert not history.roll_back()
    assert "worse@sha256" in history.remote.text()


def test_a_file_that_was_moved(history: History) -> None:
    history.replace("server@sha256", "worse@sha256")
    history.remote.git("mv", PATH, "specs/teams/moved.yaml")
    history.remote.git("commit", "-q", "-m", "move")
    history.remote.git("push", "-q", "origin", "HEAD:main")
    history.repository.fetch()
    found = RollbackFinding(history.digests[1], history.digests[0], "")
    moved = WEB.replace(file="teams/moved.yaml")
    with pytest.raises(DeliveryError, match="no earlier text"):
        history.repository.change(moved.file, lambda repository: rolled_back(repository, moved, found))
    with pytest.raises(DeliveryError, match="is not a file"):
        history.repository.document(history.repository.head, WEB)


def test_a_branch_for_a_pull_request(history: History) -> None:
    history.replace("server@sha256", "worse@sha256")
    found = RollbackFinding(history.digests[1], history.digests[0], "")
    for _ in range(2):
        assert history.repository.change_on(
            "avactl/rollback-x", WEB.file, lambda repository: rolled_back(repository, WEB, found)
        )
    assert "server@sha256" in history.remote.text("avactl/rollback-x")
    assert "worse@sha256" in history.remote.text()
