#include "transport/member.h"

#include "base/clock.h"
#include "base/log.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NO_CONNECTION   UINT32_MAX
#define PROTOCOL        1
#define BACKOFF_NS      (200 * CLOCK_MS)
#define FIRST_NAG_NS    (1 * CLOCK_S)
#define NAG_NS          (10 * CLOCK_S)
#define DIAL_POLL_NS    (500 * CLOCK_MS) /* control's own time limits are looked at when polled */
#define EXIT_CODE_LIMIT 255

static const struct job *job_of(const struct member *member) {
    return member->config.options->config;
}

static int64_t join_deadline_ns(const struct member *member) {
    if (member->config.patient) return INT64_MAX;
    return member->started_ns + job_join_timeout_ns(job_of(member));
}

/* Text that came over the network, fit for a log: what is no printable ASCII becomes '?', newlines
 * stay where `lines` says so. */
static void copy_text(char *to, size_t bytes, const char *from, bool lines) {
    size_t used = 0;
    for (; *from != 0 && used + 1 < bytes; from++) {
        unsigned char c = (unsigned char)*from;
        bool kept = (c < 128 && isprint(c)) || (lines && c == '\n');
        to[used++] = kept ? (char)c : '?';
    }
    to[used] = 0;
}

enum status member_init(struct member *member, const struct member_config *config, int64_t now_ns) {
    memset(member, 0, sizeof(*member));
    member->config = *config;
    member->connection = NO_CONNECTION;
    member->started_ns = member->dial_at_ns = member->polled_ns = now_ns;
    member->nag_at_ns = now_ns + FIRST_NAG_NS;
    member->backoff_ns = BACKOFF_NS;
    snprintf(member->failure, sizeof(member->failure), "no answer yet");
    random_open(&member->jitter, config->seed, RANDOM_BACKOFF, config->role);
    member->packed = malloc(MESSAGE_MAX);
    if (member->packed == NULL) {
        log_error("no memory for the messages of the join");
        return STATUS_MEMORY;
    }
    enum status status = message_scratch_init(&member->scratch, MESSAGE_MAX * 8);
    if (status != STATUS_OK) {
        log_error("no memory for the messages of the join");
        free(member->packed);
        member->packed = NULL;
    }
    return status;
}

void member_free(struct member *member) {
    message_scratch_free(&member->scratch);
    free(member->packed);
    member->packed = NULL;
}

static void hang_up(struct member *member) {
    if (member->connection == NO_CONNECTION) return;
    member->config.control->ops->hang_up(member->config.control, member->connection);
    member->connection = NO_CONNECTION;
}

static void log_lines(int exit_code, const char *text) {
    char line[512];
    while (*text != 0) {
        size_t length = strcspn(text, "\n");
        snprintf(line, sizeof(line), "%.*s", (int)(length < sizeof(line) ? length : sizeof(line)),
                 text);
        copy_text(line, sizeof(line), line, false);
        if (line[0] != 0) log_write(exit_code != 0 ? LOG_ERROR : LOG_INFO, "%s", line);
        text += length;
        if (*text == '\n') text++;
    }
}

static void finish(struct member *member, int exit_code) {
    member->state = MEMBER_ENDED;
    member->exit_code = exit_code;
    hang_up(member);
}

static void __attribute__((format(printf, 3, 4)))
end(struct member *member, int exit_code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(member->reason, sizeof(member->reason), format, arguments);
    va_end(arguments);
    log_lines(exit_code, member->reason);
    finish(member, exit_code);
}

enum status member_send(struct member *member, const Rubato__Message *message) {
    size_t bytes = 0;
    if (member->connection == NO_CONNECTION) return STATUS_PEER_LOST;
    TRY(message_pack(message, member->packed, MESSAGE_MAX, &bytes));
    return member->config.control->ops->send(member->config.control, member->connection,
                                             member->packed, bytes);
}

