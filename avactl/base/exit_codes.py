"""Exit codes of the `avactl` command."""

from __future__ import annotations

OK = 0
PROBLEMS = 1
"""The specs have errors."""
USAGE = 2
"""The command line is invalid."""
MISSING = 3
"""A tool or service that the command needs is missing or failed."""
CHANGES = 4
"""`--exit-code` of `diff` and `preview`, and `reconcile --dry-run`: there are changes."""
INCOMPLETE = 5
"""`reconcile`: an object was rejected or is not healthy; the next run retries."""
