"""Manifests of whatever shape end in specs or in words, and within bounds."""

from __future__ import annotations

import copy
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from avactl.workbench.importer import reading, report
from avactl.workbench.importer.model import GivenValue, ImportProblem, ImportResult
from avactl.workbench.importer.report_markdown import render_markdown
from avactl.workbench.importer.session import import_objects, write
from avactl.workbench.importer.sources.context import ImportOptions
from tests.importer.importing import IMAGES, imported
from tests.importer.test_manifests import CASES

_ODD: tuple[Any, ...] = (
    None,
    [],
    {},
    "",
    "x",
    0,
    -1,
    2**70,
    1.5,
    True,
    [[]],
    [None],
    {"": 1},
    "\x1b[31m\n::error::x",
    "a" * 300,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if len(path) > 1 else []
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        found += _places(inner, (*path, key))
    return found


def _set(value: Any, path: tuple[Any, ...], new: Any) -> None:
    for step in path[:-1]:
        value = value[step]
    value[path[-1]] = new


@pytest.mark.parametrize("seed", range(12))
def test_odd_values_end_in_specs_or_words(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    objects: list[GivenValue] = []
    for case in CASES:
        for each in reading.read([case], None):  # type: ignore[arg-type]
            body = copy.deepcopy(each.value)
            for _ in range(chance.choice((1, 2, 4))):
                places = [path for path in _places(body) if path[:2] != ("metadata", "name")]
                if places:
                    _set(body, chance.choice(places), copy.deepcopy(chance.choice(_ODD)))
            with suppress(ImportProblem):  # what is no object ends the import with its place
                objects += reading.read_objects("a.yaml", yaml.safe_dump(body).encode())
    made, _ = import_objects(objects, ImportOptions(images=IMAGES), tmp_path)
    assert made.compilation.ok
    assert report.as_json(made)
    assert report.difference_lines(made)
    assert report.loss_lines(made.losses)


def _torn(text: str, chance: random.Random) -> str:
    """Return the text of a manifest with one change that YAML parsers stumble over."""
    lines = text.split("\n")
    at = chance.randrange(len(lines))
    line = lines[at]
    key, colon, value = line.partition(": ")
    how = chance.randrange(10)
    if how == 0:
        lines.insert(at, line)  # a duplicate key, or an entry twice
    elif how == 1:
        lines[at] = f"{key}: &a {{<<: *a, b: *a}}"
    elif how == 2:
        lines[at] = f"{key}: {'[' * 200}{']' * 200}"
    elif how == 3:
        lines[at] = f"{key}: {'9' * 5000}"
    elif how == 4:
        lines[at] = f"{key}: !!python/object/apply:os.system [x]"
    elif how == 5:
        lines[at] = f"{key}{colon}{value[: chance.randrange(len(value) + 1)]}"
    elif how == 6:
        lines[at] = f"{key}: &a [x, *a]" if chance.random() < 0.5 else f"{key}: &a {{b: [*a]}}"
    elif how == 7:
        lines[at] = "  " * chance.randrange(8) + line.lstrip()
    elif how == 8:
        lines[at] = f"{key}: 1e999999" if chance.random() < 0.5 else f"{key}: .nan"
    else:
        del lines[at : at + chance.choice((1, 2, 5))]
    return "\n".join(lines)


@pytest.mark.parametrize("seed", range(3))
def test_torn_manifests_end_in_specs_or_words(seed: int, tmp_path: Path) -> None:
    """1,000 manifests whose structure has one change: duplicate keys, cycles, depth, huge numbers, tags, cut lines."""
    chance = random.Random(seed)
    texts = [case.read_text() for case in CASES if case.suffix == ".yaml"]
    objects: list[GivenValue] = []
    tried = 0
    while tried < 340:
        for text in texts:
            tried += 1
            with suppress(ImportProblem):
                objects += reading.read_objects("a.yaml", _torn(text, chance).encode())
    assert len(objects) > 100
    made, _ = import_objects(objects, ImportOptions(images=IMAGES), tmp_path)
    assert made.compilation.ok
    assert report.as_json(made)
    assert render_markdown(made)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1", "a.yaml"),
        ("- 1\n", "not a Kubernetes object"),
        ("kind: Job\n", "no `apiVersion`"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {}\n", "no name"),
        ("apiVersion: avactl.dev/v1\nkind: Team\nmetadata: {name: a}\n", "spec of avactl already"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: []\n", "`spec` is not a mapping"),
        ("a: " + "[" * 5000 + "]" * 5000, "a.yaml"),
        (
            "a: &a [x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a]\n"
            + "".join(f"{chr(99 + n)}: &{chr(99 + n)} [{', '.join([f'*{chr(98 + n)}'] * 9)}]\n" for n in range(9)),
            "a.yaml",
        ),
    ],
)
def test_what_cannot_be_read_is_told(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ImportProblem, match=words.replace("`", ".")):
        imported(text, tmp_path)


def test_the_number_of_objects_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_OBJECTS", 3)
    text = "---\n".join(f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a{n}, namespace: b}}\n" for n in range(4))
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ImportProblem, match="more than 3 objects"):
        reading.read([tmp_path], None)  # type: ignore[arg-type]


