/* bench_pslite BYTES SECONDS: what a push costs over dmlc ps-lite itself, ZeroMQ and TCP.
 *
 * Three processes on the loopback interface: a scheduler, a server that answers at once and reads
 * no value, and this one, the worker. It pushes 64 keys over and over by ZPush, without a copy of
 * the values, which are 8 MiB or 4 blocks in turn, as of ours and of bench_zeromq; 64 pushes are in
 * flight. After a warm-up it prints a line of JSON, as bench_zeromq does: GB/s of the values whose
 * push was answered, and the processor time of worker and server over the same interval. The
 * scheduler then only waits.
 *
 * It is no part of the build, since Debian has no ps-lite. Written for the ps-lite that MXNet 1.9
 * carries; with a checkout of it in which `make` has built build/libps.a:
 *
 *   g++ -O2 -std=c++11 -I$PS_LITE/include bench/pslite.cc $PS_LITE/build/libps.a \
 *       -L$PS_LITE/deps/lib -lzmq -lprotobuf-lite -lpthread -o bench_pslite
 *   bench/exchange.py --ps-lite ./bench_pslite
 */
#include "ps/ps.h"

#include <algorithm>
#include <arpa/inet.h>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>
#include <spawn.h>
#include <string>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace {

enum { IN_FLIGHT = 64, LIMIT_SECONDS = 60 /* beside those measured */ };
const double warm_up_seconds = 0.3;

[[noreturn]] void fail(const char *what) {
    (void)fprintf(stderr, "bench_pslite: %s\n", what);
    _exit(1);
}

void end_late(int) {
    static const char text[] = "bench_pslite: ps-lite did not come to its end in time\n";
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    _exit(1);
}

void end_early(int) {
    static const char text[] = "bench_pslite: the server or the scheduler ended early\n";
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    _exit(1);
}

/* handler is called when a child ends, not when it stops. */
void watch_children(void (*handler)(int)) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = SA_NOCLDSTOP;
    if (sigaction(SIGCHLD, &action, nullptr) != 0) fail("sigaction failed");
}

double seconds_of(clockid_t clock) {
    timespec now;
    if (clock_gettime(clock, &now) != 0) fail("a process ended early");
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/* Pushes under way and answered; answers come on a thread of ps-lite's. */
class window {
  public:
    void open_one() {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return sent_ < answered_ + IN_FLIGHT; });
        sent_++;
    }
    void close_one() {
        std::lock_guard<std::mutex> lock(mutex_);
        answered_++;
        changed_.notify_one();
    }
    void drain() {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return sent_ == answered_; });
    }
    uint64_t answered() {
        std::lock_guard<std::mutex> lock(mutex_);
        return answered_;
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    uint64_t sent_ = 0, answered_ = 0;
};

/* What has been spent and done at a moment. */
struct sample {
    double time, cpu;
    uint64_t answered;
};

/* How many values of this size are pushed in turn: as bench/exchange.py has of ours under way. */
size_t in_turn(size_t bytes) {
    return std::max<size_t>(4, (8 << 20) / bytes);
}

class pusher {
  public:
    pusher(size_t bytes, clockid_t server_clock)
        : worker_(0, 0), server_clock_(server_clock), numbers_(IN_FLIGHT),
          buffer_(in_turn(bytes) * bytes, 'x'), length_(static_cast<int>(bytes)),
          lens_(&length_, 1) {
        for (size_t i = 0; i < in_turn(bytes); i++) {
            vals_.push_back(ps::SArray<char>(&buffer_[i * bytes], bytes));
        }
        for (int i = 0; i < IN_FLIGHT; i++) {
            numbers_[i] = static_cast<ps::Key>(i);
            keys_.push_back(ps::SArray<ps::Key>(&numbers_[i], 1));
        }
    }
    sample push_for(double seconds) {
        const double end = seconds_of(CLOCK_MONOTONIC) + seconds;
        while (seconds_of(CLOCK_MONOTONIC) < end) {
            window_.open_one();
            worker_.ZPush(keys_[next_ % IN_FLIGHT], vals_[next_ % vals_.size()], lens_, 0,
                          [this] { window_.close_one(); });
            next_++;
        }
        return sample{seconds_of(CLOCK_MONOTONIC),
                      seconds_of(CLOCK_PROCESS_CPUTIME_ID) + seconds_of(server_clock_),
                      window_.answered()};
    }
    void drain() {
        window_.drain();
    }

