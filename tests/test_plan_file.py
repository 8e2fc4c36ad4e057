from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kvplan
from kvplan.errors import InputError
from kvplan.hardware_library import load_hardware
from kvplan.model_library import load_model
from kvplan.plan import SCHEMA_VERSION, Plan, layer_runs
from kvplan.plan_file import decode, encode, read_plan, schema, write_plan, write_text
from kvplan.planning import make_plan, model_of, replay
from kvplan.scenario import Options, Scenario
from kvplan.workload import Budgets, Workload

TIME = "2026-01-01T00:00:00+00:00"


@cache
def solved(gpu: str = "l4", hbm_gib: int = 3) -> Plan:
    scenario = Scenario(
        model=load_model("opt-125m"),
        hardware=load_hardware(gpu),
        workload=Workload(batch=64, context=2048),
        budgets=Budgets(hbm_bytes=hbm_gib * 2**30),
        options=Options(stages=(4,), queue_depths=(2,), axes=("token",), allow={"int8": 0.25}),
    )
    return make_plan(scenario, time=TIME)


def test_a_plan_survives_text() -> None:
    assert decode(encode(solved())) == solved()
    assert encode(decode(encode(solved()))) == encode(solved())
    assert decode(encode(solved()).encode()) == solved()


def test_a_plan_survives_a_file(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    write_plan(file, solved())
    assert read_plan(file) == solved()
    assert list(tmp_path.iterdir()) == [file]
    write_plan(file, solved(gpu="a100"))
    assert read_plan(file) == solved(gpu="a100")


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text("old", encoding="utf-8")
    with pytest.raises(UnicodeEncodeError):
        write_text(file, "new \ud800")
    assert file.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [file]
    with pytest.raises(InputError, match="can be written"):
        write_text(tmp_path / "missing" / "plan.json", "new")


def test_same_scenario_gives_the_same_text() -> None:
    first = encode(solved())
    solved.cache_clear()
    assert encode(solved()) == first


def test_the_model_is_held_whole() -> None:
    model = load_model("opt-125m")
    assert model_of(solved()) == model
    assert [run.count for run in layer_runs(model.layers)] == [12]


def test_replay_is_the_prediction() -> None:
    _, evaluation = replay(decode(encode(solved())))
    assert evaluation.step_s == solved().prediction.step_s


# -- versions --------------------------------------------------------------------------------


def versioned(version: str) -> str:
    return encode(solved()).replace(f'"{SCHEMA_VERSION}"', f'"{version}"', 1)


def test_older_minor_versions_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvplan.plan_file.SCHEMA_VERSION", "1.7")
    for version in ("1.0", "1.6", "1.7"):
        assert decode(versioned(version)).kvplan_plan == version


@pytest.mark.parametrize("version", ["0.9", "2.0", "10.0", "1.99"])
def test_other_versions_are_refused_by_name(version: str) -> None:
    with pytest.raises(InputError, match="needs another kvplan") as caught:
        decode(versioned(version), "my.json")
    assert caught.value.field == "my.json: kvplan_plan"
    assert caught.value.value == version


def test_the_version_is_looked_at_before_anything_else() -> None:
    with pytest.raises(InputError, match=r"'2\.0'"):
        decode('{"kvplan_plan": "2.0", "something": "new"}')


@pytest.mark.parametrize("version", ["", "1", "one.two", "1.0.0", "-1.0", "1.²", "9" * 5000 + ".0"])
def test_what_is_no_version_is_refused(version: str) -> None:
    with pytest.raises(InputError, match="kvplan_plan"):
        decode(versioned(version))


def test_layers_beyond_count_are_refused_before_they_are_built() -> None:
    document = json.loads(encode(solved()))
    document["inputs"]["model"]["layers"][0]["count"] = 2**40
    with pytest.raises(InputError, match="count"):
        decode(json.dumps(document))


# -- schema ----------------------------------------------------------------------------------


def test_the_shipped_schema_is_that_of_the_classes() -> None:
    file = Path(kvplan.__file__).parent / "plan.schema.json"
    shipped = json.loads(file.read_text(encoding="utf-8"))
    assert shipped == schema(), (
        "the plan classes have changed; write the schema again with\n"
        "    python -m kvplan schema > planner/kvplan/plan.schema.json"
    )


def test_documents_are_valid_by_the_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    validator = jsonschema.Draft202012Validator(schema())
    for plan in (solved(), solved(hbm_gib=6), solved(gpu="a100", hbm_gib=30)):
        assert list(validator.iter_errors(json.loads(encode(plan)))) == []


def test_the_schema_refuses_what_the_reader_refuses() -> None:
    validator = jsonschema.Draft202012Validator(schema())
    for path, value in ((("decision", "axis"), "depth"), (("prediction", "step_s"), -1),
                        (("inputs", "workload", "batch"), 0), (("colour",), "red")):  # fmt: skip
        document = json.loads(encode(solved()))
        put(document, path, value)
        assert list(validator.iter_errors(document))
        with pytest.raises(InputError):
            decode(json.dumps(document))


def test_the_schema_is_strict_json() -> None:
    assert json.loads(json.dumps(schema(), allow_nan=False)) == schema()


# -- anything at all -------------------------------------------------------------------------

Keys = tuple[str | int, ...]


def places(value: Any, at: Keys = ()) -> Iterator[Keys]:
    """Every key path of a document, of the first and last two items in lists."""
    if at:
        yield at
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*at, key))
    elif isinstance(value, list):
        for index in sorted({0, 1, len(value) - 2, len(value) - 1}):
            if 0 <= index < len(value):
                yield from places(value[index], (*at, index))


