"""Find credentials in documents by their shape."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from avactl.diagnostics import Diagnostic
from avactl.diagnostics.secrets import has_shape, looks_secret
from avactl.spec.documents.document import Document, Path, nested_strings

HINT = "reference a Secret if the field supports it; then rotate the credential or purge it from git history"


def credentials_in(documents: Iterable[Document]) -> list[Diagnostic]:
    """Return `credential-literal` for each text with the shape of a credential, in any field."""
    return [
        _make_problem(doc, path, key)
        for doc in documents
        for path, text, key in nested_strings(doc.value)
        if has_shape(text)
    ]


def new_credentials(before: Document, after: Document) -> list[Diagnostic]:
    """Return `credential-literal` for values that an edit added, by shape and, in `env`, by the variable's name."""
    known = set(nested_strings(before.value))
    return [
        _make_problem(after, path, key)
        for path, text, key in nested_strings(after.value)
        if (path, text, key) not in known
        and (has_shape(text) or (not key and path[-2:-1] == ("env",) and looks_secret(text, str(path[-1]))))
    ]


def _make_problem(doc: Document, path: Path, key: bool) -> Diagnostic:
    message = "this looks like a credential and is visible to everyone with access to the repository"
    return Diagnostic("credential-literal", message, doc.span(*path, key=key), label="redacted", hint=HINT, secret=True)


def without_repeats(diagnostics: Collection[Diagnostic]) -> list[Diagnostic]:
    """Drop problems of `credentials_in` at places where a more specific rule already reported one."""
    reported = {d.span for d in diagnostics if d.hint != HINT}
    return [d for d in diagnostics if d.hint != HINT or d.span not in reported]
