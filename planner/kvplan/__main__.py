"""``python -m kvplan``: the same as the command ``kvplan``."""

from kvplan.cli import main

if __name__ == "__main__":  # processes of a pool import this module too
    raise SystemExit(main())
