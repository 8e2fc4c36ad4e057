from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from kvplan.datafiles import data_dir
from kvplan.errors import InputError, KvplanError
from kvplan.model_library import load_cache, load_model, model_file, model_names, named

GRADES = ("V", "P", "D", "R")


def index() -> dict[str, dict[str, object]]:
    content: dict[str, dict[str, object]] = json.loads(
        (data_dir("models") / "index.json").read_text("utf-8")
    )
    return content


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("llama-7b", "huggyllama/llama-7b"),
        ("llama-65b", "huggyllama/llama-65b"),
        ("llama-2-7b", "meta-llama/Llama-2-7b-hf"),
        ("llama2-7b", "meta-llama/Llama-2-7b-hf"),
        ("Llama-2-70b-chat-hf", "meta-llama/Llama-2-70b-hf"),
        ("llama-3-8b", "meta-llama/Meta-Llama-3-8B"),
        ("llama3-8b", "meta-llama/Meta-Llama-3-8B"),
        ("llama-3.1-8b", "meta-llama/Meta-Llama-3.1-8B"),
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1"),
        ("deepseek-r1", "deepseek-ai/DeepSeek-R1"),
        ("GPT-2", "openai-community/gpt2"),
        ("gemma-3-27b", "google/gemma-3-27b-it"),
        ("gpt-oss-120b", "openai/gpt-oss-120b"),
        ("command-r+", "CohereLabs/c4ai-command-r-plus"),
        ("CohereForAI/c4ai-command-r7b-12-2024", "CohereLabs/c4ai-command-r7b-12-2024"),
        ("ERNIE-4.5-21B-A3B", "baidu/ERNIE-4.5-21B-A3B-PT"),
        ("falcon-h1-34b", "tiiuae/Falcon-H1-34B-Instruct"),
        ("Granite_4.0_H_Small", "ibm-granite/granite-4.0-h-small"),
        ("hunyuan-a13b", "tencent/Hunyuan-A13B-Instruct"),
        ("codellama-13b-instruct", "codellama/CodeLlama-13b-hf"),
        ("gemma-3n-e4b-it", "google/gemma-3n-E4B"),
        ("google/gemma-2-9b-it", "google/gemma-2-9b"),
        ("kimi-k2", "moonshotai/Kimi-K2-Instruct"),
        ("qwen3-next", "Qwen/Qwen3-Next-80B-A3B-Instruct"),
        ("whisper-large-v3", "openai/whisper-large-v3"),
        ("qwen3.5:9b", "Qwen/Qwen3.5-9B"),
        ("granite3.3:8b", "ibm-granite/granite-3.3-8b-instruct"),
        ("recurrentgemma-2b-it", "google/recurrentgemma-2b"),
        ("MiniMax-M1-80k", "MiniMaxAI/MiniMax-Text-01"),
        ("Qwen2.5-Omni-7B", "Qwen/Qwen2.5-7B-Instruct"),
        ("Qwen3-Coder-Next", "Qwen/Qwen3-Next-80B-A3B-Instruct"),
        ("Llama-3.2-90B-Vision", "meta-llama/Llama-3.2-90B-Vision-Instruct"),
        ("mistral-large-3", "mistralai/Mistral-Large-3-675B-Instruct-2512"),
        ("llama-3.1-405b-instruct", "meta-llama/Meta-Llama-3.1-405B"),
        ("llama-3.2-1b", "meta-llama/Llama-3.2-1B"),
        ("llama-3.3-70b", "meta-llama/Llama-3.3-70B-Instruct"),
        ("opt-1.3b", "facebook/opt-1.3b"),
        ("opt-13b", "facebook/opt-13b"),
        ("OPT_6.7B", "facebook/opt-6.7b"),
        ("mistral-7b", "mistralai/Mistral-7B-v0.3"),
        ("mistral-7b-v0.1", "mistralai/Mistral-7B-v0.1"),
        ("qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct"),
        ("qwen2.5-72b-instruct", "Qwen/Qwen2.5-72B-Instruct"),
        ("qwen3-8b", "Qwen/Qwen3-8B"),
        ("qwen3-0.6b", "Qwen/Qwen3-0.6B"),
        ("Qwen/Qwen3-8B-Base", "Qwen/Qwen3-8B"),
        ("meta-llama/Llama-2-13b-chat-hf", "meta-llama/Llama-2-13b-hf"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "meta-llama/Meta-Llama-3.1-8B"),
        ("deepseek-ai/DeepSeek-V3.1", "deepseek-ai/DeepSeek-V3"),
        ("deepseek-r1:671b", "deepseek-ai/DeepSeek-R1"),
        ("deepseek-r1:32b", "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B"),
        ("llama3.3", "meta-llama/Llama-3.3-70B-Instruct"),
        ("llama3:70b", "meta-llama/Meta-Llama-3-70B"),
        ("mistralai/Mistral-7B-Instruct-v0.2", "mistralai/Mistral-7B-Instruct-v0.2"),
        ("qwen2.5:14b", "Qwen/Qwen2.5-14B"),
        ("Qwen/Qwen1.5-72B-Chat", "Qwen/Qwen1.5-72B-Chat"),
    ],
)
def test_names_people_type(text: str, canonical: str) -> None:
    assert load_model(text).name == canonical


