"""`python -m ecstore`: the same as the `ecstore` command."""

import sys

from ecstore.cli import main

if __name__ == "__main__":
    sys.exit(main())
