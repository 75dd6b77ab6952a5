#include "server/admission.h"

enum admission admission_push(const struct admission_record *record, uint64_t session,
                              uint64_t seq) {
    if (session != record->session) {
        return ADMISSION_STALE;
    }
    if (seq <= record->applied_seq) {
        return ADMISSION_APPLIED;
    }
    if (seq == record->held_seq) {
        return ADMISSION_HELD;
    }
    if (seq != record->applied_seq + 1 || record->held_seq != 0) {
        return ADMISSION_BREACH;
    }
    return ADMISSION_NEW;
}

bool admission_answer(const struct discipline *discipline, uint64_t clock, uint64_t slowest) {
    if (discipline->staleness < 0 || clock <= slowest) {
        return true;
    }
    return clock - slowest <= (uint64_t)discipline->staleness;
}

bool admission_by_round(const struct discipline *discipline) {
    return discipline->quorum == 0;
}
