"""`python -m tools.controlplane build` and `python -m tools.controlplane run`."""

import argparse
import signal
import sys
import threading
import time

from tools.controlplane.build import BINARIES, BuildFailed, Unavailable, build
from tools.controlplane.plane import ControlPlane, StartFailed


def main() -> int:
    """Do what the command line says; 0 if it worked, 1 if not, with one reason on stderr."""
    parser = argparse.ArgumentParser(prog="python -m tools.controlplane", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="build the binaries into the cache, and print where they are")
    building.add_argument("binaries", nargs="*", metavar="BINARY", help=f"of {', '.join(BINARIES)} (default: all)")
    running = commands.add_parser("run", help="start a control plane, print its kubeconfig, run until Ctrl-C")
    running.add_argument("--no-controller-manager", action="store_true", help="API server and etcd alone")
    running.add_argument("--scheduler", action="store_true", help="with kube-scheduler")
    running.add_argument("--kwok", action="store_true", help="with kwok playing all nodes")
    options = parser.parse_args()
    try:
        if options.command == "build":
            if unknown := sorted(set(options.binaries) - set(BINARIES)):
                parser.error(f"no such binary: {', '.join(unknown)}; known: {', '.join(BINARIES)}")
            for name, path in build(options.binaries or BINARIES).items():
                print(f"{name}\t{path}")
        else:
            _run(not options.no_controller_manager, options.scheduler, options.kwok)
    except (Unavailable, BuildFailed, StartFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _run(controller_manager: bool, scheduler: bool, kwok: bool) -> None:
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    started = time.monotonic()
    with ControlPlane(controller_manager=controller_manager, scheduler=scheduler, kwok=kwok) as plane:
        if not ended.is_set():
            print(f"export KUBECONFIG={plane.kubeconfig}", flush=True)
            print(f"ready in {time.monotonic() - started:.1f} s; Ctrl-C ends it", file=sys.stderr)
        ended.wait()


sys.exit(main())