def test_names_of_others_cannot_leave_the_directory(tmp_path: Path) -> None:
    text = yaml.safe_dump(
        {
            "apiVersion": "example.com/v1",
            "kind": "Widget",
            "metadata": {"name": "../../etc/x", "namespace": "../.."},
        }
    )
    made = imported(text, tmp_path)
    assert [outcome.result for outcome in made.outcomes] == [ImportResult.left_out]
    assert all(".." not in path for path in made.files)


def test_links_of_a_repository_are_not_followed(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "repository"
    outside.mkdir()
    root.mkdir()
    (root / "avactl.yaml").write_text("{}\n")
    (root / "objects").symlink_to(outside)
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: vision}\ndata: {a: b}\n"
    made, top = import_objects(reading.read_objects("a.yaml", text.encode()), ImportOptions(images=IMAGES), root)
    with pytest.raises(OSError, match="symbolic link of the repository"):
        write(made, top)
    assert not [*outside.rglob("*")]
    assert sorted(path.name for path in root.iterdir()) == ["avactl.yaml", "objects"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("activeDeadlineSeconds", "TOKEN"),
        ("terminationGracePeriodSeconds", "{a: TOKEN}"),
        ("hostname", "[TOKEN]"),
        ("tolerations", "[{key: a, operator: TOKEN}]"),
        ("restartPolicy", "TOKEN"),
        ("hostAliases", "[{ip: TOKEN}]"),
    ],
)
@pytest.mark.parametrize("as_is", [False, True])
def test_a_credential_at_a_wrong_place_is_not_repeated(key: str, value: str, as_is: bool, tmp_path: Path) -> None:
    token = "ghp_" + "a1B2c3D4e5" * 4
    text = f"""
apiVersion: v1
kind: Namespace
metadata: {{name: vision}}
---
apiVersion: batch/v1
kind: Job
metadata: {{name: job, namespace: vision}}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{{name: main, image: "docker.io/library/busybox:1.36", command: [train]}}]
      {key}: {value}
""".replace("TOKEN", token)
    text = text.replace("      restartPolicy: Never\n", "") if key == "restartPolicy" else text
    made = imported(text, tmp_path, as_is=as_is)
    shown = [*report.loss_lines(made.losses), *report.difference_lines(made)]
    shown += [reason for reason, _ in report.group_by_reason(made)]
    for written in ("\n".join(shown), report.as_json(made), *(data.decode() for data in made.files.values())):
        assert token not in written


