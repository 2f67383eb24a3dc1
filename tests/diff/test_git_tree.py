"""Files of a revision, as a checkout of it would have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from avactl.spec.repository.git import GitError
from avactl.spec.repository.git_tree import GitTree, find_commit, merge_base
from avactl.spec.repository.tree import DirTree
from avactl.spec.repository.tree_files import NOWHERE, OWN_REPOSITORY
from tests.diff.repository import Repository


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repo")


def test_a_revision_is_read_without_touching_the_checkout(repository: Repository) -> None:
    first = repository.commit({"a.yaml": "one", "dir/b.yaml": "b"})
    repository.commit({"a.yaml": "two"})
    repository.write({"a.yaml": "uncommitted"})
    tree = GitTree(repository.root, "HEAD~1")
    assert tree.commit == first
    assert tree.paths() == ["a.yaml", "dir/b.yaml"]
    assert tree.read("a.yaml") == b"one"
    assert tree.size("a.yaml") == 3
    assert (repository.root / "a.yaml").read_text() == "uncommitted"
    assert repository.git("status", "--porcelain") == "M a.yaml"
    with pytest.raises(FileNotFoundError):
        tree.read("missing.yaml")


def test_it_sees_what_a_directory_has(repository: Repository) -> None:
    repository.commit(
        {"a.yaml": "a", ".hidden/x.yaml": "h", "node_modules/y.yaml": "n", "sub/c.yaml": "c", "sub/big.bin": "x"}
    )
    for link, target in (
        ("link.yaml", "sub/c.yaml"),
        ("out.yaml", "/etc/hostname"),
        ("up.yaml", "../../x"),
        ("dirlink", "sub"),
        ("dangling.yaml", "nowhere"),
        ("via.yaml", "dirlink/c.yaml"),
    ):
        (repository.root / link).symlink_to(target)
    (repository.root / "loop.yaml").symlink_to("loop.yaml")
    repository.commit()
    tree, directory = GitTree(repository.root, "HEAD"), DirTree(repository.root)
    assert tree.paths() == directory.paths() == ["a.yaml", "link.yaml", "sub/big.bin", "sub/c.yaml", "via.yaml"]
    assert tree.skipped == directory.skipped
    assert sorted(tree.skipped) == ["dangling.yaml", "loop.yaml", "out.yaml", "up.yaml"]
    for path in tree.paths():
        assert tree.read(path) == directory.read(path)
        assert tree.size(path) == directory.size(path)
    assert tree.read("dirlink/c.yaml") == directory.read("dirlink/c.yaml")


def test_a_part_of_a_repository(repository: Repository) -> None:
    repository.commit({"outside.yaml": "o", "platform/a.yaml": "a", "platform2/b.yaml": "b"})
    assert GitTree(repository.root / "platform", "HEAD").paths() == ["a.yaml"]


def test_a_directory_that_a_revision_does_not_have_is_empty(repository: Repository) -> None:
    repository.commit({"a.yaml": "a"})
    repository.commit({"new/b.yaml": "b"})
    assert GitTree(repository.root / "new", "HEAD~1").paths() == []
    # Nor does the work tree have to have it.
    repository.git("rm", "-q", "-r", "new")
    assert GitTree(repository.root / "new", "HEAD").paths() == ["b.yaml"]


def test_names_that_need_care(repository: Repository) -> None:
    names = ["with space.yaml", "ünïcode.yaml", 'quote".yaml', "-dash.yaml", "back\\slash.yaml"]
    for name in names:
        (repository.root / name).write_text(name)
    repository.commit()
    tree = GitTree(repository.root, "HEAD")
    assert tree.paths() == sorted(names)
    assert all(tree.read(name).decode() == name for name in names)


def test_submodules_are_left_out_of_commit_and_checkout(repository: Repository, tmp_path: Path) -> None:
    other = Repository(tmp_path / "other")
    other.commit({"x.yaml": "x", "deep/y.yaml": "y"})
    repository.commit({"a.yaml": "a"})
    repository.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(other.root), "sub")
    (repository.root / "link.yaml").symlink_to("sub/deep/y.yaml")
    repository.commit()
    assert (repository.root / "sub" / "x.yaml").exists()
    tree, directory = GitTree(repository.root, "HEAD"), DirTree(repository.root)
    assert tree.paths() == directory.paths() == ["a.yaml"]
    assert tree.skipped == directory.skipped == {"link.yaml": NOWHERE, "sub": OWN_REPOSITORY}
    for each in (tree, directory):
        with pytest.raises(OSError, match="sub/x"):
            each.read("sub/x.yaml")


def test_variables_of_a_hook_do_not_mislead(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit({"sub/a.yaml": "a"})
    monkeypatch.setenv("GIT_DIR", ".git")
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    assert GitTree(repository.root / "sub", "HEAD").paths() == ["a.yaml"]


@pytest.mark.parametrize(
    ("revision", "hint"),
    [
        ("mian", "did you mean `main`?"),
        ("topic", "did you mean `origin/topic`?"),
        ("zzz", "branches and tags:"),
        ("--upload-pack=x", "branches and tags:"),
        ("HEAD~9", "branches and tags:"),
        ("", "branches and tags:"),
    ],
)
def test_unknown_revisions(repository: Repository, revision: str, hint: str) -> None:
    repository.commit({"a.yaml": "a"})
    repository.git("update-ref", "refs/remotes/origin/topic", "HEAD")
    with pytest.raises(GitError, match="unknown revision") as caught:
        find_commit(repository.root, revision)
    assert hint in caught.value.hint


def test_a_shallow_clone_says_how_to_get_the_rest(repository: Repository, tmp_path: Path) -> None:
    old = repository.commit({"a.yaml": "a"})
    repository.git("branch", "other")
    repository.commit({"a.yaml": "b"})
    repository.git("clone", "-q", "--depth", "1", f"file://{repository.root}", str(tmp_path / "clone"))
    with pytest.raises(GitError) as caught:
        find_commit(tmp_path / "clone", old)
    assert "git fetch --unshallow" in caught.value.hint
    assert GitTree(tmp_path / "clone", "HEAD").read("a.yaml") == b"b"


def test_no_repository_and_no_commit(tmp_path: Path) -> None:
    with pytest.raises(GitError, match="is not in a git repository"):
        GitTree(tmp_path, "HEAD")
    empty = Repository(tmp_path / "empty")
    with pytest.raises(GitError, match="has no commit yet"):
        GitTree(empty.root, "HEAD")


def test_no_git(repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GitError, match="git is not installed"):
        GitTree(repository.root, "HEAD")


def test_merge_base(repository: Repository) -> None:
    common = repository.commit({"a.yaml": "a"})
    repository.git("switch", "-q", "-c", "topic")
    repository.commit({"b.yaml": "b"})
    repository.git("switch", "-q", "main")
    repository.commit({"c.yaml": "c"})
    assert merge_base(repository.root, "main", "topic") == common
    repository.git("switch", "-q", "--orphan", "alone")
    repository.commit({"d.yaml": "d"})
    with pytest.raises(GitError, match="have no common ancestor"):
        merge_base(repository.root, "main", "alone")


def test_many_files_take_one_process(repository: Repository) -> None:
    repository.commit({f"f{n}.yaml": f"text {n}" for n in range(500)})
    tree = GitTree(repository.root, "HEAD")
    assert [tree.read(f"f{n}.yaml") for n in range(500)] == [f"text {n}".encode() for n in range(500)]


def test_a_link_to_a_hidden_file_is_none(repository: Repository) -> None:
    repository.commit({"a.yaml": "a", ".env": "token: hunter2"})
    (repository.root / "x.yaml").symlink_to(".env")
    repository.commit()
    tree = GitTree(repository.root, "HEAD")
    assert tree.paths() == ["a.yaml"]
    for hidden in ("x.yaml", ".env"):
        with pytest.raises(OSError, match="it is hidden"):
            tree.read(hidden)
