/* bench_codec: GB/s of f32 input that one core encodes, and decodes and adds, against memcpy of the
 * same values in the same run.
 *
 * The values are a stream of blocks larger than the caches, so that each is read from memory, as a
 * gradient is. Each turn copies them once, encodes them and adds them by every codec; figures are
 * medians over turns, also the ratio to memcpy of the same turn. Times are the processor's; even
 * so, others on the machine take their share of caches and memory.
 */
#include "base/memory.h"
#include "base/options.h"
#include "base/random.h"
#include "bench/median.h"
#include "compression/codec_loops.h"
#include "compression/decoder.h"
#include "compression/encoder.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char usage[] =
    "usage: bench_codec [--flag VALUE ...]\n"
    "\n"
    "Times codecs on one core and prints GB/s of f32 values, encoding (with scaling and error\n"
    "feedback) and decoding with addition, and each as a multiple of memcpy.\n"
    "\n"
    "examples:\n"
    "  bench_codec\n"
    "  bench_codec --codec topk:0.01,ef+zstd --megabytes 64 --turns 3\n";

enum { TURNS_MAX = 99, ROWS = 256, COLS = 1024 };

struct bench {
    char codec[OPTION_TEXT_MAX];
    int64_t megabytes, turns;
};

#define AT(field) offsetof(struct bench, field)
static const struct option table[] = {
    {"codec", OPTION_TEXT, "all", 0, 0, "", "one codec, or all", false, 1, AT(codec), NULL},
    {"megabytes", OPTION_INT, "128", 1, 4096, "MB", "f32 values of a turn", false, 1, AT(megabytes),
     NULL},
    {"turns", OPTION_INT, "5", 1, TURNS_MAX, "turns", "turns of each codec", false, 1, AT(turns),
     NULL},
};

static const char *const all[] = {
    "none",       "bf16",          "fp16",          "int8",         "int8,ef",
    "fp8",        "int4",          "int4:sr",       "int4:sr,had",  "int4:sr,had,ef",
    "onebit",     "onebit,ef",     "topk:0.01",     "topk:0.01,ef", "topk:0.01,global,ef",
    "randk:0.01", "randk:0.01,ef", "powersgd:4,ef", "qsgd",         "terngrad",
    "natural",    "signsgd",       "bf16+zstd",     "int8+zstd",    "topk:0.01,ef+zstd",
};

struct stream {
    size_t block_count, count; /* of a block */
    float *values, *sum, *copy;
};

static struct stream make_stream(int64_t megabytes) {
    struct stream stream = {.count = (size_t)ROWS * COLS};
    struct random_stream random;
    stream.block_count = (size_t)megabytes * 1000000 / (4 * stream.count) + 1;
    size_t total = stream.block_count * stream.count;
    stream.values = memory_zeroed(total, sizeof *stream.values);
    stream.sum = memory_zeroed(total, sizeof *stream.sum);
    stream.copy = memory_zeroed(total, sizeof *stream.copy);
    random_open(&random, 1, RANDOM_SIMULATOR, 0);
    for (size_t i = 0; i < total; i++) // the same block again and again is as good
        stream.values[i] =
            i < stream.count ? 1e-3F * random_normal(&random) : stream.values[i - stream.count];
    return stream;
}

/* The thread's processor time: other programs that take turns on the core do not count. */
static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static double gigabytes_per_s(const struct stream *stream, int64_t since_ns) {
    double bytes = 4.0 * (double)stream->block_count * (double)stream->count;
    return bytes / (double)(now_ns() - since_ns);
}

static double turn_copy(const struct stream *stream) {
    int64_t mark_ns = now_ns();
    for (size_t b = 0; b < stream->block_count; b++)
        memcpy(stream->copy + b * stream->count, stream->values + b * stream->count,
               stream->count * sizeof(float));
    return gigabytes_per_s(stream, mark_ns);
}

struct figures {
    double copy[TURNS_MAX], encode[TURNS_MAX], add[TURNS_MAX];
    double encode_ratio[TURNS_MAX], add_ratio[TURNS_MAX];
    double bytes;
};

