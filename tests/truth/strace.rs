//! Ground truth of names: each path that `strace -f -y -e trace=%file` prints has a record, and no other path
//! has one.
//!
//! Each command runs twice on identical trees, at the same place: under strace, then recorded. What is
//! left out must be so by a rule, and is counted. Neighbours: `cases.rs` has the commands.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use agent_snapshot::snapshot::{Operations, Snapshot};

use super::cases::{CASES, Case, find, isolate, possible, prepare};
use super::gaps;
use crate::support::{Namespace, Place, lines, shown};

type Bytes = Vec<u8>;

/// Where a call's arguments name a path: a directory's index if it has one, the path's, and when a link
/// as the last component is followed.
struct Named(Option<usize>, usize, Follow);

enum Follow {
    Yes,
    No,
    /// Unless the argument of this index has this flag.
    Unless(usize, &'static str),
    /// Only if the argument of this index has this flag.
    If(usize, &'static str),
    /// As open(2) has it, its flags at this index.
    Open(usize),
}

/// What the calls of strace's class name. Each call that it prints must be known here.
fn named(call: &str) -> Option<Vec<Named>> {
    use Follow::{If, No, Open, Unless, Yes};
    let flags = "AT_SYMLINK_NOFOLLOW";
    Some(match call {
        "open" => vec![Named(None, 0, Open(1))],
        "openat" | "openat2" => vec![Named(Some(0), 1, Open(2))],
        "creat" | "stat" | "access" | "statfs" | "chdir" | "chroot" | "truncate" | "chmod" | "chown"
        | "utime" | "utimes" | "getxattr" | "listxattr" | "setxattr" | "removexattr" | "execve" | "acct"
        | "uselib" | "swapon" | "swapoff" => vec![Named(None, 0, Yes)],
        "lstat" | "readlink" | "unlink" | "rmdir" | "mkdir" | "mknod" | "lchown" | "lgetxattr"
        | "llistxattr" | "lsetxattr" | "lremovexattr" => vec![Named(None, 0, No)],
        "newfstatat" => vec![Named(Some(0), 1, Unless(3, flags))],
        "statx" => vec![Named(Some(0), 1, Unless(2, flags))],
        "name_to_handle_at" => vec![Named(Some(0), 1, If(4, "AT_SYMLINK_FOLLOW"))],
        "faccessat" | "fchmodat" | "futimesat" => vec![Named(Some(0), 1, Yes)],
        "faccessat2" | "fchmodat2" | "utimensat" => vec![Named(Some(0), 1, Unless(3, flags))],
        "fchownat" | "execveat" => vec![Named(Some(0), 1, Unless(4, flags))],
        "readlinkat" | "unlinkat" | "mkdirat" | "mknodat" => vec![Named(Some(0), 1, No)],
        "rename" | "link" => vec![Named(None, 0, No), Named(None, 1, No)],
        "renameat" | "renameat2" => vec![Named(Some(0), 1, No), Named(Some(2), 3, No)],
        "linkat" => vec![Named(Some(0), 1, If(4, "AT_SYMLINK_FOLLOW")), Named(Some(2), 3, No)],
        // The target of a symlink is not resolved when it is created.
        "symlink" => vec![Named(None, 1, No)],
        "symlinkat" => vec![Named(Some(1), 2, No)],
        "inotify_add_watch" => vec![Named(None, 1, Unless(2, "IN_DONT_FOLLOW"))],
        // It prints its result, which is no path that was resolved.
        "getcwd" => vec![],
        "fchdir" | "clone" | "clone3" | "fork" | "vfork" => vec![],
        "connect" | "bind" => vec![Named(None, 1, Yes)],
        _ => return None,
    })
}

/// One line of the trace, put together where another thread interrupted it.
#[derive(Debug)]
pub struct Call {
    tid: u32,
    pub name: String,
    pub arguments: Vec<Bytes>,
    /// What stands behind the equals sign; `?` for a thread that never came back.
    result: String,
}

/// The calls in the order of their beginnings.
pub fn parse(trace: &str) -> Vec<Call> {
    let mut texts: Vec<(u32, String)> = Vec::new();
    let mut unfinished: HashMap<u32, usize> = HashMap::new();
    for line in trace.lines() {
        let (tid, text) = line.split_once(' ').unwrap();
        let (tid, text) = (tid.parse().unwrap(), text.trim_start());
        if text.starts_with("+++") || text.starts_with("---") {
            continue;
        }
        if let Some(begun) = text.strip_suffix(" <unfinished ...>") {
            unfinished.insert(tid, texts.len());
            texts.push((tid, begun.to_owned()));
        } else if text.starts_with("<... ") {
            let (_, rest) = text.split_once(" resumed>").unwrap();
            // An exec from a thread that is not the leader goes on under the leader's number.
            if let Some(index) = unfinished.remove(&tid) {
                texts[index].1.push_str(rest);
            }
        } else {
            texts.push((tid, text.to_owned()));
        }
    }
    texts.into_iter().map(|(tid, text)| call(tid, &text)).collect()
}

fn call(tid: u32, text: &str) -> Call {
    let (name, rest) = text.split_once('(').unwrap_or_else(|| panic!("no call: {text}"));
    let mut arguments = vec![String::new()];
    let mut depth = 0;
    let mut rest = rest.chars();
    let mut last = ' ';
    for char in rest.by_ref() {
        // What the kernel changed is printed behind an arrow, which closes nothing.
        let arrow = last == '=' && char == '>';
        last = char;
        match char {
            '>' if arrow => {}
            '(' | '[' | '{' | '<' => depth += 1,
            ')' if depth == 0 => break,
            ')' | ']' | '}' | '>' => depth -= 1,
            ',' if depth == 0 => {
                arguments.push(String::new());
                continue;
            }
            _ => {}
        }
        arguments.last_mut().unwrap().push(char);
    }
    let result = rest.as_str().trim_start().strip_prefix('=').map_or("?", str::trim);
    let arguments = arguments.into_iter().map(|argument| argument.trim().to_owned().into_bytes());
    Call { tid, name: name.to_owned(), arguments: arguments.collect(), result: result.to_owned() }
}

/// The bytes of a text that is printed in hexadecimal, between the first two marks.
pub fn unhex(text: &[u8], open: &str, close: &str) -> Option<Bytes> {
    let text = std::str::from_utf8(text).unwrap();
    let (_, text) = text.split_once(open)?;
    let (text, _) = text.rsplit_once(close)?;
    let digits = text.split("\\x").skip(1).map(|digits| u8::from_str_radix(digits.get(..2)?, 16).ok());
    digits.collect()
}

/// The directories that threads were in, by what they did.
#[derive(Default)]
struct Directories {
    /// The place of each process; threads share theirs.
    places: HashMap<u32, Bytes>,
    /// The process that each thread belongs to.
    process: HashMap<u32, u32>,
    /// Where a child begins, from the beginning of the call that made it.
    inherits: HashMap<u32, (u32, bool)>,
}

impl Directories {
    fn of(&mut self, tid: u32, start: &Path) -> Bytes {
        let process = self.process_of(tid, start);
        self.places[&process].clone()
    }

    fn process_of(&mut self, tid: u32, start: &Path) -> u32 {
        if let Some(process) = self.process.get(&tid) {
            return *process;
        }
        let process = match self.inherits.get(&tid).copied() {
            Some((parent, true)) => self.process_of(parent, start),
            Some((parent, false)) => {
                let place = self.of(parent, start);
                self.places.insert(tid, place);
                tid
            }
            None => {
                assert!(self.places.is_empty(), "thread {tid} came from nowhere");
                self.places.insert(tid, start.as_os_str().as_bytes().to_vec());
                tid
            }
        };
        self.process.insert(tid, process);
        process
    }
}

/// Whether the address of a socket is a name in a filesystem, not an abstract one.
fn has_unix_path(argument: &[u8]) -> bool {
    String::from_utf8_lossy(argument).contains("sun_path=\"")
}

/// Symlinks as they were before the run, for those that were removed by it.
type Symlinks = BTreeMap<PathBuf, PathBuf>;

fn symlinks_below(root: &Path, links: &mut Symlinks) {
    for entry in fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        if let Ok(target) = fs::read_link(&path) {
            links.insert(path, target);
        } else if path.is_dir() {
            symlinks_below(&path, links);
        }
    }
}

/// The resolved names of a path: the symlinks on its way, and where it ends.
fn walk(base: &[u8], path: &[u8], follow: bool, links: &Symlinks) -> Vec<Bytes> {
    let mut todo: Vec<Bytes> = Vec::new();
    let push = |todo: &mut Vec<Bytes>, path: &[u8]| {
        let names = path.split(|byte| *byte == b'/').rev().filter(|name| !name.is_empty() && *name != b".");
        todo.extend(names.map(<[u8]>::to_vec));
    };
    push(&mut todo, path);
    let mut real = PathBuf::from(OsStr::from_bytes(if path.starts_with(b"/") { b"/" } else { base }));
    let follow = follow || path.ends_with(b"/");
    let mut names = Vec::new();
    while let Some(name) = todo.pop() {
        if name == b".." {
            real.pop();
            continue;
        }
        let next = real.join(OsStr::from_bytes(&name));
        match fs::symlink_metadata(&next) {
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => break,
            _ => {}
        }
        // Only the process itself can resolve these.
        let magic = next.starts_with("/proc/self") || next.starts_with("/proc/thread-self");
        let there = magic || fs::symlink_metadata(&next).is_ok();
        let target = fs::read_link(&next)
            .ok()
            .filter(|_| !magic)
            .or_else(|| links.get(&next).filter(|_| !there).cloned());
        match target {
            Some(target) if (follow || !todo.is_empty()) && names.len() < 40 => {
                names.push(next.into_os_string().into_encoded_bytes());
                let target = target.into_os_string().into_encoded_bytes();
                if target.starts_with(b"/") {
                    real = PathBuf::from("/");
                }
                push(&mut todo, &target);
            }
            _ => real = next,
        }
    }
    names.push(real.into_os_string().into_encoded_bytes());
    names
}

/// What strace printed, as names that records are expected of.
struct Expected {
    names: BTreeMap<Bytes, String>,
    /// What was printed and names nothing, by reason.
    nothing: BTreeMap<&'static str, usize>,
    /// The directories that were renamed, from and to.
    renamed: Vec<Bytes>,
    /// What the kernel opened by itself: the interpreters of scripts and programs, and the symlinks on the
    /// way.
    interpreters: BTreeSet<Bytes>,
}

/// The names of the interpreter that the kernel opens for a program.
fn interpreter(program: &[u8], links: &Symlinks) -> Vec<Bytes> {
    let content = fs::read(OsStr::from_bytes(program)).unwrap_or_default();
    let first = content.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let script = first.strip_prefix(b"#!").map(<[u8]>::trim_ascii);
    let path = script.and_then(|line| line.split(u8::is_ascii_whitespace).next());
    walk(b"/", path.unwrap_or(b"/lib64/ld-linux-x86-64.so.2"), true, links)
}

fn expect(trace: &str, start: &Path, links: &Symlinks) -> Expected {
    let calls = parse(trace);
    let mut directories = Directories::default();
    for call in &calls {
        if let ("clone" | "clone3" | "fork" | "vfork", Ok(child)) = (call.name.as_str(), call.result.parse())
        {
            let shares = call.arguments.iter().any(|argument| {
                let argument = String::from_utf8_lossy(argument);
                argument.contains("CLONE_THREAD") || argument.contains("CLONE_FS")
            });
            directories.inherits.insert(child, (call.tid, shares));
        }
    }
    let mut expected = Expected {
        names: BTreeMap::new(),
        nothing: BTreeMap::new(),
        renamed: Vec::new(),
        interpreters: BTreeSet::new(),
    };
    for call in &calls {
        let operands = named(&call.name).unwrap_or_else(|| panic!("{} is not known here", call.name));
        let failed = ["ENOTDIR", "EFAULT", "ENAMETOOLONG", "?"];
        let reason = failed
            .into_iter()
            .find(|reason| call.result.starts_with(reason) || call.result.split(' ').nth(1) == Some(reason));
        let cwd = directories.of(call.tid, start);
        if call.result == "0" && (call.name == "chdir" || call.name == "fchdir") {
            let process = directories.process_of(call.tid, start);
            let place = if call.name == "fchdir" {
                unhex(&call.arguments[0], "<", ">").unwrap()
            } else {
                walk(&cwd, &unhex(&call.arguments[0], "\"", "\"").unwrap(), true, links).pop().unwrap()
            };
            directories.places.insert(process, place);
        }
        for Named(directory, path, follow) in operands {
            let argument = |index: usize| call.arguments.get(index).map_or(&b""[..], Vec::as_slice);
            let has = |index: usize, flag: &str| {
                String::from_utf8_lossy(argument(index))
                    .split(['|', '=', ',', '}'])
                    .any(|word| word.trim() == flag)
            };
            if let Some(reason) = reason {
                *expected.nothing.entry(reason).or_default() += 1;
                continue;
            }
            let follow = match follow {
                Follow::Yes => true,
                Follow::No => false,
                Follow::Unless(index, flag) => !has(index, flag),
                Follow::If(index, flag) => has(index, flag),
                Follow::Open(index) => {
                    !(has(index, "O_NOFOLLOW") || has(index, "O_CREAT") && has(index, "O_EXCL"))
                }
            };
            let base = directory.and_then(|index| unhex(argument(index), "<", ">")).unwrap_or(cwd.clone());
            if matches!(call.name.as_str(), "connect" | "bind") && !has_unix_path(argument(path)) {
                *expected.nothing.entry("other sockets").or_default() += 1;
                continue;
            }
            let names = match unhex(argument(path), "\"", "\"") {
                Some(name) if name.is_empty() => {
                    *expected.nothing.entry("no name").or_default() += 1;
                    continue;
                }
                Some(name) if !name.starts_with(b"/") && base.ends_with(b" (deleted)") => {
                    *expected.nothing.entry("in a deleted directory").or_default() += 1;
                    continue;
                }
                Some(name) => walk(&base, &name, follow, links),
                // The file of a descriptor: futimens(3) is utimensat(2) without a name.
                None if call.name == "utimensat" => vec![base],
                None => panic!("what does it name? {call:?}"),
            };
            if call.name.starts_with("exec") && call.result == "0" {
                let program = names.last().map_or(&b""[..], Vec::as_slice);
                expected.interpreters.extend(interpreter(program, links));
            }
            if call.name.starts_with("rename") && call.result == "0" {
                expected.renamed.extend(names.last().cloned());
            }
            // The kernel's own word where there is one.
            let opened =
                call.name.starts_with("open").then(|| unhex(call.result.as_bytes(), "<", ">")).flatten();
            let opened = opened.filter(|name| name.starts_with(b"/") && !name.ends_with(b" (deleted)"));
            let opened = opened.filter(|_| !has(2, "O_TMPFILE"));
            for name in names.into_iter().chain(opened) {
                expected.names.entry(name).or_insert_with(|| format!("{}: {}", call.tid, call.name));
            }
        }
    }
    expected
}

/// The rules of what is left out, by the default list.
struct Rules {
    prefixes: Vec<Bytes>,
    uid: u32,
}

impl Rules {
    fn new(place: &Place) -> Rules {
        let home = [".cache", ".claude", ".codex", ".cursor"].map(|name| place.home.join(name));
        let fixed = ["/tmp/scratch-output", "/proc", "/dev", "/usr", "/bin"].map(PathBuf::from);
        let list = place.config.join("agent-snapshot/ignore.json");
        let written: Vec<PathBuf> = home.into_iter().chain(fixed).chain([list]).collect();
        let resolved = written.iter().filter_map(|path| path.canonicalize().ok());
        let prefixes =
            written.iter().cloned().chain(resolved).map(|path| path.into_os_string().into_encoded_bytes());
        Rules { prefixes: prefixes.collect(), uid: fs::metadata("/proc/self").unwrap().uid() }
    }