def put(document: Any, at: Keys, value: object) -> None:
    """Set one value; ``...`` takes it away."""
    for key in at[:-1]:
        document = document[key]
    if value is ...:
        del document[at[-1]]
    else:
        document[at[-1]] = value


@cache
def document() -> Any:
    return json.loads(encode(solved()))


@cache
def everywhere() -> list[Keys]:
    return list(places(document()))


ODD = st.one_of(
    st.sampled_from(
        [..., None, True, "", "x", "../../x.toml", "\0", "\ud800", [], {}, [[]], {"": 0}]
    ),
    st.sampled_from([0, 1, -1, 2**31, 2**53 + 1, 2**63, -(2**63), 10**30, 10**400]),
    st.sampled_from([0.5, -0.5, 1e-320, 1e308, -1e308, 1.0, math.nan, math.inf, -math.inf]),
    st.sampled_from(["nan", "inf", "1e999", "fetch", "resident", "recompute", "fetch_disk", "4.0"]),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
)


def judged(text: str | bytes) -> None:
    """A plan or a refusal; a plan then replays or is refused; nothing else, and no NaN."""
    refusals: list[str] = []
    try:
        plan = decode(text)
        assert sum(run.count for run in plan.inputs.model.layers) <= 10_000  # before they are built
        numbers = [n for n in flat(msgspec.to_builtins(plan)) if isinstance(n, float)]
        _, evaluation = replay(plan)
        numbers += [evaluation.step_s, *evaluation.memory_bytes.values()]
        assert all(math.isfinite(number) for number in numbers)
        assert evaluation.step_s > 0
    except InputError as error:
        refusals.append(str(error))
    assert not any("\n" in refusal for refusal in refusals)


def flat(value: Any) -> Iterator[Any]:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in items:
        yield from flat(item)
    if not items:
        yield value


FUZZ = settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)


@FUZZ
@given(st.data())
def test_one_odd_value_is_a_plan_or_a_refusal(data: st.DataObject) -> None:
    at = data.draw(st.sampled_from(everywhere()))
    value = data.draw(ODD)
    changed = copy.deepcopy(document())
    put(changed, at, value)
    try:
        text = json.dumps(changed)
    except ValueError:  # more digits than Python writes
        return
    judged(text)


@FUZZ
@given(st.data())
def test_two_swapped_values_are_a_plan_or_a_refusal(data: st.DataObject) -> None:
    changed = copy.deepcopy(document())
    one, other = (data.draw(st.sampled_from(everywhere())) for _ in range(2))
    value = document()
    for key in other:
        value = value[key]
    put(changed, one, copy.deepcopy(value))
    judged(json.dumps(changed))


@settings(max_examples=100, deadline=None)
@given(st.integers(0), st.binary(max_size=4), st.integers(0))
def test_damaged_bytes_are_a_plan_or_a_refusal(start: int, inserted: bytes, cut: int) -> None:
    raw = encode(solved()).encode()
    at = start % len(raw)
    judged(raw[:at] + inserted + raw[at + cut % 8 :])
    judged(raw[:at])


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(InputError):
        decode(raw)


@settings(max_examples=100, deadline=None)
@given(st.recursive(ODD.filter(lambda v: v is not ...), lambda inner: st.lists(inner)))
def test_random_json_is_refused(value: object) -> None:
    try:
        text = json.dumps({"kvplan_plan": SCHEMA_VERSION, "inputs": value})
    except ValueError:
        return
    with pytest.raises(InputError):
        decode(text)
