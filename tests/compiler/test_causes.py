"""One mistake that many specs follow from is reported once, where it is."""

from __future__ import annotations

import pytest

from avactl.compiler import compile_tree
from avactl.spec.repository.tree import MemoryTree

FILES = {
    "avactl.yaml": """
owners:
  - {path: "*", teams: ["*"], kinds: ["*"]}
  - {path: /teams/vision/, teams: [vision]}
  - {path: /teams/audio/, teams: [audio]}
  - {path: /teams/*/team.yaml, teams: ["*"], kinds: [Team, Quota]}
""",
    "platform/main.yaml": """
apiVersion: avactl.dev/v1
kind: Cluster
metadata: {name: main}
spec:
  images: {fetch: "registry.example.com/rclone@sha256:DIGEST"}
---
apiVersion: avactl.dev/v1
kind: MachineType
metadata: {name: card-4}
spec: {gpus: {model: L4, count: 4, memory: 24Gi}, cpu: 64, memory: 256Gi}
---
apiVersion: avactl.dev/v1
kind: NodePool
metadata: {name: cards}
spec:
  cluster: main
  machineType: card-4
  count: 4
  taints:
    - {key: nvidia.com/gpu}
---
apiVersion: avactl.dev/v1
kind: Dataset
metadata: {name: birds}
spec:
  size: 1Gi
  secret: birds-s3
  versions:
    - {name: v1, url: "s3://birds/v1"}
    - {name: v2, url: "s3://birds/v2"}
""",
}
FILES["platform/main.yaml"] = FILES["platform/main.yaml"].replace("DIGEST", "a" * 64)
TEAM = """
apiVersion: avactl.dev/v1
kind: Team
metadata: {name: TEAM}
spec:
  clusters: [main]
  members: {groups: [TEAM]}
---
apiVersion: avactl.dev/v1
kind: Quota
metadata: {name: gpus, team: TEAM}
spec:
  cluster: main
  gpus:
    - {gpu: L4, guaranteed: 4}
  memory: 1Ti
"""
JOBS = """
apiVersion: avactl.dev/v1
kind: TrainingJob
metadata: {name: train, team: TEAM}
spec:
  cluster: main
  image: registry.example.com/TEAM/train:1
  workers: {gpus: 1, gpu: L4, memory: 16Gi}
  datasets: [{name: birds, version: v2, mount: /data}]
"""
for _team in ("vision", "audio"):
    FILES[f"teams/{_team}/team.yaml"] = TEAM.replace("TEAM", _team)
    FILES[f"teams/{_team}/jobs.yaml"] = JOBS.replace("TEAM", _team)


def _problems(path: str, old: str, new: str) -> list[tuple[str, str, str, str]]:
    assert old in FILES[path]
    files = {**FILES, path: FILES[path].replace(old, new, 1)}
    found = compile_tree(MemoryTree({name: text.lstrip("\n").encode() for name, text in files.items()})).diagnostics
    lines = {name: text.lstrip("\n").split("\n") for name, text in files.items()}
    return [(d.code, d.span.file, lines[d.span.file][d.span.line - 1].strip(), d.hint) for d in found]


VISION, PLATFORM, SETTINGS = "teams/vision/team.yaml", "platform/main.yaml", "avactl.yaml"
MISTAKES = [
    (VISION, "name: vision", "name: visions", "missing-reference", "write `vision`"),
    (VISION, "name: vision", "name: cv", "missing-reference", "write `vision`"),
    (VISION, "name: vision", "name: visiоn", "invalid-value", "write `vision`"),
    (VISION, "[main]", "[mian]", "missing-reference", "`main`"),
    (VISION, "gpu: L4", "gpu: L40", "gpu-not-in-cluster", "`L4`"),
    (VISION, "1Ti", "12", "invalid-value", "`12Gi`"),
    (PLATFORM, "name: main", "name: mains", "missing-reference", "write `main`"),
    (PLATFORM, "name: birds", "name: bird", "missing-reference", "write `birds`"),
    (PLATFORM, "name: v2, ", "name: v1, ", "duplicate-entry", "rename"),
    (PLATFORM, "model: L4", "model: l4", "gpu-not-in-cluster", "write `L4`"),
    (PLATFORM, "name: card-4", "name: card_4", "invalid-value", "write `card-4`"),
    (PLATFORM, "nvidia.com/gpu", "nvidia.com/gpus", "invalid-value", "`nvidia.com/gpu`"),
    (SETTINGS, "teams: [vision]", "teams: [vison]", "missing-reference", "`vision`"),
    (SETTINGS, "owners:", "include: [platfrom, teams]\nowners:", "missing-reference", "`platform`"),
]


@pytest.mark.parametrize(("path", "old", "new", "code", "hint"), MISTAKES)
def test_one_problem_at_the_cause(path: str, old: str, new: str, code: str, hint: str) -> None:
    assert _problems(path, old, old) == []
    ((found_code, file, line, found_hint),) = _problems(path, old, new)
    assert (found_code, file) == (code, path)
    assert new.split("\n")[0] in line
    assert hint in found_hint


def test_a_misspelt_reference_is_reported_where_it_is() -> None:
    ((code, file, line, hint),) = _problems("teams/vision/jobs.yaml", "team: vision", "team: visions")
    assert (code, file, line) == (
        "missing-reference",
        "teams/vision/jobs.yaml",
        "metadata: {name: train, team: visions}",
    )
    assert hint == "did you mean `vision`?"


def test_a_name_that_others_use_is_not_the_cause() -> None:
    """Two specs name a team that nearly exists, and others name that one: the two are wrong."""
    files = {**FILES, "teams/vision/more.yaml": JOBS.replace("TEAM", "vision").replace("name: train", "name: more")}
    files["teams/vision/jobs.yaml"] = FILES["teams/vision/jobs.yaml"].replace("team: vision", "team: visio")
    files["teams/vision/more.yaml"] = files["teams/vision/more.yaml"].replace("team: vision", "team: visio")
    found = compile_tree(MemoryTree({name: text.encode() for name, text in files.items()})).diagnostics
    assert [(d.code, d.span.file) for d in found if d.severity == "error"] == [
        ("missing-reference", "teams/vision/jobs.yaml"),
        ("missing-reference", "teams/vision/more.yaml"),
    ]


def test_the_spec_in_its_place_wins_over_a_duplicate_elsewhere() -> None:
    duplicate = "---\napiVersion: avactl.dev/v1\nkind: Team\nmetadata: {name: vision}\nspec: {members: {groups: [x]}}\n"
    found = _problems("teams/audio/jobs.yaml", "mount: /data}]\n", f"mount: /data}}]\n{duplicate}")
    assert [(code, file) for code, file, *_ in found] == [
        ("not-owner", "teams/audio/jobs.yaml"),
        ("duplicate-name", "teams/audio/jobs.yaml"),
    ]


def test_notes_are_bounded() -> None:
    jobs = "---".join(JOBS.replace("TEAM", "vision").replace("name: train", f"name: job-{i}") for i in range(2000))
    files = {**FILES, "teams/vision/jobs.yaml": jobs}
    files["teams/vision/team.yaml"] = FILES["teams/vision/team.yaml"].replace("name: vision", "name: visions", 1)
    (found,) = compile_tree(MemoryTree({name: text.encode() for name, text in files.items()})).diagnostics
    assert "2001 references" in found.message
    assert len(found.notes) == 5
