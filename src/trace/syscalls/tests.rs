use std::ops::RangeInclusive;

use super::numbers::CALLS;
use super::*;
use crate::trace::memory::{Fake, Fault, RemoteAddr};
use crate::trace::sys::arch;

/// A syscall: its name, its registers, and the memory that they point to.
struct Call {
    memory: Fake,
    name: &'static str,
    args: Vec<u64>,
}

fn call(name: &'static str) -> Call {
    Call { memory: Fake::default(), name, args: Vec::new() }
}

impl Call {
    fn path(mut self, path: &str) -> Self {
        self.args.push(self.memory.map_path(path).0);
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.args.push(self.memory.map(bytes).0);
        self
    }

    fn words(mut self, words: &[u64]) -> Self {
        self.args.push(self.memory.map_words(words).0);
        self
    }

    fn int(mut self, value: i32) -> Self {
        // The kernel ignores the upper half.
        self.args.push(u64::from(value.cast_unsigned()) | 0xdead_beef << 32);
        self
    }

    fn word(mut self, value: u64) -> Self {
        self.args.push(value);
        self
    }

    fn cwd(self) -> Self {
        self.int(libc::AT_FDCWD)
    }

    fn try_decode(mut self) -> Result<DecodedSyscall, Fault> {
        let row = all_rows().iter().find(|row| row.name == self.name).expect("a row");
        self.args.resize(6, 0);
        decode(row, &self.args.try_into().unwrap(), &self.memory)
    }

    fn decode(self) -> DecodedSyscall {
        self.try_decode().unwrap()
    }

    fn accesses(self) -> Vec<Access> {
        let decoded = self.decode();
        assert_eq!(decoded.special, None);
        decoded.accesses.into_vec()
    }

    fn special(self) -> Option<Special> {
        let decoded = self.decode();
        assert_eq!(decoded.accesses.len(), 0);
        decoded.special
    }
}

fn at(dirfd: Dirfd, path: &str, effect: Effect) -> Access {
    let file = FileRef::Path { dirfd, path: path.as_bytes().to_vec() };
    Access { file, effect, follow: true, resolve: Resolve::default() }
}

fn cwd(path: &str, effect: Effect) -> Access {
    at(Dirfd::Cwd, path, effect)
}

fn fd(fd: i32, effect: Effect) -> Access {
    Access { file: FileRef::Descriptor(fd), effect, follow: true, resolve: Resolve::default() }
}

fn nofollow(access: Access) -> Access {
    Access { follow: false, ..access }
}

const READ: OpenFlags = OpenFlags {
    read: true,
    write: false,
    create: false,
    exclusive: false,
    truncate: false,
    append: false,
    path_only: false,
    directory: false,
    temporary: false,
    nonblocking: false,
    without_descriptor: false,
};
const NEITHER: OpenFlags = OpenFlags { read: false, ..READ };
const WRITE: OpenFlags = OpenFlags { write: true, ..NEITHER };

#[test]
fn rows_are_sorted_and_unique_and_their_operands_are_registers() {
    let number = |row: &SyscallRow| CALLS.iter().find(|call| call.name == row.name).map(|call| call.x86_64);
    assert!(all_rows().is_sorted_by_key(number));
    let mut names: Vec<_> = all_rows().iter().map(|row| row.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all_rows().len());
    for row in all_rows() {
        let mut indexes: Vec<u8> = row.operands.iter().flat_map(row::Operand::registers).collect();
        indexes.extend(row.when.iter().map(|test| match *test {
            Condition::Has { arg, .. } | Condition::Is { arg, .. } | Condition::NotNull { arg } => arg,
        }));
        assert!(indexes.iter().all(|&index| index < 6), "{}", row.name);
        assert!(row.operands.len() <= 2, "{}", row.name);
        assert!(row.sysno.0 == NONE || is_known(row.sysno), "{}", row.name);
    }
}

/// The lines of the checklist: name, class.
fn checklist() -> Vec<(&'static str, &'static str)> {
    let lines = include_str!("../../../testdata/path_syscalls.txt").lines();
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let mut words = line.split(' ');
            let mut word = || words.next().unwrap_or_else(|| panic!("{line}"));
            (word(), word())
        })
        .collect()
}

#[test]
fn the_checklist_and_the_table_agree() {
    let checklist = checklist();
    let mut rows = all_rows().iter();
    for &(name, class) in checklist.iter().filter(|line| line.1 != "none") {
        let row = rows.next().expect("a row for each line");
        assert_eq!(row.name, name);
        let by_descriptor = |operand: &row::Operand| matches!(operand.named_by, row::NamedBy::Descriptor(_));
        let custom = matches!(row.beyond, row::Beyond::Custom(_) | row::Beyond::Query(_));
        match (class, row.operands) {
            ("path", [operand, ..]) => assert!(!by_descriptor(operand), "{name}"),
            ("descriptor", [operand]) => assert!(by_descriptor(operand), "{name}"),
            ("path" | "descriptor", _) => assert!(custom, "{name}"),
            ("tracking", operands) => assert!(operands.is_empty(), "{name}"),
            _ => panic!("{name} is of no class"),
        }
    }
    assert_eq!(rows.next().map(|row| row.name), None, "a row without a line in the checklist");
}

#[test]
fn the_checklist_has_every_call_of_the_kernel_once() {
    let mut by_number: Vec<_> = CALLS.iter().collect();
    by_number.sort_unstable_by_key(|call| call.x86_64);
    assert!(checklist().iter().map(|line| line.0).eq(by_number.iter().map(|call| call.name)));
    assert!(CALLS.is_sorted_by(|one, other| one.name < other.name));
}

