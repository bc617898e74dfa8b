//! A mount table as the kernel tells it (proc_pid_mountinfo(5)), and which of its mounts a path leads to.
//!
//! Pure. Neighbour: `names.rs` compares two tables.

use std::collections::HashMap;

use crate::observe::resolve::{inside, trim_root};

/// Major and minor number.
pub(super) type Device = (u32, u32);

/// The number of a mount, unique while it exists.
pub(super) type MountId = u64;

/// A mount, as a line of the table has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    pub id: MountId,
    pub parent: MountId,
    pub device: Device,
    /// The part of its filesystem that it shows.
    pub root: Vec<u8>,
    /// Where it is mounted.
    pub point: Vec<u8>,
    /// The type of the filesystem.
    pub kind: Vec<u8>,
    /// The options of the filesystem, as the table has them.
    pub options: Vec<u8>,
    /// Whether the mount, or its filesystem, is read-only.
    pub is_read_only: bool,
}

/// The mounts of a namespace.
#[derive(Debug, Default)]
pub(super) struct MountTable {
    mounts: Vec<Mount>,
    by_id: HashMap<MountId, usize, foldhash::fast::RandomState>,
    /// The mounts that can be reached by a path, by their mount points.
    visible: HashMap<Box<[u8]>, usize, foldhash::fast::RandomState>,
    /// The length of the longest of these.
    longest: usize,
}

impl MountTable {
    /// Reads the text of a table. What is no line of a table is left out.
    pub fn parse(text: &[u8]) -> MountTable {
        MountTable::of(text.split(|byte| *byte == b'\n').filter_map(Mount::parse).collect())
    }

    /// The table of these mounts.
    pub fn of(mounts: Vec<Mount>) -> MountTable {
        let by_id = mounts.iter().enumerate().map(|(at, mount)| (mount.id, at)).collect();
        let mut table = MountTable { mounts, by_id, visible: HashMap::default(), longest: 0 };
        table.find_visible();
        table
    }

    /// A mount hides what is below its mount point, other mounts included, so only a walk from the root tells which
    /// ones a path leads to.
    fn find_visible(&mut self) {
        let key = |at: usize| {
            let mount: &Mount = &self.mounts[at];
            // The parent of the root is not in the table.
            let parent = Some(mount.parent).filter(|id| self.by_id.contains_key(id) && *id != mount.id);
            (parent, mount.point.as_slice())
        };
        let children: HashMap<_, usize, foldhash::fast::RandomState> =
            (0..self.mounts.len()).map(|at| (key(at), at)).collect();
        let reached = |path: &[u8]| {
            let mut on: Option<usize> = None;
            for prefix in prefixes(path) {
                // One mount on top of another has the lower one as its parent. A table can't have more than its
                // mounts of them, whatever it says.
                for _ in 0..self.mounts.len() {
                    let parent = on.map(|at| self.mounts[at].id);
                    match children.get(&(parent, prefix)) {
                        Some(child) if Some(*child) != on => on = Some(*child),
                        _ => break,
                    }
                }
            }
            on
        };
        let visible = (0..self.mounts.len()).filter(|at| reached(&self.mounts[*at].point) == Some(*at));
        self.visible = visible.map(|at| (self.mounts[at].point.as_slice().into(), at)).collect();
        self.longest = self.visible.keys().map(|point| point.len()).max().unwrap_or_default();
    }

    /// The table of a whole namespace, where this one is what a process sees whose root is `root`: what is mounted
    /// elsewhere is as it was in `known`.
    pub fn below_root(self, root: &[u8], known: Option<&MountTable>) -> MountTable {
        let is_elsewhere = |mount: &&Mount| inside(&mount.point, root).is_none_or(|inside| inside == b"/");
        let elsewhere = known.into_iter().flat_map(MountTable::mounts).filter(is_elsewhere);
        let mut mounts: Vec<Mount> =
            elsewhere.filter(|mount| self.get(mount.id).is_none()).cloned().collect();
        mounts.extend(self.mounts.into_iter().map(|mount| {
            let point = [root, trim_root(&mount.point)].concat();
            Mount { point, ..mount }
        }));
        MountTable::of(mounts)
    }

    /// The mounts, in the order of the table.
    pub fn mounts(&self) -> &[Mount] {
        &self.mounts
    }

    /// The mount of a number.
    pub fn get(&self, id: MountId) -> Option<&Mount> {
        self.by_id.get(&id).map(|at| &self.mounts[*at])
    }

    /// The mount that a path leads to which is no symlink and leads through none.
    pub fn at(&self, path: &[u8]) -> Option<&Mount> {
        self.index_at(path).map(|at| &self.mounts[at])
    }

