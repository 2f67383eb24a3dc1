"""`avactl render --publish` on real repositories: whatever comes between, no commit is lost and no newer one undone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from avactl.apply.files.render import write_objects
from avactl.apply.publish import PublishError, PublishOptions, PublishOutcome, looks_elsewhere, publish_commit
from avactl.apply.publish.publisher import SOURCE
from avactl.apply.publish.target import Remote
from avactl.spec.repository.tree import DirTree
from avactl.spec.repository.tree_files import RENDERED
from tests.diff.repository import Repository

SPECS = """apiVersion: avactl.dev/v1
kind: Cluster
metadata: {name: main}
---
apiVersion: avactl.dev/v1
kind: NodePool
metadata: {name: a10}
spec: {cluster: main, machineType: a10, count: 20}
---
apiVersion: avactl.dev/v1
kind: Team
metadata: {name: vision}
spec: {members: {groups: [vision]}}
---
apiVersion: avactl.dev/v1
kind: Quota
metadata: {name: gpus, team: vision}
spec: {gpus: [{gpu: A10, guaranteed: GUARANTEED}]}
"""
TO = PublishOptions("rendered")


def specs(guaranteed: int) -> dict[str, str]:
    return {"specs.yaml": SPECS.replace("GUARANTEED", str(guaranteed))}


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in CI: git knows nobody's name."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)


class Forge:
    """A bare repository, as a forge has it, and clones of it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.bare = place / "forge.git"
        subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(self.bare)], check=True)
        self.author = Repository(place / "author")
        self.author.git("remote", "add", "origin", str(self.bare))

    def push(self, files: dict[str, str]) -> str:
        """A new commit on main."""
        commit = self.author.commit(files)
        self.author.git("push", "-q", "origin", "main")
        return commit

    def clone(self, name: str, *options: str, at: str = "") -> Path:
        """A clone as CI makes one: of main, at a commit, with no commit after it."""
        path = self.place / name
        subprocess.run(["git", "clone", "-q", *options, self.bare.as_uri(), str(path)], check=True)
        if at:
            subprocess.run(["git", "-C", str(path), "reset", "-q", "--hard", at], check=True)
            subprocess.run(["git", "-C", str(path), "update-ref", "refs/remotes/origin/main", at], check=True)
            subprocess.run(["git", "-C", str(path), "reflog", "expire", "--expire=now", "--all"], check=True)
            subprocess.run(["git", "-C", str(path), "gc", "-q", "--prune=now"], check=True)
        return path

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(self.bare), *arguments],
            check=True,
            text=True,
            capture_output=True,
            env={
                **os.environ,
                "GIT_COMMITTER_NAME": "h",
                "GIT_COMMITTER_EMAIL": "h@example.com",
                "GIT_AUTHOR_NAME": "Hand",
                "GIT_AUTHOR_EMAIL": "h@example.com",
            },
        )
        return done.stdout.strip()

    def history(self) -> list[str]:
        """The commits of the branch, newest first."""
        return self.git("rev-list", "refs/heads/rendered").split()

    def source(self) -> str:
        """The commit of the specs that the branch says it holds; file and trailer say the same."""
        said = dict(line.split(": ") for line in self.git("show", f"refs/heads/rendered:{SOURCE}").splitlines()[1:])
        assert self.git("log", "-1", "--format=%(trailers:key=Avactl-Source,valueonly)", "refs/heads/rendered") in (
            "",
            said["commit"],
        )
        return said["commit"]

    def quota(self) -> str:
        """What the branch says that the team is guaranteed."""
        text = self.git("grep", "-h", "guaranteed", "refs/heads/rendered")
        return text.split(":")[-1].strip(" ,\"'")

    def by_hand(self, **files: str) -> str:
        """Somebody's own commit on the branch, with files at the top."""
        work = Repository(self.place / "hand")
        work.git("fetch", "-q", str(self.bare), "refs/heads/rendered")
        work.git("checkout", "-q", "FETCH_HEAD")
        commit = work.commit({path.replace("__", "/"): text for path, text in files.items()})
        work.git("push", "-q", str(self.bare), "HEAD:refs/heads/rendered")
        return commit


@pytest.fixture
def forge(tmp_path: Path) -> Forge:
    return Forge(tmp_path)


