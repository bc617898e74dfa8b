//! The races: what is there before, and what each of the processes does.

use crate::support::legacy::*;
use std::ffi::CString;
use std::fs;

use crate::support::{CWD, ok};
use crate::together::{Party, at_once};

/// One race.
pub struct Race {
    pub name: &'static str,
    /// Prepares a try.
    pub setup: fn(usize),
    /// What each of the processes does in a try.
    parties: &'static [fn(&mut Party, usize)],
    /// What the processes share (clone(2)).
    shares: c_int,
}

/// A race of processes that share nothing.
const fn race(name: &'static str, setup: fn(usize), parties: &'static [fn(&mut Party, usize)]) -> Race {
    Race { name, setup, parties, shares: 0 }
}

impl Race {
    pub fn run(&self, tries: usize) {
        at_once(
            self.shares,
            self.parties.iter().map(|act| {
                move |party: &mut Party| {
                    for number in 0..tries {
                        act(party, number);
                    }
                }
            }),
        );
    }
}

pub const RACES: &[Race] = &[
    race("refused_rename", one_file, &[refused_rename, change_f]),
    race("unlink_of_a_hard_link", more_names, &[unlink_them, change_f]),
    race("rename_onto", two_files, &[rename_g_onto_f, change_f]),
    race("hard_link_in_a_moved_directory", name_in_a_directory, &[move_it, change_f]),
    race("create_in_a_moved_directory", directory, &[move_it, create_in_it]),
    race("served_rename", working_directory, &[ask_and_read]),
    race("renamed_working_directory", working_directory, &[rename_it, meet_and_read]),
    race("exchange_of_files", two_files, &[exchange_files, change_f]),
    race("exchange_of_directories", two_directories, &[exchange_them, create_by_path]),
    race("lock_files", lock_and_data, &[lock, lock, lock, lock]),
    Race {
        shares: CLONE_FS,
        ..race("shared_working_directory", two_directories, &[change_directory, create_there])
    },
    race("dot_dot_through_an_exchange", directory_and_symlink, &[exchange_directory, create_above]),
];

/// Sizes on both sides of where content is held in another way.
const SIZES: [usize; 10] = [
    100 << 10,
    (64 << 10) + 1,
    64 << 10,
    100 << 10,
    (1 << 20) + 1,
    100,
    100 << 10,
    (64 << 10) - 1,
    300 << 10,
    1 << 20,
];

/// Bytes of a try: the old ones (0), the new ones of a process.
fn bytes(number: usize, generation: u8) -> Vec<u8> {
    let size = SIZES[number % SIZES.len()];
    let line = format!("generation {generation} of try {number}\n");
    line.into_bytes().into_iter().cycle().take(size).collect()
}

fn name(letter: &str, number: usize) -> CString {
    CString::new(format!("{letter}{number}")).unwrap()
}

fn write_at(fd: c_long, bytes: &[u8], offset: usize) {
    let written = ok(sys!(SYS_pwrite64, fd, bytes.as_ptr(), bytes.len(), offset));
    assert_eq!(usize::try_from(written), Ok(bytes.len()));
}

fn close(fd: c_long) {
    ok(sys!(SYS_close, fd));
}

fn one_file(number: usize) {
    fs::write(format!("f{number}"), bytes(number, 0)).unwrap();
}

/// The other names of f.
const LINKS: [&str; 3] = ["g", "h", "i"];

fn more_names(number: usize) {
    one_file(number);
    for link in LINKS {
        fs::hard_link(format!("f{number}"), format!("{link}{number}")).unwrap();
    }
}

fn two_files(number: usize) {
    one_file(number);
    fs::write(format!("g{number}"), bytes(number + 1, 1)).unwrap();
}

fn refused_rename(party: &mut Party, number: usize) {
    let to = if number % 4 == 3 { c"/proc/x" } else { c"/nonexistent/x" };
    party.meet();
    for _ in 0..4 {
        party.spread();
        let refused = sys!(SYS_rename, name("f", number).as_c_str(), to);
        assert!(refused.is_err(), "{refused:?}");
    }
}

