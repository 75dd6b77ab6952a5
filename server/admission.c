#include "server/admission.h"

#include "base/assert.h"

#include <math.h>
#include <string.h>

enum admission admission_push(const struct admission_record *record, uint64_t session, uint64_t seq,
                              uint64_t fragment, uint64_t fragments) {
    ASSERT(fragment < fragments);
    if (session != record->session) {
        return ADMISSION_STALE;
    }
    if (seq == 0 || (seq - 1) % fragments != fragment) {
        return ADMISSION_BREACH;
    }
    if (seq <= record->applied_seq) {
        return ADMISSION_APPLIED;
    }
    if (seq == record->held_seq) {
        return ADMISSION_HELD;
    }
    uint64_t next = record->applied_seq == 0 ? fragment + 1 : record->applied_seq + fragments;
    if (seq != next || record->held_seq != 0) {
        return ADMISSION_BREACH;
    }
    return ADMISSION_NEW;
}

bool admission_drops(const struct discipline *discipline, const struct admission_round *round,
                     uint64_t base_version, uint64_t version) {
    if (!discipline_by_round(discipline) || round->needs_all) {
        return false;
    }
    if (round->round > round->rounds) {
        return true; /* no round would ever close for it */
    }
    return base_version != version && !discipline->late_joins;
}

bool admission_answer(const struct discipline *discipline, uint64_t clock, uint64_t slowest) {
    if (discipline->staleness <= 0 || clock <= slowest) {
        return true;
    }
    return clock - slowest <= (uint64_t)discipline->staleness;
}

enum status admission_scale_find(const char *text, enum staleness_scale *scale) {
    static const char *const texts[] = {[STALENESS_SCALE_NONE] = "none",
                                        [STALENESS_SCALE_INVERSE] = "inverse",
                                        [STALENESS_SCALE_EXP] = "exp"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (strcmp(text, texts[i]) == 0) {
            *scale = (enum staleness_scale)i;
            return STATUS_OK;
        }
    }
    return STATUS_INVALID;
}

double admission_rate(enum staleness_scale scale, uint64_t staleness, uint32_t living) {
    double workers = living > 0 ? (double)living : 1;
    double usual = workers - 1;
    double excess = (double)staleness > usual ? (double)staleness - usual : 0;
    if (scale == STALENESS_SCALE_INVERSE) {
        return workers / (workers + excess);
    }
    return scale == STALENESS_SCALE_EXP ? exp(-excess / workers) : 1;
}
