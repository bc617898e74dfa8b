/* The least that a tracer with two mechanisms must cost: a read-only path call waits for an answer by seccomp
 * user notification with synchronous wake-up (Linux 6.6), one that can change something has two ptrace stops.
 * Of both, the start of the path is read, and nothing is done with it.
 *
 *     cc -O2 -pthread -o floor_hybrid floor_hybrid.c && ./floor_hybrid COMMAND [ARG...]
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SECCOMP_IOCTL_NOTIF_SET_FLAGS
#define SECCOMP_IOCTL_NOTIF_SET_FLAGS SECCOMP_IOW(4, __u64)
#endif
#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (1UL << 5)
#endif

static const int read_only[] = {
    SYS_stat, SYS_lstat, SYS_access, SYS_readlink, SYS_statfs, SYS_getxattr, SYS_lgetxattr,
    SYS_newfstatat, SYS_readlinkat, SYS_faccessat, SYS_statx, SYS_faccessat2,
};
static const int changing[] = {
    SYS_execve, SYS_truncate, SYS_chdir, SYS_rename, SYS_mkdir, SYS_rmdir, SYS_creat, SYS_link, SYS_unlink,
    SYS_symlink, SYS_chmod, SYS_chown, SYS_lchown, SYS_utime, SYS_mknod, SYS_setxattr, SYS_lsetxattr,
    SYS_removexattr, SYS_lremovexattr, SYS_utimes, SYS_inotify_add_watch, SYS_mkdirat, SYS_mknodat,
    SYS_fchownat, SYS_futimesat, SYS_unlinkat, SYS_renameat, SYS_linkat, SYS_symlinkat, SYS_fchmodat,
    SYS_utimensat, SYS_renameat2, SYS_execveat, SYS_openat2,
};
enum { READ_ONLY = sizeof read_only / sizeof *read_only, CHANGING = sizeof changing / sizeof *changing };

static int listener;

static int make_filter(struct sock_filter *program) {
    int n = 0;
    program[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < READ_ONLY; i++) {
        program[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, read_only[i], 0, 1);
        program[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
    }
    for (int i = 0; i < CHANGING; i++) {
        program[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, changing[i], 0, 1);
        program[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
    }
    const int opens[][2] = {{SYS_openat, 2}, {SYS_open, 1}};
    for (int i = 0; i < 2; i++) {
        unsigned flags = offsetof(struct seccomp_data, args) + 8 * opens[i][1];
        program[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, opens[i][0], 0, 4);
        program[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, flags);
        program[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K,
                                                    O_WRONLY | O_RDWR | O_CREAT | O_TRUNC, 0, 1);
        program[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
        program[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
    }
    program[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    return n;
}

/* Sends `fd` if it is not negative, else receives one and returns it. */
static int pass(int channel, int fd) {
    char byte = 0, control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec io = {&byte, 1};
    struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (fd < 0) {
        if (recvmsg(channel, &message, MSG_CMSG_CLOEXEC) != 1)
            _exit(125);
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
        return fd;
    }
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    return sendmsg(channel, &message, 0) == 1 ? fd : -1;
}

static void run(int channel, char **command) {
    struct sock_filter program[2 * (READ_ONLY + CHANGING) + 12];
    struct sock_fprog filter = {make_filter(program), program};
    char byte;
    if (read(channel, &byte, 1) != 1)
        _exit(125);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    long flags = SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    int fd = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &filter);
    if (fd < 0 || pass(channel, fd) < 0)
        _exit(125);
    close(fd);
    close(channel);
    execvp(command[0], command);
    _exit(127);
}

static void read_path(pid_t tid, uint64_t path) {
    char start[256];
    size_t length = 4096 - (path & 4095);
    if (length > sizeof start)
        length = sizeof start;
    struct iovec local = {start, length}, remote = {(void *)path, length};
    process_vm_readv(tid, &local, 1, &remote, 1, 0);
}

static void *serve(void *unused) {
    for (;;) {
        struct seccomp_notif call = {0};
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) != 0) {
            if (errno == EINTR || errno == ENOENT)
                continue;
            return unused;
        }
        read_path(call.pid, call.data.args[call.data.nr >= SYS_openat]);
        struct seccomp_notif_resp answer = {.id = call.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
        ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    }
}

int main(int argc, char **argv) {
    int channel[2];
    if (argc < 2 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channel) != 0)
        return 125;
    pid_t command = fork();
    if (command == 0)
        run(channel[1], argv + 1);
    ptrace(PTRACE_SEIZE, command, 0,
           PTRACE_O_TRACESECCOMP | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE |
               PTRACE_O_TRACEEXEC | PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
    if (write(channel[0], "", 1) != 1)
        return 125;
    listener = pass(channel[0], -1);
    ioctl(listener, SECCOMP_IOCTL_NOTIF_SET_FLAGS, 1L);
    pthread_t server;
    pthread_create(&server, 0, serve, 0);
    int status, code = 125;
    for (pid_t tid; (tid = waitpid(-1, &status, __WALL)) > 0 || errno == EINTR;) {
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            if (tid == command)
                code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            continue;
        }
        int signal = WSTOPSIG(status), event = status >> 16;
        int request = PTRACE_CONT;
        struct user_regs_struct registers;
        if (event == PTRACE_EVENT_SECCOMP && ptrace(PTRACE_GETREGS, tid, 0, &registers) == 0) {
            read_path(tid, registers.orig_rax >= SYS_openat ? registers.rsi : registers.rdi);
            /* The next stop is at the exit of the call. */
            request = PTRACE_SYSCALL;
        }
        if (event == PTRACE_EVENT_STOP && (signal == SIGSTOP || signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU))
            request = PTRACE_LISTEN;
        if (event != 0 || signal == (SIGTRAP | 0x80))
            signal = 0;
        ptrace(request, tid, 0, (void *)(long)signal);
    }
    _exit(code);
}
