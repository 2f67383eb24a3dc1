"""The pipelines that `avactl init` writes: their shell steps are run as they stand, in a repository with real git."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from avactl import __version__
from avactl.workbench.scaffold import LOCK, REQUIREMENTS, create, template_files
from avactl.workbench.scaffold.choice import ScaffoldChoice
from tests.conftest import ROOT
from tests.diff.repository import Repository

WORKFLOWS = ("avactl.yml", "avactl-apply.yml", "avactl-drift.yml", "avactl-stack.yml")
INSTALL = (
    "pip install --quiet --require-hashes -r stacks/requirements.lock\n"
    "pip install --quiet --no-deps -r stacks/requirements.txt\n"
)
SECRETS = ("KUBECONFIG", "PULUMI_CONFIG_PASSPHRASE", "PULUMI_ACCESS_TOKEN")


class Pipelines:
    """A new repository with one commit, and hands to run the steps of its pipelines."""

    def __init__(self, place: Path, choice: ScaffoldChoice | None = None) -> None:
        self.place = place
        self.repository = Repository(place / "repository")
        create(self.repository.root, template_files(choice))
        self.first = self.repository.commit()
        self.repository.git("remote", "add", "origin", str(place / "repository"))
        self.repository.git("fetch", "-q", "origin")
        tools = place / "bin"
        tools.mkdir()
        (tools / "avactl").write_text(f'#!/bin/sh\nexec {sys.executable} -m avactl.cli.main "$@"\n')
        (tools / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        for tool in tools.iterdir():
            tool.chmod(0o755)

    def forge(self, tool: str, says: str) -> None:
        """The forge's own command, which says one thing."""
        path = self.place / "bin" / tool
        path.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\n")
        path.chmod(0o755)

    def sh(self, script: str, **variables: str) -> tuple[int, str, dict[str, str]]:
        """Run a step as GitHub does; its exit code, what it wrote, and its outputs."""
        output = self.place / "output"
        output.write_text("")
        environment = {
            **os.environ,
            "PATH": f"{self.place / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.place),
            "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(self.place / "summary"),
            "GITHUB_WORKSPACE": str(self.repository.root),
            "CI_PROJECT_DIR": str(self.repository.root),
            "GITHUB_ENV": str(self.place / "env"),
            "RUNNER_TEMP": str(self.place),
            "CI": "true",
            "AVACTL_SOURCE": "",
            **variables,
        }
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
            cwd=self.repository.root,
            env=environment,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        pairs = (line.partition("=") for line in output.read_text().splitlines())
        return done.returncode, done.stdout, {name: value for name, _, value in pairs}

    def workflow(self, name: str) -> dict[Any, Any]:
        path = self.repository.root / ".github" / "workflows" / name
        found: dict[Any, Any] = yaml.safe_load(path.read_text())
        return found

    def step(self, workflow: str, job: str, contains: str) -> str:
        """The script of the one step that contains a text."""
        steps = self.workflow(workflow)["jobs"][job]["steps"]
        (script,) = [step["run"] for step in steps if contains in step.get("run", "")]
        return str(script)

    def gitlab(self) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load((self.repository.root / ".gitlab-ci.yml").read_text())
        return found

    def change(self, path: str, old: str, new: str) -> str:
        file = self.repository.root / path
        text = file.read_text()
        assert old in text
        return self.repository.commit({path: text.replace(old, new)})


@pytest.fixture
def pipelines(tmp_path: Path) -> Pipelines:
    return Pipelines(tmp_path)


def test_the_pulumi_program_comes_with_the_repository(pipelines: Pipelines) -> None:
    stacks = pipelines.repository.root / "stacks"
    for name in ("Pulumi.yaml", "__main__.py"):
        assert (stacks / name).read_bytes() == (ROOT / "stacks" / name).read_bytes()
    line = f"avactl[ci,cluster,pulumi] @ https://REPLACE.example.com/avactl-{__version__}-py3-none-any.whl"
    assert line in (pipelines.repository.root / REQUIREMENTS).read_text()