    /// Its place among [`mounts`](MountTable::mounts).
    pub fn index_at(&self, path: &[u8]) -> Option<usize> {
        let above = std::iter::successors(Some(path), |path| crate::fs::parent_of(path));
        let mut above = above.skip_while(|prefix| prefix.len() > self.longest);
        above.find_map(|prefix| self.visible.get(prefix)).copied()
    }

    /// Whether something is mounted at a path itself.
    pub fn is_point(&self, path: &[u8]) -> bool {
        path.len() <= self.longest && self.visible.contains_key(path)
    }

    /// The place of the mount of a number among [`mounts`](MountTable::mounts).
    pub fn index_of(&self, id: MountId) -> Option<usize> {
        self.by_id.get(&id).copied()
    }

    /// Whether a mount point lies below `path`.
    pub fn has_points_below(&self, path: &[u8]) -> bool {
        self.visible.keys().any(|point| point.len() > path.len() && inside(point, trim_root(path)).is_some())
    }
}

/// `/`, and each directory on the way to `path`, and `path`.
fn prefixes(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let root = std::iter::once(b"/".as_slice());
    let slashes = path.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    let below = slashes.chain((path.len() > 1).then_some(path.len()));
    root.chain(below.map(|end| &path[..end]))
}

impl Mount {
    /// A line such as `36 35 98:0 /root /point rw - ext3 /dev/sda1 rw`, with optional fields before the dash.
    fn parse(line: &[u8]) -> Option<Mount> {
        let mut words = line.split(|byte| *byte == b' ');
        let number = |word: &[u8]| std::str::from_utf8(word).ok()?.parse().ok();
        let id = number(words.next()?)?;
        let parent = number(words.next()?)?;
        let device = std::str::from_utf8(words.next()?).ok()?;
        let (major, minor) = device.split_once(':')?;
        let device = (major.parse().ok()?, minor.parse().ok()?);
        let root = unescaped(words.next()?);
        let point = unescaped(words.next()?);
        let own_options = words.next()?;
        words.find(|word| *word == b"-")?;
        let kind = unescaped(words.next()?);
        let options = words.nth(1).unwrap_or_default().to_vec();
        let is_read_only = [own_options, &options].iter().any(|options| options.starts_with(b"ro"));
        Some(Mount { id, parent, device, root, point, kind, options, is_read_only })
    }

    /// Whether it is the same mount in the same place; what it shows may have another name.
    pub fn is_same_mount(&self, other: &Mount) -> bool {
        let Mount { id, parent, device, root: _, point, kind, options, is_read_only } = self;
        (id, parent, device, is_read_only) == (&other.id, &other.parent, &other.device, &other.is_read_only)
            && (point, kind, options) == (&other.point, &other.kind, &other.options)
    }

    /// What of the mounted filesystem a path below the mount point leads to.
    pub fn path_within(&self, path: &[u8]) -> Option<Vec<u8>> {
        let rest = inside(path, trim_root(&self.point))?;
        Some(or_root([trim_root(&self.root), trim_root(rest)].concat()))
    }

    /// Where a part of the mounted filesystem is below the mount point, if the mount shows it.
    pub fn path_of(&self, part: &[u8]) -> Option<Vec<u8>> {
        let rest = inside(part, trim_root(&self.root))?;
        Some(or_root([trim_root(&self.point), trim_root(rest)].concat()))
    }

    /// Whether a program, or another machine, answers for filesystems of this type.
    pub fn is_served(&self) -> bool {
        const KINDS: [&[u8]; 9] =
            [b"9p", b"afs", b"autofs", b"ceph", b"cifs", b"coda", b"nfs", b"nfs4", b"smb3"];
        self.kind.starts_with(b"fuse") && self.kind != b"fusectl" || KINDS.contains(&self.kind.as_slice())
    }

    /// Whether filesystems of this type store nothing that outlasts their last mount.
    pub fn is_without_storage(&self) -> bool {
        const KINDS: [&[u8]; 16] = [
            b"tmpfs",
            b"ramfs",
            b"proc",
            b"sysfs",
            b"devpts",
            b"mqueue",
            b"hugetlbfs",
            b"cgroup",
            b"cgroup2",
            b"securityfs",
            b"debugfs",
            b"tracefs",
            b"configfs",
            b"bpf",
            b"binfmt_misc",
            b"nsfs",
        ];
        KINDS.contains(&self.kind.as_slice())
    }

