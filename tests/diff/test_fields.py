"""Field by field: what is matched by which key, and what counts as a change at all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avactl.diff.fields import Change, differences, dotted
from avactl.diff.model import ABSENT


def told(old: Any, new: Any) -> list[tuple[str, str, Any, Any]]:
    return [(dotted(c.path), c.op, c.old, c.new) for c in differences(old, new)]


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
        ("taints", {"key": "k", "effect": "NoSchedule", "value": "a"},
         {"key": "k", "effect": "NoSchedule", "value": "b"}, "taints[k/NoSchedule].value"),
        ("volumeClaimTemplates", {"metadata": {"name": "journal"}, "spec": {"size": 1}},
         {"metadata": {"name": "journal"}, "spec": {"size": 2}}, "volumeClaimTemplates[journal].spec.size"),
    ],
)  # fmt: skip
def test_keys_of_lists(field: str, entry: dict[str, Any], other: dict[str, Any], path: str) -> None:
    assert [dotted(c.path) for c in differences({field: [entry]}, {field: [other]})] == [path]


def test_arguments_by_position_and_an_insertion_is_one_change() -> None:
    old = ["train.py", "--epochs", "90", "--lr", "0.1"]
    assert told({"args": old}, {"args": ["train.py", "--epochs", "120", "--lr", "0.1"]}) == [
        ("args[2]", "changed", "90", "120")
    ]
    assert told({"args": old}, {"args": ["train.py", "--amp", "--epochs", "90", "--lr", "0.1"]}) == [
        ("args[1]", "added", ABSENT, "--amp")
    ]


def test_an_option_names_the_value_behind_it() -> None:
    changes = differences({"args": ["--token", "one", "x"]}, {"args": ["--token", "two", "y"]})
    assert [change.name for change in changes] == ["token", ""]


def test_equal_amounts_are_no_change() -> None:
    old = {"resources": {"requests": {"memory": "1Gi", "cpu": "2"}}, "version": "7"}
    assert told(old, {"resources": {"requests": {"memory": "1024Mi", "cpu": 2}}, "version": "7"}) == []
    # A version is no amount, though it reads like one.
    assert told(old, {**old, "version": "7.0"}) == [("version", "changed", "7", "7.0")]


def test_a_mapping_that_appears_is_told_entry_by_entry() -> None:
    assert told({"spec": {}}, {"spec": {"nodeSelector": {"a": "1", "b": "2"}}}) == [
        ("spec.nodeSelector.a", "added", ABSENT, "1"),
        ("spec.nodeSelector.b", "added", ABSENT, "2"),
    ]
    assert told({"emptyDir": {}}, {}) == [("emptyDir", "removed", {}, ABSENT)]


def test_texts_are_read_for_what_they_hold() -> None:
    old = {"data": {"train.json": '{"nnodes": 2, "gpus": [0, 1]}\n', "site.properties": "# a\na.b=1\nc=2\n"}}
    new = {"data": {"train.json": '{"nnodes": 4,\n "gpus": [0, 1]}\n', "site.properties": "a.b=1\nc=3\nd=4\n"}}
    assert told(old, new) == [
        ("data[site.properties]: c", "changed", "2", "3"),
        ("data[site.properties]: d", "added", ABSENT, "4"),
        ("data[train.json]: nnodes", "changed", 2, 4),
    ]
    (change,) = differences({"data": {"run.sh": "set -e\nsleep 1\nrun\n"}}, {"data": {"run.sh": "set -e\nrun\nexit\n"}})
    assert change.lines == ("-sleep 1", "+exit")


def test_a_text_written_differently_is_a_change() -> None:
    (change,) = differences({"data": {"a.json": '{"a": 1}'}}, {"data": {"a.json": '{"a":1}'}})
    assert change.op == "changed"


PLAIN: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers(2, 5) | st.text("ab={}\n", max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["name", "env", "ports", "args", "spec", "data", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(PLAIN, PLAIN)
def test_there_is_a_difference_exactly_where_values_differ(old: Any, new: Any) -> None:
    changes: list[Change] = differences({"body": old}, {"body": new})
    assert bool(changes) == (old != new)
    for change in changes:
        assert dotted(change.path)
        assert change.op == "reordered" or change.old is not change.new
