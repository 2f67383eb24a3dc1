"""`python -m tools.alluxio build`, `… keys`, `… pin` and `… run`."""

import argparse
import signal
import sys
from contextlib import suppress
from pathlib import Path

from tools.alluxio.build import build_jars, pin, property_keys
from tools.alluxio.cluster import Alluxio
from tools.controlplane import BuildError, StartError, UnavailableError, is_required


def main() -> int:
    """Do what the command line says; 0 if it worked, 1 if not, with one reason on stderr."""
    parser = argparse.ArgumentParser(prog="python -m tools.alluxio", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="fetch the jars into the cache, and print where they are")
    building.add_argument("--optional", action="store_true", help="outside of CI, succeed without Java or Maven")
    commands.add_parser("keys", help="print every property name that Alluxio knows; patterns of names as ^…$")
    commands.add_parser("pin", help="write jars.sha256 anew after a change of pom.xml")
    running = commands.add_parser("run", help="start a cluster, print how to reach it, run until Ctrl-C")
    running.add_argument("properties", type=Path, nargs="?", help="an alluxio-site.properties")
    running.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    try:
        if options.command == "build":
            print(build_jars())
        elif options.command == "keys":
            print(property_keys(), end="")
        elif options.command == "pin":
            print(f"pinned {pin()} jars")
        else:
            _run(options.properties, options.workers)
    except UnavailableError as error:
        if getattr(options, "optional", False) and not is_required():
            print(f"{error}; tests that need it are skipped", file=sys.stderr)
            return 0
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (BuildError, StartError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _run(site: Path | None, workers: int) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    text = site.read_text() if site else ""
    properties = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    with suppress(KeyboardInterrupt), Alluxio(properties, workers=workers) as cluster:
        print(f"{cluster.shell}\nhttp://127.0.0.1:{cluster.port('master-0', 'web')}", flush=True)
        while True:
            signal.pause()


sys.exit(main())
