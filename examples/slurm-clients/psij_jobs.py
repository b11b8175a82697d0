"""Jobs of Slurm through PSI/J."""

import datetime
from pathlib import Path

from psij import Job, JobExecutor, JobExecutorConfig, JobSpec, ResourceSpecV1

here = Path.cwd()
executor = JobExecutor.get_instance("slurm", config=JobExecutorConfig())
executor.config.initial_queue_polling_delay = 1
executor.config.queue_polling_interval = 1
limit = datetime.timedelta(minutes=2)


def run(name, program, arguments=(), **more):
    spec = JobSpec(executable=program, arguments=list(arguments), stdout_path=here / f"{name}.out", **more)
    job = Job(spec)
    executor.submit(job)
    return job


print("one job:", run("one", "/bin/echo", ["hello"]).wait(limit).state.name, (here / "one.out").read_text().strip())
print("a failure:", run("bad", "/bin/false").wait(limit).state.name)
job = run("two", "/bin/hostname", launcher="srun", resources=ResourceSpecV1(process_count=2, cpu_cores_per_process=1))
print("two tasks:", job.wait(limit).state.name, len((here / "two.out").read_text().split()))
job = run("long", "/bin/sleep", ["1000"])
job.cancel()
print("cancelled:", job.wait(limit).state.name)