static void send_join(struct member *member) {
    struct job_values given;
    Rubato__Pair pairs[JOB_AGREED_MAX];
    Rubato__Pair *pointers[JOB_AGREED_MAX];
    char host[256] = "", build[] = RUBATO_VERSION;
    (void)gethostname(host, sizeof(host) - 1); // on failure the name stays empty
    job_given(member->config.options, false, &given);
    for (size_t i = 0; i < given.count; i++) {
        rubato__pair__init(&pairs[i]);
        pairs[i].name = (char *)given.names[i];
        pairs[i].value = given.values[i];
        pointers[i] = &pairs[i];
    }
    Rubato__Join join = RUBATO__JOIN__INIT;
    join.protocol = PROTOCOL;
    join.role = member->config.role;
    join.host = host;
    join.pid = (uint64_t)getpid();
    join.shards = member->config.shards;
    join.place = (uint32_t)(job_of(member)->index + 1);
    join.n_given = given.count;
    join.given = pointers;
    join.build = build;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    message.body_case = RUBATO__MESSAGE__BODY_JOIN;
    message.join = &join;
    // A connection that is lost already says so by its event.
    (void)!member_send(member, &message);
}

static void send_beat(struct member *member, int64_t now_ns) {
    Rubato__Beat beat = RUBATO__BEAT__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    beat.step = member->step;
    beat.tokens = member->tokens;
    beat.speed = member->speed;
    message.body_case = RUBATO__MESSAGE__BODY_BEAT;
    message.beat = &beat;
    member->beat_at_ns = now_ns + job_heartbeat_ns(job_of(member));
    // Full: the coordinator has unread Beats enough. Lost: there will be an event.
    (void)!member_send(member, &message);
}

/* A dial, or a connection without Assign, has failed: again after a pause. */
static void retry(struct member *member, const char *why, int64_t now_ns) {
    int64_t lease_ns = job_lease_ns(job_of(member));
    float spread = 0.75f + 0.5f * random_unit(&member->jitter);
    int64_t backoff_ns = member->backoff_ns < lease_ns ? member->backoff_ns : lease_ns;
    member->state = MEMBER_DIALING;
    member->connection = NO_CONNECTION;
    member->dial_at_ns = now_ns + (int64_t)((float)backoff_ns * spread);
    member->backoff_ns = 2 * backoff_ns;
    copy_text(member->failure, sizeof(member->failure), why, false);
}

static void dial(struct member *member, int64_t now_ns) {
    struct control *control = member->config.control;
    uint32_t connection;
    enum status status =
        control->ops->dial(control, member->config.host, member->config.port, &connection);
    if (status == STATUS_OK) {
        member->connection = connection;
    } else {
        retry(member, "the connection could not even be started", now_ns);
    }
}

static void log_waiting(struct member *member, int64_t now_ns) {
    const char *host = member->config.host, *port = member->config.port;
    int64_t left_ns = join_deadline_ns(member) - now_ns;
    member->nag_at_ns = now_ns + NAG_NS;
    if (member->state == MEMBER_DIALING && member->config.patient) {
        log_info("waiting for the coordinator at %s:%s (%s)", host, port, member->failure);
    } else if (member->state == MEMBER_DIALING) {
        log_info("waiting for the coordinator at %s:%s (%s), %lld s left", host, port,
                 member->failure, (long long)((left_ns + CLOCK_S / 2) / CLOCK_S));
    } else {
        log_info("waiting for %s (coordinator %s:%s)", member->missing, host, port);
    }
}

static void take_waiting(struct member *member, const Rubato__Waiting *waiting, int64_t now_ns) {
    char missing[sizeof(member->missing)];
    if (member->going) return;
    copy_text(missing, sizeof(missing), waiting->missing, false);
    if (missing[0] == 0 || strcmp(missing, member->missing) == 0) return;
    memcpy(member->missing, missing, sizeof(missing));
    log_waiting(member, now_ns);
}

/* The reason may be a diff of many lines: all of it is logged, and its beginning kept. */
static void take_end(struct member *member, const Rubato__End *message) {
    int exit_code =
        message->exit_code <= EXIT_CODE_LIMIT ? (int)message->exit_code : EXIT_CODE_PROTOCOL;
    if (message->reason[0] == 0 && exit_code != 0) {
        end(member, exit_code, "coordinator %s:%s ended the job with exit code %d",
            member->config.host, member->config.port, exit_code);
        return;
    }
    copy_text(member->reason, sizeof(member->reason), message->reason, true);
    log_lines(exit_code, message->reason);
    finish(member, exit_code);
}