def test_workflows_have_the_least_rights_and_hang_together(pipelines: Pipelines) -> None:
    written = {path.name for path in (pipelines.repository.root / ".github" / "workflows").iterdir()}
    assert written == set(WORKFLOWS)
    actions, reused, scripts = set(), set(), 0
    for name in WORKFLOWS:
        workflow = pipelines.workflow(name)
        assert workflow["permissions"] == {"contents": "read"}
        assert "pull_request_target" not in workflow[True]  # YAML 1.1 reads `on` as true
        for job in workflow["jobs"].values():
            granted = {right for right, level in job.get("permissions", {}).items() if level == "write"}
            assert granted <= ({"pull-requests"} if name == "avactl.yml" else set())
            if "uses" in job:
                called = pipelines.workflow(Path(job["uses"]).name)[True]["workflow_call"]["inputs"]
                assert set(job["with"]) <= set(called)
                assert job["secrets"] == {name: f"${{{{ secrets.{name} }}}}" for name in SECRETS}
                reused.add(job["uses"])
            for step in job.get("steps", ()):
                if "uses" in step:
                    assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"])
                    assert "checkout" not in step["uses"] or step["with"]["persist-credentials"] is False
                    actions.add(step["uses"].partition("@")[0])
                # What somebody may choose (names of branches, titles) is never pasted into a script.
                assert "${{" not in step.get("run", "")
                scripts += "run" in step
    assert "actions/checkout" in actions
    assert reused == {"./.github/workflows/avactl-stack.yml"}
    assert scripts >= len(WORKFLOWS)
    assert pipelines.workflow("avactl-stack.yml")["jobs"]["stack"]["concurrency"]["cancel-in-progress"] is False


def test_packages_are_installed_by_hash(pipelines: Pipelines) -> None:
    def pins(text: str) -> dict[str, str]:
        return {
            name.lower().replace("_", "-"): version for name, version in re.findall(r"^([\w.-]+)==(\S+)", text, re.M)
        }

    lock = (pipelines.repository.root / LOCK).read_text()
    tested = pins((ROOT / "requirements.lock").read_text())
    found = pins(lock)
    assert {name: version for name, version in found.items() if tested.get(name, version) != version} == {}
    assert {"pydantic", "pulumi", "pulumi-kubernetes", "aiohttp", "httpx"} <= set(found)
    blocks = re.split(r"\n(?=\S)", lock.strip())
    assert [block for block in blocks if "--hash=sha256:" not in block] == []
    stack = (pipelines.repository.root / ".gitlab" / "stack.yml").read_text()
    assert f"pulumi/pulumi-python-3.12:{found['pulumi']}" in stack


def test_a_merge_request_of_gitlab_without_a_token_fails(pipelines: Pipelines) -> None:
    """The comment job runs in all pipelines of merge requests of the project itself; forks get the plan."""
    text = (pipelines.repository.root / ".gitlab-ci.yml").read_text()
    about = " ".join(text[: text.index("stages:")].replace("#", " ").split())
    assert "GITLAB_TOKEN (masked; not protected, because pipelines of merge requests would not get it)" in about
    jobs = pipelines.gitlab()

    def runs(job: str, token: str, source: str) -> bool:
        values = {
            "$CI_PIPELINE_SOURCE": "merge_request_event",
            "$GITLAB_TOKEN": token,
            "$CI_MERGE_REQUEST_SOURCE_PROJECT_ID": source,
            "$CI_MERGE_REQUEST_PROJECT_ID": "42",
        }

        def holds(term: str) -> bool:
            left, operator, right = (*term.split(), "", "")[:3]
            if not operator:
                return bool(values[left])
            equal = values[left] == values.get(right, right.strip('"'))
            return equal if operator == "==" else not equal

        for rule in jobs[job]["rules"]:
            if all(map(holds, rule["if"].split(" && "))):
                return bool(rule.get("when") != "never")
        return False

    assert [
        (job, token, source)
        for job in ("comment", "plan")
        for token in ("t", "")
        for source in ("42", "7")
        if runs(job, token, source)
    ] == [("comment", "t", "42"), ("comment", "t", "7"), ("comment", "", "42"), ("plan", "", "7")]
    code, said, _ = pipelines.sh(
        jobs["comment"]["script"][1],
        GITLAB_CI="true",
        CI_JOB_TOKEN="job",
        CI_PIPELINE_SOURCE="merge_request_event",
        CI_PROJECT_ID="42",
        CI_MERGE_REQUEST_IID="7",
        CI_MERGE_REQUEST_PROJECT_ID="42",
        CI_API_V4_URL="https://gitlab.example.com/api/v4",
    )
    assert code == 3
    assert "GITLAB_TOKEN is not set" in said
    assert "not protected" in said


