//! Seccomp filters that the tree installs itself, which must not return SECCOMP_RET_TRACE.
//!
//! Without a tracer, a syscall for which a filter returns it fails with ENOSYS (seccomp(2)). Traced, it would
//! not, and a notification of ours takes precedence over it. So such a filter is installed with
//! SECCOMP_RET_ERRNO and ENOSYS instead. To a process that has no filter but ours, PR_GET_SECCOMP must say that it has
//! none. Neighbour: `tracer.rs` knows when a filter is installed, or asked for.

use std::io;
use std::sync::LazyLock;

use super::memory::{Memory, RemoteAddr};
use super::proc_status::ProcStatus;
use super::sys::{self, Stopped, Tid, TraceeMemory};

/// The most instructions that a program may have (BPF_MAXINSNS, bpf(4)).
const MAX_INSTRUCTIONS: u16 = 4096;

/// A program in a tracee's memory, changed for the duration of the syscall that installs it.
#[derive(Debug)]
pub(super) struct ChangedProgram {
    address: u64,
    original: Vec<u8>,
}

/// Replaces the action in the program that `tracee` is about to install; none if the program does not use it.
///
/// `program` is the address of its struct sock_fprog. An error says that the tracee's memory can't be
/// written.
pub(super) fn replace_trace_action(
    tracee: &Stopped,
    program: RemoteAddr,
) -> io::Result<Option<ChangedProgram>> {
    let tid = tracee.tid();
    // If it can't be read, the kernel fails, too.
    let Some((address, original)) = read(&TraceeMemory(tid), program) else { return Ok(None) };
    let Some(changed) = without_trace(&original) else { return Ok(None) };
    sys::overwrite_memory(tid, address, &changed)?;
    Ok(Some(ChangedProgram { address, original }))
}

impl ChangedProgram {
    /// Restores the original program.
    pub fn restore(self, tracee: &Stopped) -> io::Result<()> {
        sys::overwrite_memory(tracee.tid(), self.address, &self.original)
    }
}

/// Whether a thread that has our filter has no other, neither of its own nor from before the launch.
pub(super) fn has_none_beside_ours(tid: Tid) -> bool {
    filters_of(tid) == Some(1)
}

/// Whether a thread has no filters but ours and those that we have ourselves, in a container for example.
pub(super) fn has_none_of_its_own(tid: Tid) -> bool {
    static INHERITED: LazyLock<Option<u32>> =
        LazyLock::new(|| filters_of(Tid(std::process::id().cast_signed())));
    INHERITED.is_some_and(|inherited| filters_of(tid) == Some(inherited + 1))
}

/// How many filters a thread has (Linux 5.9).
fn filters_of(tid: Tid) -> Option<u32> {
    ProcStatus::of(tid)?.line("Seccomp_filters:")?.parse().ok()
}

/// The instructions of a struct sock_fprog, and their address.
fn read(memory: &dyn Memory, program: RemoteAddr) -> Option<(u64, Vec<u8>)> {
    let mut header = [0; 16];
    memory.read_exact(program, &mut header).ok()?;
    let [count, ..] = *header.as_chunks::<2>().0 else { return None };
    let [_, address] = *header.as_chunks::<8>().0 else { return None };
    let (count, address) = (u16::from_ne_bytes(count), u64::from_ne_bytes(address));
    let mut instructions = vec![0; usize::from(count.min(MAX_INSTRUCTIONS)) * size_of::<libc::sock_filter>()];
    memory.read_exact(RemoteAddr(address), &mut instructions).ok()?;
    Some((address, instructions))
}

/// The same instructions with ENOSYS for SECCOMP_RET_TRACE; none if that is not among them.
fn without_trace(instructions: &[u8]) -> Option<Vec<u8>> {
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    const ENOSYS: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs();
    let mut changed = instructions.to_vec();
    // struct sock_filter: a code of two bytes, two jumps of one byte each, an operand of four.
    for [code @ .., a, b, c, d] in changed.as_chunks_mut::<8>().0 {
        let returns = u32::from(u16::from_ne_bytes([code[0], code[1]])) == RETURN;
        let operand = u32::from_ne_bytes([*a, *b, *c, *d]);
        if returns && operand & libc::SECCOMP_RET_ACTION_FULL == libc::SECCOMP_RET_TRACE {
            [*a, *b, *c, *d] = ENOSYS.to_ne_bytes();
        }
    }
    (changed != instructions).then_some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instruction(code: u32, operand: u32) -> Vec<u8> {
        let code = u16::try_from(code).unwrap();
        [&code.to_ne_bytes()[..], &[0, 1], &operand.to_ne_bytes()].concat()
    }

    #[test]
    fn only_a_return_of_the_action_is_replaced() {
        let returns = libc::BPF_RET | libc::BPF_K;
        let compares = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        let enosys = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs();
        let program = [
            instruction(compares, libc::SECCOMP_RET_TRACE),
            instruction(returns, libc::SECCOMP_RET_TRACE | 7),
            instruction(returns, libc::SECCOMP_RET_ALLOW),
        ];
        let changed = without_trace(&program.concat()).unwrap();
        let wanted = [program[0].clone(), instruction(returns, enosys), program[2].clone()];
        assert_eq!(changed, wanted.concat());
        assert_eq!(without_trace(&wanted.concat()), None);
    }
}
