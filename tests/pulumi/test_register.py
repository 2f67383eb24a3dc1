"""What is registered with the engine: the rendered manifests, each below its spec, with the options that keep data."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from avactl.apply.pulumi import aliases as pulumi_aliases
from avactl.apply.pulumi.resource_plan import of_stack
from avactl.apply.pulumi.resources import register_stack
from avactl.compiler import Compilation, compile_tree
from avactl.program.dependencies import dependencies
from tests.example_trees import EXAMPLES, example_tree
from tests.pulumi.mocks import Registered, run
from tests.pulumi.repository import compiled


def example(name: str) -> Compilation:
    compilation = compile_tree(example_tree(name))
    assert compilation.ok
    return compilation


def registered(compilation: Compilation, cluster: str, team: str | None, **options: Any) -> list[Registered]:
    stack = f"{cluster}.{team}" if team else cluster
    return run(partial(register_stack, compilation, cluster, team, **options), stack)


def objects(found: list[Registered]) -> dict[str, Registered]:
    """The Kubernetes objects by kind and name: `Job vision/resnet-worker`."""
    kubernetes = [entry for entry in found if entry.type.startswith("kubernetes:")]
    return {f"{entry.type.rpartition(':')[2]} {entry.name}": entry for entry in kubernetes}


def check(compilation: Compilation) -> None:
    """On every stack: the rendered manifests and nothing else, with what protects and orders them."""
    seen = 0
    for cluster, team in {(manifest.cluster, manifest.item.team) for manifest in compilation.manifests}:
        manifests = of_stack(compilation, cluster, team)
        found = registered(compilation, cluster, team)
        by_urn = {entry.urn: entry for entry in found}
        specs = {entry.urn: entry for entry in found if entry.type.startswith("avactl:kinds:")}
        resources = objects(found)
        seen += len(resources)
        assert len(found) == len(manifests) + len(specs) + 1  # and the provider
        for manifest in manifests:
            kind = f"{manifest.kind}{'Patch' if manifest.patch else ''}"
            name = f"{manifest.namespace}/{manifest.name}" if manifest.namespace else manifest.name
            entry = resources[f"{kind} {name}"]
            version = manifest.body["apiVersion"]
            assert entry.type == f"kubernetes:{version if '/' in version else f'core/{version}'}:{kind}"
            assert entry.inputs == manifest.body
            parent = specs[entry.parent]
            item = manifest.item
            assert (parent.type, parent.name) == (
                f"avactl:kinds:{item.kind}",
                f"{item.team}/{item.spec_name}" if item.team else item.spec_name,
            )
            assert entry.request.protect == manifest.holds_data
            assert list(entry.request.ignoreChanges) == list(manifest.owned)
            assert entry.request.provider.startswith(
                f"urn:pulumi:{manifest.stack}::avactl::pulumi:providers:kubernetes"
            )
            needed = {str(key) for key in dependencies(manifest.body)}
            first = {f"{(dep := by_urn[urn]).type.rpartition(':')[2]} {dep.name}" for urn in entry.request.dependencies}
            assert first == needed & resources.keys()
            assert entry.aliases == []
    assert seen == len(compilation.manifests) > 0


def test_every_kind() -> None:
    compilation = compiled()
    assert {manifest.item.kind for manifest in compilation.manifests} >= {"Cluster", "NodePool", "TrainingJob"}
    check(compilation)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name: str) -> None:
    check(example(name))


def test_what_holds_data_is_protected_and_what_controllers_write_is_left_alone() -> None:
    found = objects(registered(compiled(), "main", "vision"))
    protected = {name for name, entry in found.items() if entry.request.protect}
    assert protected == {"PersistentVolumeClaim vision/anna-home", "PersistentVolumeClaim vision/resnet-checkpoint"}
    assert list(found["Deployment vision/detector"].request.ignoreChanges) == ["spec.replicas"]
    assert "NodePatch gpu-a" in objects(registered(compiled(), "main", None))


def test_what_an_object_names_comes_before_it() -> None:
    compilation = compiled()
    found = registered(compilation, "main", "vision")
    names = {entry.urn: entry.name for entry in found}
    workspace = objects(found)["StatefulSet vision/anna"]
    assert sorted(names[urn] for urn in workspace.request.dependencies) == [
        "vision/anna",  # the Service that names its pods
        "vision/anna-editor",
        "vision/anna-home",
    ]
    platform = registered(compilation, "main", None)
    names = {entry.urn: entry.name for entry in platform}
    binding = objects(platform)["RoleBinding vision/avactl-member"]
    assert sorted(names[urn] for urn in binding.request.dependencies) == ["vision", "vision/avactl-member"]


def test_the_provider_applies_on_the_server_and_is_known_by_its_cluster() -> None:
    (provider,) = [
        entry
        for entry in registered(compiled(), "main", None, context="west", adopt=True)
        if entry.type == "pulumi:providers:kubernetes"
    ]
    assert provider.inputs == {
        "clusterIdentifier": "main",
        "context": "west",
        "enableConfigMapMutable": "true",
        "enablePatchForce": "true",
        "enableServerSideApply": "true",
        "upsertExistingObjects": "true",
    }


def renamed(*replace: tuple[str, str]) -> list[Registered]:
    """The team's stack after a change, with the aliases that follow from the state before."""
    before, after = compiled(), compiled(*replace)
    past = pulumi_aliases.from_manifests(of_stack(before, "main", "vision"), "main.vision")
    former = pulumi_aliases.former_urns(past, of_stack(after, "main", "vision"), "main.vision")
    return registered(after, "main", "vision", former=former)