def test_no_pipeline_runs_a_downloaded_script(pipelines: Pipelines) -> None:
    root = pipelines.repository.root
    files = [*(root / ".github").rglob("*.yml"), root / ".gitlab-ci.yml", *(root / ".gitlab").iterdir()]
    assert len(files) > len(WORKFLOWS)
    for file in files:
        assert not re.search(
            r"\|\s*(ba|z)?sh\b|secrets: inherit|pip install (?!--quiet --(require-hashes|no-deps))", file.read_text()
        )


def test_no_pipeline_applies_what_no_commit_has(pipelines: Pipelines) -> None:
    """A checkout of which a step, or an attribute of the branch, has changed a spec."""
    hello = pipelines.repository.root / "teams/vision/hello.yaml"
    hello.write_text(hello.read_text().replace('cpu: "4"', 'cpu: "8"'))
    stack = pipelines.step("avactl-stack.yml", "stack", "avactl up")
    gitlab = yaml.safe_load((pipelines.repository.root / ".gitlab/stack.yml").read_text())[".stack"]["script"][0]
    review = pipelines.step("avactl.yml", "review", "avactl validate")
    for script in (stack, gitlab, review, "avactl stacks", "avactl preview", "avactl render -o -"):
        code, text, _ = pipelines.sh(script, STACK="lab.vision", DRIFT="false")
        assert code == 1, text
        assert "hello.yaml" in text
        assert "differs from the commit" in text


def test_steps_of_a_pull_request(pipelines: Pipelines) -> None:
    pipelines.change("teams/vision/hello.yaml", "  command: [python", "  strategy: allReduce\n  command: [python")
    pipelines.change("teams/vision/hello.yaml", "{gpus: 1,", "{replicas: 2, gpus: 1,")
    steps = [step["run"] for step in pipelines.workflow("avactl.yml")["jobs"]["review"]["steps"] if "run" in step]
    assert steps[0] == INSTALL
    event = pipelines.place / "event.json"
    theirs = {"repo": {"full_name": "somebody/specs"}, "sha": "0" * 40}
    ours = {"repo": {"full_name": "org/specs"}, "sha": pipelines.first}
    event.write_text(json.dumps({"pull_request": {"number": 7, "base": ours, "head": theirs}}))
    environment = {
        "GITHUB_ACTIONS": "true",
        "GITHUB_REPOSITORY": "org/specs",
        "GITHUB_REF": "refs/pull/7/merge",
        "GITHUB_EVENT_PATH": str(event),
        "GITHUB_TOKEN": "",
        "GITHUB_BASE_REF": "main",
    }
    pipelines.repository.git("update-ref", "refs/remotes/origin/main", pipelines.first)
    validate, comment = steps[1:]
    code, text, _ = pipelines.sh(validate, **environment)
    assert (code, text) == (0, ""), text
    code, text, _ = pipelines.sh(f"{comment} --dry-run", **environment)
    assert (code, "vision/hello" in text, "### Will it run?" in text) == (0, True, True), text
    assert (pipelines.repository.root / "avactl-diff.txt").is_file()
    (pipelines.repository.root / "avactl-diff.txt").unlink()
    pipelines.change("teams/vision/hello.yaml", "gpus: 1,", "gpuz: 1,")
    code, text, _ = pipelines.sh(validate, **environment)
    assert code == 1
    assert text.startswith("::error file=teams/vision/hello.yaml,line=")