/// Each number that some kernel uses is that of one call: no other number is left out by an oversight.
#[test]
fn every_known_number_has_a_call() {
    type Column = fn(&Numbers) -> u32;
    // Up to uprobe and to kexec_file_load, without the place for other architectures; from pidfd_send_signal on.
    let columns: [(Column, &[RangeInclusive<u32>]); 2] = [
        (|call| call.x86_64, &[0..=336, 424..=471]),
        (|call| call.aarch64, &[0..=243, 260..=294, 424..=471]),
    ];
    for (column, expected) in columns {
        let mut numbers: Vec<u32> = CALLS.iter().map(column).filter(|&number| number != NONE).collect();
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(expected.iter().cloned().flatten()));
    }
    let mut numbers: Vec<u32> = CALLS.iter().map(arch::number).filter(|&number| number != NONE).collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq((0..1000).filter(|&number| is_known(Sysno(number)))));
    assert_eq!(LAST, Sysno(471), "rseq_slice_yield of Linux 7.0");
    for (number, name) in
        [(libc::SYS_openat, "openat"), (libc::SYS_statx, "statx"), (libc::SYS_mseal, "mseal")]
    {
        assert_eq!(i64::from(numbers::number(name)), number, "{name}");
    }
}

/// The kernel headers that this machine has give each name the same number.
#[test]
fn the_numbers_are_those_of_the_headers_of_the_machine() {
    type Column = fn(&Numbers) -> u32;
    let headers: [(&str, Column); 2] = [
        ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", |call| call.x86_64),
        ("/usr/include/asm-generic/unistd.h", |call| call.aarch64),
    ];
    for (header, column) in headers {
        let Ok(text) = std::fs::read_to_string(header) else {
            println!("skipped: there is no {header}");
            continue;
        };
        let mut compared = 0;
        for line in text.lines().filter_map(|line| line.strip_prefix("#define __NR_")) {
            let Some((name, number)) = line.split_once(' ') else { continue };
            // What is not a number is another name for one, or is for 32-bit architectures.
            let (Ok(number), false) = (number.trim().parse::<u32>(), name.ends_with("time64")) else {
                continue;
            };
            match CALLS.iter().find(|call| call.name == name) {
                Some(call) => assert_eq!(column(call), number, "{name}"),
                None if ["arch_specific_syscall", "syscalls", "sync_file_range2"].contains(&name) => continue,
                None => assert!(number > LAST.0, "{name}, {number}"),
            }
            compared += 1;
        }
        assert!(compared > 250, "{header}: {compared} numbers");
    }
}

#[test]
fn every_row_is_found_by_its_number() {
    for sysno in (0..1000).map(Sysno) {
        let expected = rows().find(|row| row.sysno == sysno).map(|row| row.name);
        assert_eq!(row(sysno).map(|row| row.name), expected);
    }
    assert!(row(Sysno(NONE)).is_none());
    assert!(row(Sysno(0x4000_0002)).is_none());
}

#[test]
fn no_registers_make_decoding_panic() {
    let memory = Fake::default();
    for row in all_rows() {
        for word in [0, 1, 0x7fff_ffff, 0x8000_0000, u64::MAX, 0xffff_ff9c] {
            let _ = decode(row, &[word; 6], &memory);
        }
    }
}

proptest::proptest! {
    #[test]
    fn no_memory_makes_decoding_panic(
        bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200),
        words in proptest::array::uniform6(0u64..256),
        pointers in 0u8..64,
    ) {
        let mut memory = Fake::default();
        let addr = memory.map(bytes).0;
        let mut args = words;
        for (at, word) in args.iter_mut().enumerate().filter(|(at, _)| pointers & 1 << at != 0) {
            *word = addr + *word % 64 * at as u64;
        }
        for row in all_rows() {
            let _ = decode(row, &args, &memory);
        }
    }
}

#[test]
fn stat_follows_and_lstat_does_not() {
    assert_eq!(call("stat").path("a/b").accesses(), [cwd("a/b", Effect::Stat)]);
    assert_eq!(call("lstat").path("a/b").accesses(), [nofollow(cwd("a/b", Effect::Stat))]);
    let call_with = |flags| call("newfstatat").int(7).path("f").word(0).int(flags).accesses();
    assert_eq!(call_with(0), [at(Dirfd::Fd(7), "f", Effect::Stat)]);
    assert_eq!(call_with(libc::AT_SYMLINK_NOFOLLOW), [nofollow(at(Dirfd::Fd(7), "f", Effect::Stat))]);
}

#[test]
fn a_dirfd_is_the_lower_half_of_its_register() {
    assert_eq!(Dirfd::from_raw(0xffff_ff9c), Dirfd::Cwd);
    assert_eq!(Dirfd::from_raw(u64::MAX - 99), Dirfd::Cwd);
    assert_eq!(Dirfd::from_raw(0xffff_ffff_0000_0003), Dirfd::Fd(3));
    assert_eq!(Dirfd::from_raw(u64::MAX), Dirfd::Fd(-1));
}

