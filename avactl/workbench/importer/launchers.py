"""torchrun that joins no pods: avactl's variables for PyTorch would make it wait for others."""

from __future__ import annotations

import re
from itertools import takewhile

_TORCHRUN = re.compile(r"\btorchrun\b|\btorch\.distributed\.(run|launch)\b")
_NODES = re.compile(r"--nn[odes]*[=\s]+[\"']?(?P<count>[^\s\"']+)")
_ALONE = re.compile(r"--stand(alone|alon|alo|al|a)?(?![\w-])")


def starts_alone(text: str) -> bool:
    """Return True if a program starts torchrun for one machine: `--nnodes` is 1 by default, unless PET_NNODES is set.

    Source: torch/distributed/run.py. It takes options by their beginnings, as argparse does.
    """
    starts = [match.end() for match in _TORCHRUN.finditer(text)]
    if not starts or "PET_NNODES" in text:
        return False
    own = " ".join(_own_options(text[start:]) for start in starts)
    counts = [each["count"] for each in _NODES.finditer(own)]
    return _ALONE.search(own) is not None or not counts or all(each in ("1", "1:1") for each in counts)


def _own_options(text: str) -> str:
    """Return the words up to the script or module of the user, whose options are none of torchrun."""

    def is_own(word: str) -> bool:
        return not word.strip("\"';").endswith(".py") and word not in ("-m", "--module")

    return " ".join(takewhile(is_own, text.split()))
