"""`avactl init`: what it writes for each engine and forge, and where its pipelines get avactl."""

from __future__ import annotations

import hashlib
import os
import pty
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from avactl import compile_tree
from avactl.base.installation import InstallationOrigin
from avactl.forges import FORGES
from avactl.spec.repository.tree import DirTree
from avactl.workbench.scaffold import create, template_files
from avactl.workbench.scaffold.choice import ENGINES, ChoiceError, ScaffoldChoice, requirement_line, source_of
from tests.cli.running import Run
from tests.diff.repository import Repository
from tools.waiting import patience

GITHUB = {
    "pulumi": {"avactl.yml", "avactl-apply.yml", "avactl-drift.yml", "avactl-stack.yml"},
    "flux": {"avactl.yml", "avactl-publish.yml"},
    "argocd": {"avactl.yml", "avactl-publish.yml"},
    "builtin": {"avactl.yml"},
    "none": {"avactl.yml"},
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
HASH = "ab" * 32
WITH_PIPELINES = [forge.name for forge in FORGES if not forge.no_pipelines]


@pytest.mark.parametrize("clusters", [("lab",), ("east", "west")])
@pytest.mark.parametrize("engine", ENGINES)
def test_each_engine_gets_what_it_needs(tmp_path: Path, engine: str, clusters: tuple[str, ...]) -> None:
    create(tmp_path, template_files(ScaffoldChoice(engine, "both", clusters)))
    compilation = compile_tree(DirTree(tmp_path))
    assert (compilation.ok, compilation.diagnostics) == (True, ())
    specs = compilation.program.clusters()
    assert [item.name for item in specs] == list(clusters)
    assert {item.spec.reconcile.mode for item in specs} == {"files" if engine == "none" else engine}
    assert {path.name for path in (tmp_path / ".github" / "workflows").iterdir()} == GITHUB[engine]
    assert (tmp_path / "stacks").exists() is (tmp_path / ".gitlab").exists() is (engine == "pulumi")
    pipeline = yaml.safe_load((tmp_path / ".gitlab-ci.yml").read_text())
    jobs = {name for name, job in pipeline.items() if isinstance(job, dict) and "stage" in job}
    after = {"pulumi": {"stacks", "apply"}, "flux": {"publish"}, "argocd": {"publish"}}
    assert jobs == {"validate", "comment", "plan"} | after.get(engine, set())
    assert set(pipeline["stages"]) == {pipeline[job]["stage"] for job in jobs}
    installs = 0
    for file in [*(tmp_path / ".github").rglob("*.yml"), tmp_path / ".gitlab-ci.yml", *tmp_path.glob(".gitlab/*")]:
        for options, path in re.findall(r"pip install (.*) -r (\S+)", file.read_text()):
            assert options in ("--quiet --require-hashes", "--quiet --no-deps")
            assert (tmp_path / path).is_file()
            installs += 1
        text = file.read_text()
        assert "APPLIED" not in text
        assert text.count("pip install") == len(
            re.findall(r"pip install --quiet --(?:require-hashes|no-deps) -r", text)
        )
    assert installs >= 4
    assert "APPLIED" not in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize("clusters", [("lab",), ("east", "west")])
@pytest.mark.parametrize("engine", ENGINES)
def test_each_engine_in_environments(tmp_path: Path, engine: str, clusters: tuple[str, ...]) -> None:
    create(tmp_path, template_files(ScaffoldChoice(engine, "both", clusters, ("staging", "prod"))))
    for name in ("staging", "prod"):
        compilation = compile_tree(DirTree(tmp_path, environment=name))
        assert (compilation.ok, compilation.diagnostics) == (True, ())
        specs = compilation.program.clusters()
        assert [item.name for item in specs] == [f"{name}-{cluster}" for cluster in clusters]
        (job,) = compilation.program.of("TrainingJob")
        assert job.resource.metadata.labels == {"environment": name}
    assert {path.name for path in (tmp_path / ".github" / "workflows").iterdir()} == GITHUB[engine]
    workflows = {path.name: yaml.safe_load(path.read_text()) for path in tmp_path.glob(".github/workflows/*")}
    pipeline = yaml.safe_load((tmp_path / ".gitlab-ci.yml").read_text())
    if engine == "pulumi":
        for file, jobs in (("avactl-apply.yml", ("platform", "teams")), ("avactl-drift.yml", ("drift",))):
            for called in (workflows[file]["jobs"][each] for each in jobs):
                assert set(called["strategy"]["matrix"]) == {"include"}
                assert called["with"]["environment"] == "${{ matrix.environment }}"
        stack = workflows["avactl-stack.yml"]
        assert stack["jobs"]["stack"]["env"]["AVACTL_ENVIRONMENT"] == "${{ inputs.environment }}"
        assert stack[True]["workflow_call"]["inputs"]["environment"]["required"] is True
    elif engine in ("flux", "argocd"):
        job = workflows["avactl-publish.yml"]["jobs"]["publish"]
        assert job["strategy"]["matrix"] == {"environment": ["staging", "prod"]}
        assert pipeline["publish"]["parallel"]["matrix"] == [{"AVACTL_ENVIRONMENT": ["staging", "prod"]}]


def step_environment(folder: Path) -> dict[str, str]:
    """Make an `avactl` program below `folder`; return the variables of a publishing step, which pushes to `central`."""
    program = folder / "bin" / "avactl"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m avactl.cli.main "$@"\n')
    program.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "RENDERED_TOKEN": "t",
        "CI_PROJECT_URL": str(folder / "central"),
        "GITHUB_TOKEN": "t",
        "HOME": str(folder),
    }