#[test]
fn open_flags_say_what_happens() {
    use libc::*;
    let open = |flags| match call("open").path("f").int(flags).accesses()[..] {
        [Access { effect: Effect::Open(open), follow, .. }] => (open, follow),
        _ => panic!(),
    };
    assert_eq!(open(O_RDONLY | O_CLOEXEC), (READ, true));
    assert_eq!(open(O_WRONLY), (WRITE, true));
    assert_eq!(open(O_RDWR | O_APPEND), (OpenFlags { read: true, append: true, ..WRITE }, true));
    assert_eq!(open(O_ACCMODE), (NEITHER, true));
    assert_eq!(open(O_RDONLY | O_TRUNC), (OpenFlags { truncate: true, ..READ }, true));
    assert_eq!(open(O_NOFOLLOW), (READ, false));
    let create = OpenFlags { create: true, ..WRITE };
    assert_eq!(open(O_WRONLY | O_CREAT), (create, true));
    assert_eq!(open(O_WRONLY | O_CREAT | O_EXCL), (OpenFlags { exclusive: true, ..create }, false));
    assert_eq!(open(O_WRONLY | O_EXCL), (WRITE, true));
    let temporary = OpenFlags { temporary: true, directory: true, ..WRITE };
    assert_eq!(open(O_TMPFILE | O_WRONLY | O_EXCL), (temporary, true));
    assert_eq!(open(O_DIRECTORY), (OpenFlags { directory: true, ..READ }, true));
    let path_only = OpenFlags { path_only: true, ..NEITHER };
    assert_eq!(open(O_PATH | O_RDWR | O_CREAT | O_TRUNC | O_EXCL), (path_only, true));
    assert_eq!(open(O_PATH | O_NOFOLLOW | O_DIRECTORY), (OpenFlags { directory: true, ..path_only }, false));
    assert_eq!(
        call("creat").path("f").accesses(),
        [cwd("f", Effect::Open(OpenFlags { create: true, truncate: true, ..WRITE }))]
    );
}

#[test]
fn only_opens_that_can_change_nothing_are_read_only() {
    use libc::*;
    let read_only = |flags| call("openat").cwd().path("f").int(flags).decode().is_read_only();
    for flags in [O_RDONLY, O_ACCMODE, O_PATH | O_RDWR | O_TRUNC, O_DIRECTORY, O_APPEND] {
        assert!(read_only(flags), "{flags:o}");
    }
    for flags in [O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_TMPFILE] {
        assert!(!read_only(flags), "{flags:o}");
    }
}

#[test]
fn openat2_reads_its_structure_as_the_kernel_does() {
    let how = |words: &[u64], size| {
        call("openat2")
            .int(5)
            .path("f")
            .words(words)
            .word(size)
            .try_decode()
            .map(|decoded| decoded.accesses.into_vec())
    };
    let strict = Resolve { strict: true, ..Resolve::default() };
    let read = Access { resolve: strict, ..at(Dirfd::Fd(5), "f", Effect::Open(READ)) };
    assert_eq!(how(&[0, 0, 0], 24), Ok(vec![read.clone()]));
    assert_eq!(how(&[0, 0, 0, 0], 32), Ok(vec![read.clone()]));
    assert_eq!(how(&[0, 0, 0, 1], 32), Ok(vec![]), "E2BIG");
    assert_eq!(how(&[0, 0, 0], 16), Ok(vec![]), "EINVAL");
    assert_eq!(
        how(&[0; 625], 5000),
        Ok(vec![read.clone()]),
        "accepted where a page is larger, and by old kernels"
    );
    assert_eq!(how(&[0, 0, 0], 32), Err(Fault::Unmapped), "EFAULT");
    let all = Resolve {
        no_xdev: true,
        no_magiclinks: true,
        no_symlinks: true,
        beneath: true,
        in_root: true,
        strict: true,
    };
    assert_eq!(how(&[0, 0, 0x3f], 24), Ok(vec![Access { resolve: all, ..read.clone() }]));
    let in_root = Resolve { in_root: true, strict: true, ..Resolve::default() };
    let flags = u64::from((libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY).cast_unsigned());
    let create = Effect::Open(OpenFlags { create: true, exclusive: true, ..WRITE });
    let expected = Access { resolve: in_root, follow: false, ..at(Dirfd::Fd(5), "f", create) };
    assert_eq!(how(&[flags, 0o644, 0x10], 24), Ok(vec![expected]));
    assert!(!read.is_read_only(), "only its result tells whether it opened anything");
}

#[test]
fn an_empty_path_names_the_descriptor_only_where_a_flag_says_so() {
    const EMPTY: i32 = libc::AT_EMPTY_PATH;
    let nothing: [Access; 0] = [];
    assert_eq!(call("newfstatat").int(3).path("").word(0).int(0).accesses(), nothing);
    assert_eq!(call("newfstatat").int(3).path("").word(0).int(EMPTY).accesses(), nothing, "as fstat");
    assert_eq!(call("statx").int(3).path("").int(EMPTY).accesses(), nothing);
    let here = Access { file: FileRef::WorkingDirectory, ..cwd("", Effect::Stat) };
    assert_eq!(call("statx").cwd().path("").int(EMPTY).accesses(), [here]);
    assert_eq!(call("stat").path("").accesses(), nothing);
    let chown = |flags| call("fchownat").int(3).path("").word(0).word(0).int(flags).accesses();
    assert_eq!(chown(EMPTY), [fd(3, Effect::Metadata)]);
    assert_eq!(chown(0), nothing);
    assert_eq!(
        call("fchmodat2").int(3).path("").word(0o700).int(EMPTY).accesses(),
        [fd(3, Effect::Metadata)]
    );
    assert_eq!(call("fchmodat").int(3).path("").word(0o700).int(EMPTY).accesses(), nothing);
    assert_eq!(call("readlinkat").int(3).path("").accesses(), nothing);
    assert_eq!(call("readlinkat").cwd().path("").accesses(), nothing);
    assert_eq!(call("rename").path("a").path("").accesses(), nothing, "ENOENT before any path is resolved");
    let mut decoded = call("execveat").int(3).path("").word(64).word(0).int(EMPTY).decode();
    assert_eq!(decoded.accesses.pop(), Some(fd(3, Effect::Execute)));
    assert_eq!(decoded.argv, Some(RemoteAddr(64)));
}

