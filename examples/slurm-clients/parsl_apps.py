"""Parsl's workers in a job of Slurm, by its simple launcher or by srun."""

import sys

import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.launchers import SimpleLauncher, SrunLauncher
from parsl.providers import SlurmProvider

launcher = {"simple": SimpleLauncher, "srun": SrunLauncher}[sys.argv[1]]()
provider = SlurmProvider(nodes_per_block=1, init_blocks=1, max_blocks=1, walltime="00:05:00", cores_per_node=2, launcher=launcher)
executor = HighThroughputExecutor(address="127.0.0.1", cores_per_worker=1, max_workers_per_node=2, provider=provider)


@parsl.python_app
def square(x):
    return x * x


with parsl.load(Config(executors=[executor])):
    print("squares:", [app.result() for app in [square(i) for i in range(5)]])
