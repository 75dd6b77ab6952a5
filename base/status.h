/* status.h - what can go wrong, and the exit code that tells a script which it was.
 *
 * Every function that can fail for a reason outside the program returns enum status; a mistake of
 * the programmer is an ASSERT (base/assert.h). Statuses are ordered by the smallest thing that must
 * be replaced to get on: nothing, the caller, the message, the peer, the process.
 * Who first recognises an error logs it, once; callers pass the status on in silence.
 */
#ifndef RUBATO_BASE_STATUS_H
#define RUBATO_BASE_STATUS_H

#define STATUS_MAP(X)                                                                              \
    X(OK, "ok")                                                                                    \
    X(AGAIN, "not now, try again")                                                                 \
    X(INVALID, "invalid argument")                                                                 \
    X(UNSUPPORTED, "not supported")                                                                \
    X(CORRUPT, "damaged or malformed data")                                                        \
    X(STALE, "belongs to an earlier session or epoch")                                             \
    X(TIMEOUT, "deadline passed")                                                                  \
    X(PEER_LOST, "peer lost")                                                                      \
    X(MISMATCH, "peers disagree")                                                                  \
    X(DENIED, "not permitted")                                                                     \
    X(DEVICE, "device error")                                                                      \
    X(IO, "input or output error")                                                                 \
    X(MEMORY, "out of memory")

enum status {
#define STATUS_ENUM(name, text) STATUS_##name,
    STATUS_MAP(STATUS_ENUM)
#undef STATUS_ENUM
};

/* Exit codes of every program (sysexits where one fits). A signal n ends with 128 + n. */
enum exit_code {
    EXIT_CODE_OK = 0,
    EXIT_CODE_TRAINING = 1,  /* training failed: diverged, too many bad gradients */
    EXIT_CODE_USAGE = 2,     /* a flag, a variable or a config line is wrong */
    EXIT_CODE_DATA = 65,     /* a file's content is bad: magic, truncation, token >= vocabulary */
    EXIT_CODE_NO_INPUT = 66, /* an input file cannot be read, or is too short to train on */
    EXIT_CODE_UNREACHABLE = 69, /* a peer did not come, or was lost */
    EXIT_CODE_INTERNAL = 70,
    EXIT_CODE_MEMORY = 71,
    EXIT_CODE_DEVICE = 72, /* a device of the machine, or its driver, failed or is not there */
    EXIT_CODE_CREATE = 73, /* a port or a file cannot be taken or created */
    EXIT_CODE_IO = 74,
    EXIT_CODE_PROTOCOL = 76, /* a peer broke the protocol */
    EXIT_CODE_DENIED = 77,   /* key wrong or missing */
    EXIT_CODE_MISMATCH = 78  /* peers were given different values of an AGREED option */
};

/* The English text of a status; never NULL. Any thread. */
const char *status_text(enum status status);

/* The exit code that a status maps to where the program knows nothing better. Any thread. */
enum exit_code status_exit_code(enum status status);

/* TRY(call): returns the call's status from the enclosing function unless it is OK. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        enum status try_status_ = (call);                                                          \
        if (try_status_ != STATUS_OK) return try_status_;                                          \
    } while (0)

#define WARN_UNUSED __attribute__((warn_unused_result))

#endif
