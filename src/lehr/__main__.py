"""`python -m lehr` is the command line `lehr`."""

import sys

from lehr.cli import main

sys.exit(main())
