"""The stack program for `pulumi up` by hand, and the components for anyone's own program, under Pulumi's mocks."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import avactl_components
import pulumi
import pytest
from avactl_components import components
from avactl_components.component import SpecComponent, component
from avactl_components.host import provider as component_provider
from pulumi.provider.experimental.util import camel_case

from avactl.apply.pulumi import stack
from avactl.kinds import Metadata
from avactl.kinds.workspace import WorkspaceSpec
from avactl.program import registry
from avactl.program.explain import introspect
from tests.pulumi.mocks import Registered, run
from tests.pulumi.repository import compiled, files

IMAGE = "registry.example.com/jupyter@sha256:" + "a" * 64


def write(root: Path, *replace: tuple[str, str]) -> None:
    for path, text in files(*replace).items():
        (root / path).write_text(text)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write(tmp_path)
    return tmp_path


def program(root: Path, name: str, **config: str) -> list[Registered]:
    return run(stack.run, name, {"path": str(root), **config})


def names(found: list[Registered], prefix: str = "kubernetes:") -> list[str]:
    return sorted(f"{entry.type.rpartition(':')[2]} {entry.name}" for entry in found if entry.type.startswith(prefix))


@pytest.mark.parametrize(("name", "config"), [("main.vision", {}), ("mine", {"cluster": "main", "team": "vision"})])
def test_a_stack_holds_what_its_name_or_its_settings_say(repository: Path, name: str, config: dict[str, str]) -> None:
    expected = sorted(f"{m.kind} {m.namespace}/{m.name}" for m in compiled().manifests if m.item.team == "vision")
    assert names(program(repository, name, **config)) == expected


def test_a_stack_program_tells_what_is_wrong_with_the_specs(repository: Path) -> None:
    (repository / "work.yaml").write_text(files()["work.yaml"].replace("storage: 20Gi", "storag: 20Gi"))
    with pytest.raises(pulumi.RunError, match=r"did you mean `storage`"):
        program(repository, "main.vision")


def test_a_stack_of_no_cluster_is_refused(repository: Path) -> None:
    with pytest.raises(pulumi.RunError, match=r"no cluster `west`"):
        program(repository, "west")


def test_a_stack_program_finds_renames_since_the_revision_that_was_applied(repository: Path) -> None:
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "before"]):
        subprocess.run([*git, *arguments], check=True)
    write(repository, ("name: anna,", "name: anna-b, objectName: anna,"))
    found = program(repository, "main.vision", base="HEAD")
    (renamed,) = [entry for entry in found if entry.aliases]
    assert (renamed.name, [alias.rpartition("::")[2] for alias in renamed.aliases]) == (
        "vision/anna-b",
        ["vision/anna"],
    )
    with pytest.raises(pulumi.RunError, match="avactl:base"):
        program(repository, "main.vision", base="no-such-revision")


def make(kind: str, name: str, args: Mapping[str, Any]) -> list[Registered]:
    return run(partial(component(kind), name, args), "own")


def test_a_component_registers_the_objects_of_its_spec(repository: Path) -> None:
    (repository / "work.yaml").unlink()
    spec = WorkspaceSpec(user="anna@example.com", image=IMAGE, storage="20Gi")
    args = {"metadata": {"team": "vision"}, "platform": str(repository), "spec": spec}
    found = make("Workspace", "anna", args)
    wanted = [m for m in compiled().manifests if m.item.kind == "Workspace"]
    assert {(entry.type, entry.parent) for entry in found if not entry.request.custom} == {
        ("avactl:index:Workspace", "")
    }
    children = {entry.name + entry.type.rpartition(":")[2]: entry for entry in found if entry.request.custom}
    registered = [children[f"{manifest.namespace}/{manifest.name}{manifest.kind}"] for manifest in wanted]
    assert len(children) == len(wanted)
    assert [entry.inputs for entry in registered] == [manifest.body for manifest in wanted]
    assert {entry.parent for entry in registered} == {"urn:pulumi:own::avactl::avactl:index:Workspace::anna"}
    assert [entry.request.protect for entry in registered] == [manifest.holds_data for manifest in wanted]


def test_a_component_takes_its_surroundings_typed_too() -> None:
    platform = [item.resource for item in compiled().program.items if item.kind not in ("Workspace", "TrainingJob")]
    spec = {"user": "anna@example.com", "image": IMAGE, "cpu": 2.0}  # a number as another language hands it over
    found = make(
        "Workspace", "anna", {"metadata": Metadata(name="anna", team="vision"), "documents": platform, "spec": spec}
    )
    (pod,) = [entry.inputs["spec"]["template"]["spec"] for entry in found if entry.type.endswith(":StatefulSet")]
    assert pod["containers"][0]["resources"]["requests"]["cpu"] == "2"


def test_a_component_tells_what_is_wrong(repository: Path) -> None:
    (repository / "work.yaml").unlink()
    args = {"metadata": {"team": "vision"}, "platform": str(repository), "spec": {"user": "anna", "imag": IMAGE}}
    with pytest.raises(pulumi.RunError, match=r"did you mean `image`"):
        make("Workspace", "anna", args)
    with pytest.raises(pulumi.RunError, match="no directory"):
        make("Workspace", "anna", {**args, "platform": str(repository / "nowhere")})


def test_a_component_of_two_clusters_wants_to_know_which(repository: Path) -> None:
    (repository / "work.yaml").unlink()
    (repository / "team.yaml").unlink()
    (repository / "east.yaml").write_text("{apiVersion: avactl.dev/v1, kind: Cluster, metadata: {name: east}}\n")
    args = {"platform": str(repository), "spec": {"members": {"groups": ["vision"]}}}
    with pytest.raises(pulumi.RunError, match="east, main: say which"):
        make("Team", "vision", args)
    found = make("Team", "vision", {**args, "cluster": "east"})
    assert "Namespace vision" in names(found)
    assert len(names(found)) == len(set(names(found)))


def test_every_kind_is_a_component_with_a_typed_schema() -> None:
    assert [part.__name__ for part in components()] == registry.kind_names()
    schema = component_provider().schema
    assert schema is not None
    for kind in registry.kind_names():
        assert f'"avactl:index:{kind}"' in schema
        fields = introspect.fields_by_key(registry.get_model(kind).model_fields["spec"].annotation)  # type: ignore[arg-type]
        # Pulumi would write keys in another way: then arguments would not be those of YAML.
        assert [camel_case(key) for key in fields] == list(fields)
    assert issubclass(component("TrainingJob"), SpecComponent)
    assert not hasattr(avactl_components, "Nothing")
