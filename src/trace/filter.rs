//! The seccomp program that the table of system calls says: which calls stop for the tracer.
//!
//! Made from the rows of [`syscalls`], so that filter and decoding can't disagree;
//! `sys.rs` installs it in the child. A classic BPF program, as seccomp(2) takes it.
//!
//! The number decides by binary search over stretches of numbers with one verdict, arguments are
//! loaded for the rows with conditions alone: the kernel (5.11 and later) finds by itself the numbers
//! that are always allowed, and answers them from a bitmap without running any program.

use super::syscalls::{self, Lane, SyscallRow, Sysno, Test};

/// One instruction of a program.
pub use libc::sock_filter as Instruction;

/// AUDIT_ARCH_X86_64: what the architecture of a native call is.
pub const NATIVE: u32 = 0xc000_003e;

/// What our filter returns with SECCOMP_RET_TRACE, so that its calls are told from those that a filter of
/// the command's own hands to a tracer (SECCOMP_RET_DATA, seccomp(2)).
pub const OURS: u32 = 0xa95e;
const TRACE: u32 = libc::SECCOMP_RET_TRACE | OURS;

/// How calls are caught.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interception {
    /// A seccomp filter stops the calls of the table only.
    Stops,
    /// The same, but calls that only look wait for an answer in the fast lane.
    Notifications,
    /// Every call stops at its entry and its exit; for where no filter may be installed.
    EveryCall,
}

/// What the kernel does with a call that matters: SECCOMP_RET_TRACE, or SECCOMP_RET_USER_NOTIF.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Actions {
    /// With one that may change something, or that only its exit or memory tells all about; also with
    /// calls of another architecture or ABI, and with numbers that the table does not know.
    pub stop: u32,
    /// With one that its registers show to look only.
    pub look: u32,
}

impl Actions {
    /// Every call that matters stops for the ptracer.
    pub const TRACE: Actions = Actions { stop: TRACE, look: TRACE };
    /// Calls that may change something stop for the ptracer, those that only look wait for an answer.
    pub const LANES: Actions = Actions { look: libc::SECCOMP_RET_USER_NOTIF, ..Actions::TRACE };
}

/// Makes the program.
///
/// It checks the architecture first: a call through `int 0x80` comes with other numbers. x32 calls have
/// bit 30 in their number and stop with all others that are above the table.
pub fn program(actions: Actions) -> Vec<Instruction> {
    let mut program = vec![
        load(ARCH),
        Instruction { code: JUMP_EQUAL, jt: 1, jf: 0, k: NATIVE },
        give(actions.stop),
        load(NUMBER),
    ];
    program.extend(search(&stretches(actions), actions));
    program
}

