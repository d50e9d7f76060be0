"""python python/networks NETWORK: runs runner.py."""

import sys

from runner import main

sys.exit(main())