def test_only_touched_stacks_are_applied(pipelines: Pipelines) -> None:
    touched = pipelines.step("avactl-apply.yml", "stacks", "avactl stacks")

    def matrix(applied: str) -> dict[str, list[str]]:
        pipelines.forge("gh", applied)
        code, text, outputs = pipelines.sh(touched, GITHUB_REF_NAME="main")
        assert code == 0, text
        return {name: json.loads(value) for name, value in outputs.items()}

    everything = {"platform": ["lab"], "teams": ["lab.vision"]}
    assert matrix("") == everything  # no run yet
    assert matrix("0123456789012345678901234567890123456789") == everything  # history was rewritten
    assert matrix(pipelines.first) == {"platform": [], "teams": []}
    second = pipelines.change("teams/vision/hello.yaml", 'cpu: "4", memory: 16Gi}', 'cpu: "8", memory: 16Gi}  # more')
    assert matrix(pipelines.first) == {"platform": [], "teams": ["lab.vision"]}
    pipelines.change("teams/vision/hello.yaml", "# more", "# more than before")
    assert matrix(second) == {"platform": [], "teams": []}  # a comment touches nothing
    assert matrix(pipelines.first) == {"platform": [], "teams": ["lab.vision"]}  # runs that failed are made up for
    third = pipelines.change("clusters/lab.yaml", '"1.36"', '"1.35"')
    assert matrix(second)["platform"] == ["lab"]
    pipelines.change(REQUIREMENTS, __version__, "9.9.9")
    assert matrix(third) == everything  # another compiler
    pipelines.repository.git("rm", "-q", "teams/vision/hello.yaml")
    quota = (pipelines.repository.root / "teams/vision/team.yaml").read_text().partition("---")[0]
    fourth = pipelines.repository.git("rev-parse", "HEAD")
    pipelines.repository.commit({"teams/vision/team.yaml": quota})
    assert "lab.vision" in matrix(fourth)["teams"]  # its objects go
    broken = pipelines.repository.commit({"teams/vision/team.yaml": "kind: Teem\n"})
    code, text, outputs = pipelines.sh(touched, GITHUB_REF_NAME="main")
    assert (code, outputs) == (1, {})
    assert "Teem" in text
    pipelines.repository.commit({"teams/vision/team.yaml": quota})
    assert matrix(broken)["platform"] == ["lab"]


def test_drift_looks_at_all_stacks(pipelines: Pipelines) -> None:
    _, text, outputs = pipelines.sh(pipelines.step("avactl-drift.yml", "stacks", "avactl stacks"))
    assert json.loads(outputs["all"]) == ["lab", "lab.vision"], text


