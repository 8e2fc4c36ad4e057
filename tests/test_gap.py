"""Proven gaps of a sample of models and cards; ``benchmarks/gaps.py`` prints those of all."""

from __future__ import annotations

import pytest

from kvplan.hardware_library import load_hardware
from kvplan.model_library import load_model
from kvplan.scenario import Scenario
from kvplan.solve import search
from kvplan.workload import Workload

PAIRS = {
    # Weights streamed through little HBM: waits for buffers, coarse blocks.
    ("opt-30b", "t4", 32): 0.01,
    ("llama-30b", "t4", 32): 0.01,
    ("opt-30b", "rtx-4090", 8): 0.01,
    ("llama-65b", "a100", 32): 0.01,
    ("llama-30b", "rtx-4090", 4): 0.01,
    # Almost everything resident: small stages, fixed times of copies and kernels.
    ("opt-6.7b", "h100-sxm-80gb", 32): 0.01,
    ("qwen3-0.6b", "t4", 32): 0.01,
    ("llama-7b", "a100-80gb-pcie", 32): 0.012,
    ("opt-1.3b", "rtx-4090", 32): 0.01,
    ("var-d36", "rtx-6000-ada", 32): 0.012,
    ("qwen2.5-72b-instruct", "mi300x", 32): 0.011,
    # Attention in a tier beside the GPU; then with streamed weights and nothing staged.
    ("gemma-7b", "what-if-near-memory", 32): 0.01,
    ("qwen2.5-32b-instruct", "what-if-near-memory", 32): 0.01,
    # A large head, during which the link fills its buffers and waits.
    ("qwen2.5-7b", "l4", 32): 0.01,
    # Much to fetch beside resident weights.
    ("llama-7b", "a100", 32): 0.01,
    ("mistral-7b", "l4", 32): 0.01,
    # Two paths in a stage, each of which a block more would delay; a mean layer does not tell.
    ("pythia-6.9b", "h100-sxm-80gb", 32): 0.01,
    ("mistral-7b", "rtx-5090", 32): 0.01,
    ("rednote-hilab/dots.llm1.inst", "gh200-144gb", 32): 0.01,
    ("allenai/OLMo-2-1124-7B", "what-if-near-memory", 32): 0.01,
    # Streamed weights leave gaps of the link where a layer's last stages copy nothing.
    ("google-t5/t5-11b", "v100-pcie-16gb", 32): 0.02,
    # Weights streamed alone: every layer's copy has its fixed time.
    ("tiiuae/Falcon-H1-34B-Instruct", "what-if-c2c", 32): 0.01,
    # Links wait around the head: some layers stage nothing, the others more, into larger buffers.
    ("gemma-2-27b", "gh200-96gb", 32): 0.01,
    ("THUDM/glm-4-9b-chat", "rtx-3090", 32): 0.01,
    # Every schedule's bound needs its mixture.
    ("gemma-3-27b-it", "what-if-near-memory", 32): 0.01,
    # Layers of several kinds: their stages and weights differ in size.
    ("gemma-3-27b-it", "rtx-a6000", 32): 0.01,
    ("ai21labs/Jamba-v0.1", "rtx-a6000", 32): 0.01,
    # Few layers keep a cache: the GPU is far from one to the next, and buffers are few.
    ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", "rtx-3090", 32): 0.01,
    # Layers that fetch between layers that rebuild: the link and the GPU wait for each other.
    ("gemma-3-12b-it", "rtx-4090", 32): 0.01,
}
"""(model, card, batch) and the gap that is reached at 4096 tokens of context."""


@pytest.mark.parametrize(("model", "card", "batch"), PAIRS)
def test_the_proven_gap_is_small(model: str, card: str, batch: int) -> None:
    scenario = Scenario(
        model=load_model(model),
        hardware=load_hardware(card),
        workload=Workload(batch=batch, context=4096, source_tokens=0),
    )
    found = search(scenario)
    assert found.best.overflow(scenario.capacity) is None
    assert 0 <= found.gap <= PAIRS[model, card, batch]
