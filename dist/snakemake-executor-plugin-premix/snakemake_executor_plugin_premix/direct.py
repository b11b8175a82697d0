"""Shell commands of jobs, which run without a Snakemake of their own.

Snakemake turns the shell directive of a rule into one process: bash with the command that it
has formatted, in an environment that it has made. ``Direct`` lets the Snakemake that has read
the workflow do all of this, up to the moment at which it would start the process, and returns
the process instead. Preparation and checks of files are done in the same Snakemake, as its
local executor does them.

A job for which any of this is not certain starts Snakemake again, as before.
"""

import inspect
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import Dict, List, Optional

import snakemake.shell
from snakemake.io import is_flagged
from snakemake_interface_executor_plugins.settings import SharedFSUsage

# The attribute of this name of the package may be the class.
_shell = sys.modules["snakemake.shell"]

# Flags of files that need more than a shell command.
_FLAGS = ("pipe", "service", "update", "nodelocal", "storage_object")


@dataclass
class Process:
    """A process that Snakemake would have started."""

    command: List[str]
    env: Dict[str, str]  # variables that differ from this process's


class _Captured(Exception):
    """The process, instead of its start."""

    def __init__(self, process: Optional[Process]):
        self.process = process


class _Subprocess:
    """The module subprocess for snakemake.shell, except in a thread that captures."""

    def __init__(self):
        self.here = threading.local()

    def __getattr__(self, name):
        return getattr(subprocess, name)

    def Popen(self, cmd, **options):
        if not getattr(self.here, "captures", False):
            return subprocess.Popen(cmd, **options)
        # A very long command is in a file, which Snakemake removes after the process.
        folder = sys._getframe(1).f_locals.get("tmpdir")
        if folder is not None:
            shutil.rmtree(folder)
            raise _Captured(None)
        raise _Captured(_process(cmd, options))


def _process(cmd, options) -> Optional[Process]:
    options = dict(options)
    shell = options.pop("executable", None)
    env = options.pop("env", None)
    expected = {"bufsize": -1, "shell": True, "universal_newlines": None, "close_fds": True}
    options.pop("stdout", None)
    if options != expected or not shell or not isinstance(cmd, str) or env is None:
        return None
    if any(name not in env for name in os.environ):
        return None  # a task cannot remove variables
    changed = {k: v for k, v in env.items() if os.environ.get(k) != v}
    return Process([shell, "-c", cmd], changed)


class Direct:
    """Finds the processes of jobs."""

    def __init__(self, workflow):
        self.workflow = workflow
        self.subprocess = None
        shared = workflow.storage_settings.shared_fs_usage
        if (
            all(usage in shared for usage in SharedFSUsage.all())
            and not workflow.deployment_settings.deployment_method
            and not workflow.remote_execution_settings.immediate_submit
            and not workflow.touch
            and workflow.workflow_settings.cache is None
            and getattr(_shell, "sp", None) is subprocess
        ):
            self.subprocess = _shell.sp = _Subprocess()

    def close(self):
        if self.subprocess is not None:
            _shell.sp = subprocess
            self.subprocess = None

    def process(self, job) -> Optional[Process]:
        """The process of a job, whose files are then prepared; None if it needs Snakemake."""
        if self.subprocess is None or not self._plain(job):
            return None
        before = job.resources
        process = None
        try:
            # As on the machine of the job, which is this one: with a directory for
            # temporary files, which functions of params may ask for.
            job._resources = job.rule.expand_resources(
                job.wildcards_dict, job.input, job.attempt, skip_evaluation=set()
            )
            process = self._capture(job.rule.run_func, self._values(job))
            if process is not None:
                self.workflow.async_run(job.prepare())
        except Exception:
            # Whatever is wrong, the job meets it again and says so.
            process = None
        if process is None:
            job._resources = before
        return process

    def _plain(self, job) -> bool:
        if job.is_group() or not job.is_shell or job.is_shadow or job.benchmark:
            return False
        if job.is_norun or job.is_template_engine or job.is_pipe or job.is_service:
            return False
        if job.is_updated or job.threads > (os.cpu_count() or 1):
            return False
        files = [*job.input, *job.output, *job.log]
        return not any(is_flagged(f, flag) for f in files for flag in _FLAGS)

    def _values(self, job) -> dict:
        params, _ = job.rule.expand_params(
            job.wildcards_dict, job.input, job.output, job
        )
        return {
            "input": job.input._plainstrings(),
            "output": job.output._plainstrings(),
            "params": params,
            "wildcards": job.wildcards,
            "threads": job.threads,
            "resources": job.resources,
            "log": job.log._plainstrings(),
            "rule": job.rule.name,
            "conda_env": None,
            "container_img": None,
            "singularity_args": self.workflow.deployment_settings.apptainer_args,
            "use_singularity": False,
            "env_modules": None,
            "bench_record": None,
            "jobid": job.jobid,
            "is_shell": True,
            "bench_iteration": None,
            "cleanup_scripts": self.workflow.execution_settings.cleanup_scripts,
            "shadow_dir": None,
            "edit_notebook": None,
            "conda_base_path": self.workflow.conda_base_path,
            "basedir": job.rule.basedir,
            "sourcecache_path": self.workflow.sourcecache.cache_path,
            "runtime_sourcecache_path": self.workflow.sourcecache.runtime_cache_path,
            "runtime_paths": self.workflow.runtime_paths,
        }

    def _capture(self, run, values) -> Optional[Process]:
        parameters = inspect.signature(run).parameters.values()
        names = [p.name for p in parameters if p.default is p.empty]
        if any(n not in values for n in names):
            return None  # a Snakemake that is not known
        self.subprocess.here.captures = True
        try:
            run(*(values[n] for n in names))
        except _Captured as captured:
            return captured.process
        finally:
            self.subprocess.here.captures = False
        return None
