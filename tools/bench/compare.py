#!/usr/bin/env python3
"""Penstock beside PyTorch on the same cores, in turn, in one run: tokens per second and share of the sgemm rate.

    tools/bench/compare.py --build build/demo --torch python3 [--torch /usr/bin/python3] [--rounds 3] [--steps 5]

Every round runs ours, then each peer as it is (eager) and, where it can, compiled; figures are medians over rounds. OPENBLAS_* are
unset for all. Shapes: A is 6 layers, 6 heads, width 384, T 256, vocabulary 256, 8 microbatches of 4; B has vocabulary 50304 and one
microbatch. Peers are in tools/bench/peer.
"""
import argparse, json, os, statistics, subprocess, sys

HERE = os.path.dirname(os.path.abspath(__file__))
SHAPES = {"A": ["--vocab", "256", "--microbatches", "8"], "B": ["--vocab", "50304", "--microbatches", "1"]}
CASES = [("A", 1, 1), ("A", 1, 2), ("B", 1, 1), ("B", 1, 2), ("A", 2, 1)]  # shape, stages, threads of each


def run(command, timeout):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode != 0:
        return None
    return done.stdout


def last_json(text):
    for line in reversed((text or "").splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    return {}


def sgemm(build, threads):
    """The best 1024-cubed rate of our kernels and OpenBLAS, as bench_sgemm's last line has it."""
    text = run([os.path.join(build, "bench_sgemm"), "--threads", str(threads)], 120) or ""
    numbers = [float(word) for line in text.splitlines() if "best" in line for word in line.split() if word.replace(".", "", 1).isdigit()]
    return numbers[-1] if numbers else float("nan")


def ours(build, shape, stages, threads, steps):
    return last_json(run([os.path.join(build, "bench_train"), *SHAPES[shape], "--stages", str(stages), "--threads", str(threads),
                          "--steps", str(steps)], 600))


def peer(python, shape, stages, threads, steps, compiled):
    command = [python, os.path.join(HERE, "peer", "gpt_torch.py"), *SHAPES[shape], "--threads", str(threads), "--steps", str(steps)]
    if stages > 1:
        command += ["--pipeline"]
    if compiled:
        command += ["--compile", "default"]
    return last_json(run(command, 400))


def middle(values):
    values = [v for v in values if v == v and v]
    return statistics.median(values) if values else float("nan")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/demo", help="directory that holds bench_train and bench_sgemm")
    parser.add_argument("--torch", action="append", default=[], help="a Python that has torch; may be given again")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--compile", action="store_true", help="also torch.compile")
    parser.add_argument("--cases", default="", help="such as A/1/2,B/1/1: shape/stages/threads; all when left out")
    args = parser.parse_args()
    wanted = [tuple(int(x) if x.isdigit() else x for x in case.split("/")) for case in args.cases.split(",") if case] or CASES
    print(f"{'case':10} {'who':28} {'tokens/s':>9} {'GFLOP/s':>8} {'of sgemm':>8} {'ours/it':>8}  note")
    for shape, stages, threads in wanted:
        rows, rates = {}, []
        for _ in range(args.rounds):
            rates.append(sgemm(args.build, stages * threads))
            one = ours(args.build, shape, stages, threads, args.steps)
            rows.setdefault("penstock", []).append((one.get("tokens_per_s"), one))
            for python in args.torch:
                for compiled in ([False, True] if args.compile and stages == 1 else [False]):
                    one = peer(python, shape, stages, threads, args.steps, compiled)
                    name = f"torch {one.get('torch', '?')}{' compiled' if compiled else ''}"
                    rows.setdefault(name, []).append((one.get("tokens_per_second"), one))
        rate, base = middle(rates), middle([r[0] for r in rows["penstock"]])
        for name, figures in rows.items():
            tokens = middle([f[0] or float("nan") for f in figures])
            first = figures[0][1]
            gflops = middle([f[1].get("gflops", float("nan")) for f in figures]) if name == "penstock" else float("nan")
            note = f"sgemm {rate:.0f} GFLOP/s, bubble {first.get('bubble', 0):.3f}" if name == "penstock" else \
                f"its sgemm {first.get('sgemm_gflops', '?')}, cpu_share {first.get('cpu_share', '?')}"
            print(f"{shape}/{stages}/{threads:<6} {name:28} {tokens:9.0f} {gflops:8.1f} {gflops / rate:8.2f} {base / tokens:8.2f}  {note}")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
