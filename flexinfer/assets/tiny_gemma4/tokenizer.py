"""The byte-level tokenizer: 16 special tokens, then the 256 bytes, so no text is unknown."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

PAD, EOS, BOS, UNK = "<pad>", "<eos>", "<bos>", "<unk>"
TURN, END_TURN, TOOL_RESPONSE = "<|turn>", "<turn|>", "<|tool_response>"
SPECIALS = (
    *(PAD, EOS, BOS, UNK, TURN, END_TURN, TOOL_RESPONSE, "<mask>"),
    *(f"<unused{i}>" for i in range(8)),
)
EOS_IDS = [SPECIALS.index(token) for token in (EOS, END_TURN, TOOL_RESPONSE)]
VOCAB_SIZE = len(SPECIALS) + 256

# Gemma-4's turns: a leading system message is a turn of its own, `assistant` is called `model`,
# and contents (text, or a list of text parts) are trimmed.
CHAT_TEMPLATE = """\
{{ bos_token }}
{%- for message in messages -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {%- if role not in ['system', 'user', 'model'] -%}
        {{ raise_exception('unknown role ' + role) }}
    {%- endif -%}
    {{ '<|turn>' + role + '\\n' }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- else -%}
        {%- for part in message['content'] -%}
            {{ part['text'] | trim }}
        {%- endfor -%}
    {%- endif -%}
    {{ '<turn|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<|turn>model\\n' }}
{%- endif -%}
"""


def byte_symbols() -> list[str]:
    """Return the printable stand-in of each byte 0..255 (GPT-2's table, as ByteLevel uses it)."""
    kept = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = iter(range(256, 512))
    return [chr(byte) if byte in kept else chr(next(moved)) for byte in range(256)]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Make the tokenizer: bytes one by one, `<bos>` in front, Gemma-4's chat turns."""
    symbols = [*SPECIALS, *byte_symbols()]
    core = Tokenizer(models.BPE({s: i for i, s in enumerate(symbols)}, [], unk_token=UNK))
    core.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A $B",
        special_tokens=[(BOS, SPECIALS.index(BOS))],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=EOS,
        bos_token=BOS,
        unk_token=UNK,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
        padding_side="left",
    )


def save_tokenizer(folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja into `folder`."""
    build_tokenizer().save_pretrained(folder)