def run(root: Path, options: PublishOptions = TO) -> PublishOutcome:
    compilation, outcome = publish_commit(root, options)
    assert outcome is not None, compilation.diagnostics
    return outcome


def rendered(root: Path, place: Path) -> dict[str, str]:
    """What `avactl render -o` writes, its lists among it."""
    write_objects(DirTree(root), str(place), use_cache=False)
    return {path.relative_to(place).as_posix(): path.read_text() for path in place.rglob("*") if path.is_file()}


def test_one_commit_for_one_commit_and_the_files_that_render_writes(forge: Forge, tmp_path: Path) -> None:
    source = forge.push(specs(1))
    first = run(forge.author.root)
    assert forge.history() == [first.commit]
    assert forge.source() == source
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "clone", "-q", "-b", "rendered", str(forge.bare), str(checkout)], check=True)
    files = [path for path in checkout.rglob("*") if path.is_file() and ".git/" not in str(path)]
    found = {path.relative_to(checkout).as_posix(): path.read_text() for path in files}
    del found[SOURCE]
    assert found == rendered(forge.author.root, tmp_path / "out")
    assert any(path.endswith(RENDERED) for path in found)
    assert forge.git("log", "-1", "--format=%an %ae %cn", "rendered") == "a a@example.com avactl"
    forge.push(specs(2))
    second = run(forge.author.root)
    assert (second.written, second.deleted) == (2, 0)  # the ResourceQuota, and what the scheduler reads
    assert forge.history() == [second.commit, first.commit]


def test_nothing_when_nothing_changed(forge: Forge) -> None:
    forge.push(specs(1))
    run(forge.author.root)
    tip = forge.history()
    assert run(forge.author.root).commit is None
    for text in ("about\n", "more\n"):
        forge.push({"README.md": text, "specs.yaml": specs(1)["specs.yaml"] + f"# {text}"})
    assert run(forge.author.root).commit is None
    assert forge.history() == tip


def test_publishers_race_and_no_commit_is_lost(forge: Forge) -> None:
    """Six at once, each with a commit of its own, in the order in which the machine likes it."""
    commits = [forge.push(specs(number)) for number in range(1, 7)]
    clones = [forge.clone(f"clone{number}", at=commit) for number, commit in enumerate(commits)]
    command = [sys.executable, "-m", "avactl.cli.main", "render", "--publish", "rendered"]
    started = [subprocess.Popen(command, cwd=clone, text=True, stdout=subprocess.PIPE) for clone in clones]
    said = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [0] * 6, said
    made = [text.split(": ")[1] for text in said if "objects (" in text]
    history = forge.history()
    assert sorted(made) == sorted(commit[:10] for commit in history)  # each that was published is there still
    assert (forge.source(), forge.quota()) == (commits[-1], "6")
    sources = forge.git("log", "--format=%(trailers:key=Avactl-Source,valueonly)", "rendered").split()
    assert sources == [commit for commit in reversed(commits) if commit in sources]  # never backwards


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_publishers_race_again_and_again(forge: Forge, seed: int) -> None:
    test_publishers_race_and_no_commit_is_lost(forge)


def test_two_publishers_of_one_commit_make_one_commit(forge: Forge, monkeypatch: pytest.MonkeyPatch) -> None:
    forge.push(specs(1))
    clone = forge.clone("other")
    move = Remote.move
    commits: list[str | None] = []

    def overtaken(self: Remote, tip: str | None, commit: str) -> bool:
        monkeypatch.setattr(Remote, "move", move)
        commits.append(run(clone).commit)
        return move(self, tip, commit)

    monkeypatch.setattr(Remote, "move", overtaken)
    assert run(forge.author.root).commit == commits[0]
    assert forge.history() == commits


