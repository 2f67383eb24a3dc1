"""The command: where it writes, what it refuses, and repositories that already have specs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from avactl import compile_tree
from avactl.change.plan.workloads import find_workloads
from avactl.kinds import TrainingJob
from avactl.spec.repository.tree import DirTree
from avactl.workbench.importer.model import ImportResult
from avactl.workbench.importer.report_markdown import LIMIT, render_markdown
from tests.cli.running import Run, write
from tests.importer.importing import imported

CLAIM = """\
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: vision}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
"""
JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: vision}
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
        - name: main
          image: registry.example.com/train:1
          resources: {requests: {cpu: 4, memory: 16Gi}, limits: {memory: 16Gi, nvidia.com/gpu: 1}}
"""
PLATFORM = """\
apiVersion: avactl.dev/v1
kind: Cluster
metadata: {name: lab}
---
apiVersion: avactl.dev/v1
kind: NodePool
metadata: {name: a10}
spec: {cluster: lab, machineType: a10, count: 2}
---
apiVersion: avactl.dev/v1
kind: Team
metadata: {name: seeing}
spec: {namespaces: [{name: vision}]}
"""


def test_nothing_is_written_without_a_directory(avactl: Run, tmp_path: Path) -> None:
    write(tmp_path, claim=CLAIM)
    done = avactl("import", "claim.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    assert "nothing was written" in done.stdout
    assert sorted(path.name for path in tmp_path.rglob("*.yaml")) == ["claim.yaml"]


def test_existing_files_stay(avactl: Run, tmp_path: Path) -> None:
    write(tmp_path, claim=CLAIM)
    assert avactl("import", "claim.yaml", "-o", "specs").returncode == 0
    path = tmp_path / "specs/objects/vision/persistentvolumeclaim-data.yaml"
    path.write_text(path.read_text().replace("1Gi", "2Gi"))
    again = avactl("import", "claim.yaml", "-o", "specs")
    assert again.returncode == 2
    assert "exist" in again.stderr
    assert "2Gi" in path.read_text()
    forced = avactl("import", "claim.yaml", "-o", "specs", "--force")
    assert forced.returncode == 0, forced.stderr
    assert "1Gi" in path.read_text()


def test_a_repository_gives_its_teams_and_pools(avactl: Run, tmp_path: Path) -> None:
    write(tmp_path, job=JOB, repo__clusters__lab=PLATFORM)
    (tmp_path / "repo/avactl.yaml").write_text("include: [clusters, imported]\n")
    done = avactl("import", "job.yaml", "-o", "repo/imported", "--format", "json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["cluster"] == "lab"
    assert report["files"] == ["imported/teams/seeing/train.yaml"]
    program = compile_tree(DirTree(tmp_path / "repo")).program
    assert program.get_kind(TrainingJob, "train", "seeing").spec.workers.gpus == 1


def test_a_directory_outside_of_include_is_told(avactl: Run, tmp_path: Path) -> None:
    write(tmp_path, job=JOB, repo__clusters__lab=PLATFORM)
    (tmp_path / "repo/avactl.yaml").write_text("include: [clusters]\n")
    done = avactl("import", "job.yaml", "-o", "repo/imported")
    assert done.returncode == 2
    assert "not in `include`" in done.stderr


def test_a_repository_with_errors_is_told(avactl: Run, tmp_path: Path) -> None:
    write(tmp_path, claim=CLAIM, repo__clusters__lab=PLATFORM.replace("machineType: a10", "machineType: a99"))
    (tmp_path / "repo/avactl.yaml").write_text("include: [clusters, imported]\n")
    done = avactl("import", "claim.yaml", "-o", "repo/imported")
    assert done.returncode == 2
    assert "has errors" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "either PATHs or the cluster"),
        (("claim.yaml", "--live"), "either PATHs or the cluster"),
        (("claim.yaml", "--adopt"), "--adopt needs --live"),
        (("missing.yaml",), "missing.yaml"),
        (("claim.yaml", "--team", "vision"), "is not NAME=VALUE"),
    ],
)
def test_usage(words: tuple[str, ...], said: str, avactl: Run, tmp_path: Path) -> None:
    write(tmp_path, claim=CLAIM)
    done = avactl("import", *words)
    assert done.returncode == 2
    assert said in done.stderr


def test_standard_input(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "avactl.cli.main", "import", "-", "-o", "specs", "--team", "vision=seeing"]
    env = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=env, input=JOB, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "specs/teams/seeing/train.yaml").is_file()


