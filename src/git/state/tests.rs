//! Paths as Git names them, and bytes that Git wrote.

use gix::bstr::ByteSlice as _;

use super::*;
use crate::git::tests::facts;

fn of(path: &str) -> (GitFile, &str) {
    let directory = git_dir_of(path.as_bytes()).unwrap_or_default();
    (GitFile::of(path.as_bytes()), std::str::from_utf8(directory).unwrap())
}

#[test]
fn a_repository_is_known_by_the_paths_in_it() {
    for (path, expected) in [
        ("/r/.git", "/r/.git"),
        ("/r/.git/HEAD", "/r/.git"),
        ("/r/.git/worktrees/w/HEAD", "/r/.git"),
        ("/r/.git/modules/a/b/refs/heads/main", "/r/.git"),
        ("/srv/x.git/HEAD", "/srv/x.git"),
        ("/srv/x.git/refs/heads/a", "/srv/x.git"),
        ("/srv/bare/HEAD", "/srv/bare"),
        ("/srv/bare/refs/heads/a/b", "/srv/bare"),
        ("/srv/bare/worktrees/w/logs/HEAD", "/srv/bare"),
    ] {
        let found = repository_of(path.as_bytes());
        assert_eq!(std::str::from_utf8(found).unwrap(), expected, "{path}");
    }
}

#[test]
fn a_git_file_is_told_from_its_path() {
    let expected = [
        ("/w/.git", GitFile::DotGit, "/w/.git"),
        ("/w/.git/HEAD", GitFile::Head, "/w/.git"),
        ("/w/.git/HEAD.lock", GitFile::Lock, "/w/.git"),
        ("/w/.git/ORIG_HEAD", GitFile::PseudoRef, "/w/.git"),
        ("/w/.git/FETCH_HEAD", GitFile::Other, "/w/.git"),
        ("/w/.git/refs/heads/main", GitFile::Ref, "/w/.git"),
        ("/w/.git/refs/heads/hooks/objects/index", GitFile::Ref, "/w/.git"),
        ("/w/.git/refs/heads/main.lock", GitFile::Lock, "/w/.git"),
        ("/w/.git/refs/stash", GitFile::Ref, "/w/.git"),
        ("/w/.git/logs/HEAD", GitFile::Reflog, "/w/.git"),
        ("/w/.git/logs/refs/heads/a/b", GitFile::Reflog, "/w/.git"),
        ("/w/.git/packed-refs", GitFile::PackedRefs, "/w/.git"),
        ("/w/.git/packed-refs.lock", GitFile::Lock, "/w/.git"),
        ("/w/.git/index", GitFile::Index, "/w/.git"),
        ("/w/.git/sharedindex.0123", GitFile::SharedIndex, "/w/.git"),
        ("/w/.git/config", GitFile::Config, "/w/.git"),
        ("/w/.git/hooks", GitFile::Hook, "/w/.git"),
        ("/w/.git/hooks/index.lock", GitFile::Hook, "/w/.git"),
        ("/w/.git/hooks/lib/a", GitFile::Hook, "/w/.git"),
        ("/w/.git/reftable/tables.list", GitFile::Reftable, "/w/.git"),
        ("/w/.git/objects/pack/pack-1.idx", GitFile::Pack, "/w/.git"),
        ("/w/.git/objects/info/packs", GitFile::Other, "/w/.git"),
        ("/w/.git/MERGE_MSG", GitFile::Other, "/w/.git"),
        ("/w/.git/rebase-merge/done", GitFile::Other, "/w/.git"),
        ("/w/.git/rebase-merge/HEAD", GitFile::Other, "/w/.git"),
        ("/w/.git/worktrees/w2/HEAD", GitFile::Head, "/w/.git/worktrees/w2"),
        ("/w/.git/worktrees/w2/index", GitFile::Index, "/w/.git/worktrees/w2"),
        ("/w/.git/worktrees/w2/commondir", GitFile::Config, "/w/.git/worktrees/w2"),
        ("/w/.git/worktrees/index/locked", GitFile::Other, "/w/.git/worktrees/index"),
        ("/w/.git/modules/index/HEAD", GitFile::Head, "/w/.git/modules/index"),
        ("/w/.git/modules/lib/a/refs/heads/x", GitFile::Ref, "/w/.git/modules/lib/a"),
        ("/w/.git/modules/a/modules/b/hooks/h", GitFile::Hook, "/w/.git/modules/a/modules/b"),
        ("/w/.git/modules/a/worktrees/b/HEAD", GitFile::Head, "/w/.git/modules/a/worktrees/b"),
        // Bare repositories.
        ("/home.git/w/b.git/HEAD", GitFile::Head, "/home.git/w/b.git"),
        ("/b.git/refs/heads/c.git", GitFile::Ref, "/b.git"),
        ("/b.git/worktrees/w2/index", GitFile::Index, "/b.git/worktrees/w2"),
        ("/srv/bare/refs/heads/main", GitFile::Ref, "/srv/bare"),
        ("/srv/bare/logs/refs/heads/main", GitFile::Reflog, "/srv/bare"),
        ("/logs/bare/logs/HEAD", GitFile::Reflog, "/logs/bare"),
        ("/hooks/bare/packed-refs", GitFile::PackedRefs, "/hooks/bare"),
        ("/srv/bare/hooks/update", GitFile::Hook, "/srv/bare"),
        ("/srv/bare/hooks/lib/a", GitFile::Hook, "/srv/bare"),
        ("/srv/bare/config", GitFile::Config, "/srv/bare"),
        ("/srv/bare/worktrees/w2/HEAD", GitFile::Head, "/srv/bare/worktrees/w2"),
        ("/nothing/of/git", GitFile::Other, ""),
        ("/", GitFile::Other, ""),
        ("", GitFile::Other, ""),
    ];
    for (path, file, directory) in expected {
        assert_eq!(of(path), (file, directory), "{path}");
    }
    for digits in [38, 62] {
        let path = format!("/w/.git/objects/ab/{}", "0".repeat(digits));
        assert_eq!(of(&path), (GitFile::LooseObject, "/w/.git"));
        let path = format!("/srv/bare/objects/ab/{}", "f".repeat(digits));
        assert_eq!(of(&path), (GitFile::LooseObject, "/srv/bare"));
    }
}

