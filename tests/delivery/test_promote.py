"""`avactl models`, `promote` and `rollback`: real git, an S3 service, all forges."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from avactl.datasets.stores.opening import open_store
from avactl.forges import FORGES
from tests.cli.running import Run
from tests.datasets.conftest import avactl, bucket, environment, s3  # noqa: F401 - fixtures
from tests.delivery.world import DATASET, KEYS, PIPELINE, PLATFORM, SERVICE
from tests.review.pulls import TOKEN, serve_pulls

SUBJECT = "--format=%an %s"


ORIGIN = {
    "job": "stream",
    "source": "s3://data/training/digits/export/3",
    "ran": {"images": ["sha256:" + "a" * 64]},
    "code": {"url": "https://git.example.com/a.git", "ref": "main"},
}


class Specs:
    """A clone of the specs, and the repository that it came from."""

    def __init__(self, folder: Path, avactl: Run, endpoint: str) -> None:  # noqa: F811
        self.remote, self.work, self._avactl = folder / "specs.git", folder / "work", avactl
        self._environment = {
            **KEYS,
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AVACTL_CACHE_DIR": str(folder / "cache"),
        }
        subprocess.run(["git", "init", "-q", "--bare", "--initial-branch=main", str(self.remote)], check=True)
        subprocess.run(["git", "clone", "-q", str(self.remote), str(self.work)], check=True, capture_output=True)
        for key, value in (("user.name", "Ann"), ("user.email", "ann@example.com")):
            self.git("config", key, value)
        (self.work / "specs").mkdir()
        texts = {"platform": PLATFORM, "dataset": DATASET, "web": SERVICE, "digits": PIPELINE}
        for name, text in texts.items():
            (self.work / "specs" / f"{name}.yaml").write_text(text.replace("TEAM", "vision"))
        (self.work / "specs" / "avactl.yaml").write_text("{}\n")
        self.git("add", "--all")
        self.git("commit", "-q", "-m", "specs")
        self.git("push", "-q", "origin", "HEAD:main")

    def git(self, *arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(self.work), *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()

    def run(self, *arguments: str, code: int = 0, more: dict[str, str] | None = None) -> str:
        done = self._avactl(*arguments, "--specs", str(self.work / "specs"), **self._environment, **(more or {}))
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def served(self, branch: str = "main") -> str:
        text = subprocess.run(
            ["git", "-C", str(self.remote), "show", f"{branch}:specs/web.yaml"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        assert "# The version is set by the pipeline." in text
        return next(line for line in text.splitlines() if line.startswith("  model:")).strip()

    def log(self, branch: str = "main") -> list[str]:
        return subprocess.run(
            ["git", "-C", str(self.remote), "log", SUBJECT, branch], check=True, capture_output=True, text=True
        ).stdout.splitlines()


@pytest.fixture
def specs(tmp_path: Path, avactl: Run, s3: str, bucket: str) -> Specs:  # noqa: F811
    store = open_store("s3://data", s3)
    for number in (1, 2, 3):
        lineage = {"metrics": {"accuracy": 0.9 + number / 100}, "cause": f"v{number}", "commit": "4f53" * 10}
        if number == 3:
            lineage |= ORIGIN
        store.write(f"published/digits/{number}/lineage.json", json.dumps(lineage).encode())
    store.write("published/digits/4/manifest.jsonl", b"")  # not published
    return Specs(tmp_path, avactl, s3)


def model(version: int) -> str:
    return f'model: {{name: digits, version: "{version}", url: "s3://data/published/digits/{version}"}}  # begin'


def test_models(specs: Specs) -> None:
    found = json.loads(specs.run("models", "--format", "json"))
    assert [(each["version"], each["served"]) for each in found] == [("1", ["vision/web@main"]), ("2", []), ("3", [])]
    assert found[2]["metrics"] == {"accuracy": 0.93}
    assert {key: found[2][key] for key in ORIGIN} == ORIGIN
    assert {key: found[1][key] for key in ORIGIN} == {"job": "", "source": "", "ran": {}, "code": {}}
    text = specs.run("models", "vision/digits")
    assert "accuracy 0.92" in text
    assert "4f53" * 2 in text
    assert "did you mean `digits`" in specs.run("models", "digist", code=2)
    offline = json.loads(specs.run("models", "--offline", "--format", "json"))
    assert [each["version"] for each in offline] == ["1"]


def test_an_unreachable_store(specs: Specs) -> None:
    """What the specs say is shown nevertheless."""
    said = specs.run("models", "--endpoint", "http://127.0.0.1:9", code=3)
    assert "vision/web@main" in said
    assert "s3://data/published/digits" in said


def test_promoted_and_rolled_back(specs: Specs) -> None:
    (specs.work / "specs" / "web.yaml").write_text("not committed: true\n")
    specs.git("checkout", "-q", "--", ".")
    shown = specs.run("promote", "digits", "2", "--dry-run")
    assert "version  1 → 2" in shown
    assert specs.served() == model(1)
    assert "pushed" in specs.run("promote", "digits", "2", "-m", "Better on mobile.")
    assert specs.served() == model(2)
    assert specs.log()[0] == "Ann web: promote digits to version 2"
    assert "already" in specs.run("promote", "digits", "2")
    specs.run("promote", "vision/digits")  # the newest
    assert specs.served() == model(3)
    specs.run("rollback", "digits")
    assert specs.served() == model(2)
    # 3 was rolled back: the one before 2 follows.
    specs.run("rollback", "digits")
    assert specs.served() == model(1)
    assert "never named another version" in specs.run("rollback", "digits", code=2)
    assert len(specs.log()) == 5
    assert specs.git("log", SUBJECT) == "Ann specs"  # nothing here was touched
    assert specs.git("status", "--porcelain") == ""


def test_the_remotes_specs_steer_no_terminal_and_forge_no_message(specs: Specs) -> None:
    """The remote's branch may have another spec than the one that was compiled here."""
    file = specs.work / "specs" / "web.yaml"
    forged = file.read_text().replace("digits/1", r"digits/7\e[31m\n\nSigned-off-by: Ann\n::error::forged")
    file.write_text(forged)
    specs.git("commit", "-q", "-am", "forged")
    specs.git("push", "-q", "origin", "HEAD:main")
    specs.git("reset", "-q", "--hard", "HEAD~1")
    said = specs.run("rollback", "digits") + specs.run("promote", "digits", "2", "--dry-run")
    assert "digits/7" in said
    assert "\x1b" not in said
    assert not any(line.lstrip().startswith(("::error", "Signed-off-by")) for line in said.splitlines())
    message = subprocess.run(
        ["git", "-C", str(specs.remote), "log", "-1", "--format=%B", "main"], check=True, capture_output=True, text=True
    ).stdout
    assert "Before: s3://data/published/digits/7" in message
    assert "\nSigned-off-by" not in message


