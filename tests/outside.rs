//! What programs outside of the tree change while a command is recorded: told, since it can't be known.

use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::process::Stdio;

use agent_snapshot::snapshot::WarningKind;

use crate::support::{Place, lost};

/// Records `script`, and has `change` done once it has written a line; it goes on when its own standard
/// input ends.
fn record_while(place: &Place, script: &str, change: impl FnOnce()) {
    let mut command = place.command();
    command.arg("--snapshot-dir").arg(&place.out).args(["sh", "-c", script]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    change();
    drop(child.stdin.take());
    assert!(child.wait_with_output().unwrap().status.success());
}

#[test]
fn a_directory_that_somebody_else_replaces_by_a_link_is_told() {
    let place = Place::new();
    let directory = place.work.join("d");
    fs::create_dir(&directory).unwrap();
    record_while(&place, "test -e d/x; echo; read line; echo new >d/new", || {
        fs::rename(&directory, place.work.join("other")).unwrap();
        symlink("other", &directory).unwrap();
    });
    assert!(place.work.join("other/new").exists());
    let snapshot = place.snapshot();
    assert_eq!(lost(&snapshot), [WarningKind::ExternalChange]);
    let detail = &snapshot.header().warnings[0].detail;
    assert!(detail.contains(directory.to_str().unwrap()), "{detail}");
}

#[test]
fn directories_that_the_tree_itself_moves_and_makes_again_are_no_change_from_outside() {
    let place = Place::new();
    let snapshot = place.record(
        "mkdir -p a/b/c x/y; echo 1 >a/b/c/f; cat a/b/c/f x/y/none; mv a/b b; cat b/c/f; mkdir a/b; echo 2 >a/b/g
         mv b x/y/z; cat x/y/z/c/f; ln -s x link; cat link/y/z/c/f; rm -r x; rm link; mkdir -p x/y/z; cat x/y/z/none
         mv x a/b/; echo 3 >a/b/x/y/z/n; true",
    );
    assert_eq!(lost(&snapshot), []);
}
