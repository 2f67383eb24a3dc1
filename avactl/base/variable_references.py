"""References to variables in `command`, `args` and `env` of containers: `$(NAME)`, and `$$` for a literal dollar.

Source: third_party/forked/golang/expansion/expand.go of kubernetes/kubernetes, which the kubelet uses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")
"""A name is all up to the next `)`; without one, `$(` is text."""


def expand_references(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by known variables and `$$` by `$`, as the kubelet does.

    >>> expand_references("$(A)-$(B)-$$(A)", {"A": "1"})
    '1-$(B)-$(A)'
    """

    def replace(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else variables.get(found[1], found[0])

    return _REFERENCE.sub(replace, text)


def escape_references(text: str) -> str:
    """Return the text that the kubelet expands to a literal text, whatever variables there are.

    >>> escape_references("echo $(date) $$ $HOME")
    'echo $$(date) $$$ $HOME'
    """
    return re.sub(r"\$(?=[$(])", "$$", text)
