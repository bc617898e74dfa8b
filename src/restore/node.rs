//! Makes what a record describes: a new node at a dentry, and the attributes of an existing one.
//!
//! What can't be given to a file without privilege (an owner, a privileged attribute) is left out and
//! reported, and is never an error. Neighbours: `root.rs` has the dentries, `plan.rs` and `build.rs`
//! decide what is wanted.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;

use rustix::fs::{CWD, FileType as NodeType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::root::{Dentry, Handle};
use crate::snapshot::{FileType, InodeFlag, Present, live};

const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);

/// The user who restores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The effective user.
    pub uid: u32,
    /// Their groups.
    pub gids: Vec<u32>,
}

impl User {
    /// The user of this process.
    pub fn effective() -> User {
        let mut gids: Vec<u32> =
            rustix::process::getgroups().unwrap_or_default().into_iter().map(Gid::as_raw).collect();
        gids.push(rustix::process::getegid().as_raw());
        User { uid: rustix::process::geteuid().as_raw(), gids }
    }

    /// Whether the user has all privileges.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether the user can change this extended attribute of a file of their own.
    pub fn may_set(&self, name: &[u8]) -> bool {
        self.is_root() || name.starts_with(b"user.") || name.starts_with(b"system.posix_acl_")
    }
}

/// What of a recorded state is put back beyond content and permission bits, and by whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestorePolicy {
    /// Owner and group, and the attributes that only mean something with them: access control lists,
    /// and those of the namespaces `trusted` and `security`.
    pub ownership: bool,
    /// Set-user-ID and set-group-ID bits, file capabilities, device nodes.
    pub privileges: bool,
    /// What could make Git run programs: hooks, configuration.
    pub git_programs: bool,
    /// Who puts it back.
    pub user: User,
}

impl RestorePolicy {
    /// All that was recorded.
    pub fn all(user: User) -> RestorePolicy {
        RestorePolicy { ownership: true, privileges: true, git_programs: true, user }
    }

    /// What is safe to take from anyone's snapshot.
    pub fn safe(user: User) -> RestorePolicy {
        RestorePolicy { ownership: false, privileges: false, git_programs: false, user }
    }

    /// The permission bits for a file that is to have the state `wanted`.
    ///
    /// The set-ID bits for an owner or a group that the file can't be given are left out.
    pub fn permissions(&self, wanted: &Present) -> u32 {
        let mut bits = wanted.mode & 0o7777;
        if !self.privileges || !self.user.is_root() && wanted.uid != self.user.uid {
            bits &= !libc::S_ISUID;
        }
        if !self.privileges || !self.user.is_root() && !self.user.gids.contains(&wanted.gid) {
            bits &= !libc::S_ISGID;
        }
        bits
    }

    /// The set-ID bits of a file that is to have the state `wanted` which the user can't give it.
    pub fn lost_set_id(&self, wanted: &Present) -> u32 {
        match self.privileges && wanted.file_type != FileType::Symlink {
            true => wanted.mode & 0o7777 & !self.permissions(wanted),
            false => 0,
        }
    }

    /// Whether a file is given this extended attribute.
    pub fn allows(&self, name: &[u8]) -> bool {
        match name {
            b"security.capability" => self.privileges,
            name if name.starts_with(b"user.") => true,
            _ => self.ownership,
        }
    }
}

/// Extended attributes to set, or to remove where there is no value.
pub type XattrChanges = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// Changes to the attributes of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttributeChanges {
    /// Owner and group.
    pub owner: Option<(u32, u32)>,
    /// Extended attributes to set, or to remove where there is no value.
    pub xattrs: XattrChanges,
    /// Permission bits.
    pub permissions: Option<u32>,
    /// The set-ID bits that the user can't give to the file beside these.
    pub lost_set_id: u32,
    /// The modification time, in seconds and nanoseconds.
    pub mtime: Option<(i64, u32)>,
    /// The inode flags, which are set when all else is done (see `flags.rs`).
    pub flags: Option<BTreeSet<InodeFlag>>,
}

/// Something that could not be given to a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Shortfall {
    /// It stays with another owner or group.
    #[error("its owner {0}:{1} can't be given to it")]
    Owner(u32, u32),
    /// Its inode flags: the filesystem has none, or the user lacks the privilege.
    #[error("its flags ({0}) can't be given to it")]
    Flags(String),
    /// Set-ID bits for another owner or group than the user's.
    #[error("its {0} bit can't be given to it")]
    SetId(&'static str),
    /// An extended attribute.
    #[error("its extended attribute {0} can't be given to it")]
    Xattr(String),
}

impl Shortfall {
    /// The extended attribute `name`.
    pub fn xattr(name: &[u8]) -> Shortfall {
        Shortfall::Xattr(crate::snapshot::printable(name).into_owned())
    }
}

impl AttributeChanges {
    /// All attributes of a new file that is to have the state `wanted`.
    pub fn all(wanted: &Present, policy: &RestorePolicy) -> AttributeChanges {
        let xattrs = wanted.xattrs.iter().filter(|(name, _)| policy.allows(name));
        AttributeChanges {
            owner: policy.ownership.then_some((wanted.uid, wanted.gid)),
            xattrs: xattrs.map(|(name, value)| (name.clone(), Some(value.clone()))).collect(),
            permissions: (wanted.file_type != FileType::Symlink).then(|| policy.permissions(wanted)),
            lost_set_id: policy.lost_set_id(wanted),
            mtime: Some((wanted.mtime, wanted.mtime_nsec)),
            flags: None,
        }
    }

