"""What CI compiles: the commit that is checked out, and no checkout that differs from it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from avactl.compiler import compile_tree
from avactl.spec.repository.checkout import CommitTree, open_tree
from avactl.spec.repository.tree import DirTree
from tests.cli.running import Run
from tests.diff.repository import Repository
from tests.diff.sides import HEAD, PLATFORM, job

CI = {"AVACTL_SOURCE": "", "CI": "true"}
_HIDDEN = HEAD + job(env={"NOTE": "TEXT"}).replace("TEXT", "see docs”, LD_PRELOAD: /evil.so, Z: “ok")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    found = Repository(tmp_path / "repository")
    found.commit({"platform.yaml": PLATFORM, "jobs.yaml": HEAD + job()})
    return found


def fresh(repository: Repository) -> None:
    """Make the work tree a fresh checkout of HEAD."""
    for path in repository.root.iterdir():
        if path.name != ".git":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    repository.git("checkout", "-q", "--force", "HEAD", "--", ".")


@pytest.mark.parametrize(
    ("attribute", "text"),
    [
        ("working-tree-encoding=ASCII//TRANSLIT", _HIDDEN),
        ("ident", HEAD + job(env={"NOTE": "$Id$"})),
        ("text eol=crlf", HEAD + job(retries=7)),
        ("filter=evil", HEAD + job(retries=7)),
    ],
    ids=["encoding", "ident", "eol", "filter"],
)
def test_attributes_that_change_a_file_at_checkout(
    repository: Repository, avactl: Run, attribute: str, text: str
) -> None:
    repository.git("config", "filter.evil.smudge", "sed s/retries/replicas/")
    repository.commit({"x.yaml": text.replace("name: j", "name: x")})
    repository.write({".gitattributes": f"x.yaml {attribute}\n"})
    repository.git("add", ".gitattributes")  # alone: the other text is not what git would store
    repository.git("commit", "-q", "-m", "attributes")
    fresh(repository)
    blob, file = CommitTree(repository.root).read("x.yaml"), DirTree(repository.root).read("x.yaml")
    assert blob != file, "the attribute has no effect"
    for command in (("validate",), ("render", "-o", "-"), ("stacks",), ("validate", "--format", "json")):
        done = avactl(*command, cwd=repository.root, **CI)
        assert done.returncode == 1, command
        assert "checkout-differs" in done.stdout + done.stderr
        assert "x.yaml" in done.stdout + done.stderr
    assert "LD_PRELOAD" not in avactl("render", "-o", "-", cwd=repository.root, **CI).stdout


def test_a_checkout_like_its_commit_is_compiled(repository: Repository, avactl: Run) -> None:
    repository.write({"notes.txt": "untracked", "venv/.hidden/x.yaml": "x"})
    by_commit = avactl("render", "-o", "-", cwd=repository.root, **CI)
    assert (by_commit.returncode, by_commit.stderr) == (0, "")
    assert by_commit.stdout == avactl("render", "-o", "-", cwd=repository.root).stdout
    assert avactl("validate", cwd=repository.root, **CI).stdout.startswith("ok: ")
    assert avactl("render", "-o", "out", cwd=repository.root, **CI).returncode == 0
    assert avactl("validate", cwd=repository.root, **CI).stdout.startswith("ok: ")  # with the output beside it


def test_files_that_a_step_of_the_pipeline_changed(repository: Repository, avactl: Run) -> None:
    def problems(**env: str) -> list[str]:
        done = avactl("validate", cwd=repository.root, **env)
        return [line for line in done.stdout.splitlines() if line.startswith("error") or "-->" in line]

    commit = repository.git("rev-parse", "HEAD")[:10]
    repository.write({"jobs.yaml": HEAD + job(retries=7), "new.yaml": HEAD + job("new")})
    (repository.root / "platform.yaml").unlink()
    differs, missing = f"this file differs from the commit {commit}", f"this file is not in the commit {commit}"
    assert problems(**CI) == [
        f"error[checkout-differs]: {differs}",
        "  --> jobs.yaml:1:1",
        f"error[checkout-differs]: {missing}",
        "  --> new.yaml:1:1",
        f"error[checkout-differs]: {differs}",
        "  --> platform.yaml:1:1",
    ]
    assert not any("checkout-differs" in line for line in problems())
    done = avactl("validate", "--source", "commit", cwd=repository.root)
    assert (done.returncode, "checkout-differs" in done.stdout) == (1, True)
    done = avactl("validate", "--source", "work-tree", cwd=repository.root, **CI)
    assert "checkout-differs" not in done.stdout
    done = avactl("validate", "--source", "index", cwd=repository.root)
    assert (done.returncode, "`commit` or `work-tree`" in done.stderr) == (2, True)


@pytest.mark.parametrize("variable", ["CI", "GITHUB_ACTIONS", "GITLAB_CI"])
def test_what_is_ci(repository: Repository, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    for name in ("AVACTL_SOURCE", "CI", "GITHUB_ACTIONS", "GITLAB_CI"):
        monkeypatch.delenv(name, raising=False)
    for value, kind in (("true", CommitTree), ("1", CommitTree), ("false", DirTree), ("0", DirTree), ("", DirTree)):
        monkeypatch.setenv(variable, value)
        assert type(open_tree(repository.root)) is kind, value


def test_what_no_commit_has_is_compiled_as_it_is(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory outside of git, one that a step of the pipeline made, and a repository without commits."""
    monkeypatch.delenv("AVACTL_SOURCE")
    monkeypatch.setenv("CI", "true")
    made = repository.root / "build"
    for place in (tmp_path / "plain", made, Repository(tmp_path / "empty").root):
        place.mkdir(exist_ok=True)
        (place / "platform.yaml").write_text(PLATFORM)
        assert compile_tree(open_tree(place)).ok
    assert type(open_tree(made)) is DirTree
    repository.commit()
    assert type(open_tree(made)) is CommitTree


