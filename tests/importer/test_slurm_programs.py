"""Batch scripts run the same programs in pods as under Slurm, with the same words and variables, or are left out."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from io import BytesIO
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from avactl.workbench.importer.model import ImportReader
from avactl.workbench.importer.reading import read_scripts
from avactl.workbench.importer.session import import_objects, write
from avactl.workbench.importer.slurm.convert import convert_script
from avactl.workbench.importer.slurm.script import read_script
from avactl.workbench.importer.sources.context import Context, ImportOptions
from tests.conftest import ROOT
from tests.importer import slurm_cluster
from tests.importer.importing import IMAGES

ONE = "#SBATCH --gres=gpu:4 --mem=8G\n"
TWO = "#SBATCH --nodes=2 --ntasks-per-node=1 --gres=gpu:4 --mem=8G\n"
EIGHT = "#SBATCH -N 2 --ntasks-per-node=4 --gres=gpu:4 --cpus-per-task=3 --mem=8G\n"
HEAD = 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
ALWAYS = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS")

RUN = {
    # Redirections, pipes, lists, loops, conditions, background jobs.
    "plain": ONE + "python train.py --lr 0.1\n",
    "redirect": ONE + "python train.py --epochs 3 > train.log 2>&1\n",
    "append": ONE + "python a.py >> log; python b.py >> log\n",
    "pipe": ONE + "set -o pipefail\npython train.py --fail=3 | tee train.log\n",
    "and": ONE + "python train.py && python eval.py\n",
    "and-fails": ONE + "python train.py --fail=2 && python eval.py\n",
    "or": ONE + "python train.py --fail=2 || python report.py\n",
    "goes-on": ONE + "python train.py --fail=2\npython eval.py\n",
    "exit-on-error": ONE + "set -e\npython train.py --fail=2\npython eval.py\n",
    "shebang-flags": "#!/bin/bash -e\n" + ONE + "python train.py --fail=5\npython eval.py\n",
    "for": ONE + "for s in 1 2 3; do python train.py --seed $s; done\n",
    "for-glob": ONE + "mkdir -p d && touch d/x d/y\nfor f in d/*; do python train.py --config $f; done\n",
    "while": ONE + "i=0\nwhile [ $i -lt 3 ]; do\n  python train.py --i $i\n  i=$((i+1))\ndone\n",
    "if": ONE + "if [ $SLURM_NNODES -eq 1 ]; then\n  python one.py\nelse\n  python many.py\nfi\n",
    "case": ONE + 'MODE=fast\ncase "$MODE" in\n  fast) python fast.py ;;\n  *) python slow.py ;;\nesac\n',
    "background": ONE + "GPU=0 python a.py &\nGPU=1 python b.py &\nwait\n",
    "subshell": ONE + "mkdir -p sub\n(cd sub && python train.py)\npython eval.py\n",
    "group": ONE + "{ python a.py; python b.py; } > log\n",
    "function": ONE + 'run() { python train.py --name "$1" "${@:2}"; }\nrun a 1 2\nrun "b c" 3\n',
    "here-document": ONE + "python train.py --stdin <<EOF\nsize: $SLURM_CPUS_ON_NODE\nEOF\n",
    "here-string": ONE + 'python train.py --stdin <<< "a b"\n',
    "trap": ONE + "trap 'python cleanup.py' EXIT\npython train.py\n",
    "continued": ONE + "python train.py \\\n    --lr 1 \\\n    --name 'a\\b'\n",
    # Words.
    "quotes": ONE + """python train.py --name "my run" --tags 'a b' --note "it's $((1+1))" --e ''\n""",
    "dollar": ONE + "python train.py --pattern 'a$b' \"\\$HOME\" '*.py' \"`echo x`\"\n",
    "array": ONE + 'args=(--lr 1 --name "a b")\npython train.py "${args[@]}"\n',
    "append-args": ONE + 'ARGS="--a 1"\nARGS+=" --b 2"\npython train.py $ARGS\n',
    "default": ONE + 'python train.py --tag "${TAG:-none}" --out ${OUT_DIR:-/tmp/out}\n',
    "expansions": ONE + "F=a/b/config.yaml\npython train.py ${F##*/} ${F%.yaml} ${#F} $(basename $F .yaml)\n",
    "adjacent": ONE + "M=m\nT=t\nC=recipes/$M/$T/config.yaml\npython train.py --config=$C-$M.$T\n",
    "exports-later": ONE + "python prepare.py\nexport SIZE=big\npython train.py\n",
    "export-order": ONE + "export A=1 B=x$A\npython train.py\n",
    "export-words": ONE
    + "BASE=/data\nexport OUT=\"$BASE\"/run QUOTED='a\"b' ESCAPED=\"{\\\"a\\\": 1}\"\npython train.py\n",
    "prefix-is-no-variable": ONE + "LR=0.1 python a.py\nexport OPT=x$LR\npython b.py\n",
    "directories": ONE + "mkdir -p d && cd d\npython a.py > log\ncd $SLURM_SUBMIT_DIR\npython b.py --found d/log*\n",
    "devices": ONE + "python train.py --gpus $(echo $CUDA_VISIBLE_DEVICES | tr ',' '\\n' | wc -l) $TMPDIR\n",
    "references": ONE
    + "export TAG='$(date) $$'\npython train.py --a '$(HOME)' --b '$$(HOME)' --c '$$$' --d $(echo $((1+1)))$(true)\n"
    + "test $$ = $BASHPID && python pid.py\n",
    "unicode": ONE + "python train.py --name 'größe – 世界'\n",
    # Variables.
    "prefix": ONE + "OMP_NUM_THREADS=4 HF_HUB_OFFLINE=1 python train.py\n",
    "export": ONE + "export HF_HOME=/scratch/hf\nexport A=1 B='x y'\npython train.py\n",
    "computed": ONE + "export RUN=run-$(echo 7)\npython train.py --out $RUN\n",
    "not-exported": ONE + "LEVEL=3\npython train.py --level $LEVEL\n",
    "threads": "#SBATCH -c 6 --gres=gpu:1 --mem=8G\nexport OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\npython train.py\n",
    "unset-option": ONE + 'python train.py --threads "${SLURM_CPUS_PER_TASK:-1}" "x$SLURM_CPUS_PER_TASK"\n',
    "names": "#SBATCH -J my_job -p big\n" + ONE + "python train.py --out out/$SLURM_JOB_NAME/$SLURM_JOB_PARTITION\n",
    "exported-option": "#SBATCH --export=ALL,SIZE=big\n" + ONE + "python train.py --size $SIZE\n",
    "port": ONE + "export MASTER_PORT=$((10000 + ${SLURM_JOB_ID: -1}))\npython train.py\n",
    # Steps on one machine.
    "srun-one": ONE + "srun python train.py --lr 1\n",
    "srun-one-options": ONE + "srun -n1 --cpu-bind=none --unbuffered -l python train.py > log 2>&1\n",
    "srun-several": "#SBATCH --ntasks=4 --gres=gpu:4 --mem=8G\nsrun python train.py\n",
    "srun-env": "#SBATCH --ntasks=2 --mem=8G\nsrun --export=ALL,LEVEL=5 python train.py\n",
    "srun-two-steps": "#SBATCH --ntasks=2 --mem=8G\nsrun -n 1 python a.py\nsrun python b.py && srun -n1 python c.py\n",
    "srun-fails": "#SBATCH --ntasks=2 --mem=8G\nsrun python train.py --fail=4\n",
    "srun-gpus": "#SBATCH --ntasks=2 --gpus-per-task=2 --mem=8G\nsrun python train.py\n",
    "srun-directory": "#SBATCH --ntasks=2 --mem=8G\nmkdir -p sub\nsrun -D sub python train.py > log\n",
    # Steps on several machines.
    "nodes": TWO + "srun python train.py\n",
    "nodes-tasks": EIGHT + HEAD + "export MASTER_PORT=29500 WORLD_SIZE=$SLURM_NTASKS\nsrun python train.py\n",
    "nodes-bash": EIGHT + HEAD + "srun bash -c 'export RANK=$SLURM_PROCID; exec python train.py --rank $RANK'\n",
    "nodes-accelerate": TWO
    + HEAD
    + "srun accelerate launch --num_machines $SLURM_NNODES --main_process_ip $MASTER_ADDR train.py\n",
    "nodes-rank": TWO + 'srun bash -c "accelerate launch --machine_rank \\$SLURM_PROCID train.py"\n',
    "nodes-variables": TWO
    + HEAD
    + 'LAUNCHER="torchrun --nnodes $SLURM_NNODES --rdzv_endpoint $MASTER_ADDR:29500"\nexport CMD="$LAUNCHER train.py"\n'
    + 'ARGS="--wait=60 --kill-on-bad-exit=1"\nsrun $ARGS --jobid $SLURM_JOB_ID bash -c "$CMD" 2>&1 | tee -a main.log\n'
    + 'echo "END: $(date)"\n',
    "nodes-array": TWO
    + "nodes=( $(scontrol show hostnames $SLURM_JOB_NODELIST) )\nhead=${nodes[0]}\n"
    + "srun python train.py --head $head --count ${#nodes[@]}\n",
    "nodes-host-name": TWO + 'HOST=$(srun -N1 -n1 hostname)\nsrun python train.py --head "$HOST"\n',
    "nodes-own-host": TWO + "export MASTER_ADDR=$(hostname)\nsrun python train.py --port 1\n",
    "nodes-if": TWO + "if [ -n \"$SLURM_JOB_ID\" ]; then\n  srun python train.py\nfi\n",
    "nodes-time": TWO + "time srun --label python train.py\n",
    "nodes-first-list": TWO + "srun python train.py --head ${SLURM_NODELIST%%,*}\n",
}  # fmt: skip
"""Scripts that run in pods."""

LEFT_OUT = {
    "argument": (ONE + "python train.py --config $1\n", r"line 2: it reads \$1"),
    "arguments": (ONE + 'python train.py "$@"\n', r"line 2: it reads \$@"),
    "one-of-two": (TWO + "python train.py\n", "line 2: without srun, `python` runs on the first of 2 nodes only"),
    "several-steps": (TWO + "srun -N1 -n1 python prepare.py\nsrun python train.py\n", "line 3: a job has one step"),
    "loop": (TWO + "for i in 1 2; do srun python train.py; done\n", "line 2: .* may run several times"),
    "subset": (EIGHT + "srun -n 4 python train.py\n", "line 2: srun starts 4 of 8 tasks"),
    "once": (TWO + "rsync -a a b\nsrun python train.py\n", "line 2: Slurm runs `rsync` once"),
    "date": (TWO + "RUN=$(date +%s)\nsrun python train.py --run $RUN\n", "line 2: `date` gives another value"),
    "pid": (TWO + "srun python train.py --run $$\n", r"line 2: \$\$ has another value"),
    "resubmits": (ONE + "python train.py || sbatch next.sbatch\n", "line 2: `sbatch` starts another job"),
    "asks": (ONE + "JOBS=$(squeue -u me)\npython train.py\n", "line 2: `squeue` asks Slurm"),
    "environment": (ONE + "conda run --new-option e python train.py\n", "line 2: `--new-option` of conda is not known"),
    "input": ("#SBATCH --ntasks=2 --mem=8G\nsrun bash <<E\necho a\nE\n", "line 2: srun gives its input to each"),
    "hidden": (ONE + "watch srun python train.py\n", "line 2: `watch` starts srun"),
    "held": (ONE + "SRUN=srun\n$SRUN python train.py\n", "line 2: SRUN holds srun"),
    "unknown-option": (ONE + "srun --new-thing 3 python train.py\n", "line 2: `--new-thing` of srun is not known"),
    "on-each": (TWO + "env A=1 python prepare.py\nsrun python train.py\n", "line 2: Slurm runs `env` once"),
    "appends": (TWO + "echo a >> jobs.log\nsrun python train.py\n", "line 2: each machine would append"),
    "address": (TWO + "A=$(ip -4 addr | head -1)\nsrun python train.py $A\n", "line 2: `ip` gives another value"),
    "short-form": (TWO + "H=$(echo $SLURM_NODELIST | sed 's/,.*//')\nsrun python t.py $H\n", "in Slurm's short form"),
    "kinds": ("#SBATCH --gres=gpu:a:1,gpu:b:1 --mem=8G\npython train.py\n", "several kinds of GPUs"),
    "per-gpu": ("#SBATCH --gpus=4 --ntasks-per-gpu=1 --mem=8G\nsrun python t.py\n", "leaves the number of tasks"),
    "requeue": (ONE + "python train.py\nscontrol requeue $SLURM_JOB_ID\n", "line 3: `scontrol requeue"),
    "in-a-text": (TWO + 'CMD="srun python train.py"\neval $CMD\n', "line 2: `srun` in a text"),
    "cluster-name": (ONE + "python train.py $SLURM_CLUSTER_NAME\n", "line 2: it reads SLURM_CLUSTER_NAME"),
    "computed-options": (ONE + "srun $(cat options) python train.py\n", "line 2: .* may hold options of srun"),
    "several-programs": (ONE + "srun --multi-prog programs.conf\n", "line 2: "),
    "part-of-gpus": (
        "#SBATCH --ntasks=2 --gres=gpu:4 --mem=8G\nsrun -n1 --gres=gpu:2 python a.py &\nwait\n",
        "line 2: the step uses `--gres=gpu:2` of the 4 GPUs",
    ),
    "uneven": ("#SBATCH -N 2 --ntasks=5 --mem=8G\nsrun python train.py\n", "5 tasks on 2 nodes"),
    "no-number": ("#SBATCH --nodes=$N\nsrun python train.py\n", "line 1: .*is no number"),
    "quote": (ONE + 'python train.py --name "a\n', "line 2: reached EOF without closing quote"),
    "interpreter": ("#!/usr/bin/env python3\n" + ONE + "print(1)\n", "line 1: .* neither bash nor sh"),
    "het": ("#SBATCH -N1 --mem=8G\n#SBATCH hetjob\n#SBATCH -N2\nsrun python a.py : python b.py\n", "several kinds"),
    "windows": (ONE + "python train.py\r\n", "line ends of Windows"),
    "secret": (ONE + "TOKEN=ghp_" + "0123456789abcdefghijABCDEFGHIJ012345\npython t.py $TOKEN\n", "like a credential"),
}  # fmt: skip
"""Scripts that would be another program in pods, and the reason."""


class Started(NamedTuple):
    """How a script ended, and the programs that it started."""

    code: int
    programs: list[str]


def _names(script: str) -> str:
    """Return the variables that are compared: those of tasks if srun starts them, and those that the script sets."""
    own = re.findall(r"\b([A-Z][A-Z_]*)=", re.sub(r"^#.*$", "", script, flags=re.MULTILINE))
    return " ".join(dict.fromkeys([*(ALWAYS if "srun" in script else ()), *own]))


def _read_record(path: Path, script: str) -> list[str]:
    lines = path.read_text().splitlines() if path.exists() else []
    host = r"\b(?:node\d+|127\.\d+\.\d+\.\d+)\b"
    lines = [re.sub(host, "HOST", line) for line in lines]
    # Tasks side by side end in any order.
    return sorted(lines) if "srun" in script or "&\n" in script else lines


@pytest.fixture(scope="module")
def in_pods(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Started | str]:
    """Results of all scripts as jobs: programs that ran, or why a script was left out."""
    directory = tmp_path_factory.mktemp("pods")
    programs = directory / "bin"
    slurm_cluster.install_programs(programs)
    files = []
    for name, text in {**RUN, **{name: text for name, (text, _) in LEFT_OUT.items()}}.items():
        files.append(directory / f"{name}.sbatch")
        files[-1].write_bytes(text.encode())
    options = ImportOptions(namespace="hpc", images={**IMAGES, "job": "registry.example.com/hpc/job:1"})
    made, _ = import_objects(read_scripts(files, BytesIO()), options, directory / "specs")
    write(made, directory / "specs")
    found: dict[str, Started | str] = {}
    words: list[str] = []
    for outcome in made.outcomes:
        name = Path(outcome.given.doc.file).stem
        if outcome.spec is None:
            found[name] = outcome.note
            continue
        (directory / name).mkdir()
        body = outcome.spec.spec
        ranks = str(body.get("slotsPerWorker") or body["workers"].get("gpus") if body["strategy"] == "mpi" else 1000)
        paths = [str(directory / f"{name}.record"), str(directory / name)]
        words += [outcome.spec.name, *paths, _names(RUN.get(name, "")), ranks]
    path = f"{programs}:{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    done = subprocess.run(
        [sys.executable, str(slurm_cluster.HERE / "pods.py"), str(directory / "specs"), *words],
        env={"PATH": path, "HOME": str(directory), "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    codes = {name: int(code) for name, code in re.findall(r"^ended (\S+) (\d+)$", done.stdout, re.MULTILINE)}
    for outcome in made.outcomes:
        if outcome.spec is not None:
            name = Path(outcome.given.doc.file).stem
            found[name] = Started(codes[outcome.spec.name], _read_record(directory / f"{name}.record", RUN[name]))
    return found


@pytest.mark.parametrize("name", RUN)
def test_the_same_programs_run(name: str, in_pods: dict[str, Started | str], tmp_path: Path) -> None:
    script = tmp_path / f"{name}.sbatch"
    script.write_text(RUN[name])
    slurm_cluster.install_programs(tmp_path / "bin")
    slurm_cluster.install_slurm(tmp_path / "slurm")
    (tmp_path / "work").mkdir()
    record = tmp_path / "record"
    variables = {"RECORD": str(record), "RECORDED": _names(RUN[name])}
    code = slurm_cluster.sbatch(script, tmp_path / "work", [tmp_path / "bin", tmp_path / "slurm"], variables)
    expected = Started(code, _read_record(record, RUN[name]))
    assert expected.programs
    found = in_pods[name]
    if isinstance(found, Started) and "SLURM_JOB_ID" in RUN[name]:
        found = Started(found.code, [re.sub(r"(?<=MASTER_PORT=1000)\d", "2", line) for line in found.programs])
    assert found == expected


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_script_that_would_be_another_program_is_left_out(name: str, in_pods: dict[str, Started | str]) -> None:
    reason = in_pods[name]
    assert isinstance(reason, str)
    assert re.search(LEFT_OUT[name][1], reason), reason


_PIECES = (
    "$",
    "(",
    ")",
    '"',
    "'",
    "`",
    "|",
    "&&",
    ";",
    "\n",
    "srun ",
    "$1",
    "<<E\n",
    "{",
    "}",
    "\\",
    "-n 3 ",
    "é",
    "\0",
)


def _mutate(text: str, random: Random) -> str:
    """Return a script with some places cut out, doubled, filled or moved."""
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(text) + 1)
        end = at + random.randint(1, 12)
        match random.randrange(4):
            case 0:
                text = text[:at] + text[end:]
            case 1:
                text = text[:end] + text[at:]
            case 2:
                text = text[:at] + random.choice(_PIECES) + text[at:]
            case _:
                lines = text.split("\n")
                random.shuffle(lines)
                text = "\n".join(lines)
    return text


@pytest.mark.parametrize("count", [150, pytest.param(1000, marks=pytest.mark.slow)])
def test_mutated_scripts_end_in_words(count: int) -> None:
    random = Random(count)
    texts = [*RUN.values(), *(text for text, _ in LEFT_OUT.values())]
    ends: Counter[bool] = Counter()
    for _ in range(count):
        (given, *_) = read_script("a.sbatch", _mutate(random.choice(texts), random).encode())
        context = Context(ImportOptions(namespace="hpc", images={"job": "job:1"}), [given])
        ends[isinstance(convert_script(context, ImportReader(given)), str)] += 1
    assert min(ends[True], ends[False]) > count / 10