#[test]
fn a_null_path_is_a_fault_or_names_the_descriptor() {
    const EMPTY: i32 = libc::AT_EMPTY_PATH;
    let fault = Err(Fault::Unmapped);
    let nothing = Ok(DecodedSyscall::default());
    assert_eq!(call("stat").word(0).try_decode(), fault);
    assert_eq!(call("utimensat").int(3).word(0).accesses(), [fd(3, Effect::Metadata)]);
    assert_eq!(call("futimesat").int(3).word(0).accesses(), [fd(3, Effect::Metadata)]);
    assert_eq!(call("utimensat").cwd().word(0).try_decode(), fault);
    assert_eq!(call("statx").int(3).word(0).int(0).try_decode(), fault);
    assert_eq!(call("statx").int(3).word(0).int(EMPTY).try_decode(), nothing);
    assert_eq!(call("newfstatat").int(3).word(0).word(0).int(EMPTY).try_decode(), nothing);
    assert_eq!(call("setxattrat").int(3).word(0).int(EMPTY).accesses(), [fd(3, Effect::Metadata)]);
    assert_eq!(call("fchownat").int(3).word(0).word(0).word(0).int(EMPTY).try_decode(), fault);
    assert_eq!(call("acct").word(0).try_decode(), nothing);
    assert_eq!(call("fanotify_mark").int(3).int(1).word(2).int(4).word(0).try_decode(), nothing);
    assert_eq!(call("rename").path("a").word(8).try_decode(), fault);
}

#[test]
fn rename_flags_say_whether_the_names_change_places() {
    let rename = |flags: u32| {
        let call = call("renameat2").int(3).path("a").cwd().path("b").int(flags.cast_signed());
        let [from, to]: [Access; 2] = call.accesses().try_into().unwrap();
        assert_eq!((from.follow, to.follow), (false, false));
        assert_eq!(from.file, at(Dirfd::Fd(3), "a", Effect::Query).file);
        assert_eq!(to.file, cwd("b", Effect::Query).file);
        (from.effect, to.effect)
    };
    let plain =
        (Effect::RenameFrom { exchange: false }, Effect::RenameTo { exchange: false, noreplace: false });
    assert_eq!(rename(0), plain);
    assert_eq!(rename(libc::RENAME_WHITEOUT), plain);
    assert_eq!(
        rename(libc::RENAME_NOREPLACE),
        (plain.0, Effect::RenameTo { exchange: false, noreplace: true })
    );
    assert_eq!(
        rename(libc::RENAME_EXCHANGE),
        (Effect::RenameFrom { exchange: true }, Effect::RenameTo { exchange: true, noreplace: false })
    );
    assert_eq!(
        call("rename").path("a").path("b").accesses(),
        [nofollow(cwd("a", plain.0)), nofollow(cwd("b", plain.1))]
    );
}

#[test]
fn symlinks_are_followed_where_the_kernel_follows_them() {
    let link = |flags| call("linkat").cwd().path("a").cwd().path("b").int(flags).accesses();
    let [from, to] = [cwd("a", Effect::HardLinkFrom), nofollow(cwd("b", Effect::HardLinkTo))];
    assert_eq!(link(0), [nofollow(from.clone()), to.clone()]);
    assert_eq!(link(libc::AT_SYMLINK_FOLLOW), [from.clone(), to.clone()]);
    assert_eq!(call("link").path("a").path("b").accesses(), [nofollow(from), to.clone()]);
    assert_eq!(
        call("linkat").int(3).path("").cwd().path("b").int(libc::AT_EMPTY_PATH).accesses(),
        [nofollow(fd(3, Effect::HardLinkFrom)), to],
        "an O_TMPFILE gets its name"
    );
    let watch = |mask: u32| call("inotify_add_watch").int(3).path("d").int(mask.cast_signed()).accesses();
    assert_eq!(watch(libc::IN_CREATE), [cwd("d", Effect::Query)]);
    assert_eq!(watch(libc::IN_CREATE | libc::IN_DONT_FOLLOW), [nofollow(cwd("d", Effect::Query))]);
    let directory = OpenFlags { path_only: true, directory: true, ..NEITHER };
    assert_eq!(watch(libc::IN_CREATE | libc::IN_ONLYDIR), [cwd("d", Effect::Open(directory))]);
    let handle = |flags| call("name_to_handle_at").cwd().path("f").word(0).word(0).int(flags).accesses();
    assert_eq!(handle(0), [nofollow(cwd("f", Effect::Query))]);
    assert_eq!(handle(libc::AT_SYMLINK_FOLLOW), [cwd("f", Effect::Query)]);
    assert_eq!(
        call("symlink").path("target").path("l").accesses(),
        [nofollow(cwd("l", Effect::MakeSymlink))]
    );
    assert_eq!(
        call("symlinkat").path("target").int(4).path("l").accesses(),
        [nofollow(at(Dirfd::Fd(4), "l", Effect::MakeSymlink))]
    );
}

