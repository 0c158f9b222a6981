"""What the PyTorch peers share: the GPT-2 model, the optimizer, allocator settings, and facts about the process.

Runs on torch 1.13 and later; what an older torch lacks is replaced by the nearest thing and named in the report.
"""
import glob
import math
import os
import resource
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

# glibc: never give memory back, never map a tensor by itself, grow the heap in big pieces.
GLIBC_KEEP = {
    "MALLOC_TRIM_THRESHOLD_": "-1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(256 << 20),
    "MALLOC_ARENA_MAX": "1",
}
JEMALLOC_KEEP = "background_thread:false,metadata_thp:auto,dirty_decay_ms:-1,muzzy_decay_ms:-1"


def library(allocator):
    return sorted(glob.glob(f"/usr/lib/*/lib{allocator}*.so.*"))


def malloc_choice(name):
    """What `auto` means here: jemalloc and tcmalloc keep the buffer of the logits, glibc maps it anew in each step."""
    if name != "auto":
        return name
    return next((a for a in ("jemalloc", "tcmalloc") if library(a)), "glibc")


def malloc_environment(name):
    """The environment that makes the process use allocator `name`, or SystemExit if it is not installed."""
    if name == "default":
        return {}
    if name == "glibc":
        return dict(GLIBC_KEEP)
    if name == "glibc-thp":
        return dict(GLIBC_KEEP, GLIBC_TUNABLES="glibc.malloc.hugetlb=1")
    found = library(name)
    if not found:
        raise SystemExit(f"--malloc {name}: no lib{name} in /usr/lib; install it or choose glibc")
    return {"LD_PRELOAD": found[0], "MALLOC_CONF": JEMALLOC_KEEP}


def openblas_core():
    """The OpenBLAS kernel set for this CPU. OpenBLAS 0.3.21 takes a CPU it does not know for a Prescott."""
    with open("/proc/cpuinfo") as f:
        flags = next((line for line in f if line.startswith("flags")), "").split()
    return {"OPENBLAS_CORETYPE": "SkylakeX"} if "avx512vl" in flags else (
        {"OPENBLAS_CORETYPE": "Haswell"} if "avx2" in flags else {})


def reexec(malloc, threads):
    """Starts the script anew with settings that only a fresh process takes up; returns in the new process."""
    malloc = malloc_choice(malloc)
    if os.environ.get("PEER_MALLOC") == malloc:
        return
    env = dict(openblas_core())
    env.update(os.environ, PEER_MALLOC=malloc, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads),
               OPENBLAS_NUM_THREADS=str(threads))
    env.update(malloc_environment(malloc))
    os.execve(sys.executable, [sys.executable] + sys.argv, env)


def add_common_options(parser):
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", choices=("none", "default"), default="none")
    parser.add_argument("--malloc", choices=("auto", "default", "glibc", "glibc-thp", "jemalloc", "tcmalloc"),
                        default="auto")
    parser.add_argument("--zero-grad", choices=("none", "zero"), default="none", help="drop gradients or clear them")
    parser.add_argument("--seed", type=int, default=1)


HAS_SDPA = hasattr(F, "scaled_dot_product_attention")


class Attention(nn.Module):
    def __init__(self, width, heads, sequence):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        if not HAS_SDPA:
            self.register_buffer("future", torch.full((sequence, sequence), -math.inf).triu(1), persistent=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in self.c_attn(x).split(C, 2))
        if HAS_SDPA:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) * (1.0 / math.sqrt(C // self.heads)) + self.future[:T, :T]
            y = scores.softmax(-1) @ v
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self, width, heads, sequence):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads, sequence)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_proj = nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    """GPT-2, or a run of its layers: `first` adds the embeddings, `last` the final norm and the head."""

    def __init__(self, layers, heads, width, sequence, vocab, tied=False, first=True, last=True, total_layers=None):
        super().__init__()
        if first:
            self.wte = nn.Embedding(vocab, width)
            self.wpe = nn.Embedding(sequence, width)
        self.first, self.last = first, last
        self.blocks = nn.ModuleList(Block(width, heads, sequence) for _ in range(layers))
        if last:
            self.ln_f = nn.LayerNorm(width)
            self.head = nn.Linear(width, vocab, bias=False)
            if tied:
                self.head.weight = self.wte.weight
        residual_std = 0.02 / math.sqrt(2 * (total_layers or layers))
        for name, p in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(p)
            elif p.dim() >= 2:
                nn.init.normal_(p, 0.0, residual_std if name.endswith("c_proj.weight") else 0.02)

    def forward(self, x):
        if self.first:
            x = self.wte(x) + self.wpe.weight[:x.size(1)]
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x)) if self.last else x


