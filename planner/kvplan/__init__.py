"""kvplan: a planner and simulator for KV-cache offload schedules.

>>> import kvplan
>>> kvplan.__version__.count(".")
2
"""

__version__ = "0.1.0"