def test_publishers_share_one_clone(forge: Forge) -> None:
    forge.push(specs(1))
    command = [sys.executable, "-m", "avactl.cli.main", "render", "--publish", "rendered"]
    started = [subprocess.Popen(command, cwd=forge.author.root, stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [process.wait() for process in started] == [0] * 4
    assert len(forge.history()) == 1


def test_an_older_commit_never_takes_the_place_of_a_newer_one(forge: Forge) -> None:
    old = forge.push(specs(1))
    late = forge.clone("late", at=old)  # which has never heard of the newer one
    forge.push(specs(2))
    run(forge.author.root)
    outcome = run(late)
    assert (outcome.older, outcome.commit, forge.quota()) == (True, None, "2")
    run(late, PublishOptions("rendered", even_if_older=True))
    assert (forge.quota(), len(forge.history())) == ("1", 2)


def test_a_change_that_was_taken_back_stays_back(forge: Forge) -> None:
    """The publisher of the bad commit comes last, and the branch looks as before it."""
    forge.push(specs(1))
    run(forge.author.root)
    bad = forge.push(specs(7))
    late = forge.clone("late", at=bad)
    good = forge.push(specs(1))
    assert run(forge.author.root).written == 0
    assert forge.source() == good
    assert run(late).older
    assert forge.quota() == "1"


def test_commits_by_hand_stay_in_history_and_own_files_stay(forge: Forge) -> None:
    forge.push(specs(1))
    run(forge.author.root)
    path = next(p for p in forge.git("ls-tree", "-r", "--name-only", "rendered").split() if "resourcequota" in p)
    hand = forge.by_hand(**{"OWNERS": "anna\n", path.replace("/", "__"): "kind: ResourceQuota\n"})
    forge.push(specs(2))
    outcome = run(forge.author.root)
    assert [line.partition(" ")[2] for line in outcome.foreign] == ["a: change"]
    assert hand in forge.history()
    assert forge.git("show", "rendered:OWNERS") == "anna"
    assert forge.git("show", f"rendered:{path}") != "kind: ResourceQuota"
    # What avactl wrote goes with its spec, and the hand's file stays.
    forge.push({"specs.yaml": SPECS.partition("---\napiVersion: avactl.dev/v1\nkind: Team")[0]})
    assert run(forge.author.root).deleted > 3
    assert "OWNERS" in forge.git("ls-tree", "--name-only", "rendered").split()
    assert "vision" not in forge.git("ls-tree", "-r", "--name-only", "rendered")


def test_a_commit_by_hand_hides_no_other_one(forge: Forge) -> None:
    forge.push(specs(1))
    run(forge.author.root)
    forge.by_hand(one="1")
    work = Repository(forge.place / "hand")
    work.git("commit", "-q", "--allow-empty", "-m", "two\x01\x1b[2K")
    work.git("push", "-q", str(forge.bare), "HEAD:refs/heads/rendered")
    forge.push(specs(2))
    two, one = run(forge.author.root).foreign
    assert (two.partition(": ")[2], one.partition(": ")[2]) == ("two��[2K", "change")


def test_a_partial_clone_publishes(forge: Forge) -> None:
    """Files on the branch that avactl did not write are no objects of the clone: they come with the branch."""
    forge.git("config", "uploadpack.allowFilter", "true")
    forge.push(specs(1))
    run(forge.author.root)
    forge.by_hand(notes="by hand")
    forge.push(specs(2))
    clone = forge.clone("partial", "--filter=blob:none", "--single-branch")
    assert run(clone).written
    assert forge.git("show", "refs/heads/rendered:notes") == "by hand"


def test_a_deleted_branch_goes_on_where_it_was(forge: Forge) -> None:
    forge.push(specs(1))
    first = run(forge.author.root).commit
    forge.git("branch", "-D", "rendered")
    assert run(forge.author.root).commit == first  # the same, brought back
    assert forge.history() == [first]
    forge.git("branch", "-D", "rendered")
    forge.push(specs(2))
    second = run(forge.author.root).commit
    assert forge.history() == [second, first]
    forge.git("branch", "-D", "rendered")
    third = run(forge.clone("fresh")).commit  # a clone that has never seen it begins anew
    assert forge.history() == [third]
    assert forge.quota() == "2"


def test_deleted_or_moved_between_reading_and_pushing(forge: Forge, monkeypatch: pytest.MonkeyPatch) -> None:
    forge.push(specs(1))
    first = run(forge.author.root).commit
    move = Remote.move
    before: list[str] = []

    def meanwhile(self: Remote, tip: str | None, commit: str) -> bool:
        monkeypatch.setattr(Remote, "move", move)
        if before:
            forge.git("branch", "-D", "rendered")
        else:
            before.append(forge.by_hand(NOTES="x\n"))
        return move(self, tip, commit)

    monkeypatch.setattr(Remote, "move", meanwhile)
    forge.push(specs(2))
    second = run(forge.author.root).commit
    assert forge.history() == [second, before[0], first]
    monkeypatch.setattr(Remote, "move", meanwhile)
    forge.push(specs(3))
    third = run(forge.author.root).commit
    assert forge.history() == [third, second, before[0], first]


def test_a_shallow_clone_learns_what_it_must_know(forge: Forge) -> None:
    forge.push(specs(1))
    run(forge.author.root)
    for number in (2, 3):
        forge.push(specs(number))
    clone = forge.clone("shallow", "--depth=1")
    assert run(clone).written == 2
    assert (forge.quota(), len(forge.history())) == ("3", 2)
    forge.push(specs(4))
    alone = forge.clone("alone", "--depth=1")
    subprocess.run(["git", "-C", str(alone), "remote", "rename", "origin", "elsewhere"], check=True)
    with pytest.raises(PublishError, match="the clone is shallow: it cannot tell") as caught:
        run(alone, PublishOptions("rendered", to=forge.bare.as_uri()))
    assert "fetch-depth: 0" in caught.value.hint
    assert len(forge.history()) == 2


def test_other_peoples_branches_are_left_alone(forge: Forge) -> None:
    commit = forge.push(specs(1))
    with pytest.raises(PublishError, match="main is not a branch of rendered manifests"):
        run(forge.author.root, PublishOptions("main"))
    assert forge.git("rev-parse", "main") == commit
    forge.author.write({"platform/specs.yaml": specs(1)["specs.yaml"], "platform/avactl.yaml": "include: [.]\n"})
    forge.push({"avactl.yaml": "include: [specs.yaml]\n"})
    run(forge.author.root)
    with pytest.raises(PublishError, match=r"rendered from \., not from platform"):
        run(forge.author.root / "platform")
    forge.author.git("checkout", "-q", "--orphan", "elsewhere")
    forge.author.commit(specs(9))
    with pytest.raises(PublishError, match="is not an ancestor of") as caught:
        run(forge.author.root)
    assert "--even-if-older" in caught.value.hint


def test_a_tag_of_that_name_is_not_the_branch(forge: Forge) -> None:
    forge.push(specs(1))
    forge.author.git("tag", "rendered")
    forge.author.git("push", "-q", "origin", "refs/tags/rendered")
    tagged = forge.git("rev-parse", "refs/tags/rendered")
    run(forge.author.root)
    forge.push(specs(2))
    run(forge.author.root)
    assert len(forge.history()) == 2
    assert forge.git("rev-parse", "refs/tags/rendered") == tagged


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        ("echo 'GH006: Protected branch update failed' >&2; exit 1", "GH006: Protected branch update failed"),
        ("exit 1", "pre-receive hook declined"),
    ],
)
def test_a_refused_push_is_one_clear_word(forge: Forge, hook: str, said: str) -> None:
    forge.push(specs(1))
    run(forge.author.root)
    tip = forge.history()
    script = forge.bare / "hooks" / "pre-receive"
    script.write_text(f"#!/bin/sh\n{hook}\n")
    script.chmod(0o755)
    forge.author.commit(specs(2))
    with pytest.raises(PublishError) as caught:
        run(forge.author.root)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "let the account that publishes push" in caught.value.hint
    assert forge.history() == tip