fn unlink_them(party: &mut Party, number: usize) {
    party.meet();
    for link in LINKS {
        party.spread();
        ok(sys!(SYS_unlink, name(link, number).as_c_str()));
    }
}

fn rename_g_onto_f(party: &mut Party, number: usize) {
    party.meet();
    party.spread();
    ok(sys!(SYS_rename, name("g", number).as_c_str(), name("f", number).as_c_str()));
}

/// Changes what f is at that moment, in each of the ways that do so.
fn change_f(party: &mut Party, number: usize) {
    let bytes = bytes(number, 2);
    let f = name("f", number);
    party.meet();
    party.spread();
    match number % 7 {
        0 => {
            ok(sys!(SYS_truncate, f.as_c_str(), bytes.len() / 2));
        }
        1 => {
            let fd = ok(sys!(SYS_open, f.as_c_str(), O_WRONLY | O_TRUNC));
            write_at(fd, &bytes, 0);
            close(fd);
        }
        2 => {
            let fd = ok(sys!(SYS_open, f.as_c_str(), O_WRONLY | O_APPEND));
            ok(sys!(SYS_write, fd, bytes.as_ptr(), 10));
            close(fd);
        }
        3 => {
            ok(sys!(SYS_utimensat, CWD, f.as_c_str(), [1_000_000_000_i64, 5, 1_000_000_000, 6].as_ptr(), 0));
        }
        4 => {
            ok(sys!(SYS_chmod, f.as_c_str(), 0o711));
        }
        _ => {
            let fd = ok(sys!(SYS_open, f.as_c_str(), O_RDWR));
            write_at(fd, &bytes, 0);
            close(fd);
        }
    }
}

/// f has another name in a directory, which is met first when that is renamed.
fn name_in_a_directory(number: usize) {
    one_file(number);
    fs::create_dir(format!("m{number}")).unwrap();
    fs::hard_link(format!("f{number}"), format!("m{number}/x")).unwrap();
}

fn directory(number: usize) {
    fs::create_dir(format!("m{number}")).unwrap();
    fs::write(format!("s{number}"), bytes(number, 0)).unwrap();
    fs::write(format!("t{number}"), bytes(number, 1)).unwrap();
}

/// Renames the directory once, there and back, or twice.
fn move_it(party: &mut Party, number: usize) {
    let moves: &[[&str; 2]] = match number % 3 {
        0 => &[["m", "n"]],
        1 => &[["m", "n"], ["n", "m"]],
        _ => &[["m", "n"], ["n", "o"]],
    };
    party.meet();
    for [from, to] in moves {
        party.spread();
        let [old, new] = [name(from, number), name(to, number)];
        party.timed(&format!("rename {from}{number} {to}{number}"), || {
            ok(sys!(SYS_rename, old.as_c_str(), new.as_c_str()));
        });
    }
}

/// Creates a few names in the directory, which it holds by a descriptor or as its working directory.
fn create_in_it(party: &mut Party, number: usize) {
    let held = ok(sys!(SYS_open, name("m", number).as_c_str(), O_PATH | O_DIRECTORY));
    let above = ok(sys!(SYS_open, c".", O_PATH | O_DIRECTORY));
    let at = if number.is_multiple_of(2) {
        held
    } else {
        ok(sys!(SYS_fchdir, held));
        c_long::from(CWD)
    };
    party.meet();
    for turn in 0..3 {
        party.spread();
        let new = CString::new(format!("x{turn}")).unwrap();
        party.timed(&format!("create {number} x{turn}"), || {
            create(number / 2 + turn, at, &new, above, number)
        });
    }
    if !number.is_multiple_of(2) {
        ok(sys!(SYS_fchdir, above));
    }
    close(held);
    close(above);
}

