"""Frozen, validated settings: what a user may ask for, with the flag's name in every complaint."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from decimal import Decimal
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, get_args

from flexinfer.errors import OutOfRange, UsageError

Dtype = Literal["auto", "bfloat16", "float16", "float32"]
Device = Literal["auto", "cpu", "cuda"]
AttentionBackend = Literal["auto", "flex", "triton", "dense"]
LoadFormat = Literal["auto", "dummy"]
LoraMode = Literal["merged", "runtime"]
IsCorrection = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "none"]
ChatTemplate = Literal["auto", "grpo", "native", "none"]
Report = Callable[[str, int, int], None]
"""Progress of long work: (what is being done, units done, units in all; 0 where unknown)."""

_UNITS = {"": 1} | {
    letter + binary: (1024 if binary else 1000) ** power
    for power, letter in enumerate("kmgt", start=1)
    for binary in ("", "ib")
}
MOST = 2**63 - 1
"""The largest size and the largest seed: what an int64 holds."""
SCALES = (1e-6, 1e6)
"""Bounds of temperature and repetition penalty: both at once leave logits up to 1e26 finite in
fp32, and 1e-6 is what checkpoints give that want to be nearly greedy."""


def quiet(stage: str, done: int, total: int) -> None:
    """Report progress to nobody."""


def parse_size(text: str, flag: str) -> int:
    """Read `8GiB`, `512MiB`, `4k` or a plain whole number; KiB, MiB, GiB and TiB are binary."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower(), re.ASCII)
    unit = match.group(2) if match else ""
    unit = unit if unit in _UNITS else unit.removesuffix("b")
    if match is None or unit not in _UNITS:
        raise UsageError(f"{flag} {text!r} is not a size", hint="write it like 8GiB, 512MiB or 4k")
    size = Decimal(match.group(1)) * _UNITS[unit]
    if size > MOST:
        raise UsageError(f"{flag} {text!r} is too large", hint="2**63 - 1 is the largest size")
    if not unit and size != int(size):
        raise UsageError(f"{flag} {text!r} is not a whole number", hint="or give a unit: 1.5k")
    return int(size)


def _require(ok: bool, flag: str, value: object, allowed: str) -> None:
    """Raise a UsageError that names the flag, the value and what is allowed."""
    if not ok:
        raise UsageError(f"{flag} is {value!r}; allowed: {allowed}")


def _check_seed(seed: int) -> None:
    """Raise unless `seed` is one that a request may bring too; none is ever wrapped around."""
    _require(0 <= seed <= MOST, "--seed", seed, "0 to 2**63 - 1")


def _one_of(flag: str, value: str, choices: Any) -> None:
    """Raise unless `value` is one of a Literal's values."""
    _require(value in get_args(choices), flag, value, ", ".join(get_args(choices)))


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which weights, in which form; `model` is an alias, hub id, folder or `.gguf` file."""

    model: str
    load_format: LoadFormat = "auto"
    adapter: str | None = None
    lora_mode: LoraMode | None = None
    load_in_4bit: bool = False
    dtype: Dtype = "auto"
    device: Device = "auto"
    chat_template: ChatTemplate = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every choice."""
        _require(
            bool(self.model.strip()),
            "--model",
            self.model,
            "an alias, a hub id, a folder or a .gguf file",
        )
        _one_of("--load-format", self.load_format, LoadFormat)
        if self.lora_mode is not None:
            _one_of("--lora-mode", self.lora_mode, LoraMode)
        _one_of("--dtype", self.dtype, Dtype)
        _one_of("--device", self.device, Device)
        _one_of("--chat-template", self.chat_template, ChatTemplate)
        _check_seed(self.seed)


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """How the engine runs; None means "decide from the model, the work and the device, and say so".

    `max_seq_length` counts prompt and new tokens; `page_size` is in tokens; `kv_memory` is in bytes
    and counts reserved pages too; `prefill_tokens` is the token budget of one prefill step.
    """

    max_batch_size: int = 64
    max_seq_length: int | None = None
    page_size: int | None = None
    kv_memory: int | None = None
    prefill_tokens: int = 16384
    cuda_graphs: bool | None = None
    attention: AttentionBackend = "auto"
    fa4_prefill: bool | None = None
    prefill_kernel_options: Mapping[str, Any] = field(default_factory=dict)
    decode_kernel_options: Mapping[str, Any] = field(default_factory=dict)
    batch_invariant: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        """Check ranges."""
        _require(self.max_batch_size >= 1, "--max-batch-size", self.max_batch_size, "1 or more")
        _require(
            self.max_seq_length is None or self.max_seq_length >= 2,
            "--max-seq-length",
            self.max_seq_length,
            "2 or more",
        )
        power = self.page_size is None or (
            self.page_size >= 8 and self.page_size & (self.page_size - 1) == 0
        )
        _require(power, "--page-size", self.page_size, "a power of two, 8 or more")
        _require(
            self.kv_memory is None or self.kv_memory > 0,
            "--kv-memory",
            self.kv_memory,
            "more than 0 bytes",
        )
        _require(self.prefill_tokens >= 1, "--prefill-tokens", self.prefill_tokens, "1 or more")
        _one_of("--attention", self.attention, AttentionBackend)
        _check_seed(self.seed)


