"""What the emitter writes is read back as the same value by parsers of YAML 1.1 and of YAML 1.2."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from avactl.base.yaml_output import dump, quote_scalar

# Words that some parser takes for something else than text, whole or as parts of other text.
TRAPS = """
~ null Null y N yes No ON off true TRUE False = << - -- --- ... ? : a: #a 0o17 017 0x1F 0b1 1_000 1e3 1E3 1.5
.5 5. -1 +1 .inf -.Inf .nan 12:30 1:30:45.5 2001-12-14 2001-12-14t21:59:43.10-05:00 10.0.0.1 10.0.0.0/8 512Gi
500m 1h 1d 3Ei 4f53e1 1e1 @a `a %a !a &a *a | > |- {a} [a] a,b $(X) --flag=1 -c s3://bucket/a sha256:00 a=b
""".split()  # noqa: SIM905 - a list of words reads better so
TRAPS += [
    "",
    " ",
    "- a",
    "? a",
    ": a",
    "a: b",
    "a #b",
    "a# b",
    "a, b",
    "{{ x }}",
    "'",
    '"',
    "a'b",
    'a"b',
    "\\",
    "a\\b",
    "say \"hi\" 'x'",
    "a\tb",
    "\ta",
    "a ",
    "  a",
    "a\nb",
    "a\nb\n",
    "a\nb\n\n",
    "\na",
    "\n",
    "\n\n",
    " a\nb",
    "a\n b\n",
    "a\n\tb",
    "\ta\nb",
    "a \nb",
    "a\n  \nb",
    "a\n  ",
    "a\r\nb",
    "a\n---\nb",
    "a\n# b",
    "\x85",
    "a\u2028b",
    "\ufeff",
    "\x00",
    "\x7f",
    "\xe9",
    "\u8bad\u7ec3",
    "\U0001f600",
    "# x\n  y",
    "a:\n  b",
    "key: 'v'\n",
    "x" * 2000,
]

texts = st.one_of(
    st.text(),
    st.sampled_from(TRAPS),
    st.lists(st.sampled_from(TRAPS), max_size=4).map("".join),
    st.text(alphabet=" \n\t:#-ab'\"\\[]{},?&*!|>%@`0.e+", max_size=12),
)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=12
)


def read_1_1(text: str) -> Any:
    return yaml.safe_load(text)


def read_1_2(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


def same(left: Any, right: Any) -> bool:
    """Equal, and of equal types all the way down: 1, 1.0 and True are not the same."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


@settings(max_examples=500, deadline=None)
@given(st.dictionaries(texts, values, max_size=4))
def test_any_data_is_read_back(value: dict[str, Any]) -> None:
    text = dump(value)
    assert same(read_1_1(text), value), text
    assert same(read_1_2(text), value), text


@pytest.mark.parametrize("trap", TRAPS, ids=repr)
def test_traps(trap: str) -> None:
    value = {"text": trap, "list": [trap, [trap]], "map": {trap: {trap: trap}}, "last": [{"a": trap, trap: 1}]}
    text = dump(value)
    assert same(read_1_1(text), value), text
    assert same(read_1_2(text), value), text


def test_order_and_shape() -> None:
    body = {
        "data": {"b": "1", "a": "first\nsecond\n"},
        "metadata": {"name": "x", "labels": {}},
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "more": [{"z": [], "a": ["--flag", "8080", "on"]}, [1, 1e16, None]],
    }
    assert dump(body) == (
        "apiVersion: v1\n"
        "kind: ConfigMap\n"
        "metadata:\n"
        "  labels: {}\n"
        "  name: x\n"
        "data:\n"
        "  a: |\n"
        "    first\n"
        "    second\n"
        '  b: "1"\n'
        "more:\n"
        "- a:\n"
        "  - --flag\n"
        '  - "8080"\n'
        '  - "on"\n'
        "  z: []\n"
        "-\n"
        "  - 1\n"
        "  - 1.0e+16\n"
        "  - null\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        "resnet50",
        "registry.example.com/vision/train:v1@sha256:4f53",
        "512Gi",
        "/data",
        "$(POD_NAME)",
        "--nnodes=4",
        "app.kubernetes.io/name",
        "nvidia.com/gpu",
        "s3://vision/ckpt",
        "a, b (c)",
        "rank == 0 && x",
    ],
)
def test_common_text_stays_plain(text: str) -> None:
    assert quote_scalar(text) == text


def test_only_plain_data() -> None:
    with pytest.raises(TypeError, match="set is not plain data"):
        dump({"a": {"b": {1}}})
