"""Functions as jobs of Slurm, through submitit."""

import submitit


def add(a, b):
    return a + b


def fail():
    raise ValueError("this job fails")


executor = submitit.AutoExecutor(folder="log", cluster="slurm")
executor.update_parameters(timeout_min=5, cpus_per_task=1, mem_gb=1, name="add", slurm_array_parallelism=2)
job = executor.submit(add, 5, 7)
print("one job:", job.result())
jobs = executor.map_array(add, [1, 2, 3], [10, 20, 30])
print("an array:", [job.result() for job in jobs])
try:
    executor.submit(fail).result()
except Exception as error:
    print("a failure:", "this job fails" in str(error) or type(error).__name__)
