//! Ground truth of changes: a command that runs on an overlay filesystem leaves exactly what it changed in
//! the upper directory.
//!
//! Each change found there must be recorded, with the bytes of the lower directory before and those of
//! the merged one after; and no other record may claim a change. Neighbours: `cases.rs` has the
//! commands, `truth.rs` compares states.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use agent_snapshot::snapshot::{FileRecord, Operations, Snapshot, State};

use super::cases::{CASES, Case, isolate, possible, prepare};
use super::{Inodes, compare_inodes, gaps, wrong_gaps};
use crate::support::{Namespace, Place, Tree, lines, needs_root, program, scan, shown, unshare_mounts};

/// How an overlay is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layers {
    /// Of directories of one filesystem, with an index: files keep their numbers and names.
    Indexed,
    /// As container engines mount them: a file with several names gets another number when it is copied
    /// up, and leaves its other names.
    Plain,
    /// Of two filesystems: each file gets another number when it is copied up.
    Apart,
}

impl Layers {
    fn inodes(self) -> Inodes {
        if self == Layers::Indexed { Inodes::Stay } else { Inodes::Move }
    }
}

/// An overlay on the directory of a place, which is taken away in the end.
struct Overlay {
    merged: Mounted,
    upper: PathBuf,
    _lower: Option<Mounted>,
}

impl Overlay {
    /// Makes what is in `work` the lower directory, and lays an empty upper one over it.
    fn over(work: &Path, layers: Layers) -> Result<Overlay, String> {
        unshare_mounts().map_err(|error| format!("unshare the mounts: {error}"))?;
        let base = work.parent().unwrap();
        let [lower, upper, internal] = ["lower", "upper", "internal"].map(|name| base.join(name));
        let mut mounted = None;
        if layers == Layers::Apart {
            fs::create_dir(&lower).unwrap();
            run("mount", &["-t", "tmpfs", "tmpfs"], &[&lower])?;
            mounted = Some(Mounted(lower.clone()));
            run("cp", &["-a", "-T"], &[work, &lower])?;
            fs::remove_dir_all(work).unwrap();
        } else {
            fs::rename(work, &lower).unwrap();
        }
        for dir in [work, &upper, &internal] {
            fs::create_dir(dir).unwrap();
        }
        // Directories are renamed, not copied, and files keep their names together.
        let index = if layers == Layers::Indexed { "on" } else { "off" };
        let options = format!(
            "lowerdir={},upperdir={},workdir={},redirect_dir=on,metacopy=off,index={index},xino=off",
            lower.display(),
            upper.display(),
            internal.display()
        );
        run("mount", &["-t", "overlay", "overlay", "-o", &options], &[work])?;
        Ok(Overlay { merged: Mounted(work.to_owned()), upper, _lower: mounted })
    }

    /// What was changed, by the upper directory, as paths of the merged tree.
    fn changed(&self, before: &Tree, after: &Tree) -> Changed {
        let mut changed = Changed::default();
        self.walk(Path::new(""), before, after, &mut changed);
        changed
    }

    fn walk(&self, below: &Path, before: &Tree, after: &Tree, changed: &mut Changed) {
        for entry in fs::read_dir(self.upper.join(below)).unwrap() {
            let entry = entry.unwrap();
            let name = below.join(entry.file_name());
            let stat = fs::symlink_metadata(entry.path()).unwrap();
            let merged = self.merged.0.join(&name).into_os_string().into_encoded_bytes();
            if stat.file_type().is_char_device() && stat.rdev() == 0 {
                // A whiteout: all that was there before was removed.
                changed.whole.extend(tree_below(before, &merged));
            } else if !stat.is_dir() {
                changed.whole.insert(merged);
            } else if marked(&entry.path(), "trusted.overlay.redirect") {
                // It was renamed from elsewhere, with all below it that is not in the upper directory.
                changed.whole.extend(tree_below(before, &merged).chain(tree_below(after, &merged)));
            } else if marked(&entry.path(), "trusted.overlay.opaque") || !before.contains_key(&merged) {
                changed.whole.extend(tree_below(before, &merged).chain(tree_below(after, &merged)));
            } else {
                // It is there since something in it was changed, or it was itself.
                changed.perhaps.insert(merged);
                self.walk(&name, before, after, changed);
            }
        }
    }
}

/// A mount, which is taken away in the end.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

