"""`avactl ci comment` as pipelines run it: the environment, git, a server, exit codes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from avactl.forges import FORGES, current_run
from avactl.forges.forge import EnvironmentProblem
from tests.cli.running import Run
from tests.diff.repository import Repository
from tests.diff.sides import HEAD, PLATFORM, job
from tests.review.forges import TOKEN, FakeForge, FakeGitea, FakeGitHub, FakeGitLab, serving


@pytest.fixture(autouse=True)
def no_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run in pipelines too."""
    for name in list(os.environ):
        if name.startswith(("GITHUB_", "GITLAB_", "GITEA_", "FORGEJO_", "CI_", "GH_")):
            monkeypatch.delenv(name)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A branch that changes a job, and a main branch that has gone on."""
    found = Repository(tmp_path / "repo")
    found.commit({"platform.yaml": PLATFORM, "jobs.yaml": HEAD + job()})
    found.git("switch", "-q", "-c", "topic")
    found.commit({"jobs.yaml": HEAD + job(retries=7)})
    found.git("switch", "-q", "main")
    found.commit({"platform.yaml": PLATFORM.replace("count: 4", "count: 3")})
    found.git("update-ref", "refs/remotes/origin/main", "main")
    found.git("switch", "-q", "topic")
    return found


@pytest.fixture
def github() -> Iterator[FakeForge]:
    with serving(FakeGitHub()) as found:
        yield found


def github_env(forge: FakeForge, tmp_path: Path, *, fork: bool = False, number: int = 7) -> dict[str, str]:
    """What GitHub Actions sets in a job for a pull request."""
    event = {
        "pull_request": {
            "number": number,
            "base": {"sha": "0" * 40, "ref": "main", "repo": {"full_name": "acme/platform"}},
            "head": {"repo": {"full_name": "mallory/platform" if fork else "acme/platform"}},
        }
    }
    (tmp_path / "event.json").write_text(json.dumps(event))
    return {
        "GITHUB_ACTIONS": "true",
        "GITHUB_REPOSITORY": "acme/platform",
        "GITHUB_REF": f"refs/pull/{number}/merge",
        "GITHUB_EVENT_PATH": str(tmp_path / "event.json"),
        "GITHUB_API_URL": forge.url,
        "GITHUB_TOKEN": TOKEN,
        "GITHUB_RUN_ID": "99",
        "GITHUB_SERVER_URL": "https://github.example.com",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }


def test_on_github(repository: Repository, github: FakeForge, avactl: Run, tmp_path: Path) -> None:
    env = github_env(github, tmp_path)
    done = avactl("ci", "comment", "--artifact", "whole.txt", cwd=repository.root, **env)
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "comment created on pull request #7 of acme/platform\n",
        "",
    )
    (body,) = github.bodies()
    assert body.startswith("<!-- avactl comment: . -->\n### 1 intent changed · 1 object changed")
    assert "NodePool" not in body  # what main got meanwhile is not taken away
    assert "[`whole.txt`](https://github.example.com/acme/platform/actions/runs/99#artifacts)" in body
    assert "backoffLimit" in (repository.root / "whole.txt").read_text()

    repository.commit({"jobs.yaml": HEAD + job(strategy="allReduc")})
    github.comments[0]["body"] = f"Please look at this.\n\n{body}"  # a maintainer may write into it
    done = avactl("ci", "comment", cwd=repository.root, **env)
    assert (done.returncode, done.stdout) == (1, "comment edited on pull request #7 of acme/platform\n")
    (body,) = github.bodies()
    assert "It does not compile: 1 error" in body
    assert "did you mean `allReduce`?" in body

    repository.commit({"jobs.yaml": HEAD + job()})
    done = avactl("ci", "comment", cwd=repository.root, **env)
    assert done.returncode == 0
    (body,) = github.bodies()
    assert "avactl: no changes" in body
    assert TOKEN not in done.stdout + done.stderr + body


GITEA = {"GITEA_ACTIONS": "true", "GITEA_TOKEN": TOKEN}
"""Variables beside those of GitHub Actions; the runner puts the job's token into GITHUB_TOKEN, too."""
FORGEJO = {"GITEA_ACTIONS": "true", "FORGEJO_ACTIONS": "true", "FORGEJO_TOKEN": TOKEN}


