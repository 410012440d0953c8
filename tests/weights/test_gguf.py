"""GGUF files: weights, tokenizer and chat template come out; what cannot be read is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from flexinfer.config import ModelOptions
from flexinfer.errors import UsageError
from flexinfer.models.layers import packed_view
from flexinfer.weights.load import LoadedModel, load
from tests.support.tiny import tiny_llama
from tests.weights.tiny_gguf import write_gguf

ROPE = {"rope_type": "default", "rope_theta": 10000.0}


def tiny(**overrides: object) -> PreTrainedModel:
    return tiny_llama(rope_parameters=ROPE, vocab_size=262, num_hidden_layers=2, **overrides)


def load_file(path: Path, **options: object) -> LoadedModel:
    return load(ModelOptions(model=str(path), device="cpu", **options))


@pytest.mark.parametrize("tied", [True, False])
def test_the_weights_come_out_as_they_went_in(tied: bool, tmp_path: Path) -> None:
    model = tiny(tie_word_embeddings=tied)
    loaded = load_file(write_gguf(model, tmp_path / "tiny.gguf"))
    torch.testing.assert_close(loaded.module.state_dict(), model.state_dict(), rtol=0, atol=0)
    attention = loaded.module.model.layers[1].self_attn
    parts = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
    assert packed_view(*parts) is not None
    assert (attention.q_proj.weight.dtype, loaded.name) == (torch.float32, "tiny")


def test_the_tokenizer_and_its_template_come_out(tmp_path: Path) -> None:
    loaded = load_file(write_gguf(tiny(), tmp_path / "tiny.gguf"))
    text = "12+30= é"
    assert (
        loaded.tokenizer.decode(loaded.tokenizer(text).input_ids, skip_special_tokens=True) == text
    )
    messages = [{"role": "user", "content": "a"}]
    shown = loaded.tokenizer.apply_chat_template(messages, tokenize=False)
    assert shown == "<bos><turn>user:a<eos>"
    assert loaded.eos_ids == {2}


def test_nothing_is_printed_and_no_random_number_drawn(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_gguf(tiny(), tmp_path / "tiny.gguf")
    capfd.readouterr()
    before = torch.get_rng_state()
    load_file(path)
    assert torch.equal(before, torch.get_rng_state())
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF" + bytes(60), b"no such file"])
def test_what_is_no_gguf_file_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"broken\.gguf") as caught:
        load_file(path)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("end", [10, 1000, -1000])
def test_a_truncated_file_is_refused_with_a_cure(end: int, tmp_path: Path) -> None:
    path = write_gguf(tiny(), tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes()[:end])
    with pytest.raises(UsageError, match=r"tiny\.gguf") as caught:
        load_file(path)
    assert caught.value.hint == "download it again"


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    path = write_gguf(tiny(), tmp_path / "lossy.gguf", leave_out="layers.1.mlp")
    with pytest.raises(UsageError, match=r"lacks 3 tensors: model\.layers\.1\.mlp\.down_proj"):
        load_file(path)


@pytest.mark.parametrize(
    ("architecture", "part"), [("mamba9", "mamba9"), ("qwen3moe", "mixture of experts")]
)
def test_other_architectures_are_refused_by_name(
    architecture: str, part: str, tmp_path: Path
) -> None:
    path = write_gguf(tiny(), tmp_path / "other.gguf", architecture)
    with pytest.raises(UsageError, match=part) as caught:
        load_file(path)
    assert caught.value.hint != "download it again", "the file is sound"


def test_a_rope_scaling_that_would_be_lost_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tiny(), tmp_path / "scaled.gguf", rope_freqs=True)
    with pytest.raises(UsageError, match="scales its rope"):
        load_file(path)


def test_dummy_weights_of_a_gguf_file_are_refused(tmp_path: Path) -> None:
    path = write_gguf(tiny(), tmp_path / "tiny.gguf")
    with pytest.raises(UsageError, match="--load-format dummy"):
        load_file(path, load_format="dummy")
