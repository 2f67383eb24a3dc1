"""`python -m tools.image avactl.tar`: write the image of avactl as an OCI archive, and print its name by digest."""

import argparse
import shutil
import sys
from pathlib import Path

from tools.controlplane import BuildError, UnavailableError
from tools.image import avactl


def main() -> int:
    """Do what the command line says; 0 if it worked, 1 if not, with one reason on stderr."""
    parser = argparse.ArgumentParser(prog="python -m tools.image", description=__doc__)
    parser.add_argument("archive", type=Path, help="file to write; `ctr images import` and `podman load` read it")
    archive = parser.parse_args().archive
    try:
        image = avactl()
    except (UnavailableError, BuildError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    shutil.copyfile(image.archive, archive)
    print(image.reference)
    return 0


sys.exit(main())
