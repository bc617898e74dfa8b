//! The seccomp program: which syscalls stop for the tracer, which send a notification, which run unobserved.
//!
//! It is made from the rows of [`syscalls`], so that filter and decoding can't disagree; `launch.rs` installs
//! it in the child. It is classic BPF, as seccomp(2) takes it.
//!
//! A binary search over ranges of numbers comes first, and only the rows with conditions load arguments: the
//! kernel (5.11 and later) finds out which numbers are always allowed, and lets those pass without running
//! any program.

use super::asks;
use super::descriptors;
use super::inside;
use super::sys::arch::AUDIT_ARCH;
use super::syscalls::{self, Condition, ReadOnly, Refusable, SyscallRow, Sysno};

/// One instruction of a program.
pub use libc::sock_filter as Instruction;

/// The SECCOMP_RET_DATA of our filter (seccomp(2)): a stop with other data comes from a filter of the
/// command's own.
pub const OURS: u32 = 0xa95e;
const TRACE: u32 = libc::SECCOMP_RET_TRACE | OURS;

/// How syscalls are intercepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interception {
    /// A seccomp filter stops those of the table.
    Stops,
    /// The same, but read-only ones send a notification instead.
    Notifications,
    /// Every syscall stops at its entry and its exit; for where no filter can be installed.
    EveryCall,
}

/// What the filter returns for syscalls that matter: SECCOMP_RET_TRACE or SECCOMP_RET_USER_NOTIF.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Actions {
    /// For those that are not known to be read-only, calls of another ABI and unknown numbers among them.
    pub other: u32,
    /// For those whose registers show that they are read-only.
    pub read_only: u32,
    /// Whether calls matter that do so only where a recording may be recalled: rows of that kind, and [`asks`].
    pub for_recall: bool,
    /// Which read-only ones rules may refuse. These are treated like calls that are not read-only, but for opens: they stop
    /// only with [`STOP_MARK`].
    pub refusable: Option<Refusable>,
    /// What the register of a sixth argument has in read-only calls that their process has noted: they run unobserved.
    pub noted: Option<u64>,
}

impl Actions {
    /// Those of [`Interception::Stops`].
    pub const STOPS: Actions =
        Actions { other: TRACE, read_only: TRACE, for_recall: false, refusable: None, noted: None };
    /// Those of [`Interception::Notifications`].
    pub const NOTIFICATIONS: Actions = Actions { read_only: libc::SECCOMP_RET_USER_NOTIF, ..Actions::STOPS };

    /// Whether a call is read-only, so that its notification will do.
    fn read_only_of(self, row: &SyscallRow) -> ReadOnly {
        match self.refusable {
            Some(refusable) if row.may_be_refused(refusable) && !self.heeds_mark(row) => ReadOnly::Never,
            _ => row.read_only(),
        }
    }

    /// The mark with which a read-only call runs unobserved.
    fn noted_of(self, row: &SyscallRow) -> Option<u64> {
        self.noted.filter(|_| row.when.is_empty() && inside::is_noted(row.name))
    }

    /// Whether a read-only call stops only with the mark.
    fn heeds_mark(self, row: &SyscallRow) -> bool {
        self.refusable.is_some_and(|refusable| row.may_be_refused(refusable)) && row.is_open()
    }
}

/// The index of the register that has the mark, that of a sixth argument.
pub const MARKED: u8 = 5;

/// What that register has when an open, which has no sixth argument, is repeated so that it stops. It need not be secret:
/// an open that has it by chance or by intention is only slower.
pub const STOP_MARK: u64 = 0x7374_6f70_6f70_656e;

/// Makes the program.
///
/// It checks the architecture first, since 32-bit calls have other numbers. x32 numbers have
/// bit 30; they stop, as all numbers above the table do, except negative ones.
///
/// A sendmsg with `pass` in the register of a sixth argument, which it has not, runs unobserved: nobody can answer
/// before the listener itself was sent. `pass` is random, so that no other sendmsg has it. Calls that use one of
/// `descriptors` stop ([`descriptors::used`]).
pub fn program(actions: Actions, pass: u64, descriptors: &[u32]) -> Vec<Instruction> {
    let mut program = vec![
        load(ARCH),
        Instruction { code: JUMP_EQUAL, jt: 1, jf: 0, k: AUDIT_ARCH },
        ret(actions.other),
        load(NUMBER),
    ];
    if !descriptors.is_empty() {
        program.extend(watch(descriptors));
    }
    if actions.for_recall {
        program.extend(stops(asks::rows().map(|(number, when, _)| (*number, *when))));
    }
    if let Some(refusable) = actions.refusable {
        program.extend(stops(stopped_for_rules(refusable)));
    }
    program.extend(search(&ranges(actions), actions, pass));
    program
}

