"""mypy knows the spec of an item: a misspelt key is an error wherever specs are read, not a failure at run time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

MISSPELT = {
    "avactl/kinds/dataset/check.py": ("spec.shared_with,", "spec.shared_wiht,"),
    "avactl/kinds/workspace/lower.py": ("item.spec.image", "item.spec.imgae"),
    "avactl/kinds/training/workload.py": ("lambda item: item.spec.timeout", "lambda item: item.spec.timout"),
    "avactl/kinds/cluster/facts.py": ("item.spec.kubernetes_version", "item.spec.kubernetes_verison"),
    "avactl/program/checks/pod_security_levels.py": ("item.spec.run_as_user", "item.spec.run_as_usr"),
}
"""A check, a lowering, a workload hook, facts, and a check that kinds share: a key that each reads, and a slip."""
SNIPPET = """\
from avactl.kinds import TrainingJob
from avactl.kinds.dataset.lower import lower
from avactl.program.program import Item, Program
from avactl.program.registry import Kind
from avactl.spec.platform.dataset import DatasetSpec


def revealed(program: Program, item: Item, kind: Kind[DatasetSpec]) -> None:
    reveal_type(item.spec)
    reveal_type(program.of("Dataset")[0].spec)
    reveal_type(program.datasets()[0].spec)
    reveal_type(program.team("a").spec)
    reveal_type(program.of_kind(TrainingJob)[0].spec)
    reveal_type(program.get_kind(TrainingJob, "a").spec)
    reveal_type(program.derive(program.datasets()[0], lambda item, program: item.spec))
    reveal_type(kind.check)


Kind(model=TrainingJob, lower=lower)
"""
REVEALED = [
    "object",
    "object",
    "DatasetSpec",
    "TeamSpec",
    "TrainingJobSpec",
    "TrainingJobSpec",
    "DatasetSpec",
    "def (Item[DatasetSpec], Program) -> Iterable[Diagnostic]",
]
_FOUND = re.compile(r"^(.+?):(\d+): error: .*has no attribute .*\[attr-defined\]$")
_REVEALED = re.compile(r'note: Revealed type is ["\'](.*)["\']$')


def test_a_misspelt_key_is_an_error_of_mypy(tmp_path: Path) -> None:
    """One run for all: mypy reads the copies in place of the modules, and of other modules only the types."""
    words, planted = [], {}
    for number, (name, (right, wrong)) in enumerate(MISSPELT.items()):
        before, found, after = (ROOT / name).read_text().partition(right)
        assert found, f"{name} no longer reads `{right}`: choose another key"
        copy = tmp_path / f"{number}.py"
        copy.write_text(f"{before}{wrong}{after}")
        words += ["--shadow-file", name, str(copy)]
        planted[name] = before.count("\n") + 1
    snippet = tmp_path / "snippet.py"
    snippet.write_text(SNIPPET)

    words += ["--follow-imports=silent", "--no-error-summary", "--no-pretty", f"--cache-dir={os.devnull}"]
    command = [sys.executable, "-m", "mypy", *words, *MISSPELT, str(snippet)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert done.stderr == ""
    told = done.stdout.splitlines()
    assert {(m[1], int(m[2])) for line in told if (m := _FOUND.match(line))} == set(planted.items()), done.stdout
    revealed = [re.sub(r"[a-z_]+\.|item: |program: ", "", m[1]) for line in told if (m := _REVEALED.search(line))]
    assert revealed == REVEALED
    foreign = f"snippet.py:{SNIPPET.count(chr(10))}: error: "
    assert [line for line in told if foreign in line], "a kind with the lowering of another one is no error"
    assert len(told) == len(planted) + len(REVEALED) + 1, done.stdout
