"""`python -m backstory`."""

import sys

from backstory.cli.main import main

sys.exit(main())
