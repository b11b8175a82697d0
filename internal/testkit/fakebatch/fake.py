#!/usr/bin/python3 -IS
"""FAKE programs of LSF, PBS and SGE, for tests.

This is not a batch system. It takes the options that premix gives, refuses others, runs jobs
at once on this machine, and prints answers in the forms that the manuals describe. The name
of the directory it lies in selects the system, its own name the program. FAKE_BATCH is its
state directory, in which

    hold     has new jobs wait
    refuse   has submissions fail, and holds the message
    down     has every program fail
"""

import fcntl
import json
import os
import re
import signal
import sys

SYSTEM = os.path.basename(os.path.dirname(os.path.abspath(sys.argv[0])))
PROGRAM = os.path.basename(sys.argv[0])
HOME = os.environ["FAKE_BATCH"]


def path(*names):
    return os.path.join(HOME, *names)


def fail(text, status=1):
    print(text, file=sys.stderr)
    sys.exit(status)


# Options with a value as in getopt(3) cannot be used: all three systems have options of
# several letters behind one dash.
SUBMIT = {
    "lsf": {"-J": 1, "-o": 1, "-n": 1, "-R": 1, "-q": 1, "-W": 1},
    "pbs": {"-N": 1, "-o": 1, "-j": 1, "-S": 1, "-V": 0, "-l": 1, "-J": 1, "-q": 1},
    "sge": {"-terse": 0, "-N": 1, "-o": 1, "-j": 1, "-S": 1, "-V": 0, "-pe": 2, "-l": 1, "-t": 1, "-q": 1},
}


def options(words, table):
    found = []
    while words:
        word = words.pop(0)
        if word not in table:
            fail(f"{PROGRAM}: fake: unknown option {word}", 2)
        values, words = words[: table[word]], words[table[word] :]
        if len(values) < table[word]:
            fail(f"{PROGRAM}: fake: {word} needs a value", 2)
        found.append((word, values))
    return found


