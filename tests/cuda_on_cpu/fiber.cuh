/* fiber.cuh - a stack of its own for each CUDA thread, and the switch between two of them.
 *
 * A switch saves the registers that a called function must keep and exchanges the stack pointer:
 * some 15 instructions, where a thread of the system would cost microseconds. The sanitizers are
 * told of each switch; for the thread sanitizer a fiber is a thread, and a switch orders nothing.
 * Below each stack lies a page that faults, against overflow.
 */
#ifndef RUBATO_TESTS_FIBER_CUH
#define RUBATO_TESTS_FIBER_CUH

#include <stddef.h>

namespace cuda_on_cpu {

struct fiber {
    void *stack_pointer; /* while another runs */
    char *stack;         /* its lower end; the host thread's own for fiber_host() */
    size_t stack_bytes;
    void *asan_frames;
    void *tsan_thread;
};

/* Maps the stack, once; does nothing the second time. False: no memory. */
bool fiber_open(struct fiber *fiber);

/* The next switch to the fiber calls entry(), which never returns and begins with
 * fiber_arrived(). colour spreads the frames of many fibers over the cache's sets. */
void fiber_restart(struct fiber *fiber, void (*entry)(void), unsigned colour);

/* Makes `host` the calling host thread, which can be switched back to. */
void fiber_host(struct fiber *host);

/* Leaves `from`, the running fiber, for `to`; returns when somebody switches back. */
void fiber_switch(struct fiber *from, struct fiber *to);
void fiber_arrived(struct fiber *self);

} // namespace cuda_on_cpu

#endif
