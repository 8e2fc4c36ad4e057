"""``kvplan models``: the models that come with kvplan, or one in detail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.cli.catalogue import show_catalogue
from kvplan.cli.completion import complete_model
from kvplan.cli.output import Json

if TYPE_CHECKING:
    from kvplan.model import ModelSpec

EPILOG = """
Examples:

\b
  kvplan models
  kvplan models show llama-3.1-8b
  kvplan models ./config.json --json
"""

FP16_BYTES = 2


def models(
    name: Annotated[
        list[str] | None,
        typer.Argument(metavar="[show] [NAME|PATH]", autocompletion=complete_model,
                       help="One model, or a config.json. [default: all]"),
    ] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """List the models that come with kvplan, or show one."""
    show_catalogue("models", name, as_json, rows=_all, detail=_detail)


def _all() -> list[dict[str, Any]]:
    from kvplan.model_library import load_model, model_file, model_names

    return [_row(load_model(name)) | _filed(model_file(name)) for name in model_names()]


def _filed(file: Any) -> dict[str, Any]:
    return {"aliases": list(file.aliases), "grade": file.grade}


def _row(model: ModelSpec) -> dict[str, Any]:
    from kvplan.kv_size import KvSize

    caching = [layer for layer in model.layers if layer.kv_elements]
    size = KvSize(model=model, context=0)
    kv_bytes = size.uniform_bytes_per_token
    activation_bytes = sum(layer.activation_elements * FP16_BYTES for layer in caching)
    return {
        "name": model.name,
        "layers": len(model.layers),
        "kv_layers": len(caching),
        "params": model.params,
        "active_params": model.active_params,
        "kv_bytes_per_token": kv_bytes,
        "fixed_bytes": size.fixed_bytes,
        "act_over_kv": activation_bytes / kv_bytes if kv_bytes else None,
        "max_positions": model.max_positions,
    }


def _detail(name: str) -> dict[str, Any]:
    from kvplan.cli.kv_size_answer import describe
    from kvplan.model_library import load_model, model_file, model_names

    model = load_model(name)
    kinds = [
        {
            "count": count, "first": where[0], "what": describe(layer),
            "query_heads": layer.query_heads, "kv_heads": layer.kv_heads,
            "head_dim_k": layer.head_dim_k, "head_dim_v": layer.head_dim_v, "window": layer.window,
            "kv_bytes_per_token": layer.kv_bytes(FP16_BYTES),
            "act_over_kv": layer.act_over_kv(FP16_BYTES) if layer.kv_elements else None,
            "held_bytes": layer.held_bytes(0, FP16_BYTES, model.source_tokens or 0),
            "params": layer.params, "active_params": layer.active_params,
        }
        for layer, count, where in model.layer_classes
    ]  # fmt: skip
    filed = _filed(model_file(model.name)) if model.name in model_names() else {}
    return _row(model) | {
        "family": model.family, "hidden": model.hidden, "vocab": model.vocab,
        "weight_dtype": model.weight_dtype, "uncounted": list(model.uncounted),
        "source": model.source, "layer_kinds": kinds,
    } | filed  # fmt: skip
