"""``python -m kvplan``: the same as the command ``kvplan``."""

from kvplan.cli import main

raise SystemExit(main())
