"""Problems as values: what is wrong, where, and what to do about it."""

from avactl.diagnostics.model import CompileError, Diagnostic, Note, Severity, Span, sort_diagnostics

__all__ = ["CompileError", "Diagnostic", "Note", "Severity", "Span", "sort_diagnostics"]
