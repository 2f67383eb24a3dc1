"""Problems that only the compiled objects show: lowering raises them, and the lower pass reports them."""

from __future__ import annotations

from collections.abc import Iterable

from avactl.diagnostics import Diagnostic


class RefusedError(Exception):
    """A spec whose objects are not allowed. `problems` are its diagnostics."""

    def __init__(self, problems: Iterable[Diagnostic]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(problem.message for problem in self.problems))
