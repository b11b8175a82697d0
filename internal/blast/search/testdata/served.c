// A library for LD_PRELOAD, with which a program starts once and then serves: loaded and
// its constructors run, it waits at the Unix socket that PREMIX_TEST_SERVE names, and forks
// for each connection. The child takes over what client.c sends and runs main; how it ended
// goes back over the connection. A connection that is closed before kills the child; the end
// of standard input ends the server.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int program(int, char **, char **);

extern char **environ;
static program *real_main;

enum { MOST = 64 };
static struct pollfd polled[MOST]; // standard input, the socket, signals, connections
static pid_t child[MOST];
static int count = 3;

static void fail(const char *what) {
	perror(what);
	_exit(125);
}

static void whole(int from, char *to, size_t size) {
	while (size > 0) {
		ssize_t n = read(from, to, size);
		if (n <= 0)
			_exit(125);
		to += n;
		size -= n;
	}
}

static char **list(char **text, int n) {
	char **l = calloc(n + 1, sizeof *l);
	for (int i = 0; i < n; i++) {
		l[i] = *text;
		*text += strlen(*text) + 1;
	}
	return l;
}

// taken runs main with what the other side sends.
static int taken(int from) {
	int head[3]; // bytes, arguments, variables
	int files[4]; // standard input, output and error, the working directory
	char control[CMSG_SPACE(sizeof files)];
	struct iovec v = {head, sizeof head};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	if (recvmsg(from, &m, MSG_WAITALL) != sizeof head || !CMSG_FIRSTHDR(&m))
		_exit(125);
	memcpy(files, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof files);
	char *text = malloc(head[0]);
	whole(from, text, head[0]);
	char **argv = list(&text, head[1]);
	environ = list(&text, head[2]);
	if (fchdir(files[3]) != 0)
		fail("the working directory");
	close(files[3]);
	for (int i = 0; i < 3; i++) {
		dup2(files[i], i);
		close(files[i]);
	}
	close(from);
	return real_main(head[1], argv, environ);
}

static int serve(int argc, char **argv, char **env) {
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	const char *path = getenv("PREMIX_TEST_SERVE");
	if (strlen(path) >= sizeof at.sun_path) {
		fprintf(stderr, "%s is too long for a socket\n", path);
		return 125;
	}
	strcpy(at.sun_path, path);
	sigset_t ends;
	sigemptyset(&ends);
	sigaddset(&ends, SIGCHLD);
	sigprocmask(SIG_BLOCK, &ends, NULL);
	signal(SIGPIPE, SIG_IGN);
	int ear = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (bind(ear, (struct sockaddr *)&at, sizeof at) != 0 || listen(ear, MOST) != 0)
		fail(path);
	polled[0] = (struct pollfd){0, POLLIN};
	polled[1] = (struct pollfd){ear, POLLIN};
	polled[2] = (struct pollfd){signalfd(-1, &ends, SFD_CLOEXEC), POLLIN};
	puts("ready");
	fflush(stdout);
	for (;;) {
		polled[1].events = count < MOST ? POLLIN : 0;
		if (poll(polled, count, -1) < 0)
			fail("poll");
		if (polled[0].revents) {
			for (int i = 3; i < count; i++)
				kill(child[i], SIGKILL);
			_exit(0);
		}
		for (int i = 3; i < count; i++)
			if (polled[i].revents) // nothing follows a request but the end
				kill(child[i], SIGKILL);
		if (polled[2].revents) {
			struct signalfd_siginfo info;
			whole(polled[2].fd, (char *)&info, sizeof info);
			int status;
			pid_t p;
			while ((p = waitpid(-1, &status, WNOHANG)) > 0)
				for (int i = 3; i < count; i++)
					if (child[i] == p) {
						if (write(polled[i].fd, &status, sizeof status) < 0) {
							// Who asked is gone.
						}
						close(polled[i].fd);
						count--;
						polled[i] = polled[count];
						child[i] = child[count];
						break;
					}
		}
		if (polled[1].revents) {
			int c = accept4(ear, NULL, NULL, SOCK_CLOEXEC);
			if (c < 0)
				continue;
			pid_t p = fork();
			if (p < 0)
				fail("fork");
			if (p == 0) {
				for (int i = 1; i < count; i++) // 0 stays taken until it is replaced
					close(polled[i].fd);
				sigprocmask(SIG_UNBLOCK, &ends, NULL);
				signal(SIGPIPE, SIG_DFL);
				exit(taken(c));
			}
			polled[count] = (struct pollfd){c, 0};
			child[count++] = p;
		}
	}
}

typedef int starter(program *, int, char **, void (*)(void), void (*)(void), void (*)(void), void *);

int __libc_start_main(program *main, int argc, char **argv, void (*init)(void), void (*fini)(void), void (*rtld_fini)(void), void *stack_end) {
	starter *start = (starter *)dlsym(RTLD_NEXT, "__libc_start_main");
	real_main = main;
	return start(getenv("PREMIX_TEST_SERVE") ? serve : main, argc, argv, init, fini, rtld_fini, stack_end);
}
