//! Forbids system calls by seccomp, then executes a program: `seal [ANSWER=CALL[:FIRST],...]... PROGRAM [ARG]...`.
//!
//! A call is forbidden if its first argument is FIRST, or whatever it is. ANSWER is EPERM, ENOSYS, KILL, or HOLD: then the
//! filter has a listener, which this program holds until the other one has ended. Without such a word it forbids what the
//! sandboxes of coding agents do: Codex and Anthropic's sandbox-runtime let fail with EPERM ptrace, other processes' memory,
//! io_uring, and sockets.

use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::Command;

use agent_snapshot::trace::syscalls::number;
use libc::*;

const OF_AGENTS: &str = "EPERM=ptrace,process_vm_readv,process_vm_writev,io_uring_setup,io_uring_enter,\
                         io_uring_register,socket,socketpair,connect";

/// Appends to a program that it answers so to these calls.
fn forbid(program: &mut Vec<sock_filter>, rule: &str) -> c_ulong {
    let step = |code: u32, jt, jf, k| sock_filter { code: code as u16, jt, jf, k };
    let (answer, calls) = rule.split_once('=').unwrap();
    let action = match answer {
        "EPERM" => SECCOMP_RET_ERRNO | EPERM as u32,
        "ENOSYS" => SECCOMP_RET_ERRNO | ENOSYS as u32,
        "KILL" => SECCOMP_RET_KILL_PROCESS,
        "HOLD" => return SECCOMP_FILTER_FLAG_NEW_LISTENER,
        other => panic!("no answer: {other}"),
    };
    for call in calls.split(',') {
        let (name, first) = call.split_once(':').unwrap_or((call, ""));
        program.push(step(BPF_LD | BPF_W | BPF_ABS, 0, 0, 0));
        if first.is_empty() {
            program.push(step(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, number(name)));
        } else {
            program.push(step(BPF_JMP | BPF_JEQ | BPF_K, 0, 3, number(name)));
            program.push(step(BPF_LD | BPF_W | BPF_ABS, 0, 0, 16));
            program.push(step(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, first.parse().unwrap()));
        }
        program.push(step(BPF_RET | BPF_K, 0, 0, action));
    }
    0
}

fn main() {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let rules = words.iter().take_while(|word| word.contains('=')).count();
    let mut rules: Vec<String> = words.drain(..rules).collect();
    if rules.is_empty() {
        rules.push(OF_AGENTS.to_owned());
    }
    let mut program = Vec::new();
    let flags = rules.iter().map(|rule| forbid(&mut program, rule)).fold(0, |all, flags| all | flags);
    program.push(sock_filter { code: (BPF_RET | BPF_K) as u16, jt: 0, jf: 0, k: SECCOMP_RET_ALLOW });
    let program = sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the kernel reads `program` and the instructions to which it points, which outlive the call.
    let installed = unsafe {
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &raw const program) >= 0
    };
    assert!(installed, "{}", std::io::Error::last_os_error());
    let (program, arguments) = words.split_first().expect("a program");
    let mut command = Command::new(program);
    command.args(arguments);
    if flags == 0 {
        panic!("{}", command.exec());
    }
    let status = command.status().unwrap();
    std::process::exit(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default()));
}