/// Makes `new` in one of the ways in which a name comes to be.
fn create(way: usize, at: c_long, new: &CString, above: c_long, number: usize) {
    let new = new.as_c_str();
    match way % 7 {
        0 => {
            let fd = ok(sys!(SYS_openat, at, new, O_WRONLY | O_CREAT | O_EXCL, 0o644));
            ok(sys!(SYS_write, fd, c"text".as_ptr(), 4));
            close(fd);
        }
        1 => {
            ok(sys!(SYS_mkdirat, at, new, 0o755));
        }
        2 => {
            ok(sys!(SYS_symlinkat, c"target", at, new));
        }
        3 => {
            ok(sys!(SYS_mknodat, at, new, S_IFREG | 0o600, 0));
        }
        4 => {
            ok(sys!(SYS_linkat, above, name("s", number).as_c_str(), at, new, 0));
        }
        5 => {
            ok(sys!(SYS_renameat, above, name("t", number).as_c_str(), at, new));
        }
        _ => close(ok(sys!(SYS_openat, at, new, O_RDWR | O_CREAT, 0o644))),
    }
}

fn working_directory(number: usize) {
    let dir = format!("a{number}");
    fs::create_dir(&dir).unwrap();
    for file in ["read", "asked", "late"] {
        fs::write(format!("{dir}/{file}"), bytes(5, 0)).unwrap();
    }
    std::os::unix::fs::symlink("read", format!("{dir}/link")).unwrap();
}

/// Makes calls that only read in a working directory which is renamed between them, by `rename`. Each of
/// them has one path that is right.
fn read_in_between(number: usize, mut rename: impl FnMut(&str, &str)) {
    let above = ok(sys!(SYS_open, c".", O_PATH | O_DIRECTORY));
    ok(sys!(SYS_chdir, name("a", number).as_c_str()));
    let mut buffer = [0_u8; 4096];
    // What is believed of the working directory is of now.
    ok(sys!(SYS_access, c"asked", F_OK));
    rename("a", "b");
    match number % 3 {
        0 => close(ok(sys!(SYS_open, c"read", O_RDONLY))),
        1 => {
            ok(sys!(SYS_stat, c"read", buffer.as_mut_ptr()));
        }
        _ => {
            ok(sys!(SYS_readlink, c"link", buffer.as_mut_ptr(), buffer.len()));
        }
    }
    rename("b", "c");
    match number % 2 {
        0 => close(ok(sys!(SYS_openat, CWD, c"late", O_RDONLY))),
        _ => {
            ok(sys!(SYS_faccessat, CWD, c"late", R_OK));
        }
    }
    ok(sys!(SYS_fchdir, above));
    close(above);
}

/// Lets the server at descriptor 0 rename the working directory, and waits for its answer.
fn ask_and_read(_: &mut Party, number: usize) {
    read_in_between(number, |from, to| {
        let request = format!("{from}{number} {to}{number}\n");
        ok(sys!(SYS_write, 0, request.as_ptr(), request.len()));
        let mut answer = 0_u8;
        assert_eq!(ok(sys!(SYS_read, 0, &raw mut answer, 1)), 1);
    });
}

/// Lets the other process rename the working directory.
fn meet_and_read(party: &mut Party, number: usize) {
    read_in_between(number, |_, _| {
        party.meet();
        party.meet();
    });
}

fn rename_it(party: &mut Party, number: usize) {
    for [from, to] in [["a", "b"], ["b", "c"]] {
        party.meet();
        ok(sys!(SYS_rename, name(from, number).as_c_str(), name(to, number).as_c_str()));
        party.meet();
    }
}

fn exchange(party: &mut Party, number: usize, one: &str, other: &str) {
    let (one, other) = (name(one, number), name(other, number));
    party.meet();
    for _ in 0..=number % 2 {
        party.spread();
        ok(sys!(SYS_renameat2, CWD, one.as_c_str(), CWD, other.as_c_str(), RENAME_EXCHANGE));
    }
}

fn exchange_files(party: &mut Party, number: usize) {
    exchange(party, number, "f", "g");
}

fn two_directories(number: usize) {
    for letter in ["p", "q"] {
        fs::create_dir(format!("{letter}{number}")).unwrap();
        fs::write(format!("{letter}{number}/{letter}"), bytes(number, 0)).unwrap();
    }
}

fn exchange_them(party: &mut Party, number: usize) {
    exchange(party, number, "p", "q");
}

