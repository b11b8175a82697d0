// dates keeps and writes the time in several forms, loads an index, reads its input, and writes
// the times again: dates INDEX INPUT LOG

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int main(int argc, char **argv) {
	if (argc != 4)
		return 2;
	time_t now = time(NULL);
	struct tm local = *localtime(&now), utc = *gmtime(&now);
	char line[64], *text[4];
	const char *forms[] = {"%b %d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%a %b %e %H:%M:%S %Y", "%H:%M:%S"};
	for (int i = 0; i < 4; i++) {
		strftime(line, sizeof line, forms[i], &local);
		text[i] = strdup(line);
	}
	FILE *log = fopen(argv[3], "w");
	if (log == NULL)
		return 2;
	fprintf(log, "it began at %s (%s)\n", text[0], text[2]);
	fflush(log);
	printf("%s ..... started\n", text[0]);
	fflush(stdout);
	FILE *f = fopen(argv[1], "r");
	char *index = malloc(4 << 20);
	if (f == NULL || index == NULL)
		return 2;
	size_t n = fread(index, 1, 4 << 20, f);
	fclose(f);
	f = fopen(argv[2], "r");
	if (f == NULL)
		return 3;
	long lines = 0;
	while (fgets(line, sizeof line, f) != NULL)
		lines += strchr(line, '\n') != NULL;
	strftime(line, sizeof line, "%Y-%m-%d %H:%M:%S", &local);
	printf("%zu bytes, %ld lines, %s, %s, %s, %s\n", n, lines, text[1], text[2], text[3], line);
	strftime(line, sizeof line, "%Y/%m/%d %H:%M:%S", &utc);
	printf("UTC %s, late by %d s\n", line, (int)(time(NULL) - now) > 5);
	fprintf(log, "it ended\n");
	return 0;
}
