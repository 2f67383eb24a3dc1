"""The component provider: the kinds of avactl for Pulumi programs in TypeScript, Go, C#, Java and YAML."""

import sys

from avactl_components.host import provider
from pulumi.provider import main

if __name__ == "__main__":
    main(provider(), sys.argv[1:])
