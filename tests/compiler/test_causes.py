"""One mistake that many specs follow from is reported once, where it is."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from avactl.cli.common import select
from avactl.compiler import compile_tree, driver
from avactl.compiler.causes import trace_causes
from avactl.compiler.load import load
from avactl.compiler.pass_state import PassState
from avactl.diagnostics import Diagnostic, Note, Reference, Span
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
    (PLATFORM, "\n    - {key: nvidia.com/gpu}", " [{key: nvidia.com/gpus}]", "invalid-value", "`nvidia.com/gpu`"),
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


def test_a_misspelt_team_beside_others_in_an_entry_of_owners_is_the_cause() -> None:
    ((code, file, line, hint),) = _problems(SETTINGS, "teams: [vision]", "teams: [audio, infra, vison]")
    assert (code, file, hint) == ("missing-reference", SETTINGS, "did you mean `vision`?")
    assert "vison" in line


def test_a_renamed_job_is_the_cause() -> None:
    files = dict(FILES)
    for name in ("first", "second"):
        job = JOBS.replace("TEAM", "vision").replace("name: train", f"name: {name}")
        files[f"teams/vision/{name}.yaml"] = job + "  after: [train]\n"
    files["teams/vision/jobs.yaml"] = files["teams/vision/jobs.yaml"].replace("name: train", "name: trains")
    (found,) = [
        each
        for each in compile_tree(MemoryTree({name: text.encode() for name, text in files.items()})).diagnostics
        if each.code == "missing-reference"
    ]
    assert (found.span.file, found.hint) == ("teams/vision/jobs.yaml", "write `train`; or `trains` in the 2 references")


def test_texts_of_messages_are_no_causes() -> None:
    """Problems that only read like references to the former name of a team are kept."""
    tree = MemoryTree({"a.yaml": b"kind: Team\nmetadata: {name: visions}\n"})
    documents = load(PassState(tree)).documents
    problems = [
        Diagnostic("missing-reference", "unknown Team `vision`", Span("b.yaml", line), hint="did you mean `visions`?")
        for line in (1, 2)
    ]
    assert trace_causes(tree, documents, problems) == problems
    about = Reference("Team", "vision", "visions")
    (found,) = trace_causes(tree, documents, [replace(each, reference=about) for each in problems])
    assert found.message == "nothing refers to Team `visions`, but 2 references are to `vision`, which no spec declares"


def test_the_spec_in_its_place_wins_over_a_duplicate_elsewhere() -> None:
    duplicate = "---\napiVersion: avactl.dev/v1\nkind: Team\nmetadata: {name: vision}\nspec: {members: {groups: [x]}}\n"
    found = _problems("teams/audio/jobs.yaml", "mount: /data}]\n", f"mount: /data}}]\n{duplicate}")
    assert [(code, file) for code, file, *_ in found] == [
        ("not-owner", "teams/audio/jobs.yaml"),
        ("duplicate-name", "teams/audio/jobs.yaml"),
    ]


@pytest.mark.parametrize(
    ("code", "noted", "wrong", "is_left"),
    [
        ("taint-not-tolerated", "taints", "teints", False),
        ("taint-not-tolerated", "taints", "cpu", True),
        ("missing-reference", "versions", "teints", True),
        ("quota-exceeded", "taints", "teints", True),
    ],
)
def test_only_an_error_inside_of_a_value_explains(code: str, noted: str, wrong: str, is_left: bool) -> None:
    """Specs on one line: what stands behind a value is no part of it."""
    text = "spec: {versions: [v1], taints: [{key: teints}], cpu: -1}\n"
    there, here = (Span("pool.yaml", 1, text.index(word) + 1) for word in (noted, wrong))
    follows = Diagnostic(code, "not as declared", Span("job.yaml"), notes=(Note(there, "declared"),))
    error = Diagnostic("invalid-value", "no value", here)
    tree = MemoryTree({"pool.yaml": text.encode(), "job.yaml": b"kind: x\n"})
    assert trace_causes(tree, [], [follows, error]) == ([follows, error] if is_left else [error])


def _files_with_errors(problems: list[Diagnostic]) -> set[str]:
    errors = [each for each in problems if each.severity == "error"]
    return {span.file for each in errors for span in (each.span, *(note.span for note in each.notes))}


@pytest.mark.parametrize("seed", range(12))
def test_a_file_with_an_error_is_never_ok(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is reported if it has an error of its own, or the cause of another's."""
    chance = random.Random(seed)
    files = dict(FILES)
    for index in range(7):
        files[f"teams/vision/more-{index}.yaml"] = JOBS.replace("TEAM", "vision").replace("train", f"more-{index}", 1)
    if seed == 0:
        files[PLATFORM] = files[PLATFORM].replace("name: birds", "name: bird")
    elif seed == 1:
        files[SETTINGS] = "include: [platfrom, teams]\n" + files[SETTINGS]
    elif seed == 2:
        files[SETTINGS] = files[SETTINGS].replace("teams: [vision]", "teams: [vison]")
    else:
        for _ in range(chance.choice([1, 2])):
            path = chance.choice([PLATFORM, VISION, SETTINGS, "teams/vision/jobs.yaml", PLATFORM])
            word = chance.choice(list(re.finditer(r"[A-Za-z0-9-]{3,}", files[path])))
            files[path] = files[path][: word.end()] + chance.choice(["x", "s", " x", ": "]) + files[path][word.end() :]
    tree = MemoryTree({name: text.lstrip("\n").encode() for name, text in files.items()})
    compiled = compile_tree(tree)
    with monkeypatch.context() as patch:
        patch.setattr(driver, "trace_causes", lambda tree, documents, problems: problems)
        untraced = compile_tree(tree).diagnostics
    expected = _files_with_errors([*untraced, *compiled.diagnostics])
    shown = {file for file in files if any(d.severity == "error" for d in select(compiled, [file]))}
    assert shown == expected.intersection(files)


def test_notes_are_bounded() -> None:
    jobs = "---".join(JOBS.replace("TEAM", "vision").replace("name: train", f"name: job-{i}") for i in range(2000))
    files = {**FILES, "teams/vision/jobs.yaml": jobs}
    files["teams/vision/team.yaml"] = FILES["teams/vision/team.yaml"].replace("name: vision", "name: visions", 1)
    (found,) = compile_tree(MemoryTree({name: text.encode() for name, text in files.items()})).diagnostics
    assert "2001 references" in found.message
    assert len(found.notes) == 5
