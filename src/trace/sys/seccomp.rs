//! Installing a seccomp filter, and answering its notifications (seccomp_unotify(2)).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::process::{Tid, check};

/// Installs a filter in this thread (seccomp(2)), which it and all its descendants keep.
///
/// Without CAP_SYS_ADMIN the kernel requires no_new_privs, which is set only then.
pub fn install_filter(program: &[libc::sock_filter]) -> io::Result<()> {
    install(program, 0).map(drop)
}

/// Installs a filter that returns SECCOMP_RET_USER_NOTIF for some syscalls, and returns its listener.
///
/// EBUSY where this process has such a filter already, EINVAL before Linux 5.19.
pub fn install_filter_with_listener(program: &[libc::sock_filter]) -> io::Result<OwnedFd> {
    // Once its notification was received, only a fatal signal interrupts a syscall.
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let fd = i32::try_from(install(program, flags)?).map_err(io::Error::other)?;
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn install(program: &[libc::sock_filter], flags: libc::c_ulong) -> io::Result<libc::c_long> {
    let length = u16::try_from(program.len())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "the filter program is too long"))?;
    let program = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    // SAFETY: `program` names `length` instructions that outlive the call; the kernel copies them.
    let install = || unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    };
    match check(install()) {
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => {}
        other => return other,
    }
    rustix::thread::set_no_new_privs(true)?;
    check(install())
}

/// Sends `message` with a duplicate of `descriptor` (SCM_RIGHTS, unix(7)), and with `pass` in the register of a sixth
/// argument, which sendmsg has not.
pub fn send_with_pass(
    socket: BorrowedFd<'_>,
    message: &[u8],
    descriptor: BorrowedFd<'_>,
    pass: u64,
) -> io::Result<()> {
    /// What CMSG_LEN(3) and CMSG_SPACE(3) measure for one descriptor.
    #[repr(C)]
    struct Rights {
        header: libc::cmsghdr,
        descriptor: i32,
        padding: i32,
    }
    let header = libc::cmsghdr {
        cmsg_len: size_of::<libc::cmsghdr>() + size_of::<i32>(),
        cmsg_level: libc::SOL_SOCKET,
        cmsg_type: libc::SCM_RIGHTS,
    };
    let mut rights = Rights { header, descriptor: descriptor.as_raw_fd(), padding: 0 };
    let mut part = libc::iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: message.len() };
    let whole = libc::msghdr {
        msg_name: std::ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: &raw mut part,
        msg_iovlen: 1,
        msg_control: (&raw mut rights).cast(),
        msg_controllen: size_of::<Rights>(),
        msg_flags: 0,
    };
    // SAFETY: the kernel reads `whole`, and `message` and `rights` to which it points, all of which outlive the call.
    check(unsafe {
        let flags = libc::MSG_NOSIGNAL;
        libc::syscall(libc::SYS_sendmsg, socket.as_raw_fd(), &raw const whole, flags, 0, 0, pass)
    })
    .map(drop)
}

/// Whether the kernel's messages are no longer than the structures of libc.
pub fn notification_sizes_known() -> bool {
    let mut sizes = libc::seccomp_notif_sizes { seccomp_notif: 0, seccomp_notif_resp: 0, seccomp_data: 0 };
    // SAFETY: the kernel writes one seccomp_notif_sizes there.
    let asked = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_NOTIF_SIZES, 0, &raw mut sizes) };
    asked == 0
        && usize::from(sizes.seccomp_notif) <= size_of::<libc::seccomp_notif>()
        && usize::from(sizes.seccomp_notif_resp) <= size_of::<libc::seccomp_notif_resp>()
}

/// A syscall that is blocked at its entry until its notification is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notification {
    /// What the answer refers to; invalid once the thread is dead.
    pub id: u64,
    /// The calling thread.
    pub tid: Tid,
    /// The AUDIT_ARCH number of its ABI.
    pub arch: u32,
    /// The syscall's number.
    pub number: u64,
    /// The six argument registers.
    pub arguments: [u64; 6],
    /// The address after the instruction that makes it.
    pub instruction_pointer: u64,
}