/// The program that lets everything pass.
pub fn allow_all() -> [Instruction; 1] {
    [ret(libc::SECCOMP_RET_ALLOW)]
}

/// Stops calls that have one of these descriptors in a register; the number stays in the accumulator.
fn watch(watched: &[u32]) -> Vec<Instruction> {
    let near = |distance: usize| u8::try_from(distance).expect("few calls and few descriptors");
    let mut program = Vec::new();
    for register in 0..5 {
        let uses = descriptors::uses().filter(|(_, registers)| registers.contains(&register));
        let numbers: Vec<u32> = uses.map(|(number, _)| number).collect();
        let mut test = vec![load(lower(register))];
        for (at, fd) in watched.iter().enumerate() {
            test.push(Instruction { code: JUMP_EQUAL, jt: near(watched.len() - at), jf: 0, k: *fd });
        }
        test.push(Instruction { code: JUMP, jt: 0, jf: 0, k: 1 });
        test.push(ret(TRACE));
        test.push(load(NUMBER));
        for (at, number) in numbers.iter().enumerate() {
            program.push(Instruction { code: JUMP_EQUAL, jt: near(numbers.len() - at), jf: 0, k: *number });
        }
        program.push(Instruction { code: JUMP, jt: 0, jf: 0, k: length(&test) });
        program.extend(test);
    }
    program
}

