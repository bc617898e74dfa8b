//! What programs outside of the tree change while a command is recorded: told, since it can't be known.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
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

#[test]
fn a_link_or_a_mode_that_somebody_else_changes_is_told() {
    let change_mode =
        |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    for name in ["link", "file", "dir"] {
        let place = Place::new();
        symlink("file", place.work.join("link")).unwrap();
        fs::create_dir(place.work.join("dir")).unwrap();
        fs::write(place.work.join("file"), "content\n").unwrap();
        change_mode(&place.work.join("file"), 0o644);
        change_mode(&place.work.join("dir"), 0o755);
        let path = place.work.join(name);
        record_while(
            &place,
            "cat link >/dev/null; ls -l file dir link >/dev/null; echo; read line; true",
            || match name {
                "link" => {
                    fs::remove_file(&path).unwrap();
                    symlink("other", &path).unwrap();
                }
                "file" => change_mode(&path, 0o600),
                _ => change_mode(&path, 0o700),
            },
        );
        let snapshot = place.snapshot();
        assert_eq!(lost(&snapshot), [WarningKind::ExternalChange], "{name}");
        let detail = &snapshot.header().warnings[0].detail;
        assert!(detail.contains(path.to_str().unwrap()), "{detail}");
    }
}

#[test]
fn what_the_tree_does_to_a_file_by_another_name_is_no_change_from_outside() {
    let place = Place::new();
    fs::write(place.work.join("f"), "content\n").unwrap();
    fs::hard_link(place.work.join("f"), place.work.join("g")).unwrap();
    symlink("f", place.work.join("link")).unwrap();
    fs::hard_link(place.work.join("link"), place.work.join("alias")).unwrap();
    let snapshot = place.record(
        "cat f g; readlink link alias; chmod 600 g; rm alias; chown -h $(id -u) link; exec 3<f; cat f",
    );
    assert_eq!(lost(&snapshot), []);
}