def cross_entropy(logits, targets):
    return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))


class WithLoss(nn.Module):
    """Model and loss as one module, so that a compiler sees both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        return cross_entropy(self.model(x), y)


def compiled(module, how):
    if how == "none":
        return module
    if not hasattr(torch, "compile"):
        raise SystemExit(f"--compile {how}: torch {torch.__version__} has no torch.compile")
    return torch.compile(module, dynamic=False)


def make_optimizer(model, lr, betas, weight_decay):
    """AdamW, decay on matrices only; fused where this torch has it for CPU. Returns (optimizer, kind)."""
    params = list(model.parameters())
    groups = [dict(params=[p for p in params if p.dim() >= 2], weight_decay=weight_decay),
              dict(params=[p for p in params if p.dim() < 2], weight_decay=0.0)]
    for kind in ("fused", "foreach"):
        try:
            return torch.optim.AdamW([dict(g) for g in groups], lr=lr, betas=betas, **{kind: True}), kind
        except (RuntimeError, TypeError, ValueError):
            continue
    return torch.optim.AdamW(groups, lr=lr, betas=betas), "plain"


def median(values):
    values = sorted(values)
    n = len(values)
    return (values[(n - 1) // 2] + values[n // 2]) / 2


def sgemm_gflops(n=1024, runs=100):
    """Median rate of an n x n x n float32 product in this process, with its threads."""
    a, b, c = torch.randn(n, n), torch.randn(n, n), torch.empty(n, n)
    seconds = []
    for i in range(runs + 5):
        start = time.perf_counter()
        torch.mm(a, b, out=c)
        seconds.append(time.perf_counter() - start)
    return 2 * n ** 3 / median(seconds[5:]) / 1e9


class CpuShare:
    """Of the time that this process's threads wanted to run, the part they did: near 1 on an idle machine. Below 0.9 the
    wall-clock figures beside it tell of the machine's other load, not of the peer. Sleeping, as in a bubble, costs nothing."""

    def __init__(self):
        self.start = self.now()

    @staticmethod
    def now():
        ran = queued = 0
        for path in glob.glob("/proc/self/task/*/schedstat"):
            with open(path) as f:
                fields = f.read().split()
            ran, queued = ran + int(fields[0]), queued + int(fields[1])
        return ran, queued

    def read(self):
        """Returns (share, seconds of processor time) since the start."""
        ran, queued = (b - a for a, b in zip(self.start, self.now()))
        return ran / max(1, ran + queued), ran / 1e9


def minor_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def process_facts():
    """Version, BLAS and allocator, as far as the process can tell."""
    blas = [w.rstrip(",") for w in torch.__config__.show().split() if w.startswith(("BLAS_INFO=", "LAPACK_INFO="))]
    with open("/proc/self/maps") as f:
        mapped = {os.path.basename(line.split()[-1]) for line in f if ".so" in line}
    keys = ("blas", "mkl", "dnnl", "jemalloc", "tcmalloc", "libgomp", "libiomp")
    return dict(torch=torch.__version__, blas=blas, mkldnn=torch.backends.mkldnn.is_available(),
                libraries=sorted(m for m in mapped if any(k in m for k in keys)),
                threads=torch.get_num_threads(), malloc=os.environ.get("PEER_MALLOC", "default"),
                openblas_core=os.environ.get("OPENBLAS_CORETYPE"),
                attention="sdpa" if HAS_SDPA else "manual",
                peak_rss_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