fn run(program: &str, arguments: &[&str], paths: &[&Path]) -> Result<(), String> {
    match Command::new(program).args(arguments).args(paths).output() {
        Ok(output) if output.status.success() => Ok(()),
        other => Err(format!("an overlay can't be made here: {program} {arguments:?}: {other:?}")),
    }
}

/// What an upper directory holds.
#[derive(Debug, Default)]
struct Changed {
    /// What was created, written, removed or moved.
    whole: BTreeSet<Vec<u8>>,
    /// Directories that are there at least for the sake of what they hold.
    perhaps: BTreeSet<Vec<u8>>,
}

fn tree_below<'t>(tree: &'t Tree, root: &'t [u8]) -> impl Iterator<Item = Vec<u8>> + 't {
    let below =
        move |path: &&Vec<u8>| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
    tree.keys().filter(below).cloned()
}

fn marked(path: &Path, name: &str) -> bool {
    rustix::fs::lgetxattr(path, name, &mut [0; 4096]).is_ok()
}

fn in_git(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').any(|name| name == b".git")
}

/// Whether a record claims that its path is not what it was.
fn claims_change(record: &FileRecord) -> bool {
    match (&record.before, &record.after) {
        (State::Absent { .. }, State::Absent { .. }) => false,
        (State::Present(before), State::Present(after)) => {
            let same_content = match (&before.digest, &after.digest) {
                (Some(before), Some(after)) => before == after,
                _ => true,
            };
            let facts = |state: &agent_snapshot::snapshot::Present| {
                (state.file_type, state.mode, state.uid, state.gid, state.target.clone())
            };
            facts(before) != facts(after) || !same_content
        }
        _ => true,
    }
}

/// Records one command inside an overlay; what is wrong, a sentence each.
fn check(case: &Case, layers: Layers, mechanism: &str, namespace: Namespace) -> Result<Vec<String>, String> {
    let place = Place::new();
    prepare(&place, case);
    let overlay = Overlay::over(&place.work, layers)?;
    let name = |path: &[u8]| {
        Path::new(OsStr::from_bytes(path))
            .strip_prefix(&place.work)
            .unwrap_or(Path::new("?"))
            .display()
            .to_string()
    };
    let mut before = scan(&place.work);
    let mut command = place.recorder(mechanism);
    isolate(&place, &mut command);
    command.args(namespace.words(&place));
    let output = command.args(["bash", "-c", case.script]).output().unwrap();
    if !output.status.success() {
        return Ok(vec![format!("it fails: {}", shown(&output))]);
    }
    let mut after = scan(&place.work);
    let Changed { mut whole, perhaps } = overlay.changed(&before, &after);
    let snapshot = Snapshot::open(&place.out).unwrap();
    let mut wrong = gaps(&snapshot);

    // What is as before in a git directory has no record, nor have objects that are there still, or an index that was
    // only refreshed.
    let unrecorded = |path: &[u8]| in_git(path) && snapshot.find(path).is_none();
    let facts = |tree: &Tree, path: &Vec<u8>| {
        let entry = tree.get(path)?;
        Some((entry.present.mode, entry.present.target.clone(), entry.content.clone()))
    };
    let is_exempt =
        |path: &[u8]| path.windows(9).any(|part| part == b"/objects/") || path.ends_with(b"/index");
    for path in before.keys().chain(after.keys()).filter(|path| unrecorded(path) && !is_exempt(path)) {
        if facts(&before, path) != facts(&after, path) {
            wrong.push(format!("{}: changed in a git directory without a record", name(path)));
        }
    }
    whole.retain(|path| !unrecorded(path));
    before.retain(|path, _| !unrecorded(path));
    after.retain(|path, _| !unrecorded(path));

    for path in &whole {
        let record = snapshot.find(path);
        let changes = record.is_some_and(|record| record.operations.intersects(Operations::CHANGES));
        // Another name of a changed file is copied up with it; `compare` checks those.
        let linked =
            [&before, &after].iter().any(|tree| tree.get(path).is_some_and(|found| found.present.nlink > 1));
        if !(changes || linked && record.is_some()) {
            wrong.push(format!("{}: in the upper directory without a record of a change", name(path)));
        }
    }
    let root = place.work.as_os_str().as_bytes();
    let mut claimed = 0;
    for record in snapshot.files() {
        let inside = record.path.strip_prefix(root).is_some_and(|rest| rest.starts_with(b"/"));
        if !inside || !claims_change(record) {
            continue;
        }
        claimed += 1;
        // A change by another name of the file is shown by that name, and judged by `compare`.
        let linked = record.before.present().is_some_and(|before| before.nlink > 1);
        if !whole.contains(&record.path) && !perhaps.contains(&record.path) && !linked {
            wrong.push(format!(
                "{}: a change is recorded, but the upper directory has none",
                name(&record.path)
            ));
        }
    }
    println!(
        "{} by {mechanism}, {layers:?}, {namespace:?}: {} changes, {claimed} recorded",
        case.name,
        whole.len()
    );
    wrong.extend(compare_inodes(&place.work, &before, &after, &snapshot, layers.inodes()));
    Ok(wrong)
}

