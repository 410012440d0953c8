"""The hub: a whole cached snapshot is used without a call, else a download, else the cures."""

from __future__ import annotations

import shutil
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError

from flexinfer.config import ModelOptions
from flexinfer.errors import EnvironmentUnfit
from flexinfer.weights import names
from flexinfer.weights.load import load
from tests.weights.folders import save_folder

ID = "unsloth/gemma-4-E2B-it"
COMMIT = "0" * 40


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids that a download was tried for; there is no connection."""
    seen: list[str] = []

    def snapshot_download(repo_id: str, **options: object) -> str:
        seen.append(repo_id)
        raise LocalEntryNotFoundError("no connection\nat all")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return seen


def put(cache: Path, hub_id: str, family: str = "gemma4") -> Path:
    """Store a tiny checkpoint in the cache the way the hub's client does."""
    home = cache / f"models--{hub_id.replace('/', '--')}"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(COMMIT)
    return save_folder(family, home / "snapshots" / COMMIT)


def test_a_whole_cached_snapshot_is_used_without_a_call(cache: Path, asked: list[str]) -> None:
    put(cache, ID)
    assert load(ModelOptions(model="gemma-4-e2b-it")).module.config.hidden_size == 64
    assert asked == []


def test_the_second_id_counts_where_only_it_is_cached(cache: Path, asked: list[str]) -> None:
    put(cache, "google/gemma-4-E2B-it")
    assert load(ModelOptions(model="gemma-4-E2B-it")).name == "gemma-4-E2B-it"
    assert asked == []


@pytest.mark.parametrize("lost", ["model.safetensors", "config.json", "tokenizer_config.json"])
def test_a_partial_snapshot_is_downloaded_again(cache: Path, asked: list[str], lost: str) -> None:
    (put(cache, ID) / lost).unlink()
    with pytest.raises(EnvironmentUnfit):
        load(ModelOptions(model="gemma-4-E2B-it"))
    assert asked == [ID, "google/gemma-4-E2B-it"]


@pytest.mark.usefixtures("cache")
def test_neither_cached_nor_reachable_names_the_cures(asked: list[str]) -> None:
    with pytest.raises(EnvironmentUnfit) as caught:
        load(ModelOptions(model="someone/model"))
    assert asked == ["someone/model"]
    assert "neither cached nor reachable" in caught.value.message
    assert "\n" not in caught.value.message
    for cure in ("log in", "download", "--load-format dummy", "--model tiny-gemma4"):
        assert cure in str(caught.value.hint)


def test_what_was_downloaded_is_loaded(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_folder("llama", tmp_path / "made")

    def snapshot_download(repo_id: str, allow_patterns: list[str], **options: object) -> str:
        names_ = [path for pattern in allow_patterns for path in folder.glob(pattern)]
        target = tmp_path / "fetched"
        target.mkdir()
        for path in names_:
            shutil.copy(path, target)
        return str(target)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    loaded = load(ModelOptions(model="someone/model"))
    assert loaded.module.config.name_or_path == str(tmp_path / "fetched")


@pytest.mark.usefixtures("asked")
def test_a_cached_config_gives_dummy_weights(cache: Path) -> None:
    put(cache, "someone/model", "qwen3")
    loaded = load(ModelOptions(model="someone/model", load_format="dummy"))
    assert loaded.module.config.model_type == "qwen3"


def test_a_bare_name_counts_when_it_is_cached(cache: Path) -> None:
    assert not names.is_cached("gpt2")
    put(cache, "gpt2", "llama")
    assert names.resolve("gpt2").hub_ids == ("gpt2",)
