/* Does one thing COUNT times:
 *
 *     growth make COUNT     creates files in d0, d1 and so on, 1000 in each
 *     growth look COUNT     calls lstat for each of them
 *     growth spawn COUNT    executes /bin/true, each time in a process of its own
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *path_of(long number)
{
    static char path[64];
    snprintf(path, sizeof path, "d%ld/%ld", number / 1000, number);
    return path;
}

static int make(long number)
{
    if (number % 1000 == 0) {
        char directory[32];
        snprintf(directory, sizeof directory, "d%ld", number / 1000);
        if (mkdir(directory, 0755) != 0)
            return -1;
    }
    int fd = open(path_of(number), O_WRONLY | O_CREAT | O_EXCL, 0644);
    return fd < 0 ? -1 : close(fd);
}

static int look(long number)
{
    struct stat found;
    return lstat(path_of(number), &found);
}

static int spawn(long number)
{
    (void)number;
    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(127);
    }
    int status;
    return child < 0 || waitpid(child, &status, 0) < 0 ? -1 : status;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    int (*once)(long) = !strcmp(argv[1], "make") ? make : !strcmp(argv[1], "look") ? look : spawn;
    for (long number = 0, count = atol(argv[2]); number < count; number++)
        if (once(number) != 0) {
            perror(argv[1]);
            return 3;
        }
    return 0;
}
