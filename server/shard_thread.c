#include "server/shard_thread.h"

#include "base/clock.h"
#include "base/log.h"

/* Nothing else wakes a shard than its channel, its bell and its deadline; this is a net below. */
#define SLEEP_MAX_NS (INT64_C(1) * CLOCK_S)

/* By then every buffer has been used once; later the step loop must not allocate. */
enum { WARM_PUSHES = 64 };

static int64_t sleep_ns(const struct shard *shard) {
    int64_t deadline_ns = shard_deadline_ns(shard);
    int64_t left_ns = deadline_ns == INT64_MAX ? SLEEP_MAX_NS : deadline_ns - clock_now_ns();
    left_ns = left_ns > 0 ? left_ns : 0;
    return left_ns < SLEEP_MAX_NS ? left_ns : SLEEP_MAX_NS;
}

static void *run(void *argument) {
    struct shard_thread *thread = argument;
    struct shard *shard = thread->shard;
    struct channel *channel = shard->config.channel;
    int fds[2] = {channel->ops->wait_fd(channel), thread->wake.fd};
    while (!atomic_load(&thread->stop)) {
        wake_clear(&thread->wake);
        memory_forbid(shard->counters.pushes > WARM_PUSHES);
        bool worked = shard_poll(shard, clock_now_ns());
        memory_forbid(false);
        if (!idle_looks_again(&thread->idle, worked, clock_now_ns()) &&
            channel->ops->arm(channel) == STATUS_OK) {
            wake_wait(fds, 2, sleep_ns(shard));
        }
    }
    return NULL;
}

enum status shard_thread_start(struct shard_thread *thread, struct shard *shard) {
    thread->shard = shard;
    atomic_init(&thread->stop, false);
    TRY(idle_init(&thread->idle, shard->config.job->poll, clock_now_ns()));
    TRY(wake_init(&thread->wake));
    if (pthread_create(&thread->thread, NULL, run, thread) != 0) {
        log_error("no thread for shard %llu", (unsigned long long)shard->config.id);
        wake_free(&thread->wake);
        return STATUS_MEMORY;
    }
    return STATUS_OK;
}

void shard_thread_stop(struct shard_thread *thread) {
    atomic_store(&thread->stop, true);
    wake_signal(&thread->wake);
    (void)pthread_join(thread->thread, NULL);
    wake_free(&thread->wake);
}
