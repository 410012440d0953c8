"""Settings that not every back end has a use for."""

from __future__ import annotations

from dataclasses import dataclass

from flexinfer.config import EngineConfig, LoraMode
from flexinfer.errors import UsageError

ENGINES_OWN = (
    "attention",
    "fa4_prefill",
    "prefill_kernel_options",
    "decode_kernel_options",
    "batch_invariant",
)
"""Fields of EngineConfig that mean nothing but to this package's own engine."""
OF_MODULE = ("hf", "hf-cb")
"""Back ends that run the Hugging Face module's own forward."""
LORA_MODES: dict[str, tuple[LoraMode | None, ...]] = {
    "flex": (None, "merged", "runtime"),
    "hf": (None, "runtime"),
    "hf-cb": (None, "runtime"),
    "vllm": (None, "merged"),
}
"""How back ends over a trainer's module bring its adapter in."""
COMPILE_MODES = (
    "default",
    "reduce-overhead",
    "max-autotune",
    "max-autotune-no-cudagraphs",
)
"""What torch.compile knows."""


@dataclass(frozen=True, kw_only=True)
class RolloutOptions:
    """How a Hugging Face module generates; None leaves it to transformers.

    `attn_impl` is a name that set_attn_implementation takes, as flash_attention_4. `persistent_cb`
    keeps continuous batching's manager, with its cache and graphs, from call to call.
    `compile_mode` and `compile_dynamic` are torch.compile's; one of them turns it on.
    """

    attn_impl: str | None = None
    persistent_cb: bool = False
    compile_mode: str | None = None
    compile_dynamic: bool | None = None

    def __post_init__(self) -> None:
        """Check values; raises UsageError."""
        if self.attn_impl is not None and not self.attn_impl.strip():
            raise UsageError("--attn-impl is empty", hint="as in sdpa or flash_attention_4")
        if self.compile_mode is not None and self.compile_mode not in COMPILE_MODES:
            known = ", ".join(COMPILE_MODES)
            raise UsageError(f"--compile-mode is {self.compile_mode!r}; allowed: {known}")

    @property
    def compiles(self) -> bool:
        """Whether the module's forward is compiled for decoding."""
        return self.compile_mode is not None or self.compile_dynamic is not None

    def check(self, backend: str) -> None:
        """Raise UsageError for an option that back end `backend` cannot carry out."""
        given = {
            "--attn-impl": (self.attn_impl is not None, OF_MODULE),
            "--persistent-cb": (self.persistent_cb, ("hf-cb",)),
            "--compile-mode": (self.compile_mode is not None, OF_MODULE),
            "--compile-dynamic": (self.compile_dynamic is not None, OF_MODULE),
        }
        for flag, (is_given, takers) in given.items():
            if is_given and backend not in takers:
                raise UsageError(
                    f"{flag} is for {' and '.join(takers)}, not for {backend}",
                    hint="leave it out, or take another back end",
                )


def check_lora_mode(backend: str, asked: LoraMode | None) -> None:
    """Raise UsageError where a back end over a trainer's module brings its adapter in otherwise."""
    takes = LORA_MODES[backend]
    if asked not in takes:
        raise UsageError(
            f"--lora-mode {asked} means nothing to {backend}: its adapter is {takes[-1]}",
            hint="leave --lora-mode out",
        )


def check_own(backend: str, config: EngineConfig) -> None:
    """Raise UsageError for a setting that means nothing but to this package's own engine."""
    for name in ENGINES_OWN:
        if vars(config)[name] != vars(EngineConfig())[name]:
            flag = name.replace("_", "-")
            raise UsageError(f"--{flag} means nothing to {backend}", hint="leave it out")
