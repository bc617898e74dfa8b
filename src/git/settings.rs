//! What the configuration of a repository says about its files.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use gix::bstr::{BStr, ByteSlice as _};

use super::convert::{Driver, Eol};
use super::patterns::Sources;
use crate::fs::{self, FileStat};

/// A pointer of Git LFS is shorter than that, as its specification has it.
const POINTER_LIMIT: u64 = 1024;

/// How many symlinks the kernel follows (path_resolution(7)).
const SYMLINKS: usize = 40;

/// What the configuration says about files.
pub(super) struct Settings {
    pub(super) file_mode: bool,
    pub(super) symlinks: bool,
    pub(super) eol: Eol,
    pub(super) drivers: HashMap<Vec<u8>, Driver>,
    /// Whether references are stored in a format that can't be read here.
    pub(super) foreign_references: bool,
}

impl Settings {
    pub(super) fn driver(&self, name: &BStr) -> Option<Driver> {
        self.drivers.get(name.as_bytes()).copied()
    }

    /// Whether a driver, one that attributes have ceased to name perhaps, can have made another blob of
    /// the same length from a file.
    pub(super) fn may_keep_length(&self, stat: &FileStat) -> bool {
        self.drivers.values().any(|driver| match driver {
            Driver::Lfs => fs::size(stat) < POINTER_LIMIT,
            Driver::Unknown => true,
        })
    }
}

/// Reads the settings that matter here, and the files that they and the patterns come from.
pub(super) fn configuration(git: &gix::Repository, root: Option<&Path>) -> (Settings, Sources, Vec<Vec<u8>>) {
    let config = git.config_snapshot();
    let plumbing = config.plumbing();
    let autocrlf = config.string("core.autocrlf");
    let eol = match autocrlf {
        Some(value) if value.eq_ignore_ascii_case(b"input") => Eol::Auto,
        _ if config.boolean("core.autocrlf") == Some(true) => Eol::Auto,
        _ => Eol::Binary,
    };
    let storage = config.string("extensions.refStorage");
    let settings = Settings {
        file_mode: config.boolean("core.fileMode").unwrap_or(true),
        symlinks: config.boolean("core.symlinks").unwrap_or(true),
        eol,
        drivers: drivers(plumbing),
        foreign_references: storage.is_some_and(|storage| !storage.eq_ignore_ascii_case(b"files")),
    };
    let file = |key: &str, default: &str| match config.trusted_path(key) {
        Ok(Some(path)) if path.is_absolute() => Some(path),
        Ok(Some(path)) => root.map(|root| root.join(path)),
        Ok(None) => user_configuration().map(|directory| directory.join(default)),
        Err(_) => None,
    };
    let attributes = file("core.attributesFile", "git/attributes");
    let attributes = std::iter::once(PathBuf::from("/etc/gitattributes")).chain(attributes).collect();
    let sources = Sources {
        attributes,
        excludes: file("core.excludesFile", "git/ignore"),
        info: git.common_dir().join("info"),
        ignore_case: config.boolean("core.ignoreCase").unwrap_or(false),
    };
    let loaded = plumbing.sections().filter_map(|section| section.meta().path.clone());
    let of_info = ["attributes", "exclude"].map(|name| sources.info.join(name));
    let files: BTreeSet<PathBuf> = loaded
        .chain(global_configuration())
        .chain(sources.attributes.iter().cloned())
        .chain(sources.excludes.iter().cloned())
        .chain(of_info)
        .collect();
    let names = files.into_iter().flat_map(names);
    let watched = names.map(|path| path.into_os_string().into_encoded_bytes()).collect();
    (settings, sources, watched)
}

/// The resolved names of the file at `path`: its own and, if it is a symlink, those of the symlinks and the
/// file behind it.
fn names(path: PathBuf) -> Vec<PathBuf> {
    let mut names = Vec::new();
    let mut next = Some(path);
    while let Some(path) = next.take()
        && names.len() <= SYMLINKS
    {
        let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
        let (Some(parent), Some(name)) = (parent, path.file_name()) else {
            // Perhaps its directory is made later.
            names.push(path);
            break;
        };
        let own = parent.join(name);
        next = own.read_link().ok().map(|target| parent.join(target));
        names.push(own);
    }
    names
}

/// The directory that Git has its own configuration below.
fn user_configuration() -> Option<PathBuf> {
    let configured = std::env::var_os("XDG_CONFIG_HOME").filter(|value| !value.is_empty());
    configured.map(PathBuf::from).or_else(|| Some(gix::path::env::home_dir()?.join(".config")))
}

/// The files that Git reads for every repository.
pub(super) fn global_configuration() -> impl Iterator<Item = PathBuf> {
    let user = user_configuration().map(|directory| directory.join("git/config"));
    let home = gix::path::env::home_dir().map(|home| home.join(".gitconfig"));
    std::iter::once(PathBuf::from("/etc/gitconfig")).chain(user).chain(home)
}

/// Reads the filter drivers.
fn drivers(config: &gix::config::File) -> HashMap<Vec<u8>, Driver> {
    let mut drivers = HashMap::new();
    for section in config.sections_by_name("filter").into_iter().flatten() {
        let header = section.header();
        let Some(name) = header.subsection_name() else { continue };
        for key in ["clean", "process"] {
            match section.value(key) {
                Some(command) if command.find(b"git-lfs").is_some() => {
                    drivers.insert(name.to_vec(), Driver::Lfs);
                }
                Some(command) if !command.is_empty() => {
                    drivers.insert(name.to_vec(), Driver::Unknown);
                }
                _ => {}
            }
        }
    }
    drivers
}
