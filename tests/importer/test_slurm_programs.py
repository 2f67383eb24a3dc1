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

from avactl.base.variable_references import expand_references
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
FOUR = "#SBATCH -N1 --ntasks=4 --mem=8G\n"
FOUR_GPUS = "#SBATCH -N1 --ntasks=4 --gres=gpu:4 --mem=8G\n"
EIGHT_TASKS = "#SBATCH -N1 --ntasks=8 --mem=8G\n"
HEAD = 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
ALWAYS = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS")

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
    "srun-numbers": "#SBATCH --ntasks=2 --mem=8G\nsrun -n1 bash -c 'python t.py $SLURM_STEP_NUM_TASKS'\n",
    "srun-gpus": "#SBATCH --ntasks=2 --gpus-per-task=2 --mem=8G\nsrun python train.py\n",
    "srun-directory": "#SBATCH --ntasks=2 --mem=8G\nmkdir -p sub\nsrun -D sub python train.py > log\n",
    # Programs that start srun.
    "wrapped-one": ONE + "timeout 60 srun python train.py --a 'b c'\n",
    "wrapped": FOUR + "timeout 60 srun -n2 python a.py --x 'y z'\nnice -n 5 srun python b.py\n",
    "wrapped-env": FOUR + "/usr/bin/env A=1 srun -n2 python a.py\nnohup srun -n1 python b.py\n",
    "exec-srun": FOUR + "python a.py\nexec srun python b.py\n",
    "xargs": FOUR + "seq 3 | xargs -P 4 -I{} srun -n1 -N1 --exact python train.py x{}\n",
    "parallel": FOUR + "parallel -j $SLURM_NTASKS srun -N1 -n1 --exact python train.py {} ::: 1 2 3\n",
    "echo-srun": FOUR + "echo srun python train.py\nsrun -n1 python train.py\n",
    # Containers and environments.
    "container": ONE + "apptainer exec --nv --bind $PWD:/w --env LR=0.1 img.sif python train.py --a 'b c'\n",
    "container-variables": ONE + "export APPTAINERENV_LR=0.5\napptainer exec img.sif bash -c 'python t.py $LR'\n",
    "container-srun": FOUR + "IMG=a.sif\nsrun apptainer exec --env=NAME=x $IMG python train.py\n",
    "container-wrapped": ONE + "time apptainer exec i.sif python a.py\ntimeout 9 apptainer exec i.sif python b.py\n",
    "container-mpirun": FOUR + "mpirun -np 4 apptainer exec img.sif solver a\n",
    "container-held-binds": ONE + 'B="--bind /home,/data"\n[[ -d /none ]] && B="$B,/none"\nIMG=/images/a.sif\n'
    "apptainer exec --nv $B $IMG python train.py\nsingle=\napptainer exec ${B} $IMG python test.py $single\n",
    "container-pulled": ONE + "apptainer pull img.sif docker://a/b\napptainer exec img.sif python train.py\n",
    "shifter": FOUR + "srun shifter -V /a:/b --env A=x bash -c 'python train.py $SLURM_PROCID'\n",
    "conda-run": FOUR + "conda run -n env python a.py --a 'b c'\nsrun conda run -n env python b.py\n",
    # MPI.
    "mpi-steps": FOUR + "python in.py\nsrun -n 2 solver pre\nsrun solver main\nsrun -n 1 solver post\npython out.py\n",
    "mpi-type": FOUR + "export SLURM_MPI_TYPE=pmix\nsrun python mpi.py\n",
    "mpi-nodes": "#SBATCH -N2 --ntasks-per-node=4 --mem=8G\nsrun --mpi=pmix solver a > out.txt\n",
    "mpi-gpus": "#SBATCH -N2 --ntasks-per-node=4 --gpus-per-task=1 --mem=8G\n"
    + "srun --mpi=pmix bash -c 'solver $CUDA_VISIBLE_DEVICES'\n",
    "mpi-host-file": EIGHT + "scontrol show hostnames > hosts\nmpirun -np 8 --hostfile hosts solver a\n",
    "mpi-loop": EIGHT + "for i in 1 2; do mpirun -np 8 solver $i; done\n",
    # Sizes of steps.
    "step-sizes": "#SBATCH -N 2 -C gpu --gpus-per-node=4 --mem=8G\n"
    + "srun -n 8 -c 32 --cpu_bind=cores -G 8 python train.py\n",
    "step-cpus": FOUR + "srun -n2 -c2 bash -c 'python train.py $SLURM_CPUS_PER_TASK'\n",
    "step-cpus-variable": "#SBATCH -N1 -n2 -c3 --mem=8G\nexport SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\n"
    + "srun bash -c 'python train.py $SLURM_CPUS_PER_TASK'\n",
    "step-default": FOUR + "export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-2}\n"
    + "srun -n2 -c ${OMP_NUM_THREADS} bash -c 'python train.py $SLURM_CPUS_PER_TASK'\n",
    "step-sum": FOUR + "HALF=$((SLURM_NTASKS/2))\nsrun -n $HALF python a.py\n"
    + "srun -n $((SLURM_NTASKS - 1)) python b.py\n",
    "step-variables": EIGHT + "N=$SLURM_JOB_NUM_NODES\nsrun -N $N -n $SLURM_NTASKS python train.py\n",
    "option-array": FOUR + "OPTS=(-n 2 -l)\nCMD=(python train.py --a 'b c')\nsrun \"${OPTS[@]}\" \"${CMD[@]}\"\n",
    "option-text": FOUR + "export OPTS=\"-n $SLURM_NTASKS --cpu-bind=none\"\nsrun $OPTS ${PYTHON:-python} train.py\n",
    "gpu-bind": FOUR_GPUS + "srun --gpu-bind=map_gpu:0,1,2,3 bash -c 'python train.py $CUDA_VISIBLE_DEVICES'\n",
    "gpu-bind-none": "#SBATCH -N1 -n4 --gpus-per-task=1 --gpu-bind=none --mem=8G\nsrun python train.py\n",
    "per-machine": EIGHT + "srun --ntasks-per-node=1 mkdir -p d\nsrun nvidia-smi -L\nsrun python train.py\n",
    "export-again": "#SBATCH --export=NONE -N1 -n2 --mem=8G\nexport SLURM_EXPORT_ENV=ALL A=1\nsrun python train.py\n",
    # Files and input of steps.
    "output-files": FOUR + "srun --output=o_%t.txt python train.py\npython merge.py o_*.txt\n",
    "output-file": FOUR + "srun -n1 -o o_%j.txt python train.py\ncat o_*.txt | python merge.py --stdin\n",
    "output-log": TWO + "NOW=$(date +%s)\nsrun -o log.$NOW python train.py\nset +x\necho \"took $NOW\"\n",
    "no-input": FOUR + "for i in 1 2; do srun -n2 python train.py $i < /dev/null; done\n",
    # Steps beside each other.
    "packed": FOUR + "for i in 1 2 3 4 5 6; do srun -n1 --exact python train.py $i & done\nwait\npython collect.py\n",
    "packed-groups": EIGHT_TASKS + "for i in 1 2 3; do srun -n4 --exact python train.py $i & done\nwait\n",
    "packed-functions": FOUR + "one() { srun -n1 python train.py $1; }\none a & one b &\nwait\n",
    # What only Slurm knows.
    "prints": ONE + "scontrol show job $SLURM_JOB_ID\nsqueue -j $SLURM_JOB_ID\npython train.py\nseff $SLURM_JOB_ID\n",
    "shown": ONE + 'echo "on $SLURM_CLUSTER_NAME from $SLURM_SUBMIT_HOST"\npython train.py\n',
    "memory": "#SBATCH -c 4 --mem=8G\njava -Xmx${SLURM_MEM_PER_NODE}m -jar x.jar $(nproc)\n",
    "tested": ONE + 'if [[ -v SLURM_ARRAY_TASK_ID ]]; then python a.py; fi\n[ -z "$SLURM_JOB_QOS" ] && python b.py\n',
    "defaults": FOUR + "NTASKS=${SLURM_NTASKS:-1}\nSLURM_JOB_NAME=${SLURM_JOB_NAME:-x}\npython train.py $NTASKS\n",
    "arguments-default": ONE + "LR=${1:-0.1}\nset -- --a 1 --b 2\npython train.py $LR $1 \"$@\"\n",
    "one-device-each": FOUR_GPUS + 'IFS=, read -ra G <<< "$CUDA_VISIBLE_DEVICES"\n'
    + 'for g in "${G[@]}"; do CUDA_VISIBLE_DEVICES=$g python train.py --g $g; done\n',
    "again": "#SBATCH --signal=B:USR1@90 --mem=8G\nagain() {\n  echo again\n  scontrol requeue $SLURM_JOBID\n}\n"
    + "trap again SIGUSR1\npython train.py &\nwait\n",
    # Steps on several machines.
    "nodes-function": TWO + "main() {\n  local x=1\n  srun python train.py $x\n}\nmain\n",
    "nodes-quoted": TWO + 'export MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"\n'
    + 'srun python train.py --x "${MASTER_ADDR:+set}"\n',
    "nodes-in-text": EIGHT
    + 'srun bash -c "export MASTER_ADDR=\\$(scontrol show hostnames \\$SLURM_NODELIST | head -n1);'
    + ' python train.py --r \\$SLURM_PROCID"\n',
    "nodes-command-text": TWO + 'L="accelerate launch --machine_rank 0"\nexport CMD="$L train.py"\nsrun $CMD\n',
    "nodes-suffix-elsewhere": TWO + "export M=$(scontrol show hostnames | head -n 1)\n"
    + 'if [ "${SYSTEMNAME:-}" = juwels ]; then M="$M"i; fi\nsrun python train.py\n',
    "nodes-launcher-array": TWO + 'ARGS=(--nnodes 2 --nproc_per_node=4)\nsrun torchrun "${ARGS[@]}" train.py\n',
    "options-some": FOUR + 'R=""\nif [ -d /no/such ]; then R="--auto-resume=1"; fi\nA=" --jobid $SLURM_JOB_ID "\n'
    + "srun ${R} -l $A python train.py\n",
    "nodes-filtered": TWO + "srun python train.py 2>&1 | grep -v x | tee log\n",
    "nodes-branches": TWO + 'if [ -n "$DEBUG" ]; then srun python d.py; else srun torchrun t.py; fi\n',
    "nodes-uname": TWO + "export MASTER_ADDR=$(uname -n)\nsrun python train.py\n",
    "nodes-wrapped": EIGHT + "timeout -k 10s 30m srun -l python train.py\n",
    "nodes-torchrun-alone": TWO + "srun torchrun --nproc_per_node=4 train.py --seed $SLURM_PROCID\n",
    "nodes-standalone": TWO + "srun torchrun --standalone --nproc_per_node=4 train.py --seed $SLURM_PROCID\n",
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
    "both-branches": (TWO + "if srun python a.py; then srun python b.py; fi\n", "line 2: a job has one step"),
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
    "per-gpu": ("#SBATCH --gpus=4 --ntasks-per-gpu=2 --mem=8G\nsrun python t.py\n", "leaves the number of tasks"),
    "requeue": (ONE + "python train.py\nscontrol requeue $SLURM_JOB_ID\n", "line 3: `scontrol requeue"),
    "in-a-text": (TWO + 'CMD="srun python train.py"\neval $CMD\n', "line 2: `srun` in a text"),
    "cluster-name": (ONE + "python train.py $SLURM_CLUSTER_NAME\n", "line 2: it reads SLURM_CLUSTER_NAME"),
    "computed-options": (ONE + "srun $(cat options) python train.py\n", "line 2: .* may hold options of srun"),
    "several-programs": (ONE + "srun --multi-prog programs.conf\n", "line 2: "),
    "no-array": (ONE + "python train.py $SLURM_ARRAY_TASK_ID\n", "line 2: it reads SLURM_ARRAY_TASK_ID, and has no"),
    "own-file": (ONE + 'cp "$0" job.sh\npython train.py\n', r"line 2: it reads \$0: pods have no file"),
    "own-directory": (ONE + 'python "$(dirname "${BASH_SOURCE[0]}")/t.py"\n', r"it reads \$BASH_SOURCE"),
    "docker": (ONE + "docker run --gpus all img python train.py\n", "line 2: pods have no `docker`"),
    "docker-srun": (TWO + "srun podman-hpc run img python train.py\n", "line 2: pods have no `podman-hpc`"),
    "container-held-env": (
        ONE + 'O="--nv --env A=b"\napptainer exec $O img.sif python t.py\n',
        "O holds `--env`: write it in place of the variable",
    ),
    "container-held-unknown": (
        ONE + 'O="--nv"\nif [ -d /data ]; then O=$(find_binds); fi\napptainer exec $O img.sif python t.py\n',
        "O may hold options of a container",
    ),
    "nodes-timed": (
        TWO + "/usr/bin/time -v python prepare.py\nsrun python train.py\n",
        "Slurm runs `time` once",
    ),
    "container-option": (ONE + "apptainer exec --new-thing img.sif python t.py\n", "`--new-thing` of apptainer"),
    "container-run": (ONE + "apptainer run img.sif train\n", "line 2: the program of the container is in its image"),
    "container-held": (FOUR + 'S="apptainer exec img.sif"\nsrun $S python t.py\n', "holds apptainer"),
    "container-text": (FOUR + "srun bash -c 'apptainer exec img.sif python t.py'\n", "`apptainer exec` in a text"),
    "two-images": (
        FOUR + "srun --container-image=a:1 python a.py\nsrun --container-image=b:1 python b.py\n",
        "line 3: the steps run in several images",
    ),
    "launcher": (EIGHT + "python prep.py\nmpirun -np 8 solver\n", "line 2: .* the launcher of a job has neither"),
    "by-ssh": (TWO + "deepspeed --hostfile hosts train.py\n", "line 2: `deepspeed` starts the others by ssh"),
    "other-launcher": (EIGHT + "ibrun solver\n", "line 2: pods have no `ibrun`"),
    "mpirun-held": (FOUR + 'MPI="mpirun"\n$MPI solver\n', "line 3: `.MPI` holds mpirun"),
    "several-kinds": (FOUR + "srun -n1 python a.py : -n1 python b.py\n", "line 2: a step of several programs"),
    "size-variable": (FOUR + "export SLURM_NTASKS=2\nsrun python t.py\n", "line 2: SLURM_NTASKS changes what srun"),
    "hidden-variables": ("#SBATCH --export=NONE -n2 -N1 --mem=8G\nexport A=1\nsrun ./t.py\n", "passes on no variable"),
    "shared-output": (FOUR + "srun -o o.txt python t.py\npython m.py o.txt\n", "line 2: all tasks write to the file"),
    "packed-gpus": (
        FOUR_GPUS + "for i in 0 1; do srun -n1 --gpus-per-task=1 python t.py $i & done\nwait\n",
        "line 2: several steps divide the GPUs",
    ),
    "packed-sizes": (
        FOUR + "for i in 1 2; do srun -n1 python a.py & srun -n2 python b.py & done\nwait\n",
        "line 2: steps of several sizes wait for each other",
    ),
    "signal": (FOUR + "srun python t.py & P=$!\nkill -USR1 $P\nwait\n", "srun passes signals on to its tasks"),
    "trap-once": (TWO + "trap 'python clean.py' EXIT\nsrun python t.py\n", "line 2: Slurm runs the trap once"),
    "network-suffix": (
        TWO + "M=$(scontrol show hostnames | head -n 1)\nexport MASTER_ADDR=${M}i\nsrun python t.py\n",
        "line 3: .* names a host in another network",
    ),
    "network-suffix-inside": (
        ONE + "srun python t.py --head \"$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n1)\"i:29500\n",
        "line 2: .* names a host in another network",
    ),
    "own-output": (ONE + "python t.py\ncp slurm-${SLURM_JOB_ID}.out out/\n", "line 3: .* its own output"),
    "own-log": ("#SBATCH -o logs/run.log --mem=8G\npython t.py\ngrep loss logs/run.log\n", "line 3: .* its own output"),
    "gathered": (TWO + "srun python t.py | wc -l\n", "line 2: the output of all tasks comes together in Slurm"),
    "captured": (TWO + "N=$(srun python t.py)\n", "line 2: the output of all tasks comes together in Slurm"),
    "called-twice": (TWO + 'f() { srun python t.py "$1"; }\nf a; f b\n', "line 2: .* may run several times"),
    "slices": ("#SBATCH --gres=gpu:a100_1g.5gb:1 --mem=8G\npython t.py\n", "line 1: .* asks for slices of GPUs"),
    "token": (ONE + "python t.py --token ghp_" + "0123456789abcdefghijABCDEFGHIJ012345\n", "like a credential"),
    "aliases": (ONE + "shopt -s expand_aliases\nalias p='python t.py'\np 1\n", "line 3: .* has no aliases"),
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
            found[name] = Started(
                codes[outcome.spec.name], _read_record(directory / f"{name}.record", RUN.get(name, ""))
            )
    return found


