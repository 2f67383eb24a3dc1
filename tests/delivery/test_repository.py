"""Commits to the branch of the specs: only the values change, nothing is overwritten, nothing is done twice."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from avactl.apply.reconcile.source import SourceBranch, without_credentials
from avactl.compiler import driver
from avactl.daemons.delivery.commits.repository import CommitAuthor, DeliveryError, ModelOfService, Repository
from avactl.daemons.delivery.plans import PipelineTarget
from avactl.diagnostics.redaction import redact_text
from avactl.spec.repository.git import GitError
from tests.delivery.world import DATASET, PIPELINE, PLATFORM, SERVICE

TARGET = PipelineTarget(
    "vision", "web", "digits", "teams/web.yaml", "web", "vision", "spec.model.url", "spec.model.version"
)
URL = "s3://data/published/digits/"
FILES = {
    "platform.yaml": PLATFORM,
    "teams/data.yaml": DATASET,
    "teams/web.yaml": SERVICE,
    "teams/digits.yaml": PIPELINE,
}


class Remote:
    """A repository of specs, in a directory of it."""

    def __init__(self, folder: Path) -> None:
        self.url, self._work = folder / "specs.git", folder / "work"
        subprocess.run(["git", "init", "-q", "--bare", "--initial-branch=main", str(self.url)], check=True)
        subprocess.run(["git", "clone", "-q", str(self.url), str(self._work)], check=True, capture_output=True)
        self.commit({f"specs/{name}": text.replace("TEAM", "vision") for name, text in FILES.items()})

    def git(self, *arguments: str) -> str:
        who = ("-c", "user.name=Ann", "-c", "user.email=ann@example.com")
        return subprocess.run(
            ["git", "-C", str(self._work), *who, *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()

    def commit(self, files: dict[str, str], message: str = "by hand") -> str:
        if (self._work / "specs").exists():
            self.git("pull", "-q", "--rebase", "origin", "main")
        for name, text in files.items():
            (self._work / name).parent.mkdir(parents=True, exist_ok=True)
            (self._work / name).write_text(text)
        self.git("add", "--all")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        self.git("push", "-q", "origin", "HEAD:main")
        return self.git("rev-parse", "HEAD")

    def text(self, branch: str = "main") -> str:
        return self.git("-C", str(self.url), "show", f"{branch}:specs/teams/web.yaml")

    def count(self) -> int:
        return int(self.git("-C", str(self.url), "rev-list", "--count", "main"))


@pytest.fixture
def remote(tmp_path: Path) -> Remote:
    return Remote(tmp_path)


@pytest.fixture
def repository(remote: Remote, tmp_path: Path) -> Repository:
    made = Repository(str(remote.url), "main", "specs", tmp_path / "cache", CommitAuthor("avactl", "avactl@localhost"))
    made.fetch()
    return made


def test_only_the_values_change(remote: Remote, repository: Repository) -> None:
    before = remote.text()
    assert repository.served(TARGET) == ModelOfService(f"{URL}1", "1")
    assert repository.deploy(TARGET, ModelOfService(f"{URL}2", "2"), "deploy", only=f"{URL}1")
    assert remote.text() == before.replace('"1"', '"2"').replace("digits/1", "digits/2")
    assert repository.served(TARGET) == ModelOfService(f"{URL}2", "2")
    assert remote.git("-C", str(remote.url), "log", "-1", "--format=%an <%ae> %cn", "main") == (
        "avactl <avactl@localhost> avactl"
    )


def test_a_repetition_does_nothing(remote: Remote, repository: Repository) -> None:
    assert repository.deploy(TARGET, ModelOfService(f"{URL}2", "2"), "deploy")
    assert not repository.deploy(TARGET, ModelOfService(f"{URL}2", "2"), "deploy")
    assert not repository.deploy(TARGET, ModelOfService(f"{URL}3", "3"), "deploy", only=f"{URL}1")
    assert not repository.deploy(TARGET, ModelOfService(f"{URL}3", "3"), "deploy", unless=f"{URL}2")
    assert remote.count() == 2


def test_others_push_at_the_same_time(remote: Remote, repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, left = repository._commit, [2]

    def later(*arguments: object) -> str:
        made = commit(*arguments)  # type: ignore[arg-type]
        if left[0]:
            left[0] -= 1
            remote.commit({"specs/teams/note.txt": f"{left[0]}"})
        return made

    monkeypatch.setattr(repository, "_commit", later)
    assert repository.deploy(TARGET, ModelOfService(f"{URL}2", "2"), "deploy")
    assert remote.count() == 4
    assert "digits/2" in remote.text()


def test_a_branch_for_a_pull_request(remote: Remote, repository: Repository) -> None:
    for _ in range(2):
        repository.propose(TARGET, ModelOfService(f"{URL}2", "2"), "deploy", "avactl/x-2")
    assert "digits/2" in remote.text("avactl/x-2")
    assert "digits/1" in remote.text()
    assert remote.git("-C", str(remote.url), "rev-list", "--count", "avactl/x-2") == "2"


@pytest.mark.parametrize("forgery", ["more", "other value", "older", "two commits"])
def test_a_branch_of_somebody_else_is_not_proposed(remote: Remote, repository: Repository, forgery: str) -> None:
    """Whoever may push branches knows the name of the next one. The pull request would be the daemon's."""
    wanted, branch = ModelOfService(f"{URL}2", "2"), "avactl/x-2"
    repository.propose(TARGET, wanted, "deploy", branch)
    honest = remote.git("-C", str(remote.url), "rev-parse", branch)
    remote.git("fetch", "-q", "origin")
    remote.git("checkout", "-q", "-B", "forged", f"origin/{branch}")
    if forgery == "more":
        (remote._work / "specs" / "teams" / "more.yaml").write_text("kind: Team\nmetadata: {name: mine}\n")
    elif forgery == "other value":
        file = remote._work / "specs" / "teams" / "web.yaml"
        file.write_text(file.read_text().replace("replicas: 4", "replicas: 40"))
    elif forgery == "older":
        # The same file, on a commit that the branch does not have.
        remote.git("checkout", "-q", "--orphan", "unrelated")
    remote.git("add", "--all")
    amend = [] if forgery == "older" else ["--allow-empty"] if forgery == "two commits" else ["--amend"]
    remote.git("commit", "-q", "-m", "deploy", *amend)
    remote.git("push", "-q", "--force", "origin", f"HEAD:{branch}")
    with pytest.raises(DeliveryError, match="has another change"):
        repository.propose(TARGET, wanted, "deploy", branch)
    # One's own is found again, also after the branch has moved on.
    remote.git("checkout", "-q", "main")
    remote.commit({"specs/teams/note.txt": "1"})
    remote.git("push", "-q", "--force", "origin", f"{honest}:refs/heads/{branch}")
    repository.propose(TARGET, wanted, "deploy", branch)
    assert remote.git("-C", str(remote.url), "rev-parse", branch) == honest