    /// The rule that leaves a path out.
    fn covers(&self, path: &[u8]) -> Option<&'static str> {
        if path.split(|byte| *byte == b'/').any(|name| name == b".git") {
            return Some(".git");
        }
        if self.prefixes.iter().any(|prefix| below(path, prefix)) {
            return Some("the ignore list");
        }
        let path = Path::new(OsStr::from_bytes(path));
        let stat = fs::symlink_metadata(path).ok()?;
        let writable = if stat.is_symlink() {
            self.uid == 0
        } else {
            rustix::fs::accessat(
                rustix::fs::CWD,
                path,
                rustix::fs::Access::WRITE_OK,
                rustix::fs::AtFlags::EACCESS,
            )
            .is_ok()
        };
        (stat.uid() != self.uid && !writable).then_some("foreign owner")
    }
}

fn below(path: &[u8], prefix: &[u8]) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// A path with the components that vary replaced by their patterns.
///
/// A pattern may name the directories above, too: `tmp/*`.
fn pattern_of(path: &[u8], root: &Path, varying: &[&str]) -> Bytes {
    let Some(rest) = path.strip_prefix(root.as_os_str().as_bytes()) else { return path.to_vec() };
    let mut pattern = root.as_os_str().as_bytes().to_vec();
    for name in rest.split(|byte| *byte == b'/').skip(1) {
        let fits = |varying: &&&str| {
            let (above, last) = varying.rsplit_once('/').unwrap_or(("", varying));
            let here = pattern.ends_with(above.as_bytes());
            here && matches(last.as_bytes(), name)
        };
        let found = varying.iter().find(fits).map(|varying| varying.rsplit('/').next().unwrap());
        pattern.push(b'/');
        pattern.extend_from_slice(found.map_or(name, str::as_bytes));
    }
    pattern
}

fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match pattern.split_first() {
        None => name.is_empty(),
        Some((b'*', rest)) => (0..=name.len()).any(|at| matches(rest, &name[at..])),
        Some((first, rest)) => name
            .split_first()
            .is_some_and(|(byte, left)| (*first == b'?' || first == byte) && matches(rest, left)),
    }
}

/// What strace printed of the command itself, by the names of outside.
fn outside(trace: String, place: &Place, namespace: Namespace) -> String {
    if namespace == Namespace::Shared {
        return trace;
    }
    let hex = |path: PathBuf| -> String {
        path.as_os_str().as_bytes().iter().map(|byte| format!("\\x{byte:02x}")).collect()
    };
    let view = hex(namespace.directory(place));
    let enters = format!("chdir(\"{view}\")");
    let calls: Vec<&str> = trace.lines().skip_while(|line| !line.contains(&enters)).collect();
    assert!(!calls.is_empty(), "the namespace was never entered");
    calls.join("\n").replace(&view, &hex(place.work.clone()))
}

/// The names that are used before the command runs in its namespace.
fn used_to_enter(place: &Place, namespace: Namespace) -> BTreeSet<Bytes> {
    let mut command = place.recorder("auto");
    isolate(place, &mut command);
    let output = command.args(namespace.words(place)).args(["bash", "-c", ":"]).output().unwrap();
    assert!(output.status.success(), "{}", shown(&output));
    let snapshot = Snapshot::open(&place.out).unwrap();
    snapshot.files().iter().map(|file| file.path.clone()).collect()
}