/// Creates by a path through one of the directories, and by a descriptor of it.
fn create_by_path(party: &mut Party, number: usize) {
    let held = ok(sys!(SYS_open, name("p", number).as_c_str(), O_PATH | O_DIRECTORY));
    let path = CString::new(format!("p{number}/path")).unwrap();
    party.meet();
    party.spread();
    // Those of the ways that need nothing else.
    create([0, 1, 2, 3, 6][number % 5], CWD.into(), &path, CWD.into(), number);
    party.spread();
    create(6, held, &c"held".to_owned(), CWD.into(), number);
    close(held);
}

fn lock_and_data(number: usize) {
    fs::write(format!("d{number}"), bytes(number, 0)).unwrap();
    if number % 2 == 1 {
        fs::write(format!("l{number}"), bytes(number + 3, 1)).unwrap();
    }
}

/// Takes the lock, changes the data, and lets the lock go; breaks a lock that no one lets go.
fn lock(party: &mut Party, number: usize) {
    let (lock, data) = (name("l", number), name("d", number));
    party.meet();
    for _ in 0..20 {
        let taken = sys!(SYS_open, lock.as_c_str(), O_WRONLY | O_CREAT | O_EXCL, 0o600);
        let Ok(fd) = taken else {
            party.spread();
            if party.rng.chance(30) {
                let _ = sys!(SYS_unlink, lock.as_c_str());
            }
            continue;
        };
        write_at(fd, &bytes(number + 3, 2), 0);
        let file = ok(sys!(SYS_open, data.as_c_str(), O_RDWR));
        write_at(file, b"changed", party.rng.index(50));
        close(file);
        close(fd);
        break;
    }
    let _ = sys!(SYS_unlink, lock.as_c_str());
}

/// Changes the working directory, which the other process has, too.
fn change_directory(party: &mut Party, number: usize) {
    let top = ok(sys!(SYS_open, c".", O_PATH | O_DIRECTORY));
    let open = |letter| ok(sys!(SYS_openat, top, name(letter, number).as_c_str(), O_PATH | O_DIRECTORY));
    let [p, q] = ["p", "q"].map(open);
    party.meet();
    for directory in [p, q, p, q] {
        party.spread();
        ok(sys!(SYS_fchdir, directory));
    }
    party.meet();
    ok(sys!(SYS_fchdir, top));
    [p, q, top].into_iter().for_each(close);
    party.meet();
}

/// Creates names in whatever is the working directory at that moment.
fn create_there(party: &mut Party, number: usize) {
    party.meet();
    for (turn, letter) in ["x", "y", "z"].into_iter().enumerate() {
        party.spread();
        create([0, 1, 2, 3, 6][(number + turn) % 5], CWD.into(), &name(letter, number), CWD.into(), number);
    }
    party.meet();
    party.meet();
}

/// A directory d/s, and beside it a symlink to a directory elsewhere.
fn directory_and_symlink(number: usize) {
    fs::create_dir_all(format!("d{number}/s")).unwrap();
    fs::create_dir_all(format!("e{number}/t")).unwrap();
    std::os::unix::fs::symlink(format!("../e{number}/t"), format!("d{number}/l")).unwrap();
}

fn exchange_directory(party: &mut Party, number: usize) {
    let name = |last: &str| CString::new(format!("d{number}/{last}")).unwrap();
    let (directory, symlink) = (name("s"), name("l"));
    party.meet();
    for _ in 0..2 + number % 2 {
        party.spread();
        ok(sys!(SYS_renameat2, CWD, directory.as_c_str(), CWD, symlink.as_c_str(), RENAME_EXCHANGE));
    }
}

/// Creates names above whatever d/s is at that moment.
fn create_above(party: &mut Party, number: usize) {
    party.meet();
    for turn in 0..3 {
        party.spread();
        let new = CString::new(format!("d{number}/s/../x{turn}")).unwrap();
        create([0, 1, 2, 3, 6][(number + turn) % 5], CWD.into(), &new, CWD.into(), number);
    }
}
