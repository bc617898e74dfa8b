//! What goes wrong around a recording: nothing to execute, no space, no rights, no descriptors, too much
//! of everything. The command runs on as if alone, and what is lost is told.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::support::Place;

#[test]
fn what_was_made_for_a_command_that_does_not_start_is_removed() {
    let place = Place::new();
    let script = place.work.join("script");
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let deep = place.base().join("a/b/c");
    for command in ["./script", "./missing", "no-such-command"] {
        let output = place.command().arg("--snapshot-dir").arg(&deep).arg(command).output().unwrap();
        assert_eq!(output.status.code(), Some(127), "{output:?}");
        assert!(!place.base().join("a").exists(), "{command}");
    }
    // What was there stays, and so does what somebody has put there meanwhile.
    fs::create_dir_all(&deep).unwrap();
    let output = place.command().arg("--snapshot-dir").arg(&deep).arg("./script").output().unwrap();
    assert_eq!(output.status.code(), Some(127));
    assert!(deep.exists());
}
