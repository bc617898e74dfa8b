//! The system calls for which no safe wrapper fits, each in a block of its own: the one module with unsafe
//! code.
//!
//! Safe wrappers come from `rustix`. Signals and wait statuses are raw numbers, since real-time signals have
//! no name there. Neighbours: `launch.rs` starts the tree with these, `tracer.rs` follows it.
#![allow(unsafe_code)]

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("this architecture is not supported yet: see CONTRIBUTING.md, \"Add an architecture\"");

mod address_space;
#[cfg_attr(target_arch = "x86_64", path = "sys/x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "sys/aarch64.rs")]
pub mod arch;
mod descriptors;
mod mapping;
mod process;
mod ptrace;
mod puppet;
mod requests;
mod seccomp;
mod signals;

pub use address_space::{AddressSpace, mapped_ranges};
pub use descriptors::InheritedFd;
pub use mapping::{SYS_MSEAL, SharedMapping, try_mseal};

pub use process::{
    Fork, Tid, descriptor_of, execute, exit_code, exit_now, faccessat_of_nothing, fork, fork_holder,
    fork_witness, has_close_range, has_own_procfs, io_priority, keep_large_buffers, kill, kill_thread,
    set_variable, share_one_arena, wait_for_end,
};
pub use ptrace::{
    Interrupter, Resume, Stopped, SyscallStop, TraceeMemory, Waited, has_news, interrupt, overwrite_memory,
    read_memory, seize, syscall_stop, try_wait, wait, write_memory,
};
pub use puppet::Puppet;
pub use requests::{ARCH_PRCTL, bytes_read, bytes_written};
pub use seccomp::{
    Notification, continue_notification, fail_notification, has_no_tracee, install_filter,
    install_filter_with_listener, is_notification_valid, notification_sizes_known, receive_notification,
    return_descriptor, send_with_pass, wake_on_one_cpu,
};
pub use signals::{
    block_signals, default_disposition, ignore_stops_of_children, is_ignored, signal_descriptor,
    unblock_signal,
};