/* Payloads are kept apart, so that decoding reads them from memory too. */
static void time_codec(const struct stream *stream, struct encoder *encoder, int64_t turns,
                       struct figures *figures) {
    size_t bound = encoder_bound(encoder, 0);
    uint8_t *wire = memory_zeroed(stream->block_count, bound);
    struct encoder_result *results = memory_zeroed(stream->block_count, sizeof *results);
    void *scratch = memory_zeroed(encoder_scratch_bytes(encoder), 1);
    void *decode_scratch = memory_zeroed(decoder_scratch_bytes(stream->count), 1);
    for (int64_t turn = -1; turn < turns; turn++) { // the first one warms up
        size_t at = turn < 0 ? 0 : (size_t)turn;
        figures->copy[at] = turn_copy(stream);
        int64_t mark_ns = now_ns();
        for (size_t b = 0; b < stream->block_count; b++)
            encoder_encode(encoder, b, (uint64_t)(turn + 1), stream->values + b * stream->count,
                           0.5F, wire + b * bound, scratch, &results[b]);
        figures->encode[at] = gigabytes_per_s(stream, mark_ns);
        mark_ns = now_ns();
        for (size_t b = 0; b < stream->block_count; b++) {
            if (decoder_add(results[b].codec, wire + b * bound, results[b].bytes,
                            stream->sum + b * stream->count, stream->count,
                            decode_scratch) != STATUS_OK)
                abort();
        }
        figures->add[at] = gigabytes_per_s(stream, mark_ns);
        figures->encode_ratio[at] = figures->encode[at] / figures->copy[at];
        figures->add_ratio[at] = figures->add[at] / figures->copy[at];
    }
    figures->bytes = (double)results[0].bytes;
    free(decode_scratch);
    free(scratch);
    free(results);
    free(wire);
}

static bool run_codec(const struct stream *stream, const char *text, int64_t turns) {
    struct encoder_config config = {.block_count = stream->block_count, .seed = 1};
    struct figures figures;
    char why[256];
    if (!codec_parse(text, &config.spec, why, sizeof why)) {
        fprintf(stderr, "bench_codec: --codec: %s\n", why);
        return false;
    }
    struct encoder_block *blocks = memory_zeroed(stream->block_count, sizeof *blocks);
    for (size_t b = 0; b < stream->block_count; b++)
        blocks[b] = (struct encoder_block){.id = b, .rows = ROWS, .cols = COLS};
    config.blocks = blocks;
    struct encoder *encoder = encoder_open(&config);
    time_codec(stream, encoder, turns, &figures);
    size_t n = (size_t)turns;
    printf("%-22s %8.2f %8.2f %9.2f %8.2f %9.2f %9.1f\n", text, median(figures.copy, n),
           median(figures.encode, n), median(figures.encode_ratio, n), median(figures.add, n),
           median(figures.add_ratio, n), 4.0 * (double)stream->count / figures.bytes);
    fflush(stdout);
    encoder_close(encoder);
    free(blocks);
    return true;
}

int main(int argc, char **argv) {
    struct bench bench;
    struct options options;
    options_init(&options, table, sizeof table / sizeof table[0], &bench);
    if (options_wants(argc, argv, "--help")) {
        options_print_help(&options, 1, usage, stdout);
        return EXIT_CODE_OK;
    }
    if (options_parse(&options, 1, argc, argv) != STATUS_OK) return EXIT_CODE_USAGE;
    struct stream stream = make_stream(bench.megabytes);
    bool ok = true;
    printf("loops %s, one core, against memcpy of the same values in turns; medians of %" PRId64
           " turns\n",
           codec_loops_best()->name, bench.turns);
    printf("%-22s %8s %8s %9s %8s %9s %9s\n", "GB/s of f32", "memcpy", "encode", "/ memcpy", "add",
           "/ memcpy", "f32/bytes");
    if (strcmp(bench.codec, "all") != 0) {
        ok = run_codec(&stream, bench.codec, bench.turns);
    } else {
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            ok = run_codec(&stream, all[i], bench.turns) && ok;
    }
    free(stream.values);
    free(stream.sum);
    free(stream.copy);
    return ok ? EXIT_CODE_OK : EXIT_CODE_USAGE;
}
