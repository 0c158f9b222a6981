#!/usr/bin/env python3
"""Tokens per second of a PyTorch training step on CPU for a GPT-2-shaped model; prints one JSON line.

A step is: M microbatches forward and backward, then AdamW (and clipping where --clip is given). With --pipeline two
processes over gloo run the same step as a 1F1B pipeline, --threads threads each.
"""
import argparse
import json
import os
import tempfile
import time

import common


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("layers", 6), ("heads", 6), ("width", 384), ("sequence", 256), ("vocab", 256), ("micro", 4),
                          ("microbatches", 8), ("steps", 10), ("warmup", 3)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--tied", action="store_true")
    parser.add_argument("--clip", type=float, default=0.0, help="largest gradient norm; 0 leaves clipping out")
    parser.add_argument("--pipeline", action="store_true")
    common.add_common_options(parser)
    args = parser.parse_args()
    if args.pipeline and args.tied:
        parser.error("--pipeline and --tied: the two uses of a tied embedding lie in different processes")
    if args.pipeline and args.layers < 2:
        parser.error(f"--pipeline wants at least 2 layers, saw {args.layers}")
    return args


args = parse()
common.reexec(args.malloc, args.threads)

import torch  # noqa: E402  (after the new process has its allocator and thread settings)


def batches(n):
    shape = (n, args.micro * args.microbatches, args.sequence)
    return torch.randint(args.vocab, shape), torch.randint(args.vocab, shape)


def timed(run_step):
    """Runs warm-up and timed steps; returns seconds of each, minor page faults per step, CPU share."""
    x, y = batches(4)
    for i in range(args.warmup):
        run_step(x[i % 4], y[i % 4])
    faults, share = common.minor_faults(), common.CpuShare()
    seconds = []
    for i in range(args.steps):
        start = time.perf_counter()
        run_step(x[i % 4], y[i % 4])
        seconds.append(time.perf_counter() - start)
    return seconds, (common.minor_faults() - faults) / args.steps, share.read()


def report(seconds, faults, share, loss, optimizer, sgemm):
    tokens = args.micro * args.microbatches * args.sequence
    shape = {k: getattr(args, k) for k in ("layers", "heads", "width", "sequence", "vocab", "micro", "microbatches", "tied",
                                           "compile", "pipeline", "clip", "zero_grad", "steps")}
    print(json.dumps(dict(
        tokens_per_second=round(tokens / common.median(seconds), 1), best_tokens_per_second=round(tokens / min(seconds), 1),
        ms_per_step=round(1e3 * common.median(seconds), 2), loss=round(loss, 4), optimizer=optimizer,
        sgemm_gflops=[round(g, 1) for g in sgemm], minor_faults_per_step=round(faults),
        cpu_share=round(share[0], 3),
        tokens_per_cpu_second=None if args.pipeline else round(tokens * args.steps / share[1], 1), **shape, **common.process_facts())),
        flush=True)


def clip_whole_model(model):
    """Clips by the norm over all stages: each process adds its share of the squared sum."""
    grads = [p.grad for p in model.parameters()]
    square = torch.stack([g.norm() for g in grads]).square().sum()
    torch.distributed.all_reduce(square)
    factor = args.clip / (square.sqrt() + 1e-6)
    if factor < 1:
        torch._foreach_mul_(grads, float(factor))


def finish_step(model, optimizer):
    if args.clip > 0 and args.pipeline:
        clip_whole_model(model)
    elif args.clip > 0:
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=args.zero_grad == "none")


def single():
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    sgemm = [common.sgemm_gflops()]
    model = common.GPT(args.layers, args.heads, args.width, args.sequence, args.vocab, args.tied)
    optimizer, kind = common.make_optimizer(model, 3e-4, (0.9, 0.95), 0.1)
    loss_of = common.compiled(common.WithLoss(model), args.compile)
    last = [0.0]

    def run_step(x, y):
        total = 0.0
        for xs, ys in zip(x.split(args.micro), y.split(args.micro)):
            loss = loss_of(xs, ys)
            (loss / args.microbatches).backward()
            total += loss.detach()
        finish_step(model, optimizer)
        last[0] = float(total) / args.microbatches

    seconds, faults, share = timed(run_step)
    sgemm.append(common.sgemm_gflops())
    report(seconds, faults, share, last[0], kind, sgemm)


def pipeline_worker(rank, rendezvous):
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=2)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    sgemm = [common.sgemm_gflops()]
    front = args.layers // 2 + args.layers % 2  # the head is on the last stage, so it gets the smaller half
    model = common.GPT(front if rank == 0 else args.layers - front, args.heads, args.width, args.sequence, args.vocab,
                       first=rank == 0, last=rank == 1, total_layers=args.layers)
    optimizer, kind = common.make_optimizer(model, 3e-4, (0.9, 0.95), 0.1)
    stage = PipelineStage(common.compiled(model, args.compile), rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, args.microbatches, loss_fn=common.cross_entropy)
    last = [0.0]

    def run_step(x, y):
        losses = []
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y, losses=losses)
            last[0] = float(torch.stack(losses).detach().mean())
        finish_step(model, optimizer)

    seconds, faults, share = timed(run_step)
    dist.barrier()
    sgemm.append(common.sgemm_gflops())
    if rank == 1:
        report(seconds, faults, share, last[0], kind, sgemm)
    dist.barrier()
    dist.destroy_process_group()


def pipeline():
    import torch.multiprocessing as mp
    try:
        import torch.distributed.pipelining  # noqa: F401
    except ImportError:
        raise SystemExit(f"--pipeline: torch {torch.__version__} has no torch.distributed.pipelining")
    with tempfile.TemporaryDirectory() as directory:
        mp.start_processes(pipeline_worker, (os.path.join(directory, "rendezvous"),), nprocs=2, start_method="fork")


if __name__ == "__main__":
    pipeline() if args.pipeline else single()
