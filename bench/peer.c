#include "bench/peer.h"

#include "base/log.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char mark[] = "ready ";

/* In the child: runs the program, or ends. */
static void run_child(const int in[2], const int out[2], char *const *argv) {
    (void)dup2(in[0], STDIN_FILENO);
    (void)dup2(out[1], STDOUT_FILENO);
    (void)close(in[1]);
    (void)close(out[0]);
    (void)signal(SIGPIPE, SIG_DFL);
    (void)execvp(argv[0], argv);
    fprintf(stderr, "cannot run %s: %s\n", argv[0], strerror(errno));
    _exit(EXIT_CODE_NO_INPUT);
}

enum status peer_open(struct peer *peer, char *const *argv) {
    int in[2];
    int out[2];
    *peer = (struct peer){0};
    (void)signal(SIGPIPE, SIG_IGN); // a peer that ended is an error of ours to tell
    if (pipe(in) != 0 || pipe(out) != 0) {
        log_error("peer: no pipe: %s", strerror(errno));
        return STATUS_IO;
    }
    peer->pid = fork();
    if (peer->pid == 0) {
        run_child(in, out, argv);
    }
    (void)close(in[0]);
    (void)close(out[1]);
    peer->to = fdopen(in[1], "w");
    peer->from = fdopen(out[0], "r");
    if (peer->pid < 0 || peer->to == NULL || peer->from == NULL) {
        log_error("peer: cannot start: %s", strerror(errno));
        return STATUS_IO;
    }
    while (fgets(peer->ready, sizeof peer->ready, peer->from) != NULL) {
        if (strncmp(peer->ready, mark, sizeof mark - 1) == 0) {
            size_t left = strlen(peer->ready) - (sizeof mark - 1);
            memmove(peer->ready, peer->ready + sizeof mark - 1, left + 1);
            peer->ready[strcspn(peer->ready, "\n")] = '\0';
            return STATUS_OK;
        }
    }
    log_error("peer: %s ended before it was ready", argv[0]);
    return STATUS_IO;
}

enum status peer_steps(struct peer *peer, int count, double *seconds) {
    (void)fprintf(peer->to, "%d\n", count);
    (void)fflush(peer->to);
    for (int i = 0; i < count; i++) {
        if (fscanf(peer->from, "%lf", &seconds[i]) != 1) {
            log_error("peer: it ended, or did not answer with %d numbers", count);
            return STATUS_IO;
        }
    }
    return STATUS_OK;
}

void peer_close(struct peer *peer) {
    if (peer->to != NULL) {
        (void)fclose(peer->to); /* the end of its input is its end */
    }
    if (peer->from != NULL) {
        (void)fclose(peer->from);
    }
    if (peer->pid > 0) {
        (void)waitpid(peer->pid, NULL, 0);
    }
    *peer = (struct peer){0};
}
