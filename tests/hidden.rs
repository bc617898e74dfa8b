//! What the command leaves behind a directory that may not be searched: not known, which is not deleted.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::{Command, Output};

use agent_snapshot::snapshot::{BlobOmitted, State, WarningKind};

use crate::support::{BINARY, Place, bytes, lost};

/// The user that nobody is, whom permissions apply to.
const NOBODY: u32 = 65_534;

/// A place where all of this is done by a user without privilege.
struct Ordinary(Place);

impl Ordinary {
    fn new() -> Ordinary {
        let place = Place::new();
        if nix::unistd::geteuid().is_root() {
            for found in walkdir::WalkDir::new(place.base()).into_iter().flatten() {
                chown(found.path(), Some(NOBODY), Some(NOBODY)).unwrap();
            }
            // The built program is in a directory of the developer.
            fs::copy(BINARY, place.base().join("agent-snapshot")).unwrap();
        }
        Ordinary(place)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let place = &self.0;
        let mut command = if nix::unistd::geteuid().is_root() {
            let mut command = Command::new("setpriv");
            let id = NOBODY.to_string();
            command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]);
            command.arg(place.base().join("agent-snapshot"));
            command
        } else {
            Command::new(BINARY)
        };
        place.isolate(&mut command);
        command.args(arguments).output().unwrap()
    }
}

impl Drop for Ordinary {
    fn drop(&mut self) {
        let _ = fs::set_permissions(self.0.work.join("d"), fs::Permissions::from_mode(0o700));
    }
}

#[test]
fn what_is_in_a_directory_that_may_not_be_searched_is_not_deleted() {
    let ordinary = Ordinary::new();
    let place = &ordinary.0;
    let out = place.out.to_str().unwrap();
    let script = "mkdir d; for f in changed read removed; do echo old >d/$f; done";
    assert!(ordinary.run(&["--snapshot-dir", out, "sh", "-c", script]).status.success());
    let script =
        "echo new >d/changed; cat d/read; rm d/removed; echo made >d/made; chmod 0 d; cat d/read; true";
    let output = ordinary.run(&["--snapshot-dir", out, "sh", "-c", script]);
    assert!(output.status.success(), "{output:?}");
    let snapshot = place.snapshot();
    assert_eq!(lost(&snapshot), [WarningKind::ContentOmitted]);
    let changed = place.file(&snapshot, "d/changed");
    assert_eq!(bytes(&snapshot, changed, true), b"old\n");
    assert_eq!(changed.after.present().unwrap().blob_omitted, Some(BlobOmitted::Unreadable));
    let read = place.file(&snapshot, "d/read");
    assert_eq!(read.before, read.after);
    assert_eq!(place.file(&snapshot, "d/removed").after, State::Absent { tombstone: true });
    // Nothing is known of what is there now.
    assert!(snapshot.find(&place.path("d/made")).is_none());

    let shown = ordinary.run(&["show", out]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    let deleted = shown.split("\n\n").find(|part| part.starts_with("Deleted")).unwrap();
    assert!(deleted.contains("d/removed") && !deleted.contains("d/changed"), "{shown}");

    let undone = ordinary.run(&["restore", out, "--before", "--force"]);
    fs::set_permissions(place.work.join("d"), fs::Permissions::from_mode(0o700)).unwrap();
    for name in ["changed", "read", "removed"] {
        let content = fs::read_to_string(place.work.join("d").join(name));
        assert_eq!(content.ok().as_deref(), Some("old\n"), "{name}: {undone:?}");
    }
}
