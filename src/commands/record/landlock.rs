//! The Landlock domain of the command (landlock(7)), in which the kernel itself refuses what is outside of the bounds of
//! the rules.
//!
//! The recorder still judges each call, and more strictly. A bound refers to a directory that exists when the domain is
//! made, and not to a path.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, NetPort, PathBeneath,
    PathFd, Ruleset, RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, RulesetError, Scope,
};

use crate::policy::Bounds;

/// The first version that has rights to move a file to another directory and to truncate it (Linux 6.2).
const FILES: ABI = ABI::V3;

/// Directories of devices and of what the kernel shows as files, which every program uses.
const OF_THE_KERNEL: [&str; 3] = ["/dev", "/proc", "/sys"];

/// What a command is restricted to.
pub struct Domain(Vec<RulesetCreated>);

impl Domain {
    /// The domain of these bounds; what is beneath the paths of `own` may be used, too.
    ///
    /// # Errors
    /// The kernel has no Landlock, or an older one than is needed.
    pub fn new<'p>(
        bounds: &'p [Bounds],
        own: impl Iterator<Item = &'p [u8]> + Clone,
    ) -> Result<Domain, RulesetError> {
        bounds.iter().map(|bounds| ruleset(bounds, own.clone())).collect::<Result<_, _>>().map(Domain)
    }

    /// Has this thread enter it, for good, with all that it starts.
    ///
    /// # Errors
    /// The kernel refuses that: domains are nested too deeply.
    pub fn enter(&self) -> io::Result<()> {
        self.0.iter().try_for_each(|ruleset| {
            let enter = |no_new_privileges| {
                let ruleset = ruleset.try_clone()?.no_new_privs(no_new_privileges);
                ruleset.restrict_self().map(drop).map_err(io::Error::other)
            };
            // With CAP_SYS_ADMIN it works without no_new_privs, and set-ID programs keep their privileges.
            enter(false).or_else(|_| enter(true))
        })
    }
}

/// The ruleset of these bounds. Listings stay with the recorder: a directory may be opened without being listed.
fn ruleset<'p>(
    bounds: &'p Bounds,
    own: impl Iterator<Item = &'p [u8]> + Clone,
) -> Result<RulesetCreated, RulesetError> {
    let mut ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let of_files =
        [(&bounds.changed, AccessFs::from_write(FILES)), (&bounds.read, AccessFs::ReadFile.into())];
    for (_, accesses) in of_files.iter().filter(|(paths, _)| paths.is_some()) {
        ruleset = ruleset.handle_access(*accesses)?;
    }
    if bounds.ports.is_some() {
        ruleset = ruleset.handle_access(AccessNet::from_all(ABI::V4))?;
    }
    if bounds.without_abstract_sockets {
        ruleset = ruleset.scope(Scope::AbstractUnixSocket)?;
    }
    let mut created = ruleset.create()?;
    for (paths, accesses) in of_files {
        let Some(paths) = paths else { continue };
        for path in paths.iter().map(Vec::as_slice).chain(own.clone()) {
            created = allow(created, &directory_of(path), accesses)?;
        }
        for path in OF_THE_KERNEL {
            created = allow(created, Path::new(path), accesses & AccessFs::from_file(FILES))?;
        }
    }
    for port in bounds.ports.iter().flatten() {
        created = created.add_rule(NetPort::new(*port, AccessNet::from_all(ABI::V4)))?;
    }
    Ok(created)
}

fn allow(
    ruleset: RulesetCreated,
    path: &Path,
    accesses: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    match PathFd::new(path) {
        Ok(directory) => ruleset.add_rule(PathBeneath::new(directory, accesses)),
        // What we can't open, the command can't use either.
        Err(_) => Ok(ruleset),
    }
}

/// The nearest directory at or above a path: a file there may be replaced, and a missing one created.
fn directory_of(path: &[u8]) -> PathBuf {
    let path = Path::new(OsStr::from_bytes(path));
    path.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/")).to_owned()
}
