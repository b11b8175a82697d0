// A program that has another one do its work: what served.c made a server of, which waits
// at SOCKET. It ends as that one ends.
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static int fail(const char *what) {
	perror(what);
	return 126;
}

int main(int argc, char **argv, char **env) {
	struct sockaddr_un at = {AF_UNIX, SOCKET};
	int head[3] = {0, argc, 0};
	for (int i = 0; i < argc; i++)
		head[0] += strlen(argv[i]) + 1;
	for (; env[head[2]]; head[2]++)
		head[0] += strlen(env[head[2]]) + 1;
	char *text = malloc(head[0]), *end = text;
	for (int i = 0; i < argc; i++)
		end = stpcpy(end, argv[i]) + 1;
	for (int i = 0; env[i]; i++)
		end = stpcpy(end, env[i]) + 1;

	int c = socket(AF_UNIX, SOCK_STREAM, 0);
	if (connect(c, (struct sockaddr *)&at, sizeof at) != 0)
		return fail(at.sun_path);
	int files[4] = {0, 1, 2, open(".", O_PATH | O_DIRECTORY)};
	char control[CMSG_SPACE(sizeof files)] = {0};
	struct iovec v = {head, sizeof head};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	struct cmsghdr *h = CMSG_FIRSTHDR(&m);
	h->cmsg_level = SOL_SOCKET;
	h->cmsg_type = SCM_RIGHTS;
	h->cmsg_len = CMSG_LEN(sizeof files);
	memcpy(CMSG_DATA(h), files, sizeof files);
	if (sendmsg(c, &m, 0) != sizeof head)
		return fail("sendmsg");
	ssize_t n;
	for (char *from = text; from < end; from += n)
		if ((n = write(c, from, end - from)) < 0)
			return fail("write");
	// Who reads what the other one writes waits for its end, not for that of this one.
	for (int i = 0; i < 3; i++)
		close(i);
	int status;
	if (recv(c, &status, sizeof status, MSG_WAITALL) != sizeof status)
		return 126;
	if (!WIFSIGNALED(status))
		return WEXITSTATUS(status);
	signal(WTERMSIG(status), SIG_DFL);
	raise(WTERMSIG(status));
	return 126;
}
