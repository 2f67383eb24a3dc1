"""`avactl set`: only the value changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from avactl.spec.documents.edit import EditError, parse_edit, set_values
from avactl.spec.documents.yaml import compose_documents, load_yaml
from tests.cli.running import Run

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FILES = sorted(path for path in EXAMPLES.rglob("*.yaml"))


def leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The scalars of a document with their paths."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if "." not in key.value:
                yield from leaves(value, f"{path}.{key.value}" if path else key.value)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from leaves(value, f"{path}[{index}]")
    else:
        yield path, node


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(EXAMPLES)))
def test_every_value_of_every_example_there_and_back(file: Path) -> None:
    text = file.read_text()
    places = [(index, *leaf) for index, root in enumerate(compose_documents(text)) for leaf in leaves(root)]
    assert places
    for index, path, node in places:
        changed = set_values(file.name, text, index, [(path, "other-value")])
        assert changed != text
        if node.style in ("|", ">"):
            # A block becomes one line: its value comes back, not its lines.
            back = set_values(file.name, changed, index, [(path, json.dumps(node.value))])
            assert list(yaml.safe_load_all(back)) == list(yaml.safe_load_all(text))
            continue
        assert len(changed.splitlines()) == len(text.splitlines())
        back = text[node.start_mark.index : node.end_mark.index]
        assert set_values(file.name, changed, index, [(path, back)]) == text


TEXT = """\
# The job.
kind: TrainingJob   # what
spec:
  command: [python, train.py, --epochs, "90"]
  workers: {replicas: 4, gpus: 8}   # whole machines
  # Where the data is:
  datasets:
    - name: imagenet
      version: v3
    - {name: coco, version: v1}
  ttl: 3d
  note: |
    two
    lines

  täg: "ü – ñ"
last: 'x'
"""


@pytest.mark.parametrize(
    ("edit", "old", "new"),
    [
        ("spec.workers.replicas=8", "replicas: 4", "replicas: 8"),
        ("spec.command[3]=120", '"90"', '"120"'),
        ("spec.datasets[name=imagenet].version=v4", "version: v3", "version: v4"),
        ("spec.datasets[1].version=v2", "coco, version: v1", "coco, version: v2"),
        ("spec.workers.link=nvlink", "gpus: 8}", "gpus: 8, link: nvlink}"),
        ("spec.command[4]=--amp", '"90"]', '"90", --amp]'),
        ("spec.checkpoint.every=15m", 'täg: "ü – ñ"\n', 'täg: "ü – ñ"\n  checkpoint: {every: 15m}\n'),
        ("spec.datasets[2]={name: mnist}", "version: v1}\n", "version: v1}\n    - {name: mnist}\n"),
        ("spec.ttl-", "  ttl: 3d\n", ""),
        ("spec.workers.gpus-", "{replicas: 4, gpus: 8}", "{replicas: 4}"),
        ("spec.workers.replicas-", "{replicas: 4, gpus: 8}", "{gpus: 8}"),
        ("last=it's", "'x'", "'it''s'"),
        ("spec.täg=no", '"ü – ñ"', '"no"'),
        ("spec.ttl=true", "ttl: 3d", "ttl: true"),
        ("spec.note=short", "note: |\n    two\n    lines", "note: short"),
        (
            "spec.datasets=[]",
            "datasets:\n    - name: imagenet\n      version: v3\n    - {name: coco, version: v1}",
            "datasets: []",
        ),
    ],
)
def test_edits_change_only_the_value(edit: str, old: str, new: str) -> None:
    assert TEXT.count(old) == 1
    assert set_values("a.yaml", TEXT, 0, [parse_edit(edit)]) == TEXT.replace(old, new)


@pytest.mark.parametrize(
    "edit", ["spec.datasets[name=coc].version=v2", "spec.datasets[7]=x", "spec.gone-", "spec.ttl.x=1"]
)
def test_edits_that_cannot_be_made(edit: str) -> None:
    with pytest.raises(EditError):
        set_values("a.yaml", TEXT, 0, [parse_edit(edit)])


def test_windows_line_ends_stay() -> None:
    text = TEXT.replace("\n", "\r\n")
    changed = set_values("a.yaml", text, 0, [("spec.workers.replicas", "8")])
    assert changed == text.replace("replicas: 4", "replicas: 8")


def test_command(tmp_path: Path, avactl: Run) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_bytes((EXAMPLES / "ava/teams/vision/jobs.yaml").read_bytes())
    before = file.read_text()
    done = avactl("set", "jobs.yaml", "--name", "resnet50", "spec.workers.replicas=8")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert file.read_text() == before.replace("replicas: 4, gpus: 8, gpu: V100", "replicas: 8, gpus: 8, gpu: V100")
    assert load_yaml("jobs.yaml", file.read_bytes())[1] == []


def test_command_refuses_what_is_wrong(tmp_path: Path, avactl: Run) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_bytes((EXAMPLES / "ava/teams/vision/jobs.yaml").read_bytes())
    before = file.read_bytes()
    several = avactl("set", "jobs.yaml", "spec.ttl=1d")
    assert several.returncode == 2
    assert "choose with --name: TrainingJob/resnet50" in several.stderr
    wrong = avactl("set", "jobs.yaml", "--name", "resnet50", "spec.workers.replicas=none")
    assert wrong.returncode == 1
    assert "expected an integer, got string `none`" in wrong.stderr
    above = avactl(
        "set", f"{tmp_path.name}/jobs.yaml", "--name=resnet50", "spec.workers.replicas=no", cwd=tmp_path.parent
    )
    assert f"--> {tmp_path.name}/jobs.yaml:" in above.stderr
    assert file.read_bytes() == before
    assert avactl("set", "jobs.yaml", "--name", "resnet50", "spec.workers.replicas=none", "--force").returncode == 0
    assert b"replicas: none" in file.read_bytes()


def test_an_edit_that_breaks_another_spec_is_refused(tmp_path: Path, avactl: Run) -> None:
    for source in (EXAMPLES / "quickstart").iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes())
    shown = avactl("set", "platform.yaml", "--name", "TrainingJob/resnet50", "spec.workers.gpus=4")
    assert shown.returncode == 1
    assert "pod-never-fits" in shown.stderr or "quota-exceeded" in shown.stderr
    assert "gpus: 4" in shown.stderr, "the new line is shown"
    assert "nothing was written" in shown.stderr
    before = (tmp_path / "platform.yaml").read_text()
    assert before == (EXAMPLES / "quickstart" / "platform.yaml").read_text()
    job = ("set", "platform.yaml", "--name", "TrainingJob/resnet50")
    assert avactl(*job, "metadata.team=visoin").returncode == 1
    assert avactl("set", "platform.yaml", "--name", "NodePool/a10", "spec.count=3").returncode == 0
    assert avactl(*job, "spec.workers.gpus=4", "--force").stderr == ""
    # An error that the repository has already does not stop another edit.
    assert avactl("set", "platform.yaml", "--name", "NodePool/a10", "spec.count=4").returncode == 0
