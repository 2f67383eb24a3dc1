"""Directories with more in them than specs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from avactl.compiler import compile_tree
from avactl.spec.repository.tree import DirTree, read_input

CLUSTER = "apiVersion: avactl.dev/v1\nkind: Cluster\nmetadata: {name: main}\n"


def codes(root: Path) -> list[tuple[str, str]]:
    return [(d.code, d.span.file) for d in compile_tree(DirTree(root)).diagnostics]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "cluster.yaml").write_text(CLUSTER)
    return tmp_path / "specs"


def test_what_is_no_file_is_not_read(root: Path) -> None:
    os.mkfifo(root / "pipe.yaml")
    (root / "directory.yaml").mkdir()
    assert codes(root) == []
    tree = DirTree(root)
    for name in ("pipe.yaml", "directory.yaml"):
        with pytest.raises(OSError, match=r"not a regular file|Is a directory"):
            tree.read(name)


def test_settings_that_are_a_pipe_do_not_hang(root: Path) -> None:
    os.mkfifo(root / "avactl.yaml")
    assert codes(root) == [("file-unreadable", "avactl.yaml")]


def test_links_that_leave_or_lead_nowhere_are_told_and_not_followed(root: Path) -> None:
    (root.parent / "secret.yaml").write_text("password: hunter2")
    (root / "out.yaml").symlink_to("../secret.yaml")
    (root / "gone.yaml").symlink_to("nothing.yaml")
    (root / "above").symlink_to("..")
    assert codes(root) == [("unsafe-path", "gone.yaml"), ("unsafe-path", "out.yaml")]
    for path in ("out.yaml", "above/secret.yaml"):
        with pytest.raises(OSError, match="leads out of the repository"):
            DirTree(root).read(path)


def test_a_link_that_is_excluded_is_not_told(root: Path) -> None:
    (root / "avactl.yaml").write_text("exclude: [out.yaml]\n")
    (root / "out.yaml").symlink_to("/etc/hostname")
    assert codes(root) == []


def test_a_directory_that_cannot_be_listed_is_told(root: Path) -> None:
    # Deeper than a path may be long: nobody can list it, root neither.
    home = Path.cwd()
    os.chdir(root)
    try:
        for _ in range(25):
            os.mkdir("d" * 200)  # noqa: PTH102 - a whole path would be too long
            os.chdir("d" * 200)
    finally:
        os.chdir(home)
    found = codes(root)
    assert [code for code, _ in found] == ["file-unreadable"]
    subprocess.run(["rm", "-rf", str(root)], check=True)  # shutil goes by whole paths


def test_a_deep_directory_is_no_matter(root: Path) -> None:
    deep = root
    for _ in range(1200):  # deeper than Python's calls may be nested, and still shorter than a path may be
        deep /= "d"
        deep.mkdir()
    (deep / "x.yaml").write_text("kind: x\n")
    assert [code for code, _ in codes(root)] == ["not-a-spec"]
    subprocess.run(["rm", "-rf", str(root)], check=True)


@pytest.mark.parametrize("target", [".env", ".git/config", "a/../.env"])
def test_a_link_to_a_hidden_file_is_none(root: Path, target: str) -> None:
    (root / ".git").mkdir()
    (root / "a").mkdir()
    (root / ".git" / "config").write_text("token: hunter2")
    (root / ".env").write_text("token: hunter2")
    (root / "x.yaml").symlink_to(target)
    tree = DirTree(root)
    assert tree.paths() == ["cluster.yaml"]
    assert "x.yaml" in tree.skipped
    for path in ("x.yaml", target):
        assert read_input(tree, path) is None
        with pytest.raises(OSError, match="hidden"):
            tree.read(path)


def test_what_a_spec_may_name(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret.jsonl").write_text("out")
    (root / "a.jsonl").write_text("long")
    (root / "link.jsonl").symlink_to("../secret.jsonl")
    (root / "up").symlink_to("..")
    os.mkfifo(root / "pipe")
    tree = DirTree(root)
    assert read_input(tree, "a.jsonl") == b"long"
    for path in ("link.jsonl", "up/secret.jsonl", "../secret.jsonl", str(tmp_path / "secret.jsonl"), "pipe", "a\0"):
        assert read_input(tree, path) is None
    monkeypatch.setattr("avactl.spec.repository.tree.MAX_INPUT", 3)
    assert read_input(tree, "a.jsonl") is None