def aliases(found: list[Registered]) -> dict[str, list[str]]:
    """Type and name → names of the aliases."""
    return {
        f"{entry.type.rpartition(':')[2]} {entry.name}": [alias.partition("::avactl::")[2] for alias in entry.aliases]
        for entry in found
        if entry.aliases
    }


def test_a_renamed_spec_that_keeps_its_objects_is_the_same_component() -> None:
    found = renamed(("name: anna,", "name: anna-b, objectName: anna,"), ("storage: 20Gi", "storage: 30Gi"))
    assert aliases(found) == {"Workspace vision/anna-b": ["avactl:kinds:Workspace::vision/anna"]}
    assert objects(found)["PersistentVolumeClaim vision/anna-home"].inputs["spec"]["resources"] == {
        "requests": {"storage": "30Gi"}
    }


def test_a_renamed_spec_is_found_by_its_content_and_its_objects_follow() -> None:
    found = aliases(renamed(("metadata: {name: detector", "metadata: {name: finder")))
    service = "avactl:kinds:ServingDeployment$kubernetes:core/v1:Service::vision/detector"
    assert found["ServingDeployment vision/finder"] == ["avactl:kinds:ServingDeployment::vision/detector"]
    assert found["Service vision/finder"] == [service]
    assert found["Service vision/finder-headless"] == [f"{service}-headless"]
    assert not any(name.startswith(("Workspace", "TrainingJob")) for name in found)


def test_a_new_spec_that_is_not_like_the_one_that_went_is_no_rename() -> None:
    found = renamed(
        ("kind: ServingDeployment\nmetadata: {name: detector", "kind: ServingDeployment\nmetadata: {name: other"),
        ("name: triton, image", "name: custom, port: 80, command: [serve], image"),
        ("replicas: {min: 1, max: 3}", "replicas: 1\n  probe: {path: /x}\n  resources: {cpu: 4, memory: 9Gi}"),
        ('url: "s3://models/detector/3", secret: models-s3', "size: 1Gi"),
    )
    assert aliases(found) == {}


def test_what_a_spec_left_behind_is_kept_with_what_it_needs_and_is_no_rename() -> None:
    before = of_stack(compiled(), "main", "vision")
    past = pulumi_aliases.from_manifests(before, "main.vision")
    of_anna = {key: entry for key, entry in past.objects.items() if entry.parent.endswith("Workspace::vision/anna")}
    home = next(entry for key, entry in of_anna.items() if key[0].kind == "PersistentVolumeClaim")
    service = next(entry for key, entry in of_anna.items() if key[0].kind == "Service")
    after = [manifest for manifest in before if manifest.item.spec_name != "anna"]
    assert pulumi_aliases.kept_objects(past, after, pulumi_aliases.Aliases()) == [home]
    needing = home._replace(needs=(service.urn,))
    assert pulumi_aliases.left_alone(past, [needing]) == {home.urn, service.urn, home.parent}
    rest = pulumi_aliases.Past(
        {k: e for k, e in past.objects.items() if e not in of_anna.values() or e is home}, past.components
    )
    other = of_stack(compiled(("metadata: {name: anna,", "metadata: {name: ben,")), "main", "vision")
    assert pulumi_aliases.former_urns(past, other, "main.vision").specs
    assert not pulumi_aliases.former_urns(rest, other, "main.vision").specs


def test_an_object_that_another_spec_asks_for_now_stays_the_same_resource() -> None:
    compilation = compiled()
    manifests = of_stack(compilation, "main", None)
    past = pulumi_aliases.from_manifests(manifests, "main")
    (key, entry) = next(item for item in past.objects.items() if item[0][0].kind == "Role")
    elsewhere = entry.urn.replace("avactl:kinds:Team", "avactl:kinds:Quota").replace("authorization.k8s.io/v1", "x/v0")
    moved = pulumi_aliases.Past({**past.objects, key: entry._replace(urn=elsewhere)}, past.components)
    assert pulumi_aliases.former_urns(moved, manifests, "main").objects == {entry.urn: elsewhere}
