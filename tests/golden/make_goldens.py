#!/usr/bin/env python3
"""Makes the reference numbers in gpt2-toy/ and llama-toy/: tiny models, written by hand in plain PyTorch.

    python3 tests/golden/make_goldens.py [--out tests/golden] [--check-transformers]

Everything is computed in float64 from float32 weights; tensors are then rounded to float32 on disk.
Per model:
  config.json          as the transformers library writes it
  model.safetensors    initial weights, F32, Hugging Face names and layouts
  tokens.u16.bin       raw little-endian token ids; step s, sequence i = 0..3 reads T+1 ids from (s*4+i)*(T+1):
                       the first T are the input, the last T the target
  grads.safetensors    gradient of the mean token cross-entropy of step 0, before clipping
  curve.json           loss before the update and global gradient norm before clipping, 10 AdamW steps
  final.safetensors    weights after those 10 steps
  curve_sgd.json       (gpt2-toy) the same with SGD and momentum
"""
import argparse
import json
import math
import os

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

BATCH, STEPS = 4, 10
ADAMW = dict(lr=1e-2, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip=1.0)
SGD = dict(lr=0.05, momentum=0.9, clip=0.0)

GPT2 = dict(
    activation_function="gelu_new", architectures=["GPT2LMHeadModel"], attn_pdrop=0.0, bos_token_id=0,
    embd_pdrop=0.0, eos_token_id=0, initializer_range=0.02, layer_norm_epsilon=1e-5, model_type="gpt2",
    n_ctx=12, n_embd=16, n_head=2, n_inner=None, n_layer=2, n_positions=12, resid_pdrop=0.0,
    scale_attn_weights=True, tie_word_embeddings=True, torch_dtype="float32", use_cache=True, vocab_size=61)

LLAMA = dict(
    architectures=["LlamaForCausalLM"], attention_bias=False, attention_dropout=0.0, bos_token_id=1,
    eos_token_id=2, head_dim=6, hidden_act="silu", hidden_size=24, initializer_range=0.02,
    intermediate_size=40, max_position_embeddings=16, mlp_bias=False, model_type="llama",
    num_attention_heads=4, num_hidden_layers=2, num_key_value_heads=2, rms_norm_eps=1e-5,
    rope_scaling=None, rope_theta=10000.0, tie_word_embeddings=False, torch_dtype="float32",
    use_cache=True, vocab_size=53)


def causal_attention(q, k, v):
    """q, k, v: (B, H, T, D); returns (B, H, T, D)."""
    T, D = q.shape[-2:]
    scores = q @ k.transpose(-1, -2) / math.sqrt(D)
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -math.inf).softmax(-1) @ v


def gpt2_logits(p, ids, c):
    B, T = ids.shape
    C, H = c["n_embd"], c["n_head"]
    norm = lambda x, n: F.layer_norm(x, (C,), p[n + ".weight"], p[n + ".bias"], c["layer_norm_epsilon"])
    dense = lambda x, n: x @ p[n + ".weight"] + p[n + ".bias"]  # the weight is stored [in, out]
    split = lambda x: x.view(B, T, H, C // H).transpose(1, 2)
    gelu = lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))

    x = p["transformer.wte.weight"][ids] + p["transformer.wpe.weight"][:T]
    for l in range(c["n_layer"]):
        h = f"transformer.h.{l}."
        q, k, v = dense(norm(x, h + "ln_1"), h + "attn.c_attn").split(C, -1)
        a = causal_attention(split(q), split(k), split(v)).transpose(1, 2).reshape(B, T, C)
        x = x + dense(a, h + "attn.c_proj")
        x = x + dense(gelu(dense(norm(x, h + "ln_2"), h + "mlp.c_fc")), h + "mlp.c_proj")
    return norm(x, "transformer.ln_f") @ p["transformer.wte.weight"].T


