"""Manifests as platforms have them: what each becomes, what is listed, and that the specs compile.

`tests/golden/import/NAME.yaml` is imported into an empty repository; `NAME.txt` holds the report and the specs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from avactl import compile_tree
from avactl.spec.repository.tree import DirTree
from avactl.workbench.importer import report
from avactl.workbench.importer.model import ImportResult
from avactl.workbench.importer.reading import read
from avactl.workbench.importer.session import Imported, write
from tests.importer.importing import imported, imported_file

HERE = Path(__file__).parent.parent / "golden" / "import"
CASES = sorted(path for path in HERE.iterdir() if path.suffix in (".yaml", ".json"))
KINDS = {
    "Job",
    "Deployment",
    "StatefulSet",
    "PersistentVolumeClaim",
    "ResourceQuota",
    "Namespace",
    "RoleBinding",
    "TFJob",
    "PyTorchJob",
    "MPIJob",
    "TrainJob",
    "RayCluster",
    "ClusterQueue",
    "LocalQueue",
    "Node",
}
_OBVIOUS = ("containers", "replicas")


def _text(made: Imported, case: Path) -> str:
    lines = ["  ".join(row) for row in report.table_rows(made)]
    for reason, outcomes in report.group_by_reason(made):
        lines += ["", reason, *(f"  {each.given}" for each in outcomes)]
    lines += ["", *report.loss_lines(made.losses), "", *report.difference_lines(made), "", report.import_summary(made)]
    for path, data in sorted(made.files.items()):
        if not path.startswith("clusters/imported"):
            lines += ["", f"--- {path}", data.decode().rstrip("\n")]
    text = "\n".join(lines) + "\n"
    return text.replace(str(case), case.name)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_manifest(case: Path, tmp_path: Path, golden: Callable[[Path, str], None]) -> None:
    made = imported_file(case, tmp_path)
    write(made, tmp_path)
    compilation = compile_tree(DirTree(tmp_path))
    assert compilation.ok, compilation.diagnostics
    assert {str(each.given) for each in made.outcomes} == {str(each) for each in read([case], None)}  # type: ignore[arg-type]
    golden(case.with_suffix(".txt"), _text(made, case))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_every_difference_is_listed(case: Path, tmp_path: Path) -> None:
    """What the compiled objects lack or have in another form stands in the list, with its place and reason."""
    made = imported_file(case, tmp_path)
    for each in made.compared:
        told = " ".join(f"{loss.path} {loss.why}" for loss in each.spec.losses)
        for line in each.lines:
            if (line.sign == "+" and not each.spec.raw) or re.match(r"(\S+: )?ports\[", line.text):
                continue  # ports of avactl's pods have names of their own
            keys = [part for part in re.split(r"[^A-Za-z0-9_/-]+", line.text.split(" → ")[0]) if len(part) > 2]
            assert any(key in told for key in keys if key not in _OBVIOUS), (line, told)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_what_stays_a_manifest_is_the_same(case: Path, tmp_path: Path) -> None:
    made = imported_file(case, tmp_path)
    changed = {id(each.spec) for each in made.outcomes if each.result is ImportResult.approximated}
    for each in made.compared:
        if each.spec.raw and id(each.spec) not in changed:
            assert each.lines == []


def test_the_kinds_of_the_list_are_among_them() -> None:
    found = {each.kind for case in CASES for each in read([case], None)}  # type: ignore[arg-type]
    assert found >= KINDS
    assert len(CASES) >= 60


def test_every_output_has_a_case() -> None:
    assert sorted(HERE.glob("*.txt")) == sorted(case.with_suffix(".txt") for case in CASES)


def test_no_secret_is_written(tmp_path: Path) -> None:
    made = imported_file(HERE / "secret.yaml", tmp_path)
    text = _text(made, HERE / "secret.yaml") + report.as_json(made)
    assert "planted-secret" not in text
    assert "cGxhbnRlZC1z" not in text
    made = imported_file(HERE / "deployment-credential.yaml", tmp_path)
    assert "hunter2" not in _text(made, HERE / "deployment-credential.yaml") + report.as_json(made)


def test_what_is_in_the_namespace_default_stays_a_manifest(tmp_path: Path) -> None:
    """No team can own it."""
    text = (HERE / "job-single-gpu.yaml").read_text().replace("  namespace: nlp\n", "")
    made = imported(text, tmp_path)
    (outcome,) = made.outcomes
    assert outcome.result is ImportResult.raw
    assert "`default` is reserved" in outcome.note
    made = imported(text, tmp_path, namespace="nlp")
    assert [spec.kind for spec in made.specs if spec.given] == ["TrainingJob"]


def test_accelerators_that_pools_do_not_count_are_listed(tmp_path: Path) -> None:
    amounts = "{cpu: 64, memory: 512Gi, example.com/npu: 8}"
    text = f"""
apiVersion: v1
kind: Node
metadata: {{name: a}}
status: {{capacity: {amounts}, allocatable: {amounts}}}
"""
    made = imported(text, tmp_path)
    assert "pools do not count example.com/npu: specs cannot request it" in [loss.why for loss in made.losses]


def test_a_container_decides_on_its_user(tmp_path: Path) -> None:
    text = (HERE / "job-single-gpu.yaml").read_text()
    assert "      containers:" in text
    text = text.replace("      containers:", "      securityContext: {runAsUser: 2000}\n      containers:", 1)
    text = text.replace(
        "        - name: train\n", "        - name: train\n          securityContext: {runAsUser: 3000}\n", 1
    )
    (spec,) = [each for each in imported(text, tmp_path).specs if each.kind == "TrainingJob"]
    assert spec.spec["runAsUser"] == 3000


def test_never_restarted_pods_have_no_retries(tmp_path: Path) -> None:
    text = (HERE / "pytorchjob-elastic.yaml").read_text().replace("OnFailure", "Never")
    (spec,) = [each for each in imported(text, tmp_path).specs if each.kind == "TrainingJob"]
    assert spec.spec["retries"] == 0


def test_assumed_pools_have_the_taints_that_their_pods_tolerate(tmp_path: Path) -> None:
    made = imported((HERE / "job-kueue.yaml").read_text(), tmp_path)
    (pool,) = [each for each in made.specs if each.kind == "NodePool"]
    assert pool.spec["taints"] == [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]
    (job,) = [each.body for each in made.compilation.manifests if each.kind == "Job"]
    assert [each["key"] for each in job["spec"]["template"]["spec"]["tolerations"]] == ["nvidia.com/gpu"]
