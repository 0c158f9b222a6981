/* Schedules as text, in the cell format of PyTorch's torch.distributed.pipelining (version 2.15).
 *
 *   pst_schedule *schedule = NULL;
 *   bool renumbered;
 *   PST_TRY(pst_schedule_read_csv("order.csv", &schedule, &renumbered));
 *   PST_TRY(pst_schedule_check(schedule, NULL, NULL));             // reading proves nothing yet
 *   PST_TRY(pst_schedule_write_csv(schedule, PST_CSV_COMPUTE, "same.csv"));
 *
 * One row for each worker, one cell for each action: stage, kind, microbatch (0F0, 1I3, 2SEND_B1). Empty
 * cells are pauses and mean nothing. (0F3;3B1)OVERLAP_F_B is 0F3, then 3B1. UNSHARD, RESHARD, REDUCE_GRAD and
 * the WAIT_ cells say when PyTorch gathers weights, reduces and retires sends; Penstock does these by itself,
 * and they are passed over. Where a row holds a stage, that worker owns it: any placement can be read.
 */
#ifndef PENSTOCK_SCHEDULE_CSV_H
#define PENSTOCK_SCHEDULE_CSV_H

#include "core/schedule/schedule.h"

typedef enum pst_csv_form {
  PST_CSV_COMPUTE, /* compute actions alone: PyTorch's compute_only */
  PST_CSV_MESSAGES /* with SEND, RECV, WAIT_SEND and REDUCE_GRAD cells: its compute_comms. The messages
                      between two workers stand in the same order on both sides, as transports without tags
                      want */
} pst_csv_form;

/* Reads the n bytes of `text` (a 0 follows them); `name` serves the messages. With messages in it the
 * schedule is in full form and gets REDUCE and UPDATE at its end, else in normal form; without backwards it
 * is forward only. A stage whose backwards run in another order than ascending (PyTorch's looped
 * breadth-first order runs them in descending order) has them renumbered in the order in which they run, as
 * gradients add up in ascending order here; *out_renumbered says so. PST_INVALID: the message names row,
 * cell, what was seen and what was wanted. PST_NO_MEMORY. Any thread. The caller owns *out_schedule. */
PST_CHECKED pst_status pst_schedule_parse_csv(const char *text, size_t n, const char *name,
                                              pst_schedule **out_schedule, bool *out_renumbered);
PST_CHECKED pst_status pst_schedule_read_csv(const char *path, pst_schedule **out_schedule,
                                             bool *out_renumbered);

/* The compute actions of a full list, in normal form, to be lowered anew. The caller owns *out_schedule. */
PST_CHECKED pst_status pst_schedule_strip(const pst_schedule *full, pst_schedule **out_schedule);

/* Text of a schedule, *out_n bytes and a 0; the caller frees it. With messages: `schedule` is in normal form
 * and free of deadlock, else PST_INVALID. */
PST_CHECKED pst_status pst_schedule_format_csv(const pst_schedule *schedule, pst_csv_form form,
                                               char **out_text, size_t *out_n);
PST_CHECKED pst_status pst_schedule_write_csv(const pst_schedule *schedule, pst_csv_form form,
                                              const char *path);

#endif
