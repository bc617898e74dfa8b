//! A disk that is full: nothing is half-written, what was done is said, and a second run completes it.

use std::fs;

use super::support::*;

#[test]
fn a_full_disk_leaves_nothing_half_written() {
    if !needs_root("to mount a small file system") {
        return;
    }
    let scene = Scene::new();
    let store = scene.dir().join("tree/in-place");
    fs::write(&store, "old ".repeat(300_000)).unwrap();
    for number in 0..6 {
        scene.write(&format!("gone-{number}"), vec![number; 300_000]);
        scene.write(&format!("edited-{number}"), format!("old {number}"));
    }
    let states = States::of(&scene, || {
        fs::write(&store, "new").unwrap();
        for number in 0..6 {
            fs::remove_file(scene.at(&format!("gone-{number}"))).unwrap();
            scene.write(&format!("edited-{number}"), format!("new {number}"));
            scene.write(&format!("made-{number}"), "new");
        }
    });
    let script = r#"
        set -e
        cp -a "$1/tree" "$1/after"
        mount -t tmpfs -o size=6m none "$1/tree" || exit 77
        cp -a "$1/after/." "$1/tree/"
        head -c 5000000 /dev/zero > "$1/tree/filler"
        "$2" restore "$1/snap" --before > "$1/first" 2>&1 || echo $? >> "$1/first"
        cp -a "$1/tree" "$1/between"
        rm "$1/tree/filler"
        "$2" restore "$1/snap" --before > "$1/second" 2>&1
        cp -a "$1/tree" "$1/result"
    "#;
    let Some(run) = run_unshared(&scene, script) else { return };
    let run = run.expect(0);
    let read = |name: &str| fs::read_to_string(scene.dir().join(name)).unwrap();
    let first = read("first");
    assert!(first.contains("No space left on device"), "{first}{run:#?}");
    assert!(first.contains("changes were made") && first.ends_with("125\n"), "{first}");

    let of = |name: &str| {
        let dir = scene.dir().join(name);
        let prefix = dir.as_os_str().len();
        let entries = scan(&dir).into_iter();
        entries.map(|(path, entry)| (path[prefix..].to_vec(), entry.content)).collect::<Vec<_>>()
    };
    let prefix = scene.root().as_os_str().len();
    let content = |tree: &Tree, path: &[u8]| {
        let whole = [scene.root().into_os_string().into_encoded_bytes(), path.to_vec()].concat();
        tree.get(&whole).map(|entry| entry.content.clone())
    };
    for (path, now) in of("between") {
        if path != b"/filler" {
            let known = [content(&states.before, &path), content(&states.after, &path)];
            assert!(known.contains(&Some(now)), "{}", String::from_utf8_lossy(&path));
        }
    }
    let result = of("result");
    let wanted: Vec<_> =
        states.before.iter().map(|(path, entry)| (path[prefix..].to_vec(), entry.content.clone())).collect();
    assert!(result == wanted, "{}", read("second"));
    assert!(read("second").contains("had been interrupted was completed"), "{}", read("second"));
}

#[test]
fn no_room_for_the_rescue_changes_nothing() {
    if !needs_root("to mount a small file system") {
        return;
    }
    let scene = Scene::new();
    scene.write("file", "old");
    scene.record(|| {
        let mut noise = vec![0; 2_000_000];
        fs::File::open("/dev/urandom")
            .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut noise))
            .unwrap();
        scene.write("file", noise);
    });
    let script = r#"
        set -e
        mkdir "$1/small"
        mount -t tmpfs -o size=3m none "$1/small" || exit 77
        cp -a "$1/snap" "$1/small/snap"
        code=0
        "$2" restore "$1/small/snap" --before || code=$?
        ls -A "$1/small" > "$1/left"
        exit $code
    "#;
    let Some(run) = run_unshared(&scene, script) else { return };
    let run = run.expect(125);
    assert!(run.stderr.contains("No space left on device"), "{run:#?}");
    assert!(run.stderr.ends_with("; nothing was changed\n"), "{run:#?}");
    assert_eq!(fs::metadata(scene.at("file")).unwrap().len(), 2_000_000);
    assert_eq!(fs::read_to_string(scene.dir().join("left")).unwrap(), "snap\n");
}
