//! Random programs, changed worlds: a recalled run leaves and prints what a run alone does.
//!
//! `RECALL_SEEDS=FROM..TO` chooses the seeds. Each makes a script that reads, probes, lists, includes, writes, deletes
//! and renames, and depends on its environment, its standard input, its priority and locks; between its runs one
//! thing is changed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::fcntl::{Flock, FlockArg};
use rustix::fs::XattrFlags;

use super::{finish_with_input, with_umask};
use crate::support::{Place, scan};

/// How often a program is run.
const ROUNDS: u32 = 6;

/// splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % u64::try_from(limit).unwrap()).unwrap()
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

const FILES: [&str; 6] = ["a", "b", "d/c", "d/e", "path1/tool", "path2/tool"];
const DIRECTORIES: [&str; 5] = [".", "d", "path1", "path2", "made"];
const OUTPUTS: [&str; 5] = ["out", "d/out", "made/x", "other", "b"];
/// The last two do not count, unless a program asks for them.
const VARIABLES: [&str; 4] = ["ONE", "TWO", "SHLVL", "TMUX"];

/// A default access control list: `user::rwx`, `group::r-x`, `other::rwx` (acl(5), linux/posix_acl_xattr.h).
const DEFAULT_LIST: &[u8] =
    b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x04\0\x05\0\xff\xff\xff\xff\x20\0\x07\0\xff\xff\xff\xff";

/// A program: a shell script.
fn script(random: &mut Random) -> String {
    let mut text = String::from("export LC_ALL=C\nPATH=path1:path2:$PATH\n");
    for _ in 0..=random.below(7) {
        let (file, output) = (*random.pick(&FILES), *random.pick(&OUTPUTS));
        let directory = *random.pick(&DIRECTORIES);
        let number = random.below(3);
        let variable = *random.pick(&VARIABLES);
        let _ = match random.below(29) {
            0 | 1 => writeln!(text, "cat {file}"),
            2 => writeln!(text, "test -e {file} && echo {file} is there"),
            3 => writeln!(text, "test -x {file} && echo {file} is executable"),
            4 => writeln!(text, "stat -c '%n %a %s %F' {file}"),
            // The time of an output is another at each run.
            5 if !OUTPUTS.contains(&file) => writeln!(text, "stat -c '%n %Y %y' {file}"),
            6 => writeln!(text, "ls {directory}"),
            7 => writeln!(text, "readlink link; cat link"),
            8 => writeln!(text, ". ./{file}"),
            9 => writeln!(text, "echo ${variable}"),
            10 => writeln!(text, "tool {number}"),
            11 => writeln!(text, "cat {file} > {output}"),
            12 => writeln!(text, "echo {number} >> {output}"),
            13 => writeln!(text, "rm -f {output}"),
            14 => writeln!(text, "mkdir -p made; echo ${variable} > made/x"),
            15 => writeln!(text, "mv {file} {output}"),
            16 => writeln!(text, "cp {file} {output}"),
            17 => writeln!(text, "umask"),
            18 => writeln!(text, "test {file} -nt {output} && echo {file} is newer"),
            20 => writeln!(text, "readlink /proc/self/fd/0; cat"),
            21 => writeln!(text, "stat -L -c '%a %Y %h' /dev/stdin"),
            22 => writeln!(text, "flock -n a echo locked || echo held"),
            23 => writeln!(text, "nice; ionice"),
            24 => writeln!(text, "env | grep -E 'ONE|TMUX'"),
            19 => writeln!(text, "getfattr -d {file}"),
            25 => writeln!(text, "stat -c %h - < {file}"),
            26 => writeln!(text, "cp --preserve=mode,xattr {file} {output}"),
            27 => writeln!(text, "lsattr {file}"),
            28 => writeln!(text, "mkdir {directory}/new; setfattr -n user.made -v {number} {output}"),
            _ => writeln!(text, "[ -d {file} ] && ls {file}; chmod 640 {output}"),
        };
    }
    text.push_str("true\n");
    text
}

struct World {
    place: Place,
    variables: BTreeMap<&'static str, String>,
    umask: u32,
    nice: i32,
    /// The file on standard input.
    input: &'static str,
    /// Whether somebody else holds a lock on `a`.
    is_locked: bool,
}

impl World {
    fn new(random: &mut Random) -> World {
        let place = Place::new();
        for directory in ["d", "path1", "path2"] {
            fs::create_dir(place.at(directory)).unwrap();
        }
        // Each run alone moves it away and back, which changes its ctime: one that is busy has no times.
        fs::set_permissions(&place.work, fs::Permissions::from_mode(0o1755)).unwrap();
        for file in FILES {
            if random.below(4) > 0 {
                place.write(file, content(random, file));
                let mode = if file.ends_with("tool") { 0o755 } else { 0o644 };
                fs::set_permissions(place.at(file), fs::Permissions::from_mode(mode)).unwrap();
            }
        }
        symlink(random.pick(&["a", "d/c", "nowhere"]), place.at("link")).unwrap();
        let variables = VARIABLES.map(|name| (name, "value".to_owned())).into_iter().collect();
        World { place, variables, umask: 0o022, nice: 0, input: "/dev/null", is_locked: false }
    }

