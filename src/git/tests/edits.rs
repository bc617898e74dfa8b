//! Change after change, always compared with git.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::{Fixture, Repositories, alone, ask, compare, facts};
use crate::git::HeadBranch;

/// What is done to one file.
#[derive(Debug, Clone, Copy)]
enum Edit {
    Touch,
    TouchBack,
    SameSize,
    OtherSize,
    Empty,
    Restore,
    Replace,
    Executable,
    NotExecutable,
    Link,
    Directory,
    Delete,
    Stage,
    Unstage,
    RemoveFromIndex,
    IntentToAdd,
    Refresh,
    Commit,
    Exclude,
    Lines,
}

const FILES: [&str; 6] = ["a", "b.txt", "d/a", "d/e/f", "d/e/g.txt", "x/new"];

fn content(file: &str) -> String {
    format!("{file} at first\nand more\n")
}

impl Edit {
    /// Does it, and tells which paths changed.
    fn apply(self, fixture: &Fixture, file: &str, tick: u32) {
        let path = fixture.path("r").join(file);
        let write = |content: &str| {
            clear(&path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, content).unwrap();
        };
        let mode = |mode: u32| {
            if path.is_file() && !path.is_symlink() {
                std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            }
        };
        let git = |args: &[&str]| {
            fixture.git(&fixture.path("r"), args, b"");
        };
        match self {
            Edit::Touch => {
                fixture.sh(&format!("cd r; test ! -f {file} || touch {file}"));
            }
            // The times of the entry, as far as a program can set them.
            Edit::TouchBack => {
                let before = path.symlink_metadata();
                if let Ok(before) = before.as_ref().map(std::fs::Metadata::modified)
                    && path.is_file()
                    && !path.is_symlink()
                {
                    let text = std::fs::read(&path).unwrap();
                    std::fs::write(&path, text.iter().rev().copied().collect::<Vec<u8>>()).unwrap();
                    std::fs::File::open(&path).unwrap().set_modified(before.unwrap()).unwrap();
                }
            }
            Edit::SameSize => write(&content(file).replace("first", &format!("{:05}", tick % 3))),
            Edit::OtherSize => write(&format!("{tick}\n")),
            Edit::Empty => write(""),
            Edit::Restore => write(&content(file)),
            Edit::Replace => {
                let temporary = fixture.path("r/temporary");
                std::fs::write(&temporary, content(file)).unwrap();
                clear(&path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::rename(&temporary, &path).unwrap();
            }
            Edit::Executable => mode(0o755),
            Edit::NotExecutable => mode(0o644),
            Edit::Link => {
                clear(&path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                symlink(if tick.is_multiple_of(2) { "target" } else { "other" }, &path).unwrap();
            }
            Edit::Directory => {
                clear(&path);
                std::fs::create_dir_all(&path).unwrap();
                std::fs::write(path.join("inner"), "i").unwrap();
            }
            Edit::Delete => clear(&path),
            Edit::Stage => git(&["add", "-f", "--all", "--", file]),
            Edit::Unstage => git(&["reset", "-q", "--", file]),
            Edit::RemoveFromIndex => git(&["rm", "-q", "-r", "--cached", "-f", "--", file]),
            Edit::IntentToAdd => git(&["add", "-f", "-N", "--", file]),
            Edit::Refresh => fixture.sh("cd r; git status >/dev/null"),
            Edit::Commit => git(&["commit", "-q", "--allow-empty", "-m", "next"]),
            Edit::Exclude => {
                let rules = ["*.txt\n", "/d/\n", "!a\nnew\n", ""][tick as usize % 4];
                std::fs::write(fixture.path("r/.gitignore"), rules).unwrap();
            }
            Edit::Lines => {
                let attributes = ["* text=auto\n", "*.txt text\n", "a -text\n", ""][tick as usize % 4];
                std::fs::write(fixture.path("r/.gitattributes"), attributes).unwrap();
                write(&content(file).replace('\n', "\r\n"));
            }
        }
    }
}

fn clear(path: &Path) {
    let Ok(found) = path.symlink_metadata() else {
        // A file may be where a directory is to be.
        for parent in path.ancestors().skip(1) {
            if parent.symlink_metadata().is_ok_and(|found| !found.is_dir()) {
                std::fs::remove_file(parent).unwrap();
                break;
            }
        }
        return;
    };
    if found.is_dir() { std::fs::remove_dir_all(path).unwrap() } else { std::fs::remove_file(path).unwrap() }
}

fn edit() -> impl Strategy<Value = Edit> {
    use Edit::*;
    proptest::sample::select(vec![
        Touch,
        TouchBack,
        TouchBack,
        SameSize,
        SameSize,
        SameSize,
        OtherSize,
        Empty,
        Restore,
        Restore,
        Replace,
        Executable,
        NotExecutable,
        Link,
        Directory,
        Delete,
        Stage,
        Stage,
        Stage,
        Unstage,
        RemoveFromIndex,
        IntentToAdd,
        Refresh,
        Commit,
        Exclude,
        Lines,
    ])
}

#[test]
fn after_any_edits_the_answers_are_those_of_git() {
    alone(concat!(module_path!(), "::after_any_edits_the_answers_are_those_of_git"), |fixture| {
        let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(12);
        let config = Config { cases, max_shrink_iters: 60, failure_persistence: None, ..Config::default() };
        let edits = proptest::collection::vec((edit(), 0..FILES.len(), 0u32..12), 1..14);
        TestRunner::new(config)
            .run(&edits, |edits| {
                clear(&fixture.path("r"));
                fixture.sh("git init -q r");
                for file in &FILES[..5] {
                    Edit::Restore.apply(fixture, file, 0);
                }
                fixture.sh(
                    "cd r; git add .; git commit -qm 1; ln -s target link; git add link; git commit -qm 2",
                );
                // One set that sees each state, and is told nothing of the changes but those of the
                // pattern files and of what has become a directory or ceased to be one.
                let mut all = Repositories::new();
                compare(fixture, &mut all, "r", "at first");
                for (edit, file, tick) in &edits {
                    edit.apply(fixture, FILES[*file], *tick);
                    for name in [".gitignore", ".gitattributes", FILES[*file]] {
                        all.note_change(fixture.path("r").join(name).as_os_str().as_encoded_bytes());
                    }
                    let what = format!("{edit:?} of {} in {edits:?}", FILES[*file]);
                    let mut fresh = Repositories::new();
                    compare(fixture, &mut fresh, "r", &what);
                    // Once HEAD has moved, the other set still tells against the first one.
                    if !edits.iter().any(|(edit, ..)| matches!(edit, Edit::Commit)) {
                        compare(fixture, &mut all, "r", &format!("{what}, seen before"));
                    }
                }
                Ok(())
            })
            .unwrap();
    });
}

facts! {
    fn path_that_is_only_observed_costs_no_index_and_fixes_the_first_head(fixture) {
        fixture.sh("git init -q r; cd r; echo one > f; git add f; git commit -qm one");
        let path = fixture.path("r/f");
        let first = fixture.git(&fixture.path("r"), &["rev-parse", "HEAD"], b"");
        let mut repositories = Repositories::new();
        repositories.observe(path.as_os_str().as_bytes());
        repositories.current_epoch();
        assert!(repositories.repositories.iter().all(|repository| !repository.asked));
        fixture.sh("cd r; echo two > f; git commit -qam two");
        let observed = repositories.observed();
        let [one] = observed.as_slice() else { panic!("{observed:?}") };
        assert_eq!(one.root, fixture.path("r").as_os_str().as_bytes());
        assert_eq!(one.head.unwrap().to_string().as_bytes(), first.trim_ascii_end());
        assert!(one.head_after.is_some() && one.head_after != one.head);
        let (said, within) = ask(&mut repositories, &path).unwrap();
        assert!(said.tracked && said.dirty && within.head == one.head);
    }

    fn no_racy_edit_is_taken_for_clean(fixture) {
        fixture.sh("git init -q r; cd r; echo aaaa >f; git add .; git commit -qm 1");
        let file = fixture.path("r/f");
        let bytes = file.as_os_str().as_encoded_bytes();
        let mut racy = 0;
        for round in 0..60 {
            let (first, second) = (format!("{round:04}\n"), format!("{:04}\n", round + 1000));
            std::fs::write(&file, &first).unwrap();
            fixture.sh("cd r; git add f; git commit -qm x");
            std::fs::write(&file, &first).unwrap();
            fixture.sh("cd r; git update-index --refresh");
            let before = super::lstat(&file).unwrap();
            // As soon as may be after Git has looked, the same size.
            std::fs::write(&file, &second).unwrap();
            let after = super::lstat(&file).unwrap();
            racy += u32::from((before.st_mtime, before.st_mtime_nsec) == (after.st_mtime, after.st_mtime_nsec));
            let facts = Repositories::new().classify(bytes, Some(&after), true).unwrap();
            assert!(facts.dirty() && facts.oid().is_none(), "round {round}");
        }
        eprintln!("{racy} edits left the times as they were");
    }

    fn a_change_in_the_clock_tick_of_the_index_is_found(fixture) {
        // What a race leaves behind, made by hand: an index that is written a moment after the file,
        // and content that changed in between without a trace in the times that it keeps.
        fixture.sh("git init -q r; cd r; echo aaaa >f; echo bbbb >g; git add .; git commit -qm 1; git update-index --refresh; touch -d '+1 minute' .git/index");
        let index = fixture.path("r/.git/index");
        for (name, blob) in [("f", "bbbb"), ("g", "aaaa")] {
            let file = fixture.path("r").join(name);
            let stat = super::lstat(&file).unwrap();
            let said = ask(&mut Repositories::new(), &file).unwrap().0;
            assert!(!said.dirty && said.oid.is_some());
            // The entry gets the other blob's id while its times go on to match.
            let mut bytes = std::fs::read(&index).unwrap();
            let id = |content: &str| {
                let id = fixture.git(&fixture.path("r"), &["hash-object", "--stdin"], format!("{content}\n").as_bytes());
                gix::ObjectId::from_hex(&id[..40]).unwrap()
            };
            let own = if blob == "aaaa" { "bbbb" } else { "aaaa" };
            let at = bytes.windows(20).position(|window| window == id(own).as_slice()).unwrap();
            bytes[at..at + 20].copy_from_slice(id(blob).as_slice());
            let kept = std::fs::read(&index).unwrap();
            std::fs::write(&index, &bytes).unwrap();
            let set = |nanoseconds: u64| {
                let time = std::time::UNIX_EPOCH
                    + std::time::Duration::new(u64::try_from(stat.st_mtime).unwrap(), 0)
                    + std::time::Duration::from_nanos(stat.st_mtime_nsec + nanoseconds);
                std::fs::File::open(&index).unwrap().set_modified(time).unwrap();
            };
            set(4_000_000);
            assert!(ask(&mut Repositories::new(), &file).unwrap().0.dirty, "{name}: the index is believed");
            std::fs::write(&index, &kept).unwrap();
        }
    }

    fn an_empty_file_with_a_smudged_entry_is_dirty(fixture) {
        // Git writes a size of zero for what may have changed; the file can have been emptied then.
        fixture.sh("git init -q r; cd r; : >e; echo a >a; git add .; git commit -qm 1; git update-index --refresh");
        let index = fixture.path("r/.git/index");
        let bytes = std::fs::read(&index).unwrap();
        let hash = gix::hash::Kind::Sha1;
        let blob = gix::objs::compute_hash(hash, gix::objs::Kind::Blob, b"a\n").unwrap();
        let empty = gix::ObjectId::empty_blob(hash);
        let at = bytes.windows(20).position(|window| window == empty.as_slice()).unwrap();
        std::fs::write(&index, [&bytes[..at], blob.as_slice(), &bytes[at + 20..]].concat()).unwrap();
        fixture.sh("touch -d '+1 minute' r/.git/index");
        let said = ask(&mut Repositories::new(), &fixture.path("r/e")).unwrap().0;
        assert!(said.dirty && said.oid.is_none(), "{said:?}");
    }

    fn dirty_is_relative_to_the_first_head(fixture) {
        fixture.sh("git init -q r; cd r; echo a >a; echo b >b; git add .; git commit -qm 1");
        let mut all = Repositories::new();
        let first = ask(&mut all, &fixture.path("r/a")).unwrap();
        fixture.sh("cd r; echo x >b; echo n >n; git add .; git commit -qm 2; rm a; git commit -qam 3");
        let (edited, within) = ask(&mut all, &fixture.path("r/b")).unwrap();
        assert!(edited.tracked && edited.dirty && edited.oid.is_none(), "{edited:?}");
        assert_eq!(within.head, first.1.head);
        let new = ask(&mut all, &fixture.path("r/n")).unwrap().0;
        assert!(new.tracked && new.dirty);
        let gone = ask(&mut all, &fixture.path("r/a")).unwrap().0;
        assert!(!gone.tracked && gone.dirty, "{gone:?}");
        let listed = all.observed();
        assert_eq!(listed[0].head, first.1.head);
        assert!(listed[0].head_after.is_some() && listed[0].head_after != listed[0].head);
        fixture.sh("cd r; git reset -q --hard HEAD~2");
        assert_eq!(all.observed()[0].head_after, None, "it has moved back");
    }

    fn the_branch_is_told_and_another_one_at_the_end(fixture) {
        fixture.sh("git init -qb main r; cd r; echo a >a");
        let mut all = Repositories::new();
        all.observe(fixture.path("r/a").as_os_str().as_bytes());
        let mut branches = |script: &str| {
            fixture.sh(&format!("cd r; {script}"));
            let listed = all.observed();
            (listed[0].branch.clone(), listed[0].branch_after.clone())
        };
        let named = |name: &str| HeadBranch::Named(name.to_owned());
        assert_eq!(branches("true"), (named("main"), None), "an unborn branch has a name");
        assert_eq!(branches("git add .; git commit -qm 1"), (named("main"), None));
        assert_eq!(branches("git checkout -qb topic/x"), (named("main"), Some(named("topic/x"))));
        assert_eq!(branches("git checkout -q --detach"), (named("main"), Some(HeadBranch::Detached)));
        assert_eq!(branches("git checkout -q main; git pack-refs --all"), (named("main"), None));
        assert_eq!(branches("rm -rf .git"), (named("main"), None), "there is none any more");
    }

    fn a_linked_working_tree_has_its_own_branch(fixture) {
        fixture.sh("git init -qb main r; cd r; echo a >a; git add .; git commit -qm 1; git worktree add -qb other ../w");
        fixture.sh("cd r; git worktree add -q --detach ../d");
        let mut all = Repositories::new();
        for name in ["r/a", "w/a", "d/a"] {
            all.observe(fixture.path(name).as_os_str().as_bytes());
        }
        let branches: Vec<_> = all.observed().into_iter().map(|of| of.branch).collect();
        let named = |name: &str| HeadBranch::Named(name.to_owned());
        assert_eq!(branches, [HeadBranch::Detached, named("main"), named("other")]);
    }

    fn a_head_in_a_newer_pack_is_found(fixture) {
        fixture.sh("git init -q o; cd o; echo a >a; git add .; git commit -qm 1; cd ..; git clone -q o r; cd o; echo b >a; git commit -qam 2");
        let mut all = Repositories::new();
        ask(&mut all, &fixture.path("r/a"));
        fixture.sh("cd r; git -c fetch.unpackLimit=1 fetch -q; ls .git/objects/pack | grep -q pack; git reset -q --hard origin/main; git repack -qad; git prune-packed");
        let head = fixture.git(&fixture.path("r"), &["rev-parse", "HEAD"], b"");
        let after = all.observed()[0].head_after.unwrap();
        assert_eq!(after.to_string().as_bytes(), head.trim_ascii_end());
    }

    fn a_git_directory_elsewhere_is_watched_too(fixture) {
        fixture.sh("git init -q --separate-git-dir store r; cd r; echo a >a; git add .; git commit -qm 1; chmod +x a");
        let mut all = Repositories::new();
        assert!(ask(&mut all, &fixture.path("r/a")).unwrap().0.dirty);
        fixture.sh("cd r; git config core.fileMode false");
        all.note_change(fixture.path("store/config").as_os_str().as_encoded_bytes());
        assert!(!ask(&mut all, &fixture.path("r/a")).unwrap().0.dirty);
    }

    fn an_unborn_head_has_an_after(fixture) {
        fixture.sh("git init -q r; cd r; echo a >a");
        let mut all = Repositories::new();
        let (said, within) = ask(&mut all, &fixture.path("r/a")).unwrap();
        assert_eq!((said, within.head), (super::Said::default(), None));
        fixture.sh("cd r; git add .; git commit -qm 1");
        let said = ask(&mut all, &fixture.path("r/a")).unwrap().0;
        assert!(said.tracked && said.dirty && said.oid.is_none(), "{said:?}");
        let listed = all.observed();
        assert!(listed[0].head.is_none() && listed[0].head_after.is_some() && listed[0].dirty);
    }

    fn only_a_first_sight_makes_a_repository_dirty(fixture) {
        fixture.sh("git init -q r; cd r; echo a >a; git add .; git commit -qm 1");
        let file = fixture.path("r/a");
        let bytes = file.as_os_str().as_encoded_bytes();
        let mut all = Repositories::new();
        assert!(!all.classify(bytes, super::lstat(&file).as_ref(), true).unwrap().dirty());
        std::fs::write(&file, "x").unwrap();
        assert!(all.classify_again(bytes, super::lstat(&file).as_ref(), true).unwrap().dirty());
        assert!(!all.observed()[0].dirty);
        all.classify(bytes, super::lstat(&file).as_ref(), true);
        assert!(all.observed()[0].dirty);
    }

    fn a_repository_that_comes_or_goes_is_noticed(fixture) {
        fixture.sh("mkdir -p r/d; echo a >r/a; echo b >r/d/b");
        let mut all = Repositories::new();
        let note = |all: &mut Repositories, path: &str| {
            all.note_change(fixture.path(path).as_os_str().as_encoded_bytes());
        };
        assert!(ask(&mut all, &fixture.path("r/d/b")).is_none());
        fixture.sh("cd r; git init -q; git add a; git commit -qm 1");
        note(&mut all, "r/.git");
        assert!(!ask(&mut all, &fixture.path("r/d/b")).unwrap().0.tracked);
        assert!(ask(&mut all, &fixture.path("r/a")).unwrap().0.oid.is_some());
        fixture.sh("cd r/d; git init -q");
        note(&mut all, "r/d/.git/HEAD");
        assert_eq!(ask(&mut all, &fixture.path("r/d/b")).unwrap().1.relative_path, b"b");
        fixture.sh("mv r/d r/e");
        note(&mut all, "r/d");
        note(&mut all, "r/e");
        assert_eq!(ask(&mut all, &fixture.path("r/d/b")).unwrap().1.relative_path, b"d/b");
        assert_eq!(ask(&mut all, &fixture.path("r/e/b")).unwrap().1.relative_path, b"b");
        fixture.sh("rm -rf r/e/.git");
        note(&mut all, "r/e/.git");
        assert_eq!(ask(&mut all, &fixture.path("r/e/b")).unwrap().1.relative_path, b"e/b");
        let head = ask(&mut all, &fixture.path("r/a")).unwrap().1.head;
        fixture.sh("cd r; rm -rf .git; git init -q; git add a e; git commit -qm other");
        note(&mut all, "r/.git");
        let (said, within) = ask(&mut all, &fixture.path("r/a")).unwrap();
        assert_eq!(within.head, head, "the first head stays the first");
        assert!(said.tracked && said.oid.is_none(), "its objects are gone: {said:?}");
    }

    fn a_change_of_a_git_directory_is_seen_before_it_happens(fixture) {
        fixture.sh("git init -q r; cd r; echo a >a; git add .; git commit -qm 1");
        let mut all = Repositories::new();
        all.note_change(fixture.path("r/.git/refs/heads/main.lock").as_os_str().as_encoded_bytes());
        fixture.sh("cd r; git commit -q --allow-empty -m 2");
        let listed = all.observed();
        assert_eq!(listed.len(), 1);
        assert!(listed[0].head_after.is_some(), "the head before the commit is the first");
    }

    fn changed_rules_and_settings_are_noticed(fixture) {
        fixture.sh("git init -q r; cd r; mkdir d; printf 'a\\r\\n' >d/a; echo l >d/a.log; git add d/a; git commit -qm 1");
        let mut all = Repositories::new();
        let note = |all: &mut Repositories, path: &str| {
            all.note_change(fixture.path(path).as_os_str().as_encoded_bytes());
        };
        compare(fixture, &mut all, "r", "at first");
        for (script, changed) in [
            ("echo '*.log' >.gitignore", "r/.gitignore"),
            ("echo '!*.log' >d/.gitignore", "r/d/.gitignore"),
            ("rm d/.gitignore", "r/d/.gitignore"),
            ("echo '!a.log' >.git/info/exclude; rm .gitignore; echo 'd/a text' >.gitattributes; touch d/a", "r/.gitattributes"),
            ("rm .gitattributes; touch d/a", "r/.gitattributes"),
            ("mkdir -p .git/info; echo 'a text' >.git/info/attributes; touch d/a", "r/.git/info/attributes"),
            ("rm .git/info/attributes; touch d/a", "r/.git/info/attributes"),
            ("chmod +x d/a; git config core.fileMode false", "r/.git/config"),
            ("git config --global core.fileMode true; git config --unset core.fileMode", "r/.git/config"),
            ("git config --global core.fileMode false", "../.gitconfig"),
            ("git config --global --unset core.fileMode; git config --global core.excludesFile ~/rules; echo '*.log' >~/rules", "../.gitconfig"),
            ("echo >~/rules", "../rules"),
            ("git add d/a.log", "r/.git/index"),
            ("git commit -qm 2; git gc -q; git reset -q HEAD~", "r/.git/objects/pack/pack-x.pack"),
        ] {
            fixture.sh(&format!("cd r; {script}"));
            let changed = std::path::PathBuf::from(changed);
            let changed = match changed.strip_prefix("..") {
                Ok(of_home) => fixture.root.parent().unwrap().join(of_home),
                Err(_) => fixture.root.join(changed),
            };
            all.note_change(changed.as_os_str().as_encoded_bytes());
            let at_first = all.observed()[0].head_after.is_none();
            assert!(at_first, "{script}");
            compare(fixture, &mut all, "r", script);
        }
        note(&mut all, "r/.gitignore");
    }

    fn a_changed_file_behind_links_is_noticed(fixture) {
        fixture.sh("mkdir -p ~/dotfiles/deep; ln -s dotfiles/config ~/.gitconfig; ln -s deep/config ~/dotfiles/config
            mkdir ~/there; ln -s there ~/here
            git config --global core.excludesFile ~/here/rules; echo rules2 >~/dotfiles/rules; ln -s ../dotfiles/rules ~/there/rules
            git init -q r; cd r; mkdir -p .git/info; ln -sf ../../../dotfiles/exclude .git/info/exclude
            touch a.log b.log c.log x; git add x; git commit -qm 1");
        let home = fixture.root.parent().unwrap();
        let mut all = Repositories::new();
        compare(fixture, &mut all, "r", "at first");
        for (script, changed) in [
            ("echo a.log >~/there/rules", "dotfiles/rules"),
            ("ln -sf ../dotfiles/rules2 ~/there/rules; echo b.log >~/dotfiles/rules2", "there/rules"),
            ("echo c.log >~/dotfiles/rules2", "dotfiles/rules2"),
            ("echo a.log >~/dotfiles/exclude", "dotfiles/exclude"),
            ("git config --global core.excludesFile ~/more", "dotfiles/deep/config"),
            ("echo b.log >~/more", "more"),
            ("printf '[core]\\nexcludesFile = ~/there/rules\\n' >~/dotfiles/other; ln -sf other ~/dotfiles/config", "dotfiles/config"),
        ] {
            fixture.sh(script);
            all.note_change(home.join(changed).as_os_str().as_encoded_bytes());
            compare(fixture, &mut all, "r", script);
        }
    }

    fn what_is_written_long_after_the_file_was_opened_is_noticed(fixture) {
        fixture.sh("git init -q r; cd r; git config filter.rot.clean 'tr a-z n-za-m'; git config filter.rot.smudge cat
            mkdir d; echo abc >d/f.txt; echo x >d/x.log; echo l >other; git add d/f.txt; git commit -qm 1; touch d/f.txt
            printf '[user]\n' >../../.gitconfig");
        let mut all = Repositories::new();
        compare(fixture, &mut all, "r", "at first");
        for (name, text) in [
            ("r/.gitignore", "*.log\n"),
            ("r/d/.gitignore", "!*.log\n"),
            ("r/.git/info/exclude", "other\n"),
            ("r/.git/config", "[core]\nrepositoryformatversion = 0\nfileMode = false\n"),
            ("../.gitconfig", "[core]\nignoreCase = true\n"),
            ("r/.gitattributes", "*.txt text\n"),
            ("r/.git/info/attributes", "*.txt -text\n"),
        ] {
            let path = fixture.root.join(name.strip_prefix("../").map_or(name.to_owned(), |name| {
                fixture.root.parent().unwrap().join(name).to_str().unwrap().to_owned()
            }));
            for text in [text.to_owned(), String::new(), text.replace('\n', "\n\n"), text.to_owned()] {
                let mut file = std::fs::File::create(&path).unwrap();
                all.note_change(path.as_os_str().as_encoded_bytes());
                // Everything is cached as the empty file has it.
                ask(&mut all, &fixture.path("r/d/x.log"));
                ask(&mut all, &fixture.path("r/d/f.txt"));
                let before = all.epoch();
                let settled = all.current_epoch();
                assert_eq!(before, settled, "nothing was written to {name} yet");
                file.write_all(text.as_bytes()).unwrap();
                assert!(text.is_empty() || all.current_epoch() != settled, "{name}");
                compare(fixture, &mut all, "r", &format!("{name}: {text:?}"));
            }
        }
    }

    fn a_write_in_the_clock_tick_of_a_stat_is_detected(fixture) {
        fixture.sh("git init -q r; cd r; touch a.log b.log; git add a.log; git commit -qm 1");
        let path = fixture.path("r/.gitignore");
        let mut all = Repositories::new();
        ask(&mut all, &fixture.path("r/a.log"));
        let mut same = 0;
        for round in 0..60 {
            std::fs::write(&path, "a.log\n").unwrap();
            all.note_change(path.as_os_str().as_encoded_bytes());
            assert!(!ask(&mut all, &fixture.path("r/b.log")).unwrap().0.ignored);
            let before = super::lstat(&path).unwrap();
            std::fs::write(&path, "b.log\n").unwrap();
            let after = super::lstat(&path).unwrap();
            same += u32::from((before.st_ctime, before.st_ctime_nsec) == (after.st_ctime, after.st_ctime_nsec));
            all.current_epoch();
            assert!(ask(&mut all, &fixture.path("r/b.log")).unwrap().0.ignored, "round {round}");
        }
        eprintln!("{same} edits left the times as they were");
    }

    fn an_index_that_someone_else_replaces_is_read_at_the_next_question(fixture) {
        fixture.sh("git init -q r; cd r; echo a >a; git add .; git commit -qm 1; cp .git/index one; echo b >b; git add b");
        let (index, one) = (fixture.path("r/.git/index"), fixture.path("r/one"));
        let mut all = Repositories::new();
        for round in 0..40 {
            let before = all.epoch();
            let (b, _) = ask(&mut all, &fixture.path("r/b")).unwrap();
            assert_eq!(b.tracked, round % 2 == 0, "round {round}");
            assert_ne!(all.epoch(), before);
            std::fs::rename(&one, fixture.path("r/.git/next")).unwrap();
            std::fs::rename(&index, &one).unwrap();
            std::fs::rename(fixture.path("r/.git/next"), &index).unwrap();
        }
        let before = all.epoch();
        assert_ne!(all.current_epoch(), before);
    }

    fn rules_that_are_written_after_their_file_was_opened_hold_at_the_next_question(fixture) {
        fixture.sh("git init -q r; mkdir -p r/d; touch r/d/a.log r/d/a.tmp");
        let mut all = Repositories::new();
        ask(&mut all, &fixture.path("r/d/a.log")).unwrap();
        // So many that all of them could not be compared at each question.
        for number in 0..200 {
            let other = fixture.path(&format!("r/{number}/.gitignore"));
            std::fs::create_dir(other.parent().unwrap()).unwrap();
            std::fs::write(&other, "x").unwrap();
            ask(&mut all, &other).unwrap();
            all.note_change(other.as_os_str().as_encoded_bytes());
        }
        let rules = fixture.path("r/d/.gitignore");
        let mut file = std::fs::File::create(&rules).unwrap();
        all.note_change(rules.as_os_str().as_encoded_bytes());
        let ignored = |all: &mut Repositories, name: &str| ask(all, &fixture.path(name)).unwrap().0.ignored;
        assert!(!ignored(&mut all, "r/d/a.log"));
        file.write_all(b"*.log\n").unwrap();
        assert!(ignored(&mut all, "r/d/a.log") && !ignored(&mut all, "r/d/a.tmp"));
        file.write_all(b"*.tmp\n").unwrap();
        assert!(ignored(&mut all, "r/d/a.tmp"));
    }

    fn what_can_change_an_answer_starts_another_epoch(fixture) {
        fixture.sh("git init -q r; cd r; echo a >a; git add .; git commit -qm 1");
        let mut all = Repositories::new();
        ask(&mut all, &fixture.path("r/a")).unwrap();
        let mut changes = |path: &str| {
            let before = all.current_epoch();
            all.note_change(fixture.path(path).as_os_str().as_encoded_bytes());
            all.current_epoch() != before
        };
        // `git status` makes and removes a lock.
        assert!(!changes("r/.git/index.lock") && !changes("r/a"));
        assert!(changes("r/.git/index") && changes("r/.git/HEAD") && changes("r/.gitignore"));
    }

    fn an_object_that_is_packed_meanwhile_is_still_a_pin(fixture) {
        fixture.sh("git init -q r; cd r; for i in 1 2 3 4; do echo $i >f$i; done; git add .; git commit -qm 1");
        let mut all = Repositories::new();
        assert!(ask(&mut all, &fixture.path("r/f1")).unwrap().0.oid.is_some());
        fixture.sh("cd r; git gc -q --prune=now");
        all.note_change(fixture.path("r/.git/objects/pack/pack-1.idx").as_os_str().as_encoded_bytes());
        for name in ["r/f1", "r/f2"] {
            assert!(ask(&mut all, &fixture.path(name)).unwrap().0.oid.is_some(), "{name}");
        }
    }

    fn a_file_that_changes_while_it_is_read_is_not_pinned(fixture) {
        fixture.sh("git init -q r; cd r; echo aaaa >f; git add .; git commit -qm 1; touch f");
        let file = fixture.path("r/f");
        let stale = super::lstat(&file).unwrap();
        fixture.sh("cd r; touch -d '2 seconds ago' f");
        let facts = Repositories::new().classify(file.as_os_str().as_encoded_bytes(), Some(&stale), true).unwrap();
        assert_eq!(facts.oid(), None, "what was hashed is not what stat told of");
    }

    fn the_set_can_go_to_another_thread(_fixture) {
        fn sent<T: Send>(_: T) {}
        sent(Repositories::new());
    }
}