def llama_logits(p, ids, c):
    B, T = ids.shape
    C, H, G = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
    D = C // H
    dense = lambda x, n: x @ p[n + ".weight"].T  # the weight is stored [out, in]
    norm = lambda x, n: x * (x.pow(2).mean(-1, keepdim=True) + c["rms_norm_eps"]).rsqrt() * p[n + ".weight"]
    split = lambda x, heads: x.view(B, T, heads, D).transpose(1, 2)

    rate = c["rope_theta"] ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    angle = torch.outer(torch.arange(T, dtype=torch.float64), rate)
    cos, sin = angle.cos().to(p["model.norm.weight"]), angle.sin().to(p["model.norm.weight"])

    def rotate(x):  # component j turns with component j + D/2
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    x = p["model.embed_tokens.weight"][ids]
    for l in range(c["num_hidden_layers"]):
        h = f"model.layers.{l}."
        n = norm(x, h + "input_layernorm")
        q = rotate(split(dense(n, h + "self_attn.q_proj"), H))
        k = rotate(split(dense(n, h + "self_attn.k_proj"), G)).repeat_interleave(H // G, 1)
        v = split(dense(n, h + "self_attn.v_proj"), G).repeat_interleave(H // G, 1)
        x = x + dense(causal_attention(q, k, v).transpose(1, 2).reshape(B, T, C), h + "self_attn.o_proj")
        n = norm(x, h + "post_attention_layernorm")
        x = x + dense(F.silu(dense(n, h + "mlp.gate_proj")) * dense(n, h + "mlp.up_proj"), h + "mlp.down_proj")
    return dense(norm(x, "model.norm"), "lm_head")


def gpt2_shapes(c):
    C = c["n_embd"]
    yield "transformer.wte.weight", (c["vocab_size"], C)
    yield "transformer.wpe.weight", (c["n_positions"], C)
    for l in range(c["n_layer"]):
        h = f"transformer.h.{l}."
        for name, shape in (("ln_1", (C,)), ("attn.c_attn", (C, 3 * C)), ("attn.c_proj", (C, C)), ("ln_2", (C,)),
                            ("mlp.c_fc", (C, 4 * C)), ("mlp.c_proj", (4 * C, C))):
            yield h + name + ".weight", shape
            yield h + name + ".bias", shape[-1:]
    yield "transformer.ln_f.weight", (C,)
    yield "transformer.ln_f.bias", (C,)


def llama_shapes(c):
    C, I, V = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    KV = C // c["num_attention_heads"] * c["num_key_value_heads"]
    yield "model.embed_tokens.weight", (V, C)
    for l in range(c["num_hidden_layers"]):
        h = f"model.layers.{l}."
        yield h + "input_layernorm.weight", (C,)
        for name, shape in (("q", (C, C)), ("k", (KV, C)), ("v", (KV, C)), ("o", (C, C))):
            yield h + f"self_attn.{name}_proj.weight", shape
        yield h + "post_attention_layernorm.weight", (C,)
        for name, shape in (("gate", (I, C)), ("up", (I, C)), ("down", (C, I))):
            yield h + f"mlp.{name}_proj.weight", shape
    yield "model.norm.weight", (C,)
    yield "lm_head.weight", (V, C)


def initial_weights(shapes, rng):
    """N(0, 0.08) in float32; the scales of norms are centred on one."""
    weights = {}
    for name, shape in shapes:
        w = rng.normal(0.0, 0.08, shape)
        if name.endswith("weight") and len(shape) == 1:
            w += 1.0
        weights[name] = torch.from_numpy(w.astype(np.float32))
    return weights


def step_batch(ids, step, T):
    rows = ids[step * BATCH * (T + 1):(step + 1) * BATCH * (T + 1)].view(BATCH, T + 1)
    return rows[:, :-1], rows[:, 1:]


def loss_and_grads(logits_of, params, config, ids, step, T):
    for p in params.values():
        p.grad = None
    x, y = step_batch(ids, step, T)
    loss = F.cross_entropy(logits_of(params, x, config).flatten(0, 1), y.flatten())
    loss.backward()
    return loss.item(), {n: p.grad for n, p in params.items()}


def global_norm(grads):
    return math.sqrt(sum(g.double().pow(2).sum().item() for g in grads.values()))


def clip_factor(norm, clip):
    return min(1.0, clip / norm) if clip > 0 else 1.0


def train(logits_of, weights, config, ids, T, optimizer, dtype=torch.float64):
    """Runs STEPS steps; returns the curve and the final weights."""
    params = {n: w.to(dtype, copy=True).requires_grad_() for n, w in weights.items()}
    m = {n: torch.zeros_like(p) for n, p in params.items()}
    v = {n: torch.zeros_like(p) for n, p in params.items()}
    losses, norms = [], []
    for step in range(STEPS):
        loss, grads = loss_and_grads(logits_of, params, config, ids, step, T)
        norm = global_norm(grads)
        losses.append(loss)
        norms.append(norm)
        o = ADAMW if optimizer == "adamw" else SGD
        factor = clip_factor(norm, o["clip"])
        with torch.no_grad():
            for n, p in params.items():
                g = grads[n] * factor
                if optimizer == "adamw":
                    b1, b2, t = o["beta1"], o["beta2"], step + 1
                    if p.dim() >= 2:
                        p.mul_(1 - o["lr"] * o["weight_decay"])
                    m[n].mul_(b1).add_(g, alpha=1 - b1)
                    v[n].mul_(b2).addcmul_(g, g, value=1 - b2)
                    p.sub_(o["lr"] * (m[n] / (1 - b1 ** t)) / ((v[n] / (1 - b2 ** t)).sqrt() + o["eps"]))
                else:
                    m[n].mul_(o["momentum"]).add_(g)
                    p.sub_(o["lr"] * m[n])
    return dict(losses=losses, norms=norms), {n: p.detach() for n, p in params.items()}


def write_json(path, value):
    with open(path, "w") as f:
        json.dump(value, f, indent=2)
        f.write("\n")


def write_tensors(path, tensors):
    save_file({n: t.float().contiguous() for n, t in tensors.items()}, path, metadata={"format": "pt"})


def write_curve(path, curve, optimizer, options):
    digits = lambda xs: [float(f"{x:.12g}") for x in xs]
    write_json(path, dict(optimizer=optimizer, **options, losses=digits(curve["losses"]),
                          grad_norms=digits(curve["norms"])))


def check_transformers(directory, logits, x):
    """Loads the directory just written with transformers and compares the logits of step 0."""
    from transformers import AutoModelForCausalLM
    model, info = AutoModelForCausalLM.from_pretrained(directory, torch_dtype=torch.float32, output_loading_info=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[key]:
            raise SystemExit(f"{directory}: {key}: {sorted(info[key])}")
    with torch.no_grad():
        theirs = model.eval().double()(x).logits
    worst = (theirs - logits).abs().max().item()
    print(f"{directory}: largest logit difference to transformers {worst:.3g}")
    if not worst < 1e-6:
        raise SystemExit(f"{directory}: logits differ from transformers by {worst:.3g}, wanted below 1e-6")


def make(directory, config, shapes, logits_of, T, optimizers, seed, check):
    os.makedirs(directory, exist_ok=True)
    at = lambda name: os.path.join(directory, name)
    rng = np.random.default_rng(seed)
    weights = initial_weights(shapes(config), rng)
    ids_np = rng.integers(0, config["vocab_size"], STEPS * BATCH * (T + 1)).astype("<u2")
    ids_np.tofile(at("tokens.u16.bin"))
    ids = torch.from_numpy(ids_np.astype(np.int64))
    write_json(at("config.json"), config)
    write_tensors(at("model.safetensors"), weights)

    params = {n: w.double().requires_grad_() for n, w in weights.items()}
    first_loss, grads = loss_and_grads(logits_of, params, config, ids, 0, T)
    write_tensors(at("grads.safetensors"), grads)

    for optimizer in optimizers:
        curve, final = train(logits_of, weights, config, ids, T, optimizer)
        single, single_final = train(logits_of, weights, config, ids, T, optimizer, torch.float32)
        if curve["losses"][0] != first_loss:
            raise SystemExit(f"{directory} {optimizer}: starts at loss {curve['losses'][0]}, wanted {first_loss}")
        worst_loss = max(abs(a - b) for a, b in zip(curve["losses"], single["losses"]))
        apart = math.sqrt(sum((final[n] - single_final[n]).pow(2).sum().item() for n in final))
        size = math.sqrt(sum(w.pow(2).sum().item() for w in final.values()))
        print(f"{directory} {optimizer}: loss {curve['losses'][0]:.6f} -> {curve['losses'][-1]:.6f}, norms "
              f"{min(curve['norms']):.3f}..{max(curve['norms']):.3f}; float32 differs by {worst_loss:.2g} in loss, "
              f"{apart / size:.2g} in weights")
        options = ADAMW if optimizer == "adamw" else SGD
        write_curve(at("curve.json" if optimizer == "adamw" else "curve_sgd.json"), curve, optimizer, options)
        if optimizer == "adamw":
            write_tensors(at("final.safetensors"), final)

    if check:
        x, _ = step_batch(ids, 0, T)
        check_transformers(directory, logits_of(params, x, config).detach(), x)


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=here)
    parser.add_argument("--check-transformers", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    at = lambda name: os.path.join(args.out, name)
    make(at("gpt2-toy"), GPT2, gpt2_shapes, gpt2_logits, GPT2["n_positions"], ("adamw", "sgd"), 20, args.check_transformers)
    make(at("llama-toy"), LLAMA, llama_shapes, llama_logits, LLAMA["max_position_embeddings"], ("adamw",), 21,
         args.check_transformers)


if __name__ == "__main__":
    main()
