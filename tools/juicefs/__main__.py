"""`python -m tools.juicefs build` and `… options`."""

import argparse
import sys

from tools.controlplane import BuildError, UnavailableError
from tools.juicefs.build import build_binary, mount_options


def main() -> int:
    """Do what the command line says; 0 if it worked, 1 if not, with one reason on stderr."""
    parser = argparse.ArgumentParser(prog="python -m tools.juicefs", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="fetch the binary into the cache, and print where it is")
    commands.add_parser("options", help="print every mount option that JuiceFS knows")
    options = parser.parse_args()
    try:
        if options.command == "build":
            print(build_binary())
        else:
            print(mount_options(), end="")
    except (UnavailableError, BuildError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


sys.exit(main())
