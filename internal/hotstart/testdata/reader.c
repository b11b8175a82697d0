/* A tool that reads what there is to read in a directory, and prints a digest of it.
 *
 * usage: reader DIR INPUT
 *
 * Before it opens INPUT it reads DIR/content, DIR/database (opened for writing too),
 * what DIR/link leads to, the names in DIR/names, the sizes, times and permissions of
 * DIR/stat and the target of DIR/target. It looks for DIR/missing, and for "found" in
 * DIR/first and DIR/second.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t digest = 1469598103934665603ull;

static void add(const void *p, size_t n)
{
	for (size_t i = 0; i < n; i++) digest = (digest ^ ((const unsigned char *)p)[i]) * 1099511628211ull;
}

static char *in(const char *dir, const char *name)
{
	static char path[4096];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	return path;
}

static void content(const char *path, int flags)
{
	char b[4096];
	int fd = open(path, flags);
	ssize_t n;
	if (fd < 0) { add("none", 4); return; }
	while ((n = read(fd, b, sizeof b)) > 0) add(b, n);
	close(fd);
}

int main(int argc, char **argv)
{
	const char *dir = argv[1];
	struct dirent **names;
	struct stat st;
	char target[4096];
	if (argc < 3) return 2;
	content(in(dir, "content"), O_RDONLY);
	content(in(dir, "database"), O_RDWR);
	content(in(dir, "link"), O_RDONLY);
	int n = scandir(in(dir, "names"), &names, NULL, alphasort);
	for (int i = 0; i < n; i++) add(names[i]->d_name, strlen(names[i]->d_name) + 1);
	if (!stat(in(dir, "stat"), &st)) {
		add(&st.st_size, sizeof st.st_size);
		add(&st.st_mtim, sizeof st.st_mtim);
		add(&st.st_mode, sizeof st.st_mode);
	}
	ssize_t k = readlink(in(dir, "target"), target, sizeof target);
	if (k > 0) add(target, k);
	if (!access(in(dir, "missing"), F_OK)) add("there", 5);
	if (!access(in(dir, "first/found"), F_OK)) content(in(dir, "first/found"), O_RDONLY);
	else content(in(dir, "second/found"), O_RDONLY);

	FILE *f = fopen(argv[2], "r");
	if (!f) { perror(argv[2]); return 1; }
	while (fgetc(f) != EOF) ;
	printf("%016llx\n", (unsigned long long)digest);
	return 0;
}
