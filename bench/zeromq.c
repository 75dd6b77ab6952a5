/* bench_zeromq BYTES SECONDS: what a push costs over ZeroMQ alone, on which dmlc ps-lite is built.
 *
 * Two processes send as ps-lite does over TCP: a push is a message of four parts (head, keys,
 * values, lengths) from a DEALER to a ROUTER, the values without a copy, and has a short answer; 64
 * are in flight, as when ps-lite itself was measured. Head, keys and lengths are of a few bytes,
 * nothing is looked up, and no thread is but ZeroMQ's own, so ps-lite costs more. Prints a line of
 * JSON: GB/s of values, and processor time of both processes, user and system. bench/exchange.py
 * runs it in turns with ours.
 */
#include "base/clock.h"
#include "base/memory.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

enum { IN_FLIGHT = 64, LIMIT_MS = 60000, ADDRESS_BYTES = 64, HEAD_BYTES = 64 };

static int must(int result, const char *what) {
    if (result >= 0) return result;
    (void)fprintf(stderr, "bench_zeromq: %s: %s\n", what, zmq_strerror(zmq_errno()));
    exit(1);
}

/* No call to it waits longer than LIMIT_MS. */
static void *open_socket(void **context, int kind) {
    *context = zmq_ctx_new();
    void *socket = zmq_socket(*context, kind);
    const int limit_ms = LIMIT_MS, linger_ms = 0;
    must(socket ? 0 : -1, "socket");
    must(zmq_setsockopt(socket, ZMQ_RCVTIMEO, &limit_ms, sizeof limit_ms), "RCVTIMEO");
    must(zmq_setsockopt(socket, ZMQ_SNDTIMEO, &limit_ms, sizeof limit_ms), "SNDTIMEO");
    must(zmq_setsockopt(socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms), "LINGER");
    return socket;
}

static void close_socket(void *context, void *socket) {
    must(zmq_close(socket), "close");
    must(zmq_ctx_term(context), "term");
}

/* Drops all parts of a message but the sender's name -> how many they were. */
static int drop_parts(void *socket) {
    int parts = 0;
    for (bool more = true; more; parts++) {
        zmq_msg_t part;
        must(zmq_msg_init(&part), "msg_init");
        must(zmq_msg_recv(&part, socket, 0), "msg_recv");
        more = zmq_msg_more(&part) != 0;
        must(zmq_msg_close(&part), "msg_close");
    }
    return parts;
}

/* The other process: tells its address, answers until a message of one part comes. */
static void serve(int address_fd) {
    void *context, *socket = open_socket(&context, ZMQ_ROUTER);
    char address[ADDRESS_BYTES] = "";
    size_t bytes = sizeof address;
    must(zmq_bind(socket, "tcp://127.0.0.1:*"), "bind");
    must(zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, address, &bytes), "LAST_ENDPOINT");
    if (write(address_fd, address, sizeof address) != (ssize_t)sizeof address) exit(1);
    for (int parts = 0; parts != 1;) {
        zmq_msg_t name;
        must(zmq_msg_init(&name), "msg_init");
        must(zmq_msg_recv(&name, socket, 0), "msg_recv");
        parts = drop_parts(socket);
        must(zmq_msg_send(&name, socket, ZMQ_SNDMORE), "msg_send");
        must(zmq_send(socket, "done", 4, 0), "send");
    }
    char end; /* the last answer has arrived when the other end has closed */
    if (read(address_fd, &end, 1) != 0) exit(1);
    close_socket(context, socket);
}

/* How many values of this size are pushed in turn: as bench/exchange.py has of ours under way. */
static size_t in_turn(size_t bytes) {
    size_t count = ((size_t)8 << 20) / bytes;
    return count > 4 ? count : 4;
}

/* The values outlive all messages. */
static void keep(void *values, void *hint) {
    (void)values;
    (void)hint;
}

static void send_push(void *socket, char *values, size_t bytes) {
    static const char head[HEAD_BYTES] = "head";
    zmq_msg_t part;
    must(zmq_send(socket, head, sizeof head, ZMQ_SNDMORE), "send");
    must(zmq_send(socket, head, sizeof(uint64_t), ZMQ_SNDMORE), "send");
    must(zmq_msg_init_data(&part, values, bytes, keep, NULL), "msg_init_data");
    must(zmq_msg_send(&part, socket, ZMQ_SNDMORE), "msg_send");
    must(zmq_send(socket, head, sizeof(int), 0), "send");
}

/* Pushes values [in_turn(bytes)][bytes] for so long -> pushes that were answered. */
static uint64_t push_all(void *socket, char *values, size_t bytes, int64_t end_ns) {
    uint64_t sent = 0, answered = 0;
    char answer[8];
    do {
        for (bool on = clock_now_ns() < end_ns; on && sent < answered + IN_FLIGHT; sent++) {
            send_push(socket, values + sent % in_turn(bytes) * bytes, bytes);
        }
        must(zmq_recv(socket, answer, sizeof answer, 0), "recv");
    } while (++answered < sent);
    return answered;
}

static double cpu_seconds(int who) {
    struct rusage used;
    if (getrusage(who, &used) != 0) exit(1);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

static int run(size_t bytes, double seconds, int address_fd) {
    void *context, *socket = open_socket(&context, ZMQ_DEALER);
    char address[ADDRESS_BYTES], answer[8];
    if (read(address_fd, address, sizeof address) != (ssize_t)sizeof address) return 1;
    char *values = memory_zeroed(in_turn(bytes), bytes);
    memset(values, 'x', in_turn(bytes) * bytes);
    must(zmq_connect(socket, address), "connect");
    int64_t start_ns = clock_now_ns();
    uint64_t count = push_all(socket, values, bytes, start_ns + (int64_t)(seconds * CLOCK_S));
    double gb = 1e-9 * (double)count * (double)bytes;
    double elapsed = (double)(clock_now_ns() - start_ns) / (double)CLOCK_S;
    must(zmq_send(socket, "end", 3, 0), "send");
    must(zmq_recv(socket, answer, sizeof answer, 0), "recv");
    close_socket(context, socket);
    free(values);
    int code = 0;
    if (close(address_fd) != 0 || wait(&code) < 0 || code != 0) return 1;
    double cpu = cpu_seconds(RUSAGE_SELF) + cpu_seconds(RUSAGE_CHILDREN);
    printf("{\"gb_s\": %.4f, \"cpu_s_gb\": %.4f}\n", gb / elapsed, cpu / gb);
    return 0;
}

int main(int argc, char **argv) {
    size_t bytes = argc == 3 ? strtoull(argv[1], NULL, 10) : 0;
    double seconds = argc == 3 ? strtod(argv[2], NULL) : 0;
    int ends[2];
    if (bytes == 0 || !(seconds > 0)) {
        (void)fputs("usage: bench_zeromq BYTES SECONDS\n", stderr);
        return 2;
    }
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return 1;
    pid_t child = fork();
    if (child < 0) return 1;
    (void)close(ends[child == 0 ? 0 : 1]);
    if (child > 0) return run(bytes, seconds, ends[0]);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* it must not outlive the one that measures */
    serve(ends[1]);
    return 0;
}