def test_gitlab_makes_a_job_for_each_touched_stack(pipelines: Pipelines) -> None:
    (script,) = pipelines.gitlab()["stacks"]["script"]

    def child(**variables: str) -> dict[str, Any]:
        base = {"CI_COMMIT_BEFORE_SHA": pipelines.first, "GITLAB_TOKEN": "", "DRIFT": "", "CI_COMMIT_BRANCH": "main"}
        code, text, _ = pipelines.sh(script, **(base | variables))
        assert code == 0, text
        jobs: dict[str, Any] = yaml.safe_load((pipelines.repository.root / "stacks.yml").read_text())
        (pipelines.repository.root / "stacks.yml").unlink()
        (pipelines.repository.root / "stacks.txt").unlink()
        return {name: job["stage"] for name, job in jobs.items() if isinstance(job, dict) and name != "nothing"}

    assert child() == {}
    second = pipelines.change("teams/vision/hello.yaml", 'cpu: "4"', 'cpu: "8"')
    assert child() == {"lab.vision": "teams"}
    assert child(CI_COMMIT_BEFORE_SHA="0" * 40) == {"lab": "platform", "lab.vision": "teams"}
    assert child(DRIFT="true") == {"lab": "platform", "lab.vision": "teams"}
    pipelines.forge("curl", json.dumps([{"sha": second}]))
    assert child(GITLAB_TOKEN="given") == {}
    pipelines.forge("curl", "[]")
    assert len(child(GITLAB_TOKEN="given")) == 2


def test_gitlab_checks_say_what_is_wrong(pipelines: Pipelines) -> None:
    jobs = pipelines.gitlab()
    assert set(jobs["stages"]) >= {job["stage"] for job in jobs.values() if isinstance(job, dict) and "stage" in job}
    pipelines.change("teams/vision/hello.yaml", "gpus: 1,", "gpuz: 1,")
    code, text, _ = pipelines.sh(jobs["validate"]["script"][0])
    assert code == 1
    assert "did you mean" in text
    (problem,) = json.loads((pipelines.repository.root / "code-quality.json").read_text())
    assert problem["location"]["path"] == "teams/vision/hello.yaml"
    pipelines.change("teams/vision/hello.yaml", "gpuz: 1,", "gpus: 1, sharedMemory: 8Gi,")
    pipelines.repository.git("update-ref", "refs/remotes/origin/main", pipelines.first)
    code, text, _ = pipelines.sh(jobs["plan"]["script"][0], CI_MERGE_REQUEST_TARGET_BRANCH_NAME="main")
    assert (code, "hello" in text) == (0, True), text


def test_stacks_of_all_environments(tmp_path: Path) -> None:
    pipelines = Pipelines(tmp_path, ScaffoldChoice(environments=("staging", "prod")))

    def touched() -> dict[str, list[dict[str, str]]]:
        script = pipelines.step("avactl-apply.yml", "stacks", "avactl stacks")
        code, text, outputs = pipelines.sh(script, GITHUB_REF_NAME="main")
        assert code == 0, text
        return {name: json.loads(value) for name, value in outputs.items()}

    platform = [{"environment": "staging", "stack": "staging-lab"}, {"environment": "prod", "stack": "prod-lab"}]
    teams = [{**each, "stack": f"{each['stack']}.vision"} for each in platform]
    pipelines.forge("gh", "")
    assert touched() == {"platform": platform, "teams": teams}
    pipelines.forge("gh", pipelines.first)
    assert touched() == {"platform": [], "teams": []}
    pipelines.change("overlays/prod/vision.yaml", "labels: {environment: prod}", "labels: {environment: production}")
    assert touched() == {"platform": [], "teams": teams[1:]}
    _, text, outputs = pipelines.sh(pipelines.step("avactl-drift.yml", "stacks", "avactl stacks"))
    assert len(json.loads(outputs["all"])) == 4, text
    (script,) = pipelines.gitlab()["stacks"]["script"]
    variables = {"CI_COMMIT_BEFORE_SHA": pipelines.first, "GITLAB_TOKEN": "", "DRIFT": "", "CI_COMMIT_BRANCH": "main"}
    code, text, _ = pipelines.sh(script, **variables)
    assert code == 0, text
    job = yaml.safe_load((pipelines.repository.root / "stacks.yml").read_text())["prod-lab.vision"]
    assert (job["stage"], job["variables"]) == ("teams", {"STACK": "prod-lab.vision", "AVACTL_ENVIRONMENT": "prod"})
    (plan,) = pipelines.gitlab()["plan"]["script"]
    pipelines.repository.git("update-ref", "refs/remotes/origin/main", pipelines.first)
    code, text, _ = pipelines.sh(plan, CI_MERGE_REQUEST_TARGET_BRANCH_NAME="main")
    assert (code, "hello" in text) == (0, True), text


