//! Why a recording may not be recalled.

use crate::fs;
use crate::snapshot::change::PathEffect;
use crate::snapshot::live::{Filesystem, filesystem};
use crate::snapshot::secrets::{ContentSign, Secrets, has_sign};
use crate::snapshot::{
    BlobOmitted, FileRecord, FileType, Header, Look, NetworkAddress, Operation, Told, Unrepeatable,
    WarningKind, printable,
};

/// Paths on procfs, sysfs and among devices that mean the same to each run, or nothing. A `*` stands for any characters.
const HARMLESS: [&str; 18] = [
    "/dev",
    "/dev/fd",
    "/dev/fd/*",
    "/dev/full",
    "/dev/null",
    "/dev/stderr",
    "/dev/stdin",
    "/dev/stdout",
    "/dev/zero",
    "/proc",
    "/proc/self",
    "/proc/self/exe",
    "/proc/self/fd",
    "/proc/self/fd/*",
    "/proc/self/maps",
    "/proc/self/task",
    "/sys",
    "/sys/kernel/mm/transparent_hugepage*",
];

/// Directories there whose names mean the same to each run: the numbers of its descriptors.
const HARMLESS_LISTINGS: [&str; 2] = ["/dev/fd", "/proc/self/fd"];

/// Files of the kernel's own whose content lasts, and directories of it, whose names do: it is compared.
const LASTING: [&str; 13] = [
    "/proc/cmdline",
    "/proc/filesystems",
    "/proc/self/cgroup",
    "/proc/sys/*",
    "/proc/version",
    "/sys/devices/system/cpu",
    "/sys/devices/system/cpu/*",
    "/sys/fs/cgroup/*.high",
    "/sys/fs/cgroup/*.max",
    "/sys/fs/cgroup/*cfs_period_us",
    "/sys/fs/cgroup/*cfs_quota_us",
    "/sys/fs/cgroup/*cpus.effective",
    "/sys/fs/cgroup/*limit_in_bytes",
];

/// The devices that give random bytes.
const RANDOM: [&str; 2] = ["/dev/random", "/dev/urandom"];

/// What the user allows.
#[derive(Debug, Clone, Default)]
pub struct Allowed {
    /// A status other than 0.
    pub failures: bool,
    /// Random bytes.
    pub random: bool,
    /// Paths that are not looked at. A `*` stands for any characters.
    pub paths: Vec<String>,
}

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Refusals {
    /// Why the recording may not be recalled, as sentences.
    pub refused: Vec<String>,
    /// The files and directories of the kernel's own whose content is to be compared.
    pub kernel_files: Vec<Vec<u8>>,
}

fn is_among<'p>(path: &[u8], mut patterns: impl Iterator<Item = &'p str>) -> bool {
    patterns.any(|pattern| fs::matches(pattern.as_bytes(), path))
}

impl Refusals {
    fn refuse(&mut self, why: impl Into<String>) {
        self.refused.push(why.into());
    }

    /// Judges the listing of a directory that is not looked at.
    fn listed(&mut self, path: &[u8], allowed: &Allowed) {
        let fine = HARMLESS_LISTINGS.into_iter().chain(allowed.paths.iter().map(String::as_str));
        if !is_among(path, fine) && !is_among(path, LASTING.into_iter()) {
            let shown = printable(path);
            self.refuse(format!(
                "it listed {shown}, which is not looked at ([recall] trust in config.toml allows that)"
            ));
        }
    }

    /// Judges a path of a file system whose files the kernel makes up, or one that is not recorded.
    fn not_looked_at(&mut self, path: &[u8], allowed: &Allowed) {
        let shown = printable(path);
        if RANDOM.iter().any(|device| path == device.as_bytes()) {
            if !allowed.random {
                self.refuse(format!("it used {shown} (--allow-random allows that)"));
            }
        } else if is_among(path, HARMLESS.into_iter())
            || is_among(path, allowed.paths.iter().map(String::as_str))
        {
        } else if is_among(path, LASTING.into_iter()) {
            self.kernel_files.push(path.to_vec());
        } else {
            self.refuse(format!(
                "it used {shown}, which is not looked at ([recall] trust in config.toml allows that)"
            ));
        }
    }
}

