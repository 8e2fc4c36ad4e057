"""Floating-point operations of a decode step's parts, per token where tokens are many.

Pure functions of the model; how long they take is `cost`'s to say. One multiply-add is two.
"""

from __future__ import annotations

from kvplan.model import LayerSpec, ModelSpec


def attend(layer: LayerSpec) -> float:
    """Of attention over one cached token, one sequence: QK and PV for every query head, in the
    space of the latent where there is one.

    >>> from kvplan.model_library import load_model
    >>> attend(load_model("llama-7b").layers[0])  # 32 heads x 2 x (128 + 128)
    16384.0
    """
    return 2.0 * (layer.query_elements + layer.partial_elements)


def rebuild(layer: LayerSpec) -> float:
    """Of rebuilding K and V of one token from its activations.

    Source: KVPR, arXiv 2411.17089, equations 6-11 (4hw, w the width of K or V).

    >>> from kvplan.model_library import load_model
    >>> rebuild(load_model("llama-7b").layers[0])  # 2 x 4096 x 8192
    67108864.0
    """
    return float(layer.rebuild_flop)


def new_token(layer: LayerSpec) -> float:
    """Of a layer's projections and MLP for one new token: each weight it meets is used once.

    >>> from kvplan.model_library import load_model
    >>> new_token(load_model("llama-7b").layers[0])  # 2 x 202 383 360 weights
    404766720.0
    """
    return 2.0 * layer.active_params


def head(model: ModelSpec) -> float:
    """Of the vocabulary projection of one new token.

    >>> from kvplan.model_library import load_model
    >>> head(load_model("llama-7b"))  # 2 x (32000 x 4096 + a norm of 4096)
    262152192.0
    """
    return 2.0 * model.head_params
