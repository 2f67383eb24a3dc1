"""`avactl validate --fix` corrects what has one remedy, and nothing else."""

from __future__ import annotations

from pathlib import Path

from tests.cli.running import Run, write
from tests.test_invalid import BASE

WRONG = """\
# The job of the paper.
apiVersion: avactl.dev/v1
kind: trainingjob
metadata: {name: sft, team: vison}   # our team
spec:
  image: registry.example.com/Vision/train:1
  command: torchrun sft.py   # two words
  workers: {replica: 1, gpus: "8", gpu: v100, memory: 64GB}
  env: {DEBUG: true, RUN: 0012}
  strategy: "Single"
  suspended: yes
  timeout: 2 hours
  datasets:
    - {name: 'imagnet', mount: /data}
"""
RIGHT = """\
# The job of the paper.
apiVersion: avactl.dev/v1
kind: TrainingJob
metadata: {name: sft, team: vision}   # our team
spec:
  image: registry.example.com/vision/train:1
  command: [torchrun, sft.py]   # two words
  workers: {replicas: 1, gpus: 8, gpu: V100, memory: 64G}
  env: {DEBUG: "true", RUN: "0012"}
  strategy: "single"
  suspended: true
  timeout: 2h
  datasets:
    - {name: 'imagenet', mount: /data}
"""


def test_all_that_has_one_remedy(tmp_path: Path, avactl: Run) -> None:
    write(tmp_path, base=BASE["base/platform.yaml"].decode(), job=WRONG)
    shown = avactl("validate", "--fix")
    assert (tmp_path / "job.yaml").read_text() == RIGHT
    assert shown.returncode == 0, shown.stdout
    assert "fixed job.yaml:4:29 vison → vision\n" in shown.stdout
    assert "fixed job.yaml:7:12 torchrun sft.py → [torchrun, sft.py]\n" in shown.stdout
    assert "ok: " in shown.stdout
    assert (tmp_path / "base.yaml").read_bytes() == BASE["base/platform.yaml"]
    assert "fixed" not in avactl("validate", "--fix").stdout


def test_what_has_no_remedy_stays(tmp_path: Path, avactl: Run) -> None:
    unclear = RIGHT.replace("team: vision", "team: zzz").replace("timeout: 2h", "timeout: soon")
    write(tmp_path, avactl="", base=BASE["base/platform.yaml"].decode(), job=unclear, other=WRONG)
    shown = avactl("validate", "--fix", "job.yaml")
    assert shown.returncode == 1
    assert (tmp_path / "job.yaml").read_text() == unclear
    assert (tmp_path / "other.yaml").read_text() == WRONG, "only the named file is changed"
    assert "fixed" not in shown.stdout


def test_a_suggestion_that_does_not_help_is_not_written(tmp_path: Path, avactl: Run) -> None:
    twice = RIGHT.replace("  timeout: 2h\n", "  timeout: 2h\n  timeou: 3h\n")
    write(tmp_path, base=BASE["base/platform.yaml"].decode(), job=twice)
    assert avactl("validate", "--fix").returncode == 1
    assert (tmp_path / "job.yaml").read_text() == twice, "`timeout` would be there twice"