/// Compares one command; what is wrong, a sentence each.
fn check(case: &Case, namespace: Namespace) -> Vec<String> {
    let place = Place::new();
    let base = place.work.parent().unwrap();
    let trace = base.join("trace");
    prepare(&place, case);
    let mut links = Symlinks::new();
    symlinks_below(&place.work, &mut links);
    let mut command = Command::new("strace");
    isolate(&place, &mut command);
    let class = "trace=%file,fchdir,clone,clone3,fork,vfork,connect,bind";
    command.args(["-f", "-y", "-xx", "-s", "65535", "-e", class, "-o"]).arg(&trace);
    command.args(namespace.words(&place));
    let traced = command.args(["bash", "-c", case.script]).output().unwrap();
    if !traced.status.success() {
        return vec![format!("it fails under strace: {}", shown(&traced))];
    }
    symlinks_below(&place.work, &mut links);
    let traced_calls = outside(fs::read_to_string(&trace).unwrap(), &place, namespace);
    let expected = expect(&traced_calls, &place.work, &links);
    let rules = Rules::new(&place);
    let mut left_out: BTreeMap<&str, usize> = BTreeMap::new();
    let mut names: BTreeMap<Bytes, String> = BTreeMap::new();
    for (name, call) in expected.names {
        match rules.covers(&name) {
            Some(rule) => *left_out.entry(rule).or_default() += 1,
            None => drop(names.insert(pattern_of(&name, base, case.varying), call)),
        }
    }

    let entering = used_to_enter(&place, namespace);
    prepare(&place, case);
    let mut command = place.recorder("auto");
    isolate(&place, &mut command);
    command.args(namespace.words(&place));
    let recorded = command.args(["bash", "-c", case.script]).output().unwrap();
    if !recorded.status.success() || recorded.stdout != traced.stdout && case.varying.is_empty() {
        return vec![format!("it differs recorded: {}\nunder strace: {}", shown(&recorded), shown(&traced))];
    }
    let snapshot = Snapshot::open(&place.out).unwrap();
    let mut wrong = gaps(&snapshot);
    let patterns = snapshot.files().iter().map(|file| pattern_of(&file.path, base, case.varying));
    let records: BTreeSet<Bytes> = patterns.collect();
    println!(
        "{}: {} names, {} records; left out by rule {left_out:?}; naming nothing {:?}",
        case.name,
        names.len(),
        records.len(),
        expected.nothing
    );
    let sometimes = |name: &Bytes| case.sometimes.iter().any(|some| some.as_bytes() == name);
    for (name, call) in &names {
        if !records.contains(name) && !sometimes(name) {
            wrong.push(format!("{} has no record ({call})", name.escape_ascii()));
        }
    }
    let renamed: Vec<Bytes> =
        expected.renamed.iter().map(|name| pattern_of(name, base, case.varying)).collect();
    // Names in a git directory are left out by rule; `overlay.rs` compares the records of what changed there.
    for file in snapshot.files().iter().filter(|file| !file.is_git_state) {
        let name = pattern_of(&file.path, base, case.varying);
        let moved = renamed.iter().any(|renamed| below(&name, renamed))
            && file.operations.intersects(Operations::CHANGES);
        let interpreter = expected.interpreters.contains(&file.path) || entering.contains(&file.path);
        if !names.contains_key(&name) && !moved && !interpreter && !sometimes(&name) {
            wrong.push(format!("{} has a record, but strace saw no such name", name.escape_ascii()));
        }
    }
    wrong
}