#[test]
fn unlinkat_removes_a_directory_by_its_flag() {
    let remove = |flags| call("unlinkat").cwd().path("d").int(flags).accesses();
    assert_eq!(remove(0), [nofollow(cwd("d", Effect::Remove))]);
    assert_eq!(remove(libc::AT_REMOVEDIR), [nofollow(cwd("d", Effect::RemoveDirectory))]);
}

#[test]
fn execve_says_where_its_arguments_are() {
    let decoded = call("execve").path("bin/x").word(0x4000).decode();
    assert_eq!(decoded.accesses.to_vec(), [cwd("bin/x", Effect::Execute)]);
    assert_eq!(decoded.argv, Some(RemoteAddr(0x4000)));
    assert!(!decoded.is_read_only());
    let check = call("execveat").cwd().path("x").word(0x4000).word(0).int(0x10000).decode();
    assert_eq!(check.accesses.to_vec(), [cwd("x", Effect::Query)], "AT_EXECVE_CHECK runs nothing");
    assert_eq!(check.argv, None);
}

#[test]
fn only_a_unix_address_with_a_name_is_a_path() {
    let unix = |name: &[u8]| [&[1, 0], name].concat();
    let connect = |address: &[u8], len: i32| call("connect").int(3).bytes(address).int(len).try_decode();
    let path = |path| Ok(vec![cwd(path, Effect::Query)]);
    let accesses = |decoded: Result<DecodedSyscall, _>| decoded.map(|decoded| decoded.accesses.into_vec());
    assert_eq!(accesses(connect(&unix(b"a/sock\0garbage"), 16)), path("a/sock"));
    assert_eq!(accesses(connect(&unix(b"sock"), 6)), path("sock"), "no NUL needed");
    assert_eq!(accesses(connect(&unix(b"socket"), 6)), path("sock"), "cut by its length");
    assert_eq!(accesses(connect(&unix(&[b'x'; 108]), 110)), path(&"x".repeat(108)));
    let nothing = Ok(vec![]);
    assert_eq!(accesses(connect(&unix(b"\0abstract"), 11)), nothing);
    assert_eq!(accesses(connect(&unix(b""), 2)), nothing, "unnamed");
    assert_eq!(accesses(connect(&unix(&[b'x'; 120]), 122)), nothing, "EINVAL");
    assert_eq!(connect(&unix(&[b'x'; 120]), -1), Ok(DecodedSyscall::default()), "EINVAL");
    assert_eq!(accesses(connect(&[2, 0, 0, 80, 127, 0, 0, 1], 8)), nothing, "AF_INET");
    assert_eq!(accesses(connect(&[1], 1)), nothing);
    assert_eq!(connect(&unix(b"so"), 9), Err(Fault::Unmapped));
    let bind = call("bind").int(3).bytes(&unix(b"s\0")).int(4);
    assert_eq!(bind.accesses(), [nofollow(cwd("s", Effect::MakeNode))]);
    let send = |address: Call| address.int(4).accesses();
    let to = call("sendto").int(3).word(0).word(0).int(0);
    assert_eq!(send(to.bytes(&unix(b"s\0"))), [cwd("s", Effect::Query)]);
    assert_eq!(send(call("sendto").int(3).word(0).word(0).int(0).word(0)), []);
}

