// drift FILE copies FILE to its standard output. What it writes for a line "deep" depends
// on something that it has made of its process id before it opened FILE: it is "right"
// where the process that opens FILE is the one that was executed.
//
// Where DRIFT names a directory with a file "hold" in it, and the journal of the run in
// "out" there has a difference, drift makes the file "held" and waits until "hold" has
// gone: a test can kill premix between a difference and what follows from it.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static unsigned seed;

static unsigned mix(void) { return (unsigned)getpid() * 2654435761u ^ 0x5bd1e995u; }

static void hold(const char *dir) {
	char path[4096], line[65536];
	snprintf(path, sizeof path, "%s/hold", dir);
	if (access(path, F_OK) != 0)
		return;
	snprintf(path, sizeof path, "%s/out/.premix/journal-0001.jsonl", dir);
	FILE *f = fopen(path, "r");
	int found = 0;
	while (f && fgets(line, sizeof line, f))
		found |= strstr(line, "\"cause\":\"differs\"") != NULL;
	if (f)
		fclose(f);
	if (!found)
		return;
	snprintf(path, sizeof path, "%s/held", dir);
	if ((f = fopen(path, "w")))
		fclose(f);
	snprintf(path, sizeof path, "%s/hold", dir);
	while (access(path, F_OK) == 0)
		usleep(10000);
}

int main(int argc, char **argv) {
	char line[4096];
	seed = mix();
	FILE *f = argc > 1 ? fopen(argv[1], "r") : NULL;
	if (!f)
		return 2;
	if (getenv("DRIFT"))
		hold(getenv("DRIFT"));
	puts("drift");
	while (fgets(line, sizeof line, f)) {
		if (strcmp(line, "deep\n") == 0)
			puts(seed == mix() ? "right" : "wrong");
		else
			fputs(line, stdout);
	}
	return 0;
}
