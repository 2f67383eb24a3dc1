"""`explain`, `schema`, `init`, `graph`."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from avactl.compiler import compile_tree
from avactl.program import registry
from avactl.program.explain import introspect
from avactl.program.explain.explain import UnknownTopicError, explain_text
from avactl.spec.repository.tree import DirTree
from avactl.workbench.graph import draw
from tests.cli.running import Run
from tests.example_trees import example_tree

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_explain_lists_the_kinds() -> None:
    text = explain_text(None)
    assert all(name in text for name in registry.kind_names())


@pytest.mark.parametrize("kind", registry.kind_names())
def test_every_field_of_every_kind_is_explained(kind: str) -> None:
    explained = set()

    def walk(annotation: object, path: str) -> None:
        for branch in introspect.models_at(annotation, ()):
            for key, field in introspect.fields_by_key(branch).items():
                assert field.description, f"{path}.{key} has no description"
                assert f"{path}.{key}" in explain_text(f"{path}.{key}")
                explained.add(f"{path}.{key}")
                walk(field.annotation, f"{path}.{key}")

    walk(registry.get_model(kind), kind)
    assert {f"{kind}.metadata.name", f"{kind}.spec"} < explained
    assert any(path.startswith(f"{kind}.spec.") for path in explained)


def test_explain_says_type_unit_and_default() -> None:
    text = explain_text("TrainingJob.spec.workers")
    assert "cpu  CPU cores, as a quantity" in text
    assert "sharedMemory  bytes, as a quantity" in text
    assert "link  one of nvlink, pcieSwitch, socket, node, any; default any" in text
    assert "pool  name of a NodePool" in text
    assert explain_text("trainingjob.workers") == text


@pytest.mark.parametrize(
    ("topic", "hint"),
    [("TrainingJop", "TrainingJob"), ("TrainingJob.spec.worker", "workers"), ("unknown-keys", "unknown-key")],
)
def test_explain_of_a_slip_names_what_was_meant(topic: str, hint: str) -> None:
    with pytest.raises(UnknownTopicError) as caught:
        explain_text(topic)
    assert f"did you mean `{hint}`?" in caught.value.hint


def test_init_makes_a_repository_that_compiles(tmp_path: Path, avactl: Run) -> None:
    assert avactl("init", "new").returncode == 0
    assert avactl("validate", cwd=tmp_path / "new").stdout.startswith("ok: ")
    for name in (".github/workflows/avactl.yml", ".gitlab-ci.yml", ".vscode/settings.json", ".gitattributes"):
        assert (tmp_path / "new" / name).is_file()
    settings = json.loads((tmp_path / "new/.vscode/settings.json").read_text())
    assert settings["yaml.schemas"]
    assert [schema for schema in settings["yaml.schemas"] if not (tmp_path / "new" / schema).is_file()] == []
    again = avactl("init", "new")
    assert again.returncode == 2
    assert "already exists" in again.stderr


def test_schema_command(tmp_path: Path, avactl: Run) -> None:
    assert json.loads(avactl("schema", "nodepool").stdout)["properties"]["kind"] == {
        "const": "NodePool",
        "description": "The kind.",
    }
    assert avactl("schema", "-o", "schemas").returncode == 0
    assert (tmp_path / "schemas/trainingjob.schema.json").is_file()
    assert "did you mean `NodePool`?" in avactl("schema", "nodepol").stderr


@pytest.mark.parametrize("example", ["ava", "modern", "quickstart"])
def test_graph_shows_every_spec_that_has_a_place_in_it(example: str) -> None:
    compilation = compile_tree(DirTree(EXAMPLES / example))
    picture = draw(compilation)
    assert picture == draw(compile_tree(DirTree(EXAMPLES / example)))
    texts = {element.text for element in ET.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")}
    shown = ("Cluster", "Team", "NodePool", "CacheTier", "TrainingJob", "ServingDeployment", "Workspace")
    names = {kind: {item.name for item in compilation.program.of(kind)} for kind in shown}
    assert names["Cluster"]
    assert names["TrainingJob"]
    assert {kind: found - texts for kind, found in names.items() if found - texts} == {}


def test_graph_counts_pods_in_plain_english() -> None:
    picture = draw(compile_tree(example_tree("platform@prod")))
    assert "custom · single · 1 pod<" in picture
    assert "4–12 pods<" in picture
    assert " 1 pods<" not in picture


def test_the_picture_in_the_docs_is_current(golden: Callable[[Path, str], None]) -> None:
    golden(EXAMPLES.parent / "docs/ava.svg", draw(compile_tree(DirTree(EXAMPLES / "ava"))))


def test_pools_of_one_model_show_their_own_requests_and_there_is_a_legend() -> None:
    picture = draw(compile_tree(DirTree(EXAMPLES / "ava")))
    texts = [element.text for element in ET.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]
    found = {name: texts[texts.index(name) + 3] for name in ("v100", "v100-debug")}
    assert found == {
        "v100": "requested at full size: 40 of 96 (42%)",
        "v100-debug": "requested at full size: 2 of 32 (6%)",
    }
    assert {"borrowable", "reads through", "may run in; wider: more GPUs"} <= {*texts}


def test_graph_writes_the_file_or_says_why_not(tmp_path: Path, avactl: Run) -> None:
    assert avactl("graph", str(EXAMPLES / "quickstart"), "-o", "q.svg").returncode == 0
    assert (tmp_path / "q.svg").read_text().startswith("<svg")
    failed = avactl("graph", str(EXAMPLES / "quickstart"), "-o", "no/such/q.svg")
    assert failed.returncode == 3
    assert failed.stderr == "avactl: no/such/q.svg: no such file or directory\n"
