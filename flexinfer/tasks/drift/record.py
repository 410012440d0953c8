"""Puts engines through everything that is checked afterwards, and keeps what they answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from flexinfer.config import EngineConfig, Report, SamplingParams
from flexinfer.engine.engine import Engine
from flexinfer.engine.requests.outputs import Request, RequestOutput
from flexinfer.errors import RequestError, UsageError
from flexinfer.tasks.drift.config import DriftConfig
from flexinfer.tasks.drift.fingerprint import inference_sha, weights_sha
from flexinfer.tasks.drift.gaps import Answers, Rollout
from flexinfer.tasks.drift.perturb import moved, without_effect
from flexinfer.tasks.drift.prompts import Prompt, batch_sizes, batches, effect_probe
from flexinfer.tasks.drift.rig import Rig
from flexinfer.tasks.drift.survival import Survival, survivals
from flexinfer.tasks.reference.samples import Checked
from flexinfer.weights.adapters.adapter import Adapter
from flexinfer.weights.adapters.choice import AdapterChoice
from flexinfer.weights.load import LoadedModel


@dataclass(frozen=True, kw_only=True)
class State:
    """An engine after a refresh: the sha256 of its inference weights, and its rollout."""

    weights: str
    rollout: Rollout

    @property
    def sha(self) -> str:
        """sha256 over both."""
        return inference_sha(self.weights, self.rollout)


@dataclass(frozen=True, kw_only=True)
class Record:
    """What the engines answered; every rollout is of the same prompts, in one batch or as said.

    `first` under the adapter as given, `again` after it was read anew, `last` after the last
    cycle's move, `restored` after the adapter was brought back. `effect` holds the answers to a
    probe of its own under the adapter as given, and without effect. `repeats` are hashes of
    inference weights after refreshing to the same adapter 1, 2 and 3 times. `fresh` is a new
    engine's under the last move, `eager` one's without CUDA graphs (None: there are none).
    `batched` holds the answers in batches of each size, `invariant` those of an engine that was
    told to be batch-invariant (None: not where bits are not to be had, or the first one was).
    `adapter` and `moved` are what was loaded.
    """

    adapter: Adapter
    moved: Adapter
    mode: str
    adapter_sha: str | None
    notices: tuple[str, ...]
    first: State
    again: State
    last: State
    restored: State
    effect: tuple[Rollout, Rollout]
    repeats: tuple[str, ...]
    survivals: tuple[Survival, ...]
    batched: Mapping[int, Answers]
    fresh: Rollout
    eager: Rollout | None
    invariant: Mapping[int, Answers] | None


@dataclass(frozen=True, kw_only=True)
class Recorder:
    """The work that is given to engines over one loaded model."""

    loaded: LoadedModel
    engine: EngineConfig
    config: DriftConfig
    prompts: Sequence[Prompt]
    rig: Rig
    report: Report
    notice: Callable[[str], None]

    def record(self) -> Record:
        """Run everything; raises RequestError where an engine cannot serve a prompt."""
        with self.rig.open(self.loaded, self.engine, self.report) as engine:
            held = engine.machinery.weights
            adapter, sha, notices = held.adapter, engine.adapter_sha, engine.notices
            mode = held.mode
            assert adapter is not None
            assert mode is not None
            for line in notices:
                self.notice(line)
            first = self._state(engine)
            engine.refresh()
            again = self._state(engine)
            kept = survivals(engine, self.loaded.module)
            batched = self._batched(engine)
            effect = self._effect(engine, adapter)
            target, repeats = self._cycles(engine, adapter)
            last = self._state(engine)
            engine.refresh(adapter)
            restored = self._state(engine)
        fresh, eager, invariant = self._fresh(target), self._eager(adapter), self._invariant()
        return Record(
            adapter=adapter, moved=target, mode=mode, adapter_sha=sha, notices=notices, first=first,
            again=again, last=last, restored=restored, effect=effect, repeats=repeats,
            survivals=kept, batched=batched, fresh=fresh, eager=eager, invariant=invariant,
        )  # fmt: skip

    def _effect(self, engine: Engine, adapter: Adapter) -> tuple[Rollout, Rollout]:
        """Roll out a probe of its own under the adapter as given, and without effect."""
        prompts, new = effect_probe(engine.max_seq_length, engine.vocab_size, self.config.seed)
        given = roll(engine, prompts, new)
        engine.refresh(without_effect(adapter))
        return given, roll(engine, prompts, new)

    def _cycles(self, engine: Engine, adapter: Adapter) -> tuple[Adapter, tuple[str, ...]]:
        """Move and refresh again and again; return the last move, and its repeats' hashes.

        Raises UsageError where the noise is lost in the adapter's dtype.
        """
        target = adapter
        for cycle in range(self.config.cycles):
            self.report("perturb and refresh", cycle, self.config.cycles)
            target = moved(adapter, self.config.noise_scale, self.config.seed + cycle)
            engine.refresh(target)
            roll(engine, self.prompts, 1)
        if target.sha() == adapter.sha():
            raise UsageError(
                f"--noise-scale {self.config.noise_scale:g} moves no bit of the adapter",
                hint="raise --noise-scale: the cycles would prove nothing",
            )
        repeats = [weights_sha(engine, self.loaded.module)]
        for _ in range(2):
            engine.refresh(target)
            repeats.append(weights_sha(engine, self.loaded.module))
        return target, tuple(repeats)

    def _state(self, engine: Engine) -> State:
        """Roll out, and hash the weights it was done with."""
        rollout = roll(engine, self.prompts, self.config.max_new_tokens)
        return State(weights=weights_sha(engine, self.loaded.module), rollout=rollout)

    def _batched(self, engine: Engine) -> dict[int, Answers]:
        """Roll out in batches of every size up to the engine's largest."""
        found, sizes = {}, batch_sizes(self.engine.max_batch_size)
        for done, size in enumerate(sizes):
            self.report(f"batches of {size}", done, len(sizes))
            found[size] = self._mixed(engine, size)
        return found

    def _mixed(self, engine: Engine, size: int) -> Answers:
        """Roll out in batches of one size; return what every row of a known prompt answered."""
        new, seed = self.config.max_new_tokens, self.config.seed
        found: list[tuple[int, Checked]] = []
        for rows in batches(self.prompts, size, new, engine.vocab_size, seed):
            outputs = engine.generate([_request(row.ids, row.new_tokens) for row in rows])
            found += [
                (row.prompt, _checked(output))
                for row, output in zip(rows, outputs, strict=True)
                if row.prompt is not None
            ]
        return Answers(*zip(*found, strict=True))

    def _fresh(self, target: Adapter) -> Rollout:
        """Roll out with a new engine over the same module that is built with the moved adapter."""
        assert self.loaded.adapter is not None
        choice = AdapterChoice(target, self.loaded.adapter.mode, self.loaded.adapter.seed)
        with self.rig.open(
            replace(self.loaded, adapter=choice), self.engine, self.report
        ) as engine:
            return roll(engine, self.prompts, self.config.max_new_tokens)

    def _eager(self, adapter: Adapter) -> Rollout | None:
        """Roll out with an engine that captures no CUDA graphs, where the first one did."""
        device = next(self.loaded.module.parameters()).device
        if device.type != "cuda" or self.engine.cuda_graphs is False:
            return None
        config = replace(self.engine, cuda_graphs=False)
        with self.rig.open(self.loaded, config, self.report) as engine:
            engine.refresh(adapter)
            return roll(engine, self.prompts, self.config.max_new_tokens)

    def _invariant(self) -> dict[int, Answers] | None:
        """Roll out in batches with --batch-invariant, in fp32 on a CPU."""
        weight = next(self.loaded.module.parameters())
        exact = weight.device.type == "cpu" and weight.dtype == torch.float32
        if not exact or self.engine.batch_invariant or self.engine.attention == "flex":
            return None
        config = replace(self.engine, batch_invariant=True)
        with self.rig.open(self.loaded, config, self.report) as engine:
            return self._batched(engine)


def roll(engine: Engine, prompts: Sequence[Prompt], new_tokens: int) -> Rollout:
    """Decode greedily, all prompts in one call; raises RequestError where one cannot be served."""
    outputs = engine.generate([_request(prompt, new_tokens) for prompt in prompts])
    return tuple(_checked(output) for output in outputs)


def _request(prompt: Prompt, new_tokens: int) -> Request:
    """Ask for a greedy sample of exactly that many tokens."""
    sampling = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True, logprobs=True)
    return Request(prompt_token_ids=prompt, sampling=sampling)


def _checked(output: RequestOutput) -> Checked:
    """Return the sample of an output; raises RequestError where there is none."""
    if output.error is not None:
        raise RequestError(f"a prompt of {len(output.prompt_token_ids)} tokens: {output.error}")
    sample = output.outputs[0]
    return Checked(output.prompt_token_ids, sample.token_ids, sample.policy_logprobs)