def test_the_version_before(remote: Remote, repository: Repository) -> None:
    assert repository.before(TARGET) is None
    for number in (2, 3, 2):
        repository.deploy(TARGET, ModelOfService(f"{URL}{number}", str(number)), "deploy")
        remote.commit({"specs/teams/web.yaml": remote.text().replace("replicas: 4", f"replicas: 4 # {number}\n")})
        repository.fetch()
    assert repository.before(TARGET) == ModelOfService(f"{URL}1", "1")


def test_changes_of_files(remote: Remote, repository: Repository) -> None:
    assert repository.last_change(["train/**"]) == ""
    first = remote.commit({"train/model.py": "1"})
    remote.commit({"docs/model.md": "1"})
    repository.fetch()
    assert repository.last_change(["train/**"]) == first
    # What pipelines deploy triggers none.
    repository.deploy(TARGET, ModelOfService(f"{URL}2", "2"), "deploy\n\nAvactl-Pipeline: vision/digits run 2\n")
    assert repository.last_change(["specs/**"]) not in ("", repository.head)
    assert repository.last_change(["*.yaml"]) == repository.last_change(["specs/**"])
    # A merge counts with what it brings.
    remote.git("checkout", "-q", "-b", "other", "HEAD~1")
    (remote._work / "train" / "model.py").write_text("2")
    remote.git("commit", "-qam", "other")
    remote.git("checkout", "-q", "-")
    remote.git("pull", "-q", "--rebase", "origin", "main")
    remote.git("merge", "-q", "--no-ff", "-m", "merge", "other")
    remote.git("push", "-q", "origin", "HEAD:main")
    repository.fetch()
    assert repository.last_change(["train/**"]) == remote.git("rev-parse", "HEAD")


