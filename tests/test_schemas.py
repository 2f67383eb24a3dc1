"""The schemas in `schemas/` are the current ones, and agree with the models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from avactl.compiler import compile_tree
from avactl.compiler.json_schema import ALL, schema_files
from avactl.compiler.layers.merge_pass import merge
from avactl.compiler.load import load
from avactl.compiler.validate import validate
from avactl.program import registry
from avactl.spec.documents.yaml import load_yaml
from tests.example_trees import EXAMPLES as TREES
from tests.example_trees import example_tree
from tests.test_invalid import CASES, case_files, tree_of

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
STRUCTURAL = {"unknown-key", "missing-key", "wrong-type", "invalid-value", "unknown-kind", "unknown-api-version"}


def _validator(name: str) -> Any:
    files = {name: json.loads(text) for name, text in schema_files().items()}
    registry: Any = Registry().with_resources(
        (name, DRAFT202012.create_resource(schema)) for name, schema in files.items()
    )
    return jsonschema.Draft202012Validator(files[name], registry=registry)


VALIDATOR = _validator(ALL)
OVERLAYS = _validator("overlay.schema.json")


def test_the_written_schemas_are_current() -> None:
    written = {path.name: path.read_text() for path in (ROOT / "schemas").glob("*.json")}
    assert written == schema_files(), "`make schemas` writes them anew"


def test_every_schema_is_a_schema() -> None:
    texts = schema_files()
    assert len(texts) > len(registry.kind_names())
    for text in texts.values():
        jsonschema.Draft202012Validator.check_schema(json.loads(text))


def _documents(folder: str) -> Iterator[Any]:
    for path in sorted(EXAMPLES.rglob("*.yaml")):
        if path.name == "avactl.yaml" or {"manifests", "charts"} & {*path.parts}:  # Kubernetes' own, no specs
            continue
        if ("overlays" in path.parts) == (folder == "overlays"):
            for document in load_yaml(path.name, path.read_bytes())[0]:
                yield pytest.param(document.value, id=f"{path.relative_to(EXAMPLES)}#{document.index}")


@pytest.mark.parametrize("value", list(_documents("specs")))
def test_every_example_passes(value: Any) -> None:
    VALIDATOR.validate(value)


@pytest.mark.parametrize("value", list(_documents("overlays")))
def test_every_overlay_passes(value: Any) -> None:
    OVERLAYS.validate(value)


@pytest.mark.parametrize("example", TREES)
def test_every_example_compiles(example: str) -> None:
    assert compile_tree(example_tree(example)).ok


def test_settings_of_the_examples_pass() -> None:
    schema = json.loads(schema_files()["config.schema.json"])
    files = sorted(EXAMPLES.glob("*/avactl.yaml"))
    assert [file.parent.name for file in files] == ["ava", "environments", "import", "platform", "training"]
    for file in files:
        jsonschema.validate(load_yaml(file.name, file.read_bytes())[0][0].value, schema)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parent.name}/{case.name}")
def test_what_is_structurally_wrong_is_refused_by_both(case: Path) -> None:
    files = case_files(case)
    # Structure is what validation tells of a document alone; the later passes know what a schema cannot say.
    structure = compile_tree(tree_of(files), passes=(load, merge, validate)).diagnostics
    problems = compile_tree(tree_of(files)).diagnostics
    wrong = {(d.span.file, d.code) for d in structure if d.code in STRUCTURAL}
    refused = {
        path
        for path, data in files.items()
        if path.endswith((".yaml", ".yml")) and path != "avactl.yaml" and not path.startswith("policies/")
        for document in load_yaml(path, data)[0]
        if not (OVERLAYS if path.startswith("overlays/") else VALIDATOR).is_valid(document.value)
    }
    assert {file for file, _ in wrong if file != "avactl.yaml"} <= refused
    # The other way round: what a schema refuses, the models refuse too.
    assert refused <= {d.span.file for d in problems if d.severity == "error"}