class State:
    """The jobs, in a file, under a lock."""

    def __enter__(self):
        self.lock = open(path("lock"), "w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.jobs = []
        if os.path.exists(path("jobs.json")):
            with open(path("jobs.json")) as f:
                self.jobs = json.load(f)
        for job in self.jobs:
            if job["state"] == "waits" and not os.path.exists(path("hold")):
                start(job)
            if job["state"] == "runs" and os.path.exists(ended(job)):
                with open(ended(job)) as f:
                    job["state"], job["exit"] = "ended", int(f.read())
        return self

    def __exit__(self, *_):
        with open(path("jobs.new"), "w") as f:
            json.dump(self.jobs, f)
        os.rename(path("jobs.new"), path("jobs.json"))
        self.lock.close()


def ended(job):
    return path(f"{job['number']}.{job['index']}.exit")


def start(job):
    """Start a job in a session of its own, with a process that records its end."""
    env = dict(job["env"])
    if job["index"] is not None:
        env[{"lsf": "LSB_JOBINDEX", "pbs": "PBS_ARRAY_INDEX", "sge": "SGE_TASK_ID"}[SYSTEM]] = str(job["index"])
    record = 'trap "" INT TERM; (trap - INT TERM; exec /bin/sh "$0") </dev/null; s=$?; echo $s >"$1.new"; mv "$1.new" "$1"'
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.chdir("/")
        null = os.open("/dev/null", os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        os.execve("/bin/sh", ["/bin/sh", "-c", record, job["script"], ended(job)], env)
    job["state"], job["pid"] = "runs", pid


def submit():
    name, span, script = None, None, sys.stdin.read()
    for option, values in options(sys.argv[1:], SUBMIT[SYSTEM]):
        if option in ("-N", "-J") and not (SYSTEM == "pbs" and option == "-J"):
            name = values[0]
        elif option in ("-t", "-J"):
            span = values[0]
    if os.path.exists(path("refuse")):
        with open(path("refuse")) as f:
            fail(f"{PROGRAM}: {f.read().strip()}")
    if SYSTEM == "lsf":
        m = re.fullmatch(r"([^\[]*)(?:\[(.*)\])?", name)
        name, span = m[1], m[2]
    indices = [None]
    if span:
        first, last = map(int, span.split("-"))
        if SYSTEM == "pbs" and last <= first:
            fail("qsub: Bad array range")
        indices = list(range(first, last + 1))
    with State() as s:
        number = 1 + max((j["number"] for j in s.jobs), default=100)
        file = path(f"{number}.sh")
        with open(file, "w") as f:
            f.write(script)
        for i in indices:
            s.jobs.append({"number": number, "index": i, "name": name, "state": "waits", "script": file, "env": dict(os.environ), "array": len(indices)})
            if not os.path.exists(path("hold")):
                start(s.jobs[-1])
    if SYSTEM == "lsf":
        print(f"Job <{number}> is submitted to default queue <normal>.")
    elif SYSTEM == "pbs":
        print(f"{number}{'[]' if span else ''}.fake.server")
    else:
        print(f"{number}.{span}:1" if span else number)


def query():
    with State() as s:
        jobs = s.jobs
    {"lsf": bjobs, "pbs": qstat_pbs, "sge": qstat_sge}[SYSTEM](jobs)


def bjobs(jobs):
    words = sys.argv[1:]
    if words[:3] != ["-a", "-noheader", "-o"] or words[4] != "-u":
        fail("bjobs: fake: unexpected options")
    if not jobs:
        fail("No job found", 255)
    for j in jobs:
        state = {"waits": "PEND", "runs": "RUN", "ended": "DONE" if j.get("exit") == 0 else "EXIT"}[j["state"]]
        index = j["index"] or 0
        name = j["name"] + (f"[{index}]" if index else "")
        host = "-" if state == "PEND" else "fakehost"
        reason = "Job's resources are not available;" if state == "PEND" else "-"
        cause = "TERM_OWNER: job killed by owner" if j.get("killed") and state == "EXIT" else "-"
        print("|".join([str(j["number"]), str(index), state, name, host, cause, reason]))


def qstat_pbs(jobs):
    if sys.argv[1:6] != ["-t", "-w", "-n", "-1", "-u"]:
        fail("qstat: fake: unexpected options")
    live = [j for j in jobs if j["state"] != "ended"]
    if not live:
        return
    print("\nfake.server: \n" + " " * 90 + "Req'd  Req'd   Elap")
    print("Job ID                         Username        Queue           Jobname         SessID   NDS  TSK   Memory Time  S Time\n" + "-" * 30)
    for number in sorted({j["number"] for j in live}):
        mine = [j for j in jobs if j["number"] == number]
        rows = [(f"{number}[{j['index']}].fake.server", j) for j in mine]
        if mine[0]["index"] is None:
            rows = [(f"{number}.fake.server", mine[0])]
        else:
            print(f"{number}[].fake.server user workq {mine[0]['name']} -- 1 1 -- -- B -- --")
        for element, j in rows:
            state = {"waits": "Q", "runs": "R", "ended": "X"}[j["state"]]
            print(f"{element:30} user workq {j['name']} -- 1 1 -- -- {state} 00:00 " + ("fakehost/0" if state == "R" else "--"))


def qstat_sge(jobs):
    if sys.argv[1:3] != ["-xml", "-u"]:
        fail("qstat: fake: unexpected options")

    def lines(state, letters, queue):
        for number in sorted({j["number"] for j in jobs}):
            mine = [j for j in jobs if j["number"] == number and j["state"] == state]
            groups = [[j] for j in mine] if state == "runs" else [mine] if mine else []
            for group in groups:
                j = group[0]
                tasks = ""
                if j["index"] is not None:
                    last = group[-1]["index"]
                    tasks = f"<tasks>{j['index']}</tasks>" if len(group) == 1 else f"<tasks>{j['index']}-{last}:1</tasks>"
                yield (
                    f'<job_list state="x"><JB_job_number>{number}</JB_job_number><JB_name>{j["name"]}</JB_name>'
                    f"<state>{letters}</state><queue_name>{queue}</queue_name><slots>1</slots>{tasks}</job_list>"
                )

    print("<?xml version='1.0'?>\n<job_info><queue_info>" + "".join(lines("runs", "r", "all.q@fakehost")) + "</queue_info><job_info>" + "".join(lines("waits", "qw", "")) + "</job_info></job_info>")


def cancel():
    status = 0
    with State() as s:
        for word in sys.argv[1:]:
            m = re.fullmatch(r"(\d+)(?:\[(\d+)\]|\.(\d+))?", word)
            index = m and (m[2] or m[3])
            found = [j for j in s.jobs if m and j["number"] == int(m[1]) and str(j["index"]) == str(index if index is None else int(index)) and j["state"] != "ended"]
            if not found:
                print(f"{PROGRAM}: fake: no job {word}", file=sys.stderr)
                status = 1
            for j in found:
                j["killed"] = True
                if j["state"] == "waits":
                    j["state"], j["exit"] = "ended", 130
                    continue
                send = {"lsf": signal.SIGINT, "pbs": signal.SIGTERM, "sge": signal.SIGKILL}[SYSTEM]
                os.killpg(j["pid"], send)
                if send == signal.SIGKILL:
                    j["state"], j["exit"] = "ended", 137
    sys.exit(status)


if os.path.exists(path("down")):
    fail(f"{PROGRAM}: cannot contact the server (fake)")
if PROGRAM in ("bsub", "qsub"):
    submit()
elif PROGRAM in ("bjobs", "qstat"):
    query()
elif PROGRAM in ("bkill", "qdel"):
    cancel()
else:
    fail(f"{PROGRAM}: fake: there is no such program")
