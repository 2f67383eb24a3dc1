"""`python -m tools.frameworks build` and `… pin`."""

import argparse
import sys

from tools.controlplane import BuildError, UnavailableError
from tools.frameworks.build import PINS, build_environment, pin


def main() -> int:
    """Do what the command line says; 0 if it worked, 1 if not, with one reason on stderr."""
    parser = argparse.ArgumentParser(prog="python -m tools.frameworks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="install the frameworks into the cache, and print the directory of `python`")
    commands.add_parser("pin", help="write the pins anew: requirements.txt from requirements.in, and so on")
    options = parser.parse_args()
    try:
        if options.command == "build":
            print(build_environment())
        else:
            for wanted in sorted(PINS.parent.glob("*.in")):
                wanted.with_suffix(".txt").write_text(pin(wanted))
    except (UnavailableError, BuildError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


sys.exit(main())
