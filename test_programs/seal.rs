//! Forbids what the sandboxes of coding agents forbid by seccomp, then executes a program.
//!
//! Codex and Anthropic's sandbox-runtime let fail with EPERM: ptrace, other processes' memory, io_uring, and sockets.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use libc::*;

const FORBIDDEN: [c_long; 9] = [
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_io_uring_setup,
    SYS_io_uring_enter,
    SYS_io_uring_register,
    SYS_socket,
    SYS_socketpair,
    SYS_connect,
];

fn main() {
    let step = |code: u32, jt, jf, k| sock_filter { code: code as u16, jt, jf, k };
    let mut program = vec![step(BPF_LD | BPF_W | BPF_ABS, 0, 0, 0)];
    for (at, number) in FORBIDDEN.iter().enumerate() {
        program.push(step(BPF_JMP | BPF_JEQ | BPF_K, (FORBIDDEN.len() - at) as u8, 0, *number as u32));
    }
    program.push(step(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW));
    program.push(step(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EPERM as u32));
    let program = sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the kernel reads `program` and the instructions to which it points, which outlive the call.
    let installed = unsafe {
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    assert!(installed, "{}", std::io::Error::last_os_error());
    let mut arguments = std::env::args_os().skip(1);
    let error = Command::new(arguments.next().expect("a program")).args(arguments).exec();
    panic!("{error}");
}
