"""The chain of layers: what each layer does one after the other, in the fluid program."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.statement import Statement, Sum, added


def define_chain(statement: Statement, taken: Sequence[Sum]) -> None:
    """For the chain of layers: project, the longer of what the GPU and each path attended away
    take, and finish, summed over layers, micro-batches and the head, are at most T: the GPU serves
    one after the other.

    Args:
        statement: the program.
        taken: duration of every operation of the graph.
    """
    around: Sum = ({}, 0.0)
    branches: dict[tuple[int, int], dict[str, Sum]] = {}
    for operation, part in zip(statement.graph.operations, taken, strict=True):
        if operation.operation in ("project", "finish", "head"):
            around = added(around, part, statement.graph.copies_of(operation))
            continue
        away = (
            operation.stage is None and operation.path and operation.resource not in ("d2h", "h2d")
        )
        if operation.resource == "gpu":
            name = "gpu"
        elif away and operation.operation != "load_weights":
            name = str(operation.path)
        else:
            continue
        own = branches.setdefault((operation.layer, operation.micro_batch), {})
        own[name] = added(own.get(name, ({}, 0.0)), part)
    if all(set(own) == {"gpu"} for own in branches.values()):
        return  # the GPU's own row says as much
    spans: dict[object, int] = {}
    for (layer, _), own in branches.items():
        key = tuple((name, tuple(sorted(t.items())), c) for name, (t, c) in sorted(own.items()))
        if key not in spans:
            spans[key] = statement.column(None, statement.time_s)
            for terms, constant in own.values():
                statement.rows.append(({**terms, spans[key]: -1.0}, -constant, "span"))
        copies = statement.graph.copies.get(layer, 1)
        around = added(around, ({spans[key]: 1.0}, 0.0), copies)
    statement.within_period(around, "chain")
