//! Merges of lines, and of files that Git wrote.

use super::*;
use crate::git::tests::facts;

const TRAITS: &str = "# pack-refs with: peeled fully-peeled sorted \n";

/// A file with the references `a` to `z` of a text such as `a1 b2`, each at the object of its digit; `a1^` is a
/// tag.
fn file(references: &str) -> Vec<u8> {
    let lines = references.split_whitespace().map(|reference| {
        let (name, digit) = (&reference[..1], &reference[1..2]);
        let peeled = if reference.ends_with('^') { format!("^{}\n", "f".repeat(40)) } else { String::new() };
        format!("{} refs/heads/{name}\n{peeled}", digit.repeat(40))
    });
    let lines: String = lines.collect();
    format!("{TRAITS}{lines}").into_bytes()
}

fn merged(live: &str, from: &str, to: &str) -> Result<Vec<u8>, Vec<Vec<u8>>> {
    merge_packed_refs(&file(live), &file(from), &file(to), false)
}

#[test]
fn references_that_differ_are_set_and_others_stay() {
    for (live, from, to, expected) in [
        // Changed, added, removed.
        ("a1 b1 x9", "a1 b1", "a2 b1", "a2 b1 x9"),
        ("b1 x9", "b1", "a1 b1 c1", "a1 b1 c1 x9"),
        ("a1 b1 x9", "a1 b1", "b1", "b1 x9"),
        // What differs in the live file alone stays so.
        ("a1 b3", "a1 b1", "a2 b1", "a2 b3"),
        ("a1", "a1 b1", "a2 b1", "a2"),
        // What is done already.
        ("a2 b1 x9", "a1 b1", "a2 b2", "a2 b2 x9"),
        ("x9", "a1", "", "x9"),
        // Tags take their peeled objects along.
        ("a1^ b1 x9^", "a1^ b1", "a2^ b2^", "a2^ b2^ x9^"),
        ("a1^ b1^ x9", "a1^ b1^", "b1^", "b1^ x9"),
        ("a1", "a1", "", ""),
    ] {
        let what = format!("{live} | {from} | {to}");
        assert_eq!(merged(live, from, to).unwrap(), file(expected), "{what}");
    }
}

#[test]
fn references_that_moved_since_are_named() {
    for (live, from, to, moved) in [
        ("a3", "a1", "a2", vec!["a"]),
        ("x9", "a1", "a2", vec!["a"]),
        ("a3 x9", "a1", "", vec!["a"]),
        ("a3", "", "a1", vec!["a"]),
        ("a3 b1 c3", "a1 b1 c1", "a2 b2 c2", vec!["a", "c"]),
        ("a3 b3", "b1", "a2 b2", vec!["a", "b"]),
    ] {
        let moved: Vec<_> = moved.iter().map(|name| format!("refs/heads/{name}").into_bytes()).collect();
        assert_eq!(merged(live, from, to).unwrap_err(), moved, "{live} | {from} | {to}");
    }
}

#[test]
fn references_that_moved_since_are_forced_with_their_peeled_objects_and_others_stay() {
    for (live, from, to, expected) in [
        ("a3 b1 x9^", "a1 b1", "a2^ b1", "a2^ b1 x9^"),
        ("a3^ c3", "a1", "", "c3"),
        ("a3^ x9", "", "a1", "a1 x9"),
        ("x9", "a1^", "a2", "a2 x9"),
    ] {
        let forced = merge_packed_refs(&file(live), &file(from), &file(to), true).unwrap();
        assert_eq!(forced, file(expected), "{live} | {from} | {to}");
    }
}

#[test]
fn reference_is_found_by_its_whole_name() {
    let bytes = format!("{}{} refs/heads/x/a\n", String::from_utf8(file("a1^ b2")).unwrap(), "3".repeat(40));
    let references = packed_references(bytes.as_bytes());
    assert_eq!(references[b"refs/heads/a".as_slice()].to_string(), "1".repeat(40));
    assert_eq!(references.get(b"heads/a".as_slice()), None);
    assert_eq!(references.get(b"refs/heads/c".as_slice()), None);
    assert!(packed_references(b"nonsense").is_empty());
}