class _Rule(NamedTuple):
    """What a sampling parameter may be: its type, a test of its value, and both in words."""

    kind: type
    ok: Callable[[Any], bool]
    allowed: str


_RULES: Mapping[str, _Rule] = {
    "max_new_tokens": _Rule(
        Integral, lambda v: 1 <= v < 2**31, f"1 to {2**31 - 1}, in whole numbers"
    ),
    "temperature": _Rule(
        Real, lambda v: v == 0 or SCALES[0] <= v <= SCALES[1], "0 (greedy), or 1e-6 to 1e6"
    ),
    "top_p": _Rule(Real, lambda v: 0 < v <= 1, "more than 0, at most 1 (1 is off)"),
    "top_k": _Rule(
        Integral, lambda v: -1 <= v < 2**31, "0 or -1 (off), or 1 and more, in whole numbers"
    ),
    "min_p": _Rule(Real, lambda v: 0 <= v <= 1, "0 (off) to 1"),
    "repetition_penalty": _Rule(
        Real, lambda v: SCALES[0] <= v <= SCALES[1], "1e-6 to 1e6 (1 is off)"
    ),
    "stop": _Rule(
        Sequence,
        lambda v: not isinstance(v, str) and all(isinstance(s, str) and s for s in v),
        "non-empty strings",
    ),
    "n": _Rule(Integral, lambda v: 1 <= v <= 2**16, "1 to 65536"),
    "seed": _Rule(Integral, lambda v: 0 <= v <= MOST, "0 to 2**63 - 1"),
}


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request is sampled.

    Temperature 0 is greedy; top_k 0 (or -1), top_p 1 and min_p 0 are off.
    """

    max_new_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop: Sequence[str] = ()
    ignore_eos: bool = False
    n: int = 1
    logprobs: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        """Check types and ranges, raising OutOfRange; `top_k` -1 is kept as 0."""
        for name, (kind, ok, allowed) in _RULES.items():
            value = getattr(self, name)
            absent = value is None and name == "seed"
            if not absent and (
                isinstance(value, bool) or not isinstance(value, kind) or not ok(value)
            ):
                raise OutOfRange(name, value, allowed)
        object.__setattr__(self, "top_k", max(self.top_k, 0))
        object.__setattr__(self, "stop", tuple(self.stop))


def resolve_sampling(
    given: Mapping[str, Any], generation_config: Mapping[str, Any]
) -> SamplingParams:
    """Fill what `given` leaves out (absent or None) from a generation_config, else greedy.

    A generation_config counts only where it asks for sampling (`do_sample`); else temperature is 0.
    Raises UsageError, which names the option, or the file and its key where that is to blame.
    """
    defaults: dict[str, Any] = {}
    if generation_config.get("do_sample"):
        sampled = ("temperature", "top_p", "top_k", "min_p")
        defaults = {"temperature": 1.0} | {
            k: v for k in sampled if (v := generation_config.get(k)) is not None
        }
    for name in ("repetition_penalty", "max_new_tokens"):
        if generation_config.get(name) is not None:
            defaults[name] = generation_config[name]
    known = {f.name for f in fields(SamplingParams)}
    if unknown := sorted(set(given) - known):
        raise UsageError(
            f"unknown sampling option {unknown[0]!r}", hint="known: " + ", ".join(sorted(known))
        )
    chosen = {k: v for k, v in given.items() if v is not None}
    try:
        return SamplingParams(**defaults | chosen)
    except OutOfRange as error:
        if error.name in chosen:
            raise
        raise UsageError(
            f"the checkpoint's generation_config.json: {error.said(error.name)}",
            hint=f"give {error.flag}, or mend the file",
        ) from error