static bool take_assign(struct member *member, const Rubato__Assign *assign, int64_t now_ns) {
    struct job_values values;
    if (assign->n_agreed > JOB_AGREED_MAX) {
        end(member, EXIT_CODE_PROTOCOL, "coordinator %s:%s sent too many options",
            member->config.host, member->config.port);
        return false;
    }
    values.count = assign->n_agreed;
    for (size_t i = 0; i < values.count; i++) {
        size_t length = strlen(assign->agreed[i]->value);
        if (length >= OPTION_TEXT_MAX) {
            end(member, EXIT_CODE_PROTOCOL, "coordinator %s:%s sent an option that is too long",
                member->config.host, member->config.port);
            return false;
        }
        values.names[i] = assign->agreed[i]->name;
        memcpy(values.values[i], assign->agreed[i]->value, length + 1);
    }
    if (job_adopt(member->config.options, &values) != STATUS_OK) {
        end(member, EXIT_CODE_MISMATCH, "the options of the job at %s:%s do not suit this process",
            member->config.host, member->config.port);
        return false;
    }
    member->job = assign->job;
    member->epoch = assign->epoch;
    member->session = assign->session;
    member->index = assign->index;
    member->first_shard = assign->first_shard;
    member->shard_count = assign->shard_count;
    member->state = MEMBER_ACTIVE;
    snprintf(member->missing, sizeof(member->missing), "all members to get ready");
    member->nag_at_ns = now_ns + NAG_NS;
    member->beat_at_ns = now_ns;
    return true;
}

/* Handles what is the member's own; true when the message is for the owner. */
static bool take_message(struct member *member, const Rubato__Message *message, int64_t now_ns) {
    bool active = member->state == MEMBER_ACTIVE;
    switch (message->body_case) {
    case RUBATO__MESSAGE__BODY_WAITING:
        take_waiting(member, message->waiting, now_ns);
        return false;
    case RUBATO__MESSAGE__BODY_BEAT:
        member->job_tokens = message->beat->tokens;
        member->job_speed = message->beat->speed;
        member->job_workers = message->beat->workers;
        return false;
    case RUBATO__MESSAGE__BODY_END:
        take_end(member, message->end);
        return false;
    case RUBATO__MESSAGE__BODY_ASSIGN:
        if (!active) return take_assign(member, message->assign, now_ns);
        break;
    case RUBATO__MESSAGE__BODY_GO:
        member->going = member->going || active;
        if (active) return true;
        break;
    case RUBATO__MESSAGE__BODY_TENSORS:
    case RUBATO__MESSAGE__BODY_START:
    case RUBATO__MESSAGE__BODY_VERDICT:
    case RUBATO__MESSAGE__BODY_CLOSE:
    case RUBATO__MESSAGE__BODY_DROP:
    case RUBATO__MESSAGE__BODY_GONE:
    case RUBATO__MESSAGE__BODY_CHANGE:
    case RUBATO__MESSAGE__BODY_DRAINED:
        if (active) return true;
        break;
    default:
        break;
    }
    end(member, EXIT_CODE_PROTOCOL, "coordinator %s:%s sent a message out of turn: %s",
        member->config.host, member->config.port, message_name(message));
    return false;
}

static void take_closed(struct member *member, const struct control_event *event, int64_t now_ns) {
    const char *host = member->config.host, *port = member->config.port;
    member->connection = NO_CONNECTION;
    if (event->status == STATUS_DENIED) {
        end(member, EXIT_CODE_DENIED, "coordinator %s:%s: %s", host, port, event->text);
    } else if (event->status == STATUS_CORRUPT) {
        end(member, EXIT_CODE_PROTOCOL, "coordinator %s:%s: %s", host, port, event->text);
    } else if (member->state == MEMBER_ACTIVE) {
        end(member, EXIT_CODE_UNREACHABLE, "coordinator %s:%s lost: %s", host, port, event->text);
    } else {
        retry(member, event->text, now_ns);
    }
}

