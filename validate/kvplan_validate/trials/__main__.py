"""The trials of a file as Markdown: ``python -m kvplan_validate.trials FILE``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kvplan_validate.trials import table

if __name__ == "__main__":
    print(table(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