@pytest.mark.parametrize(
    "text", ["mistral-7b-v0.4", "qwen3-80b", "llama-3-71b", "gpt-5", "", "   ", "nowhere/x.json"]
)
def test_unknown_names_and_paths_are_one_line(text: str) -> None:
    with pytest.raises(InputError) as caught:
        load_model(text)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "base", "dtype"),
    [
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "qwen2.5-7b", "int4"),
        ("Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4", "qwen2.5-72b", "int4"),
        ("Qwen/Qwen2.5-72B-Instruct-GPTQ-Int8", "qwen2.5-72b", "int8"),
        ("neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8", "llama-3.1-8b", "fp8"),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "llama-3.3-70b", "fp8"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8", "llama-3.1-8b", "int8"),
        ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", "llama-3.1-8b", "int4"),
        ("nvidia/Llama-3.3-70B-Instruct-NVFP4", "llama-3.3-70b", "int4"),
        ("TheBloke/Llama-2-7B-Chat-GPTQ", "llama-2-7b", "int4"),
        ("llama3.1:8b-instruct-q4_K_M", "llama-3.1-8b", "int4"),
        ("llama3.1:8b-instruct-q8_0", "llama-3.1-8b", "int8"),
        ("mlx-community/Qwen3-8B-4bit", "qwen3-8b", "int4"),
    ],
)
def test_a_name_says_how_its_weights_are_stored(text: str, base: str, dtype: str) -> None:
    model, plain = load_model(text), load_model(base)
    assert model.weight_dtype == dtype
    assert [layer.kv_elements for layer in model.layers] == [
        layer.kv_elements for layer in plain.layers
    ]
    assert model.params == plain.params
    again = load_model(model.name)  # a plan keeps the name
    assert (again.name, again.weight_dtype) == (model.name, dtype)


def test_a_name_that_leaves_the_width_open_is_enough_for_the_cache() -> None:
    text = "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF"
    assert load_cache(text).kv_bytes(1, 2) == 131072
    with pytest.raises(InputError, match="-Q4_K_M or -FP8"):
        load_model(text)
    with pytest.raises(InputError, match="-Q4_K_M or -FP8"):
        load_model("llama3.1:8b-instruct-q6_K")


def test_quantisation_of_an_unknown_model_is_an_unknown_model() -> None:
    with pytest.raises(InputError, match=r"'nonesuch-7b-AWQ' .* or give a path to its config.json"):
        load_model("nonesuch-7b-AWQ")


def test_a_family_lists_its_sizes() -> None:
    with pytest.raises(InputError, match=r"openai/gpt-oss-120b, openai/gpt-oss-20b$"):
        load_model("gpt-oss")


@pytest.mark.parametrize(
    ("text", "nearest", "never"),
    [
        ("gemma-3n-e9b", "google/gemma-3n-E2B or google/gemma-3n-E4B", "gemma-2"),
        ("falcon-h1-40b", "tiiuae/Falcon-H1-34B-Instruct", "tiiuae/falcon-40b"),
        ("llama-3.2-70b-vision", "meta-llama/Llama-3.2-11B-Vision-Instruct", "Llama-3.3"),
        ("command-r-plus-09-2029", "CohereLabs/c4ai-command-r-plus", "Qwen"),
        ("lama-3-8b", "meta-llama/Meta-Llama-3-8B", "Qwen"),
        ("nothing-like-it", "`kvplan models` lists all names", "did you mean"),
    ],
)
def test_a_miss_names_the_family_not_what_is_spelled_alike(
    text: str, nearest: str, never: str
) -> None:
    with pytest.raises(InputError) as caught:
        load_model(text)
    assert nearest in caught.value.accepted
    assert never not in caught.value.accepted


def test_index_and_files_agree() -> None:
    entries = index()
    files = {path.name for path in data_dir("models").glob("*.json")} - {"index.json"}
    assert {entry["file"] for entry in entries.values()} == files
    assert model_names() == tuple(sorted(entries))
    for name, entry in entries.items():
        file = model_file(name)
        assert file.name == name
        assert list(file.aliases) == entry["aliases"]
        assert file.grade in GRADES
        assert file.source
        assert entry["file"] == name.replace("/", "__") + ".json"


def test_every_name_and_alias_means_its_own_model() -> None:
    for name, entry in index().items():
        aliases = entry["aliases"]
        assert isinstance(aliases, list)
        for text in (name, name.lower(), name.replace("-", "_"), name.split("/")[1], *aliases):
            assert model_file(text).name == name


def test_one_lookup_reads_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    original = Path.open

    def spy(self: Path, *args: object, **kwargs: object) -> object:
        opened.append(self.name)
        return original(self, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", spy)
    named.cache_clear()
    assert load_model("qwen3-8b") is load_model("qwen3-8b")
    assert [name for name in opened if name != "index.json"] == ["Qwen__Qwen3-8B.json"]


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = model_file("qwen3-8b").config
    folder = tmp_path / "qwen3-8b"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_model("qwen3-8b").name == "Qwen/Qwen3-8B"  # an empty folder hides no name
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    for path in (str(folder), str(folder / "config.json"), "qwen3-8b", "./qwen3-8b"):
        model = load_model(path)
        assert (model.name, len(model.layers)) == (path, 3)


def test_a_file_in_the_format_of_the_library(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    content = {
        "name": "mine",
        "grade": "R",
        "source": "me",
        "config": model_file("opt-1.3b").config,
    }
    path.write_text(json.dumps(content))
    assert load_model(str(path)).name == "mine"
    assert load_model(str(path)).source == "me (grade R)"
    path.write_text(json.dumps(content | {"grad": "R"}))
    with pytest.raises(InputError, match="grad"):
        load_model(str(path))


def test_model_names_do_not_depend_on_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_model("llama-7b") == load_model("huggyllama/llama-7b")


def test_data_folder_missing() -> None:
    with pytest.raises(KvplanError, match="install"):
        data_dir("nothing")  # type: ignore[arg-type]


def test_specs_are_plain_data() -> None:
    model = load_model("llama-3.2-3b")
    assert msgspec.json.decode(msgspec.json.encode(model), type=type(model)) == model
