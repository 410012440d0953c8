"""Writes a tiny Llama checkpoint as a `.gguf` file, the way llama.cpp's converter lays it out."""

from __future__ import annotations

from pathlib import Path

import gguf
import torch
from transformers import PreTrainedModel

from tests.weights.folders import TEMPLATE, byte_tokenizer

NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate",
    "post_attention_layernorm": "ffn_norm", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_gguf(
    model: PreTrainedModel,
    path: Path,
    architecture: str = "llama",
    rope_freqs: bool = False,
    leave_out: str = "none",
) -> Path:
    """Write `model` (a tiny Llama without rope scaling) in fp32 with the tests' byte tokenizer.

    `rope_freqs` adds the tensor by which Llama 3.x files scale their rope; tensors with `leave_out`
    in their name are left out.
    """
    writer = gguf.GGUFWriter(path, architecture)
    _write_config(writer, model)
    _write_tokenizer(writer)
    if rope_freqs:
        writer.add_tensor("rope_freqs.weight", torch.full((8,), 2.0).numpy())
    for name, tensor in model.named_parameters():
        if leave_out not in name:
            writer.add_tensor(gguf_name(name), _laid_out(name, tensor.detach(), model).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_name(name: str) -> str:
    """Translate a parameter's name."""
    stem = name.removesuffix(".weight")
    if stem in TOP:
        return f"{TOP[stem]}.weight"
    _, _, number, rest = stem.split(".", 3)
    return f"blk.{number}.{NAMES[rest]}.weight"


def _laid_out(name: str, tensor: torch.Tensor, model: PreTrainedModel) -> torch.Tensor:
    """Interleave the halves of each rotary head, as llama.cpp's rope wants them."""
    if "q_proj" not in name and "k_proj" not in name:
        return tensor
    heads = tensor.shape[0] // model.config.head_dim
    halves = tensor.reshape(heads, 2, model.config.head_dim // 2, tensor.shape[1])
    return halves.transpose(1, 2).reshape(tensor.shape).contiguous()


def _write_config(writer: gguf.GGUFWriter, model: PreTrainedModel) -> None:
    config = model.config
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)


def _write_tokenizer(writer: gguf.GGUFWriter) -> None:
    tokenizer = byte_tokenizer()
    tokens = [*tokenizer.convert_ids_to_tokens(range(len(tokenizer))), "he", "in"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<") else 1 for token in tokens])
    writer.add_token_merges(["h e", "i n"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_chat_template(TEMPLATE)