/* True when *message is one for the owner. */
static bool take_event(struct member *member, const struct control_event *event, int64_t now_ns,
                       const Rubato__Message **message) {
    if (event->connection != member->connection || member->state == MEMBER_ENDED) return false;
    switch (event->kind) {
    case CONTROL_OPENED:
        member->state = MEMBER_JOINING;
        member->heard_ns = now_ns;
        member->nag_at_ns = now_ns + FIRST_NAG_NS;
        snprintf(member->missing, sizeof(member->missing), "an answer to the join");
        send_join(member);
        return false;
    case CONTROL_CLOSED:
        take_closed(member, event, now_ns);
        return false;
    case CONTROL_PACKET:
        break;
    }
    member->heard_ns = now_ns;
    if (message_unpack(&member->scratch, event->packet, event->packet_bytes, message) !=
        STATUS_OK) {
        end(member, EXIT_CODE_PROTOCOL, "coordinator %s:%s sent a message that cannot be read",
            member->config.host, member->config.port);
        return false;
    }
    return take_message(member, *message, now_ns);
}

/* What is due by the clock, once everything that came in has been read. */
static void tick(struct member *member, int64_t now_ns) {
    const char *host = member->config.host, *port = member->config.port;
    const struct job *job = job_of(member);
    bool dialing = member->state == MEMBER_DIALING;
    if (!dialing && now_ns - member->heard_ns >= job_lease_ns(job)) {
        end(member, EXIT_CODE_UNREACHABLE, "coordinator %s:%s silent for %.1f s (lease)", host,
            port, (double)(now_ns - member->heard_ns) / (double)CLOCK_S);
        return;
    }
    if (!member->going && now_ns >= join_deadline_ns(member)) {
        double seconds = (double)job_join_timeout_ns(job) / (double)CLOCK_S;
        if (dialing) {
            end(member, EXIT_CODE_UNREACHABLE, "no coordinator at %s:%s within %.0f s (%s)", host,
                port, seconds, member->failure);
        } else {
            end(member, EXIT_CODE_UNREACHABLE,
                "the job did not start within %.0f s: waiting for %s (coordinator %s:%s)", seconds,
                member->missing, host, port);
        }
        return;
    }
    if (dialing && member->connection == NO_CONNECTION && now_ns >= member->dial_at_ns) {
        dial(member, now_ns);
    }
    if (!member->going && now_ns >= member->nag_at_ns) log_waiting(member, now_ns);
}

const Rubato__Message *member_poll(struct member *member, int64_t now_ns) {
    struct control *control = member->config.control;
    const Rubato__Message *message = NULL;
    struct control_event event;
    member->polled_ns = now_ns;
    if (member->state == MEMBER_ACTIVE && now_ns >= member->beat_at_ns) send_beat(member, now_ns);
    while (control->ops->poll(control, now_ns, &event)) {
        if (take_event(member, &event, now_ns, &message)) return message;
    }
    if (member->state != MEMBER_ENDED) tick(member, now_ns);
    return NULL;
}

static int64_t earlier(int64_t a, int64_t b) {
    return a < b ? a : b;
}

int64_t member_deadline_ns(const struct member *member) {
    int64_t next_ns = INT64_MAX;
    if (member->state == MEMBER_ENDED) return next_ns;
    if (!member->going) next_ns = earlier(member->nag_at_ns, join_deadline_ns(member));
    if (member->state == MEMBER_DIALING) {
        bool under_way = member->connection != NO_CONNECTION;
        return earlier(next_ns, under_way ? member->polled_ns + DIAL_POLL_NS : member->dial_at_ns);
    }
    next_ns = earlier(next_ns, member->heard_ns + job_lease_ns(job_of(member)));
    return member->state == MEMBER_ACTIVE ? earlier(next_ns, member->beat_at_ns) : next_ns;
}

void member_leave(struct member *member, const char *reason, int exit_code) {
    if (member->state == MEMBER_ENDED) return;
    Rubato__Leave leave = RUBATO__LEAVE__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    copy_text(member->reason, sizeof(member->reason), reason, true);
    leave.reason = member->reason;
    leave.exit_code = (uint32_t)exit_code;
    leave.tokens = member->tokens;
    message.body_case = RUBATO__MESSAGE__BODY_LEAVE;
    message.leave = &leave;
    // Nobody to tell: then there is nobody who waits for it either.
    if (member->state != MEMBER_DIALING) (void)!member_send(member, &message);
    finish(member, exit_code);
}