@pytest.mark.parametrize("own", [GITEA, FORGEJO], ids=["gitea", "forgejo"])
def test_on_gitea_and_forgejo(repository: Repository, avactl: Run, tmp_path: Path, own: dict[str, str]) -> None:
    with serving(FakeGitea(me="gitea-actions")) as forge:
        env = github_env(forge, tmp_path) | own
        env |= {"GITHUB_REF": "refs/pull/7/head", "GITHUB_TOKEN": "0" * 40, "GITHUB_RUN_NUMBER": "3"}
        forged = forge.add("<!-- avactl comment: . -->\nApproved.", "mallory")["body"]
        done = avactl("ci", "comment", "--artifact", "whole.txt", cwd=repository.root, **env)
        assert (done.returncode, done.stdout, done.stderr) == (
            0,
            "comment created on pull request #7 of acme/platform\n",
            "",
        )
        run = "3#artifacts" if "FORGEJO_ACTIONS" in own else "99"
        assert f"(https://github.example.com/acme/platform/actions/runs/{run})" in forge.bodies()[1]
        repository.commit({"jobs.yaml": HEAD + job(retries=9)})
        done = avactl("ci", "comment", cwd=repository.root, **env)
        assert (done.returncode, done.stdout) == (0, "comment edited on pull request #7 of acme/platform\n")
        first, ours = forge.bodies()
        assert (first, "retries 3 → 9" in ours) == (forged, True)
        assert TOKEN not in done.stdout + done.stderr + ours

        forge.readable_only = True
        repository.commit({"jobs.yaml": HEAD + job(retries=8)})
        done = avactl("ci", "comment", cwd=repository.root, **env)
        assert (done.returncode, "write:issue" in done.stderr) == (3, True)
        done = avactl("ci", "comment", cwd=repository.root, **env | github_env(forge, tmp_path, fork=True) | own)
        assert (done.returncode, "from a fork is read-only" in done.stderr) == (0, True)
        # Forgejo shows no summary of a run.
        place = done.stdout if "FORGEJO_ACTIONS" in own else (tmp_path / "summary.md").read_text()
        assert "retries 3 → 8" in place


def test_on_gitlab_below_the_root(repository: Repository, avactl: Run) -> None:
    repository.commit({"below/platform.yaml": PLATFORM, "below/avactl.yaml": "{}\n"})
    with serving(FakeGitLab(me="bot")) as forge:
        env = {
            "GITLAB_CI": "true",
            "CI_API_V4_URL": forge.url,
            "CI_PROJECT_ID": "42",
            "CI_MERGE_REQUEST_IID": "7",
            "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main",
            "GITLAB_TOKEN": TOKEN,
            "CI_JOB_URL": "https://g.example.com/j/1",
        }
        done = avactl("ci", "comment", "below", "--artifact", "whole.txt", cwd=repository.root, **env)
        assert done.stdout == "comment created on merge request !7 of project 42\n", done.stderr
        (body,) = forge.bodies()
    assert body.startswith("<!-- avactl comment: below -->")
    assert "https://g.example.com/j/1/artifacts/file/whole.txt" in body


def test_each_environment_has_a_comment_of_its_own(
    repository: Repository, github: FakeForge, avactl: Run, tmp_path: Path
) -> None:
    overlay = "kind: TrainingJob\nmetadata: {name: j, team: vision}\nspec: {retries: 9}\n"
    settings = "environments: {staging: {overlays: [overlays/staging]}, prod: {overlays: []}}\n"
    repository.commit({"avactl.yaml": settings, "overlays/staging/job.yaml": HEAD + overlay})
    env = github_env(github, tmp_path)
    done = avactl("ci", "comment", "--artifact", "whole.txt", cwd=repository.root, **env)
    assert (done.returncode, done.stdout.count("comment created")) == (0, 2), done.stderr
    staging, prod = github.bodies()
    assert ("retries 3 → 9" in staging, "retries 3 → 7" in prod) == (True, True)
    assert "(environment staging)" in staging
    assert (repository.root / "whole.txt").read_text().count("# environment ") == 2
    again = avactl("ci", "comment", "--artifact", "whole.txt", cwd=repository.root, **env)
    assert again.stdout.count("up to date") == 2
    assert len(github.bodies()) == 2
    done = avactl("ci", "comment", "--dry-run", "--environment", "prod", "--base", "main", cwd=repository.root)
    assert ("retries 3 → 7" in done.stdout, "retries 3 → 9" in done.stdout) == (True, False)


