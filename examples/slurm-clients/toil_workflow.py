"""Toil: jobs of a workflow on Slurm."""

import os

from toil.common import Toil
from toil.job import Job


def square(job, n):
    return n * n


def total(job, values):
    return sum(values)


def start(job):
    squares = [
        job.addChildJobFn(square, n, cores=1, memory="200M", disk="10M").rv()
        for n in range(1, 4)
    ]
    return job.addFollowOnJobFn(total, squares, memory="200M", disk="10M").rv()


if __name__ == "__main__":
    options = Job.Runner.getDefaultOptions(os.path.abspath("store"))
    options.batchSystem = "slurm"
    options.statePollingWait = 1
    options.stats = False
    with Toil(options) as toil:
        print("sum of squares:", toil.start(Job.wrapJobFn(start, memory="200M", disk="10M")))
