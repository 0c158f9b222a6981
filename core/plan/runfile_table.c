/* The run file's keys. A key that is new goes in here, and into pst_runfile. */
#include "core/plan/runfile.h"

#include <math.h>

#define ROW(p, t, ...)                                                                                       \
  { .path = (p), .type = PST_SETTING_##t, __VA_ARGS__ }
#define DEF(text)   .def = (text)
#define WORDS(list) .words = (list)
#define RANGE(a, b) .min = (a), .max = (b)
#define SHORT       .shorthand = true
#define HELP(text)  .help = (text)

#define RECOMPUTE "none|selective|full"
#define OFFLOAD   "none|optimizer"

/* Indented and grouped like the file itself, whose written copy follows this order. */
static const pst_setting table[] = {
    ROW("name", STRING, DEF("run"), HELP("of the run and its directory")),
    ROW("seed", INT, DEF("1"), RANGE(0, 1e18), HELP("of every random number")),
    ROW("steps", INT, RANGE(1, 1e12), HELP("optimizer steps of the whole run")),

    ROW("model.family", STRING, HELP("gpt2, llama, bert, mlp")),
    ROW("model.layers", INT, RANGE(1, 100000), HELP("blocks")),
    ROW("model.heads", INT, RANGE(1, 65536), HELP("attention heads; divides width")),
    ROW("model.kv_heads", INT, RANGE(1, 65536),
        HELP("key and value heads; divides heads, as many when not given")),
    ROW("model.width", INT, RANGE(1, 1 << 20), HELP("of the residual stream")),
    ROW("model.hidden", INT, RANGE(1, 1 << 24),
        HELP("width of the feed-forward; the family's own when not given")),
    ROW("model.vocab", INT, RANGE(1, 1 << 30), HELP("tokens; the data's when not given")),
    ROW("model.context", INT, RANGE(1, 1 << 24), HELP("longest sequence; data.sequence when not given")),
    ROW("model.dropout", FLOAT, DEF("0"), RANGE(0, 0.999), HELP("share of activations dropped in training")),
    ROW("model.tied", BOOL, HELP("embedding and head share weights; the family's own when not given")),
    ROW("model.from", STRING, HELP("Hugging Face directory that gives shape and weights")),
    ROW("model.init", ENUM, WORDS("random|pretrained"),
        HELP("weights to start from; pretrained with model.from")),
    ROW("init.std", FLOAT, DEF("0.02"), RANGE(0, INFINITY), HELP("standard deviation of random matrices")),

    ROW("data.train", STRING, HELP("token file, .txt or .jsonl")),
    ROW("data.valid", STRING, HELP("the same for validation")),
    ROW("data.split", FLOAT, DEF("0.1"), RANGE(0, 0.999),
        HELP("validation's share of train without data.valid")),
    ROW("data.sequence", INT, RANGE(1, 1 << 24), HELP("tokens; model.context, or 128, when not given")),
    ROW("data.format", ENUM, DEF("auto"), WORDS("auto|text|u16|u32|llmc|nanogpt"),
        HELP("of the token files")),
    ROW("data.eot", INT, RANGE(0, 1 << 30), HELP("token between documents")),

    ROW("batch.global", INT, RANGE(1, 1e9), HELP("sequences a step: micro x microbatches x replicas; 32")),
    ROW("batch.micro", INT, RANGE(1, 1e6), HELP("sequences a microbatch; the largest divisor up to 4")),
    ROW("batch.microbatches", INT, RANGE(1, 1e6), HELP("microbatches a step and replica")),
    ROW("batch.replicas", INT, DEF("1"), RANGE(1, 1e6), HELP("pipelines that share a step")),

    ROW("stages[].host", STRING, HELP("where the stage runs; this host when not given")),
    ROW("stages[].device", STRING, HELP("cpu, cpu:numa1, cpu:cores=0-3, opencl:N, cuda:N, hip:N")),
    ROW("stages[].layers", INT, RANGE(0, 100000), HELP("blocks; by cost when no stage says")),
    ROW("stages[].recompute", ENUM, WORDS(RECOMPUTE), HELP("activations formed again in backward")),
    ROW("stages[].offload", ENUM, WORDS(OFFLOAD), HELP("what is kept on the host")),
    ROW("stages[].threads", INT, RANGE(1, PST_RUN_MAX_CORES), HELP("of a CPU stage; its share of the cores")),
    ROW("recompute", ENUM, DEF("none"), WORDS(RECOMPUTE), HELP("where no stage says otherwise")),
    ROW("offload", ENUM, DEF("none"), WORDS(OFFLOAD), HELP("where no stage says otherwise")),
    ROW("threads", INT, RANGE(1, PST_RUN_MAX_CORES), HELP("where no stage says otherwise")),

    ROW("schedule.name", STRING, DEF("1f1b"), SHORT, HELP("of the schedule, or a .csv file")),
    ROW("schedule.chunks", INT, DEF("1"), RANGE(1, 1024), HELP("stages that a worker owns")),
    ROW("schedule.extra_forwards", INT, DEF("0"), WORDS("auto"), RANGE(0, 1e6),
        HELP("microbatches in flight beyond the schedule's own")),
    ROW("backward", ENUM, DEF("auto"), WORDS("auto|fused|early|split"), HELP("form of the backward pass")),

    ROW("precision", ENUM, DEF("fp32"), WORDS("fp32|bf16|fp16"), HELP("of compute")),
    ROW("optimizer.name", ENUM, DEF("adamw"), WORDS("adamw|sgd"), SHORT, HELP("of the optimizer")),
    ROW("optimizer.lr.peak", FLOAT, DEF("3e-4"), RANGE(0, INFINITY), SHORT, HELP("highest learning rate")),
    ROW("optimizer.lr.warmup", INT, DEF("0"), RANGE(0, 1e12), HELP("steps up to the peak")),
    ROW("optimizer.lr.decay", ENUM, DEF("cosine"), WORDS("cosine|linear|constant"),
        HELP("shape after the peak")),
    ROW("optimizer.lr.final", FLOAT, RANGE(0, INFINITY), HELP("rate at the end; a tenth of the peak")),
    ROW("optimizer.lr.steps", INT, RANGE(1, 1e12), HELP("step at which the decay ends; steps")),
    ROW("optimizer.betas[]", FLOAT, DEF("[0.9, 0.95]"), RANGE(0, 0.9999999),
        HELP("decay of adamw's two moments")),
    ROW("optimizer.eps", FLOAT, DEF("1e-8"), RANGE(0, INFINITY), HELP("added to adamw's denominator")),
    ROW("optimizer.momentum", FLOAT, DEF("0"), RANGE(0, 0.9999999), HELP("of sgd")),
    ROW("optimizer.weight_decay", FLOAT, DEF("0.1"), RANGE(0, INFINITY), HELP("of matrices only")),
    ROW("optimizer.clip", FLOAT, DEF("1.0"), RANGE(0, INFINITY),
        HELP("norm of the whole model's gradient; 0: none")),

    ROW("eval.every", INT, DEF("100"), RANGE(0, 1e12), HELP("steps; 0: only at the end")),
    ROW("eval.sequences", INT, DEF("64"), RANGE(1, 1e12), HELP("validated on each time")),
    ROW("sample.every", INT, DEF("0"), RANGE(0, 1e12), HELP("steps; 0: never")),
    ROW("sample.prompt", STRING, DEF(""), HELP("text to continue")),
    ROW("sample.tokens", INT, DEF("64"), RANGE(1, 1 << 24), HELP("to generate")),
    ROW("sample.temperature", FLOAT, DEF("1.0"), RANGE(0, INFINITY), HELP("0: the likeliest token")),
    ROW("checkpoint.every", INT, DEF("500"), RANGE(0, 1e12), HELP("steps; 0: only at the end")),
    ROW("checkpoint.keep", INT, DEF("3"), RANGE(1, 1e6), HELP("the latest ones kept")),
    ROW("checkpoint.resume", STRING, DEF("auto"), HELP("auto, never or a checkpoint's directory")),
    ROW("checkpoint.directory", STRING, HELP("where they go; the run's own directory when not given")),
    ROW("checkpoint.shared", BOOL, DEF("false"), HELP("every host writes its own shards to the directory")),
    ROW("log.every", INT, DEF("10"), RANGE(1, 1e12), HELP("steps between progress lines")),
    ROW("runs", STRING, DEF("runs"), HELP("directory that holds the runs' directories")),

    ROW("limits.peer", TIME, DEF("10s"), RANGE(1e6, 86400e9),
        HELP("without a heartbeat, after which a peer is dead")),
    ROW("limits.op", TIME, DEF("60s"), RANGE(1e6, 86400e9),
        HELP("without an op's end, after which a device hangs")),
    ROW("limits.memory", SIZE, RANGE(1, INFINITY), HELP("of each device; what it has when not given")),
    ROW("bitwise", ENUM, DEF("warn"), WORDS("warn|require"), HELP("when ranks' kernels differ")),
    ROW("cpu.isa", ENUM, DEF("auto"), WORDS("auto|baseline|v3|v4"),
        HELP("instruction set of the CPU's kernels")),
    ROW("cpu.gemm", ENUM, DEF("auto"), WORDS("auto|own|openblas"), HELP("the CPU's matrix products")),
};

const pst_setting *pst_runfile_table(size_t *out_n_rows) {
  *out_n_rows = sizeof table / sizeof table[0];
  return table;
}
