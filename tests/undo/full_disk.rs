//! A full disk: nothing is half-written, the message says what was done, and a second run completes it.

use std::fs;

use crate::support::*;

#[test]
fn full_disk_leaves_nothing_half_written() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let store = place.at("in-place");
    fs::write(&store, "old ".repeat(300_000)).unwrap();
    for number in 0..6 {
        place.write(&format!("gone-{number}"), vec![number; 300_000]);
        place.write(&format!("edited-{number}"), format!("old {number}"));
    }
    let states = States::of(&place, || {
        fs::write(&store, "new").unwrap();
        for number in 0..6 {
            fs::remove_file(place.at(format!("gone-{number}"))).unwrap();
            place.write(&format!("edited-{number}"), format!("new {number}"));
            place.write(&format!("made-{number}"), "new");
        }
    });
    let script = r#"
        set -e
        cp -a "$1/work" "$1/after"
        mount -t tmpfs -o size=6m none "$1/work"
        cp -a "$1/after/." "$1/work/"
        head -c 5000000 /dev/zero > "$1/work/filler"
        "$2" restore "$1/out" --before > "$1/first" 2>&1 || echo $? >> "$1/first"
        cp -a "$1/work" "$1/between"
        rm "$1/work/filler"
        "$2" restore "$1/out" --before > "$1/second" 2>&1
        cp -a "$1/work" "$1/result"
    "#;
    let run = place.run_unshared(script);
    let run = run.expect(0);
    let read = |name: &str| fs::read_to_string(place.base().join(name)).unwrap();
    let first = read("first");
    assert!(first.contains("No space left on device"), "{first}{run:#?}");
    assert!(first.contains("changes were made") && first.ends_with("125\n"), "{first}");

    let of = |name: &str| {
        let dir = place.base().join(name);
        let prefix = dir.as_os_str().len();
        let entries = scan(&dir).into_iter();
        entries.map(|(path, entry)| (path[prefix..].to_vec(), entry.content)).collect::<Vec<_>>()
    };
    let prefix = place.work.as_os_str().len();
    let content = |tree: &Tree, path: &[u8]| {
        let whole = [place.work.clone().into_os_string().into_encoded_bytes(), path.to_vec()].concat();
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
fn full_disk_for_the_rescue_changes_nothing() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.write("file", "old");
    place.make_bundle(|| {
        let mut noise = vec![0; 2_000_000];
        fs::File::open("/dev/urandom")
            .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut noise))
            .unwrap();
        place.write("file", noise);
    });
    let script = r#"
        set -e
        mkdir "$1/small"
        mount -t tmpfs -o size=3m none "$1/small"
        cp -a "$1/out" "$1/small/snap"
        code=0
        "$2" restore "$1/small/snap" --before || code=$?
        ls -A "$1/small" > "$1/left"
        exit $code
    "#;
    let run = place.run_unshared(script);
    let run = run.expect(125);
    assert!(run.stderr.contains("No space left on device"), "{run:#?}");
    assert!(run.stderr.ends_with("; nothing was changed\n"), "{run:#?}");
    assert_eq!(fs::metadata(place.at("file")).unwrap().len(), 2_000_000);
    assert_eq!(fs::read_to_string(place.base().join("left")).unwrap(), "snap\n");
}
