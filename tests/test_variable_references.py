"""References to variables in programs of containers: the kubelet expands them, and leaves escaped texts as they are."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from avactl.base.variable_references import escape_references, expand_references

_TEXTS = st.text(alphabet="$()AB_. \n\\`'\"{}", max_size=24) | st.text(max_size=24)
_VARIABLES = st.dictionaries(st.sampled_from(["", "A", "B", "A.B", "A $(B", "$", "$$", "\n"]), _TEXTS, max_size=8)


def _expand(text: str, variables: dict[str, str]) -> str:
    """Expand as third_party/forked/golang/expansion of kubernetes/kubernetes does: one character after the other."""
    done, position = "", 0
    while position < len(text):
        rest = text[position + 1 :]
        if text[position] != "$" or not rest:
            done, position = done + text[position], position + 1
        elif rest[0] == "$":
            done, position = done + "$", position + 2
        elif rest[0] == "(" and ")" in rest:
            name = rest[1 : rest.index(")")]
            done, position = done + variables.get(name, f"$({name})"), position + 3 + len(name)
        else:
            done, position = done + text[position : position + 2], position + 2
    return done


@given(_TEXTS, _VARIABLES)
@example("$(A)$(A)", {"A": "1"})
@example("$(B)", {"B": "$(A)", "A": "1"})
@example("$$(A) $(C) $A $", {"A": "1"})
@example("$(echo $(A))", {"A": "1"})
@example("$(ls $$", {})
def test_expansion_is_that_of_kubernetes(text: str, variables: dict[str, str]) -> None:
    assert expand_references(text, variables) == _expand(text, variables)


@given(_TEXTS, _VARIABLES)
@example("$(A.B)", {"A.B": "1"})
@example("$(date +%s) $((1 + 2)) $(( A ))", {"date +%s": "1"})
@example("kill $$; echo $$$$(A)", {"A": "1"})
def test_escaped_texts_stay_as_they_are(text: str, variables: dict[str, str]) -> None:
    assert _expand(escape_references(text), variables) == text