def test_a_comment_on_one_environment_names_files_of_others(repository: Repository, avactl: Run) -> None:
    settings = "environments: {staging: {overlays: [overlays/staging]}, prod: {overlays: [overlays/prod]}}\n"
    head = HEAD + "kind: TrainingJob\nmetadata: {name: j, team: vision}\n"
    files = {f"overlays/{name}/jobs.yaml": f"{head}spec: {{timeout: 1h}}\n" for name in ("staging", "prod")}
    repository.commit({"avactl.yaml": settings, **files})
    repository.git("branch", "-f", "main")
    repository.commit({"overlays/prod/jobs.yaml": f"{head}spec: {{timeout: 2h}}\n"})

    def comment(*words: str) -> str:
        done = avactl("ci", "comment", "--dry-run", "--base", "main", *words, cwd=repository.root)
        assert done.returncode == 0, done.stderr
        return done.stdout

    told = "Files of environment `prod` change, too: `overlays/prod/jobs.yaml`."
    staging = comment("--environment", "staging")
    assert told in staging
    assert "no changes" in staging
    assert "Files of environment" not in comment("--environment", "prod")
    assert "Files of environment" not in comment()  # each has its comment


def test_a_fork_s_comment_goes_to_the_summary(
    repository: Repository, github: FakeForge, avactl: Run, tmp_path: Path
) -> None:
    github.readable_only = True
    done = avactl("ci", "comment", cwd=repository.root, **github_env(github, tmp_path, fork=True))
    assert done.returncode == 0
    assert "the token of a pull request from a fork is read-only" in done.stderr
    assert "retries 3 → 7" in (tmp_path / "summary.md").read_text()
    done = avactl("ci", "comment", cwd=repository.root, **github_env(github, tmp_path))
    assert done.returncode == 3
    assert "pull-requests: write" in done.stderr


def test_the_comment_says_whether_it_will_run(repository: Repository, avactl: Run, tmp_path: Path) -> None:
    # Two machines of four are taken, and a team without a quota wants four.
    big = job("other", "guests", workers={"replicas": 4, "gpus": 8, "gpu": "V100", "cpu": 8, "memory": "64Gi"})
    repository.write({"other.yaml": f"{HEAD}kind: Team\nmetadata: {{name: guests}}\n---\n{HEAD}{big}"})
    done = avactl("ci", "comment", "--dry-run", "--base", "main", cwd=repository.root)
    assert done.returncode == 0, done.stderr
    plan = done.stdout.partition("### Will it run?")[2]
    assert re.search(r"TrainingJob guests/other` \| waits for capacity", plan), plan
    assert "Will it run" not in avactl("ci", "comment", "--dry-run", "--no-plan", cwd=repository.root).stdout
    (tmp_path / "state.json").write_text("{}")
    done = avactl("ci", "comment", "--dry-run", "--snapshot", str(tmp_path / "state.json"), cwd=repository.root)
    assert (done.returncode, done.stdout) == (2, "")
    assert "state.json" in done.stderr


def test_dry_run_anywhere(repository: Repository, avactl: Run) -> None:
    repository.write({"jobs.yaml": HEAD + job(retries=9)})
    done = avactl("ci", "comment", "--dry-run", "--base", "main", cwd=repository.root)
    assert done.returncode == 0
    assert "retries 3 → 9" in done.stdout
    for forge in FORGES:
        named = avactl("ci", "comment", "--dry-run", "--base", "main", "--forge", forge.name, cwd=repository.root)
        assert (named.returncode, named.stderr, named.stdout) == (0, "", done.stdout)
    done = avactl("ci", "comment", "--dry-run", cwd=repository.root)
    assert (done.returncode, done.stdout) == (3, "")
    assert "unknown revision `origin/HEAD`" in done.stderr
    assert "`--base main`" in done.stderr


