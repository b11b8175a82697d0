"""Snakemake jobs as tasks of premix.

A job is one task of a task directory. ``premix task submit`` adds all jobs that are ready
at a time, ``premix task run`` runs them for as long as there are any, and
``premix task ls`` tells about all of them at once. Tasks are known by their numbers.
"""

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from typing import AsyncGenerator, List, Optional

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.settings import (
    CommonSettings,
    ExecutorSettingsBase,
)


from snakemake_executor_plugin_premix.direct import Direct


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """What --premix-dir and so on set."""

    dir: Optional[str] = field(
        default=None,
        metadata={
            "help": "Directory of the tasks, on a file system that the nodes share "
            "(default: .snakemake/premix)."
        },
    )
    engine: str = field(
        default="local",
        metadata={"help": "What tasks run on: local, slurm, kubernetes, lsf, pbs or sge."},
    )
    engine_opt: Optional[str] = field(
        default=None,
        metadata={
            "help": "Options of the engine, KEY=VALUE, with blanks between them."
        },
    )


common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_envvar_declarations_to_cmd=True,
)

# Seconds between two queries, at first. They grow to --seconds-between-status-checks while
# nothing ends: a query reads files only.
_SHORTEST_PAUSE = 0.2

# A query of very many jobs takes at most one part in so many of the time.
_PAUSE_SHARE = 20

# Ranges of numbers on a command line, so that it stays below the system's limit.
_MOST_RANGES = 5000


class Executor(RemoteExecutor):
    """Submits jobs to premix."""

    def __post_init__(self):
        settings = self.workflow.executor_settings
        self.dir = os.path.abspath(settings.dir or os.path.join(".snakemake", "premix"))
        self.engine = ["--engine", settings.engine]
        for option in (settings.engine_opt or "").split():
            self.engine += ["--engine-opt", option]
        self.runner: Optional[subprocess.Popen] = None
        # On other machines TMPDIR and the number of cores may differ.
        self.direct = Direct(self.workflow) if settings.engine == "local" else None
        self.pause = _SHORTEST_PAUSE

    def run_job(self, job: JobExecutorInterface):
        # Snakemake calls run_jobs; this is for whoever has one job.
        self._submit([job])

    def run_jobs(self, jobs: List[JobExecutorInterface]):
        for job in jobs:
            self.run_job_pre(job)
        self._submit(jobs)

    def _submit(self, jobs: List[JobExecutorInterface]):
        lines = "".join(json.dumps(self._task(job)) + "\n" for job in jobs)
        submitted = json.loads(
            self._premix(
                "submit", "--out", self.dir, "--format", "jsonl", "--json", "-", text=lines
            )
        )
        self._run()
        for number, job in enumerate(jobs, submitted["first"]):
            self.report_job_submission(
                SubmittedJobInfo(job, external_jobid=str(number))
            )

    def _task(self, job: JobExecutorInterface) -> dict:
        """The job as a line of JSON for premix task submit."""
        process = self.direct.process(job) if self.direct else None
        task = {
            "command": process.command if process else self.format_job_exec(job),
            "name": self.get_jobname(job),
            "group": job.name.replace(",", "_"),
            "cwd": os.getcwd(),
            "cores": max(1, job.threads),
            "priority": max(-(1 << 20), min(int(job.priority), 1 << 20)),
        }
        if process and process.env:
            task["env"] = process.env
        memory = job.resources.get("mem_mb")
        if isinstance(memory, int) and memory > 0:
            task["memory"] = f"{memory}M"
        minutes = job.resources.get("runtime")
        if isinstance(minutes, int) and minutes > 0:
            task["timeout"] = f"{minutes}m"
        return task

    def _premix(self, *args: str, text: str = "") -> str:
        try:
            # In a session of its own: Ctrl-C is for Snakemake, which then cancels.
            done = subprocess.run(
                ["premix", "task", *args],
                input=text,
                capture_output=True,
                text=True,
                start_new_session=True,
            )
        except OSError as e:
            raise WorkflowError(f"premix cannot be started: {e}") from e
        if done.returncode != 0:
            raise WorkflowError(
                f"premix task {args[0]} failed with status {done.returncode}:\n{done.stderr}"
            )
        return done.stdout

    def _run(self):
        """Have a premix run what waits, if none does."""
        if self.runner is not None and self.runner.poll() is None:
            return
        with open(os.path.join(self.dir, "run.log"), "ab") as log:
            self.runner = subprocess.Popen(
                ["premix", "task", "run", "--out", self.dir, "--quiet", *self.engine],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def check_active_jobs(
        self, active_jobs: List[SubmittedJobInfo]
    ) -> AsyncGenerator[SubmittedJobInfo, None]:
        if not active_jobs:
            # So it is before the first job, which would else be asked for after
            # --seconds-between-status-checks.
            self.next_seconds_between_status_checks = _SHORTEST_PAUSE
            return
        # It is asked before the tasks are: one that has ended meanwhile has left all
        # records.
        ended = self.runner is None or self.runner.poll() is not None
        async with self.status_rate_limiter:
            asked = time.monotonic()
            states = self._states([int(j.external_jobid) for j in active_jobs])
            took = time.monotonic() - asked
        waiting = False
        remaining = 0
        for info in active_jobs:
            state = states.get(int(info.external_jobid), "waiting")
            if state == "succeeded":
                self.report_job_success(info)
            elif state in ("failed", "cancelled"):
                why = self._premix("why", self.dir, info.external_jobid)
                self.report_job_error(info, msg=f"{why}\n")
            else:
                waiting = True
                remaining += 1
                yield info
        longest = self.workflow.remote_execution_settings.seconds_between_status_checks
        self.pause = _SHORTEST_PAUSE if remaining < len(active_jobs) else 1.5 * self.pause
        self.pause = min(max(self.pause, _PAUSE_SHARE * took), longest)
        self.next_seconds_between_status_checks = self.pause
        if ended and waiting:
            # It ends when nothing is left, and does not see what comes at that moment.
            # Any other end, such as a batch system that refuses, it would meet again.
            status = self.runner.returncode if self.runner else 0
            if status not in (0, 1):
                raise WorkflowError(
                    f"premix task run ended with status {status}; see {self.dir}/run.log"
                )
            self._run()

    def _states(self, numbers: List[int]) -> dict:
        states = {}
        ranges = list(_ranges(sorted(numbers)))
        for at in range(0, len(ranges), _MOST_RANGES):
            text = self._premix("ls", self.dir, "--json", *ranges[at : at + _MOST_RANGES])
            for line in text.splitlines():
                task = json.loads(line)
                states[task["task"]] = task["state"]
        return states

    def cancel_jobs(self, active_jobs: List[SubmittedJobInfo]):
        if active_jobs:
            numbers = sorted(int(j.external_jobid) for j in active_jobs)
            self._premix("cancel", self.dir, *_ranges(numbers))

    def shutdown(self):
        super().shutdown()
        if self.direct:
            self.direct.close()
        if self.runner is not None and self.runner.poll() is None:
            self.runner.send_signal(signal.SIGTERM)
            self.runner.wait()


def _ranges(numbers: List[int]):
    """Ascending numbers as premix reads them: 1-3, 7."""
    first = last = None
    for n in numbers:
        if last is not None and n == last + 1:
            last = n
            continue
        if first is not None:
            yield f"{first}-{last}"
        first = last = n
    if first is not None:
        yield f"{first}-{last}"
