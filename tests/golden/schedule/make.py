#!/usr/bin/env python3
"""Writes the files of this directory: what PyTorch lists for each of its pipeline schedules.

    python3 make.py DIRECTORY        # written with torch 2.15.0

Compute actions in NAME.csv; for schedules of several stages on a worker also the lists with messages, in
NAME_comms.csv. No process group is needed: the stages are stand-ins that know their place alone.
"""
import csv
import os
import sys

import torch
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining.stage import _PipelineStageBase


class Stage(_PipelineStageBase):
    def __init__(self, index, stages, workers):
        self.stage_index = index
        self.num_stages = stages
        self.group_size = workers
        self.group_rank = 0
        self.group = None
        self.has_backward = True
        self.submod = torch.nn.Identity()
        self.device = torch.device("cpu")

    def _create_grad_recv_info(self, *args):
        return ()

    def _prepare_forward_infra(self, *args):
        return ()

    def _prepare_backward_infra(self, *args):
        return ()


def write(directory, name, order):
    with open(os.path.join(directory, name + ".csv"), "w", newline="") as out:
        rows = csv.writer(out)
        for worker in sorted(order):
            rows.writerow(order[worker])


def main(directory):
    def loss(output, target):
        return output

    for name, kind, workers, microbatches in [
        ("gpipe", schedules.ScheduleGPipe, 3, 5),
        ("1f1b", schedules.Schedule1F1B, 3, 5),
    ]:
        made = kind(Stage(0, workers, workers), n_microbatches=microbatches, loss_fn=loss)
        write(directory, name, made._get_pipeline_order())
    for name, kind, workers, microbatches, v_placed in [
        ("looped_bfs", schedules.ScheduleLoopedBFS, 2, 4, False),
        ("interleaved", schedules.ScheduleInterleaved1F1B, 2, 4, False),
        ("interleaved_rounds", schedules.ScheduleInterleaved1F1B, 4, 10, False),
        ("interleaved_zb", schedules.ScheduleInterleavedZeroBubble, 2, 4, False),
        ("zb_v", schedules.ScheduleZBVZeroBubble, 2, 4, True),
        ("dualpipe_v", schedules.ScheduleDualPipeV, 2, 6, True),
    ]:
        own = [0, 2 * workers - 1 if v_placed else workers]
        made = kind([Stage(i, 2 * workers, workers) for i in own], microbatches, loss_fn=loss)
        write(directory, name, made.pipeline_order)
        made._prepare_schedule_with_comms(made.pipeline_order)
        write(directory, name + "_comms", made.pipeline_order_with_comms)
    print("torch", torch.__version__)


if __name__ == "__main__":
    main(sys.argv[1])
