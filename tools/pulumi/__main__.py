"""`python -m tools.pulumi`: build the engine into the cache, and print the `export PATH=…` that finds it."""

import argparse
import shlex
import signal
import sys

from tools.controlplane import BuildError, UnavailableError, is_required
from tools.pulumi import find_engine


def main() -> int:
    """Do what the command line says; 0 if it worked, 1 if not, with one reason on stderr."""
    parser = argparse.ArgumentParser(prog="python -m tools.pulumi", description=__doc__)
    parser.add_argument("--optional", action="store_true", help="outside of CI, succeed where Go is not there")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # both unwind the stack, so that the compilers are ended
    try:
        print(f"export PATH={shlex.quote(find_engine())}")
    except (UnavailableError, BuildError) as error:
        if isinstance(error, UnavailableError) and options.optional and not is_required():
            print(f"{error}; tests that need it are skipped", file=sys.stderr)
            return 0
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


sys.exit(main())