    /// Prepares a run; the lock that is held meanwhile.
    fn start(&self, command: &mut Command) -> Option<Flock<File>> {
        let input = File::open(self.place.at(self.input)).map_or_else(|_| Stdio::null(), Stdio::from);
        command.envs(&self.variables).current_dir(&self.place.work).stdin(input);
        with_umask(command, self.umask);
        let nice = self.nice;
        // SAFETY: setpriority(2) is async-signal-safe.
        unsafe {
            command.pre_exec(move || Ok(rustix::process::setpriority_process(None, nice)?));
        }
        let held = File::open(self.place.at("a")).ok().filter(|_| self.is_locked)?;
        Some(Flock::lock(held, FlockArg::LockExclusive).unwrap())
    }

    /// Changes one thing; what it was.
    fn change(&mut self, random: &mut Random) -> String {
        let file = *random.pick(&FILES);
        let path = self.place.at(file);
        let output = *random.pick(&OUTPUTS);
        match random.below(24) {
            0 | 1 => return "nothing".to_owned(),
            2 if path.is_file() => same_size_and_time(&path),
            3 if path.is_file() => fs::write(&path, content(random, file)).unwrap(),
            4 if path.exists() => {
                let mode = *random.pick(&[0o600, 0o644, 0o755]);
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            }
            5 => {
                fs::remove_file(self.place.at("link")).unwrap();
                symlink(random.pick(&["a", "d/c", "nowhere", "b"]), self.place.at("link")).unwrap();
            }
            6 => {
                let tool = self.place.at("path1/tool");
                if tool.symlink_metadata().is_ok() {
                    remove(&tool);
                } else {
                    fs::write(&tool, "#!/bin/sh\necho the first tool $1\n").unwrap();
                    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
                }
            }
            7 => {
                let name = format!("{}/new{}", random.pick(&["d", "path1", "."]), random.below(100));
                fs::write(self.place.at(name), "new").unwrap();
            }
            8 => drop(self.variables.insert(*random.pick(&VARIABLES), random.below(3).to_string())),
            9 => self.umask = *random.pick(&[0o022, 0o077, 0o002]),
            10 if self.place.at(output).is_file() => fs::write(self.place.at(output), "edited").unwrap(),
            11 if path.is_file() => {
                remove(&path);
                fs::create_dir(&path).unwrap();
            }
            12 if path.symlink_metadata().is_ok() => remove(&path),
            13 if path.is_file() => {
                let times = fs::FileTimes::new().set_modified(std::time::SystemTime::now());
                fs::File::options().append(true).open(&path).unwrap().set_times(times).unwrap();
            }
            14 if path.is_file() => {
                // Another inode with the same bytes.
                let copy = self.place.at("copy");
                fs::copy(&path, &copy).unwrap();
                fs::rename(copy, &path).unwrap();
            }
            15 if path.parent().unwrap().is_dir() && !path.exists() => {
                fs::write(&path, content(random, file)).unwrap();
            }
            16 => self.nice = (self.nice + 1).min(19),
            17 => self.input = *random.pick(&["/dev/null", "a", "b", "d/c"]),
            18 => self.is_locked = !self.is_locked,
            19 if path.is_file() => {
                let value = random.below(2).to_string();
                rustix::fs::setxattr(&path, "user.note", value.as_bytes(), XattrFlags::empty()).unwrap();
            }
            20 if path.is_file() => drop(rustix::fs::removexattr(&path, "user.note")),
            21 if path.is_file() => {
                let _ = fs::hard_link(&path, self.place.at("another"));
            }
            22 => {
                let mode = *random.pick(&[0o755, 0o2755, 0o700]);
                fs::set_permissions(self.place.at("d"), fs::Permissions::from_mode(mode)).unwrap();
            }
            23 => {
                let _ = rustix::fs::setxattr(
                    self.place.at("d"),
                    "system.posix_acl_default",
                    DEFAULT_LIST,
                    XattrFlags::empty(),
                );
            }
            _ => return "nothing".to_owned(),
        }
        format!("{file} or so")
    }
}

fn content(random: &mut Random, file: &str) -> String {
    let number = random.below(4);
    if file.ends_with("tool") {
        format!("#!/bin/sh\necho tool {number} $1\n")
    } else {
        format!("echo content {number}\n")
    }
}

fn remove(path: &Path) {
    if path.symlink_metadata().unwrap().is_dir() {
        fs::remove_dir_all(path).unwrap();
    } else {
        fs::remove_file(path).unwrap();
    }
}

