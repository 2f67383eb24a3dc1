"""What a change means: two compilations compared, as data; printers for text, markdown and JSON."""

from avactl.diff.compare import compare
from avactl.diff.model import Diff, Disruption, FieldChange, IntentChange, ObjectChange

__all__ = ["Diff", "Disruption", "FieldChange", "IntentChange", "ObjectChange", "compare"]
