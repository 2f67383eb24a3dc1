"""Run benchmarks, one after the other: `python -m benchmarks [NAME…]`, all without a name; `--help` lists them.

Each writes its row in docs/measured.md. They get no arguments; `python -m benchmarks.NAME --help` shows those of one.
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path

from tools import measured

HERE = Path(__file__).parent
OTHER_PROGRAMS = {"__main__", "checkpoint_load", "elastic_load", "generate", "kubernetes_e2e"}
"""Programs that measure nothing by themselves."""


def benchmarks() -> dict[str, str]:
    """Return the benchmarks with the first line of their docstrings. Nothing is imported."""
    found = {}
    for path in sorted([*HERE.glob("*.py"), *HERE.glob("*/__main__.py")]):
        name = path.stem if path.parent == HERE else path.parent.name
        text = path.read_text(encoding="utf-8")
        if name not in OTHER_PROGRAMS and 'if __name__ == "__main__":' in text:
            found[name] = (ast.get_docstring(ast.parse(text)) or "").splitlines()[0]
    return found


def main() -> None:
    """Run the named benchmarks, or all."""
    known = benchmarks()
    listed = "\n".join(f"  {name:<18} {line}" for name, line in known.items())
    parser = argparse.ArgumentParser(
        "python -m benchmarks",
        description="Run benchmarks, all without a name. `python -m benchmarks.NAME --help` shows the options of one.",
        epilog=f"benchmarks:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run")
    names = parser.parse_args().names
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"unknown benchmark {', '.join(unknown)}; known: {', '.join(known)}")
    for name in names or known:
        print(f"— benchmarks.{name} —", flush=True)
        measured.measure(f"bench {name}", [sys.executable, "-m", f"benchmarks.{name}"])


if __name__ == "__main__":
    main()