def run_step(script: str, repository: Repository, environment: dict[str, str]) -> None:
    """Run a step as the forges do."""
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script],
        cwd=repository.root,
        env=environment,
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout


def test_the_publishing_step_of_each_environment(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "specs")
    create(repository.root, template_files(ScaffoldChoice("flux", "both", environments=("staging", "prod"))))
    repository.commit()
    subprocess.run(["git", "init", "-q", "--bare", str(tmp_path / "central.git")], check=True)
    repository.git("remote", "add", "origin", str(tmp_path / "central.git"))
    workflow = yaml.safe_load((repository.root / ".github/workflows/avactl-publish.yml").read_text())
    on_github = workflow["jobs"]["publish"]["steps"][-1]
    assert on_github["env"]["AVACTL_ENVIRONMENT"] == "${{ matrix.environment }}"
    on_gitlab = yaml.safe_load((repository.root / ".gitlab-ci.yml").read_text())["publish"]["script"]
    for name, script in (("staging", on_github["run"]), ("prod", "\n".join(on_gitlab))):
        run_step(script, repository, {**step_environment(tmp_path), "AVACTL_ENVIRONMENT": name})
        files = ["git", "--git-dir", str(tmp_path / "central.git"), "ls-tree", "--name-only", f"rendered-{name}"]
        assert f"{name}-lab" in subprocess.run(files, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("forge", [*WITH_PIPELINES, "none"])
def test_each_forge(forge: str) -> None:
    files = template_files(ScaffoldChoice("flux", forge))
    for each in FORGES:
        assert any(path.startswith(each.pipeline_paths) for path in files) is (forge == each.name)
    assert any(path.startswith(".github/") for path in files) is (forge == "github")
    assert (".gitlab-ci.yml" in files) is (forge == "gitlab")
    assert not any("publish" in path for path in files if "/workflows/" not in path)


def test_without_pulumi_the_lock_lacks_its_packages() -> None:
    """Exactly those of the extras `ci` and `cluster`, for every platform."""

    def names(text: str) -> set[str]:
        return set(re.findall(r"^([\w.-]+)==", text, re.MULTILINE))

    def needed(name: str, extras: frozenset[str], known: set[str]) -> set[str]:
        known.add(canonicalize_name(name))
        for text in metadata.requires(name) or ():
            one = Requirement(text)
            applies = one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras))
            if applies and canonicalize_name(one.name) not in known:
                needed(one.name, frozenset(one.extras), known)
        return known

    whole = names(template_files(ScaffoldChoice("pulumi"))["stacks/requirements.lock"].decode())
    small = names(template_files(ScaffoldChoice("none"))["requirements.lock"].decode())
    extras = frozenset({"ci", "cluster"})
    for name in whole - small:
        assert name not in needed("avactl", extras, set()), name
    assert "pulumi" in whole - small
    assert needed("avactl", extras, set()) - {"avactl"} <= small


