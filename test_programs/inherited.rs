//! Prints everything that a program inherits.

#[macro_use]
mod scenario;

use std::fs;

use libc::*;
use scenario::{line, said};

/// The lines of a file of procfs, without those that differ for each process or when traced.
fn show(name: &str, leave_out: &[&str]) {
    line(&format!("-- {name}"));
    match fs::read(name) {
        Ok(text) => {
            let text = String::from_utf8_lossy(&text).replace('\0', "\n");
            text.lines().filter(|text| !leave_out.iter().any(|word| text.starts_with(word))).for_each(line);
        }
        Err(error) => line(&format!("{:?}", error.kind())),
    }
}

fn identity() {
    show(
        "/proc/self/status",
        &[
            "Tgid:",
            "Ngid:",
            "Pid:",
            "PPid:",
            "TracerPid:",
            "NStgid:",
            "NSpid:",
            "Vm",
            "Rss",
            "HugetlbPages:",
            "FDSize:",
            "voluntary_ctxt",
            "nonvoluntary_ctxt",
            "Seccomp",
            "SigQ:",
            "NoNewPrivs:",
            "Speculation_Store",
            "SpeculationIndirect",
        ],
    );
    for name in [
        "limits",
        "cgroup",
        "oom_score_adj",
        "coredump_filter",
        "comm",
        "cmdline",
        "environ",
        "personality",
        "timerslack_ns",
        "uid_map",
        "setgroups",
        "loginuid",
    ] {
        show(&format!("/proc/self/{name}"), &["PWD=", "OLDPWD="]);
    }
    for name in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"] {
        line(&format!("{name} {:?}", fs::read_link(format!("/proc/self/ns/{name}")).ok()));
    }
    line(&format!("group {} session {}", c!(getpgrp()), c!(getsid(0))));
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    // tty_nr, tpgid, priority, nice, threads, exit signal, rt_priority, policy
    for at in [4, 5, 15, 16, 17, 35, 37, 38] {
        line(&format!("field {} {}", at + 3, fields[at]));
    }
    line(&format!("parent death signal {}", {
        let mut signal = 0;
        c!(prctl(PR_GET_PDEATHSIG, &raw mut signal));
        signal
    }));
    for (name, option) in [
        ("dumpable", PR_GET_DUMPABLE),
        ("subreaper", PR_GET_CHILD_SUBREAPER),
        ("securebits", PR_GET_SECUREBITS),
        ("timing", PR_GET_TIMING),
        ("timer slack", PR_GET_TIMERSLACK),
        ("thp", PR_GET_THP_DISABLE),
    ] {
        let mut value = 0;
        let answer = c!(prctl(option, &raw mut value, 0, 0, 0));
        line(&format!("{name} {} {value}", said(answer)));
    }
    line(&format!("umask {:o}", c!(umask(0))));
    line(&format!("ioprio {}", c!(syscall(SYS_ioprio_get, 1, 0))));
    line(&format!("personality {:x}", c!(personality(0xffff_ffff))));
    for signal in 1..=64 {
        let mut action: libc::sigaction = c!(std::mem::zeroed());
        if c!(libc::sigaction(signal, std::ptr::null(), &raw mut action)) == 0
            && action.sa_sigaction != SIG_DFL
        {
            line(&format!("signal {signal} ignored {}", action.sa_sigaction == SIG_IGN));
        }
    }
    line(&format!(
        "directory {:?}",
        std::env::current_dir().map(|name| name.file_name().map(ToOwned::to_owned))
    ));
    line(&format!("arguments {:?}", std::env::args_os().skip(1).collect::<Vec<_>>()));
}

fn descriptors() {
    // Without a directory handle of its own among them. Rust's start fills the first three.
    for fd in 0..1024 {
        let flags = c!(fcntl(fd, F_GETFD));
        if flags < 0 {
            continue;
        }
        let mut found: stat = c!(std::mem::zeroed());
        c!(fstat(fd, &raw mut found));
        let status = c!(fcntl(fd, F_GETFL));
        let at = c!(lseek(fd, 0, SEEK_CUR));
        let name = fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
        let name = name.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let name = name.split(':').next().unwrap_or_default();
        line(&format!("{fd}: flags {flags:o} {status:o} mode {:o} at {} {name}", found.st_mode, said(at)));
    }
}

fn main() {
    scenario::run(&[("identity", identity), ("descriptors", descriptors)]);
}