  private:
    ps::KVWorker<char> worker_;
    clockid_t server_clock_;
    std::vector<ps::Key> numbers_;
    std::vector<char> buffer_;
    int length_;
    std::vector<ps::SArray<ps::Key>> keys_;
    std::vector<ps::SArray<char>> vals_;
    ps::SArray<int> lens_;
    window window_;
    unsigned next_ = 0;
};

void run_worker(size_t bytes, double seconds, clockid_t server_clock) {
    pusher worker(bytes, server_clock);
    ps::Start(0, "bench_pslite");
    const sample start = worker.push_for(warm_up_seconds);
    const sample end = worker.push_for(seconds);
    worker.drain();
    watch_children(SIG_DFL); /* they end now */
    ps::Finalize(0, true);
    const double gb =
        1e-9 * static_cast<double>(end.answered - start.answered) * static_cast<double>(bytes);
    if (!(gb > 0)) fail("no push came to its end: give more SECONDS");
    printf("{\"gb_s\": %.4f, \"cpu_s_gb\": %.4f}\n", gb / (end.time - start.time),
           (end.cpu - start.cpu) / gb);
    (void)fflush(stdout);
}

void run_server() {
    ps::KVServer<char> server(0);
    server.set_request_handle([](const ps::KVMeta &meta, const ps::KVPairs<char> &,
                                 ps::KVServer<char> *self) { self->Response(meta); });
    ps::Start(0, "bench_pslite");
    ps::Finalize(0, true);
}

void run_scheduler() {
    ps::Start(0, "bench_pslite");
    ps::Finalize(0, true);
}

std::string free_port() {
    sockaddr_in address;
    socklen_t bytes = sizeof address;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, reinterpret_cast<sockaddr *>(&address), bytes) != 0 ||
        getsockname(fd, reinterpret_cast<sockaddr *>(&address), &bytes) != 0) {
        fail("no free TCP port at 127.0.0.1");
    }
    (void)close(fd);
    return std::to_string(ntohs(address.sin_port));
}

void set_variable(const char *name, const char *value) {
    if (setenv(name, value, 1) != 0) fail("setenv failed");
}

/* A new process of this program, since ps-lite has one role a process. */
pid_t spawn(char **argv, const char *role) {
    std::string role_argument = role;
    char *const arguments[] = {argv[0], argv[1], argv[2], &role_argument[0], nullptr};
    pid_t pid = 0;
    set_variable("DMLC_ROLE", role);
    const int error = posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, arguments, environ);
    if (error) fail(strerror(error));
    return pid;
}

void run_job(char **argv, size_t bytes, double seconds) {
    watch_children(end_early);
    set_variable("DMLC_NUM_SERVER", "1");
    set_variable("DMLC_NUM_WORKER", "1");
    set_variable("DMLC_PS_ROOT_URI", "127.0.0.1");
    set_variable("DMLC_PS_ROOT_PORT", free_port().c_str());
    set_variable("DMLC_NODE_HOST", "127.0.0.1");
    (void)spawn(argv, "scheduler");
    const pid_t server = spawn(argv, "server");
    set_variable("DMLC_ROLE", "worker");
    clockid_t server_clock;
    if (clock_getcpuclockid(server, &server_clock)) fail("no processor time of the server");
    run_worker(bytes, seconds, server_clock);
    int code = 0;
    while (wait(&code) > 0) {
        if (code) fail("the server or the scheduler failed");
    }
}

} // namespace

/* The other roles are named by a third argument, by spawn(). */
int main(int argc, char **argv) {
    const size_t bytes = argc >= 3 ? strtoull(argv[1], nullptr, 10) : 0;
    const double seconds = argc >= 3 ? strtod(argv[2], nullptr) : 0;
    const std::string role = argc == 4 ? argv[3] : argc == 3 ? "worker" : "";
    const bool serves = role == "server" || role == "scheduler";
    if (bytes == 0 || bytes > INT32_MAX || !(seconds > 0 && seconds < 3600) ||
        !(serves || role == "worker")) {
        (void)fputs("usage: bench_pslite BYTES SECONDS\n", stderr);
        return 2;
    }
    (void)signal(SIGALRM, end_late);
    (void)alarm(LIMIT_SECONDS + static_cast<unsigned>(seconds));
    if (serves) (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* not to outlive the one that measures */
    if (role == "worker") run_job(argv, bytes, seconds);
    if (role == "server") run_server();
    if (role == "scheduler") run_scheduler();
    return 0;
}
