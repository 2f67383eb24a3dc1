"""Compare two compilations as data; printers for text, Markdown and JSON."""

from avactl.change.diff.compare import compare
from avactl.change.diff.model import Diff, Disruption, FieldChange, IntentChange, ObjectChange

__all__ = ["Diff", "Disruption", "FieldChange", "IntentChange", "ObjectChange", "compare"]
