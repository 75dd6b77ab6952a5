/* fiber.cpp - see fiber.cuh. The switch is written out for x86-64 and aarch64. */
#include "fiber.cuh"

#include "sanitizer_hooks.cuh"

#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>

#if defined(CUDA_ON_CPU_ASAN)
#include <sanitizer/common_interface_defs.h>
#endif

/* Pushes what a callee keeps, stores the stack pointer to *save, loads `load` and pops. */
extern "C" void cuda_on_cpu_switch(void **save, void *load);

#if defined(__x86_64__)
__asm__(R"(
.text
.globl cuda_on_cpu_switch
.hidden cuda_on_cpu_switch
.type cuda_on_cpu_switch,@function
cuda_on_cpu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp,(%rdi)
    movq %rsi,%rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size cuda_on_cpu_switch,.-cuda_on_cpu_switch
)");
// Six registers, then the address that ret takes, then a return address that nobody uses: so the
// stack is aligned in entry() as after a call.
enum { FRAME_WORDS = 8, ENTRY_WORD = 6 };
#elif defined(__aarch64__)
__asm__(R"(
.text
.globl cuda_on_cpu_switch
.hidden cuda_on_cpu_switch
.type cuda_on_cpu_switch,%function
cuda_on_cpu_switch:
    sub sp,sp,#160
    stp x19,x20,[sp,#0]
    stp x21,x22,[sp,#16]
    stp x23,x24,[sp,#32]
    stp x25,x26,[sp,#48]
    stp x27,x28,[sp,#64]
    stp x29,x30,[sp,#80]
    stp d8,d9,[sp,#96]
    stp d10,d11,[sp,#112]
    stp d12,d13,[sp,#128]
    stp d14,d15,[sp,#144]
    mov x9,sp
    str x9,[x0]
    mov sp,x1
    ldp x19,x20,[sp,#0]
    ldp x21,x22,[sp,#16]
    ldp x23,x24,[sp,#32]
    ldp x25,x26,[sp,#48]
    ldp x27,x28,[sp,#64]
    ldp x29,x30,[sp,#80]
    ldp d8,d9,[sp,#96]
    ldp d10,d11,[sp,#112]
    ldp d12,d13,[sp,#128]
    ldp d14,d15,[sp,#144]
    add sp,sp,#160
    ret
.size cuda_on_cpu_switch,.-cuda_on_cpu_switch
)");
enum { FRAME_WORDS = 20, ENTRY_WORD = 11 };
#else
#error "the stand-in's switch of stacks is written for x86-64 and aarch64 only"
#endif

namespace cuda_on_cpu {

static const size_t GUARD_BYTES = 64 << 10; // at least a page, also where pages are of 64 KiB
static const size_t STACK_BYTES = (WITH_ASAN || WITH_TSAN ? 256 : 64) << 10;

bool fiber_open(struct fiber *fiber) {
    if (fiber->stack != nullptr) return true;
    char *map = (char *)mmap(nullptr, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED || mprotect(map, GUARD_BYTES, PROT_NONE) != 0) return false;
    fiber->stack = map + GUARD_BYTES;
    fiber->stack_bytes = STACK_BYTES;
#if defined(CUDA_ON_CPU_TSAN)
    fiber->tsan_thread = __tsan_create_fiber(0);
#endif
    return true;
}

void fiber_restart(struct fiber *fiber, void (*entry)(void), unsigned colour) {
    char *top = fiber->stack + fiber->stack_bytes - (size_t)(colour % 29) * 192;
    void **frame = (void **)((uintptr_t)top & ~(uintptr_t)15) - FRAME_WORDS;
    for (int i = 0; i < FRAME_WORDS; i++)
        frame[i] = nullptr;
    frame[ENTRY_WORD] = (void *)entry;
    fiber->stack_pointer = frame;
}

void fiber_host(struct fiber *host) {
    *host = {};
#if defined(CUDA_ON_CPU_TSAN)
    host->tsan_thread = __tsan_get_current_fiber();
#endif
#if defined(CUDA_ON_CPU_ASAN)
    static thread_local void *stack;
    static thread_local size_t bytes;
    if (stack == nullptr) {
        pthread_attr_t attributes;
        pthread_getattr_np(pthread_self(), &attributes);
        pthread_attr_getstack(&attributes, &stack, &bytes);
        pthread_attr_destroy(&attributes);
    }
    host->stack = (char *)stack;
    host->stack_bytes = bytes;
#endif
}

void fiber_switch(struct fiber *from, struct fiber *to) {
#if defined(CUDA_ON_CPU_ASAN)
    __sanitizer_start_switch_fiber(&from->asan_frames, to->stack, to->stack_bytes);
#elif defined(CUDA_ON_CPU_TSAN)
    __tsan_switch_to_fiber(to->tsan_thread, __tsan_switch_to_fiber_no_sync);
#endif
    cuda_on_cpu_switch(&from->stack_pointer, to->stack_pointer);
    fiber_arrived(from);
}

void fiber_arrived([[maybe_unused]] struct fiber *self) {
#if defined(CUDA_ON_CPU_ASAN)
    __sanitizer_finish_switch_fiber(self->asan_frames, nullptr, nullptr);
#endif
}

} // namespace cuda_on_cpu