@pytest.mark.parametrize(("debug", "error"), [("", TypeError), ("", ValueError), ("1", ValueError), ("1", TypeError)])
def test_a_defect_of_avactl_is_not_told_as_a_wrong_type(
    debug: str, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Deployment that its schema accepts, and a conversion that fails: no value of it has a wrong type."""

    def fail(*_: object) -> None:
        raise error("unhashable")

    monkeypatch.setenv("AVACTL_DEBUG", debug)
    monkeypatch.setattr("avactl.workbench.importer.sources.services.convert_deployment", fail)
    text = (
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, namespace: b}, spec: {selector: {matchLabels: "
        "{a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: d}]}}}}"
    )
    if debug and error is TypeError:
        with pytest.raises(TypeError):
            imported(text, tmp_path)
        return
    made = imported(text, tmp_path)
    (outcome,) = (each for each in made.outcomes if each.given.kind == "Deployment")
    assert outcome.result is ImportResult.raw
    if error is TypeError:
        assert "avactl has a defect (TypeError at test_hostile.py:" in outcome.note
    else:
        assert outcome.note == "a value is not one that its kind accepts: unhashable"


@pytest.mark.parametrize(("written", "mode"), [("0400", 0o400), ("0o400", 0o400), ("256", 256), ('"0400"', None)])
def test_octal_numbers_are_those_of_kubernetes(written: str, mode: int | None, tmp_path: Path) -> None:
    """Kubernetes reads YAML 1.1, in which `0400` is octal."""
    text = f"""
apiVersion: v1
kind: Pod
metadata: {{name: a, namespace: b, labels: {{code: "0400"}}}}
spec:
  containers: [{{name: a, image: "a:1"}}]
  volumes:
    - {{name: a, secret: {{secretName: a, defaultMode: {written}}}}}
"""
    made = imported(text, tmp_path)
    found = [each.body for each in made.compilation.manifests if each.kind == "Pod"]
    assert [each["spec"]["volumes"][0]["secret"]["defaultMode"] for each in found] == ([] if mode is None else [mode])


@pytest.mark.parametrize(
    "text",
    [
        "{apiVersion: v1, kind: Node, metadata: {name: a}, spec: {taints: [{effect: NoSchedule, key: ''}]}, "
        "status: {capacity: {cpu: 8, nvidia.com/gpu: 1}}}",
        "{apiVersion: v1, kind: Node, metadata: {name: n}, status: {capacity: {nvidia.com/gpu: 1}}}\n---\n"
        "{apiVersion: v1, kind: ResourceQuota, metadata: {name: a, namespace: b}, spec: {hard: "
        "{requests.nvidia.com/gpu: null}}}",
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, namespace: b}, spec: {selector: {matchLabels: "
        "{a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: d, ports: "
        "[{containerPort: 0}], readinessProbe: {httpGet: {path: /, port: 0}}, resources: {limits: "
        "{nvidia.com/gpu: 1}}}]}}}}",
    ],
    ids=["taint without a key", "quota without a number", "port 0"],
)
def test_empty_values_are_no_defect(text: str, tmp_path: Path) -> None:
    made = imported(text, tmp_path)
    assert made.compilation.ok
    assert not [each.note for each in made.outcomes if "defect" in each.note]


def test_pods_without_containers_are_told(tmp_path: Path) -> None:
    text = (
        "{apiVersion: batch/v1, kind: Job, metadata: {name: a, namespace: b}, spec: {completionMode: Indexed, "
        "completions: 2, parallelism: 2, template: {spec: {containers: [], restartPolicy: Never}}}}"
    )
    (outcome,) = (each for each in imported(text, tmp_path).outcomes if each.given.kind == "Job")
    assert "its pods have no containers" in outcome.note


def test_the_number_of_values_is_that_of_the_list(tmp_path: Path) -> None:
    spaces = "\n---\n".join(f"{{apiVersion: v1, kind: Namespace, metadata: {{name: t{n}}}}}" for n in range(3))
    made = imported(spaces, tmp_path)
    assert report.loss_title(made.losses) == "6 values not carried over as they are, in 4 entries"
    lines = report.loss_lines(made.losses)
    assert len(lines) == 2 * 4
    assert " and 2 more " in lines[0]
    assert report.loss_title(made.losses[:1]) == "1 value not carried over as it is"