fn same_size_and_time(path: &Path) {
    let metadata = path.metadata().unwrap();
    let mut bytes = fs::read(path).unwrap();
    if let Some(last) = bytes.iter_mut().rev().nth(1) {
        *last = last.wrapping_add(1) & 0x7f | 0x20;
    }
    fs::write(path, bytes).unwrap();
    let times = fs::FileTimes::new().set_modified(metadata.modified().unwrap());
    fs::File::options().append(true).open(path).unwrap().set_times(times).unwrap();
}

/// Everything that a run has left: type, mode, links, target, extended attributes and content of each path.
fn left(root: &Path) -> BTreeMap<String, String> {
    let entries = scan(root).into_iter();
    entries
        .map(|(path, entry)| {
            let at = &entry.present;
            let content = entry.content.map(|content| String::from_utf8_lossy(&content).into_owned());
            let name = String::from_utf8(path).unwrap();
            // That of a directory tells how its filesystem counts.
            let links = entry.present.nlink * u64::from(content.is_some());
            (name, format!("{:o} {links} {:?} {:?} {content:?}", at.mode, at.target, at.xattrs))
        })
        .collect()
}

/// The files that are there before a run and that no run changes.
fn inputs(root: &Path) -> Vec<&'static str> {
    let is_there = |name: &&str| !OUTPUTS.contains(name) && root.join(name).symlink_metadata().is_ok();
    FILES.into_iter().filter(is_there).collect()
}

/// Which outputs are newer than which inputs: what a build looks at.
fn order(root: &Path, inputs: &[&str]) -> Vec<(PathBuf, PathBuf)> {
    let time = |name: &&str| {
        let metadata = root.join(name).symlink_metadata().ok()?;
        Some((root.join(name), (metadata.mtime(), metadata.mtime_nsec())))
    };
    let inputs: Vec<_> = inputs.iter().filter_map(time).collect();
    let outputs: Vec<_> = OUTPUTS.iter().filter_map(time).collect();
    let pairs = outputs.iter().flat_map(|(output, at)| {
        let newer = inputs.iter().filter(move |(_, input)| at > input);
        newer.map(move |(input, _)| (output.clone(), input.clone()))
    });
    pairs.collect()
}

fn try_seed(seed: u64) -> u32 {
    let mut random = Random(seed);
    let mut world = World::new(&mut random);
    let script = script(&mut random);
    let kept = world.place.base().join("kept");
    let mut hits = 0;
    let mut change = "nothing".to_owned();
    for round in 0..ROUNDS {
        // Alone, in a copy that has the place of the world.
        let work = world.place.work.clone();
        // One that the run makes (flock does) may get the time of an output.
        let inputs = inputs(&work);
        fs::rename(&work, &kept).unwrap();
        assert!(Command::new("cp").arg("-a").args([&kept, &work]).status().unwrap().success());
        let mut alone = world.place.program("sh");
        let lock = world.start(&mut alone);
        let alone = alone.args(["-c", &script]).output().unwrap();
        drop(lock);
        let (left_alone, order_alone) = (left(&work), order(&work, &inputs));
        fs::remove_dir_all(&work).unwrap();
        fs::rename(&kept, &work).unwrap();

        let mut command = world.place.command();
        command.args(["run", "--recall", "--recall-failures", "--json", "--", "sh", "-c", &script]);
        let _lock = world.start(&mut command);
        let recalled = finish_with_input(command);
        let what = || format!("seed {seed}, round {round}, after {change}, {:?}:\n{script}", recalled.from);
        assert_eq!(recalled.run.stdout, String::from_utf8_lossy(&alone.stdout), "{}", what());
        let said = recalled.run.stderr.lines().filter(|line| !line.starts_with("agent-snapshot: "));
        assert_eq!(
            said.collect::<Vec<_>>(),
            String::from_utf8_lossy(&alone.stderr).lines().collect::<Vec<_>>(),
            "{}",
            what()
        );
        assert_eq!(Some(recalled.run.status), alone.status.code(), "{}", what());
        assert_eq!(left(&work), left_alone, "{}", what());
        assert_eq!(order(&work, &inputs), order_alone, "{}", what());
        hits += u32::from(recalled.from.is_some());
        change = world.change(&mut random);
    }
    hits
}

/// No seed of these gives anything stale, and many runs are recalled.
fn try_seeds(seeds: std::ops::Range<u64>) {
    let runs = u32::try_from(seeds.end - seeds.start).unwrap() * ROUNDS;
    let hits: u32 = seeds.map(try_seed).sum();
    println!("{hits} of {runs} runs were recalled");
    assert!(hits * 10 > runs, "{hits} of {runs} runs were recalled");
}

#[test]
fn recalled_run_is_what_a_run_alone_is() {
    try_seeds(0..10);
}

#[test]
#[ignore = "slow"]
fn slow_recalled_run_is_what_a_run_alone_is() {
    let seeds = std::env::var("RECALL_SEEDS").unwrap_or_else(|_| "100..130".to_owned());
    let (from, to) = seeds.split_once("..").unwrap();
    try_seeds(from.parse().unwrap()..to.parse().unwrap());
}
