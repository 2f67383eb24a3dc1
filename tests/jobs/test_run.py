"""`avactl run`: a commit on a branch of its own, or an experiment that expires."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import Run, avactl  # noqa: F401 - a fixture
from tests.cli.test_viewing import GONE as UNREACHABLE
from tests.diff.repository import Repository
from tests.jobs.lab import NAMESPACE, PLATFORM, Lab, job

AUTHOR = {
    "GIT_AUTHOR_NAME": "ann",
    "GIT_AUTHOR_EMAIL": "ann@example.com",
    "GIT_COMMITTER_NAME": "ann",
    "GIT_COMMITTER_EMAIL": "ann@example.com",
}


def spec(text: str) -> str:
    """Return documents with their apiVersion."""
    parts = [part.strip() for part in text.split("\n---\n") if part.strip()]
    return "---\n".join(f"apiVersion: avactl.dev/v1\n{part.removeprefix('---').strip()}\n" for part in parts)


@pytest.fixture
def specs(tmp_path: Path) -> Repository:
    """A repository with a platform below `specs`, and another file beside it."""
    repository = Repository(tmp_path / "repository")
    repository.commit({"specs/avactl.yaml": "include: [.]\n", "specs/platform.yaml": spec(PLATFORM), "notes": "a\n"})
    return repository


def state(repository: Repository) -> tuple[str, ...]:
    """Return what a run must leave alone."""
    return (
        repository.git("status", "--porcelain", "--ignored"),
        repository.git("rev-parse", "HEAD"),
        repository.git("symbolic-ref", "HEAD"),
        repository.git("diff", "--cached"),
        (repository.root / ".git" / "index").read_bytes().hex(),
    )


def test_a_file_is_committed_beside_the_work_tree(avactl: Run, specs: Repository, tmp_path: Path) -> None:  # noqa: F811
    specs.write({"specs/teams/try.yaml": spec(job("try")), "notes": "changed\n", "specs/broken.yaml": "kind: ["})
    specs.git("add", "notes")
    specs.git("init", "-q", "--bare", str(tmp_path / "remote.git"))
    specs.git("remote", "add", "origin", str(tmp_path / "remote.git"))
    before = state(specs)
    done = avactl("run", "repository/specs/teams/try.yaml", **AUTHOR)
    assert done.returncode == 0, done.stderr
    assert state(specs) == before
    assert done.stdout.startswith("TrainingJob vision/try   new")
    (branch,) = specs.git("branch", "--list", "run/*", "--format=%(refname:short)").split()
    assert f"branch {branch}: teams/try.yaml on {before[1][:10]}\n" in done.stdout
    assert "1 other file with uncommitted changes not included\npushed to origin\n" in done.stdout
    assert f"`avactl wait {NAMESPACE}/try`" in done.stdout
    assert specs.git("diff", "--name-status", "HEAD", branch) == "A\tspecs/teams/try.yaml"
    assert specs.git("show", f"{branch}:specs/teams/try.yaml") == spec(job("try")).strip()
    assert specs.git("log", "-1", "--format=%s by %an on %P", branch) == f"Run vision/try by ann on {before[1]}"
    assert branch in specs.git("ls-remote", "origin")
    done = avactl("run", "specs/teams/try.yaml", "--branch", branch, cwd=specs.root, **AUTHOR)
    assert (done.returncode, f"the branch {branch} exists already" in done.stderr) == (3, True), done.stderr
    done = avactl("run", "specs/teams/try.yaml", "--no-push", "--branch=mine", "-m", "Again", cwd=specs.root, **AUTHOR)
    assert "not pushed" in done.stdout
    assert specs.git("log", "-1", "--format=%s", "mine") == "Again"
    assert "mine" not in specs.git("ls-remote", "origin")


def test_a_change_of_a_file_keeps_its_mode(avactl: Run, specs: Repository) -> None:  # noqa: F811
    specs.commit({"specs/try.yaml": spec(job("try"))})
    specs.git("update-index", "--chmod=+x", "specs/try.yaml")
    specs.git("commit", "-qm", "mode")
    done = avactl("run", "specs/try.yaml", cwd=specs.root, **AUTHOR)
    assert (done.returncode, "committed already" in done.stderr) == (2, True)
    specs.write({"specs/try.yaml": spec(job("try", "retries: 7"))})
    done = avactl("run", "specs/try.yaml", "--branch", "mine", cwd=specs.root, **AUTHOR)
    assert done.returncode == 0, done.stderr
    assert specs.git("ls-tree", "mine", "specs/try.yaml").startswith("100755")


@pytest.mark.parametrize(
    ("files", "name", "code", "told"),
    [
        ({"specs/try.yaml": spec(job("try", "workrs: {}"))}, "try.yaml", 1, "did you mean `workers`?"),
        ({"specs/try.yaml": spec(job("try", "workers: {gpus: 9, gpu: V100}"))}, "try.yaml", 1, "V100"),
        ({"specs/.try.yaml": spec(job("try"))}, ".try.yaml", 2, "hidden files are not specs"),
        ({"specs/try.yaml": "# nothing\n"}, "try.yaml", 2, "declares no training job"),
        ({}, "try.yaml", 2, "not a regular file"),
    ],
    ids=["key", "size", "hidden", "empty", "missing"],
)
def test_what_is_refused(
    avactl: Run,  # noqa: F811
    specs: Repository,
    files: dict[str, str],
    name: str,
    code: int,
    told: str,
) -> None:
    specs.write(files)
    before = state(specs)
    for options in ((), ("--now", "--kubeconfig", "nowhere")):
        done = avactl("run", f"specs/{name}", *options, cwd=specs.root, **AUTHOR)
        assert (done.returncode, told in done.stderr) == (code, True), done.stderr
    assert state(specs) == before
    assert specs.git("branch", "--list", "run/*") == ""


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--for", "1h"), "`--for` and `--keep` are of an experiment"),
        (("--now", "--branch", "mine"), "`--branch` and `--message` are of a commit"),
    ],
)
def test_options_of_the_other_way_are_refused(
    avactl: Run,  # noqa: F811
    specs: Repository,
    options: tuple[str, ...],
    told: str,
) -> None:
    specs.write({"specs/try.yaml": spec(job("try"))})
    done = avactl("run", "specs/try.yaml", *options, cwd=specs.root, **AUTHOR)
    assert (done.returncode, told in done.stderr) == (2, True), done.stderr
    assert specs.git("branch", "--list", "run/*", "mine") == ""


def test_without_a_commit_or_a_name(avactl: Run, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "try.yaml").write_text(spec(job("try")))
    done = avactl("run", "try.yaml", **AUTHOR)
    assert (done.returncode, "is not in a git repository" in done.stderr) == (3, True), done.stderr
    repository = Repository(tmp_path / "empty")
    repository.write({"try.yaml": spec(job("try"))})
    done = avactl("run", "empty/try.yaml", **AUTHOR)
    assert (done.returncode, "`HEAD` is not a commit" in done.stderr) == (2, True), done.stderr
    repository.commit({"platform.yaml": spec(PLATFORM), "avactl.yaml": "{}", "other": ""})
    repository.write({"try.yaml": spec(job("try", "retries: 1"))})
    done = avactl("run", "empty/try.yaml", GIT_AUTHOR_NAME="", GIT_AUTHOR_EMAIL="", GIT_CONFIG_NOSYSTEM="1")
    assert (done.returncode, "git does not know who you are" in done.stderr) == (3, True), done.stderr
    assert repository.git("branch", "--list", "run/*") == ""
    done = avactl("run", "empty/try.yaml", "--branch=-x", **AUTHOR)
    assert (done.returncode, "is not a valid branch name" in done.stderr) == (3, True), done.stderr


# -- experiments ---------------------------------------------------------------------------------------------------


def start(lab: Lab, specs: Repository, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    specs.write({"specs/try.yaml": spec(text)})
    command = lab.command("run", "specs/try.yaml", "--now", *options)
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=specs.root, env={**os.environ, **AUTHOR}
    )


def objects(lab: Lab) -> dict[str, dict[str, Any]]:
    """Return everything that is labelled as an experiment, by kind and name."""
    found = {}
    kinds = {"batch/v1": ["Job"], "v1": ["Service", "ConfigMap", "PersistentVolumeClaim"]}
    for version, names in {**kinds, "policy/v1": ["PodDisruptionBudget"]}.items():
        for kind in names:
            for item in lab.kube.list(version, kind, NAMESPACE, label_selector="avactl.dev/experiment"):
                found[f"{kind} {item['metadata']['name']}"] = item
    return found


@pytest.mark.controlplane
@pytest.mark.xdist_group("jobs")
def test_an_experiment_runs_beside_git_and_expires(lab: Lab, specs: Repository) -> None:
    text = job("try", "strategy: allReduce, workers: {replicas: 2, gpus: 1, gpu: V100}")
    done = start(lab, specs, text, "--for", "1h", "--keep", "10m")
    assert done.returncode == 0, done.stderr
    place = done.stdout.split()[0]
    name = place.partition("/")[2]
    assert name.startswith("try-")
    assert lab.state(name, "running")["workers"] == 2
    assert "experiment, ends in " in lab.avactl("jobs", "-n", NAMESPACE).stdout
    there = objects(lab)
    leader = there.pop(f"Job {name}-worker")
    assert (leader["spec"]["activeDeadlineSeconds"], leader["spec"]["ttlSecondsAfterFinished"]) == (3600, 600)
    # Members write no policies: by this label, the Team's own policy lets its pods reach each other.
    assert leader["spec"]["template"]["metadata"]["labels"]["avactl.dev/experiment"] == name
    assert {f"Service {name}-rendezvous", f"ConfigMap {name}-rendezvous", f"PodDisruptionBudget {name}"} == set(there)
    for each in there.values():
        (owner,) = each["metadata"]["ownerReferences"]
        assert owner["uid"] == leader["metadata"]["uid"]
    # An engine that follows git neither adopts nor deletes it.
    (specs.root / "specs" / "try.yaml").unlink()
    told = lab.avactl("reconcile", "specs", "--once", "--no-wait", kubeconfig=lab.plane.kubeconfig, cwd=specs.root)
    assert told.returncode == 0, told.stdout + told.stderr
    assert name not in told.stdout
    assert (
        "avactl.dev/inventory" not in lab.kube.get("batch/v1", "Job", f"{name}-worker", NAMESPACE)["metadata"]["labels"]
    )
    assert lab.jobs()[name]["state"] == "running"
    lab.delete(name)
    lab.until(lambda: not objects(lab))


def test_an_experiment_spares_the_checkpoints_of_others(avactl: Run, specs: Repository) -> None:  # noqa: F811
    (specs.root.parent / "config").write_text(UNREACHABLE)
    saves = "checkpoint: {path: 's3://results/PATH'}"
    buckets = "buckets: [{name: r, url: 's3://results', secret: s}]"
    team = PLATFORM.replace("members: {groups: [vision]}", f"members: {{groups: [vision]}}, {buckets}")
    specs.commit({"specs/platform.yaml": spec(team), "specs/base.yaml": spec(job("base", saves.replace("PATH", "a")))})
    for path, told in (("a", "vision/base saves its checkpoints in s3://results/a"), ("ab", "no answer")):
        specs.write({"specs/base.yaml": spec(job("base", f"{saves.replace('PATH', path)}, retries: 9"))})
        done = avactl("run", "specs/base.yaml", "--now", "--kubeconfig", "../config", cwd=specs.root)
        assert (done.returncode in (2, 3), told in done.stderr) == (True, True), done.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (job("try", "suspended: true"), "is suspended: it would never end"),
        (job("try", "schedule: {cron: '0 3 * * *'}"), "has a schedule: it would never end"),
        (f"{job('try')}\npatches: [{{target: {{kind: Job}}, merge: {{spec: {{suspend: true}}}}}}]\n", "is suspended"),
    ],
)
def test_what_never_ends_is_no_experiment(avactl: Run, specs: Repository, text: str, told: str) -> None:  # noqa: F811
    (specs.root.parent / "config").write_text(UNREACHABLE)
    specs.write({"specs/try.yaml": spec(text)})
    done = avactl("run", "specs/try.yaml", "--now", "--kubeconfig", "../config", cwd=specs.root)
    assert (done.returncode, told in done.stderr) == (2, True), done.stderr


@pytest.mark.controlplane
@pytest.mark.xdist_group("jobs")
def test_an_experiment_is_deleted_by_the_cluster_alone(lab: Lab, specs: Repository) -> None:
    text = job("brief", "strategy: allReduce, workers: {replicas: 2}")
    done = start(lab, specs, text, "--for", "3s", "--keep", "1s")
    assert done.returncode == 0, done.stderr
    assert objects(lab)
    lab.until(lambda: not objects(lab))
    lab.until(lambda: not any(name.startswith("brief-") for name in lab.jobs()))


@pytest.mark.controlplane
@pytest.mark.xdist_group("jobs")
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("framework: custom, strategy: elastic, workers: {min: 1, max: 2}", "serviceaccounts is forbidden"),
        ("priority: high", "member-priority"),
    ],
)
def test_what_a_member_may_not_do(lab: Lab, specs: Repository, text: str, told: str) -> None:
    done = start(lab, specs, job("no", text))
    assert (done.returncode in (2, 3), told in done.stderr) == (True, True), done.stderr
    assert not objects(lab)
    assert not any(name.startswith("no-") for name in lab.jobs())
