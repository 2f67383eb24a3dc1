"""Credentials anywhere in a document, by their shape."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from avactl.diagnostics import Diagnostic
from avactl.diagnostics.secrets import has_shape
from avactl.source.document import Document, strings

HINT = "name a Secret where the field takes one; take the value out of git's history, or make a new one"


def credentials_in(documents: Iterable[Document]) -> list[Diagnostic]:
    """`credential-literal` for each text that has the shape of a credential, whatever field it stands in."""
    return [
        Diagnostic(
            "credential-literal",
            "this looks like a credential, and everybody who reads the repository reads it too",
            doc.span(*path, key=key),
            label="covered",
            hint=HINT,
            secret=True,
        )
        for doc in documents
        for path, text, key in strings(doc.value)
        if has_shape(text)
    ]


def without_repeats(diagnostics: Collection[Diagnostic]) -> list[Diagnostic]:
    """The problems, without those of `credentials_in` at places of which a rule that knows the field has spoken."""
    told = {d.span for d in diagnostics if d.hint != HINT}
    return [d for d in diagnostics if d.hint != HINT or d.span not in told]
