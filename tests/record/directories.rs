//! Directories: their entries, and paths through removed ones.

use std::fs;

use agent_snapshot::snapshot::WarningKind;

use crate::support::{Place, lost};

#[test]
fn parent_of_a_removed_directory_keeps_its_name() {
    let place = Place::new();
    fs::create_dir(place.at("d")).unwrap();
    let snapshot = place.record("cd d && rmdir ../d && echo 1 > ../one && echo 2 > /proc/self/cwd/../two");
    for name in ["one", "two"] {
        assert!(place.file(&snapshot, name).after.present().is_some());
    }
    assert_eq!(lost(&snapshot), []);
}

#[test]
fn directory_listed_after_a_change_has_its_former_entries() {
    let place = Place::new();
    fs::create_dir(place.at("d")).unwrap();
    for name in ["kept", "moved", "removed", "again"] {
        fs::write(place.at("d").join(name), "").unwrap();
    }
    let snapshot = place.record("cd d; touch new; rm removed again; mv moved ../elsewhere; touch again; ls");
    let entries = ["again", "kept", "moved", "removed"].map(|name| name.as_bytes().to_vec());
    let digest = agent_snapshot::snapshot::live::digest_of_entries(&entries);
    let before = place.file(&snapshot, "d").before.clone();
    assert_eq!(before.present().unwrap().entries_digest, Some(digest));
}

#[test]
fn dotdot_below_a_removed_directory_resolves_to_nothing() {
    for end in ["", "; : > d"] {
        for seen in ["", "test -e d/../f; "] {
            let place = Place::new();
            place.write("f", "f");
            let script = format!("mkdir d; : > d/x; {seen}rm d/x; rmdir d{end}; cat d/../f");
            assert!(!place.record_with(&[], &script).status.success());
            let snapshot = place.snapshot();
            let recorded = place.recorded(&snapshot);
            let expected = if seen.is_empty() { &[][..] } else { &["f existence"] };
            assert_eq!(recorded.iter().filter(|name| name.starts_with("f ")).collect::<Vec<_>>(), expected);
            assert!(recorded.iter().any(|name| name.starts_with("d ")), "{recorded:?}");
        }
    }
}

#[test]
fn directory_too_deep_to_name_is_reported() {
    let place = Place::new();
    let script =
        "n=$(printf '%0200d' 0); i=0; while [ $i -lt 25 ]; do mkdir $n && cd -P $n && i=$((i + 1)); done
        echo x > f; cat f";
    let (output, snapshot) = place.record_any(script);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "x\n");
    assert_eq!(lost(&snapshot), [WarningKind::UnreadableTracee]);
}