def test_refused(specs: Specs) -> None:
    assert "version 4 of vision/digits is not published" in specs.run("promote", "digits", "4", code=2)
    assert "is not the number of a version" in specs.run("promote", "digits", "../1", code=2)
    assert "no service other serves" in specs.run("promote", "digits", "2", "--service", "other", code=2)
    assert "no remote `upstream`" in specs.run("promote", "digits", "2", "--remote", "upstream", code=2)
    assert "no branch `prod`" in specs.run("promote", "digits", "2", "--branch", "prod", code=3)
    assert "forge" in specs.run("promote", "digits", "2", "--pull-request", code=2)
    assert len(specs.log()) == 1


@pytest.mark.parametrize("forge", [forge.name for forge in FORGES if not forge.no_proposals])
def test_by_pull_request(specs: Specs, forge: str) -> None:
    """The remote's URL names the forge; git reaches it under another one."""
    specs.git("remote", "set-url", "origin", f"https://{forge}.com/acme/specs.git")
    rewrite = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{specs.remote}.insteadOf",
        "GIT_CONFIG_VALUE_0": f"https://{forge}.com/acme/specs.git",
    }
    with serve_pulls(forge) as fake:
        names = ("GITHUB_API_URL", "CI_API_V4_URL", "GITEA_API_URL", "FORGEJO_API_URL")
        given = dict.fromkeys(names, fake.url) | rewrite
        assert "is not set" in specs.run("promote", "digits", "2", "--pull-request", code=3, more=given)
        given |= dict.fromkeys(("GITHUB_TOKEN", "GITLAB_TOKEN", "GITEA_TOKEN", "FORGEJO_TOKEN"), TOKEN)
        said = specs.run("promote", "digits", "2", "--pull-request", more=given)
        assert f"opened {fake.url}/acme/specs/pull/1" in said
        (pull,) = fake.pulls
        assert (pull["base"], pull["title"]) == ("main", "web: promote digits to version 2")
        assert specs.served() == model(1)
        assert specs.served(pull["branch"]) == model(2)
        assert TOKEN not in said
