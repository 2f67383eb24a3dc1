"""Stand-in for torchrun: reads the PET_* variables that torchrun reads, and starts one process per node.

Static rendezvous: the node's rank is given. Source: torch/distributed/run.py.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    env = os.environ
    assert env["PET_NPROC_PER_NODE"] == "1"
    found = {
        "RANK": env["PET_NODE_RANK"],
        "WORLD_SIZE": env["PET_NNODES"],
        "MASTER_ADDR": env["PET_MASTER_ADDR"],
        "MASTER_PORT": env["PET_MASTER_PORT"],
    }
    os.execve(sys.executable, [sys.executable, *sys.argv[1:]], {**env, **found})


if __name__ == "__main__":
    main()