    /// Adds what another name of the file tells of it and this one does not.
    pub fn add(&mut self, other: AttributeChanges) {
        self.owner = self.owner.or(other.owner);
        self.permissions = self.permissions.or(other.permissions);
        self.lost_set_id |= other.lost_set_id;
        self.mtime = self.mtime.or(other.mtime);
        self.flags = self.flags.take().or(other.flags);
        let is_new = |(name, _): &(Vec<u8>, _)| self.xattrs.iter().all(|(known, _)| known != name);
        let new: Vec<_> = other.xattrs.into_iter().filter(is_new).collect();
        self.xattrs.extend(new);
    }

    /// Whether there is nothing to change.
    pub fn is_empty(&self) -> bool {
        *self == AttributeChanges::default()
    }

    /// Applies them to the file of `to`, in an order in which none undoes another: a change of owner
    /// clears set-ID bits and capabilities (chown(2)).
    pub fn give(&self, to: &Handle) -> io::Result<Vec<Shortfall>> {
        let path = to.proc_path();
        let mut shortfalls = Vec::new();
        let mut is_owned = true;
        if let Some((uid, gid)) = self.owner
            && (to.stat().st_uid, to.stat().st_gid) != (uid, gid)
        {
            is_owned = give_owner(&path, to, uid, gid)?;
            if !is_owned {
                shortfalls.push(Shortfall::Owner(uid, gid));
            }
        }
        for (name, value) in &self.xattrs {
            let given = match value {
                Some(value) => rustix::fs::setxattr(&path, name.as_slice(), value, XattrFlags::empty()),
                None => rustix::fs::removexattr(&path, name.as_slice()),
            };
            match given {
                Ok(()) | Err(Errno::NODATA) => {}
                Err(Errno::PERM | Errno::ACCESS | Errno::NOTSUP | Errno::INVAL) => {
                    shortfalls.push(Shortfall::xattr(name));
                }
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(permissions) = self.permissions {
            // Set-ID bits are not given with another owner or group than the recorded one.
            let special = if is_owned { 0 } else { libc::S_ISUID | libc::S_ISGID };
            rustix::fs::chmod(&path, Mode::from_raw_mode(permissions & !special))?;
            // That they are lost with an owner who can't be given goes without saying.
            if is_owned && self.lost_set_id != 0 {
                let is_of_user = self.lost_set_id & libc::S_ISUID != 0;
                shortfalls.push(Shortfall::SetId(if is_of_user { "set-user-ID" } else { "set-group-ID" }));
            }
        }
        if let Some(mtime) = self.mtime {
            rustix::fs::utimensat(CWD, &path, &times(mtime), rustix::fs::AtFlags::empty())?;
        }
        Ok(shortfalls)
    }
}

/// Gives owner and group, or else the group alone; says whether the file has both.
fn give_owner(path: &str, to: &Handle, uid: u32, gid: u32) -> io::Result<bool> {
    let (owner, group) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    let refused = |outcome: Result<(), Errno>| match outcome {
        Ok(()) => Ok(false),
        // EINVAL: the user namespace does not map the number.
        Err(Errno::PERM | Errno::INVAL) => Ok(true),
        Err(error) => Err(io::Error::from(error)),
    };
    if !refused(rustix::fs::chown(path, owner, group))? {
        return Ok(true);
    }
    // An owner can give a file to one of their own groups without privilege.
    Ok(!refused(rustix::fs::chown(path, None, group))? && to.stat().st_uid == uid)
}

/// The times for utimensat(2): the access time stays as it is.
fn times((seconds, nanoseconds): (i64, u32)) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT },
        last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() },
    }
}

/// Creates an empty regular file for its owner alone; fails if the name exists.
pub fn new_file(dentry: &Dentry) -> io::Result<File> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(File::from(rustix::fs::openat(dentry.parent(), dentry.name(), flags, PRIVATE_FILE)?))
}

/// Creates a node of the type of `wanted` without its attributes; fails if the name exists: a directory
/// for its owner alone, a symlink, a FIFO, a socket that nobody listens on, or a device. [`new_file`]
/// creates regular files.
pub fn new_node(dentry: &Dentry, wanted: &Present) -> io::Result<()> {
    let (parent, name) = (dentry.parent(), dentry.name());
    let node = |kind, device| rustix::fs::mknodat(parent, name, kind, PRIVATE_FILE, device);
    let device = wanted.rdev.unwrap_or_default();
    match wanted.file_type {
        FileType::Directory => rustix::fs::mkdirat(parent, name, Mode::RWXU)?,
        FileType::Symlink => {
            rustix::fs::symlinkat(wanted.target.as_deref().unwrap_or_default(), parent, name)?;
        }
        FileType::Fifo => node(NodeType::Fifo, 0)?,
        FileType::Socket => node(NodeType::Socket, 0)?,
        FileType::CharDevice => node(NodeType::CharacterDevice, device)?,
        FileType::BlockDevice => node(NodeType::BlockDevice, device)?,
        FileType::File => return Err(io::ErrorKind::Unsupported.into()),
    }
    Ok(())
}

/// All attributes that make the new node at `dentry` what `wanted` is: without the access control lists that it
/// inherited from its directory.
pub fn attributes_of_new(
    wanted: &Present,
    policy: &RestorePolicy,
    dentry: &Dentry,
) -> io::Result<AttributeChanges> {
    let mut attributes = AttributeChanges::all(wanted, policy);
    if policy.ownership && wanted.file_type != FileType::Symlink {
        let names = live::xattrs(&dentry.proc_path())?.into_keys();
        let is_list = |name: &Vec<u8>| name.starts_with(b"system.posix_acl_");
        let inherited = names.filter(|name| is_list(name) && !wanted.xattrs.contains_key(name));
        attributes.xattrs.extend(inherited.map(|name| (name, None)));
    }
    Ok(attributes)
}