    /// The value of an option of the filesystem.
    pub fn option(&self, name: &str) -> Option<Vec<u8>> {
        let mut options = self.options.split(|byte| *byte == b',');
        options.find_map(|option| Some(unescaped(option.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?)))
    }
}

fn or_root(path: Vec<u8>) -> Vec<u8> {
    if path.is_empty() { b"/".to_vec() } else { path }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_table_is_read_as_the_kernel_writes_it() {
        let plain =
            Mount::parse(b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:2 - ext3 /dev/root rw,err=x");
        let expected = Mount {
            id: 36,
            parent: 35,
            device: (98, 0),
            root: b"/mnt1".to_vec(),
            point: b"/mnt2".to_vec(),
            kind: b"ext3".to_vec(),
            options: b"rw,err=x".to_vec(),
            is_read_only: false,
        };
        assert_eq!(plain.unwrap(), expected);
        assert_eq!(expected.option("err").unwrap(), b"x");
        assert_eq!(expected.option("er"), None);
        let odd = Mount::parse(b"1 2 0:41 / /a\\040b\\134\\011c rw - fuse.bindfs /src rw").unwrap();
        assert_eq!(odd.point, b"/a b\\\tc");
        assert!(odd.is_served() && !odd.is_without_storage());
        assert_eq!(Mount::parse(b""), None);
        assert_eq!(Mount::parse(b"1 2 0:41 / /a rw"), None);
        assert_eq!(unescaped(b"a\\04"), b"a\\04");
        assert_eq!(unescaped(b"\\999"), b"\\999");
    }

    fn table(lines: &[(MountId, MountId, &str)]) -> MountTable {
        let line = |(id, parent, point): &(MountId, MountId, &str)| {
            format!("{id} {parent} 8:1 / {point} rw - ext4 /dev/x rw\n")
        };
        MountTable::parse(lines.iter().map(line).collect::<String>().as_bytes())
    }

    #[test]
    fn path_leads_to_the_mount_that_nothing_hides() {
        let table = table(&[
            (1, 0, "/"),
            (2, 1, "/a"),
            (3, 2, "/a/b"),
            // Over /a, so that /a/b is hidden, too.
            (4, 2, "/a"),
            (5, 4, "/a/c"),
            (6, 5, "/a/c"),
        ]);
        let at = |path: &str| table.at(path.as_bytes()).unwrap().id;
        for (path, id) in
            [("/", 1), ("/x", 1), ("/ab", 1), ("/a", 4), ("/a/b/f", 4), ("/a/c", 6), ("/a/c/d/e", 6)]
        {
            assert_eq!(at(path), id, "{path}");
        }
        assert!(table.has_points_below(b"/a") && table.has_points_below(b"/"));
        assert!(!table.has_points_below(b"/a/c") && !table.has_points_below(b"/a/b"));
        assert_eq!(MountTable::default().at(b"/"), None);
    }

    #[test]
    fn part_of_a_filesystem_has_its_place_below_a_mount_that_shows_it() {
        let mount = |root: &str, point: &str| {
            Mount::parse(format!("1 2 8:1 {root} {point} rw - ext4 x rw").as_bytes()).unwrap()
        };
        let bind = mount("/home/u", "/work");
        assert_eq!(bind.path_within(b"/work/f").unwrap(), b"/home/u/f");
        assert_eq!(bind.path_within(b"/work").unwrap(), b"/home/u");
        assert_eq!(bind.path_within(b"/works"), None);
        assert_eq!(bind.path_of(b"/home/u/d/f").unwrap(), b"/work/d/f");
        assert_eq!(bind.path_of(b"/home/user"), None);
        let whole = mount("/", "/");
        assert_eq!(whole.path_within(b"/").unwrap(), b"/");
        assert_eq!(whole.path_of(b"/").unwrap(), b"/");
        assert_eq!(whole.path_within(b"/f").unwrap(), b"/f");
    }

    proptest::proptest! {
        #[test]
        fn no_text_at_all_panics(text: Vec<u8>, path: Vec<u8>) {
            let table = MountTable::parse(&text);
            table.at(&path);
            unescaped(&text);
        }

        /// Numbers that no kernel gives: circles, doubles, parents that are none.
        #[test]
        fn no_tree_at_all_hangs(
            lines in proptest::collection::vec((0u64..6, 0u64..6, "(/[ab]){0,3}"), 0..8),
        ) {
            let lines: Vec<_> = lines.iter().map(|(id, parent, point)| (*id, *parent, if point.is_empty() { "/" } else { point.as_str() })).collect();
            let table = table(&lines);
            for point in ["/", "/a", "/a/b", "/a/b/a"] {
                table.at(point.as_bytes());
            }
        }
    }
}
