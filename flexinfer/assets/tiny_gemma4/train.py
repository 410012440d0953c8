"""Train tiny-gemma4 on a CPU: `python -m flexinfer.assets.tiny_gemma4.train --output DIR`.

Training stops as soon as the averaged weights answer `TARGET` percent of the validation sums
(held-out, but none of the 200 test sums) right. The model is therefore unfinished on purpose: it
leaves reinforcement learning something to improve. The seed fixes data and initial weights, and one
thread the order of sums; processors still differ in the last digits, so another machine may stop a
few checks earlier or later.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Iterable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, Gemma4ForCausalLM, PreTrainedTokenizerFast

from flexinfer.assets.tiny_gemma4.arithmetic import Problem, held_out
from flexinfer.assets.tiny_gemma4.data import IGNORED, Batch, training_steps
from flexinfer.assets.tiny_gemma4.model import build_model, save_model
from flexinfer.assets.tiny_gemma4.score import correct, percent
from flexinfer.assets.tiny_gemma4.tokenizer import build_tokenizer

TEST_SUMS, VALIDATION_SUMS, SAMPLES = 200, 500, 8
TARGET = 63.0
MAX_STEPS, WARMUP_STEPS, STEPS_PER_CHECK = 2000, 50, 5
LEARNING_RATE, MUON_RATE, WEIGHT_DECAY, CLIP = 3e-3, 12e-3, 0.1, 1.0
AVERAGING = 0.98


def backpropagate(model: Gemma4ForCausalLM, batches: Iterable[Batch]) -> float:
    """Add the gradient of the mean cross-entropy per answer token of all `batches`; return it."""
    tokens = sum(int((batch.labels_BT != IGNORED).sum()) for batch in batches)
    total = 0.0
    for ids_BT, labels_BT in batches:
        logits_BTV = model(input_ids=ids_BT, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(
            logits_BTV[:, :-1].flatten(0, 1),
            labels_BT[:, 1:].flatten(),
            ignore_index=IGNORED,
            reduction="sum",
        )
        torch.autograd.backward(loss / tokens)
        total += float(loss) / tokens
    return total


class Optimizer:
    """Muon for the matrices between embedding and head, AdamW for the rest, one warm-up."""

    def __init__(self, model: Gemma4ForCausalLM) -> None:
        """Split the parameters of `model` between the two."""
        self.model = model
        named = list(model.named_parameters())
        matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
        others = [p for name, p in named if p.ndim != 2 or "embed" in name]
        muon = torch.optim.Muon(matrices, MUON_RATE, WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw")
        adamw = torch.optim.AdamW(others, LEARNING_RATE, (0.9, 0.98), weight_decay=WEIGHT_DECAY)
        self.parts: tuple[torch.optim.Optimizer, ...] = (muon, adamw)
        self.warmups = [
            torch.optim.lr_scheduler.LinearLR(part, 1 / WARMUP_STEPS, total_iters=WARMUP_STEPS)
            for part in self.parts
        ]

    def step(self) -> None:
        """Clip the gradients, apply and clear them."""
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        for part, warmup in zip(self.parts, self.warmups, strict=True):
            part.step()
            part.zero_grad()
            warmup.step()


@torch.no_grad()
def update_average(averaged: Gemma4ForCausalLM, model: Gemma4ForCausalLM) -> None:
    """Move the running average a step towards the weights of `model`."""
    for average, parameter in zip(averaged.parameters(), model.parameters(), strict=True):
        average.lerp_(parameter, 1 - AVERAGING)


def train(seed: int, tokenizer: PreTrainedTokenizerFast) -> Gemma4ForCausalLM:
    """Train until the validation target or MAX_STEPS; return the averaged weights, fp32."""
    model = build_model(seed)
    averaged = copy.deepcopy(model)
    optimizer = Optimizer(model)
    validation = held_out(TEST_SUMS + VALIDATION_SUMS)[TEST_SUMS:]
    began = time.monotonic()
    for step, batches in enumerate(training_steps(tokenizer, seed), start=1):
        loss = backpropagate(model, batches)
        optimizer.step()
        update_average(averaged, model)
        if step % STEPS_PER_CHECK:
            continue
        right = percent(correct(averaged, tokenizer, validation))
        seconds = time.monotonic() - began
        print(f"step {step}  loss {loss:.3f}  right {right:.1f} %  {seconds:.0f} s", flush=True)
        if right >= TARGET or step >= MAX_STEPS:
            break
    return averaged


def report(folder: Path, tokenizer: PreTrainedTokenizerFast, test: list[Problem]) -> None:
    """Print how the stored model does on the test sums: greedy, by sign, raw, and sampled."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    greedy = correct(model, tokenizer, test)
    print(f"test sums, greedy:     {percent(greedy):.1f} %")
    for sign in "+-":
        signed = [n for n, (prompt, _) in zip(greedy, test, strict=True) if sign in prompt]
        print(f"  with {sign}               {percent(signed):.1f} %")
    print(f"as raw text:           {percent(correct(model, tokenizer, test, raw=True)):.1f} %")
    sampled = correct(model, tokenizer, test, samples=SAMPLES)
    print(f"sampled, each:         {100 * sum(sampled) / SAMPLES / len(test):.1f} %")
    print(f"sampled, best of {SAMPLES}:    {percent(sampled):.1f} %")


def main() -> None:
    """Train, write the folder, and print the accuracy of what was written."""
    parser = argparse.ArgumentParser(description="Train tiny-gemma4 and write its folder.")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = build_tokenizer()
    model = train(options.seed, tokenizer)
    options.output.mkdir(parents=True, exist_ok=True)
    save_model(model, options.output)
    report(options.output, tokenizer, held_out(TEST_SUMS))


if __name__ == "__main__":
    main()
