"""A Dask cluster in jobs of Slurm, through dask-jobqueue."""

from dask.distributed import Client
from dask_jobqueue import SLURMCluster

if __name__ == "__main__":
    with SLURMCluster(cores=1, memory="1GB", walltime="00:05:00", interface="lo") as cluster:
        cluster.scale(jobs=2)
        with Client(cluster) as client:
            client.wait_for_workers(2, timeout=90)
            print("sum:", sum(client.gather(client.map(lambda x: x + 1, range(100)))))