/// What is in the way of recalling a recording with this header and these records. What a command prints that reads one
/// of the secrets may have them, and is not kept.
pub fn findings(
    header: &Header,
    records: impl Iterator<Item = FileRecord>,
    unrepeatable: &Unrepeatable,
    allowed: &Allowed,
    secrets: Option<&Secrets>,
) -> Refusals {
    let mut found = Refusals::default();
    if let Some(signal) = &header.exit_signal {
        found.refuse(format!("it was ended by {signal}"));
    } else if header.timed_out {
        found.refuse("it was ended by --timeout");
    } else if header.exit_status != 0 && !allowed.failures {
        found.refuse(format!("it ended with status {} (--recall-failures allows that)", header.exit_status));
    }
    if header.killed {
        found.refuse("agent-snapshot was killed");
    }
    if header.running || header.warnings.iter().any(|warning| warning.kind == WarningKind::Survivors) {
        found.refuse("processes of it lived on");
    }
    if let Some(warning) = header.warnings.iter().find(|warning| warning.lost) {
        found.refuse(format!("the recording is incomplete: {}", warning.detail));
    }
    for used in &header.network {
        // Where no socket is, there is nobody to ask.
        let is_absent = matches!(used.address, NetworkAddress::Unix(_)) && used.errno == Some(libc::ENOENT);
        if !is_absent {
            let address = match (&used.address, used.address.host_and_port()) {
                (_, Some((host, port))) => format!("{host} port {port}"),
                (NetworkAddress::Unix(name), None) if !name.is_empty() => printable(name).into_owned(),
                (address, None) => address.family().to_owned(),
            };
            found.refuse(format!("it used the network ({} {address})", used.operation.name()));
            break;
        }
    }
    for told in &unrepeatable.told {
        match told {
            Told::RandomBytes if allowed.random => {}
            told => found.refuse(sentence(*told)),
        }
    }
    if unrepeatable.ran_ourselves {
        found.refuse("it used agent-snapshot itself");
    }
    if unrepeatable.has_more_unrecorded {
        let count = unrepeatable.unrecorded().count();
        found.refuse(format!("it used more than {count} paths that are not looked at"));
    }
    for path in unrepeatable.unrecorded() {
        let is_inherited = |fd: &u32| path == format!("/proc/self/fd/{fd}").as_bytes();
        match unrepeatable.inherited.iter().find(|fd| is_inherited(fd)) {
            Some(fd) => found.refuse(format!("it used descriptor {fd}, which it inherited")),
            None => found.not_looked_at(path, allowed),
        }
    }
    for path in unrepeatable.listed() {
        found.listed(path, allowed);
    }
    if let Some(fd) = unrepeatable.used_descriptor {
        found.refuse(format!("it used descriptor {fd}, which it inherited"));
    }
    if let Some(object) = &unrepeatable.git_object {
        found.refuse(format!("it changed Git's state ({})", printable(object)));
    }
    let mut filesystems = std::collections::HashMap::new();
    for record in records {
        if secrets.is_some_and(|secrets| reads_secret(&record, secrets)) {
            found.refuse(format!("it read {}, which is taken for a secret", printable(&record.path)));
        }
        judge(&record, &mut filesystems, &mut found, allowed);
    }
    found
}

/// Why what a command was told is in the way.
fn sentence(told: Told) -> &'static str {
    match told {
        Told::RandomBytes => "it asked for random bytes (--allow-random allows that)",
        Told::FreeSpace => "it asked how much space is free (statfs)",
        Told::Locks => "it asked for a lock that somebody else held",
        Told::Lease => "it asked for a lease, which tells whether others have a file open",
        Told::Keys => "it used the kernel's keyrings",
        Told::MessageQueues => "it used POSIX message queues",
        Told::SystemV => "it used System V shared memory, semaphores or message queues",
        Told::Network => "it asked for a socket of the network or for its interfaces",
        Told::OtherProcesses => "it asked for, or signalled, processes that it had not started",
        Told::System => "it asked for, or changed, the state of the system",
    }
}

/// Whether the command read a file that is taken for a secret: by what the recording withheld, and where it has the
/// bytes for an undo, by its name.
fn reads_secret(record: &FileRecord, secrets: &Secrets) -> bool {
    let Some(before) = record.before.present().filter(|before| before.file_type == FileType::File) else {
        return false;
    };
    let has = |sign| {
        sign != ContentSign::Key
            && fs::open_regular(&record.path).and_then(|file| has_sign(file, sign)).unwrap_or(true)
    };
    let is_secret =
        || before.blob_omitted == Some(BlobOmitted::Withheld) || secrets.is_secret(&record.path, has);
    record.seen.contains(Look::Content) && is_secret()
}

fn judge(
    record: &FileRecord,
    filesystems: &mut std::collections::HashMap<u64, Filesystem>,
    found: &mut Refusals,
    allowed: &Allowed,
) {
    let shown = printable(&record.path);
    if record.inherited && PathEffect::of(record).lasts() {
        return found.refuse(format!("{shown}, on a descriptor that it inherited, was changed"));
    }
    if record.is_git_state {
        return found.refuse(format!("it changed Git's state ({shown})"));
    }
    let before = record.before.present();
    let after = record.after.present();
    let Some(there) = before.or(after) else { return };
    let filesystem = *filesystems
        .entry(there.dev)
        .or_insert_with(|| filesystem(&record.path).unwrap_or(Filesystem::Local));
    match filesystem {
        Filesystem::Served => {
            if !is_among(&record.path, allowed.paths.iter().map(String::as_str)) {
                found.refuse(format!(
                    "{shown} is on a file system that others serve ([recall] trust in config.toml allows that)"
                ));
            }
            return;
        }
        // What is said of a directory there is all that is to be known of it.
        Filesystem::Pseudo => {
            if record.seen.contains(Look::Content) && there.file_type == FileType::File {
                found.not_looked_at(&record.path, allowed);
            }
            return;
        }
        Filesystem::Local | Filesystem::Overlay => {}
    }
    if record.seen.contains(Look::Transient) {
        found.refuse(format!("it asked for the access time of {shown}, or for its extents on the disk"));
    }
    let reads = record.operations.contains(Operation::Read) && record.seen.contains(Look::Content);
    if let (Some(before), Some(after)) = (before, after)
        && reads
        && before.digest != after.digest
        && before.file_type == FileType::File
    {
        return found.refuse(format!("it read {shown}, which was changed meanwhile"));
    }
    for at in [before.filter(|_| reads), after] {
        match at.map(|at| at.file_type) {
            None | Some(FileType::File | FileType::Directory | FileType::Symlink) => {}
            Some(_) => {
                return found.refuse(format!("{shown}, which it used, is no file, directory or symlink"));
            }
        }
    }
}