#[test]
fn an_absent_file_is_an_empty_one() {
    let merge = |live: &[u8], from: &[u8], to: &[u8]| merge_packed_refs(live, from, to, false).unwrap();
    assert_eq!(merge(b"", b"", &file("a1")), file("a1"));
    assert_eq!(merge(&file("a1"), &file("a1"), b""), b"");
    assert_eq!(merge(&file("a1"), &file("a1 b1"), b""), b"");
    assert_eq!(merge(b"", &file("b1"), &file("a1 b1")), file("a1"));
    assert_eq!(merge(b"", &file("a1 b1"), &file("a1")), b"");
    assert_eq!(merge(&file("a1 x9"), &file("a1"), b""), file("x9"));
}

#[test]
fn bytes_are_kept_where_nothing_else_changed() {
    let odd = b"# pack-refs with: peeled \n# anything\n";
    assert_eq!(merge_packed_refs(odd, odd, &file("a1"), false), Ok(file("a1")));
    assert_eq!(merge_packed_refs(odd, &file("a1"), odd, false), Ok(odd.to_vec()));
}

#[test]
fn a_header_promises_no_more_than_is_known() {
    let plain = String::from_utf8(file("a1 b1^")).unwrap().replace(TRAITS, "");
    let merged = merge_packed_refs(&file("a1 x9"), &file("a1"), plain.as_bytes(), false).unwrap();
    let expected = String::from_utf8(file("a1 b1^ x9")).unwrap();
    assert_eq!(merged, expected.replace("peeled fully-peeled ", "").into_bytes());
    let removed = merge_packed_refs(&file("a1 x9"), plain.as_bytes(), &file("a1"), false).unwrap();
    assert_eq!(removed, file("a1 x9"));
}

#[test]
fn what_can_not_be_parsed_is_a_conflict() {
    let oid = "1".repeat(40);
    for bad in [
        format!("{TRAITS}nonsense\n"),
        format!("{oid} refs/heads/a"),
        format!("{oid}\n"),
        format!("{oid} refs/heads/b\n{oid} refs/heads/b\n"),
        format!("^{oid}\n"),
        format!("{oid} refs/heads/b\n^{oid}\n^{oid}\n"),
        format!("{oid} refs/heads/b\n^nonsense\n"),
        format!("{oid}1 refs/heads/b\n"),
        "\n".to_owned(),
        "\0".to_owned(),
    ] {
        let (bad, a, b) = (bad.as_bytes(), &file("a1"), &file("a2"));
        for (live, from, to) in [(bad, a.as_slice(), b.as_slice()), (a, bad, b), (a, b, bad)] {
            let conflicts = merge_packed_refs(live, from, to, false).unwrap_err();
            assert_eq!(conflicts, [b"packed-refs"], "{}", bad.as_bstr());
        }
    }
}

facts! {
    fn git_reads_a_merged_file(fixture) {
        for format in ["sha1", "sha256"] {
            fixture.sh(&format!(
                "rm -rf repo; git init -q --object-format={format} repo; cd repo
                 git commit -q --allow-empty -m 1; git tag -am t t1; git branch b1
                 git pack-refs --all; cp .git/packed-refs ../from
                 git commit -q --allow-empty -m 2; git branch -f b1; git branch b2; git tag -d t1
                 git pack-refs --all; cp .git/packed-refs ../to
                 cp ../from .git/packed-refs; git tag -am t t2; git branch b3; git pack-refs --all"
            ));
            let read = |name: &str| std::fs::read(fixture.path(name)).unwrap();
            let live = fixture.path("repo/.git/packed-refs");
            let merged = merge_packed_refs(&std::fs::read(&live).unwrap(), &read("from"), &read("to"), false).unwrap();
            std::fs::write(&live, &merged).unwrap();
            fixture.sh("cd repo; git fsck --strict; git rev-parse -q --verify t2^{commit} >../t2
                        test $(git rev-parse b1) = $(git rev-parse main)
                        test $(git rev-parse b2) = $(git rev-parse main)
                        test $(git rev-parse b3) = $(cat ../t2); test $(git rev-parse b3) != $(git rev-parse b2)
                        if git rev-parse -q --verify t1; then exit 1; fi");
            // Git would have packed them so.
            fixture.sh("cd repo; git tag x; git pack-refs --all; git tag -d x");
            assert_eq!(std::fs::read(&live).unwrap().as_bstr(), merged.as_bstr());
        }
    }
}
