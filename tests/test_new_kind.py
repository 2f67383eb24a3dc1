"""A new kind is one registration: loading, checks, output, schema and explanation follow from it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import ClassVar, Literal

import pytest
from pydantic import Field

from avactl.compiler import compile_tree
from avactl.compiler.json_schema import schemas
from avactl.diagnostics import Diagnostic
from avactl.kinds import registry
from avactl.kinds.base import Model, Resource
from avactl.kinds.fields.values import Count
from avactl.kinds.lowering import k8s
from avactl.kinds.manifest import Manifest
from avactl.kinds.program import Item, Program
from avactl.kinds.reference.explain import explain_text
from avactl.kinds.registry import Kind
from avactl.source.tree import MemoryTree

PLATFORM = """\
apiVersion: avactl.dev/v1
kind: Cluster
metadata: {name: main}
---
apiVersion: avactl.dev/v1
kind: Team
metadata: {name: vision}
---
"""
NOTE = "apiVersion: avactl.dev/v1\nkind: Notebook\nmetadata: {name: n, team: vision}\nspec: {pages: 3}\n"


class NotebookSpec(Model):
    """Pages."""

    pages: Count = Field(description="How many pages.")


class Notebook(Resource):
    """A notebook of a team.

    Compiles to a ConfigMap.
    """

    KIND: ClassVar[str] = "Notebook"
    SCOPE: ClassVar[Literal["team"]] = "team"
    kind: Literal["Notebook"] = Field("Notebook", description="`Notebook`.")
    spec: NotebookSpec = Field(description="The notebook.")


def lower(item: Item, program: Program) -> list[Manifest]:
    return [k8s.config_map(item, item.cluster, item.name, item.ns, {"pages": str(item.spec.pages)})]


def check(item: Item, program: Program) -> Iterable[Diagnostic]:
    if item.spec.pages > 10:
        yield Diagnostic("invalid-value", "too many pages", item.span("spec", "pages"), hint="tear some out")


@pytest.fixture(autouse=True)
def notebook() -> Iterator[None]:
    registry.register(Kind(Notebook, lower, check))
    yield
    registry.unregister("Notebook")


def test_it_compiles() -> None:
    result = compile_tree(MemoryTree({"a.yaml": PLATFORM + NOTE}))
    assert result.diagnostics == ()
    bodies = [m.body for m in result.manifests if m.item.kind == "Notebook"]
    assert [(b["kind"], b["metadata"]["namespace"], b["data"]) for b in bodies] == [
        ("ConfigMap", "vision", {"pages": "3"})
    ]


def test_its_checks_and_slips_are_told() -> None:
    result = compile_tree(MemoryTree({"a.yaml": PLATFORM + NOTE.replace("3", "30")}))
    assert [(d.code, str(d.span)) for d in result.diagnostics] == [("invalid-value", "a.yaml:12:15")]
    result = compile_tree(MemoryTree({"a.yaml": PLATFORM + NOTE.replace("Notebook", "Notebok")}))
    assert [d.hint for d in result.diagnostics] == ["did you mean `Notebook`?"]


def test_schema_and_explanation_follow() -> None:
    schema = json.loads(schemas()["notebook.schema.json"])
    assert schema["$defs"]["NotebookSpec"]["required"] == ["pages"]
    assert "How many pages." in explain_text("Notebook.pages")
    assert "A notebook of a team." in explain_text(None)


def test_names_are_taken_once() -> None:
    with pytest.raises(ValueError, match="registered already; give the model another KIND"):
        registry.register(Kind(Notebook, lower))


def test_built_in_kinds_stay() -> None:
    with pytest.raises(KeyError, match="built in"):
        registry.unregister("Team")