/// What happens to a call.
#[derive(Debug, Clone, Copy)]
enum Verdict {
    Give(u32),
    /// What the row's conditions and open flags say.
    Ask(&'static SyscallRow),
}

/// The first number of each stretch with one verdict.
fn stretches(actions: Actions) -> Vec<(u32, Verdict)> {
    let mut stretches: Vec<(u32, Verdict)> = Vec::new();
    for number in 0..=syscalls::LAST.0 + 1 {
        let sysno = Sysno(number);
        let verdict = match syscalls::row(sysno) {
            Some(row) => verdict(row, actions),
            None if syscalls::is_known(sysno) => Verdict::Give(libc::SECCOMP_RET_ALLOW),
            None => Verdict::Give(actions.stop),
        };
        match (stretches.last(), verdict) {
            (Some((_, Verdict::Give(last))), Verdict::Give(next)) if *last == next => {}
            _ => stretches.push((number, verdict)),
        }
    }
    stretches
}

fn verdict(row: &'static SyscallRow, actions: Actions) -> Verdict {
    match row.lane() {
        _ if !row.when.is_empty() => Verdict::Ask(row),
        Lane::LookUnless { .. } if actions.look != actions.stop => Verdict::Ask(row),
        Lane::LookUnless { .. } | Lane::Stop => Verdict::Give(actions.stop),
        Lane::Look => Verdict::Give(actions.look),
    }
}

/// Finds the stretch of the number in the accumulator, and its verdict.
fn search(stretches: &[(u32, Verdict)], actions: Actions) -> Vec<Instruction> {
    match stretches {
        [] => Vec::new(),
        [(_, Verdict::Give(action))] => vec![give(*action)],
        [(_, Verdict::Ask(row))] => ask(row, actions),
        _ => {
            let (below, from) = stretches.split_at(stretches.len() / 2);
            let first = from[0].0;
            let (below, from) = (search(below, actions), search(from, actions));
            let mut found = match u8::try_from(below.len()) {
                Ok(jt) => vec![Instruction { code: JUMP_AT_LEAST, jt, jf: 0, k: first }],
                // Conditional jumps reach 255 instructions far.
                Err(_) => vec![
                    Instruction { code: JUMP_AT_LEAST, jt: 0, jf: 1, k: first },
                    Instruction { code: JUMP, jt: 0, jf: 0, k: length(&below) },
                ],
            };
            found.extend(below);
            found.extend(from);
            found
        }
    }
}

/// Asks the registers what the row wants to know of them.
fn ask(row: &SyscallRow, actions: Actions) -> Vec<Instruction> {
    let (tests, yes, no) = match row.lane() {
        Lane::LookUnless { arg, mask } if row.when.is_empty() => {
            (&[Test::Has { arg, mask }][..], actions.stop, actions.look)
        }
        Lane::Look => (row.when, actions.look, libc::SECCOMP_RET_ALLOW),
        Lane::LookUnless { .. } | Lane::Stop => (row.when, actions.stop, libc::SECCOMP_RET_ALLOW),
    };
    // From the last instruction to the first, so that it is known how far it is to the end.
    let mut backwards = vec![give(yes), give(no)];
    for (at, test) in tests.iter().enumerate().rev() {
        let yes = u8::try_from(backwards.len() - 1).expect("a row has few conditions");
        let arg = match *test {
            Test::Has { arg, mask } => {
                backwards.push(Instruction { code: JUMP_ANY_BIT, jt: yes, jf: 0, k: mask });
                arg
            }
            Test::Is { arg, value } => {
                backwards.push(Instruction { code: JUMP_EQUAL, jt: yes, jf: 0, k: value });
                arg
            }
            Test::NotNull { arg } => {
                backwards.push(Instruction { code: JUMP_EQUAL, jt: 0, jf: yes, k: 0 });
                backwards.push(load(lower(arg) + 4));
                backwards.push(Instruction { code: JUMP_EQUAL, jt: 0, jf: yes + 2, k: 0 });
                arg
            }
        };
        let loaded = at.checked_sub(1).is_some_and(|before| match tests[before] {
            Test::Has { arg: before, .. } | Test::Is { arg: before, .. } => before == arg,
            Test::NotNull { .. } => false,
        });
        if !loaded {
            backwards.push(load(lower(arg)));
        }
    }
    backwards.reverse();
    backwards
}

fn length(instructions: &[Instruction]) -> u32 {
    u32::try_from(instructions.len()).expect("programs of some hundred instructions")
}

// Offsets in struct seccomp_data.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;

/// The lower half of an argument, little endian.
fn lower(arg: u8) -> u32 {
    16 + 8 * u32::from(arg)
}

const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const JUMP: u16 = 0x05; // BPF_JMP | BPF_JA
const JUMP_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const JUMP_AT_LEAST: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
const JUMP_ANY_BIT: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K
const GIVE: u16 = 0x06; // BPF_RET | BPF_K

fn load(offset: u32) -> Instruction {
    Instruction { code: LOAD, jt: 0, jf: 0, k: offset }
}

fn give(action: u32) -> Instruction {
    Instruction { code: GIVE, jt: 0, jf: 0, k: action }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::syscalls::{Args, rows};
    use libc::SECCOMP_RET_ALLOW as ALLOW;

    /// Runs a program as the kernel does; what it gives, and how many instructions that took.
    fn run(program: &[Instruction], arch: u32, number: u32, args: &Args) -> (u32, usize) {
        let halves = |word: u64| [(word & 0xffff_ffff) as u32, (word >> 32) as u32];
        let data: Vec<u32> =
            [number, arch, 0, 0].into_iter().chain(args.iter().flat_map(|&word| halves(word))).collect();
        let (mut at, mut accumulator) = (0, 0);
        for steps in 1.. {
            let Instruction { code, jt, jf, k } = program[at];
            at += 1 + match code {
                LOAD => {
                    accumulator = data[k as usize / 4];
                    0
                }
                JUMP => k as usize,
                JUMP_EQUAL => usize::from(if accumulator == k { jt } else { jf }),
                JUMP_AT_LEAST => usize::from(if accumulator >= k { jt } else { jf }),
                JUMP_ANY_BIT => usize::from(if accumulator & k != 0 { jt } else { jf }),
                GIVE => return (k, steps),
                _ => panic!("not an instruction of seccomp"),
            };
        }
        unreachable!()
    }

    /// Registers worth trying: each word a condition asks for, alone and with noise above it.
    fn registers() -> Vec<Args> {
        let mut words = vec![0, 1, u64::from(u32::MAX), 1 << 32, u64::MAX];
        for row in rows() {
            words.extend(row.when.iter().map(|test| match *test {
                Test::Has { mask, .. } => u64::from(mask),
                Test::Is { value, .. } => u64::from(value) | 0xabc << 32,
                Test::NotNull { .. } => 2,
            }));
        }
        words.extend((0..32).map(|bit| 1 << bit));
        let alone = words.iter().flat_map(|&word| {
            (0..6).map(move |arg| {
                let mut args = [0; 6];
                args[arg] = word;
                args
            })
        });
        alone.chain(words.iter().map(|&word| [word; 6])).collect()
    }

    fn expected(number: u32, args: &Args, actions: Actions) -> u32 {
        let Some(row) = syscalls::row(Sysno(number)) else {
            return if syscalls::is_known(Sysno(number)) { ALLOW } else { actions.stop };
        };
        match (row.applies(args), row.is_read_only(args)) {
            (false, _) => ALLOW,
            (true, true) => actions.look,
            (true, false) => actions.stop,
        }
    }

    #[test]
    fn the_program_gives_what_the_table_says() {
        for actions in [Actions::TRACE, Actions::LANES] {
            let program = program(actions);
            for args in registers() {
                for number in 0..600 {
                    let (action, _) = run(&program, NATIVE, number, &args);
                    assert_eq!(action, expected(number, &args, actions), "{number} {args:x?}");
                }
            }
        }
    }

    #[test]
    fn calls_of_other_abis_and_unknown_numbers_stop() {
        let program = program(Actions::LANES);
        for number in [0, 5, 39, u32::MAX] {
            assert_eq!(run(&program, 0x4000_0003, number, &[0; 6]).0, TRACE, "i386");
            assert_eq!(run(&program, NATIVE, 0x4000_0000 | number, &[0; 6]).0, TRACE, "x32");
        }
        for number in [337, 423, syscalls::LAST.0 + 1, 512, 0x3fff_ffff, u32::MAX] {
            assert_eq!(run(&program, NATIVE, number, &[0; 6]).0, TRACE, "{number}");
        }
        assert_eq!(run(&program, NATIVE, 39, &[0; 6]).0, ALLOW, "getpid");
    }

    #[test]
    fn a_program_is_short_and_an_allowed_call_looks_at_no_argument() {
        for actions in [Actions::TRACE, Actions::LANES] {
            let program = program(actions);
            assert!(program.len() < 400, "{} of the kernel's 4096", program.len());
            for number in 0..600 {
                let (_, steps) = run(&program, NATIVE, number, &[0; 6]);
                assert!(steps <= 32, "{number} takes {steps} steps");
            }
        }
        // What the kernel's bitmap of allowed numbers needs.
        let mut tree = program(Actions::TRACE);
        tree.iter_mut().filter(|step| step.code == LOAD && step.k >= 16).for_each(|step| step.code = 0);
        for name in [0, 1, 3, 9, 202] {
            assert_eq!(run(&tree, NATIVE, name, &[0; 6]).0, ALLOW);
        }
    }

    #[test]
    fn far_jumps_are_taken_where_near_ones_do_not_reach() {
        let alternating = |number| (number, Verdict::Give(if number % 2 == 0 { ALLOW } else { TRACE }));
        let stretches: Vec<_> = (0..1000).map(alternating).collect();
        let program = [vec![load(NUMBER)], search(&stretches, Actions::LANES)].concat();
        assert!(program.iter().any(|step| step.code == JUMP));
        for number in 0..1200 {
            let expected = if number.min(999) % 2 == 0 { ALLOW } else { TRACE };
            assert_eq!(run(&program, NATIVE, number, &[0; 6]).0, expected, "{number}");
        }
    }
}
