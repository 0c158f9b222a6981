#!/usr/bin/env python3
"""Trains a small byte-level GPT-2 on a text file with PyTorch on CPU; prints one JSON line.

4 layers, 4 heads, width 128, context 64, batch 12, tied head, no dropout. The last tenth of the file is held out and
measured whole at the end: windows that do not overlap, each token counted once.
"""
import argparse
import json
import math
import time

import common

LAYERS, HEADS, WIDTH, SEQUENCE, VOCAB, BATCH = 4, 4, 128, 64, 256, 12
PEAK, FINAL, WARMUP = 1e-3, 1e-4, 100


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text")
    parser.add_argument("--steps", type=int, default=2000)
    common.add_common_options(parser)
    args = parser.parse_args()
    if args.steps < 1:
        parser.error(f"--steps wants at least 1, saw {args.steps}")
    return args


args = parse()
common.reexec(args.malloc, args.threads)

import torch  # noqa: E402  (after the new process has its allocator and thread settings)
import torch.nn.functional as F  # noqa: E402


def learning_rate(step):
    if step < WARMUP:
        return PEAK * (step + 1) / WARMUP
    done = (step - WARMUP) / max(1, args.steps - WARMUP)
    return FINAL + 0.5 * (PEAK - FINAL) * (1 + math.cos(math.pi * done))


@torch.no_grad()
def validation_loss(model, ids, rows=64):
    """Mean cross-entropy over every token of ids but the first; the last window is filled with ignored targets."""
    n = ids.numel() - 1
    fill = -n % SEQUENCE
    x = F.pad(ids[:-1], (0, fill)).view(-1, SEQUENCE)
    y = F.pad(ids[1:], (0, fill), value=-100).view(-1, SEQUENCE)
    total = 0.0
    for xs, ys in zip(x.split(rows), y.split(rows)):
        total += F.cross_entropy(model(xs).flatten(0, 1), ys.flatten(), reduction="sum").item()
    return total / n, n


def main():
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    with open(args.text, "rb") as f:
        ids = torch.tensor(list(f.read()), dtype=torch.long)
    cut = ids.numel() * 9 // 10
    train, valid = ids[:cut], ids[cut:]
    if min(train.numel(), valid.numel()) < SEQUENCE + 1:
        raise SystemExit(f"{args.text}: {ids.numel()} bytes, wanted at least {10 * (SEQUENCE + 1)}")

    model = common.GPT(LAYERS, HEADS, WIDTH, SEQUENCE, VOCAB, tied=True)
    optimizer, kind = common.make_optimizer(model, PEAK, (0.9, 0.99), 0.1)
    loss_of = common.compiled(common.WithLoss(model), args.compile)
    offsets = torch.arange(SEQUENCE)
    seconds = []
    share = None
    for step in range(args.steps):
        if step == min(20, args.steps - 1):  # the first steps warm up, or compile
            share = common.CpuShare()
        start = time.perf_counter()
        at = torch.randint(train.numel() - SEQUENCE, (BATCH, 1)) + offsets
        loss = loss_of(train[at], train[at + 1])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=args.zero_grad == "none")
        seconds.append(time.perf_counter() - start)

    cpu_share, _ = share.read()
    valid_loss, valid_tokens = validation_loss(model, valid)
    typical = common.median(seconds)
    print(json.dumps(dict(
        valid_loss=round(valid_loss, 5), valid_tokens=valid_tokens, last_train_loss=round(loss.item(), 4),
        ms_per_step=round(1e3 * typical, 3), tokens_per_second=round(BATCH * SEQUENCE / typical, 1),
        cpu_share=round(cpu_share, 3),
        train_seconds=round(sum(seconds), 1), steps=args.steps, seed=args.seed, compile=args.compile, optimizer=kind,
        sgemm_gflops=round(common.sgemm_gflops(), 1), **common.process_facts())))


if __name__ == "__main__":
    main()