def test_what_would_not_compile_is_not_committed(remote: Remote, repository: Repository) -> None:
    with pytest.raises(DeliveryError, match="the specs would not compile"):
        repository.deploy(TARGET, ModelOfService("https://example.com/model", "2"), "deploy")
    assert remote.count() == 1
    # Errors that are there already are no reason.
    remote.commit({"specs/broken.yaml": "kind: Teem\nmetadata: {name: x}\nspec: {}\n"})
    assert repository.deploy(TARGET, ModelOfService(f"{URL}2", "2"), "deploy")


def test_an_error_that_follows_from_another_is_not_committed(
    remote: Remote, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cause is known before the commit, and the error that follows is not printed."""
    monkeypatch.setattr(driver, "trace_causes", lambda tree, documents, problems: [])
    with pytest.raises(DeliveryError, match="the specs would not compile"):
        repository.deploy(TARGET, ModelOfService("https://example.com/model", "2"), "deploy")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"specs/teams/web.yaml": "{}\n"}, "has no spec of ServingDeployment `web`"),
        ({"specs/teams/web.yaml": f"{SERVICE}---\n{SERVICE}".replace("TEAM", "vision")}, "has several specs"),
        ({"specs/teams/web.yaml": SERVICE.replace("TEAM", "other")}, "has no spec"),
    ],
)
def test_a_service_that_is_not_there(remote: Remote, repository: Repository, change: dict[str, str], said: str) -> None:
    remote.commit(change)
    repository.fetch()
    with pytest.raises(DeliveryError, match=said):
        repository.served(TARGET)


def test_what_is_shown_has_no_credentials(tmp_path: Path) -> None:
    url = "http://robot:hunter2@Tr0ub4dor@127.0.0.1:1/specs.git"
    own = Repository(url, "main", "", tmp_path / "cache", CommitAuthor("a", "a@localhost"))
    with pytest.raises(DeliveryError) as caught:
        own.fetch()
    place = next((tmp_path / "cache").iterdir()).name
    for text in (own.shown, str(caught.value), caught.value.hint, place):
        assert "hunter2" not in text
        assert "Tr0ub4dor" not in text
    with pytest.raises(GitError) as failed:
        SourceBranch(url, "main", cache=tmp_path / "other").newest()
    assert "Tr0ub4dor" not in str(failed.value)
    assert "Tr0ub4dor" not in without_credentials(url)
    assert "Tr0ub4dor" not in redact_text(f"cannot read {url}")


def test_a_hook_s_text_with_a_token_is_masked(remote: Remote, repository: Repository) -> None:
    secret = "ghp_" + "a1" * 18
    hook = remote.url / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\necho 'error: bad token={secret}' >&2\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(DeliveryError, match=r"error: bad token=\*+") as caught:
        repository.deploy(TARGET, ModelOfService(f"{URL}2", "2"), "deploy")
    assert secret not in f"{caught.value} {caught.value.hint}"


def test_unreachable(tmp_path: Path, remote: Remote, repository: Repository) -> None:
    """What is known stays known; a password in the URL is not shown."""
    head = repository.head
    remote.url.rename(tmp_path / "away.git")
    with pytest.raises(DeliveryError):
        repository.fetch()
    assert repository.head == head
    secret = Repository("https://ann:s3cret@127.0.0.1:9/x.git", "main", "", tmp_path, CommitAuthor("a", "b@c"))
    with pytest.raises(DeliveryError) as error:
        secret.fetch()
    assert "s3cret" not in f"{error.value} {error.value.hint} {secret.shown}"
    assert not any("s3cret" in path.name for path in tmp_path.rglob("*"))


@pytest.mark.parametrize("text", ["\1", "\2", "\1\2", "\1" + 40 * "f" + "\2\2"], ids=["begin", "end", "both", "forged"])
def test_names_and_trailers_of_contributors_forge_no_change(remote: Remote, repository: Repository, text: str) -> None:
    wanted = remote.commit({"train/model.py": "1"})
    remote.commit({f"docs/a{text}train/model.py": "1"}, f"docs\n\nReviewed-by: {text}\nAvactl-Pipeline: {text}\n")
    remote.commit({f"docs/c{text}d": "1"})
    repository.fetch()
    assert repository.last_change(["/train/**"]) == wanted