def test_what_cannot_be_published_says_why(forge: Forge, tmp_path: Path) -> None:
    author = forge.author
    with pytest.raises(PublishError, match="no commit yet"):
        run(author.root)
    forge.push(specs(1))
    with pytest.raises(PublishError, match="unknown remote `upstream`") as caught:
        run(author.root, PublishOptions("rendered", remote="upstream"))
    assert "origin" in caught.value.hint
    with pytest.raises(PublishError, match="cannot read rendered from"):
        run(author.root, PublishOptions("rendered", to=str(tmp_path / "nowhere.git")))
    with pytest.raises(PublishError, match=r"cannot read rendered from https://\*\*\*@127"):
        run(author.root, PublishOptions("rendered", to="https://bot:hunter2@127.0.0.1:1/x.git"))
    for branch in ("refs/heads/rendered", "a..b", "-x"):
        with pytest.raises(PublishError, match="is not a valid branch name"):
            run(author.root, PublishOptions(branch))
    author.write(specs(2) | {"notes.txt": "not a spec\n"})
    with pytest.raises(PublishError, match=r"^not committed: specs.yaml$"):
        run(author.root)
    author.git("checkout", "-q", "specs.yaml")
    author.write({"more.yaml": "x: 1\n"})
    with pytest.raises(PublishError, match=r"^not committed: more.yaml$"):
        run(author.root)
    author.commit({"more.yaml": "kind: Nothing\n"})
    compilation, outcome = publish_commit(author.root, TO)
    assert (compilation.ok, outcome) == (False, None)
    shutil.copytree(author.root, tmp_path / "plain", ignore=shutil.ignore_patterns(".git"))
    with pytest.raises(PublishError, match="is not in a git repository"):
        run(tmp_path / "plain")
    assert "rendered" not in forge.git("branch")


