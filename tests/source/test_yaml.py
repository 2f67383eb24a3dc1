"""YAML text to documents: what values mean, where they stand, and that nothing is too much."""

from __future__ import annotations

import pytest

from avactl.compiler import compile_tree
from avactl.spec.documents.scalars import resolve_plain
from avactl.spec.documents.yaml import MAX_BYTES, MAX_DEPTH, load_yaml
from avactl.spec.repository.tree import MemoryTree
from tests.test_invalid import BASE
from tests.work import calls


def codes(data: bytes) -> list[str]:
    return [problem.code for problem in load_yaml("a.yaml", data)[1]]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("~", None),
        ("", None),
        ("007", 7),
        ("0o17", 15),
        ("0x1F", 31),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("2001-01-01", "2001-01-01"),
        ("-.inf", float("-inf")),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_plain_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    assert resolve_plain(text) == value
    assert type(resolve_plain(text)) is type(value)


def test_a_value_and_its_key_know_their_place() -> None:
    text = "spec:\n  workers: {replicas: 4, gpus: 8}\n  args:\n    - a\n    - bb\n"
    (document,), problems = load_yaml("a.yaml", text.encode())
    assert not problems
    assert document.span("spec", "workers", "gpus") == ("a.yaml", 2, 32, 33)
    assert document.span("spec", "workers", "gpus", key=True) == ("a.yaml", 2, 26, 30)
    assert document.span("spec", "args", 1) == ("a.yaml", 5, 7, 9)
    # What is not there is looked for at the nearest parent's key.
    assert document.span("spec", "args", 7)[:3] == ("a.yaml", 3, 3)
    assert document.span("spec", "workers", "cpu")[:3] == ("a.yaml", 2, 3)


def test_places_behind_aliases_and_merges_are_where_the_text_is() -> None:
    text = "a: &base {cpu: 4}\nb:\n  <<: *base\n  memory: 8Gi\nc: *base\n"
    (document,), _ = load_yaml("a.yaml", text.encode())
    assert document.value == {"a": {"cpu": 4}, "b": {"cpu": 4, "memory": "8Gi"}, "c": {"cpu": 4}}
    assert document.span("b", "cpu")[:3] == ("a.yaml", 1, 16)
    assert document.span("c", "cpu")[:3] == ("a.yaml", 1, 16)


def test_a_bom_and_crlf_move_nothing() -> None:
    text = "\ufeffa: 1\r\nb: [x,\r\n  y]\r\n"
    (document,), problems = load_yaml("a.yaml", text.encode())
    assert [problem.code for problem in problems] == ["crlf"]
    assert document.value == {"a": 1, "b": ["x", "y"]}
    assert document.span("b", 1) == ("a.yaml", 3, 3, 4)


def test_a_file_that_is_too_large_is_not_even_read() -> None:
    class Tree(MemoryTree):
        def size(self, path: str) -> int:
            return 100_000_000 if path == "large.yaml" else super().size(path)

        def read(self, path: str) -> bytes:
            assert path != "large.yaml"
            return super().read(path)

    (problem,) = compile_tree(Tree({**BASE, "large.yaml": b""})).diagnostics
    assert problem.code == "file-too-large"
    assert "100,000,000 bytes" in problem.message
    assert codes(b"# " + b"x" * MAX_BYTES) == ["file-too-large"]


def test_a_file_that_cannot_be_read_is_told() -> None:
    class Tree(MemoryTree):
        def read(self, path: str) -> bytes:
            if path == "locked.yaml":
                raise PermissionError(13, "Permission denied")
            return super().read(path)

    (problem,) = compile_tree(Tree({**BASE, "locked.yaml": b"x"})).diagnostics
    assert (problem.code, problem.span.file) == ("file-unreadable", "locked.yaml")
    assert "Permission denied" in problem.message


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "{a: " * 100_000,
        "- " * 100_000,
        "? " * 100_000,
        "\n".join(" " * i + "a:" for i in range(1500)),
        "a: " + "[" * 2000 + "]" * 2000,
    ],
    ids=["lists", "mappings", "dashes", "keys", "block", "closed"],
)
def test_no_nesting_is_too_deep_to_be_told(text: str) -> None:
    assert codes(text.encode()) == ["yaml-depth"]
    assert calls(lambda: codes(text.encode())) < 2 * len(text) + 1000


def test_what_is_just_shallow_enough_is_read() -> None:
    text = "a: " + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    assert codes(text.encode()) == []


def test_a_large_file_of_plain_values_is_no_bomb() -> None:
    text = "\n".join(f"key-{i}: [1, 2, 3]" for i in range(30_000))
    assert codes(text.encode()) == []
    assert calls(lambda: codes(text.encode())) < 60 * 30_000