/// Stops calls by their number and conditions; the number stays in the accumulator.
fn stops(calls: impl Iterator<Item = (u32, &'static [Condition])>) -> Vec<Instruction> {
    let mut program = Vec::new();
    for (number, when) in calls {
        let block = match when {
            [] => vec![ret(TRACE)],
            tests => {
                // Over the return.
                let no = Instruction { code: JUMP, jt: 0, jf: 0, k: 1 };
                [any_of(tests, ret(TRACE), no), vec![load(NUMBER)]].concat()
            }
        };
        let jf = u8::try_from(block.len()).expect("a row has few conditions");
        program.push(Instruction { code: JUMP_EQUAL, jt: 0, jf, k: number });
        program.extend(block);
    }
    program
}

/// The calls that stop where rules are enforced, whatever their row says: those after which the caller's memory, or its
/// descriptors, may change while it waits for a decision, and the one that reads the memory of another process, which may
/// have what must not be read.
fn stopped_for_rules(refusable: Refusable) -> impl Iterator<Item = (u32, &'static [Condition])> {
    const SHARES: &[Condition] = &[Condition::Has { arg: 0, mask: syscalls::CLONE_SHARES }];
    let reads: &[(&str, &[Condition])] = if refusable.reads { &[("process_vm_readv", &[])] } else { &[] };
    [("clone", SHARES), ("io_setup", &[]), ("userfaultfd", &[])]
        .into_iter()
        .chain(reads.iter().copied())
        .map(|(name, when)| (syscalls::number(name), when))
}

/// The first of the numbers that no kernel will ever have. They run unobserved: when such a call stops by a filter, the
/// kernel takes it for one that the tracer has skipped, and on aarch64 it then returns its first argument, except for -1.
const NEGATIVE: u32 = 1 << 31;

/// What the program does with a number.
#[derive(Debug, Clone, Copy)]
enum Leaf {
    Return(u32),
    /// Tests the row's conditions, its open flags, and whether the call was noted.
    Test(&'static SyscallRow),
    /// Returns this unless the call has the launch's pass.
    Pass(u32),
}

/// The first number of each range with one leaf.
fn ranges(actions: Actions) -> Vec<(u32, Leaf)> {
    let mut ranges: Vec<(u32, Leaf)> = Vec::new();
    for number in 0..=syscalls::LAST.0 + 1 {
        let sysno = Sysno(number);
        let leaf = match syscalls::row(sysno) {
            Some(row) => leaf(row, actions),
            None if syscalls::is_known(sysno) => Leaf::Return(libc::SECCOMP_RET_ALLOW),
            None => Leaf::Return(actions.other),
        };
        match (ranges.last(), leaf) {
            (Some((_, Leaf::Return(last))), Leaf::Return(next)) if *last == next => {}
            _ => ranges.push((number, leaf)),
        }
    }
    ranges.push((NEGATIVE, Leaf::Return(libc::SECCOMP_RET_ALLOW)));
    ranges
}

fn leaf(row: &'static SyscallRow, actions: Actions) -> Leaf {
    match actions.read_only_of(row) {
        _ if row.for_recall && !actions.for_recall => Leaf::Return(libc::SECCOMP_RET_ALLOW),
        ReadOnly::Never if row.sysno == syscalls::SENDMSG => Leaf::Pass(actions.other),
        _ if row.sysno == syscalls::SENDMSG => Leaf::Pass(actions.read_only),
        _ if !row.when.is_empty() || actions.noted_of(row).is_some() => Leaf::Test(row),
        ReadOnly::Unless { .. } if actions.read_only != actions.other => Leaf::Test(row),
        ReadOnly::Unless { .. } | ReadOnly::Never => Leaf::Return(actions.other),
        ReadOnly::Always => Leaf::Return(actions.read_only),
    }
}

/// Finds the leaf of the number in the accumulator.
fn search(ranges: &[(u32, Leaf)], actions: Actions, pass: u64) -> Vec<Instruction> {
    match ranges {
        [] => Vec::new(),
        [(_, Leaf::Return(action))] => vec![ret(*action)],
        [(_, Leaf::Test(row))] => test(row, actions),
        [(_, Leaf::Pass(action))] => [test_mark(pass, libc::SECCOMP_RET_ALLOW), vec![ret(*action)]].concat(),
        _ => {
            let (below, from) = ranges.split_at(ranges.len() / 2);
            let first = from[0].0;
            let (below, from) = (search(below, actions, pass), search(from, actions, pass));
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

/// Tests the registers by a row.
fn test(row: &SyscallRow, actions: Actions) -> Vec<Instruction> {
    let (tests, yes, no) = match actions.read_only_of(row) {
        ReadOnly::Unless { arg, mask } if row.when.is_empty() => {
            (&[Condition::Has { arg, mask }][..], actions.other, actions.read_only)
        }
        ReadOnly::Always if row.when.is_empty() => (&[][..], actions.other, actions.read_only),
        ReadOnly::Always => (row.when, actions.read_only, libc::SECCOMP_RET_ALLOW),
        ReadOnly::Unless { .. } | ReadOnly::Never => (row.when, actions.other, libc::SECCOMP_RET_ALLOW),
    };
    let tests = match actions.noted_of(row) {
        Some(mark) => {
            let over_yes = Instruction { code: JUMP, jt: 0, jf: 0, k: 1 };
            let tests = any_of(tests, ret(yes), over_yes);
            [tests, test_mark(mark, libc::SECCOMP_RET_ALLOW), vec![ret(no)]].concat()
        }
        None => any_of(tests, ret(yes), ret(no)),
    };
    match actions.heeds_mark(row) {
        true => [test_mark(STOP_MARK, actions.other), tests].concat(),
        false => tests,
    }
}

/// Does `yes` if one of `tests` holds, else `no`, which comes before it.
fn any_of(tests: &[Condition], yes: Instruction, no: Instruction) -> Vec<Instruction> {
    // Backwards, so that the distance to the end is known.
    let mut backwards = vec![yes, no];
    for (at, test) in tests.iter().enumerate().rev() {
        let yes = u8::try_from(backwards.len() - 1).expect("a row has few conditions");
        let arg = match *test {
            Condition::Has { arg, mask } => {
                backwards.push(Instruction { code: JUMP_ANY_BIT, jt: yes, jf: 0, k: mask });
                arg
            }
            Condition::Is { arg, value } => {
                backwards.push(Instruction { code: JUMP_EQUAL, jt: yes, jf: 0, k: value });
                arg
            }
            Condition::NotNull { arg } => {
                backwards.push(Instruction { code: JUMP_EQUAL, jt: 0, jf: yes, k: 0 });
                backwards.push(load(lower(arg) + 4));
                backwards.push(Instruction { code: JUMP_EQUAL, jt: 0, jf: yes + 2, k: 0 });
                arg
            }
        };
        let loaded = at.checked_sub(1).is_some_and(|before| match tests[before] {
            Condition::Has { arg: before, .. } | Condition::Is { arg: before, .. } => before == arg,
            Condition::NotNull { .. } => false,
        });
        if !loaded {
            backwards.push(load(lower(arg)));
        }
    }
    backwards.reverse();
    backwards
}

/// Returns `action` if the register of a sixth argument has this word.
fn test_mark(mark: u64, action: u32) -> Vec<Instruction> {
    let [high, low] = [mark >> 32, mark & 0xffff_ffff].map(|half| u32::try_from(half).expect("half a word"));
    vec![
        load(lower(MARKED) + 4),
        Instruction { code: JUMP_EQUAL, jt: 0, jf: 3, k: high },
        load(lower(MARKED)),
        Instruction { code: JUMP_EQUAL, jt: 0, jf: 1, k: low },
        ret(action),
    ]
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
const RETURN: u16 = 0x06; // BPF_RET | BPF_K

fn load(offset: u32) -> Instruction {
    Instruction { code: LOAD, jt: 0, jf: 0, k: offset }
}

fn ret(action: u32) -> Instruction {
    Instruction { code: RETURN, jt: 0, jf: 0, k: action }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::syscalls::{Args, number, rows};
    use libc::SECCOMP_RET_ALLOW as ALLOW;

    const PASS: u64 = 0x0123_4567_89ab_cdef;

    /// Runs a program as the kernel does; what it returns, and after how many instructions.
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
                RETURN => return (k, steps),
                _ => panic!("not an instruction of seccomp"),
            };
        }
        unreachable!()
    }

    /// Registers worth trying: each word that a condition tests, alone and with noise in the upper half.
    fn registers() -> Vec<Args> {
        let mut words = vec![
            0,
            1,
            u64::from(u32::MAX),
            1 << 32,
            u64::MAX,
            PASS,
            PASS ^ 1,
            PASS ^ 1 << 63,
            STOP_MARK,
            STOP_MARK ^ 1,
        ];
        let asking = asks::rows().map(|(_, when, _)| *when);
        for when in rows().map(|row| row.when).chain(asking) {
            words.extend(when.iter().map(|test| match *test {
                Condition::Has { mask, .. } => u64::from(mask),
                Condition::Is { value, .. } => u64::from(value) | 0xabc << 32,
                Condition::NotNull { .. } => 2,
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
        let asks = asks::rows().find(|(asking, ..)| *asking == number);
        let is_asking = |when: &[Condition]| when.is_empty() || when.iter().any(|test| test.holds(args));
        let is_stopped =
            |refusable| stopped_for_rules(refusable).any(|(of, when)| of == number && is_asking(when));
        if actions.refusable.is_some_and(is_stopped) {
            return TRACE;
        }
        if actions.for_recall && asks.is_some_and(|(_, when, _)| is_asking(when)) {
            return TRACE;
        }
        let Some(row) = syscalls::row(Sysno(number)) else {
            return if syscalls::is_known(Sysno(number)) { ALLOW } else { actions.other };
        };
        if row.for_recall && !actions.for_recall {
            return ALLOW;
        }
        if row.name == "sendmsg" && args[5] == PASS {
            return ALLOW;
        }
        let may_be_refused = actions.refusable.is_some_and(|refusable| row.may_be_refused(refusable));
        let is_marked = args[5] == STOP_MARK;
        match (row.applies(args), row.is_read_only(args)) {
            (false, _) => ALLOW,
            (true, true) if may_be_refused && (is_marked || !actions.heeds_mark(row)) => actions.other,
            (true, true) => actions.read_only,
            (true, false) => actions.other,
        }
    }

    #[test]
    fn the_program_returns_what_the_table_says() {
        let for_recall = Actions { for_recall: true, ..Actions::NOTIFICATIONS };
        let refusable = |reads, addresses| Actions {
            refusable: Some(Refusable { reads, addresses, unseen_ends: false }),
            ..Actions::NOTIFICATIONS
        };
        let all = [
            Actions::STOPS,
            Actions::NOTIFICATIONS,
            for_recall,
            refusable(true, false),
            refusable(false, true),
        ];
        for actions in all {
            let program = program(actions, PASS, &[]);
            for args in registers() {
                for number in 0..600 {
                    let (action, _) = run(&program, AUDIT_ARCH, number, &args);
                    assert_eq!(action, expected(number, &args, actions), "{number} {args:x?}");
                }
            }
        }
    }

    #[test]
    fn calls_that_use_a_watched_descriptor_stop_and_no_others_do() {
        let fcntl = number("fcntl");
        let (watched, plain) = ([3, 200, 7], program(Actions::NOTIFICATIONS, PASS, &[]));
        let program = program(Actions::NOTIFICATIONS, PASS, &watched);
        for number in 0..500 {
            for register in 0..6 {
                for fd in [0, 3, 7, 8, 200, u64::from(u32::MAX)] {
                    let mut args = [1; 6];
                    args[register] = fd;
                    let is_fcntl = number == fcntl && register == 0;
                    let is_used = descriptors::used(u64::from(number), &args, &watched).is_some();
                    let expected =
                        if is_used || is_fcntl && watched.iter().any(|watched| u64::from(*watched) == fd) {
                            TRACE
                        } else {
                            run(&plain, AUDIT_ARCH, number, &args).0
                        };
                    assert_eq!(run(&program, AUDIT_ARCH, number, &args).0, expected, "{number} {args:?}");
                }
            }
        }
    }

    #[test]
    fn calls_of_other_abis_and_unknown_numbers_stop() {
        let program = program(Actions::NOTIFICATIONS, PASS, &[]);
        for number in [0, 5, 39, NEGATIVE - 1] {
            for arch in [0x4000_0003, 0x4000_0028] {
                assert_eq!(run(&program, arch, number, &[0; 6]).0, TRACE, "i386, arm");
            }
            assert_eq!(run(&program, AUDIT_ARCH, 0x4000_0000 | number, &[0; 6]).0, TRACE, "x32");
        }
        for number in [337, 423, syscalls::LAST.0 + 1, 512, 0x3fff_ffff, NEGATIVE - 1] {
            assert_eq!(run(&program, AUDIT_ARCH, number, &[0; 6]).0, TRACE, "{number}");
        }
        for number in [NEGATIVE, u32::MAX] {
            assert_eq!(run(&program, AUDIT_ARCH, number, &[0; 6]).0, ALLOW, "{number}");
        }
        assert_eq!(run(&program, AUDIT_ARCH, number("getpid"), &[0; 6]).0, ALLOW);
    }

    #[test]
    fn a_program_is_short_and_an_allowed_call_loads_no_argument() {
        for actions in [Actions::STOPS, Actions::NOTIFICATIONS] {
            let program = program(actions, PASS, &[]);
            assert!(program.len() < 400, "{} of the kernel's 4096", program.len());
            for number in 0..600 {
                let (_, steps) = run(&program, AUDIT_ARCH, number, &[0; 6]);
                assert!(steps <= 40, "{number} takes {steps} steps");
            }
        }
        // What the kernel's bitmap of allowed numbers needs.
        let mut tree = program(Actions::STOPS, PASS, &[]);
        tree.iter_mut().filter(|step| step.code == LOAD && step.k >= 16).for_each(|step| step.code = 0);
        for name in ["read", "write", "close", "mmap", "futex"] {
            assert_eq!(run(&tree, AUDIT_ARCH, number(name), &[0; 6]).0, ALLOW);
        }
    }

    #[test]
    fn far_jumps_are_taken_where_near_ones_do_not_reach() {
        let alternating = |number| (number, Leaf::Return(if number % 2 == 0 { ALLOW } else { TRACE }));
        let ranges: Vec<_> = (0..1000).map(alternating).collect();
        let program = [vec![load(NUMBER)], search(&ranges, Actions::NOTIFICATIONS, PASS)].concat();
        assert!(program.iter().any(|step| step.code == JUMP));
        for number in 0..1200 {
            let expected = if number.min(999) % 2 == 0 { ALLOW } else { TRACE };
            assert_eq!(run(&program, AUDIT_ARCH, number, &[0; 6]).0, expected, "{number}");
        }
    }
}