/// Waits for the next notification.
///
/// ENOENT where the syscall was interrupted before its notification was received, and (Linux 6.11) where no
/// process has the filter any more.
pub fn receive_notification(listener: BorrowedFd<'_>) -> io::Result<Notification> {
    let mut message = MaybeUninit::<libc::seccomp_notif>::zeroed();
    // SAFETY: the kernel expects zeroes and writes one seccomp_notif there.
    check(unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, message.as_mut_ptr())
    })?;
    // SAFETY: all-zeroes is valid, and the kernel filled it.
    let message = unsafe { message.assume_init() };
    Ok(Notification {
        id: message.id,
        tid: Tid(message.pid.cast_signed()),
        arch: message.data.arch,
        number: u64::from(message.data.nr.cast_unsigned()),
        arguments: message.data.args,
        instruction_pointer: message.data.instruction_pointer,
    })
}

/// Whether no thread has the filter of the listener any more.
pub fn has_no_tracee(listener: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(listener, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec::default())).is_ok() && fds[0].revents().contains(PollFlags::HUP)
}

/// Whether the syscall is still blocked: if so, its thread lives, and memory that was read by its tid is its
/// own.
pub fn is_notification_valid(listener: BorrowedFd<'_>, id: u64) -> bool {
    // SAFETY: the kernel reads one u64.
    unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const id) == 0 }
}

/// Lets the kernel execute the syscall (SECCOMP_USER_NOTIF_FLAG_CONTINUE). A dead thread needs no answer.
pub fn continue_notification(listener: BorrowedFd<'_>, id: u64) {
    let flags = u32::try_from(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE).unwrap_or(1);
    answer_notification(listener, libc::seccomp_notif_resp { id, val: 0, error: 0, flags });
}

/// Has the syscall fail with this errno, without being executed.
pub fn fail_notification(listener: BorrowedFd<'_>, id: u64, errno: i32) {
    answer_notification(listener, libc::seccomp_notif_resp { id, val: 0, error: -errno, flags: 0 });
}

/// Has the syscall return a duplicate of `file`, without being executed (SECCOMP_IOCTL_NOTIF_ADDFD, Linux 5.9).
///
/// `file` is closed before the caller runs on: what its last close ends (flock(2), leases) must not wait for us. EMFILE
/// if the caller has as many descriptors as it may.
pub fn return_descriptor(
    listener: BorrowedFd<'_>,
    id: u64,
    file: OwnedFd,
    close_on_exec: bool,
) -> io::Result<()> {
    let request = libc::seccomp_notif_addfd {
        id,
        flags: 0,
        srcfd: file.as_raw_fd().cast_unsigned(),
        newfd: 0,
        newfd_flags: if close_on_exec { libc::O_CLOEXEC.cast_unsigned() } else { 0 },
    };
    // SAFETY: the kernel reads one seccomp_notif_addfd.
    let number = check(unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw const request)
    })?;
    drop(file);
    answer_notification(listener, libc::seccomp_notif_resp { id, val: number, error: 0, flags: 0 });
    Ok(())
}

fn answer_notification(listener: BorrowedFd<'_>, answer: libc::seccomp_notif_resp) {
    // SAFETY: the kernel reads one seccomp_notif_resp.
    unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer) };
}

/// Makes the kernel schedule a caller and the thread that answers it on one CPU when they wake each other
/// (SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP, Linux 6.6).
pub fn wake_on_one_cpu(listener: BorrowedFd<'_>) -> io::Result<()> {
    /// SECCOMP_IOW(4, __u64) of linux/seccomp.h.
    const SET_FLAGS: libc::Ioctl = 0x4008_2104;
    const SYNC_WAKE_UP: libc::c_ulong = 1;
    // SAFETY: this request takes an integer.
    check(unsafe { libc::ioctl(listener.as_raw_fd(), SET_FLAGS, SYNC_WAKE_UP) }).map(drop)
}
