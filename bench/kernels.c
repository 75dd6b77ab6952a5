/* bench_kernels: how fast a device (kernels/device.h) runs each operation of a worker's, against
 * what the same device reaches in the same run: its copy for those that are bound by memory, its
 * largest product of the number type for those that are bound by arithmetic.
 *
 * A bf16 product rounds its f32 operand each time, as a model's do, also the largest one.
 * "attention, bf16" is what a bf16 model runs on CUDA: on tensor cores, or, of heads too wide for
 * those (kernels/cuda/flash_bf16_cuda.h), the f32 one. Figures are medians of the turns.
 */
#include "base/json.h"
#include "base/log.h"
#include "bench/kernels_codecs.h"
#include "bench/kernels_timed.h"
#include "kernels/threads.h"
#include "proto/job.h"

#include <inttypes.h>
#include <stdio.h>

static const char usage[] =
    "usage: bench_kernels [--flag VALUE ...]\n"
    "\n"
    "Times a worker's operations one by one on a device - a model's, its optimizers, codecs - and\n"
    "compares them with the device's copy and matrix products.\n"
    "\n"
    "examples:\n"
    "  bench_kernels --device cuda:0 --json kernels.jsonl\n"
    "  bench_kernels --device cpu --batch 1 --seq-len 256 --channels 256 --heads 4 --square 512\n";

static bool check_device(const char *text, char *why, size_t why_bytes) {
    enum device_kind kind;
    int index;
    snprintf(why, why_bytes, "cpu, cuda:N");
    return device_name_parse(text, &kind, &index);
}

#define AT(field) offsetof(struct bench, field)
static const struct option table[] = {
    {"device", OPTION_TEXT, "cpu", 0, 0, "", "what computes: cpu or cuda:N", false, 1, AT(device),
     check_device},
    {"batch", OPTION_INT, "8", 1, 4096, "sequences", "sequences of a step", false, 1, AT(batch),
     NULL},
    {"seq-len", OPTION_INT, "1024", 1, 65536, "tokens", "length of a sequence", false, 1,
     AT(seq_len), NULL},
    {"channels", OPTION_INT, "768", 2, 65536, "", "of the model; its MLP has four times as many",
     false, 1, AT(channels), NULL},
    {"heads", OPTION_INT, "12", 1, 1024, "", "of attention; they divide channels", false, 1,
     AT(heads), NULL},
    {"vocab", OPTION_INT, "50257", 2, 1048576, "tokens", "size of the vocabulary", false, 1,
     AT(vocab), NULL},
    {"square", OPTION_INT, "4096", 16, 32768, "", "rows and columns of the largest product", false,
     1, AT(square), NULL},
    {"turns", OPTION_INT, "5", 1, KERNELS_TURNS_MAX, "turns", "turns of each operation", false, 1,
     AT(turns), NULL},
    {"threads", OPTION_INT, "0", 0, 1024, "threads", "of the host's kernels; 0: all cores", false,
     1, AT(threads), NULL},
    {"json", OPTION_TEXT, "", 0, 0, "file", "writes a line for each operation there, too", false, 1,
     AT(json), NULL},
};

static double rate(const struct timed *timed) {
    return timed->work / timed->seconds;
}

static void print_json(FILE *file, const struct rig *rig, const struct timed *timed,
                       double ceiling) {
    char line[1024];
    size_t used;
    struct json json;
    bool memory = timed->ceiling == CEILING_COPY;
    json_begin(&json, line, sizeof line);
    json_text(&json, "bench", "kernels");
    json_text(&json, "device", rig->device->name);
    json_text(&json, "operation", timed->name);
    json_real(&json, memory ? "bytes" : "flops", timed->work, 15);
    json_real(&json, memory ? "gb_s" : "tflop_s", rate(timed) / (memory ? 1e9 : 1e12), 6);
    json_real(&json, memory ? "of_copy" : "of_largest_product", rate(timed) / ceiling, 4);
    if (json_end(&json, &used) == STATUS_OK) (void)fprintf(file, "%s\n", line);
}

static void print_row(const struct timed *timed, double ceiling) {
    printf("%-26s %10.1f ", timed->name, timed->seconds * 1e6);
    if (timed->ceiling == CEILING_COPY)
        printf("%10.4g %10s", rate(timed) / 1e9, "");
    else
        printf("%10s %10.4g", "", rate(timed) / 1e12);
    printf(" %18.2f\n", rate(timed) / ceiling);
}

/* json NULL: the table alone. */
static enum status run_operations(const struct rig *rig, FILE *json) {
    struct timed list[KERNELS_TIMED_MAX];
    double ceilings[CEILINGS] = {0};
    size_t count = kernels_model_list(rig, list);
    count += kernels_update_list(rig, list + count);
    TRY(kernels_measure(rig, list, count));
    printf("%s: %" PRId64 " x %" PRId64 " tokens, %" PRId64 " channels, %" PRId64
           " heads, vocabulary %" PRId64 "; medians of %" PRId64 " turns\n",
           rig->device->name, rig->B, rig->T, rig->C, rig->heads, rig->V, rig->bench->turns);
    printf("%-26s %10s %10s %10s %18s\n", "", "us", "GB/s", "TFLOP/s", "of copy or product");
    for (size_t i = 0; i < count; i++) {
        double *ceiling = &ceilings[list[i].ceiling];
        if (*ceiling == 0) *ceiling = rate(&list[i]); /* the first one */
        print_row(&list[i], *ceiling);
        if (json != NULL) print_json(json, rig, &list[i], *ceiling);
    }
    return STATUS_OK;
}

static enum status run_on(struct device *device, const struct bench *bench, FILE *json) {
    struct rig rig;
    enum status status = kernels_rig_open(&rig, bench, device);
    if (status == STATUS_OK) status = run_operations(&rig, json);
    if (status == STATUS_OK) status = kernels_codecs(&rig, json);
    kernels_rig_close(&rig);
    return status;
}

/* Each line is written when it is done: what ends this process leaves whole ones. */
static enum status run_with_json(struct device *device, const struct bench *bench) {
    if (bench->json[0] == 0) return run_on(device, bench, NULL);
    enum status status = STATUS_OK;
    FILE *json = fopen(bench->json, "a");
    bool written = json != NULL;
    if (json != NULL) {
        (void)setvbuf(json, NULL, _IOLBF, 0);
        status = run_on(device, bench, json);
        written = ferror(json) == 0;
        if (fclose(json) != 0) written = false;
    }
    if (written) return status;
    log_error("--json %s cannot be written", bench->json);
    return STATUS_IO;
}

static enum status run(const struct bench *bench) {
    enum device_kind kind = DEVICE_CPU;
    int index = 0;
    struct device *device;
    if (bench->channels % bench->heads != 0 || bench->channels / bench->heads % 2 != 0) {
        log_error("--heads %" PRId64 " must divide --channels %" PRId64
                  " into even numbers of channels",
                  bench->heads, bench->channels);
        return STATUS_INVALID;
    }
    (void)device_name_parse(bench->device, &kind, &index); /* it was checked */
    TRY(device_open(&device, kind, index));
    enum status status = run_with_json(device, bench);
    device_close(device);
    return status;
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
    threads_set(bench.threads > 0 ? (int)bench.threads : threads_available());
    return (int)status_exit_code(run(&bench));
}
