//! The mounts that names lead through: whether names can still be trusted, which mounts the tree has made,
//! and which filesystems it serves itself.
//!
//! Once anything was mounted, moved or unmounted here, or where a process started from a directory whose
//! name is not its own, every name is checked. What is served by a program of the tree (FUSE, 9P, NFS) must
//! not be touched at all while a call of the tree is stopped: the answer would come from a program whose
//! next call waits for us. Each call that mounts is traced, so that the table of its namespace is read again
//! before anyone can use what it has made; while it is under way its mount point counts as served.
//!
//! Neighbours: `view.rs` checks the names, `resolve.rs` stops at what is served.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::fs::MetadataExt;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::ledger::ids::NameId;
use super::resolve;
use crate::trace::sys::Tid;

/// A table of mounts is read up to this size; the kernel allows 100,000 mounts (fs.mount-max).
const LIMIT: u64 = 64 << 20;

/// What is known of the mounts that names lead through.
#[derive(Debug, Default)]
pub(super) struct Mounts {
    /// It is ready once the mounts of this namespace have changed (proc_pid_mounts(5)).
    table: Option<File>,
    moved: bool,
    /// The mounts of our own namespace, when the table was read last.
    now: Vec<Mount>,
    /// Devices of served filesystems that were mounted before the launch.
    outside: Vec<Device>,
    /// The mount points of what is served, by mount namespace; of our own, too.
    served: HashMap<u64, Vec<Vec<u8>>>,
    /// Where the tree mounted (1) or unmounted (-1) something, in order, each with the first name after it.
    events: Vec<(Vec<u8>, NameId, i32)>,
    /// The mount points of calls under way, and whether they are of our own namespace.
    pending: Vec<(Vec<u8>, bool)>,
}

/// Major and minor number.
type Device = (u32, u32);

/// A mount of a table, as proc_pid_mountinfo(5) has it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mount {
    id: u64,
    device: Device,
    point: Vec<u8>,
    served: bool,
    /// Whether what is written there goes to a directory that has a name of its own.
    overlay: bool,
}

/// The mount points of our namespace that are others than before.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changed {
    /// Where something was mounted.
    pub came: Vec<Vec<u8>>,
    /// Where something was unmounted.
    pub went: Vec<Vec<u8>>,
    /// Those of `came` where an overlay was mounted.
    pub overlays: Vec<Vec<u8>>,
}

impl Mounts {
    /// Begins to watch.
    pub fn watch() -> Mounts {
        let mut table = File::open("/proc/self/mountinfo").ok();
        let now = table.as_mut().map(read_table).unwrap_or_default();
        let outside = now.iter().filter(|mount| mount.served).map(|mount| mount.device).collect();
        Mounts { table, now, outside, ..Mounts::default() }
    }

    /// Whether a name may mean something else than the directory it was read from.
    pub fn moved(&self) -> bool {
        self.moved || self.pending.iter().any(|(_, here)| *here)
    }

    /// Notes that a call begins which mounts something at `point`, or unmounts it, in our own namespace if
    /// `here`.
    pub fn begins(&mut self, point: &[u8], here: bool) {
        self.pending.push((point.to_vec(), here));
    }

    /// Notes that such a call is over. [`update`](Mounts::update) comes first.
    pub fn ended(&mut self, point: &[u8]) {
        if let Some(at) = self.pending.iter().position(|(pending, _)| pending == point) {
            self.pending.swap_remove(at);
        }
    }

    /// Finds out what a call of `caller` has changed in the mounts of its own namespace or of ours.
    pub fn update(&mut self, caller: Tid) -> Changed {
        let changed = self.read_own_table();
        let (ours, theirs) = (namespace("self"), namespace(&caller.to_string()));
        let points = |table: &[Mount], outside: &[Device]| {
            let served = table.iter().filter(|mount| mount.served && !outside.contains(&mount.device));
            served.map(|mount| mount.point.clone()).collect::<Vec<_>>()
        };
        if let Some(ours) = ours {
            self.served.insert(ours, points(&self.now, &self.outside));
        }
        if let Some(theirs) = theirs.filter(|_| theirs != ours)
            && let Ok(mut table) = File::open(format!("/proc/{caller}/mountinfo"))
        {
            self.served.insert(theirs, points(&read_table(&mut table), &self.outside));
        }
        self.served.retain(|_, points| !points.is_empty());
        changed
    }