@pytest.mark.parametrize("forge", ["github", "gitlab"])
def test_the_publishing_steps(tmp_path: Path, forge: str) -> None:
    repository = Repository(tmp_path / "specs")
    create(repository.root, template_files(ScaffoldChoice("argocd", forge)))
    commit = repository.commit()
    subprocess.run(["git", "init", "-q", "--bare", str(tmp_path / "central.git")], check=True)
    repository.git("remote", "add", "origin", str(tmp_path / "central.git"))
    if forge == "github":
        workflow = yaml.safe_load((repository.root / ".github/workflows/avactl-publish.yml").read_text())
        assert workflow["permissions"] == {"contents": "read"}
        job = workflow["jobs"]["publish"]
        assert job["permissions"] == {"contents": "write"}
        assert all("${{" not in step.get("run", "") for step in job["steps"])
        assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]) for step in job["steps"] if "uses" in step)
        (script,) = [step["run"] for step in job["steps"] if step.get("name") == "Publish"]
    else:
        script = "\n".join(yaml.safe_load((repository.root / ".gitlab-ci.yml").read_text())["publish"]["script"])
    environment = step_environment(tmp_path)
    run_step(script, repository, environment)
    log = ["git", "--git-dir", str(tmp_path / "central.git"), "log", "-1", "--format=%B", "rendered"]
    assert f"Avactl-Source: {commit}" in subprocess.run(log, capture_output=True, text=True, check=True).stdout
    # The helper that the step sets answers git with the token.
    asked = ["git", "credential", "fill"]
    said = subprocess.run(
        asked,
        cwd=repository.root,
        env={**environment, "GIT_TERMINAL_PROMPT": "0"},
        capture_output=True,
        text=True,
        input="protocol=https\nhost=git.example.com\n\n",
        check=True,
    )
    assert "password=t\n" in said.stdout


def test_where_pipelines_get_avactl(tmp_path: Path) -> None:
    wheel = tmp_path / "avactl-9.9-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    digest = hashlib.sha256(b"wheel").hexdigest()
    assert source_of(str(wheel)) == InstallationOrigin(
        "https://REPLACE.example.com/avactl-9.9-py3-none-any.whl", digest
    )
    assert source_of(wheel.as_uri()) == source_of(str(wheel))
    url = "https://files.example.com/avactl-9.9-py3-none-any.whl"
    assert source_of(f"{url}#sha256={HASH}") == InstallationOrigin(url, HASH)
    git = f"git+https://git.example.com/avactl.git@{COMMIT}"
    assert requirement_line(ScaffoldChoice(source=source_of(git)), "9.9") == f"avactl[ci,cluster,pulumi] @ {git}"
    line = requirement_line(ScaffoldChoice("flux", source=source_of(f"{url}#sha256={HASH}")), "9.9")
    assert line == f"avactl[ci,cluster] @ {url} \\\n    --hash=sha256:{HASH}"
    for wrong in (url, f"{url}#sha256=12", "git+https://git.example.com/avactl.git@v1", "http://x/y.whl", "avactl"):
        with pytest.raises(ChoiceError, match="--from"):
            source_of(wrong)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--engine", "fluxx"], "--engine fluxx must be one of pulumi, flux, argocd, builtin, none"),
        (["--forge", "srht"], "--forge srht must be one of github, gitlab, gitea, forgejo, both, none"),
        (["--clusters", "a,a"], "--clusters must be different names, separated by commas"),
        (["--clusters", "A"], "`A` is not a cluster name: use lowercase letters, digits and `-`"),
        (["--example", "ava", "--engine", "flux"], "--example excludes all other options"),
        (["--example", "eva"], "no example `eva`; there are: ava"),
    ],
)
def test_wrong_choices(avactl: Run, tmp_path: Path, words: list[str], message: str) -> None:
    done = avactl("init", "there", *words)
    assert (done.returncode, done.stderr.strip()) == (2, f"avactl: {message}")
    assert not (tmp_path / "there").exists()


def test_in_a_terminal_it_asks(tmp_path: Path) -> None:
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "avactl.cli.main", "init", "here", "--forge", "none"]
    with subprocess.Popen(command, cwd=tmp_path, stdin=child, stdout=child, stderr=child) as process:
        os.close(child)
        os.write(parent, b"argocd\neast, west\n")
        said = b""
        while True:
            try:
                said += os.read(parent, 65536)
            except OSError:  # the terminal is closed
                break
        assert process.wait(patience()) == 0, said
    assert b"Which pipelines?" not in said
    assert {path.name for path in (tmp_path / "here" / "clusters").iterdir()} == {"east.yaml", "west.yaml"}
    assert "mode: argocd" in (tmp_path / "here" / "clusters" / "east.yaml").read_text()
    assert not (tmp_path / "here" / ".github").exists()
