/* peer.h - the reference of a bench: a child process that makes steps when it is told to.
 *
 * The child says "ready ..." on its standard output, then answers each line "N" on its standard
 * input with one line of N numbers, the seconds of N steps. Between them it waits in read(2), so
 * that bench and peer can measure in turns on the same cores. One thread owns a peer. SIGPIPE is
 * ignored from the first peer_open() on.
 */
#ifndef RUBATO_BENCH_PEER_H
#define RUBATO_BENCH_PEER_H

#include "base/status.h"

#include <stdio.h>
#include <sys/types.h>

struct peer {
    pid_t pid;
    FILE *to, *from;
    char ready[512]; /* what it said after "ready " */
};

/* Starts argv [NULL at its end], which is looked for on PATH, and waits until it is ready. IO,
 * logged: it could not be run, or ended. */
enum status peer_open(struct peer *peer, char *const *argv) WARN_UNUSED;

/* seconds [count] of `count` steps. IO, logged: it ended, or said something else. */
enum status peer_steps(struct peer *peer, int count, double *seconds) WARN_UNUSED;

/* Ends the child; harmless on a zeroed struct. */
void peer_close(struct peer *peer);

#endif
