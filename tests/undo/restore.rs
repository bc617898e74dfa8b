//! `restore` in place.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::support::*;

/// Both states of the tree, without the times of directories that no record has.
struct States {
    before: Tree,
    after: Tree,
}

impl States {
    /// Records `change` in the scene.
    fn of(scene: &Scene, change: impl FnOnce()) -> States {
        let before = scan(&scene.root());
        scene.record(change);
        States { before, after: scan(&scene.root()) }
    }

    /// Sees that the tree is at one of the states.
    #[track_caller]
    fn expect(&self, scene: &Scene, is_before: bool) {
        let wanted = if is_before { &self.before } else { &self.after };
        let recorded = |path: &[u8]| self.before.contains_key(path) && self.after.contains_key(path);
        let now = scan(&scene.root());
        assert_eq!(told(&now, recorded), told(wanted, recorded));
    }
}

/// Undoes and redoes, and undoes that by its rescue; each twice.
#[track_caller]
fn there_and_back(scene: &Scene, states: &States) {
    for is_before in [true, false, true] {
        let flags: &[&str] = if is_before { &["--before"] } else { &[] };
        let run = verb("restore", &scene.snap(), flags).expect(0);
        states.expect(scene, is_before);
        let again = scan(&scene.root());
        let second = verb("restore", &scene.snap(), flags).expect(0);
        assert!(second.stdout.starts_with("nothing to do"), "{run:#?}{second:#?}");
        assert!(!second.stdout.contains("rescue"), "{second:#?}");
        for (path, entry) in scan(&scene.root()) {
            assert_eq!(entry.present, again[&path].present);
        }
    }
    let rescue = scene.dir().join("snap-rescue-3");
    verb("restore", &rescue, &["--before"]).expect(0);
    states.expect(scene, false);
    verb("restore", &scene.dir().join("snap-rescue-4"), &["--before"]).expect(0);
    states.expect(scene, true);
}

#[test]
fn content_modes_and_times_come_back() {
    let scene = Scene::new();
    scene.write("edited", "old");
    scene.write("deleted", "gone");
    scene.write("dir/inner", "inner");
    scene.write("mode", "x");
    let states = States::of(&scene, || {
        scene.write("edited", "new and longer");
        fs::remove_file(scene.at("deleted")).unwrap();
        fs::remove_dir_all(scene.at("dir")).unwrap();
        scene.write("made/deep/er", "new");
        fs::set_permissions(scene.at("mode"), fs::Permissions::from_mode(0o4755)).unwrap();
        symlink("edited", scene.at("link")).unwrap();
    });
    there_and_back(&scene, &states);
}