@pytest.mark.parametrize("name", RUN)
def test_the_same_programs_run(name: str, in_pods: dict[str, Started | str], tmp_path: Path) -> None:
    script = tmp_path / f"{name}.sbatch"
    script.write_text(RUN[name])
    slurm_cluster.install_programs(tmp_path / "bin")
    slurm_cluster.install_slurm(tmp_path / "slurm")
    (tmp_path / name).mkdir()
    record = tmp_path / "record"
    variables = {"RECORD": str(record), "RECORDED": _names(RUN[name])}
    code = slurm_cluster.sbatch(script, tmp_path / name, [tmp_path / "bin", tmp_path / "slurm"], variables)
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


@pytest.mark.parametrize("wrapper", ["", "nohup "])
def test_steps_in_the_background_run_as_many_at_a_time_as_have_cpus(wrapper: str, tmp_path: Path) -> None:
    script = tmp_path / "packed.sbatch"
    text = f"for i in 1 2 3 4 5 6; do {wrapper}srun -n1 --exact ./step & done\nwait\n"
    script.write_text("#SBATCH -N1 --ntasks=2 --mem=8G\n" + text)
    options = ImportOptions(namespace="hpc", images={**IMAGES, "job": "registry.example.com/hpc/job:1"})
    made, _ = import_objects(read_scripts([script], BytesIO()), options, tmp_path / "specs")
    (outcome,) = made.outcomes
    assert outcome.spec is not None
    step = tmp_path / "step"
    step.write_text("#!/bin/sh\nmkdir run.$$\nls -d run.* | wc -l >> counts\nsleep 0.05\nrmdir run.$$\n")
    step.chmod(0o755)
    words = ["bash", "-c", expand_references(outcome.spec.spec["args"][0], {})]
    done = subprocess.run(words, cwd=tmp_path, check=True, timeout=60, capture_output=True, text=True)
    assert "descriptor" not in done.stderr
    counts = [int(line) for line in (tmp_path / "counts").read_text().split()]
    assert len(counts) == 6
    assert max(counts) <= 2


def test_tasks_that_end_at_once_end_well(tmp_path: Path) -> None:
    text = 'for i in {1..20}; do srun -K true || exit; done\nsrun -K bash -c "exit $((SLURM_PROCID + 3))"\n'
    (given,) = read_script("a.sbatch", f"{FOUR}{text}".encode())
    context = Context(ImportOptions(namespace="hpc", images={"job": "job:1"}), [given])
    made = convert_script(context, ImportReader(given))
    assert not isinstance(made, str), made
    script = expand_references(made.spec["args"][0], {})
    done = subprocess.run(["bash", "-c", script], env=made.spec["env"], cwd=tmp_path, check=False, timeout=60)
    assert done.returncode == 3


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