def test_all_environments_of_a_repository_without_them(pipelines: Pipelines) -> None:
    code, text, _ = pipelines.sh("avactl stacks --all-environments")
    assert (code, "avactl.yaml has no `environments`" in text) == (2, True)


class Checkouts:
    """A bare repository as the forge has it, with the commit of a pull request, and a checkout by a workflow's step."""

    def __init__(self, pipelines: Pipelines, branch: str) -> None:
        self.pipelines = pipelines
        self.server = pipelines.place / "server"
        bare = self.server / "org" / "specs.git"
        pipelines.repository.git("clone", "-q", "--bare", str(pipelines.repository.root), str(bare))
        pipelines.repository.git("push", "-q", str(bare), f"HEAD:{branch}")
        self.variables = {
            "GITHUB_ACTIONS": "true",
            "GITEA_ACTIONS": "true",
            "GITHUB_SERVER_URL": f"file://{self.server}/",
            "GITHUB_REPOSITORY": "org/specs",
            "GITHUB_REF": branch,
            "GITHUB_BASE_REF": "main",
            "GITHUB_SHA": pipelines.repository.git("rev-parse", "HEAD"),
            "GITHUB_TOKEN": "",
            "DRIFT": "false",
        }
        # From here on, steps run in an empty directory.
        self.pipelines.repository.root = pipelines.place / "workspace"
        self.pipelines.repository.root.mkdir()

    def run(self, step: dict[str, Any], more: str = "", **variables: str) -> tuple[int, str]:
        code, text, _ = self.pipelines.sh(step["run"].rstrip() + more, **self.variables, **variables)
        return code, text


def test_images_without_a_digest_say_so() -> None:
    templates = [path for path in (ROOT / "avactl/forges").glob("*/template/**/*") if path.is_file()]
    images = [line for path in templates for line in path.read_text().splitlines() if re.match(r" *image: \S", line)]
    assert len(images) >= 5
    hint = "pin its digest (docs/ci.md of avactl)"
    assert [line for line in images if "@sha256:" not in line and hint not in line] == []


def _workflows(root: Path) -> dict[str, dict[Any, Any]]:
    (folder,) = (path for name in (".gitea", ".forgejo") if (path := root / name / "workflows").is_dir())
    return {path.name: yaml.safe_load(path.read_text()) for path in folder.iterdir()}


@pytest.mark.parametrize(("forge", "label"), [("gitea", "ubuntu-latest"), ("forgejo", "docker")])
@pytest.mark.parametrize("engine", ["pulumi", "flux", "none"])
def test_workflows_of_gitea_and_forgejo(tmp_path: Path, forge: str, label: str, engine: str) -> None:
    pipelines = Pipelines(tmp_path, ScaffoldChoice(engine, forge, environments=("staging", "prod")))
    workflows = _workflows(pipelines.repository.root)
    more = {"pulumi": {"avactl-apply.yml"}, "flux": {"avactl-publish.yml"}, "none": set()}[engine]
    assert set(workflows) == {"avactl.yml", *more}
    for name, workflow in workflows.items():
        assert workflow["permissions"] == {"contents": "read"}
        (job,) = workflow["jobs"].values()
        assert job["runs-on"] == label
        assert re.fullmatch(r"(python|pulumi/pulumi-python-3\.12):[\d.]+", job["container"]["image"])
        granted = {right for right, level in job.get("permissions", {}).items() if level == "write"}
        assert granted == {"avactl.yml": {"pull-requests"}, "avactl-publish.yml": {"contents"}}.get(name, set())
        if name != "avactl.yml":
            assert job["strategy"]["matrix"] == {"environment": ["staging", "prod"]}
            assert job["env"]["AVACTL_ENVIRONMENT"] == "${{ matrix.environment }}"
        token = {f"{forge.upper()}_TOKEN": f"${{{{ secrets.{forge.upper()}_TOKEN }}}}"}
        for step in job["steps"]:
            assert "uses" not in step  # actions of another host
            assert "${{" not in step["run"]
            assert all(step["env"].get(key) == value for key, value in token.items() if key in step["run"])


