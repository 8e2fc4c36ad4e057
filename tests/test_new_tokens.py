"""Steps that decode several tokens of a sequence at once: drafts, and whole scales of an image."""

from __future__ import annotations

import dataclasses
import json

import pytest
from cli_runner import run

from kvplan import cost
from kvplan.errors import InputError
from kvplan.hardware_library import load_hardware
from kvplan.model_library import load_model
from kvplan.planning import make_plan, replay
from kvplan.scenario import Options, Scenario
from kvplan.solve import search
from kvplan.workload import Workload

SIDES = (1, 2, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64)
"""Of Infinity's scales. Source: FoundationVision/Infinity, scale schedule of a square megapixel."""


def asked(
    new: int, model: str = "llama-7b", gpu: str = "a100", batch: int = 32, context: int = 2048
) -> Scenario:
    return Scenario(
        model=load_model(model), hardware=load_hardware(gpu),
        workload=Workload(batch=batch, context=context, new_tokens=new),
    )  # fmt: skip


def solved(*words: str) -> dict[str, object]:
    found = run("solve", "--gpu", "l4", "--batch", "16", "--json", *words)
    assert found.code == 0, found.err
    document: dict[str, object] = json.loads(found.out)
    return document


@pytest.mark.parametrize("scale", [2, 9, 13])
def test_a_scale_is_decoded_at_once_with_all_before_it_cached(scale: int) -> None:
    load = solved("--model", "infinity-2b", "--scale", str(scale))["inputs"]["workload"]  # type: ignore[index]
    tokens = [side * side for side in SIDES]
    assert load["new_tokens"] == tokens[scale - 1]
    assert load["context"] == sum(tokens[: scale - 1])


def test_the_last_scale_is_the_default_and_what_is_typed_goes_first() -> None:
    load = solved("--model", "infinity-2b")["inputs"]["workload"]  # type: ignore[index]
    assert (load["context"], load["new_tokens"]) == (6425, 4096)
    load = solved("--model", "infinity-2b", "--context", "1k")["inputs"]["workload"]  # type: ignore[index]
    assert (load["context"], load["new_tokens"]) == (1024, 1)


def test_steps_of_all_scales_together_take_longer_than_one_of_all_tokens() -> None:
    """Weights are read once a scale, so thirteen small steps never beat one large product."""
    tokens = [side * side for side in SIDES]
    steps = [
        search(asked(new, "infinity-2b", "l4", batch=2, context=sum(tokens[:k]))).best.step_s
        for k, new in list(enumerate(tokens))[1:]
    ]
    assert steps == sorted(steps)
    layer = load_model("infinity-2b").layers[0]
    whole = cost.finish_s(load_hardware("l4"), layer, "fp16", 2 * sum(tokens))
    assert sum(steps) > 32 * whole


def test_a_draft_shares_the_copies_of_one_token() -> None:
    """Where the link is the limit eight tokens take hardly longer than one."""
    only_fetch = dataclasses.replace(asked(1), options=Options(paths=("fetch",)))
    draft = dataclasses.replace(only_fetch, workload=asked(8).workload)
    one, eight = search(only_fetch).best, search(draft).best
    assert one.step_s <= eight.step_s < 1.1 * one.step_s
    made = make_plan(draft, time="then")
    assert made.prediction.tokens_per_s == pytest.approx(8 * 32 / made.prediction.step_s)
    assert replay(made)[1].step_s == made.prediction.step_s


def test_tokens_per_s_count_every_new_token_of_plan_and_baselines() -> None:
    made = make_plan(asked(4, model="opt-1.3b", batch=8, context=512))
    assert made.prediction.tokens_per_s == 8 * 4 / made.prediction.step_s
    steps = {name: rung.step_s for name, rung in made.baselines.items() if rung.step_s is not None}
    assert {"no_offload", "overlapped_fetch"} <= set(steps)
    for name, step_s in steps.items():
        assert made.baselines[name].tokens_per_s == 8 * 4 / step_s


def test_attention_to_each_other_grows_with_the_square() -> None:
    layer, gpu = load_model("llama-7b").layers[0], load_hardware("a100")
    one, two, four = (cost.attend_new_s(gpu, layer, "fp16", 4, n) for n in (1, 1000, 2000))
    assert one == 0
    assert (four - gpu.gpu.kernel_s) == pytest.approx(4 * (two - gpu.gpu.kernel_s))


def test_attention_away_from_the_gpu_is_for_one_new_token() -> None:
    scenario = dataclasses.replace(
        asked(8, gpu="h200"), options=Options(paths=("resident", "attend_host"))
    )
    with pytest.raises(InputError, match="attend one new token"):
        _ = scenario.paths
    free = asked(8, gpu="h200")
    assert "attend_host" not in {p.name for paths in free.paths.values() for p in paths}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--model", "infinity-2b", "--scale", "1"), "nothing is cached before it"),
        (("--model", "infinity-2b", "--scale", "14"), "--scale: '14'"),
        (("--model", "llama-7b", "--new-tokens", "4", "--objective", "throughput"), "--new-tokens"),
        (("--model", "infinity-2b", "--gen", "64", "--segments", "2"), "--scale: 4096"),
    ],
)
def test_what_makes_no_sense_is_refused(words: tuple[str, ...], says: str) -> None:
    found = run("solve", "--gpu", "l4", *words)
    assert found.code == 2
    assert says in found.err
    assert found.err.count("\n") == 1
