"""`python -m keel` is `keel`."""

import sys

from keel.cli import main

if __name__ == "__main__":
    sys.exit(main())
