"""What --model may say, and what is told when it says something else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flexinfer.errors import UsageError
from flexinfer.weights import names


@pytest.mark.parametrize("alias", names.ALIASES)
@pytest.mark.parametrize("change", [str, str.lower, str.upper])
def test_an_alias_is_found_whatever_its_case(alias: str, change: object) -> None:
    found = names.resolve(change(alias))
    assert found.name == alias
    assert found.hub_ids == names.ALIASES[alias]
    assert (found.config is None) == (alias == names.TINY)


def test_every_alias_of_the_contract_is_there() -> None:
    wanted = "gemma-4-E2B-it gemma-4-E4B-it qwen3-0.6b qwen3-4b qwen3-4b-base tiny-gemma4 "
    wanted += "llama-3.2-1b-instruct llama-3.2-3b-instruct smollm2-135m-instruct"
    assert set(wanted.split()) <= set(names.ALIASES)
    assert names.ALIASES["gemma-4-E2B-it"] == ("unsloth/gemma-4-E2B-it", "google/gemma-4-E2B-it")


def test_the_embedded_model_is_a_folder_in_the_package() -> None:
    found = names.resolve("Tiny-Gemma4")
    assert found.folder is not None
    assert (found.folder / "config.json").is_file()


def test_an_aliass_hub_id_brings_its_config(tmp_path: Path) -> None:
    found = names.resolve("qwen/qwen3-4b")
    assert (found.hub_ids, found.config) == (("Qwen/Qwen3-4B",), "qwen3-4b")


def test_a_hub_id_is_taken_as_it_is() -> None:
    found = names.resolve("someone/Some.Model-7B")
    assert (found.hub_ids, found.config, found.folder) == (("someone/Some.Model-7B",), None, None)


def test_a_folder_goes_before_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Qwen/Qwen3-4B").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert names.resolve("Qwen/Qwen3-4B").folder == Path("Qwen/Qwen3-4B")
    assert names.resolve(str(tmp_path)).folder == tmp_path


def test_an_alias_goes_before_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "qwen3-4b").mkdir()
    monkeypatch.chdir(tmp_path)
    assert names.resolve("qwen3-4b").config == "qwen3-4b"
    assert names.resolve("./qwen3-4b").folder == Path("qwen3-4b")


def test_a_gguf_file_is_known_by_its_ending(tmp_path: Path) -> None:
    file = tmp_path / "Model.Q4_0.GGUF"
    file.touch()
    found = names.resolve(str(file))
    assert (found.gguf, found.name) == (file, "Model.Q4_0")


def test_another_file_is_refused_with_its_folder(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(UsageError) as caught:
        names.resolve(str(tmp_path / "model.safetensors"))
    assert str(tmp_path) in str(caught.value.hint)


@pytest.mark.parametrize("model", ["./none", "/no/such/folder", "none.gguf", "a/b.gguf", "a/b/c"])
def test_a_missing_path_is_refused(model: str) -> None:
    with pytest.raises(UsageError, match="no such file or folder"):
        names.resolve(model)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("gema-4-e2b", "gemma-4-E2B-it"),
        ("qwen3-4b-bse", "qwen3-4b-base"),
        ("llama3.2-3b", "llama-3.2-3b-instruct"),
        ("smollm2", "smollm2-135m-instruct"),
        ("smolm2", "smollm2-135m-instruct"),
        ("SmolLM", "smollm2-135m-instruct"),
        ("gema", "gemma-4-E2B-it"),
        ("llama", "llama-3.2-1b-instruct"),
    ],
)
def test_an_unknown_name_suggests_the_nearest_alias(typed: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        names.resolve(typed)
    assert f"nearest alias: {meant};" in str(caught.value.hint)


@pytest.mark.parametrize("typed", ["zzzzqqq", "zzzz", "nonsense", "gpt2-xl", "mistral", "4"])
def test_where_no_alias_is_near_all_are_listed_and_none_is_pushed(typed: str) -> None:
    with pytest.raises(UsageError) as caught:
        names.resolve(typed)
    assert caught.value.hint == "aliases: " + ", ".join(names.ALIASES)


@pytest.mark.parametrize(
    ("adapter", "complaint"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        ("random:0", "the rank must be 1 or more"),
        ("random:000", "the rank must be 1 or more"),
        ("random:", "there is no such folder"),
        ("random:x", "there is no such folder"),
        ("no-such-folder", "there is no such folder"),
        ("EMPTY", "holds no adapter_config.json"),
        ("HALF", "holds no adapter_model.safetensors"),
    ],
)
def test_an_adapter_that_is_none_is_refused_in_one_line(
    tmp_path: Path, adapter: str, complaint: str
) -> None:
    for folder in ("EMPTY", "HALF"):
        (tmp_path / folder).mkdir()
    (tmp_path / "HALF/adapter_config.json").touch()
    given = str(tmp_path / adapter) if adapter.isupper() else adapter
    with pytest.raises(UsageError, match=complaint) as caught:
        names.check_adapter(given)
    assert caught.value.message.startswith("--adapter")
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("adapter", ["random", "random:1", "random:8", "."])
def test_an_adapter_is_a_seed_or_a_peft_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adapter: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / name).touch()
    names.check_adapter(adapter)


def test_a_bare_name_that_is_cached_is_a_hub_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "is_cached", lambda hub_id: hub_id == "gpt2")
    assert names.resolve("gpt2").hub_ids == ("gpt2",)
    with pytest.raises(UsageError):
        names.resolve("gpt3")


@pytest.mark.parametrize("name", ["", " ", "ü", "a b", "..", "gpt2:main"])
def test_odd_names_are_refused_in_one_line(name: str) -> None:
    if Path(name).is_dir():
        pytest.skip("names a folder here")
    with pytest.raises(UsageError) as caught:
        names.resolve(name)
    assert "\n" not in caught.value.message


def test_the_default_follows_the_device_and_says_why() -> None:
    assert names.choose_default(cuda=True)[0] == "gemma-4-E2B-it"
    assert "CUDA device is present" in names.choose_default(cuda=True)[1]
    assert names.choose_default(cuda=False)[0] == "tiny-gemma4"
    assert "no CUDA device" in names.choose_default(cuda=False)[1]


def test_resolving_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from flexinfer.weights import names; names.resolve('qwen3-4b'); "
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
