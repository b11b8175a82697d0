/* A stand-in for a tool that makes processes before it loads an index, as STAR does with
 * --readFilesCommand.
 *
 * usage: head WAY PREFIX INDEX INPUT
 *
 * It asks ls for the status of INPUT, has a shell write INPUT into the FIFO PREFIX.fifo, and opens
 * it. Then it loads INDEX, reads the FIFO, and writes PREFIX.out. It has the file PREFIX.log open
 * all the time. WAY is one more thing that it does:
 *
 *   plain    nothing
 *   slow     sleeps for half a second before it loads
 *   over     overwrites the text of ls with a constant while it loads
 *   copy     copies the text of ls while it loads
 *   pid      keeps a number from the process id of the shell while it loads
 *   parity   keeps whether INPUT has an even size while it loads
 *   later-copy, later-parity
 *            the same when it has loaded INDEX, and not read the FIFO
 *   reads    reads the text of ls again while it loads
 *   waits    waits for ls while it loads
 *   kills    ends the shell while it loads
 *   forks    makes another process while it loads
 *   rewinds  writes to the beginning of PREFIX.log while it loads
 *   action, timer, stack
 *            sets an action of a signal, a timer or a signal stack before it loads, and takes it
 *            away while it loads
 *   files    opens a file before it loads, and closes it and opens INDEX while it loads
 *   all      has another process read all of INPUT before it loads
 *   early    ends before it loads
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char text[4096], copied[4096], path[4096], script[4096], command[16384], stack[65536];

static void note(int sig) { (void)sig; }

static const char *name(const char *prefix, const char *end)
{
	snprintf(path, sizeof path, "%s%s", prefix, end);
	return path;
}

int main(int argc, char **argv)
{
	if (argc != 5) return 2;
	const char *way = argv[1], *prefix = argv[2], *input = argv[4];
	long kept = 0;
#define IS(x) !strcmp(way, x)
	FILE *log = fopen(name(prefix, ".log"), "w");
	if (!log) return 3;
	time_t now = time(NULL);
	struct tm *tm = localtime(&now);
	fprintf(log, "began in %d\n", tm->tm_year + 1900);
	snprintf(command, sizeof command, "ls -lL '%s' > '%s.info' 2>&1", input, prefix);
	pid_t ls = fork();
	if (ls == 0) {
		execlp("sh", "sh", "-c", command, NULL);
		_exit(127);
	}
	if (!IS("waits")) waitpid(ls, NULL, 0);
	else sleep(1);
	FILE *info = fopen(name(prefix, ".info"), "r");
	if (!info || !fgets(text, sizeof text, info)) return 4;
	fclose(info);
	fprintf(log, "%s", text);
	fflush(log);
	if (IS("early")) return 9;
	if (IS("all")) {
		snprintf(command, sizeof command, "cat '%s' > '%s.copy'", input, prefix);
		if (system(command)) return 4;
	}
	if (mkfifo(name(prefix, ".fifo"), 0600)) return 5;
	FILE *f = fopen(name(prefix, ".sh"), "w");
	fprintf(f, "exec > '%s.fifo'\necho begin\ncat '%s'\n", prefix, input);
	fclose(f);
	snprintf(script, sizeof script, "%s.sh", prefix);
	chmod(script, 0700);
	pid_t shell = vfork();
	if (shell == 0) {
		execlp("sh", "sh", script, NULL);
		_exit(127);
	}
	FILE *in = fopen(name(prefix, ".fifo"), "r");
	if (!in) return 6;
	struct stat st;
	stat(input, &st);
	struct itimerval timer = {.it_value = {.tv_sec = 1000}}, none = {0};
	stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack}, nowhere = {.ss_flags = SS_DISABLE};
	if (IS("slow")) usleep(500000);
	if (IS("action")) signal(SIGUSR1, note);
	if (IS("timer")) setitimer(ITIMER_REAL, &timer, NULL);
	if (IS("stack")) sigaltstack(&alternate, NULL);
	int fd = IS("files") ? open("/etc/passwd", O_RDONLY) : -1;

	FILE *index = fopen(argv[3], "r");
	if (!index) return 7;
	fseek(index, 0, SEEK_END);
	long size = ftell(index);
	rewind(index);
	char *data = malloc(size);
	if (fread(data, 1, size, index) != (size_t)size) return 7;
	if (IS("copy")) strcpy(copied, text);
	if (IS("pid")) kept = shell * 2654435761u >> 20;
	if (IS("parity")) kept = st.st_size % 2;
	fclose(index);
	if (IS("later-copy")) strcpy(copied, text);
	if (IS("later-parity")) kept = st.st_size % 2;
	unsigned sum = 0;
	for (long i = 0; i < size; i++) sum = sum * 33 + (unsigned char)data[i];
	fprintf(log, "loaded %ld bytes for %s\n", size, prefix);
	fflush(log);
	printf("ready\n");
	fflush(stdout);
	if (IS("over")) memset(text, 'x', sizeof text - 1);
	if (IS("reads") && (info = fopen(name(prefix, ".info"), "r"))) fclose(info);
	if (IS("waits")) waitpid(ls, NULL, 0);
	if (IS("kills")) kill(shell, SIGKILL);
	if (IS("forks") && system("true")) return 4;
	if (IS("rewinds")) rewind(log), fprintf(log, "B"), fflush(log), fseek(log, 0, SEEK_END);
	if (IS("action")) signal(SIGUSR1, SIG_DFL);
	if (IS("timer")) setitimer(ITIMER_REAL, &none, NULL);
	if (IS("stack")) sigaltstack(&nowhere, NULL);
	if (IS("files")) close(fd), fd = open(argv[3], O_RDONLY);

	static char line[65536];
	unsigned long n = 0;
	while (fgets(line, sizeof line, in)) {
		for (char *p = line; *p; p++) sum = sum * 33 + (unsigned char)*p;
		n++;
	}
	fclose(in);
	int status = -1;
	pid_t ended = waitpid(shell, &status, 0);
	FILE *out = fopen(name(prefix, ".out"), "w");
	if (!out) return 8;
	struct sigaction action;
	sigaction(SIGUSR1, NULL, &action);
	getitimer(ITIMER_REAL, &timer);
	sigaltstack(NULL, &alternate);
	fprintf(out, "%lu lines, sum %u, kept %ld, size %ld\n%s%s", n, sum, kept, (long)st.st_size, text, copied);
	fprintf(out, "child %d status %d, action %d, timer %d, stack %d\n", ended == shell, status, action.sa_handler != SIG_DFL, timer.it_value.tv_sec != 0, alternate.ss_flags);
	for (int i = 3; i < 20; i++) {
		snprintf(command, sizeof command, "/proc/self/fd/%d", i);
		ssize_t k = readlink(command, path, sizeof path - 1);
		path[k < 0 ? 0 : k] = 0;
		if (k > 0) fprintf(out, "%d is open, offset %ld, %s\n", i, (long)lseek(i, 0, SEEK_CUR), strrchr(path, '/'));
	}
	fclose(out);
	fprintf(log, "%s did %lu lines\n", prefix, n);
	fclose(log);
	for (const char **end = (const char *[]){".info", ".fifo", ".sh", ".copy", NULL}; *end; end++) unlink(name(prefix, *end));
	return 0;
}