    fn read_own_table(&mut self) -> Changed {
        let Some(table) = &mut self.table else { return Changed::default() };
        let mut fds = [PollFd::new(table, PollFlags::PRI)];
        if !poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
            return Changed::default();
        }
        self.moved = true;
        let before = std::mem::replace(&mut self.now, read_table(table));
        // A device number is used again by the next filesystem that has none of its own.
        self.outside.retain(|device| self.now.iter().any(|mount| mount.device == *device));
        let came: Vec<Mount> = self.now.iter().filter(|mount| !before.contains(mount)).cloned().collect();
        let overlays = came.iter().filter(|mount| mount.overlay).map(|mount| mount.point.clone()).collect();
        let came = came.into_iter().map(|mount| mount.point).collect();
        let went = before.into_iter().filter(|mount| !self.now.contains(mount));
        Changed { came, went: went.map(|mount| mount.point).collect(), overlays }
    }

    /// Keeps what a call has changed, for [`is_displaced`](Mounts::is_displaced); `next` is the name that
    /// the table gets next.
    pub fn note(&mut self, changed: &Changed, next: NameId) {
        let events = |points: &[Vec<u8>], step| {
            points.iter().map(|point| (point.clone(), next, step)).collect::<Vec<_>>()
        };
        self.events.extend(events(&changed.went, -1));
        self.events.extend(events(&changed.came, 1));
    }

    /// Whether what was first seen at `path`, which is that of `name`, is not what can be seen there now:
    /// it was on a mount that is gone, or is hidden by one that came later.
    pub fn is_displaced(&self, name: NameId, path: &[u8]) -> bool {
        let above = |point: &[u8]| resolve::inside(path, point.strip_suffix(b"/").unwrap_or(point)).is_some();
        let later: Vec<_> =
            self.events.iter().filter(|(point, next, _)| name < *next && above(point)).collect();
        let differs = |at: &Vec<u8>| {
            // How many mounts there are at the point, less those that there were at first sight.
            let mut depth = 0;
            let of_point = later.iter().filter(|(point, ..)| point == at);
            let uncovered = of_point.map(|(.., step)| {
                depth += step;
                depth
            });
            let lowest = uncovered.min().unwrap_or(0);
            lowest < 0 || depth != 0
        };
        later.iter().any(|(point, ..)| differs(point))
    }

    /// The mount points of filesystems that the tree serves, in whatever namespace, and those of calls in
    /// flight: nothing at or below them may be accessed.
    pub fn served(&self) -> Vec<Vec<u8>> {
        let pending = self.pending.iter().map(|(point, _)| point);
        // Nothing that is served takes the place of everything.
        self.served.values().flatten().chain(pending).filter(|point| *point != b"/").cloned().collect()
    }

    /// Finds out whether `process` starts from directories whose names lead somewhere else: in another
    /// mount namespace, or under a mount.
    pub fn watch_process(&mut self, process: Tid) {
        let descriptors = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        let links = descriptors.map(|entry| entry.path()).chain([format!("/proc/{process}/cwd").into()]);
        self.moved |= links.into_iter().any(|link| is_hidden(link.as_os_str().as_encoded_bytes()));
    }
}

/// The number of a process's mount namespace.
fn namespace(process: &str) -> Option<u64> {
    Some(std::fs::metadata(format!("/proc/{process}/ns/mnt")).ok()?.ino())
}

fn read_table(table: &mut File) -> Vec<Mount> {
    let mut text = Vec::new();
    let _ = table.rewind();
    // Asking does not wait for anyone who serves a filesystem.
    let _ = table.take(LIMIT).read_to_end(&mut text);
    text.split(|byte| *byte == b'\n').filter_map(Mount::parse).collect()
}

impl Mount {
    /// A line such as `36 35 98:0 /root /point rw - ext3 /dev/sda1 rw`, with optional fields before the dash.
    fn parse(line: &[u8]) -> Option<Mount> {
        let mut words = line.split(|byte| *byte == b' ');
        let number = |word: &[u8]| std::str::from_utf8(word).ok()?.parse().ok();
        let id = number(words.next()?)?;
        let device = std::str::from_utf8(words.nth(1)?).ok()?;
        let (major, minor) = device.split_once(':')?;
        let point = unescaped(words.nth(1)?);
        words.find(|word| *word == b"-")?;
        let kind = words.next()?;
        let (served, overlay) = (is_served(kind), kind == b"overlay");
        Some(Mount { id, device: (major.parse().ok()?, minor.parse().ok()?), point, served, overlay })
    }
}

/// Whether a program, or another machine, answers for filesystems of this type.
fn is_served(kind: &[u8]) -> bool {
    const KINDS: [&[u8]; 9] = [b"9p", b"afs", b"autofs", b"ceph", b"cifs", b"coda", b"nfs", b"nfs4", b"smb3"];
    kind.starts_with(b"fuse") || KINDS.contains(&kind)
}

