/* report.cpp - the one way in which the stand-in complains, and its settings. */
#include "simt.cuh"

#include <cxxabi.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

namespace cuda_on_cpu {

// A static kernel is no dynamic symbol: addr2line (binutils) knows it from the debug information.
static std::string static_function_name(const Dl_info &library, const void *function) {
    char command[600], line[400] = "";
    snprintf(command, sizeof command, "addr2line -f -C -e '%s' %#zx 2>/dev/null", library.dli_fname,
             (size_t)((const char *)function - (const char *)library.dli_fbase));
    FILE *pipe = popen(command, "r");
    if (pipe == nullptr) return "?";
    if (fgets(line, sizeof line, pipe) == nullptr) line[0] = '\0';
    pclose(pipe);
    std::string name = line;
    return name.substr(0, name.find('\n'));
}

static std::string kernel_name(const void *function) {
    Dl_info info;
    if (function == nullptr || dladdr(function, &info) == 0) return "?";
    if (info.dli_sname == nullptr || info.dli_saddr != function)
        return static_function_name(info, function);
    int status = 0;
    char *plain = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
    std::string name = plain != nullptr ? plain : info.dli_sname;
    free(plain);
    return name;
}

std::string running_place() {
    char text[120];
    snprintf(text, sizeof text, " block (%u,%u,%u)", blockIdx.x, blockIdx.y, blockIdx.z);
    std::string place = "kernel " + kernel_name(running_kernel) + text;
    if (block.current == nullptr) return place;
    const uint3 index = block.current->index;
    snprintf(text, sizeof text, " thread (%u,%u,%u)", index.x, index.y, index.z);
    return place + text;
}

void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "cuda-on-cpu: ");
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    if (in_kernel) fprintf(stderr, "\n  in %s", running_place().c_str());
    fprintf(stderr, "\n");
    fflush(nullptr);
    abort();
}

const char *setting(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value != nullptr && value[0] != '\0' ? value : otherwise;
}

double setting_number(const char *name, double otherwise) {
    const char *text = setting(name, nullptr);
    if (text == nullptr) return otherwise;
    char *end = nullptr;
    double value = strtod(text, &end);
    if (*end != '\0' || !(value >= 0.0)) die("%s=%s; a number from 0 on is allowed", name, text);
    return value;
}

uint64_t random_next(uint64_t *state) { // xorshift64
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

uint64_t random_seeded(uint64_t stream) {
    uint64_t seed = (uint64_t)setting_number("CUDA_ON_CPU_SEED", 1.0);
    uint64_t state = (seed * 0x9E3779B97F4A7C15U ^ stream * 0xD1B54A32D192ED03U) | 1;
    for (int i = 0; i < 8; i++)
        random_next(&state);
    return state;
}

double seconds_now() {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

} // namespace cuda_on_cpu
