"""`python -m whereness` is the command line."""

import sys

from whereness.cli import main

sys.exit(main())
