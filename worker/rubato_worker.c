/* rubato-worker: computes gradients, pushes them, pulls weights; one process a node. */
#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/signals.h"
#include "kernels/device.h"
#include "kernels/threads.h"
#include "proto/program.h"
#include "transport/channel_ucx.h"
#include "transport/endpoint.h"
#include "transport/paced.h"
#include "worker/hf_config.h"
#include "worker/session_thread.h"
#include "worker/tokenizer_read.h"
#include "worker/train.h"

#include <stdio.h>
#include <unistd.h>

static const char usage[] =
    "rubato-worker: trains on its data against the job's servers.\n"
    "\n"
    "  rubato-worker --join HOST:PORT --data FILE [options]\n"
    "\n"
    "Options of the job (--steps, --mode, --lr, ...) may be given to any one process; the others\n"
    "learn them when they join.\n"
    "\n"
    "Examples:\n"
    "  rubato-worker --join 127.0.0.1:29600 --data corpus.txt\n"
    "  rubato-worker --join 10.0.0.1:29600 --data train.bin --model gpt2:124M --push int8 \\\n"
    "      --key-file job.key --threads 8\n"
    "  rubato-worker --join 10.0.0.1:29600 --data train.bin --model gpt2:124M --device cuda:0,1\n";

struct worker {
    struct job job;
    struct options options;
    struct endpoint endpoint;
    struct paced_link link;
    struct control *control;
    struct session session;
    struct session_thread thread;
    struct wake wake; /* the trainer's */
    struct data data, val_data;
    struct tokenizer *tokenizer;
    struct device *devices[GROUP_MAX];
    int device_count;
    struct report report;
    struct trainer trainer;
};

/* The interface is known once the member is connected. */
static enum status open_channel(void *context, const struct channel_config *config,
                                struct channel **channel) {
    struct worker *worker = context;
    struct channel_config of_devices = *config;
    of_devices.devices = worker->devices;
    of_devices.device_count = device_is_host(worker->devices[0]) ? 0 : worker->device_count;
    if (worker->endpoint.channels == 0) {
        char ip[64] = "";
        worker->control->ops->local_ip(worker->control, worker->session.member.connection, ip,
                                       sizeof ip);
        TRY(endpoint_choose_device(&worker->endpoint, &worker->job, ip));
    }
    return endpoint_open_channel(&worker->endpoint, &worker->link, &of_devices, channel);
}

/* What reads and writes the tokens of the data, if it was given. Returns an exit code. */
static int open_tokenizer(struct worker *worker) {
    const char *path = worker->job.tokenizer;
    if (path[0] == '\0') {
        return EXIT_CODE_OK;
    }
    if (worker->data.format == DATA_BYTES) {
        log_error("--tokenizer %s: the tokens of --data %s are bytes, which need none", path,
                  worker->job.data);
        return EXIT_CODE_USAGE;
    }
    enum status status = tokenizer_open(&worker->tokenizer, path, NULL);
    if (status == STATUS_INVALID) {
        return EXIT_CODE_USAGE;
    }
    return status == STATUS_UNSUPPORTED ? EXIT_CODE_DATA : trainer_input_exit_code(status);
}

/* Checks the data by what was given here of the job; the rest is known, and checked, once this
 * worker has joined. */
static enum status check_given(const struct worker *worker, const struct data *val_data) {
    const struct job *job = &worker->job;
    const struct options *options = &worker->options;
    int64_t vocab = job->vocab;
    if (options->origins[options_find(options, "seq-len")] != ORIGIN_DEFAULT) {
        TRY(trainer_check_length(&worker->data, val_data, job));
    }
    if (vocab == 0 && job_model_is_path(job->model)) {
        struct model_shape shape;
        TRY(hf_config_read(job->model, &shape));
        vocab = shape.vocab;
    }
    return vocab != 0 ? trainer_check_vocab(&worker->data, val_data, vocab) : STATUS_OK;
}

/* Opens and checks the data before anyone is bothered. Returns an exit code. */
static int open_data(struct worker *worker) {
    const struct job *job = &worker->job;
    const struct data *val_data = job->val_data[0] != '\0' ? &worker->val_data : NULL;
    if (job->data[0] == '\0') {
        log_error("give --data FILE: text, or tokens as llm.c or nanoGPT .bin");
        return EXIT_CODE_USAGE;
    }
    enum status status = data_open(&worker->data, job->data);
    if (status == STATUS_OK && val_data != NULL) {
        status = data_open(&worker->val_data, job->val_data);
    }
    if (status == STATUS_OK) {
        status = check_given(worker, val_data);
    }
    return trainer_input_exit_code(status);
}

