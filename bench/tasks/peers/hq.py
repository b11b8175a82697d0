"""Runs a command N times with HyperQueue. usage: hq.py N CORES COMMAND..."""

import sys

from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig

count, cores, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
with LocalCluster() as cluster:
    cluster.start_worker(WorkerConfig(cores=cores))
    client = cluster.client()
    job = Job()
    for _ in range(count):
        job.program(command, stdout=None, stderr=None)
    submitted = client.submit(job)
    client.wait_for_jobs([submitted])
