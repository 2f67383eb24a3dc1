"""Problems as values: message, location and remedy."""

from avactl.diagnostics.model import CompileError, Diagnostic, Note, Reference, Severity, Span, sort_diagnostics

__all__ = ["CompileError", "Diagnostic", "Note", "Reference", "Severity", "Span", "sort_diagnostics"]