/// Blanks, line ends and backslashes are written as three octal digits.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| *first == b'\\');
        let value = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(value.unwrap_or(*first));
        rest = if value.is_some() { &after[3..] } else { after };
    }
    bytes
}

/// Whether a magic link stands for a directory whose name means another one in our mount namespace.
pub(super) fn is_hidden(link: &[u8]) -> bool {
    let hidden = |stat: &crate::fs::FileStat| stat.st_nlink > 0 && resolve::is_directory(stat);
    rustix::fs::stat(link).is_ok_and(|stat| hidden(&stat)) && resolve::named_object(link).is_err()
}

#[cfg(test)]
mod tests {
    use super::super::ledger::names::{Name, Names};
    use super::*;

    #[test]
    fn a_line_of_the_table_is_read_as_the_kernel_writes_it() {
        let plain =
            Mount::parse(b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:2 - ext3 /dev/root rw").unwrap();
        assert_eq!(
            plain,
            Mount { id: 36, device: (98, 0), point: b"/mnt2".to_vec(), served: false, overlay: false }
        );
        let odd = Mount::parse(b"1 2 0:41 / /a\\040b\\134\\011c rw - fuse.bindfs /src rw").unwrap();
        assert_eq!(
            odd,
            Mount { id: 1, device: (0, 41), point: b"/a b\\\tc".to_vec(), served: true, overlay: false }
        );
        assert_eq!(Mount::parse(b""), None);
        assert_eq!(Mount::parse(b"1 2 0:41 / /a rw"), None);
        assert_eq!(unescaped(b"a\\04"), b"a\\04");
        assert_eq!(unescaped(b"\\999"), b"\\999");
    }

    #[test]
    fn a_mount_point_is_served_while_a_call_is_under_way() {
        let mut mounts = Mounts::watch();
        assert!(!mounts.now.is_empty() && !mounts.moved());
        assert_eq!(mounts.served(), [b""; 0]);
        mounts.begins(b"/a", true);
        mounts.begins(b"/a", true);
        mounts.ended(b"/a");
        assert_eq!(mounts.served(), [b"/a"]);
        assert!(mounts.moved(), "names are doubtful meanwhile");
        mounts.ended(b"/a");
        assert_eq!(mounts.served(), [b""; 0]);
        assert!(!mounts.moved(), "nothing was mounted");
        mounts.begins(b"/", false);
        assert_eq!(mounts.served(), [b""; 0]);
        assert!(!mounts.moved(), "another namespace is of no matter to names out here");
    }

    #[test]
    fn what_was_on_a_mount_that_is_gone_is_displaced_and_what_is_uncovered_is_not() {
        let mut names = Names::default();
        let mut add = |path: &str| names.add(path.into(), Name::default());
        let mut mounts = Mounts::default();
        let points = |points: &[&str]| points.iter().map(|point| point.as_bytes().to_vec()).collect();
        let before = add("/d/before");
        let first = add("/d/first");
        mounts.note(&Changed { came: points(&["/d"]), went: Vec::new(), ..Changed::default() }, first);
        assert!(mounts.is_displaced(before, b"/d/before"), "hidden");
        assert!(!mounts.is_displaced(first, b"/d/first") && !mounts.is_displaced(before, b"/dx"));
        let later = add("/d/later");
        mounts.note(&Changed { came: Vec::new(), went: points(&["/d"]), ..Changed::default() }, later);
        assert!(!mounts.is_displaced(before, b"/d/before"), "uncovered again");
        assert!(mounts.is_displaced(first, b"/d/first") && mounts.is_displaced(first, b"/d"));
        assert!(!mounts.is_displaced(later, b"/d/later"));
        // Another mount in the place of the one before.
        let last = add("/d/last");
        mounts.note(&Changed { came: points(&["/d"]), went: Vec::new(), ..Changed::default() }, last);
        assert!(mounts.is_displaced(first, b"/d/first") && mounts.is_displaced(before, b"/d/before"));
        assert!(!mounts.is_displaced(last, b"/d/last"));
        // One that was there before the launch.
        mounts.note(&Changed { came: Vec::new(), went: points(&["/d"]), ..Changed::default() }, add("/x"));
        mounts.note(&Changed { came: Vec::new(), went: points(&["/d"]), ..Changed::default() }, add("/y"));
        assert!(mounts.is_displaced(before, b"/d/before"));
    }

    proptest::proptest! {
        #[test]
        fn no_line_at_all_panics(line: Vec<u8>) {
            Mount::parse(&line);
            unescaped(&line);
        }
    }
}
