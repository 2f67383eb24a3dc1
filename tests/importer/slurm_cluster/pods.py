"""Run the jobs of a repository one after the other, as `avactl local run` does: NAME and the exit code of each."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from avactl import compile_tree
from avactl.spec.repository.tree import DirTree
from avactl.workbench.local.errors import LocalRunError
from avactl.workbench.local.selection import select
from avactl.workbench.local.start import run


def main() -> None:
    """Run all jobs that the arguments name: NAME RECORD DIRECTORY RECORDED RANKS, five words each."""
    repository, words = Path(sys.argv[1]), sys.argv[2:]
    compilation = compile_tree(DirTree(repository))
    for name, record, directory, recorded, ranks in zip(*[iter(words)] * 5, strict=True):
        os.environ |= {"RECORD": record, "RECORDED": recorded, "RANKS_PER_NODE": ranks}
        os.chdir(directory)
        try:
            code = run(select(compilation, (), name), Path(directory), {})
        except LocalRunError:  # such as a program that is not there
            code = 127
        print(f"ended {name} {code}", flush=True)


if __name__ == "__main__":
    main()
