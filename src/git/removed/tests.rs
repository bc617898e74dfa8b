//! Repositories that Git repacked, pruned and removed, with the packs held open.

use std::collections::BTreeSet;
use std::io::{Read as _, Seek as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::*;
use crate::git::tests::{Fixture, facts};

const FORMATS: [&str; 2] = ["sha1", "sha256"];

/// Makes `repo` with a pack, in which a branch `side` has objects of its own, some as deltas.
fn make(fixture: &Fixture, format: &str) {
    fixture.sh(&format!(
        "rm -rf repo; git init -q --object-format={format} repo; cd repo; mkdir d
         seq 3000 >big; echo a >d/a; git add .; git commit -qm 1; git tag -am annotated t
         git checkout -q -b side; seq 2 3003 >big; echo side >d/side; : >empty; git add .; git commit -qm 2
         git tag -am dropped dropped; git checkout -q main; seq 3001 >big; git commit -qam 3; git gc -q"
    ));
}

fn objects(fixture: &Fixture) -> ObjectsDirectory {
    ObjectsDirectory::open(fixture.path("repo/.git/objects").as_os_str().as_bytes())
}

/// The files of packs with this extension, open.
fn open_packs(fixture: &Fixture, extension: &str) -> Vec<File> {
    let entries = std::fs::read_dir(fixture.path("repo/.git/objects/pack")).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|found| found == extension));
    paths.iter().map(|path| File::open(path).unwrap()).collect()
}

fn open_pack(fixture: &Fixture) -> (File, File) {
    let ([pack], [index]) = [open_packs(fixture, "pack"), open_packs(fixture, "idx")]
        .map(|all| {
            let all: [File; 1] = all.try_into().unwrap();
            all
        })
        .into();
    (pack, index)
}

/// What git says, in lines.
fn lines(fixture: &Fixture, args: &[&str]) -> BTreeSet<String> {
    let out = fixture.git(&fixture.path("repo"), args, b"");
    String::from_utf8(out).unwrap().lines().map(ToOwned::to_owned).collect()
}

fn all_objects(fixture: &Fixture) -> BTreeSet<String> {
    lines(fixture, &["cat-file", "--batch-all-objects", "--batch-check=%(objectname)"])
}

fn names(ids: impl IntoIterator<Item = ObjectId>) -> BTreeSet<String> {
    ids.into_iter().map(|id| id.to_string()).collect()
}

