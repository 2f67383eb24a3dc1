"""What is a file of a tree: the same for a commit and for its checkout."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from avactl.compiler import compile_tree
from avactl.spec.repository.git_tree import GitTree
from avactl.spec.repository.tree import DirTree, MemoryTree, read_input
from avactl.spec.repository.tree_files import NOWHERE, ODD_NAME, RENDERED
from tests.diff.repository import Repository

CLUSTER = "apiVersion: avactl.dev/v1\nkind: Cluster\nmetadata: {name: main}\n"
_NAMES = (
    "a.yaml",
    "A.yaml",
    "b.yaml",
    "c",
    "d",
    "policies",
    "node_modules",
    ".hidden",
    RENDERED,
    "<avactl>",
    "<x>.yaml",
    "new\nline.yaml",
    "back\\slash.yaml",
    "ü.yaml",
    " .yaml",
    "avactl.yaml",
)
_name = st.sampled_from(_NAMES)
_path = st.lists(_name, min_size=1, max_size=3).map("/".join)
_target = st.one_of(
    st.lists(st.sampled_from((*_NAMES, "..", ".", "")), min_size=1, max_size=4).map("/".join),
    st.sampled_from(("/etc/hostname", "/", "x/" * 2047, "../repository/a.yaml", "a.yaml/", "c/../a.yaml")),
)
_entry = st.one_of(
    st.tuples(st.just("file"), st.text("ab\n", max_size=3)),
    st.tuples(st.just("link"), _target.filter(bool)),
    st.tuples(st.just("repository"), st.just("")),
)


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """A repository that becomes the submodules of the others."""
    repository = Repository(tmp_path_factory.mktemp("module"))
    repository.commit({"a.yaml": "module", "b.yaml": "module", RENDERED: ""})
    return repository


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(entries=st.dictionaries(_path, _entry, min_size=1, max_size=7), reads=st.lists(_target, max_size=4))
def test_a_commit_and_its_checkout_have_the_same_files(
    module: Repository, tmp_path: Path, entries: dict[str, tuple[str, str]], reads: list[str]
) -> None:
    folder = tmp_path / "repository"
    shutil.rmtree(folder, ignore_errors=True)
    repository = Repository(folder)
    for path, (kind, value) in entries.items():
        place = folder / path
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            if kind == "file":
                place.write_text(value)
            elif kind == "link":
                place.symlink_to(value)
            else:
                shutil.copytree(module.root, place)
        except OSError:  # a file in the place of a directory
            continue
        if place.is_dir() and not (place / ".git").exists():
            return
    repository.git("-c", "advice.addEmbeddedRepo=false", "add", "-A")
    repository.git("commit", "-q", "--allow-empty", "-m", "all")
    tree, directory = GitTree(folder, "HEAD"), DirTree(folder)
    assert tree.paths() == directory.paths()
    assert tree.skipped == directory.skipped
    for path in {*tree.paths(), *entries, *reads}:
        assert _content(tree, path) == _content(directory, path), path
        assert read_input(tree, path) == read_input(directory, path), path


def _content(tree: GitTree | DirTree, path: str) -> bytes | str:
    try:
        assert tree.size(path) == len(tree.read(path))
        return tree.read(path)
    except (OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("make", ["directory", "link", "submodule"])
def test_only_a_regular_file_marks_rendered_output(tmp_path: Path, module: Repository, make: str) -> None:
    repository = Repository(tmp_path / "repository")
    repository.write({"teams/a.yaml": "a", "teams/out/b.yaml": "b", f"teams/out/{RENDERED}": ""})
    place = repository.root / "teams" / RENDERED
    if make == "directory":
        place.mkdir()
        (place / "x").touch()
    elif make == "link":
        place.symlink_to("a.yaml")
    else:
        shutil.copytree(module.root, place)
    repository.git("-c", "advice.addEmbeddedRepo=false", "add", "-A")
    repository.git("commit", "-q", "-m", "all")
    assert DirTree(repository.root).paths() == GitTree(repository.root, "HEAD").paths() == ["teams/a.yaml"]


@pytest.mark.parametrize("path", ["<avactl>.yaml", "<avactl>/x.yaml", "a\nb.yaml", "a>b.yaml", "x\u202e.yaml"])
@pytest.mark.parametrize("where", ["", "lab/", "policies/"])
def test_names_of_places_that_are_no_files_are_refused(tmp_path: Path, path: str, where: str) -> None:
    files = {
        "avactl.yaml": "include: [.]\nenvironments: {lab: {overlays: [lab]}}\n",
        "main.yaml": CLUSTER,
        f"{where}{path}": "apiVersion: avactl.dev/v1\nkind: Team\nmetadata: {name: vision}\n",
    }
    repository = Repository(tmp_path)
    repository.commit(files)
    for tree in (
        DirTree(tmp_path, environment="lab"),
        GitTree(tmp_path, "HEAD", environment="lab"),
        MemoryTree(files, environment="lab"),
    ):
        compilation = compile_tree(tree)
        assert ("unsafe-path", f"{where}{path}", f"it is not read: {ODD_NAME}") in [
            (d.code, d.span.file, d.message) for d in compilation.diagnostics
        ]
        assert not compilation.ok
        assert read_input(tree, f"{where}{path}") is None


def test_a_path_that_is_asked_for_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "<x>.yaml").write_text(CLUSTER)
    found = compile_tree(DirTree(tmp_path, ["<x>.yaml"])).diagnostics
    assert [(d.code, d.span.file) for d in found] == [("unsafe-path", "<x>.yaml")]


def test_links_follow_the_rule_of_the_tree_and_not_the_machine(tmp_path: Path) -> None:
    """An absolute target, one through a missing directory, and one through a file."""
    repository = Repository(tmp_path / "repository")
    repository.write({"a.yaml": "a"})
    targets = {
        "absolute.yaml": str(repository.root / "a.yaml"),
        "above.yaml": "../repository/a.yaml",
        "missing.yaml": "nowhere/../a.yaml",
        "file.yaml": "a.yaml/../a.yaml",
        "slash.yaml": "a.yaml/",
    }
    for name, target in targets.items():
        (repository.root / name).symlink_to(target)
    repository.commit()
    for tree in (DirTree(repository.root), GitTree(repository.root, "HEAD")):
        assert tree.paths() == ["a.yaml"]
        assert tree.skipped == dict.fromkeys(sorted(targets), NOWHERE)


@pytest.mark.parametrize("make", ["link", "directory"])
def test_settings_that_are_no_file_are_an_error_in_both(tmp_path: Path, make: str) -> None:
    """A commit must not have the default settings where its checkout has none."""
    repository = Repository(tmp_path)
    repository.write({"main.yaml": CLUSTER, ".settings.yaml": "owners: [{path: /, teams: [x]}]\n"})
    if make == "link":
        (tmp_path / "avactl.yaml").symlink_to(".settings.yaml")
    else:
        repository.write({"avactl.yaml/x.txt": "x"})
    repository.commit()
    for tree in (DirTree(tmp_path), GitTree(tmp_path, "HEAD")):
        assert ("file-unreadable", "avactl.yaml") in [(d.code, d.span.file) for d in compile_tree(tree).diagnostics]


def test_a_repository_in_the_tree_is_told_and_can_be_excluded(tmp_path: Path, module: Repository) -> None:
    repository = Repository(tmp_path / "repository")
    repository.write({"main.yaml": CLUSTER})
    shutil.copytree(module.root, repository.root / "third")
    repository.git("-c", "advice.addEmbeddedRepo=false", "add", "-A")
    repository.git("commit", "-q", "-m", "all")
    for tree in (DirTree(repository.root), GitTree(repository.root, "HEAD")):
        (problem,) = compile_tree(tree).diagnostics
        assert (problem.code, problem.severity, problem.span.file) == ("file-not-read", "warning", "third")
    repository.commit({"avactl.yaml": "exclude: [third]\n"})
    for tree in (DirTree(repository.root), GitTree(repository.root, "HEAD")):
        assert compile_tree(tree).diagnostics == ()