def test_settings_of_stacks_are_of_the_commit(repository: Repository) -> None:
    repository.commit({"stacks/Pulumi.yaml": "name: x\n", "stacks/Pulumi.main.yaml": "config: {}\n"})
    assert compile_tree(CommitTree(repository.root)).ok
    repository.write({"stacks/Pulumi.main.yaml": "config: {avactl:kubeconfig: /evil}\n"})
    (problem,) = (d for d in compile_tree(CommitTree(repository.root)).diagnostics if d.severity == "error")
    assert (problem.code, problem.span.file) == ("checkout-differs", "stacks/Pulumi.main.yaml")


def test_files_that_specs_refer_to(repository: Repository) -> None:
    objects = "kind: KubernetesObjects\nmetadata: {name: o, team: vision}\nspec: {files: [o/a.yaml]}\n"
    config = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: b}\n"
    repository.commit({"avactl.yaml": "exclude: [o]\n", "x.yaml": HEAD + objects, "o/a.yaml": config})
    assert compile_tree(CommitTree(repository.root)).ok
    repository.write({"o/a.yaml": config.replace("a: b", "a: c")})
    (problem,) = compile_tree(CommitTree(repository.root)).diagnostics
    assert (problem.code, problem.span.file) == ("checkout-differs", "o/a.yaml")
    repository.write({"o/a.yaml": config, "o/unused.yaml": "x: 1\n"})
    assert compile_tree(CommitTree(repository.root)).ok


def test_edits_are_of_the_work_tree(repository: Repository, avactl: Run) -> None:
    """In CI too: one `set` after another, and corrections."""
    for retries in (5, 6):
        done = avactl("set", "jobs.yaml", f"spec.retries={retries}", cwd=repository.root, **CI)
        assert done.returncode == 0, done.stderr
    assert "retries: 6" in (repository.root / "jobs.yaml").read_text()
    repository.write({"jobs.yaml": HEAD + job().replace("workers:", "worker:")})
    assert avactl("validate", "--fix", cwd=repository.root, **CI).returncode == 0
