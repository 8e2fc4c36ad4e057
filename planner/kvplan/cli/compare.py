"""``kvplan compare``: plans that people run today beside the chosen one."""

from __future__ import annotations

from kvplan.cli.declarations import PlanOutput
from kvplan.cli.options import Request, asks
from kvplan.cli.output import Json
from kvplan.cli.solve import planned, show

EPILOG = """
Examples:

\b
  kvplan compare --model llama-7b --gpu a100
  kvplan compare --model opt-6.7b --gpu h200 --batch 32 --context 1024 --hbm 24GiB
  kvplan compare --model llama-7b --gpu a100 --objective throughput --batch auto
  kvplan compare --model llama-7b --gpu a100 --json | python -m json.tool
"""


@asks
def compare(request: Request, output: PlanOutput = None, as_json: Json = False) -> None:
    """Show every baseline, what each gains over the one before, and the chosen plan last.

    With --objective throughput every baseline has the batch that is best for it.
    """
    found = planned(request, output)
    if as_json or output == "-":
        show(found.plan)
        return
    from kvplan.cli.display import show_ladder
    from kvplan.cli.output import console

    show_ladder(console(), found.plan, found.rungs)