/* What computes. A --device that is not here is the user's to change. Returns an exit code. */
static int open_devices(struct worker *worker) {
    struct device_names named;
    struct device_memory memory;
    char why[256];
    if (job_check_device(&worker->job, why, sizeof why) != STATUS_OK) {
        log_error("%s", why);
        return EXIT_CODE_USAGE;
    }
    ASSERT(device_names_parse(worker->job.device, &named));
    enum status status = node_open_devices(&named, worker->devices, &worker->device_count);
    if (status != STATUS_OK) {
        return status == STATUS_DEVICE ? EXIT_CODE_USAGE : (int)status_exit_code(status);
    }
    for (int i = 0; i < worker->device_count; i++) {
        const struct device *device = worker->devices[i];
        if (device_is_host(device)) {
            continue;
        }
        device_memory(device, &memory);
        log_info("--device %s:%d is %s with %.1f GiB of memory", device->backend->name,
                 device->index, device->name, (double)memory.total / (1 << 30));
    }
    return EXIT_CODE_OK;
}

static enum status start_session(struct worker *worker, int signals) {
    struct session_config config = {.member = {.control = worker->control,
                                               .options = &worker->options,
                                               .role = JOB_WORKER,
                                               .host = worker->endpoint.host,
                                               .port = worker->endpoint.port,
                                               .seed = (uint64_t)getpid()},
                                    .open_channel = open_channel,
                                    .context = worker,
                                    .trainer = &worker->wake};
    TRY(wake_init(&worker->wake));
    TRY(wake_init(&worker->thread.wake));
    TRY(session_init(&worker->session, &config, clock_now_ns()));
    return session_thread_start(&worker->thread, &worker->session, signals);
}

static void await_session(void *context) {
    struct worker *worker = context;
    device_range_begin(worker->devices[0], "wait");
    /* The session's leases and deadlines end every wait. */
    wake_wait(&worker->wake.fd, 1, CLOCK_S);
    wake_clear(&worker->wake);
    device_range_end(worker->devices[0]);
}

static void train(struct worker *worker) {
    struct trainer_config config = {
        .options = &worker->options,
        .session = &worker->session,
        .wake = &worker->thread.wake,
        .data = &worker->data,
        .val_data = worker->job.val_data[0] != '\0' ? &worker->val_data : NULL,
        .vocabulary = {worker->data.format == DATA_BYTES, worker->tokenizer},
        .report = &worker->report,
        .devices = worker->devices,
        .device_count = worker->device_count,
        .first_weights = trainer_first_weights,
        .await = await_session,
        .await_context = worker};
    trainer_init(&worker->trainer, &config);
    while (worker->trainer.state != TRAINER_ENDED) {
        if (!trainer_poll(&worker->trainer)) {
            await_session(worker);
        }
    }
}

static int run(struct worker *worker, int signals) {
    int exit_code = open_data(worker);
    if (exit_code == EXIT_CODE_OK) {
        exit_code = open_tokenizer(worker);
    }
    if (exit_code == EXIT_CODE_OK) {
        exit_code = open_devices(worker);
    }
    if (exit_code != EXIT_CODE_OK) {
        return exit_code;
    }
    enum status status = endpoint_open_control(&worker->endpoint, &worker->control);
    if (status == STATUS_OK) {
        status = start_session(worker, signals);
    }
    if (status != STATUS_OK) {
        return (int)status_exit_code(status);
    }
    train(worker);
    session_thread_stop(&worker->thread);
    exit_code = worker->trainer.exit_code;
    report_close(&worker->report);
    /* What hangs cannot be closed. All is saved and told by now, so it changes no exit code. */
    if (worker->session.exchange.device_status == STATUS_TIMEOUT ||
        trainer_free(&worker->trainer) == STATUS_TIMEOUT) {
        _exit(exit_code);
    }
    session_free(&worker->session); /* it may use a device, too */
    node_close_devices(worker->devices, worker->device_count);
    worker->control->ops->close(worker->control, CLOCK_S);
    data_close(&worker->data);
    data_close(&worker->val_data);
    tokenizer_close(worker->tokenizer);
    return exit_code;
}

int main(int argc, char **argv) {
    static struct worker worker; /* large, and lives as long as the process */
    static const struct program program = {
        .name = "rubato-worker", .usage = usage, .role = JOB_WORKER};
    int exit_code = EXIT_CODE_OK;
    int signals = -1;
    if (!program_begin(&program, &worker.options, &worker.job, argc, argv, &exit_code)) {
        return exit_code;
    }
    enum status status = worker.job.cpus[0] != '\0' ? threads_confine(worker.job.cpus) : STATUS_OK;
    if (status == STATUS_OK) {
        status = endpoint_init(&worker.endpoint, &worker.job);
    }
    if (status == STATUS_OK) {
        status = paced_link_init(&worker.link, worker.job.link);
    }
    if (status == STATUS_OK) {
        status = signals_open(&signals);
    }
    if (status != STATUS_OK) {
        return (int)status_exit_code(status);
    }
    threads_set(worker.job.threads > 0 ? (int)worker.job.threads : threads_available());
    channel_ucx_setup();
    return run(&worker, signals);
}
