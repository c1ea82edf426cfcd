/* Forks and waits, in namespaces or without; the child ends, or runs a command. Prints
   the milliseconds of each by the CPU, and by the clock. */

#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NAMESPACES (CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | \
                    CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP)

static double milliseconds(int who) {
    struct rusage used;
    getrusage(who, &used);
    return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e3 +
           (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e3;
}

static double clock_milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    int flags = strcmp(argv[1], "namespaces") ? 0 : NAMESPACES;
    int forks = atoi(argv[2]);
    size_t bytes = (size_t)atoi(argv[3]) << 20;
    char *memory = malloc(bytes);
    if (!memory || forks < 1) return 2;
    memset(memory, 1, bytes);
    double began = clock_milliseconds();
    double before = milliseconds(RUSAGE_SELF) + milliseconds(RUSAGE_CHILDREN);
    for (int i = 0; i < forks; i++) {
        long child = syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
        if (child == 0) {
            if (argc == 4) _exit(0);
            execv(argv[4], argv + 4);
            _exit(127);
        }
        int status;
        if (child < 0 || waitpid(child, &status, 0) != child || status) return 1;
    }
    double after = milliseconds(RUSAGE_SELF) + milliseconds(RUSAGE_CHILDREN);
    printf("%f %f\n", (after - before) / forks,
           (clock_milliseconds() - began) / forks);
    return 0;
}
