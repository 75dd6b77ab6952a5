#include "worker/gate.h"

#include "base/clock.h"
#include "worker/step.h"

/* Are all blocks with values of the tensors installed, as the last report left them? */
static bool are_here(const struct trainer *trainer, uint64_t first, uint64_t count) {
    const struct bucket *bucket = &trainer->bucket;
    const struct exchange *exchange = &trainer->config.session->exchange;
    for (uint64_t tensor = first; tensor < first + count; tensor++) {
        for (uint64_t id = bucket->first_block[tensor]; id <= bucket->last_block[tensor]; id++) {
            if (trainer->plan->blocks[id].fragment != PLAN_FROZEN &&
                exchange_answered(exchange, id) < (uint64_t)trainer->reports_done) {
                return false;
            }
        }
    }
    return true;
}

bool gate_is_open(const struct trainer *trainer) {
    return trainer->config.await != NULL && trainer->job->forward_overlap &&
           trainer->reports_done > 0 && !atomic_load(&trainer->config.session->over) &&
           !step_validates(trainer) && are_here(trainer, 0, model_first_tensors(&trainer->shape));
}

/* Sleeps until the session may have done something; false when the job has ended. Its leases and
 * deadlines end every wait. */
static bool await(struct trainer *trainer) {
    if (atomic_load(&trainer->config.session->over)) {
        return false;
    }
    int64_t start_ns = clock_now_ns();
    trainer->config.await(trainer->config.await_context);
    trainer->step.forward_wait_ns += clock_now_ns() - start_ns;
    return true;
}

bool gate_wait(void *context, uint64_t first, uint64_t count) {
    struct trainer *trainer = context;
    while (!are_here(trainer, first, count)) {
        if (!await(trainer)) {
            return false;
        }
    }
    return true;
}

bool gate_settle(struct trainer *trainer) {
    while (!trainer->answered) {
        if (!trainer_listen(trainer) && !await(trainer)) {
            return false;
        }
    }
    return true;
}
