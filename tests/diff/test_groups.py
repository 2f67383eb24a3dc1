"""What is shown once for several specs is equal in all of them."""

from __future__ import annotations

from typing import Any

import pytest

from avactl.change.diff import Diff, compare
from avactl.change.diff.groups import group_intents
from avactl.change.diff.json_output import render_json
from avactl.change.diff.markdown import render_markdown
from avactl.change.diff.text import render_text
from avactl.compiler import compile_tree
from avactl.spec.repository.tree import MemoryTree
from tests.diff.sides import PLATFORM, changes, job, workspace

SMALL: dict[str, Any] = {"strategy": "single", "workers": {"cpu": 1}}
GANG: dict[str, Any] = {"strategy": "allReduce", "workers": {"replicas": 2, "gpus": 1, "cpu": 1, "memory": "1Gi"}}
DIGESTS = ("@sha256:" + "1" * 64, "@sha256:" + "1" * 63 + "2", "@sha256:" + "2" * 64)


def members(diff: Diff) -> list[list[str]]:
    return [[intent.key.name for intent in group.intents] for group in group_intents(diff)]


def both(diff: Diff) -> tuple[str, str]:
    return render_text(diff), render_markdown(diff)


def git(ref: str) -> dict[str, Any]:
    return {"git": {"url": "https://git.example.com/a.git", "ref": ref}}


def test_other_commits_are_other_changes() -> None:
    old, one, other = "1" * 40, "2" * 40, "deadbeef" * 5
    diff = changes(
        [job(name, code=git(old), **SMALL) for name in ("a", "b")],
        [job("a", code=git(one), **SMALL), job("b", code=git(other), **SMALL)],
    )
    assert members(diff) == [["a"], ["b"]]
    for text in both(diff):
        assert one in text
        assert other in text


def test_the_name_of_a_spec_in_a_value_is_a_value() -> None:
    diff = changes(
        [job(name, env={"URL": "https://x.example/x"}, **SMALL) for name in ("cdn", "evil")],
        [job(name, env={"URL": f"https://{name}.example/x"}, **SMALL) for name in ("cdn", "evil")],
    )
    assert len(group_intents(diff)) == 2
    for text in both(diff):
        assert "https://cdn.example/x" in text
        assert "https://evil.example/x" in text


@pytest.mark.parametrize("value", ["{name}", "x-{name}", "{name}-worker", "{name} --x", "s3://b/{name}", "*-{name}"])
def test_values_of_specs_are_never_generalised(value: str) -> None:
    old = [job(name, args=["x"], **SMALL) for name in ("cdn", "evil")]
    diff = changes(old, [job(name, args=[value.format(name=name)], **SMALL) for name in ("cdn", "evil")])
    assert len(group_intents(diff)) == 2
    for text in both(diff):
        assert value.format(name="cdn") in text
        assert value.format(name="evil") in text


def test_images_that_begin_alike_are_other_images() -> None:
    image = "registry.example.com/vision/train"
    old, one, other = (f"{image}{digest}" for digest in DIGESTS)
    diff = changes(
        [job(name, image=old, **SMALL) for name in ("a", "b")],
        [job("a", image=one, **SMALL), job("b", image=other, **SMALL)],
    )
    assert len(group_intents(diff)) == 2
    for text in both(diff):
        for digest in DIGESTS:
            assert digest.removeprefix("@sha256:") in text
    far = changes([job("a", image=old, **SMALL)], [job("a", image=one.replace("/train", "/other"), **SMALL)])
    assert DIGESTS[1] in render_text(far)


def test_a_new_spec_is_shown_by_its_own_values() -> None:
    diff = changes([], [workspace(name) for name in ("one", "two")])
    for text in both(diff):
        assert "one@example.com" in text
        assert "two@example.com" in text
    diff = changes([], [job("a", retries=3, **SMALL), job("b", retries=5, **SMALL), job("c", retries=3, **SMALL)])
    assert members(diff) == [["a", "c"], ["b"]]


def test_references_to_a_specs_own_objects_are_shown_with_a_placeholder() -> None:
    names = [f"job-{n}" for n in range(5)]
    diff = changes(
        [job(name, **GANG) for name in names], [job(name, checkpoint={"volume": "1Gi"}, **GANG) for name in names]
    )
    assert members(diff) == [names]
    for text in both(diff):
        assert "job-0-checkpoint" not in text
        assert "volumes[checkpoint] new: persistentVolumeClaim" in text
        assert "(* is the spec's name)" in text
    more = {**GANG, "strategy": "mpi"}
    larger = {**more, "workers": {**GANG["workers"], "replicas": 3}}
    diff = changes([job(name, **more) for name in names], [job(name, **larger) for name in names])
    assert members(diff) == [names]
    for text in both(diff):
        assert "+*-worker-2.*-rendezvous.vision.svc slots=1" in text
    assert "job-4-worker-2.job-4-rendezvous.vision.svc" in render_json(diff)


