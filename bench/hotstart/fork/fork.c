/*
 * fork COMMAND FIFO...: a tool that is forked at its input, the peer of a hot start.
 *
 * The tool is executed with all arguments and runs until it sleeps in the open of a
 * FIFO. Then each byte of the standard input makes a fork of it, which opens the FIFO
 * again. Forks and tool share the standard output. When a fork has ended, a line with
 * its exit status follows on the standard error. At the end of the input the tool is
 * killed.
 *
 * The tool must have one thread.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define STOP_EVENT 128 /* PTRACE_EVENT_STOP */

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static int waits(pid_t pid)
{
	char path[64];
	long nr = -1;
	snprintf(path, sizeof path, "/proc/%d/syscall", pid);
	FILE *f = fopen(path, "r");
	if (!f)
		die(path);
	if (fscanf(f, "%ld", &nr) != 1)
		nr = -1; /* it runs */
	fclose(f);
	return nr == SYS_openat;
}

static int next_stop(pid_t pid)
{
	int status;
	while (waitpid(pid, &status, __WALL) < 0)
		if (errno != EINTR)
			die("wait");
	if (!WIFSTOPPED(status)) {
		fprintf(stderr, "the tool has ended\n");
		exit(1);
	}
	return status;
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: fork COMMAND FIFO...\n");
		return 2;
	}
	pid_t tool = fork();
	if (tool < 0)
		die("fork");
	if (!tool) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		execvp(argv[1], argv + 1);
		die(argv[1]);
	}
	/* Twice, since it opens other files in passing. */
	for (int seen = 0; seen < 2; seen = waits(tool) ? seen + 1 : 0)
		usleep(1000);
	if (ptrace(PTRACE_SEIZE, tool, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_EXITKILL))
		die("seize");
	if (ptrace(PTRACE_INTERRUPT, tool, 0, 0))
		die("interrupt");
	while (next_stop(tool) >> 16 != STOP_EVENT)
		if (ptrace(PTRACE_CONT, tool, 0, 0))
			die("continue");
	struct user_regs_struct input, r;
	if (ptrace(PTRACE_GETREGS, tool, 0, &input))
		die("registers");
	input.rip -= 2; /* the open, again */
	input.rax = input.orig_rax;
	input.orig_rax = -1;
	fprintf(stderr, "ready\n");

	while (getchar() != EOF) {
		r = input;
		r.rax = SYS_clone;
		r.rdi = CLONE_PARENT | SIGCHLD;
		r.rsi = r.rdx = r.r10 = r.r8 = 0;
		if (ptrace(PTRACE_SETREGS, tool, 0, &r))
			die("registers");
		unsigned long child = 0;
		for (int stops = 0; stops < 2;) { /* at the entry and the exit of clone */
			if (ptrace(PTRACE_SYSCALL, tool, 0, 0))
				die("clone");
			int status = next_stop(tool);
			if (status >> 16 == PTRACE_EVENT_CLONE || status >> 16 == PTRACE_EVENT_FORK) {
				if (ptrace(PTRACE_GETEVENTMSG, tool, 0, &child))
					die("clone");
			} else if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
				stops++;
			}
		}
		if (!child) {
			fprintf(stderr, "the tool cannot be forked\n");
			return 1;
		}
		next_stop(child);
		if (ptrace(PTRACE_SETREGS, child, 0, &input) || ptrace(PTRACE_DETACH, child, 0, 0))
			die("release");
		int status;
		if (waitpid(child, &status, __WALL) < 0)
			die("wait");
		fprintf(stderr, "%d\n", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
	}
	kill(tool, SIGKILL);
	return 0;
}
