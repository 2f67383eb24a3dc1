"""torchrun that joins pods, and torchrun that starts in each of them alone."""

from __future__ import annotations

import pytest

from avactl.workbench.importer.launchers import starts_alone


@pytest.mark.parametrize(
    ("text", "alone"),
    [
        ("torchrun train.py", True),
        ("torchrun --standalone train.py", True),
        ("torchrun --stand --nproc-per-node=8 train.py", True),
        ("torchrun --nnodes=1 train.py --nnodes=2", True),
        ("torchrun --nnodes 1:1 -m train --nnodes 4", True),
        ("python -m torch.distributed.run --nnodes=1 train.py", True),
        ("bash -c 'cd /app && torchrun --nnodes=1 train.py --standalone-vae'", True),
        ("torchrun --nnodes=4 --rdzv-endpoint=multi-0.multi:29400 train.py --standalone-vae", False),
        ("torchrun --nnodes=4 train.py --standalone", False),
        ("torchrun --nnode=2 train.py", False),
        ("torchrun --nnodes $N train.py --standalone-eval", False),
        ("torchrun --nnodes=1:4 train.py", False),
        ("python -m torch.distributed.launch --nnodes=2 train.py", False),
        ("PET_NNODES=2 torchrun train.py", False),
        ("python train.py --standalone", False),
    ],
)
def test_who_joins(text: str, alone: bool) -> None:
    assert starts_alone(text) is alone
