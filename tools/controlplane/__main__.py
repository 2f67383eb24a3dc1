"""`python -m tools.controlplane build` and `python -m tools.controlplane run`."""

import argparse
import signal
import sys
import time
from contextlib import suppress

from tools.controlplane.build import (
    BINARIES,
    NODE_BINARIES,
    BuildError,
    UnavailableError,
    build_binaries,
    is_required,
)
from tools.controlplane.plane import ControlPlane, StartError


def main() -> int:
    """Do what the command line says; 0 if it worked, 1 if not, with one reason on stderr."""
    parser = argparse.ArgumentParser(prog="python -m tools.controlplane", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="build the binaries into the cache, and print where they are")
    known = (*BINARIES, *NODE_BINARIES)
    default = f"of {', '.join(known)} (default: all but the last {len(NODE_BINARIES)})"
    building.add_argument("binaries", nargs="*", metavar="BINARY", help=default)
    optional = "outside of CI, succeed where neither Go nor KUBEBUILDER_ASSETS is there"
    building.add_argument("--optional", action="store_true", help=optional)
    running = commands.add_parser("run", help="start a control plane, print its kubeconfig, run until Ctrl-C")
    running.add_argument("--no-controller-manager", action="store_true", help="API server and etcd alone")
    running.add_argument("--scheduler", action="store_true", help="with kube-scheduler")
    running.add_argument("--kwok", action="store_true", help="with kwok playing all nodes")
    options = parser.parse_args()
    try:
        if options.command == "build":
            if unknown := sorted(set(options.binaries) - set(known)):
                parser.error(f"no such binary: {', '.join(unknown)}; known: {', '.join(known)}")
            for name, path in build_binaries(options.binaries or BINARIES).items():
                print(f"{name}\t{path}")
        else:
            _run(not options.no_controller_manager, options.scheduler, options.kwok)
    except (UnavailableError, BuildError, StartError) as error:
        if isinstance(error, UnavailableError) and getattr(options, "optional", False) and not is_required():
            print(f"{error}; tests that need it are skipped", file=sys.stderr)
            return 0
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _run(controller_manager: bool, scheduler: bool, kwok: bool) -> None:
    # Both signals unwind the stack, also out of a build that takes minutes, so that everything is closed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = time.monotonic()
    with (
        suppress(KeyboardInterrupt),
        ControlPlane(controller_manager=controller_manager, scheduler=scheduler, kwok=kwok) as plane,
    ):
        print(f"export KUBECONFIG={plane.kubeconfig}", flush=True)
        print(f"ready in {time.monotonic() - started:.1f} s; Ctrl-C ends it", file=sys.stderr)
        while True:
            signal.pause()


sys.exit(main())