def test_without_a_push_it_is_a_branch_here(forge: Forge) -> None:
    here = PublishOptions("rendered", push=False)
    author = forge.author
    author.commit(specs(1))
    first = run(author.root, here).commit
    author.commit(specs(2))
    second = run(author.root, here).commit
    assert author.git("rev-list", "refs/heads/rendered").split() == [second, first]
    assert author.git("status", "--porcelain") == ""
    author.git("worktree", "add", "-q", str(forge.place / "look"), "rendered")
    author.commit(specs(3))
    with pytest.raises(PublishError, match=r"rendered is checked out in .*look"):
        run(author.root, here)
    assert "rendered" not in forge.git("branch")


def test_another_repository_and_another_hash(tmp_path: Path) -> None:
    work = Repository(tmp_path / "work")
    shutil.rmtree(work.root / ".git")
    work.git("init", "-q", "-b", "main", "--object-format=sha256")
    other = tmp_path / "rendered.git"
    subprocess.run(["git", "init", "-q", "--bare", "--object-format=sha256", str(other)], check=True)
    for number in (1, 2):
        work.commit(specs(number))
        assert run(work.root, PublishOptions("train", to=str(other))).written
    listed = subprocess.run(["git", "-C", str(other), "rev-list", "train"], capture_output=True, text=True, check=True)
    assert len(listed.stdout.split()) == 2


def test_flux_is_not_led_to_delete_what_teams_have(forge: Forge) -> None:
    """The Kustomizations of the teams would leave the branch, and take all that they applied with them."""
    flux = "metadata: {name: main}\nspec: {reconcile: {mode: flux, repository: 'https://git.example.com/s.git'}}\n"
    followed = specs(1)["specs.yaml"].replace("metadata: {name: main}\n", flux)
    forge.push({"specs.yaml": followed})
    compilation, _ = publish_commit(forge.author.root, TO)
    assert looks_elsewhere(compilation, "rendered") == []
    assert "follows the branch rendered" in looks_elsewhere(compilation, "deploy")[0]
    forge.push(specs(1))
    with pytest.raises(PublishError, match="cluster main removes Flux from flux-system") as caught:
        run(forge.author.root)
    assert "suspend" in caught.value.hint
    assert run(forge.author.root, PublishOptions("rendered", let_go=True)).deleted == 3
    # A team that goes may take its own with it.
    forge.push({"specs.yaml": followed})
    run(forge.author.root)
    forge.push({"specs.yaml": followed.rpartition("---\n")[0]})
    assert run(forge.author.root).deleted > 1


def test_a_branch_has_the_objects_of_one_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another environment would delete the objects of the first from it."""
    git = Repository(tmp_path / "author")
    git.commit({**specs(4), "avactl.yaml": "environments: {prod: {}, staging: {}}\n"})
    to = PublishOptions("rendered-prod", push=False)
    monkeypatch.setenv("AVACTL_ENVIRONMENT", "prod")
    _, outcome = publish_commit(git.root, to)
    assert outcome is not None
    assert outcome.written == outcome.objects > 0
    monkeypatch.setenv("AVACTL_ENVIRONMENT", "staging")
    with pytest.raises(PublishError, match=r"was rendered from \. \(environment prod\), not from \. \(environment sta"):
        publish_commit(git.root, to)
