#include "worker/session_thread.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/signals.h"

#include <signal.h>
#include <stdio.h>

/* Exchanges after which every buffer has been used once; later the loop must not allocate. */
enum { WARM_ANSWERS = 64 };

static void take_signal(struct session_thread *thread) {
    char reason[64];
    int number = signals_read(thread->signals);
    if (number == SIGTERM && session_ask_to_leave(thread->session)) {
        log_info("SIGTERM: leaving the job after the step under way; once more ends it at once");
    } else if (number != 0) {
        (void)snprintf(reason, sizeof reason, "interrupted by %s", signals_name(number));
        log_info("%s: leaving the job", reason);
        member_leave(&thread->session->member, reason, SIGNALS_EXIT_BASE + number);
    }
}

static void sleep_until(struct session_thread *thread, int64_t deadline_ns) {
    struct session *session = thread->session;
    struct control *control = session->config.member.control;
    struct channel *channel = session->exchanging ? session->channel : NULL;
    int fds[4] = {thread->wake.fd, thread->signals, control->ops->wait_fd(control), -1};
    if (channel != NULL) {
        if (channel->ops->arm(channel) != STATUS_OK) {
            return;
        }
        fds[3] = channel->ops->wait_fd(channel);
    }
    int64_t left_ns = deadline_ns - clock_now_ns();
    wake_wait(fds, 4, left_ns > 0 ? left_ns : 0);
}

static void *run(void *argument) {
    struct session_thread *thread = argument;
    struct session *session = thread->session;
    while (!atomic_load(&thread->stop)) {
        wake_clear(&thread->wake);
        take_signal(thread);
        bool warm = session->exchanging && session->exchange.counters.answers > WARM_ANSWERS;
        memory_forbid(warm && !session->ended);
        bool worked = session_poll(session, clock_now_ns());
        memory_forbid(false);
        if (!idle_looks_again(&thread->idle, worked, clock_now_ns())) {
            sleep_until(thread,
                        session->ended ? clock_now_ns() + CLOCK_S : session_deadline_ns(session));
        }
    }
    return NULL;
}

enum status session_thread_start(struct session_thread *thread, struct session *session,
                                 int signals) {
    thread->session = session;
    thread->signals = signals;
    atomic_init(&thread->stop, false);
    TRY(idle_init(&thread->idle, session->job->poll, clock_now_ns()));
    if (pthread_create(&thread->thread, NULL, run, thread) != 0) {
        log_error("no thread for the session");
        return STATUS_MEMORY;
    }
    return STATUS_OK;
}

void session_thread_stop(struct session_thread *thread) {
    atomic_store(&thread->stop, true);
    wake_signal(&thread->wake);
    (void)pthread_join(thread->thread, NULL);
}
