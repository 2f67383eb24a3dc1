"""A compile with kept results tells the same as one without in every environment, whatever layer was edited."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest

from avactl.apply.files.contents import object_text
from avactl.apply.files.paths import object_path
from avactl.compiler import compile_tree
from avactl.compiler.incremental.compile import CompileOutcome, compile_cached
from avactl.compiler.incremental.layering import Layers
from avactl.compiler.incremental.records import FileRecord
from avactl.compiler.incremental.tracing import KeptDocument
from avactl.compiler.validate import validate_document
from avactl.spec.documents.document import Document
from avactl.spec.repository.tree import DirTree
from tests.conftest import ROOT


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVACTL_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def environments(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "examples" / "environments", tmp_path / "environments"))


def check_in(root: Path, environment: str) -> CompileOutcome:
    """Compile with and without kept results in an environment, and compare."""
    plain = compile_tree(DirTree(root, environment=environment))
    kept = compile_cached(DirTree(root, environment=environment), object_path, object_text)
    assert kept.diagnostics == plain.diagnostics
    texts = {object_path(manifest): object_text(manifest) for manifest in plain.manifests}
    assert kept.texts(list(texts)) == texts
    assert kept.files.keys() == texts.keys()
    return kept


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("overlays/prod/vision.yaml", "replicas: 8", "replicas: 6"),
        ("overlays/prod/vision.yaml", "replicas: 8", "replicas: 0"),
        ("overlays/prod/vision.yaml", "\nkind", "\n# a comment moves the lines\nkind"),
        ("overlays/prod/vision.yaml", "resnet50", "resnet"),
        ("platform/defaults.yaml", "ttl: 7d", "ttl: 1d"),
        ("platform/templates.yaml", 'cpu: "4"', 'cpu: "2"'),
        ("platform/templates.yaml", "name: pytorch", "name: torch"),
        ("teams/vision/defaults.yaml", "timeout: 12h", "timeout: 9d"),
        ("teams/vision/jobs.yaml", "extends: pytorch", "extends: torch"),
        ("teams/vision/jobs.yaml", "replicas: 1", "replicas: 2, cpu: 3"),
        ("teams/vision/jobs.yaml", "name: resnet50", "name: other"),
        ("teams/vision/jobs.yaml", "replicas: 1", "replicas: 8"),
        ("avactl.yaml", "overlays: [overlays/prod]", "overlays: []"),
        ("avactl.yaml", "include: [clusters/prod]", "include: []"),
        ("avactl.yaml", "prod:", "production:"),
        ("clusters/prod/cluster.yaml", "count: 16", "count: 15"),
    ],
)
def test_a_change_of_a_layer_reaches_every_spec(path: str, old: str, new: str, environments: Path) -> None:
    check_in(environments, "prod")
    before = check_in(environments, "staging")
    file = environments / path
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    check_in(environments, "prod")
    staging = check_in(environments, "staging")
    if "prod" in path:
        assert staging.files == before.files
    file.write_text(text)
    check_in(environments, "prod")
    file.unlink()
    check_in(environments, "prod")
    check_in(environments, "staging")


def test_warnings_are_located_in_layers_by_a_kept_compile(environments: Path) -> None:
    """A warning of a kept spec is printed again at the line of the overlay that causes it."""
    check_in(environments, "prod")
    overlay = environments / "overlays/prod/vision.yaml"
    overlay.write_text(overlay.read_text() + "  timeout: 9d\n")
    (found,) = check_in(environments, "prod").diagnostics
    assert found.code == "no-checkpoint"
    # Another spec changes: the warning is kept.
    quota = environments / "overlays/staging/vision.yaml"
    quota.write_text(quota.read_text() + "# a comment\n")
    jobs = environments / "platform/teams.yaml"
    jobs.write_text(jobs.read_text().replace("[vision]", "[vision, all]"))
    assert check_in(environments, "prod").diagnostics == (found,)
    assert found.span.file == "overlays/prod/vision.yaml"


def test_only_what_changed_is_compiled_again(environments: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_in(environments, "prod")
    old = time.time() - 60
    for path in environments.rglob("*.yaml"):
        os.utime(path, (old, old))
    kept = compile_cached(DirTree(environments, environment="prod"), object_path, object_text)

    def refuse(*_: object) -> None:
        raise AssertionError("a spec was validated again")

    monkeypatch.setattr("avactl.compiler.validate.validate_document", refuse)
    again = compile_cached(DirTree(environments, environment="prod"), object_path, object_text)
    assert again.files == kept.files


MORE = """\
apiVersion: avactl.dev/v1
kind: TrainingJob
metadata: {name: plain, team: vision}
spec: {image: "registry.example.com/train:1", command: [python, train.py], workers: {gpus: 0, cpu: "1", memory: 1Gi}}
"""
OWN = """\
apiVersion: avactl.dev/v1
kind: TrainingJob
template: true
metadata: {name: %s%s}
extends: pytorch
spec: {env: {LEVEL: "%s"}}
"""


def test_a_changed_layer_recompiles_the_specs_that_inherit_from_it(
    environments: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def counted(document: Document) -> object:
        done.append(str(document.get("metadata", "name")))
        return validate_document(document)

    monkeypatch.setattr("avactl.compiler.validate.validate_document", counted)

    def compiled() -> set[str]:
        compiled_plainly = compile_tree(DirTree(environments, environment="prod"))
        done.clear()
        kept = compile_cached(DirTree(environments, environment="prod"), object_path, object_text)
        assert kept.ok, kept.diagnostics
        again = set(done)
        assert kept.diagnostics == compiled_plainly.diagnostics
        texts = {object_path(manifest): object_text(manifest) for manifest in compiled_plainly.manifests}
        assert kept.texts(list(texts)) == texts
        return again

    (environments / "teams/vision/plain.yaml").write_text(MORE)
    (environments / "teams/vision/own.yaml").write_text(
        MORE.replace("plain", "own").replace("spec:", "extends: own\nspec:")
    )
    template = environments / "platform/own.yaml"
    template.write_text(OWN % ("own", "", 1))
    everything = compiled()
    assert {"plain", "own", "resnet50", "vision"} <= everything
    template.write_text(OWN % ("own", "", 2))
    assert compiled() == {"own"}
    # The template below it, which resnet50 extends, too.
    base = environments / "platform/templates.yaml"
    base.write_text(base.read_text().replace('cpu: "4"', 'cpu: "3"'))
    assert "plain" not in (again := compiled())
    assert {"own", "resnet50"} <= again
    # A template of the team takes the place of the platform's.
    (environments / "platform/theirs.yaml").write_text(OWN % ("own", ", team: vision", 3))
    assert compiled() == {"own"}
    (environments / "platform/theirs.yaml").unlink()
    assert compiled() == {"own"}
    overlay = environments / "overlays/prod/more.yaml"
    overlay.write_text(MORE.replace("spec:", "spec: {timeout: 1h}\n#"))
    assert compiled() == {"plain"}
    defaults = environments / "teams/vision/defaults.yaml"
    defaults.write_text(defaults.read_text().replace("12h", "11h"))
    assert {"plain", "own", "resnet50"} <= (again := compiled())
    assert not again & {"gpus", "vision"}


def test_files_are_searched_for_layers_once(tmp_path: Path) -> None:
    """Not for every document: that would be quadratic."""

    class Files(dict[str, FileRecord]):
        searches = 0

        def values(self) -> Any:
            self.searches += 1
            return super().values()

    files = Files({"a.yaml": FileRecord(None, "", (), ())})
    layers = Layers(DirTree(tmp_path), files, no_locator, ())
    documents = [KeptDocument("a.yaml", index, b"", no_locator, {"kind": "Team"}) for index in range(3)]
    assert [layers.merged(each) for each in documents] == documents
    assert files.searches == 1


def no_locator(path: str) -> NoReturn:
    raise AssertionError(path)