/// Whether strace is there and can trace; if not, the reason of a skip is printed.
pub fn can_trace() -> bool {
    if find("strace").is_none() {
        println!("skipped: strace is not installed");
        return false;
    }
    let tried = Command::new("strace").args(["-o", "/dev/null", "true"]).output();
    let can = tried.is_ok_and(|tried| tried.status.success());
    if !can {
        println!("skipped: strace can't trace here");
    }
    can
}

fn check_all(cases: impl Iterator<Item = &'static Case>, namespace: Namespace) {
    if !can_trace() {
        return;
    }
    let only = std::env::var("TRUTH_CASE").ok();
    let mut wrong = Vec::new();
    for case in possible(cases.filter(|case| only.as_ref().is_none_or(|only| only == case.name))) {
        let found = check(case, namespace);
        if !found.is_empty() {
            wrong.push(format!("{}:{}", case.name, lines(&found)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn strace_names_of_quick_commands_are_recorded() {
    check_all(CASES.iter().filter(|case| case.quick), Namespace::Shared);
}

#[test]
fn strace_names_of_quick_commands_in_a_namespace_are_recorded() {
    if Namespace::Bound.is_possible() {
        check_all(CASES.iter().filter(|case| case.quick), Namespace::Bound);
    }
}

#[test]
#[ignore = "slow: compilers and package managers"]
fn slow_strace_names_of_real_commands_are_recorded() {
    check_all(CASES.iter().filter(|case| !case.quick), Namespace::Shared);
}

#[test]
#[ignore = "slow: compilers and package managers"]
fn slow_strace_names_of_real_commands_in_a_namespace_are_recorded() {
    if Namespace::Bound.is_possible() {
        check_all(CASES.iter().filter(|case| !case.quick), Namespace::Bound);
    }
}