/// Records the random program of a seed inside an overlay; what is wrong, a sentence each.
fn check_random(program: &Path, seed: u64, layers: Layers) -> Result<Vec<String>, String> {
    let place = Place::new();
    let seed = seed.to_string();
    let setup = Command::new(program).args(["--setup", &seed]).current_dir(&place.work).output().unwrap();
    assert!(setup.status.success(), "{}", shown(&setup));
    let _overlay = Overlay::over(&place.work, layers)?;
    let before = scan(&place.work);
    let output = place.recorder("auto").arg(program).arg(&seed).output().unwrap();
    let after = scan(&place.work);
    let mut wrong = match Snapshot::open(&place.out) {
        Ok(snapshot) => {
            let wrong = compare_inodes(&place.work, &before, &after, &snapshot, layers.inodes());
            [wrong, wrong_gaps(&before, &after, &snapshot)].concat()
        }
        Err(error) => vec![error.to_string()],
    };
    if !output.status.success() {
        wrong.push("the program fails".to_owned());
    }
    if !wrong.is_empty() {
        wrong.push(shown(&output));
    }
    Ok(wrong)
}

fn check_all(cases: impl Iterator<Item = &'static Case>, ways: &[(Layers, &str, Namespace)]) {
    if !needs_root("an overlay") {
        return;
    }
    let only = std::env::var("TRUTH_CASE").ok();
    let mut wrong = Vec::new();
    for case in possible(cases.filter(|case| only.as_ref().is_none_or(|only| only == case.name))) {
        for (layers, mechanism, namespace) in ways {
            match check(case, *layers, mechanism, *namespace) {
                Err(reason) => return println!("skipped: {reason}"),
                Ok(found) if found.is_empty() => {}
                Ok(found) => wrong.push(format!(
                    "{} by {mechanism}, {layers:?}, {namespace:?}:{}",
                    case.name,
                    lines(&found)
                )),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn upper_directory_of_quick_commands_matches_the_recording() {
    check_all(CASES.iter().filter(|case| case.quick), &[(Layers::Plain, "auto", Namespace::Shared)]);
}

#[test]
fn upper_directory_of_quick_commands_in_a_namespace_matches_the_recording() {
    if Namespace::Bound.is_possible() {
        check_all(CASES.iter().filter(|case| case.quick), &[(Layers::Plain, "auto", Namespace::Bound)]);
    }
}

#[test]
#[ignore = "slow: compilers and package managers"]
fn slow_upper_directory_of_real_commands_matches_the_recording() {
    let ways = [
        (Layers::Indexed, "auto", Namespace::Shared),
        (Layers::Indexed, "every-call", Namespace::Shared),
        (Layers::Plain, "auto", Namespace::Shared),
        (Layers::Apart, "auto", Namespace::Shared),
        (Layers::Indexed, "auto", Namespace::Bound),
    ];
    check_all(CASES.iter(), &ways);
}

#[test]
#[ignore = "slow: hundreds of programs"]
fn slow_random_programs_on_overlays_are_recorded_correctly() {
    if !needs_root("an overlay") {
        return;
    }
    let program = program("random");
    let only = std::env::var("TRUTH_SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
    let count = std::env::var("TRUTH_SEEDS").ok().map_or(100, |count| count.parse().unwrap());
    let seeds = only.map_or(5000..5000 + count, |seed| seed..seed + 1);
    let mut failures = Vec::new();
    for seed in seeds {
        for layers in [Layers::Indexed, Layers::Plain, Layers::Apart] {
            match check_random(&program, seed, layers) {
                Err(reason) => return println!("skipped: {reason}"),
                Ok(wrong) if wrong.is_empty() => {}
                Ok(wrong) => {
                    println!("TRUTH_SEED={seed} on {layers:?}:{}\n", lines(&wrong));
                    failures.push(format!("{seed} on {layers:?}"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} seeds failed: {}", failures.len(), failures.join(", "));
}