#[test]
fn socket_address_is_as_long_as_the_call_says() {
    let inet = [2, 0, 0, 80, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
    let used =
        |operation, address: &[u8]| vec![SocketUse { operation, socket: 3, address: address.to_vec() }];
    let sockets = |call: Call| call.decode().sockets;
    let connect = call("connect").int(3).bytes(&inet);
    assert_eq!(sockets(connect.int(16)), used(SocketOperation::Connect, &inet));
    let connect = call("connect").int(3).bytes(&inet);
    assert_eq!(sockets(connect.int(8)), used(SocketOperation::Connect, &inet[..8]));
    let connect = call("connect").int(3).bytes(&[0; 200]);
    assert_eq!(sockets(connect.int(129)), vec![], "EINVAL");
    assert_eq!(sockets(call("bind").int(3).bytes(&inet).int(16)), used(SocketOperation::Bind, &inet));
    let to = call("sendto").int(3).word(0).word(0).int(0).bytes(&inet);
    assert_eq!(sockets(to.int(16)), used(SocketOperation::Send, &inet));
}

#[test]
fn messages_have_addresses_of_their_own() {
    let operation = SocketOperation::Send;
    let used = |address: &[u8]| SocketUse { operation, socket: 3, address: address.to_vec() };
    let mut memory = Fake::default();
    let sock = memory.map(*b"\x01\0sock").0;
    let other = memory.map([9; 200]).0;
    // The upper half of the length is padding.
    let header = |name: u64, len: u64| [name, 0xabcd_0000_0000 | len, 0, 0, 0, 0, 0, 0];
    let decode_with = |memory: &Fake, name: &str, args: [u64; 6]| {
        let row = all_rows().iter().find(|row| row.name == name).unwrap();
        decode(row, &args, memory)
    };
    let sent = |memory: &mut Fake, words: [u64; 8]| {
        let at = memory.map_words(&words).0;
        decode_with(memory, "sendmsg", [3, at, 0, 0, 0, 0])
    };
    let decoded = sent(&mut memory, header(sock, 6)).unwrap();
    assert_eq!(decoded.sockets, [used(b"\x01\0sock")]);
    assert_eq!(decoded.accesses.to_vec(), [cwd("sock", Effect::Query)]);
    assert!(decoded.is_read_only());
    let cut = sent(&mut memory, header(other, 150)).unwrap().sockets;
    assert_eq!(cut, [used(&[9; 128])], "the kernel cuts it");
    let nothing = Ok(DecodedSyscall::default());
    assert_eq!(sent(&mut memory, header(0, 6)), nothing);
    assert_eq!(sent(&mut memory, header(sock, 0)), nothing);
    assert_eq!(sent(&mut memory, header(sock, 0x8000_0000)), nothing, "EINVAL");
    assert_eq!(sent(&mut memory, header(8, 6)), Err(Fault::Unmapped));

    let messages = [header(sock, 6), header(other, 4), header(sock, 6), header(0, 0), header(8, 4)].concat();
    let array = memory.map_words(&messages).0;
    let many = |count| decode_with(&memory, "sendmmsg", [3, array, count, 0, 0, 0]).unwrap();
    assert_eq!(many(0), DecodedSyscall::default());
    assert_eq!(many(1).sockets, [used(b"\x01\0sock")]);
    assert_eq!(many(4).sockets, [used(b"\x01\0sock"), used(&[9; 4])]);
    assert_eq!(many(4).accesses.to_vec(), [cwd("sock", Effect::Query)]);
    assert_eq!(many(9).sockets, many(4).sockets, "those before one that can't be read are sent");
    assert_eq!(many(0xffff_ffff).sockets, many(4).sockets, "the kernel takes 1024");
    assert_eq!(decode_with(&memory, "sendmmsg", [3, 8, 1, 0, 0, 0]), Err(Fault::Unmapped));
}

#[test]
fn sends_may_wait_unless_their_flags_forbid_it() {
    let dontwait = libc::MSG_DONTWAIT.unsigned_abs().into();
    let may_wait = |name, args: &[u64; 6]| may_wait_for_peer(numbers::number(name).into(), args);
    assert!(may_wait("connect", &[dontwait; 6]), "it has no flags");
    for (name, flags) in [("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3)] {
        let mut args = [dontwait; 6];
        assert!(!may_wait(name, &args), "{name}");
        args[flags] = 0;
        assert!(may_wait(name, &args), "{name}");
    }
    assert!(!may_wait("openat", &[0; 6]));
}

#[test]
fn calls_by_descriptor_change_its_file() {
    assert_eq!(call("fchmod").int(3).word(0o700).accesses(), [fd(3, Effect::Metadata)]);
    let closes = |mode| Some(Special::Closes { mode });
    assert_eq!(call("chmod").path("d").word(0o644).decode().special, closes(0o644), "not searchable");
    assert_eq!(call("fchmod").int(3).word(0o300).decode().special, closes(0o300), "not readable");
    assert_eq!(call("fchmodat").cwd().path("d").word(0).decode().special, closes(0));
    assert_eq!(call("fchmodat2").cwd().path("d").word(0o500).decode().special, None);
    assert_eq!(call("ftruncate").int(3).accesses(), [fd(3, Effect::Truncate)]);
    assert_eq!(call("fchdir").int(3).accesses(), [fd(3, Effect::ChangeDirectory)]);
    assert_eq!(call("ioctl").int(3).word(0x4008_6602).accesses(), [fd(3, Effect::Metadata)]);
    assert_eq!(call("ioctl").int(3).word(0x4008_6604).accesses(), [fd(3, Effect::Metadata)]);
    assert_eq!(call("ioctl").int(3).word(0x401c_5820).accesses(), [fd(3, Effect::Metadata)]);
    assert_eq!(call("ioctl").int(3).word(0x4080_6685).accesses(), [fd(3, Effect::Metadata)]);
    for rewrites in [0x4030_5839, 0x4030_5829, 0x4030_582b] {
        assert_eq!(call("ioctl").int(3).word(rewrites).accesses(), [fd(3, Effect::Rewrite)]);
    }
    assert_eq!(call("ioctl").int(3).word(0x4030_5828).decode(), DecodedSyscall::default(), "FS_IOC_RESVSP");
    assert_eq!(call("ioctl").int(3).word(0x5000_940e).special(), Some(Special::Unmodelled));
    assert_eq!(call("ioctl").int(3).word(0x5413).decode(), DecodedSyscall::default(), "TIOCGWINSZ");
}

#[test]
fn clones_matter_by_their_flags() {
    const UNTRACED: u64 = 0x0080_0000;
    const NEWNS: u64 = 0x0002_0000;
    let clone = |flags| call("clone").word(flags).special();
    assert_eq!(clone(0x11), None);
    assert_eq!(clone(0x11 | NEWNS), Some(Special::Namespace));
    assert_eq!(clone(0x11 | UNTRACED), Some(Special::Untraced { clone3: false, namespace: false }));
    assert_eq!(clone(0x1000_0000 | UNTRACED), Some(Special::Untraced { clone3: false, namespace: true }));
    let clone3 = |flags, size| call("clone3").words(&[flags; 8]).word(size).special();
    assert_eq!(clone3(0x3d_0f00, 88), None);
    assert_eq!(clone3(NEWNS, 64), Some(Special::Namespace));
    assert_eq!(clone3(UNTRACED, 88), Some(Special::Untraced { clone3: true, namespace: false }));
    assert_eq!(clone3(UNTRACED, 32), None, "EINVAL");
    assert_eq!(clone3(NEWNS, 8192), Some(Special::Namespace), "accepted where a page is larger");
    assert_eq!(call("clone3").word(0).word(88).try_decode(), Err(Fault::Unmapped));
}

#[test]
fn tracking_calls_matter_by_their_registers() {
    assert_eq!(call("unshare").word(NEWNS | 0x200).special(), Some(Special::Namespace));
    assert_eq!(call("unshare").word(0x200).special(), None, "CLONE_FS alone");
    assert_eq!(call("ptrace").word(0).word(7).special(), Some(Special::Ptrace { thread: None }));
    assert_eq!(call("ptrace").word(0x4206).word(7).special(), Some(Special::Ptrace { thread: Some(7) }));
    assert_eq!(call("ptrace").word(3).special(), None);
    let opens = Some(Special::UnnamedOpen { open: None });
    assert_eq!(call("ioctl").word(3).word(0xc038_586b).special(), opens, "XFS_IOC_OPEN_BY_HANDLE");
    assert_eq!(call("fanotify_init").word(0).special(), Some(Special::Unmodelled));
    assert_eq!(call("fanotify_init").word(libc::FAN_REPORT_FID.into()).special(), None);
    let filter = |listener| Some(Special::Filter { program: RemoteAddr(0x1000), listener });
    assert_eq!(call("seccomp").word(1).word(8).word(0x1000).special(), filter(true));
    assert_eq!(call("seccomp").word(1).word(1).word(0x1000).special(), filter(false));
    assert_eq!(call("seccomp").word(0).special(), None, "SECCOMP_SET_MODE_STRICT");
    assert_eq!(call("prctl").word(22).word(2).word(0x1000).special(), filter(false));
    assert_eq!(call("prctl").word(22).word(1).special(), None, "SECCOMP_MODE_STRICT");
    assert_eq!(call("prctl").word(59).word(1).special(), Some(Special::Dispatch));
    assert_eq!(call("prctl").word(15).word(2).special(), None, "PR_SET_NAME");
    assert_eq!(call("setresuid").special(), Some(Special::Credentials));
    assert_eq!(call("lsm_set_self_attr").special(), Some(Special::Credentials));
    assert_eq!(call("io_uring_setup").special(), Some(Special::IoUring));
    assert_eq!(call("pidfd_getfd").special(), Some(Special::UnnamedOpen { open: None }));
    assert_eq!(
        call("open_by_handle_at").int(3).word(0).int(libc::O_WRONLY).special(),
        Some(Special::UnnamedOpen { open: Some(WRITE) })
    );
    const NEWNS: u64 = 0x0002_0000;
}

#[test]
fn messages_matter_where_they_have_room_for_a_descriptor() {
    let message = |control: u64, length: u64| {
        call("recvmsg").int(3).words(&[0, 0, 0, 0, control, length, 0]).try_decode().unwrap().special
    };
    assert!(matches!(message(8, 20), Some(Special::Received { room: 1, .. })));
    assert_eq!(message(8, 19), None);
    assert_eq!(message(0, 64), None);
    assert_eq!(call("recvmsg").int(3).word(8).try_decode(), Err(Fault::Unmapped));
    let many = Special::Received { messages: RemoteAddr(8), room: 3 };
    assert_eq!(call("recvmmsg").int(3).word(8).word(3).special(), Some(many));
}

#[test]
fn a_mount_names_its_source_where_that_is_a_path() {
    let mount = |source: &str, flags: u64| {
        let decoded = call("mount").path(source).path("dir").word(0).word(flags).decode();
        assert_eq!(decoded.special, Some(Special::Namespace));
        decoded.accesses.into_vec()
    };
    let target = cwd("dir", Effect::MountPoint);
    let source = |path| vec![cwd(path, Effect::MountPoint), target.clone()];
    let none = vec![target.clone()];
    assert_eq!(mount("from", libc::MS_BIND | libc::MS_REC), source("from"));
    assert_eq!(mount("from", libc::MS_MOVE), source("from"));
    assert_eq!(mount("from", 0xc0ed_0000 | libc::MS_BIND), source("from"));
    assert_eq!(mount("/dev/sda1", 0), source("/dev/sda1"));
    assert_eq!(mount("tmpfs", 0), none);
    let overlay = |options: &str| {
        call("mount").path("x").path("dir").path("overlay").word(0).path(options).decode().accesses.into_vec()
    };
    let changed = |path| cwd(path, Effect::Metadata);
    let layers = vec![changed("/u,p"), changed("work"), target.clone()];
    assert_eq!(overlay("ro,lowerdir=/a:b,upperdir=/u\\,p,workdir=work"), layers);
    assert_eq!(overlay("lowerdir=a,xupperdir=b,upperdir="), none);
    assert_eq!(mount("/from", libc::MS_REMOUNT | libc::MS_BIND), none);
    assert_eq!(mount("/from", libc::MS_PRIVATE), none);
    assert_eq!(call("mount").word(0).path("dir").word(0).word(0).decode().accesses.into_vec(), none);
    assert_eq!(
        call("mount").path("x").word(0).word(0).word(libc::MS_BIND).try_decode(),
        Err(Fault::Unmapped)
    );
    let detach = call("umount2").path("dir").int(8).decode();
    assert_eq!(detach.accesses.into_vec(), [nofollow(target)]);
}

#[test]
fn the_new_mount_calls_name_what_they_mount() {
    let moved = call("move_mount").int(3).path("").cwd().path("dir").int(0x4).decode();
    assert_eq!(moved.accesses.into_vec(), [nofollow(cwd("dir", Effect::MountPoint))]);
    assert_eq!(moved.special, Some(Special::Namespace));
    assert_eq!(call("open_tree").cwd().path("d").int(0).accesses(), [cwd("d", Effect::Query)]);
    assert_eq!(call("open_tree").cwd().path("d").int(1).decode().special, Some(Special::Namespace));
    let config = |command, key: &str, value: &str| {
        call("fsconfig").int(3).int(command).path(key).path(value).int(5).accesses()
    };
    assert_eq!(config(1, "source", "/dev/sda1"), [cwd("/dev/sda1", Effect::MountPoint)]);
    assert_eq!(config(1, "source", "tmpfs"), []);
    assert_eq!(config(1, "subvol", "/x"), []);
    assert_eq!(config(3, "lowerdir+", "low"), [at(Dirfd::Fd(5), "low", Effect::MountPoint)]);
    assert_eq!(config(1, "upperdir", "up"), [cwd("up", Effect::Metadata)]);
    assert_eq!(config(3, "workdir", "work"), [at(Dirfd::Fd(5), "work", Effect::Metadata)]);
    assert_eq!(config(5, "lowerdir+", "x"), []);
    assert_eq!(config(5, "upperdir", "x"), [fd(5, Effect::Metadata)]);
    assert_eq!(call("fsconfig").int(3).int(6).decode(), DecodedSyscall::default(), "FSCONFIG_CMD_CREATE");
    let written = OpenFlags { without_descriptor: true, ..OpenFlags::from_raw(1) };
    let quota = call("quotactl").int(0x8000_0200u32.cast_signed()).path("/dev/sda1").int(0).path("quota");
    assert_eq!(quota.accesses(), [cwd("/dev/sda1", Effect::MountPoint), cwd("quota", Effect::Open(written))]);
    assert_eq!(
        call("quotactl").int(0x8000_0100u32.cast_signed()).word(0).decode(),
        DecodedSyscall::default(),
        "Q_SYNC"
    );
}

#[test]
fn a_pin_of_a_bpf_object_makes_a_node() {
    let bpf = |command: i32, size: i32, flags: u64| {
        let mut call = call("bpf").int(command);
        let path = call.memory.map_path("pin").0;
        call.words(&[path, flags << 32, 9]).int(size).accesses()
    };
    assert_eq!(bpf(6, 16, 0), [nofollow(cwd("pin", Effect::MakeNode))]);
    assert_eq!(bpf(7, 128, 0), [cwd("pin", Effect::Query)]);
    assert_eq!(bpf(7, 20, 1 << 14), [at(Dirfd::Fd(9), "pin", Effect::Query)]);
    assert_eq!(call("bpf").int(5).word(64).decode(), DecodedSyscall::default(), "BPF_PROG_LOAD");
}

#[test]
fn a_read_only_row_decodes_to_a_read_only_syscall() {
    let flags = (0..32).map(|bit| 1u32 << bit).chain([0, 3, 0x1000 | 0x100, 0o20_200_000]);
    for (row, flag) in all_rows().iter().flat_map(|row| flags.clone().map(move |flag| (row, flag))) {
        let mut memory = Fake::default();
        let path = memory.map_path("x").0;
        let mut args = [u64::from(flag); 6];
        for operand in row.operands {
            if let row::NamedBy::Path(index)
            | row::NamedBy::At(_, index)
            | row::NamedBy::Address(_, index, _) = operand.named_by
            {
                args[usize::from(index)] = path;
            }
        }
        let read_only = match row.read_only() {
            ReadOnly::Always => true,
            ReadOnly::Unless { arg, mask } => args[usize::from(arg)] & u64::from(mask) == 0,
            ReadOnly::Never => false,
        };
        if let (true, Ok(decoded)) = (read_only, decode(row, &args, &memory)) {
            assert!(decoded.is_read_only(), "{} {flag:#x}", row.name);
        }
    }
    let read_only = |name| all_rows().iter().find(|row| row.name == name).unwrap().read_only();
    assert_eq!(read_only("readlink"), ReadOnly::Always);
    assert_eq!(read_only("openat2"), ReadOnly::Never);
    assert_eq!(read_only("chdir"), ReadOnly::Never);
    assert!(matches!(read_only("openat"), ReadOnly::Unless { arg: 2, .. }));
}

#[test]
fn what_is_asked_of_a_file_is_told_apart() {
    let asks = Effect::Ask;
    assert_eq!(call("getxattr").path("f").accesses(), [cwd("f", asks(Asked::Xattrs))]);
    assert_eq!(call("fgetxattr").int(3).accesses(), [fd(3, asks(Asked::Xattrs))]);
    assert_eq!(call("lseek").int(3).word(0).int(libc::SEEK_HOLE).accesses(), [fd(3, asks(Asked::Holes))]);
    let ioctl = |operation: u64| call("ioctl").int(3).word(operation).accesses();
    assert_eq!(ioctl(0x8008_6601), [fd(3, asks(Asked::InodeFlags))], "FS_IOC_GETFLAGS");
    assert_eq!(ioctl(0xc020_660b), [fd(3, asks(Asked::Transient))], "FS_IOC_FIEMAP");
    let statx = |mask: u64| call("statx").cwd().path("f").int(0).word(mask).accesses();
    assert_eq!(statx(0x20), [cwd("f", asks(Asked::Transient))], "STATX_ATIME");
    assert_eq!(statx(0x7ff), [cwd("f", Effect::Stat)], "STATX_BASIC_STATS");
}
