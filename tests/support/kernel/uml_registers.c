/* Lets user-mode-linux run on processors with more registers than it knows.

It writes the first part of a process's registers, by PTRACE_SETREGSET. Linux takes all
of them or none. So this library, for LD_PRELOAD, adds the rest as it is. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

typedef long (*ptrace_function)(enum __ptrace_request, int, void *, void *);

/* The stacks of user-mode-linux are too small for it. */
static char all_registers[65536];

long ptrace(enum __ptrace_request request, ...)
{
    static ptrace_function original;
    va_list arguments;
    va_start(arguments, request);
    int process = va_arg(arguments, int);
    void *place = va_arg(arguments, void *);
    void *data = va_arg(arguments, void *);
    va_end(arguments);

    if (!original)
        original = (ptrace_function)dlsym(RTLD_NEXT, "ptrace");
    if (request == PTRACE_SETREGSET && place == (void *)NT_X86_XSTATE) {
        struct iovec *known = data;
        struct iovec all = {all_registers, sizeof all_registers};
        if (!original(PTRACE_GETREGSET, process, place, &all)
            && known->iov_len < all.iov_len) {
            memcpy(all_registers, known->iov_base, known->iov_len);
            return original(request, process, place, &all);
        }
    }
    return original(request, process, place, data);
}