@pytest.mark.parametrize("forge", ["gitea", "forgejo"])
def test_steps_of_a_pull_request_on_gitea(tmp_path: Path, forge: str) -> None:
    pipelines = Pipelines(tmp_path, ScaffoldChoice("none", forge))
    pipelines.repository.git("switch", "-q", "-c", "change")
    pipelines.change("teams/vision/hello.yaml", "  command: [python", "  strategy: allReduce\n  command: [python")
    pipelines.change("teams/vision/hello.yaml", "{gpus: 1,", "{replicas: 2, gpus: 1,")
    workflow = _workflows(pipelines.repository.root)["avactl.yml"]
    pipelines.repository.git("branch", "-q", "-f", "main", pipelines.first)
    checkouts = Checkouts(pipelines, "refs/pull/7/head")
    checkout, install, validate, comment = workflow["jobs"]["review"]["steps"]
    assert install["run"] == INSTALL.replace("stacks/", "")
    assert checkouts.run(checkout) == (0, "")
    event = pipelines.place / "event.json"
    sides = {side: {"ref": side, "sha": "0" * 40, "repo": {"full_name": "org/specs"}} for side in ("base", "head")}
    event.write_text(json.dumps({"pull_request": {"number": 7, **sides}}))
    checkouts.variables |= {"GITHUB_EVENT_PATH": str(event)}
    checkouts.variables |= {"FORGEJO_ACTIONS": "true"} if forge == "forgejo" else {}
    code, text = checkouts.run(validate)
    assert (code, text.startswith("ok: ")) == (0, True), text
    code, text = checkouts.run(comment, " --dry-run")
    assert (code, "vision/hello" in text, "### Will it run?" in text) == (0, True, True), text


def test_gitea_applies_all_stacks(tmp_path: Path) -> None:
    pipelines = Pipelines(tmp_path, ScaffoldChoice("pulumi", "gitea"))
    *_, apply = _workflows(pipelines.repository.root)["avactl-apply.yml"]["jobs"]["apply"]["steps"]
    checkouts = Checkouts(pipelines, "refs/heads/main")
    recorder = pipelines.place / "bin" / "avactl"
    recorder.write_text('#!/bin/sh\necho "$@"; cat "$KUBECONFIG"\n')
    assert checkouts.run(apply, CONTENT="secret") == (0, "up --yes --refresh\nsecret")
    checkouts.variables["DRIFT"] = "true"
    assert checkouts.run(apply, CONTENT="secret") == (0, "preview --refresh --exit-code\nsecret")
    assert (pipelines.place / "kubeconfig").stat().st_mode & 0o077 == 0


def test_gitea_publishes(tmp_path: Path) -> None:
    pipelines = Pipelines(tmp_path, ScaffoldChoice("flux", "gitea", environments=("staging",)))
    workflow = _workflows(pipelines.repository.root)["avactl-publish.yml"]
    checkouts = Checkouts(pipelines, "refs/heads/main")
    checkout, _, publish = workflow["jobs"]["publish"]["steps"]
    assert checkouts.run(checkout) == (0, "")
    code, text = checkouts.run(publish, AVACTL_ENVIRONMENT="staging")
    assert code == 0, text
    written = pipelines.repository.git("ls-remote", "--heads", str(checkouts.server / "org" / "specs.git"))
    assert "refs/heads/rendered-staging" in written
