"""`python -m tools.realnode`: run a control plane with a real node until Ctrl-C, or say if this machine permits it."""

import argparse
import signal
import sys
import time
from contextlib import suppress

from tools.controlplane import BuildError, StartError, UnavailableError
from tools.realnode.node import RealNode
from tools.realnode.requirements import find_obstacle


def main() -> int:
    """Do what the command line says; 0 if it worked, 1 if not, with one reason on stderr."""
    parser = argparse.ArgumentParser(prog="python -m tools.realnode", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1, help="number of nodes (default 1)")
    permitted = "print `yes` if this machine permits nodes once all packages are there; on stderr, why not"
    parser.add_argument("--permitted", action="store_true", help=permitted)
    options = parser.parse_args()
    if options.permitted:
        obstacle = find_obstacle()
        print(f"no real pods on this machine: {obstacle}" if obstacle else "yes", file=sys.stderr if obstacle else None)
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = time.monotonic()
    try:
        with suppress(KeyboardInterrupt), RealNode(nodes=options.nodes) as node:
            print(f"export KUBECONFIG={node.kubeconfig}", flush=True)
            print(f"ready in {time.monotonic() - started:.1f} s; Ctrl-C ends it", file=sys.stderr)
            while True:
                signal.pause()
    except (UnavailableError, BuildError, StartError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


sys.exit(main())
