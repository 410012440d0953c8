"""A model, tokenizer and engine without torch, for whatever stands between prompt and record.

A token is a byte. The answer to a prompt is the prompt in capitals, then EOS. Requests finish in
reverse order, except that words in a prompt direct the play: `first` answers at once, `crash`
raises, `interrupt` raises KeyboardInterrupt, `wait` says so on stderr and sleeps until a signal
comes; the last three come after all other requests.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from flexinfer.config import EngineConfig, ModelOptions, Report
from flexinfer.engine.requests.outputs import Completion, EngineStats, Request, RequestOutput

BOS, EOS = 256, 257
LONGEST = 512


class ByteTokenizer:
    """One token a byte, EOS beside them; no BOS is added."""

    bos_token = bos_token_id = None
    chat_template = "own"

    def __call__(
        self, text: str, *, add_special_tokens: bool, verbose: bool
    ) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode())}

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> str:
        return "".join(f"<{message['role']}>{message['content']}" for message in messages)

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return bytes(i for i in token_ids if i < BOS).decode("utf-8", errors="replace")


@dataclass
class FakeEngine:
    """Answers with capitals; `closed` tells whether it was left."""

    loaded: Any
    config: EngineConfig
    stats: EngineStats = field(default_factory=EngineStats)
    notices: tuple[str, ...] = ("device: fake", "attention: fake (there is no other)")
    closed: bool = False
    compile_s: float = 0.0

    @property
    def tokenizer(self) -> ByteTokenizer:
        return self.loaded.tokenizer

    @property
    def model_name(self) -> str:
        return self.loaded.name

    @property
    def eos_ids(self) -> frozenset[int]:
        return self.loaded.eos_ids

    def __enter__(self) -> FakeEngine:
        return self

    def __exit__(self, *failure: object) -> None:
        self.closed = True

    def stream(
        self, requests: Sequence[Request], on_token: Callable[[int, int, int], None] | None = None
    ) -> Iterator[RequestOutput]:
        self.stats.compile_s += self.compile_s
        order = sorted(enumerate(requests), key=lambda pair: self._rank(pair[1], pair[0]))
        for index, request in order:
            yield self._answer(index, request, on_token)

    def _rank(self, request: Request, index: int) -> tuple[int, int]:
        text = self._text(request)
        late = any(word in text for word in ("crash", "interrupt", "wait"))
        return (2 if late else 0 if "first" in text else 1, -index)

    def _text(self, request: Request) -> str:
        return self.tokenizer.decode(list(request.prompt_token_ids), skip_special_tokens=True)

    def _answer(
        self, index: int, request: Request, on_token: Callable[[int, int, int], None] | None
    ) -> RequestOutput:
        text, ids = self._text(request), request.prompt_token_ids
        assert self.config.max_seq_length is not None
        if len(ids) >= self.config.max_seq_length:
            error = f"the prompt has {len(ids)} tokens"
            return RequestOutput(index=index, prompt_token_ids=ids, error=error)
        if "crash" in text:
            raise RuntimeError("the engine fell over")
        if "interrupt" in text:
            raise KeyboardInterrupt
        if "wait" in text:
            print("waiting", file=sys.stderr, flush=True)
            time.sleep(60)
        samples = tuple(
            self._sample(text.upper(), request, lambda token, n=n: on_token(index, n, token))
            for n in range(request.sampling.n)
        )
        return RequestOutput(index=index, prompt_token_ids=ids, outputs=samples)

    def _sample(self, text: str, request: Request, on_token: Callable[[int], None]) -> Completion:
        params, tokens = request.sampling, []
        reason, stop = "length", None
        assert self.config.max_seq_length is not None
        room = self.config.max_seq_length - len(request.prompt_token_ids)
        for token in [*text.encode(), EOS][: min(params.max_new_tokens, room)]:
            tokens.append(token)
            on_token(token)
            whole = self.tokenizer.decode(tokens, skip_special_tokens=True)
            found = [s for s in params.stop if s in whole]
            if token == EOS or found:
                reason, stop = "stop", found[0] if found else EOS
                break
        whole = self.tokenizer.decode(tokens, skip_special_tokens=True)
        if isinstance(stop, str):
            whole = whole[: whole.index(stop)]
        logprobs = tuple(-0.5 for _ in tokens)
        return Completion(
            text=whole, token_ids=tuple(tokens), logprobs=logprobs, policy_logprobs=logprobs,
            finish_reason=reason, stop=stop,
        )  # fmt: skip


@dataclass
class Stage:
    """What was asked of the fakes."""

    generation_config: Mapping[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=lambda: {"max_position_embeddings": LONGEST})
    load_error: Exception | None = None
    compile_s: float = 0.0
    options: list[ModelOptions] = field(default_factory=list)
    engines: list[FakeEngine] = field(default_factory=list)

    def load(self, options: ModelOptions, report: Report) -> Any:
        self.options.append(options)
        if self.load_error is not None:
            raise self.load_error
        config = SimpleNamespace(model_type="fake", to_dict=lambda: self.config)
        return SimpleNamespace(
            name=options.model,
            module=SimpleNamespace(config=config, parameters=lambda: ()),
            tokenizer=ByteTokenizer(),
            generation_config=self.generation_config,
            eos_ids=frozenset({EOS}),
            notices=("device: fake",),
        )

    def open(self, loaded: Any, config: EngineConfig, report: Report) -> FakeEngine:
        report("capture", 1, 1)
        self.engines.append(FakeEngine(loaded, config, compile_s=self.compile_s))
        return self.engines[-1]


def install(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    """Put the fakes in place."""
    from flexinfer.tasks.generate import run

    patch.setattr(run, "model_name", lambda model: model)
    patch.setattr(run, "load_model", stage.load)
    patch.setattr(run, "open_engine", stage.open)
    patch.setattr(run, "made_with", lambda loaded, engine: {"dtype": "fake"})


def main() -> None:
    """Run the command line over the fakes, in a process of its own."""
    install(pytest.MonkeyPatch(), Stage())
    from flexinfer.__main__ import main as command_line

    command_line()


if __name__ == "__main__":
    main()
