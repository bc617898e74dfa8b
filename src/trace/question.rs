//! Whether a process is recorded already: it asks, and only a tracer of ours answers.
//!
//! The question is a call that needs neither memory nor a filesystem, and that sandboxes let through: faccessat with a
//! mode that does not exist, which the kernel refuses (EINVAL) before it looks at anything else. So it is answered in
//! any PID namespace, without /proc, behind any filter that has access(2) work. Of another tracer, or of none, nothing
//! is learnt. Neighbours: `tracer.rs` and `notifications.rs` answer; the observer is not asked.

use super::observer::Errno;
use super::sys::{self, arch::AUDIT_ARCH};
use super::syscalls::Args;

/// The call, which the kernel knows since 2.6.16.
const NUMBER: u64 = libc::SYS_faccessat.cast_unsigned();

/// The arguments that nothing else has: the descriptor, the address of a path that is none, and the mode.
const ARGUMENTS: [u64; 3] = [0x6167_6e74, u64::from_le_bytes(*b"snapshot"), 0x3f1b_9c58];

/// The answer. Nothing that faccessat does fails so.
const YES: Errno = Errno(libc::EADV);

/// The answer to a call of this ABI, if it is the question.
pub fn answer(arch: u32, number: u64, arguments: &Args) -> Option<Errno> {
    // The mode first: hardly any other call has it.
    let [descriptor, path, mode] = ARGUMENTS;
    let is_question = arguments[2] == mode
        && number == NUMBER
        && arch == AUDIT_ARCH
        && (arguments[0], arguments[1]) == (descriptor, path);
    is_question.then_some(YES)
}

/// Whether a recording of ours has this process.
pub fn is_recorded() -> bool {
    sys::faccessat_of_nothing(ARGUMENTS).raw_os_error() == Some(YES.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_question_is_answered() {
        let [descriptor, path, mode] = ARGUMENTS;
        let question = [descriptor, path, mode, 7, 8, 9];
        assert_eq!(answer(AUDIT_ARCH, NUMBER, &question), Some(YES));
        assert_eq!(answer(0x4000_0003, NUMBER, &question), None, "i386");
        for number in [0, 21, NUMBER | 0x4000_0000, 439, u64::MAX] {
            assert_eq!(answer(AUDIT_ARCH, number, &question), None, "{number}");
        }
        for argument in 0..3 {
            for bit in 0..64 {
                let mut other = question;
                other[argument] ^= 1 << bit;
                assert_eq!(answer(AUDIT_ARCH, NUMBER, &other), None, "argument {argument}, bit {bit}");
            }
        }
    }

    #[test]
    fn kernel_refuses_the_question_whatever_the_descriptor_and_the_path() {
        let error = sys::faccessat_of_nothing(ARGUMENTS).raw_os_error();
        assert_eq!(error, Some(libc::EINVAL), "or these tests are recorded");
    }
}
