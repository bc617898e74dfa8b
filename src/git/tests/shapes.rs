//! Kinds of repositories and states of an index.

use super::{Fixture, Repositories, ask, compare, compare_all, facts};

facts! {
    fn every_state_of_a_path_is_classified_as_by_git(fixture) {
        let base = "mkdir d; for f in a b c d/e d/f; do echo $f >$f; done; git add .; git commit -qm 1";
        compare_all(fixture, &[
            ("unborn", "touch a b; git add a; echo x >>a"),
            ("unborn_without_index", "touch a"),
            ("clean", base),
            ("touched", &format!("{base}; touch a d/e")),
            ("edited", &format!("{base}; echo x >>a; echo D >d/e")),
            ("same_size", &format!("{base}; echo x >a; echo D/E >d/e")),
            ("staged", &format!("{base}; echo x >a; git add a; echo y >d/e; git add d/e; echo z >d/e")),
            ("staged_and_reverted", &format!("{base}; echo x >a; git add a; echo a >a")),
            ("removed", &format!("{base}; rm a d/e")),
            ("removed_staged", &format!("{base}; git rm -q a d/e d/f")),
            ("removed_cached", &format!("{base}; git rm -q --cached a d/e; echo x >>d/e; echo a >.gitignore")),
            ("added", &format!("{base}; echo n >n; mkdir e; echo m >e/m; git add n e/m; rm e/m; touch u")),
            ("intent_to_add", &format!("{base}; echo n >n; : >empty; git add -N n empty")),
            ("intent_to_add_again", &format!("{base}; : >empty; git add empty; git commit -qm 2; git rm -q --cached empty a; git add -N empty a")),
            ("moved", &format!("{base}; git mv a d/a; git mv d/e e")),
            ("empty_files", "touch a b; git add .; git commit -qm 1; touch a; echo x >b"),
            ("conflict", &format!("{base}; git checkout -qb o; echo o >a; git rm -q b; git commit -qam 2; git checkout -q main; echo m >a; echo m >b; git commit -qam 3; git merge o || true")),
            ("conflict_added", &format!("{base}; git checkout -qb o; echo o >n; git add n; git commit -qm 2; git checkout -q main; echo m >n; git add n; git commit -qm 3; git merge o || true")),
            ("detached", &format!("{base}; git checkout -q --detach; echo x >a")),
            ("packed", &format!("{base}; echo x >a; git commit -qam 2; git gc -q; git pack-refs --all; echo a >a")),
            ("packed_deltas", "seq 5000 >a; git add .; git commit -qm 1; for i in 1 2 3 4 5; do echo $i >>a; cp a b$i; git add .; git commit -qm $i; done; git gc -q --aggressive; touch a b1; echo 9 >>b2"),
            ("index_versions", &format!("{base}; git update-index --index-version 4; echo x >a")),
            ("no_index_tree", &format!("{base}; git read-tree HEAD; echo x >>a; rm .git/index; git read-tree HEAD")),
            ("reset_soft", &format!("{base}; echo x >a; git commit -qam 2; git reset -q --soft HEAD~")),
            ("reset_mixed", &format!("{base}; echo x >a; git commit -qam 2; git reset -q HEAD~")),
            ("smudged", &format!("{base}; echo x >a; git add a; echo y >a; git update-index --refresh >/dev/null || true; echo z >a")),
            ("object_missing", &format!("{base}; echo q >q; git add q; git commit -qm 2; o=$(git rev-parse HEAD:q); rm .git/objects/$(echo $o | cut -c1-2)/$(echo $o | cut -c3-)")),
            ("object_truncated", &format!("{base}; touch t")),
            ("index_removed", &format!("{base}; rm .git/index")),
            ("skip_hash", &format!("{base}; git config index.skipHash true; echo x >a; git add a; echo y >b")),
            ("many", "for i in $(seq 300); do mkdir -p d$((i % 17))/e$((i % 5)); echo $i >d$((i % 17))/e$((i % 5))/$i; done; git add .; git commit -qm 1; echo x >d3/e0/20; touch d1/new; git add d1/new"),
            ("strange_names", "mkdir 'a b' \"$(printf 'q\\377')\"; touch 'a b/c\"d' \"$(printf 'q\\377/\\n')\" 'a.b' a-b 'é'; git add .; git commit -qm 1; touch 'a b/new'; rm a-b; mkdir a; touch a/f; git add a"),
            ("sha256", "true; cd ..; rm -rf r; git init -q --object-format=sha256 r; cd r; echo a >a; echo b >b; mkdir d; echo c >d/c; git add .; git commit -qm 1; touch a; echo x >b; echo n >n"),
            ("alternates", "echo a >a; echo b >b; git add .; git commit -qm 1; cd ..; mv r o; git clone -qs o r; cd r; echo x >b; touch a"),
            ("shallow", "for i in 1 2 3; do echo $i >a; git add a; git commit -qm $i; done; cd ..; mv r o; git clone -q --depth 1 file://$PWD/o r; cd r; touch a"),
            ("grafted_and_replaced", "echo a >a; git add a; git commit -qm 1; echo longer >b; o=$(git rev-parse HEAD:a); n=$(git hash-object -w b); git replace $o $n; touch a"),
            ("old_modes", "echo a >a; chmod 664 a; git add a; git commit -qm 1; t=$(printf \"100664 a\\0$(printf '')\" | cat; true); touch a"),
            ("stash", &format!("{base}; echo x >a; git stash -q; echo y >b")),
            ("linked_head", &format!("{base}; git config core.preferSymlinkRefs true; git checkout -qb o; echo x >a")),
            ("bisecting", &format!("{base}; echo x >a; git commit -qam 2; git symbolic-ref refs/heads/alias refs/heads/main; git symbolic-ref HEAD refs/heads/alias; echo y >a")),
        ]);
    }

    fn a_split_index_is_read_whole(fixture) {
        compare_all(fixture, &[
            ("fresh", "git config core.splitIndex true; for f in a b c d; do echo $f >$f; done; git add .; git commit -qm 1; git update-index --split-index"),
            ("replaced", "for f in a b c d e; do echo $f >$f; done; git add .; git commit -qm 1; git update-index --split-index
                git config splitIndex.maxPercentChange 100; echo x >a; git add a; git rm -q b; echo n >aa; git add aa; touch c; echo z >e"),
            ("emptied", "for f in a b; do echo $f >$f; done; git add .; git commit -qm 1; git update-index --split-index
                git config splitIndex.maxPercentChange 100; git rm -q --cached a b"),
        ]);
    }

    fn a_sparse_index_stands_for_the_paths_below_its_trees(fixture) {
        fixture.sh(
            "git init -q r; cd r; for d in in out/deep other; do mkdir -p $d; echo $d >$d/f; echo g >$d/g; done; echo t >top; git add .; git commit -qm 1
             git sparse-checkout init --cone --sparse-index; git sparse-checkout set in; git ls-files --sparse | grep -q '^out/$'
             mkdir -p out/deep; printf 'out/deep\\n' >out/deep/f; echo edited >out/deep/g; touch out/new; echo x >in/f",
        );
        let mut all = Repositories::new();
        let mut ask = |name: &str| ask(&mut all, &fixture.path("r").join(name)).unwrap().0;
        let present = ask("out/deep/f");
        assert!(present.tracked && !present.dirty && present.oid.is_some(), "{present:?}");
        let edited = ask("out/deep/g");
        assert!(edited.tracked && edited.dirty && edited.oid.is_none(), "{edited:?}");
        let absent = ask("other/f");
        assert!(absent.tracked && absent.dirty, "left out is absent: {absent:?}");
        assert_eq!(ask("out/new"), super::Said::default());
        assert_eq!(ask("out"), super::Said::default());
        assert_eq!(ask("out/deep"), super::Said::default());
        assert!(ask("in/f").dirty && ask("in/g").oid.is_some() && ask("top").oid.is_some());
        // Git itself widens its index once it sees such files.
        fixture.sh("cd r; git status >/dev/null; git sparse-checkout disable; git add .; git status >/dev/null");
        compare(fixture, &mut all, "r", "widened");
    }

    fn assume_unchanged_and_skip_worktree_are_not_trusted(fixture) {
        fixture.sh(
            "git init -q r; cd r; for f in a b c d; do echo $f >$f; done; git add .; git commit -qm 1
             git update-index --assume-unchanged a; git update-index --skip-worktree b c; echo x >a; echo x >b; rm c",
        );
        let mut all = Repositories::new();
        for name in ["a", "b", "c"] {
            let said = ask(&mut all, &fixture.path("r").join(name)).unwrap().0;
            assert!(said.tracked && said.dirty && said.oid.is_none(), "{name}: {said:?}");
        }
        assert!(ask(&mut all, &fixture.path("r/d")).unwrap().0.oid.is_some());
    }

    fn the_innermost_working_tree_wins(fixture) {
        fixture.sh(
            "git init -q outer; cd outer; echo a >a; mkdir -p in/side; echo s >in/side/s; git add .; git commit -qm 1
             git init -q in/ner; echo b >in/ner/b; (cd in/ner; git add .; git commit -qm 2; echo x >x; echo x >.gitignore)
             echo 'ner' >.gitignore
             git worktree add -q ../linked; echo x >../linked/a
             mkdir garbage; mkdir garbage/.git; echo g >garbage/g; git add garbage/g
             mkdir badfile; echo nonsense >badfile/.git; echo h >badfile/h; git add -f badfile/h
             mkdir gone; echo 'gitdir: /nowhere/at/all' >gone/.git; echo i >gone/i
             git init -q --bare store.git
             git init -q nobody; git -C nobody config core.bare true; echo n >nobody/n",
        );
        let mut all = Repositories::new();
        for (path, root, relative) in [
            ("outer/a", "outer", "a"),
            ("outer", "outer", ""),
            ("outer/in", "outer", "in"),
            ("outer/in/side/s", "outer", "in/side/s"),
            ("outer/in/ner", "outer/in/ner", ""),
            ("outer/in/ner/b", "outer/in/ner", "b"),
            ("outer/in/ner/x", "outer/in/ner", "x"),
            ("outer/in/ner/not/there", "outer/in/ner", "not/there"),
            ("linked/a", "linked", "a"),
            ("linked", "linked", ""),
            ("outer/garbage", "outer", "garbage"),
            ("outer/garbage/g", "outer", "garbage/g"),
            ("outer/badfile/h", "outer", "badfile/h"),
            ("outer/gone/i", "outer", "gone/i"),
            ("outer/store.git/HEAD", "outer", "store.git/HEAD"),
        ] {
            let (_, state) = ask(&mut all, &fixture.path(path)).unwrap();
            let at = |relative: &str| fixture.path(relative).into_os_string().into_encoded_bytes();
            assert_eq!((state.root, state.relative_path), (at(root), relative.as_bytes().to_vec()), "{path}");
        }
        for path in ["", "elsewhere", "outer/nobody/n", "outer/.git", "outer/.git/config", "outer/in/ner/.git/HEAD"] {
            assert!(ask(&mut all, &fixture.path(path)).is_none(), "{path}");
        }
        assert!(ask(&mut all, &fixture.path("outer/in/ner/x")).unwrap().0.ignored);
        assert_eq!(ask(&mut all, &fixture.path("outer")).unwrap().0, super::Said::default());
        compare(fixture, &mut all, "outer", "outer");
        compare(fixture, &mut all, "linked", "linked");
        compare(fixture, &mut all, "outer/in/ner", "inner");
        let roots: Vec<_> = all.observed().into_iter().map(|of| (of.root, of.dirty)).collect();
        let root = |name: &str, dirty| (fixture.path(name).into_os_string().into_encoded_bytes(), dirty);
        assert_eq!(roots, [root("linked", true), root("outer", true), root("outer/in/ner", false)]);
    }

    fn a_submodule_is_its_own_tree_and_an_entry_of_the_outer_one(fixture) {
        fixture.sh(
            "git init -q lib; cd lib; echo l >l; git add .; git commit -qm 1; cd ..
             git init -q r; cd r; echo a >a; git submodule add -q ../lib sub; git submodule add -q ../lib other; git commit -qm 1
             git submodule add -q ../lib staged; git submodule deinit -q other
             echo x >sub/l",
        );
        let mut all = Repositories::new();
        let mut at = |path: &str| ask(&mut all, &fixture.path(path)).unwrap();
        let (said, state) = at("r/sub");
        assert!(said.tracked && !said.dirty, "{said:?}");
        assert_eq!(state.relative_path, b"sub");
        assert_eq!(at("r/sub/l").1.root, fixture.path("r/sub").into_os_string().into_encoded_bytes());
        assert!(at("r/sub/l").0.dirty);
        let (uninitialised, state) = at("r/other");
        assert!(uninitialised.tracked && !uninitialised.dirty, "{uninitialised:?}");
        assert_eq!(state.relative_path, b"other");
        assert!(at("r/staged").0.dirty);
        compare(fixture, &mut all, "r/sub", "submodule");
        fixture.sh("cd r/sub; git commit -qam 2; cd ..; rm -r other; touch other");
        let mut at = |path: &str| ask(&mut all, &fixture.path(path)).unwrap();
        assert!(at("r/sub").0.dirty, "another commit is checked out");
        assert!(at("r/other").0.dirty, "a file has its place");
        std::fs::remove_file(fixture.path("r/other")).unwrap();
        let absent = ask(&mut all, &fixture.path("r/other")).unwrap().0;
        assert!(absent.tracked && absent.dirty);
    }

    fn git_directories_elsewhere_are_reported_once(fixture) {
        fixture.sh(
            "git init -q --separate-git-dir store plain; echo a >plain/a
             git clone -q --bare plain bare 2>/dev/null; cd bare; git config user.name x; git worktree add -q --orphan -b w tree 2>/dev/null || git worktree add -q tree
             echo t >tree/t; cd ..; git init -q usual; echo u >usual/u",
        );
        let mut all = Repositories::new();
        assert!(ask(&mut all, &fixture.path("plain/a")).is_some());
        let bytes = |path: &str| fixture.path(path).into_os_string().into_encoded_bytes();
        let mut found = all.take_git_dirs();
        found.dedup();
        assert_eq!(found, [bytes("store")]);
        assert!(ask(&mut all, &fixture.path("usual/u")).is_some());
        assert!(all.take_git_dirs().is_empty());
        assert!(ask(&mut all, &fixture.path("bare/tree/t")).is_some());
        let found = all.take_git_dirs();
        assert!(found.contains(&bytes("bare/worktrees/tree")) && found.contains(&bytes("bare/objects")));
        assert!(!found.contains(&bytes("bare")), "the working tree is inside");
        assert!(ask(&mut all, &fixture.path("plain/a")).is_some());
        assert!(all.take_git_dirs().is_empty());
    }

    fn a_working_tree_that_is_configured_is_the_root(fixture) {
        fixture.sh(
            "git init -q up/repo; cd up; echo a >a; git -C repo config core.worktree ../..; git --git-dir=repo/.git add .; mkdir -p repo; echo b >repo/b
             cd ..; git init -q away; git -C away config core.worktree ../../up; echo c >away/c",
        );
        let mut all = Repositories::new();
        let (_, state) = ask(&mut all, &fixture.path("up/repo/b")).unwrap();
        assert_eq!(state.root, fixture.path("up").into_os_string().into_encoded_bytes());
        assert_eq!(state.relative_path, b"repo/b");
        assert!(ask(&mut all, &fixture.path("away/c")).is_none());
        assert!(ask(&mut all, &fixture.path("away")).is_none());
    }

    fn what_can_block_is_not_opened(fixture) {
        fixture.sh("git init -q r; cd r; echo a >a; echo b >b; echo '*.x' >.gitignore; git add .; git commit -qm 1");
        let fresh = |name: &str, script: &str| {
            let place = Fixture { root: fixture.path(name) };
            std::fs::create_dir(&place.root).unwrap();
            place.sh(&format!("cp -a ../r r; cd r; {script}"));
            let mut all = Repositories::new();
            let said = ask(&mut all, &place.path("r/a")).map(|(said, _)| said);
            ask(&mut all, &place.path("r/new.x"));
            said
        };
        for file in ["HEAD", "config", "index", "packed-refs", "refs/heads/main", "commondir", "objects/info/alternates",
            "objects/pack/pack-x.idx", "shallow", "config.worktree"]
        {
            let name = file.replace('/', "_");
            let said = fresh(&name, &format!("rm -f .git/{file}; mkdir -p $(dirname .git/{file}); mkfifo .git/{file}"));
            assert_eq!(said, None, "{file}");
        }
        for (name, script) in [
            ("rules", "rm .gitignore; mkfifo .gitignore; mkfifo .gitattributes"),
            ("info", "rm -rf .git/info; mkdir .git/info; mkfifo .git/info/exclude .git/info/attributes"),
            ("user", "git config core.excludesFile ~/fifo; git config core.attributesFile ~/fifo; mkfifo ~/fifo"),
            ("included", "mkfifo more; git config include.path ../more"),
        ] {
            let said = fresh(name, script);
            assert!(said.is_some_and(|said| said.tracked && !said.dirty), "{name}");
        }
        let said = fresh("object", "o=$(git rev-parse HEAD:a); f=.git/objects/$(echo $o | cut -c1-2)/$(echo $o | cut -c3-); rm -f $f; mkfifo $f");
        assert_eq!(said.unwrap().oid, None);
        assert_eq!(fresh("dot_git", "rm -rf .git; mkfifo .git"), None);
        // Device nodes and links to them.
        assert_eq!(fresh("device", "rm .git/HEAD; ln -s /dev/zero .git/HEAD"), None);
    }

    fn no_file_is_read_whole_however_large_it_is(fixture) {
        use nix::sys::resource::{Resource, setrlimit};
        // What is read whole shall not fill the machine's memory before it is noticed.
        setrlimit(Resource::RLIMIT_AS, 2 << 30, 2 << 30).unwrap();
        fixture.sh("git init -q r; cd r; echo a >a; echo b >b; echo '*.x' >.gitignore; git add .; git commit -qm 1; git update-index --split-index; git status >/dev/null");
        let sparse = |file: &str| format!("rm -f {file}; mkdir -p $(dirname {file}); truncate -s 40G {file}");
        let index = "h=$(head -c 12 .git/index | od -An -tx1 | tr -d ' \n'); truncate -s 40G .git/index; test $(echo $h | cut -c1-8) = 44495243";
        let mut cases: Vec<(String, String, bool)> = vec![
            ("index_that_begins_well".into(), index.into(), false),
            ("index_below_the_limit".into(), "truncate -s 900M .git/index".into(), false),
            ("shared_index".into(), "truncate -s 40G .git/sharedindex.*".into(), false),
            ("included".into(), format!("{}; git config include.path ../more", sparse("more")), false),
            ("included_deeply".into(), format!("{}; git config include.path ../m; printf '[include]\npath = more\n' >m", sparse("more")), false),
            ("included_if".into(), format!("{}; git config includeIf.gitdir:/.path ../more", sparse("more")), false),
            ("user".into(), format!("{}; git config core.excludesFile ~/large", sparse("~/large")), false),
            ("attributes".into(), format!("{}; git config core.attributesFile ~/large", sparse("~/large")), false),
            ("commondir".into(), sparse(".git/commondir"), false),
            ("dot_git".into(), format!("rm -rf .git; {}", sparse(".git")), false),
            // Of a reference that can't be read, only what depends on it is unknown.
            ("object".into(), "o=$(git rev-parse HEAD:a); f=.git/objects/$(echo $o | cut -c1-2)/$(echo $o | cut -c3-); rm -f $f; truncate -s 40G $f".into(), true),
            ("tracked_file".into(), "truncate -s 40G a".into(), true),
        ];
        for file in [".gitignore", ".gitattributes", ".git/info/exclude", ".git/info/attributes", ".git/HEAD", ".git/config", ".git/index",
            ".git/packed-refs", ".git/refs/heads/main", ".git/objects/info/alternates", ".git/shallow"]
        {
            cases.push((file.replace('/', "_"), sparse(file), false));
        }
        for (name, script, known) in cases {
            let place = Fixture { root: fixture.path(&name) };
            std::fs::create_dir(&place.root).unwrap();
            place.sh(&format!("cp -a ../r r; cd r; {script}"));
            let mut all = Repositories::new();
            let said = ask(&mut all, &place.path("r/a")).map(|(said, _)| said);
            ask(&mut all, &place.path("r/new.x"));
            all.observed();
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
            let peak: u64 = peak.trim().strip_suffix(" kB").unwrap().parse().unwrap();
            assert!(peak < 100 << 10, "{name}: {peak} KiB");
            assert_eq!(said.is_some(), known, "{name}: {said:?}");
            assert!(said.is_none_or(|said| said.oid.is_none()), "{name}");
        }
    }

    fn damage_is_no_panic(fixture) {
        fixture.sh("git init -q r; cd r; echo a >a; mkdir d; echo b >d/b; git add .; git commit -qm 1; git gc -q");
        for (name, script, holds) in [
            ("empty_index", ": >.git/index", false),
            ("short_index", "printf 'DIRC\\0\\0\\0\\2' >.git/index", false),
            ("text_index", "echo nonsense >.git/index", false),
            ("many_entries", "printf 'DIRC\\0\\0\\0\\2\\377\\377\\377\\377aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' >.git/index", false),
            ("index_directory", "rm .git/index; mkdir .git/index", false),
            ("empty_head", ": >.git/HEAD", true),
            ("dangling_head", "echo 'ref: refs/heads/nowhere' >.git/HEAD", true),
            ("looping_head", "echo 'ref: refs/heads/main' >.git/refs/heads/main", true),
            ("head_out", "echo 'ref: ../../../etc/passwd' >.git/HEAD", true),
            ("no_objects", "rm -rf .git/objects; mkdir .git/objects", true),
            ("bad_pack", "for f in .git/objects/pack/*; do chmod u+w $f; printf x >$f; done", true),
            ("bad_config", "echo '[core' >.git/config", false),
            ("unknown_format", "git config core.repositoryFormatVersion 99", true),
            ("reftable_like", "git config core.repositoryFormatVersion 1; git config extensions.refStorage reftable", true),
        ] {
            let place = Fixture { root: fixture.path(name) };
            std::fs::create_dir(&place.root).unwrap();
            place.sh(&format!("cp -a ../r r; cd r; {script}"));
            let mut all = Repositories::new();
            let said = ask(&mut all, &place.path("r/d/b"));
            eprintln!("{name}: {said:?}");
            if !holds {
                assert!(said.is_none(), "{name}: {said:?}");
            }
            ask(&mut all, &place.path("r/new"));
            all.observed();
        }
    }

    fn an_index_damaged_anywhere_is_no_panic(fixture) {
        fixture.sh(
            "git init -q r; cd r; for i in $(seq 30); do mkdir -p d$i; echo $i >d$i/f; done; git add .; git commit -qm 1; git update-index --index-version 4; git update-index --split-index
             git config index.threads 2",
        );
        let index = std::fs::read(fixture.path("r/.git/index")).unwrap();
        let shared = std::fs::read_dir(fixture.path("r/.git")).unwrap().flatten()
            .find(|entry| entry.file_name().to_string_lossy().starts_with("sharedindex.")).unwrap().path();
        let shared_index = std::fs::read(&shared).unwrap();
        let path = fixture.path("r/d7/f");
        for (file, content) in [(fixture.path("r/.git/index"), index), (shared, shared_index)] {
            for at in (0..content.len()).filter(|at| *at < 200 || at % 3 == 0) {
                for value in [0xff, content[at] ^ 1] {
                    let mut damaged = content.clone();
                    damaged[at] = value;
                    std::fs::write(&file, &damaged).unwrap();
                    let mut index = super::super::index::Index::read(&fixture.path("r/.git/index"), gix::hash::Kind::Sha1);
                    if let Some(index) = &mut index {
                        index.lookup(b"d7/f");
                        index.has_below(b"d7");
                    }
                    if at % 97 == 0 {
                        ask(&mut Repositories::new(), &path);
                    }
                }
                if at % 11 == 0 {
                    std::fs::write(&file, &content[..at]).unwrap();
                    let _ = super::super::index::Index::read(&fixture.path("r/.git/index"), gix::hash::Kind::Sha1);
                }
            }
            std::fs::write(&file, &content).unwrap();
        }
        compare(fixture, &mut Repositories::new(), "r", "undamaged");
    }

    fn a_reftable_repository_is_known_without_its_head(fixture) {
        let made = std::process::Command::new("git")
            .args(["init", "-q", "--ref-format=reftable", "r"]).current_dir(&fixture.root).output().unwrap();
        if !made.status.success() {
            eprintln!("skipped: this git knows no reftable");
            return;
        }
        fixture.sh("cd r; echo a >a; echo b >b; git add .; git commit -qm 1; echo x >b; touch c");
        let mut all = Repositories::new();
        let mut at = |name: &str| ask(&mut all, &fixture.path("r").join(name)).unwrap();
        let (clean, state) = at("a");
        assert_eq!((clean.tracked, clean.dirty, clean.oid, state.head), (true, false, None, None));
        assert!(at("b").0.dirty && !at("c").0.tracked);
        assert_eq!(all.observed()[0].branch, crate::git::HeadBranch::Unknown);
    }

    fn variables_of_the_tracer_do_not_count(fixture) {
        if std::env::var_os("GIT_DIR").is_none() {
            fixture.sh("git init -q r; cd r; echo a >a; git add .; git commit -qm 1; echo '*.x' >.gitignore; touch b.x; chmod +x a; git init -q ../other; cp .git/index ../i");
            // Once more, with an environment that would lead anyone astray who obeys it.
            let other = fixture.path("other/.git");
            let test = format!("{}::variables_of_the_tracer_do_not_count", module_path!());
            let out = std::process::Command::new(std::env::current_exe().unwrap())
                .args([test.split_once("::").unwrap().1, "--exact", "--nocapture"])
                .env("GIT_DIR", &other).env("GIT_WORK_TREE", fixture.path("other")).env("GIT_INDEX_FILE", other.join("none"))
                .env("GIT_OBJECT_DIRECTORY", other.join("objects")).env("GIT_CEILING_DIRECTORIES", &fixture.root)
                .env("GIT_CONFIG_COUNT", "1").env("GIT_CONFIG_KEY_0", "core.fileMode").env("GIT_CONFIG_VALUE_0", "false")
                .env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_PARAMETERS", "'core.bare'='true'").env("GIT_NAMESPACE", "n")
                .env("GIT_DISCOVERY_ACROSS_FILESYSTEM", "0").env("GIT_COMMON_DIR", &other).env("GIT_ATTR_NOSYSTEM", "1")
                .output().unwrap();
            assert!(out.status.success(), "{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
            return;
        }
        let mut all = Repositories::new();
        let (said, state) = ask(&mut all, &fixture.path("r/a")).unwrap();
        assert!(said.tracked && said.dirty && state.head.is_some(), "{said:?}");
        assert!(ask(&mut all, &fixture.path("r/b.x")).unwrap().0.ignored);
    }

    fn a_repository_of_another_user_is_read_like_ours(fixture) {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: needs root to give files away");
            return;
        }
        fixture.sh("git init -q r; cd r; head -c 20000000 /dev/zero >big; echo a >a; git add .; git commit -qm 1; git config core.fileMode false; git gc -q; touch big; chmod +x a
            chown -R 12345:12345 .");
        let mut all = Repositories::new();
        let big = ask(&mut all, &fixture.path("r/big")).unwrap().0;
        assert!(big.tracked && !big.dirty && big.oid.is_some(), "{big:?}");
        let said = ask(&mut all, &fixture.path("r/a")).unwrap().0;
        assert!(!said.dirty, "its configuration counts: {said:?}");
    }

    fn nothing_is_written_and_nothing_spawned(fixture) {
        fixture.sh("git init -q r; cd r; echo a >a; echo b >b; mkdir d; echo c >d/c; git add .; git commit -qm 1; touch a b");
        let shape = || {
            let out = std::process::Command::new("find").args(["r", "-printf", "%p %s %T@ %C@ %i\n"]).current_dir(&fixture.root).output();
            out.unwrap().stdout
        };
        let children = || std::fs::read_to_string("/proc/self/task/".to_owned() + &nix::unistd::gettid().to_string() + "/children");
        let before = shape();
        let faults = || nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_CHILDREN).unwrap().minor_page_faults();
        let (born_before, faults_before) = (children(), faults());
        let mut all = Repositories::new();
        for name in ["a", "b", "d", "d/c", "new"] {
            ask(&mut all, &fixture.path("r").join(name)).unwrap();
        }
        assert_eq!(faults_before, faults(), "a process was run");
        assert_eq!(born_before.ok(), children().ok());
        assert_eq!(before, shape());
    }
}
