//! The descriptors of a thread in procfs: their magic links (proc_pid_fd(5)) and flags (proc_pid_fdinfo(5)).

use std::fmt::Display;

use super::sys::Tid;

/// The magic link of a descriptor.
pub fn link(tid: Tid, fd: impl Display) -> String {
    format!("/proc/{tid}/fd/{fd}")
}

/// The flags of a descriptor as open(2) takes them, by the text of its file in fdinfo, which has them in octal digits.
pub fn flags(info: &str) -> Option<i32> {
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
    i32::from_str_radix(flags.trim(), 8).ok()
}
