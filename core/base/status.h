/* Status codes and the error message that travels with them.
 *
 *   pst_status st = pst_file_open(path, &f);
 *   if (st != PST_OK) return st;                                  // passed up untouched
 *   if (n < 2) return pst_fail(PST_INVALID, "data.train: %s holds %lld tokens, needs at least 2", path, n);
 *
 * A function that can fail returns a pst_status. The message is recorded once, where the fault is first
 * understood: what, the value seen, the value wanted, where. It lives in the calling thread until the next
 * pst_fail() there; whoever hands an error to another thread carries the text along (pst_error_set).
 */
#ifndef PENSTOCK_BASE_STATUS_H
#define PENSTOCK_BASE_STATUS_H

/* name, process exit status, what the caller can do about it */
#define PST_STATUS_LIST(X)                                                                                   \
  X(OK, 0, "done")                                                                                           \
  X(FAILED, 1, "a verification failed: look at what differs")                                                \
  X(INVALID, 2, "bad input: change the option or file that the message names")                               \
  X(UNSUPPORTED, 2, "asked for something this build or device cannot do: choose another")                    \
  X(IO, 2, "a file or directory could not be read or written: see the message")                              \
  X(NO_MEMORY, 3, "not enough memory: the message says need, have, and what would help")                     \
  X(LOST, 4, "a peer or device is gone: restart from the last checkpoint")                                   \
  X(HUNG, 4, "a peer or device no longer answers: end the process, restart from the last checkpoint")        \
  X(NONFINITE, 5, "a loss or gradient is not finite: lower the learning rate or look at the data")           \
  X(INTERNAL, 70, "a fault of ours: please report it with the message")                                      \
  X(STOPPED, 75, "stopped on request: run the same command again to continue")

typedef enum pst_status {
#define PST_STATUS_ENUM(name, exit_status, help) PST_##name,
  PST_STATUS_LIST(PST_STATUS_ENUM)
#undef PST_STATUS_ENUM
      PST_STATUS_COUNT
} pst_status;

#if defined(__GNUC__)
#define PST_CHECKED      __attribute__((warn_unused_result))
#define PST_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define PST_CHECKED
#define PST_PRINTF(f, a)
#endif

/* Records the message for this thread (at most 1,023 bytes are kept) and returns `status`. */
pst_status pst_fail(pst_status status, const char *format, ...) PST_PRINTF(2, 3);

/* Puts text in front of this thread's message ("run.yaml:3:7: " + message); returns `status`. */
pst_status pst_fail_prefix(pst_status status, const char *format, ...) PST_PRINTF(2, 3);

/* This thread's last message; "" when there was none. Valid until the next pst_fail() of this thread. */
const char *pst_error(void);

/* Copies a message that another thread recorded into this thread. */
void pst_error_set(const char *message);

/* "INVALID"; for a value that is no status, "UNKNOWN". */
const char *pst_status_name(pst_status status);

/* What a process should exit with: 0 done, 1 verification failed, 2 bad input, 3 memory, 4 lost, 5
 * non-finite, 70 internal, 75 stopped to be continued. */
int pst_status_exit(pst_status status);

/* Returns from the calling function when `expr` is not PST_OK. */
#define PST_TRY(expr)                                                                                        \
  do {                                                                                                       \
    pst_status pst_try_status_ = (expr);                                                                     \
    if (pst_try_status_ != PST_OK) return pst_try_status_;                                                   \
  } while (0)

/* Jumps to `label` with `st` set when `expr` is not PST_OK. */
#define PST_GOTO(st, expr, label)                                                                            \
  do {                                                                                                       \
    (st) = (expr);                                                                                           \
    if ((st) != PST_OK) goto label;                                                                          \
  } while (0)

#endif