def test_one_object_keeps_its_name() -> None:
    diff = changes([job("a", **GANG)], [job("a", checkpoint={"volume": "1Gi"}, **GANG)])
    assert "* is the spec's name" not in render_text(diff)


def test_equal_changes_of_many_are_one() -> None:
    old, new = ([job(f"j{n}", image=f"example.com/a:{tag}", **SMALL) for n in range(60)] for tag in (1, 2))
    (group,) = group_intents(changes(old, new))
    assert len(group.intents) == 60
    assert len(group.objects) == 1


OBJECTS = "kind: KubernetesObjects\nmetadata: {name: NAME}\nspec: {namespace: vision, objects: [OBJECT]}"
MAP = "{apiVersion: v1, kind: ConfigMap, metadata: {name: NAME, annotations: {ANNOTATION: 'VALUE'}}, data: {a: DATA}}"


def written(name: str, value: str = "x", data: str = "x", annotation: str = "example.com/a") -> str:
    body = MAP.replace("NAME", f"{name}-cm").replace("ANNOTATION", annotation)
    text = OBJECTS.replace("OBJECT", body.replace("VALUE", value).replace("DATA", data))
    return text.replace("{name: NAME", f"{{name: {name}")


@pytest.mark.parametrize("annotation", ["example.com/commit", "avactl.dev/run", "avactl.dev/config-digest"])
def test_annotations_of_manifests_are_no_digests(annotation: str) -> None:
    old = [written(name, "deadbeef", annotation=annotation) for name in ("a", "b")]
    diff = changes(old, [written("a", "cafebabe", annotation=annotation), written("b", "1" * 8, annotation=annotation)])
    assert len(group_intents(diff)) == 2
    for text in both(diff):
        assert "cafebabe" in text
        assert "11111111" in text


def test_values_of_files_are_never_generalised() -> None:
    def side(value: str) -> MemoryTree:
        files = {"platform.yaml": PLATFORM}
        for name in ("cdn", "evil"):
            spec = OBJECTS.replace("objects: [OBJECT]", f"files: [{name}.yml]").replace("NAME", name)
            files[f"{name}.yaml"] = f"apiVersion: avactl.dev/v1\n{spec}\n"
            files[f"{name}.yml"] = MAP.replace("NAME", f"{name}-cm").replace("DATA", value.format(name=name))
        files["avactl.yaml"] = "exclude: ['*.yml']\n"
        return MemoryTree(files)

    base, head = compile_tree(side("x")), compile_tree(side("{name}-cm"))
    assert base.ok, base.diagnostics
    diff = compare(base, head)
    assert len(group_intents(diff)) == 2
    for text in both(diff):
        assert "a x → cdn-cm" in text
        assert "a x → evil-cm" in text


def test_a_renamed_manifest_shows_what_is_other_than_its_name() -> None:
    def twelve(name: str, value: str) -> str:
        keys = ", ".join(f"k{n}: v" for n in range(12))
        return written(name, data=f"{value}, {keys}")

    diff = changes([twelve("cdn", '"https://cdn.example"')], [twelve("evil", '"https://evil.example"')])
    assert [intent.op for intent in diff.intents] == ["renamed"]
    (change,) = diff.intents[0].objects
    fields = {field.path: (field.old, field.new) for field in change.fields}
    assert fields == {"data.a": ("https://cdn.example", "https://evil.example")}


def test_masked_is_what_is_masked() -> None:
    old, new = (written("a", data=value) for value in ("'1'", "'true'"))
    for text in both(changes([old], [new])):
        assert "masked" not in text


def test_a_fact_hides_no_other_change() -> None:
    old = job("a", code=git("1" * 40), env={"A": "1"}, checkpoint={"path": "s3://b/a", "keep": 3}, **GANG)
    code = {"git": {"url": "https://evil.example/a.git", "ref": "2" * 40}}
    workers = {**GANG, "workers": {**GANG["workers"], "replicas": 3}}
    new = job("a", code=code, env={"A": "3"}, checkpoint={"path": "s3://b/b", "keep": 7}, **workers)
    text = render_text(changes([old.replace("'A': '1'", "'A': '2'")], [new]), objects=False)
    for each in ("workers 2 → 3", "env.A 2 → 3", "https://evil.example/a.git", "checkpoint.keep 3 → 7", "2" * 40):
        assert each in text