#[test]
fn a_path_of_many_git_directories_is_told_at_once() {
    for name in ["/modules", "/worktrees", "/.git", "/modules/a", "/x.git", "/refs/heads", "/hooks"] {
        let path = name.repeat(4096 / name.len());
        for path in [path.clone(), format!("/w/.git{path}")] {
            GitFile::of(path.as_bytes());
        }
    }
}

#[test]
fn a_loose_reference_has_the_name_below_its_directory() {
    let expected = [
        ("/w/.git/HEAD", Some("HEAD")),
        ("/w/.git/refs/heads/a/b", Some("refs/heads/a/b")),
        ("/w/.git/worktrees/w2/refs/bisect/bad", Some("refs/bisect/bad")),
        ("/w/.git/logs/HEAD", None),
        ("/w/.git/refs/heads/a.lock", None),
    ];
    for (path, name) in expected {
        assert_eq!(reference_name(path.as_bytes()), name.map(str::as_bytes), "{path}");
    }
}

facts! {
    fn an_index_is_the_same_until_an_entry_changes(fixture) {
        for (format, version, skip_hash) in [
            ("sha1", "2", "false"),
            ("sha1", "4", "true"),
            ("sha256", "3", "false"),
            ("sha256", "4", "true"),
        ] {
            fixture.sh(&format!(
                "rm -rf repo; git init -q --object-format={format} repo; cd repo
                 git config index.version {version}; git config index.skipHash {skip_hash}
                 mkdir -p d/e; echo a >a; echo b >d/b; echo c >d/e/c; git add .; git commit -qm 1"
            ));
            let index = || std::fs::read(fixture.path("repo/.git/index")).unwrap();
            let first = index();
            fixture.sh("cd repo; touch -d 2001-01-01 a d/b; git update-index --refresh");
            let refreshed = index();
            assert_ne!(first, refreshed);
            assert!(same_index(&first, &refreshed), "{format} {version}");
            // Extensions: the cache of trees, and that of untracked files.
            fixture.sh("cd repo; git update-index --force-untracked-cache; git status >/dev/null; git write-tree");
            assert_ne!(index(), refreshed);
            assert!(same_index(&first, &index()), "{format} {version}");
            let mut before = index();
            for change in [
                "echo x >a; git add a",
                "echo x >new; git add new",
                "git rm -q --cached d/b",
                "git update-index --chmod=+x d/e/c",
                "git update-index --assume-unchanged a",
                "git update-index --skip-worktree a",
                "echo x >later; git add --intent-to-add later",
                "printf '0 %s\\td/e/c\\n100644 %s 1\\td/e/c\\n' $(git rev-parse :a :a) | git update-index --index-info",
            ] {
                fixture.sh(&format!("cd repo; {change}"));
                let after = index();
                assert!(!same_index(&before, &after), "{format} {version}: {change}");
                assert!(!same_index(&after, &before), "{format} {version}: {change}");
                assert!(same_index(&after, &after));
                before = after;
            }
            for end in [0, 1, 11, 12, 40, before.len() / 2, before.len() - 1] {
                assert!(!same_index(&before, &before[..end]), "{end}");
                assert!(!same_index(&before[..end], &before), "{end}");
            }
        }
    }

    fn the_parts_of_a_split_index_count(fixture) {
        fixture.sh(
            "git init -q repo; cd repo; git config splitIndex.maxPercentChange 100
             for i in 1 2 3 4 5 6 7 8 9; do echo $i >f$i; done
             touch -d 2001-01-01 f*; git add .; git commit -qm 1
             git update-index --split-index; echo x >f3; git add f3",
        );
        let index = || std::fs::read(fixture.path("repo/.git/index")).unwrap();
        let split = index();
        assert!(split.find(b"link").is_some());
        // f3 is in the split part already: its stat data is all that changes.
        fixture.sh("cd repo; touch -d 2002-02-02 f3; git update-index --refresh");
        assert_ne!(split, index());
        assert!(same_index(&split, &index()));
        let before = index();
        for change in ["git rm -q --cached f5", "echo y >f3; git add f3", "git update-index --split-index"] {
            let before = index();
            fixture.sh(&format!("cd repo; {change}"));
            assert!(!same_index(&before, &index()), "{change}");
        }
        fixture.sh("cd repo; git update-index --no-split-index");
        assert!(!same_index(&before, &index()));
    }

    fn comparing_damaged_indexes_never_panics(fixture) {
        use proptest::prelude::*;
        fixture.sh(
            "git init -q repo; cd repo; git config splitIndex.maxPercentChange 100; git config index.threads 4
             for i in 1 2 3 4 5 6 7 8 9; do echo $i >f$i; done; git add .; git commit -qm 1
             cp .git/index ../whole; git update-index --split-index; git rm -q --cached f2; cp .git/index ../split",
        );
        for name in ["whole", "split"] {
            let index = std::fs::read(fixture.path(name)).unwrap();
            let config = proptest::test_runner::Config { failure_persistence: None, ..Default::default() };
            let edits = proptest::collection::vec((0..index.len(), any::<u8>()), 1..4);
            proptest::test_runner::TestRunner::new(config).run(&(edits, any::<bool>()), |(edits, cut)| {
                let mut damaged = index.clone();
                for (at, byte) in &edits {
                    damaged[*at] = *byte;
                }
                if cut {
                    damaged.truncate(edits[0].0);
                }
                // What is not an entry's may differ; nothing panics.
                same_index(&index, &damaged);
                same_index(&damaged, &damaged.iter().rev().copied().collect::<Vec<_>>());
                Ok(())
            }).unwrap();
        }
    }
}