def test_the_name_of_a_file_is_not_taken_for_a_cluster(avactl: Run, tmp_path: Path) -> None:
    (tmp_path / "<live>").write_text("")
    done = avactl("import", "<live>", cwd=tmp_path)
    assert (done.returncode, "its path has `<`, `>` or a control character" in done.stderr) == (2, True)


def test_names_of_others_are_no_commands(avactl: Run, tmp_path: Path) -> None:
    text = JOB.replace("restartPolicy: Never", 'restartPolicy: Never\n      nodeSelector: {"\\e[31m\\n::error::x": y}')
    write(tmp_path, job=text)
    done = avactl("import", "job.yaml", "-o", "specs")
    assert "\x1b" not in done.stdout + done.stderr
    assert not any(line.startswith("::") for line in done.stdout.splitlines())


def test_jobs_of_operators_have_no_pods_in_a_plan(tmp_path: Path) -> None:
    """A Job of Volcano has another shape than one of Kubernetes."""
    text = JOB.replace("batch/v1", "batch.volcano.sh/v1alpha1").replace("  template:", "  tasks: []\n  other:")
    made = imported(text, tmp_path)
    assert [outcome.result for outcome in made.outcomes] == [ImportResult.raw]
    assert find_workloads(made.compilation.manifests, "imported") == {}


def test_strict_tells_whether_the_result_is_the_source(avactl: Run, tmp_path: Path) -> None:
    write(tmp_path, claim=CLAIM, job=JOB)
    assert avactl("import", "claim.yaml", "--strict").returncode == 0
    done = avactl("import", "job.yaml", "--strict")
    assert done.returncode == 4
    assert "processes run as user 1000" in done.stdout
    (tmp_path / "secret.yaml").write_text("apiVersion: v1\nkind: Secret\nmetadata: {name: a, namespace: vision}\n")
    assert avactl("import", "secret.yaml", "claim.yaml", "--strict").returncode == 4
    assert avactl("import", "secret.yaml", "claim.yaml").returncode == 0


def test_the_report_is_a_comment_of_a_pull_request(avactl: Run, tmp_path: Path) -> None:
    odd = JOB.replace(
        "name: main", "name: main\n          env: [{name: A, value: '`|` @team <b>'}]\n          stdin: true"
    )
    write(
        tmp_path, claim=CLAIM, job=odd.replace("restartPolicy: Never", "hostNetwork: true\n      restartPolicy: Never")
    )
    done = avactl("import", "claim.yaml", "job.yaml", "--format", "markdown")
    assert done.returncode == 0, done.stderr
    assert "| source | object | became | how | listed | file |" in done.stdout
    assert "| `job.yaml:1` | `Job vision/train` | `TrainingJob vision/train` | `approximated` |" in done.stdout
    assert "not carried over as they are</summary>" in done.stdout
    assert "spec.template.spec.hostNetwork" in done.stdout


def test_a_markdown_report_is_bounded(tmp_path: Path) -> None:
    text = "---\n".join(
        f"apiVersion: v1\nkind: Secret\nmetadata: {{name: a-{number:04}, namespace: vision}}\n"
        for number in range(2000)
    )
    shown = render_markdown(imported(text, tmp_path))
    assert len(shown.encode()) <= LIMIT
    assert "`avactl import` shows all" in shown


def test_the_json_report_counts_what_is_listed(avactl: Run, tmp_path: Path) -> None:
    write(tmp_path, job=JOB, claim=CLAIM)
    report = json.loads(avactl("import", "job.yaml", "claim.yaml", "--format", "json").stdout)
    assert {each["kind"]: each["listed"] > 0 for each in report["objects"]} == {
        "Job": True,
        "PersistentVolumeClaim": False,
    }
    assert report["exact"] is False
    assert {each["carried"] for each in report["losses"]} == {True}


@pytest.mark.parametrize("kind", ["Deployment", "ConfigMap", "LeaderWorkerSet"])
def test_a_manifest_among_the_specs_points_at_the_import(kind: str, avactl: Run, tmp_path: Path) -> None:
    text = f"{PLATFORM}---\napiVersion: example.com/v1\nkind: {kind}\nmetadata: {{name: a}}\n"
    write(tmp_path, clusters__lab=text)
    (tmp_path / "avactl.yaml").write_text("include: [clusters]\n")
    for path in (".", "clusters/lab.yaml"):
        done = avactl("validate", path)
        assert done.returncode == 1
        assert "`avactl import clusters/lab.yaml`" in done.stdout + done.stderr
