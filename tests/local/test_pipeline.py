"""A pipeline on one machine: trained, measured, published; a worse model stops with its numbers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.running import Run, avactl  # noqa: F401 - fixture
from tests.delivery.world import PIPELINE, PLATFORM, SERVICE

TRAIN = """
import os
from pathlib import Path

target = Path(os.environ["AVACTL_CHECKPOINT_PATH"]) / "export"
target.mkdir(parents=True)
(target / "model.txt").write_text(os.environ["QUALITY"])
print("live:", os.environ["AVACTL_LIVE_URL"], "run:", os.environ["AVACTL_RUN"])
"""
EVALUATE = """
import json, os
from pathlib import Path

quality = float((Path(os.environ["AVACTL_CANDIDATE_URL"]) / "model.txt").read_text())
json.dump({"accuracy": quality}, open(os.environ["AVACTL_METRICS"], "w"))
"""


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    for name, text in {"platform": PLATFORM, "web": SERVICE, "digits": PIPELINE}.items():
        schedule = text.replace("trigger: {dataset: {name: digits}}", 'trigger: {schedule: {cron: "0 3 * * *"}}')
        (tmp_path / f"{name}.yaml").write_text(schedule.replace("TEAM", "vision"))
    (tmp_path / "avactl.yaml").write_text("exclude: ['*.py']\n")
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "evaluate.py").write_text(EVALUATE)
    return tmp_path


def run(avactl: Run, specs: Path, quality: str, code: int = 0) -> str:  # noqa: F811
    given = {"QUALITY": quality, "AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"}
    done = avactl("local", "run", "digits.yaml", cwd=specs, **given)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_published_or_not(avactl: Run, specs: Path) -> None:  # noqa: F811
    store = specs / ".avactl" / "local" / "vision.digits" / "store"
    said = run(avactl, specs, "0.9")
    assert "Pipeline vision/digits: run 1, live: none" in said
    assert "accuracy 0.9" in said
    assert f"published version 1 in {store}/published/1" in said
    version = store / "published" / "1"
    assert (version / "model.txt").read_text() == "0.9"
    assert json.loads((version / "lineage.json").read_text())["metrics"] == {"accuracy": 0.9}
    # Worse than the live one, and worse than the bound.
    said = run(avactl, specs, "0.85", code=1)
    assert f"live: {version} run: 2" in said
    assert "accuracy 0.85 (live 0.9)" in said
    assert "missed: accuracy: 0.85, at least 0.99 × 0.9 of the live version" in said
    assert "run 2 is not published" in said
    assert "missed: accuracy: 0.5, at least 0.8" in run(avactl, specs, "0.5", code=1)
    assert "published version 4" in run(avactl, specs, "0.95")
    assert not (store / "published" / "2" / "lineage.json").exists()


def test_a_step_that_fails(avactl: Run, specs: Path) -> None:  # noqa: F811
    (specs / "evaluate.py").write_text("raise SystemExit(7)")
    text = (specs / "digits.yaml").read_text()
    (specs / "digits.yaml").write_text(text + "  retries: 0\n")
    said = run(avactl, specs, "0.9", code=7)
    assert "validate failed with exit code 7" in said
    (specs / "evaluate.py").write_text("pass")
    assert "no metrics; the validation writes them to the file $AVACTL_METRICS" in run(avactl, specs, "0.9", code=1)


def test_streaming_pipelines_are_refused(avactl: Run, tmp_path: Path) -> None:  # noqa: F811
    shutil.copytree(Path(__file__).parents[2] / "examples" / "pipelines", tmp_path / "specs")
    (tmp_path / "specs" / "avactl.yaml").write_text("{}\n")
    done = avactl("local", "run", "teams/stream.yaml", "ctr", cwd=tmp_path / "specs")
    assert (done.returncode, "runs without end" in done.stderr) == (2, True), done.stderr
