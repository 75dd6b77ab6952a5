/* set.c - `rubato set mode=...`: changes the mode of a running job.
 *
 * Dials the coordinator as members do, says Set, and waits for its End, which comes when the change
 * is made, or refused.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/wake.h"
#include "proto/job.h"
#include "proto/message.h"
#include "tools/subcommand.h"
#include "transport/endpoint.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define DIAL_NS INT64_C(10000000000)  /* to reach the coordinator */
#define WAIT_NS INT64_C(600000000000) /* for the workers' steps and the servers */
#define POLL_NS INT64_C(500000000)    /* deadlines of the connection are looked at so often */

static const char usage[] =
    "usage: rubato set --join HOST:PORT [--key-file FILE] [--insecure] mode=MODE\n"
    "\n"
    "Changes the mode of a running job at a step boundary: workers finish the steps that are "
    "under\n"
    "way, the servers change, and everyone goes on. Possible between sync, ssp:S and async. "
    "Returns\n"
    "when the change is made (0) or refused (2, with the reason).\n"
    "\n"
    "example:\n"
    "  rubato set --join 127.0.0.1:29600 mode=ssp:3\n";

/* What one run of it needs. */
struct set {
    struct job job;
    struct options options;
    struct endpoint endpoint;
    struct control *control;
    uint32_t connection;
    const char *mode;
    struct message_scratch scratch;
    int exit_code; /* when done */
    bool done;
};

static void finish(struct set *set, int exit_code) {
    set->exit_code = exit_code;
    set->done = true;
}

static void say_set(struct set *set) {
    uint8_t packet[OPTION_TEXT_MAX + 64];
    size_t bytes = 0;
    Rubato__Set body = RUBATO__SET__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    body.mode = (char *)set->mode;
    message.body_case = RUBATO__MESSAGE__BODY_SET;
    message.set = &body;
    if (message_pack(&message, packet, sizeof packet, &bytes) != STATUS_OK ||
        set->control->ops->send(set->control, set->connection, packet, bytes) != STATUS_OK) {
        log_error("set: the coordinator cannot be asked");
        finish(set, EXIT_CODE_UNREACHABLE);
    }
}

static void take_end(struct set *set, const Rubato__End *end) {
    if (end->exit_code == EXIT_CODE_OK) {
        printf("the mode is %s\n", set->mode);
    } else {
        log_error("set: %s", end->reason);
    }
    finish(set, end->exit_code < 128 ? (int)end->exit_code : EXIT_CODE_PROTOCOL);
}

static void take_event(struct set *set, const struct control_event *event) {
    const Rubato__Message *message = NULL;
    if (event->kind == CONTROL_OPENED) {
        say_set(set);
    } else if (event->kind == CONTROL_CLOSED) {
        log_error("set: coordinator %s:%s: %s", set->endpoint.host, set->endpoint.port,
                  event->text);
        finish(set,
               (int)(event->status == STATUS_DENIED ? EXIT_CODE_DENIED : EXIT_CODE_UNREACHABLE));
    } else if (message_unpack(&set->scratch, event->packet, event->packet_bytes, &message) !=
               STATUS_OK) {
        log_error("set: %s:%s sent a message that cannot be read", set->endpoint.host,
                  set->endpoint.port);
        finish(set, EXIT_CODE_PROTOCOL);
    } else if (message->body_case == RUBATO__MESSAGE__BODY_END) {
        take_end(set, message->end);
    }
}

/* Until the answer, or until the time is over. */
static void converse(struct set *set) {
    int64_t start_ns = clock_now_ns();
    bool opened = false;
    while (!set->done) {
        struct control_event event;
        int64_t now_ns = clock_now_ns();
        while (!set->done && set->control->ops->poll(set->control, now_ns, &event)) {
            opened = opened || event.kind == CONTROL_OPENED;
            take_event(set, &event);
        }
        if (!set->done && now_ns - start_ns > (opened ? WAIT_NS : DIAL_NS)) {
            log_error("set: no answer from %s:%s", set->endpoint.host, set->endpoint.port);
            finish(set, EXIT_CODE_UNREACHABLE);
        }
        int fd = set->control->ops->wait_fd(set->control);
        if (!set->done) {
            wake_wait(&fd, 1, POLL_NS);
        }
    }
}

/* Takes "mode=MODE" out of the words; the rest are flags. False, logged: there is not exactly one.
 */
static bool take_mode(struct set *set, int *argc, char **argv) {
    static const char name[] = "mode=";
    int kept = 1;
    for (int i = 1; i < *argc; i++) {
        if (strncmp(argv[i], name, sizeof name - 1) == 0 && set->mode == NULL) {
            set->mode = argv[i] + sizeof name - 1;
        } else {
            argv[kept++] = argv[i];
        }
    }
    *argc = kept;
    if (set->mode == NULL || set->mode[0] == 0 || strlen(set->mode) >= OPTION_TEXT_MAX) {
        log_error("set: give mode=MODE, such as mode=ssp:3");
        return false;
    }
    return true;
}

/* Of a worker's flags only those that say how to reach the coordinator. False, logged. */
static bool flags_fit(const struct set *set) {
    static const char *const ours[] = {"join", "key-file", "insecure", "log-level"};
    for (size_t i = 0; i < job_table_count; i++) {
        bool is_ours = false;
        for (size_t k = 0; k < sizeof ours / sizeof ours[0]; k++) {
            is_ours = is_ours || strcmp(job_table[i].name, ours[k]) == 0;
        }
        if (!is_ours && set->options.origins[i] == ORIGIN_FLAG) {
            log_error("set: --%s does not change in a running job; only mode=MODE does",
                      job_table[i].name);
            return false;
        }
    }
    if (set->job.join[0] == 0) {
        log_error("set: give --join HOST:PORT, the job's coordinator");
        return false;
    }
    return true;
}

static int set_run(int argc, char **argv) {
    static struct set set; /* too large for a stack */
    set = (struct set){.exit_code = EXIT_CODE_USAGE};
    if (options_wants(argc, argv, "--help")) {
        fputs(usage, stdout);
        return EXIT_CODE_OK;
    }
    options_init(&set.options, job_table, job_table_count, &set.job);
    if (!take_mode(&set, &argc, argv) ||
        options_parse(&set.options, JOB_WORKER, argc, argv) != STATUS_OK || !flags_fit(&set)) {
        return EXIT_CODE_USAGE;
    }
    enum status status = endpoint_init(&set.endpoint, &set.job);
    if (status == STATUS_OK) status = message_scratch_init(&set.scratch, MESSAGE_MAX);
    if (status == STATUS_OK) status = endpoint_open_control(&set.endpoint, &set.control);
    if (status == STATUS_OK) {
        status = set.control->ops->dial(set.control, set.endpoint.host, set.endpoint.port,
                                        &set.connection);
    }
    if (status == STATUS_OK) {
        converse(&set);
    } else {
        set.exit_code = (int)status_exit_code(status);
    }
    if (set.control != NULL) set.control->ops->close(set.control, 0);
    message_scratch_free(&set.scratch);
    return set.exit_code;
}

const struct subcommand set_subcommand = {
    .name = "set",
    .summary = "change the mode of a running job",
    .run = set_run,
};