def test_the_first_specs_are_new_and_no_error(avactl: Run, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "first")
    done = avactl("ci", "comment", "--dry-run", cwd=repository.root)
    assert (done.returncode, "the repository has no commit yet" in done.stderr) == (3, True)
    repository.commit({"README.md": "ours\n"})
    repository.write({"platform.yaml": PLATFORM, "jobs.yaml": HEAD + job()})
    done = avactl("ci", "comment", "--dry-run", "--base", "main", cwd=repository.root)
    assert (done.returncode, done.stderr) == (0, "")
    assert "The base has no specs in this directory: all of them are new." in done.stdout
    assert "not compile" not in done.stdout
    for command in ("diff", "plan"):
        done = avactl(command, cwd=repository.root)
        assert (done.returncode, "the base has no specs" in done.stdout + done.stderr) == (0, True)


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({}, "not running in a pipeline of GitHub, GitLab, Gitea or Forgejo"),
        ({"GITHUB_ACTIONS": "true"}, "GITHUB_REPOSITORY is not set"),
        ({"GITHUB_ACTIONS": "true", "GITHUB_REPOSITORY": "a/b"}, "this pipeline run has no pull request"),
        (
            {"GITHUB_ACTIONS": "true", "GITHUB_REPOSITORY": "a/b", "GITHUB_REF": "refs/pull/3/merge"},
            "GITHUB_TOKEN is not set",
        ),
        (
            {"GITHUB_ACTIONS": "true", "GITHUB_REPOSITORY": "a/b", "GITHUB_TOKEN": "two words"},
            "GITHUB_TOKEN contains characters that are invalid in a token",
        ),
        (
            {
                "GITHUB_ACTIONS": "true",
                "GITEA_ACTIONS": "true",
                "GITHUB_REPOSITORY": "a/b",
                "GITHUB_TOKEN": "x",
                "GITHUB_REF": "refs/pull/3/head",
            },
            "GITEA_TOKEN is not set",
        ),
        (
            {
                "GITHUB_ACTIONS": "true",
                "GITEA_ACTIONS": "true",
                "GITHUB_REPOSITORY": "a/b",
                "GITEA_TOKEN": "x",
                "GITHUB_REF": "refs/pull/3/head",
            },
            "set GITEA_API_URL to its root",
        ),
        (
            {"GITLAB_CI": "true", "CI_PROJECT_ID": "4", "CI_MERGE_REQUEST_IID": "7", "CI_JOB_TOKEN": "j"},
            "CI_JOB_TOKEN cannot write comments",
        ),
    ],
)
def test_what_is_missing_is_told(avactl: Run, env: dict[str, str], said: str) -> None:
    done = avactl("ci", "comment", **env)
    assert done.returncode in (2, 3)
    assert said in done.stderr
    assert "two words" not in done.stderr


def test_the_number_comes_from_the_ref_or_the_event(tmp_path: Path) -> None:
    env = {"GITHUB_ACTIONS": "true", "GITHUB_REPOSITORY": "a/b", "GITHUB_EVENT_PATH": str(tmp_path / "event.json")}

    def number(event: object, **more: str) -> int | None:
        (tmp_path / "event.json").write_text(json.dumps(event))
        found = current_run({**env, **more})
        assert found is not None
        return found.number

    assert number({}, GITHUB_REF="refs/pull/12/merge") == 12
    assert number({"pull_request": {"number": 13}}, GITHUB_REF="refs/heads/main") == 13
    assert number({"issue": {"number": 14, "pull_request": {}}}) == 14
    assert number({"issue": {"number": 15}}) is None
    assert number({"workflow_run": {"pull_requests": [{"number": 16}]}}) == 16
    assert number([]) is None
    (tmp_path / "event.json").write_text("{")
    with pytest.raises(EnvironmentProblem, match="cannot be read"):
        current_run(env)