fn drop_side(fixture: &Fixture) {
    fixture.sh("cd repo; git branch -D side; git tag -d dropped
                git reflog expire --expire=now --all; git gc -q --prune=now");
}

/// Writes the object as a loose one into the repository.
fn restore(fixture: &Fixture, pack: &RemovedPack, id: &ObjectId) {
    let path = path_of(&loose_path(fixture.path("repo/.git/objects").as_os_str().as_bytes(), id));
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let (kind, size) = pack.write_loose(id, File::create(&path).unwrap()).unwrap();
    let said = |what: &str| lines(fixture, &["cat-file", what, &id.to_string()]);
    assert_eq!(said("-t"), BTreeSet::from([kind.to_string()]));
    assert_eq!(said("-s"), BTreeSet::from([size.to_string()]));
}

#[test]
fn loose_objects_and_packs_are_told_from_their_paths() {
    for digits in [38, 62] {
        let path = format!("/r/.git/objects/ab/{}", "0".repeat(digits));
        let (directory, id) = loose_object(path.as_bytes()).unwrap();
        assert_eq!(directory, b"/r/.git/objects");
        assert_eq!(id.to_string(), format!("ab{}", "0".repeat(digits)));
        assert_eq!(loose_path(directory, &id), path.as_bytes());
    }
    for other in [
        format!("/r/.git/objects/ab/{}", "0".repeat(39)),
        format!("/r/.git/objects/AB/{}", "0".repeat(38)),
        format!("/r/.git/objects/ab/{}/", "0".repeat(37)),
        format!("/r/.git/objects/abc/{}", "0".repeat(37)),
        format!("/r/.git/objects/tmp_objdir-incoming-x/ab/{}", "0".repeat(38)),
        format!("/r/.git/refs/heads/objects/ab/{}", "0".repeat(38)),
        "/r/.git/objects/ab".to_owned(),
        "/r/.git/objects".to_owned(),
    ] {
        assert_eq!(loose_object(other.as_bytes()), None, "{other}");
    }
    for extension in ["pack", "idx", "rev", "bitmap", "mtimes"] {
        let path = format!("/r/.git/objects/pack/pack-12.{extension}");
        let found = pack_file(path.as_bytes());
        assert_eq!(found, Some((b"/r/.git/objects".as_slice(), b"pack-12".as_slice())));
    }
    for other in [
        "pack/pack-12",
        "pack/tmp_pack_x",
        "pack/multi-pack-index-12.bitmap",
        "pack/pack-1.d/x",
        "ab/pack-1.pack",
    ] {
        assert_eq!(pack_file(format!("/r/.git/objects/{other}").as_bytes()), None, "{other}");
    }
}

facts! {
    fn an_objects_directory_has_what_git_has_at_the_time_of_the_question(fixture) {
        for format in FORMATS {
            make(fixture, format);
            let mut objects = objects(fixture);
            let id = |name: &str| {
                let said = fixture.git(&fixture.path("repo"), &["rev-parse", name], b"");
                ObjectId::from_hex(said.trim()).unwrap()
            };
            let (kept, dropped) = (id("main:big"), id("side:big"));
            assert!(objects.has(&kept) && objects.has_packed(&kept));
            assert!(objects.has(&dropped) && objects.has_packed(&dropped));
            fixture.sh("cd repo; echo loose >new; git add new");
            let loose = id(":new");
            assert!(objects.has(&loose) && !objects.has_packed(&loose));
            fixture.sh("cd repo; git commit -qm new; git repack -q -d; git prune-packed");
            assert!(objects.has_packed(&loose));
            drop_side(fixture);
            assert!(objects.has_packed(&kept) && objects.has_packed(&loose) && !objects.has(&dropped));
            // A pack counts with its index only, and an index with its pack.
            fixture.sh("cd repo/.git/objects/pack; for pack in *.pack; do mv $pack $pack.away; done");
            assert!(!objects.has(&kept));
            fixture.sh("cd repo/.git/objects/pack; for pack in *.pack; do mv $pack.away $pack; done");
        }
    }

    fn objects_that_only_a_removed_pack_has_are_written_as_loose_ones(fixture) {
        for format in FORMATS {
            make(fixture, format);
            let before = all_objects(fixture);
            let (pack, index) = open_pack(fixture);
            drop_side(fixture);
            let after = all_objects(fixture);
            let pack = RemovedPack::open(pack, index).unwrap();
            assert_eq!(names(pack.ids()), before);
            assert!(pack.size_of(&pack.ids().collect::<Vec<_>>()) + 64 >= pack.length());
            let missing = pack.missing(&mut objects(fixture));
            assert_eq!(names(missing.clone()), &before - &after);
            assert!(missing.len() >= 6, "{missing:?}");
            for id in &missing {
                restore(fixture, &pack, id);
            }
            assert_eq!(all_objects(fixture), before);
            assert!(pack.missing(&mut objects(fixture)).is_empty());
            fixture.sh("cd repo; git fsck --full --strict");
        }
    }

    fn a_removed_repository_comes_back_from_its_pack(fixture) {
        for format in FORMATS {
            make(fixture, format);
            let before = all_objects(fixture);
            let (pack, index) = open_pack(fixture);
            // Some objects are deltas.
            let deltas = lines(fixture, &["cat-file", "--batch-all-objects", "--batch-check=%(deltabase)"]);
            assert!(deltas.len() > 1);
            fixture.sh("rm -rf repo/.git/objects/*");
            let pack = RemovedPack::open(pack, index).unwrap();
            let missing = pack.missing(&mut objects(fixture));
            assert_eq!(names(missing.clone()), before);
            for id in &missing {
                restore(fixture, &pack, id);
            }
            fixture.sh("cd repo; git fsck --full --strict; test $(git rev-list --all | wc -l) = 3");
        }
    }

    fn a_pack_and_the_index_of_another_do_not_open(fixture) {
        make(fixture, "sha1");
        let (pack, index) = open_pack(fixture);
        fixture.sh("cd repo; echo x >x; git add x; git commit -qm x; git repack -q -a -d");
        let (other_pack, other_index) = open_pack(fixture);
        let clone = |file: &File| file.try_clone().unwrap();
        assert!(RemovedPack::open(clone(&pack), clone(&other_index)).is_err());
        assert!(RemovedPack::open(clone(&other_pack), clone(&index)).is_err());
        assert!(RemovedPack::open(clone(&index), clone(&pack)).is_err());
        let unrelated = tempfile::tempfile().unwrap();
        assert!(RemovedPack::open(clone(&pack), clone(&unrelated)).is_err());
        assert!(RemovedPack::open(unrelated, clone(&index)).is_err());
        // The offsets are those of whoever else has the descriptors.
        assert_eq!((&pack).stream_position().unwrap() + (&index).stream_position().unwrap(), 0);
        assert!(RemovedPack::open(pack, index).is_ok());
    }

    fn damaged_packs_give_errors_and_no_other_bytes(fixture) {
        use proptest::prelude::*;
        for format in FORMATS {
            make(fixture, format);
            let read = |mut file: File| {
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes).unwrap();
                bytes
            };
            let (pack, index) = open_pack(fixture);
            let (pack, index) = (read(pack), read(index));
            let open = |pack: &[u8], index: &[u8]| {
                let file = |bytes: &[u8]| {
                    let mut file = tempfile::tempfile().unwrap();
                    file.write_all(bytes).unwrap();
                    file
                };
                RemovedPack::open(file(pack), file(index))
            };
            let hash = open(&pack, &index).unwrap().ids().next().unwrap().kind();
            let end = |bytes: &[u8]| bytes.len() - hash.len_in_bytes();
            let config = proptest::test_runner::Config { failure_persistence: None, ..Default::default() };
            let edit = || proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3);
            proptest::test_runner::TestRunner::new(config).run(&(edit(), edit()), |(in_pack, in_index)| {
                let (mut pack, mut index) = (pack.clone(), index.clone());
                for (at, byte) in in_pack {
                    let end = end(&pack);
                    pack[at.index(end)] = byte;
                }
                for (at, byte) in in_index {
                    let end = end(&index);
                    index[at.index(end)] = byte;
                }
                let Ok(pack) = open(&pack, &index) else { return Ok(()) };
                let ids: Vec<_> = pack.ids().collect();
                pack.size_of(&[ids.as_slice(), &ids].concat());
                for id in pack.ids() {
                    let mut loose = Vec::new();
                    if let Ok((kind, size)) = pack.write_loose(&id, &mut loose) {
                        let mut object = Vec::new();
                        let header = gix::objs::encode::loose_header(kind, size);
                        inflate(&loose, header.len() as u64 + size, &mut object).unwrap();
                        let mut hasher = gix::hash::hasher(hash);
                        hasher.update(&object);
                        assert_eq!(hasher.try_finalize().unwrap(), id);
                        assert!(object.starts_with(&header));
                    }
                }
                Ok(())
            }).unwrap();
        }
    }

    fn what_is_no_pack_is_not_waited_for(fixture) {
        make(fixture, "sha1");
        fixture.sh("cd repo/.git/objects/pack; rm -f *; mkfifo pack-1.idx pack-1.pack pack-2.pack; mkdir pack-2.idx
                    : >pack-3.idx; : >pack-3.pack; ln -s / pack-4.idx; truncate -s 1T pack-5.idx pack-5.pack");
        let id = ObjectId::empty_tree(Kind::Sha1);
        assert!(!objects(fixture).has(&id));
        let loose = path_of(&loose_path(fixture.path("repo/.git/objects").as_os_str().as_bytes(), &id));
        std::fs::create_dir_all(loose.parent().unwrap()).unwrap();
        File::create(&loose).unwrap();
        assert!(!objects(fixture).has(&id));
        assert!(!ObjectsDirectory::open(Path::new("/nowhere").as_os_str().as_bytes()).has(&id));
    }
}
