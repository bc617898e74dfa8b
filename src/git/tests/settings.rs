//! Attributes, exclude rules and configuration.

use super::{compare_all, facts};

facts! {
    fn exclude_rules_are_those_of_git(fixture) {
        compare_all(fixture, &[
            ("plain", "echo '*.log' >.gitignore; echo x >a.log; echo x >b; mkdir d; echo x >d/c.log; echo x >d/e
                git add b; git commit -qm 1"),
            ("negated", "printf '*.log\\n!keep.log\\n' >.gitignore; touch a.log keep.log; mkdir d; echo '!a.log' >d/.gitignore
                touch d/a.log d/b.log"),
            ("excluded_directory", "printf 'build/\\n!build/keep\\n' >.gitignore; mkdir -p build/x s/build; touch build/keep build/x/y s/build/z build-not
                echo '!*' >build/.gitignore"),
            ("a_directory_rule_needs_a_directory", "echo 'out/' >.gitignore; touch out; mkdir d; ln -s ../d d/out; mkdir -p e/out; touch e/out/f"),
            ("anchored", "printf '/top\\nsub/deep\\n**/any\\nmid/**/end\\n' >.gitignore; mkdir -p sub other/sub mid/a/b
                touch top other/top sub/deep other/sub/deep other/any mid/a/b/end mid/end"),
            ("info_exclude", "echo '*.tmp' >.git/info/exclude; echo '!k.tmp' >.gitignore; touch a.tmp k.tmp"),
            ("excludes_file", "git config core.excludesFile \"$HOME/rules\"; echo '*.tmp' >\"$HOME/rules\"; echo '!b.tmp' >.git/info/exclude
                touch a.tmp b.tmp; mkdir d; touch d/c.tmp"),
            ("excludes_file_tilde", "git config core.excludesFile '~/rules2'; echo '*.tmp' >\"$HOME/rules2\"; touch a.tmp b"),
            ("excludes_file_default", "mkdir -p \"$HOME/.config/git\"; echo '*.home' >\"$HOME/.config/git/ignore\"; touch a.home b"),
            ("tracked_though_excluded", "echo '*' >.gitignore; touch a b; git add -f a; git commit -qm 1; mkdir d; touch d/x; git add -f d/x"),
            ("linked_rules_do_not_count", "echo '*.x' >rules; ln -s rules .gitignore; touch a.x"),
            ("spaces_and_brackets", "printf 'a b\\n[ab].txt\\nc\\\\ \\n\\\\#h\\n' >.gitignore; touch 'a b' a.txt b.txt c.txt 'c ' '#h'"),
            ("non_utf8", "printf 'na\\377me\\n' >.gitignore; touch \"$(printf 'na\\377me')\" \"$(printf 'na\\376me')\""),
            ("case_folding", "git config core.ignoreCase true; echo '*.LOG' >.gitignore; touch a.log b.LOG c.txt"),
            ("marks_and_returns", "printf '\\357\\273\\277bom\\r\\nplain\\n' >.gitignore; touch bom plain"),
            ("an_empty_directory", "echo 'ign/' >.gitignore; mkdir ign not; mkdir -p with/tracked; touch with/tracked/f; git add with; echo 'with/' >>.gitignore"),
            ("sparse_ignore_file", "echo '*.log' >.gitignore; touch a b; git add .; git commit -qm 1; git update-index --skip-worktree .gitignore; rm .gitignore
                touch x.log; git update-index --no-skip-worktree .gitignore; echo '*.log' >.gitignore"),
        ]);
    }

    fn rules_that_a_sparse_checkout_left_out_hold(fixture) {
        fixture.sh("git init -q r; cd r; echo '*.log' >.gitignore; echo '*.tmp' >.git/info/exclude; git add .; git commit -qm 1
            git update-index --skip-worktree .gitignore; rm .gitignore; touch x.log; git check-ignore -q x.log");
        let mut all = super::Repositories::new();
        assert!(super::ask(&mut all, &fixture.path("r/x.log")).unwrap().0.ignored);
        // One that is deleted is not left out.
        fixture.sh("cd r; git update-index --no-skip-worktree .gitignore; ! git check-ignore -q x.log");
        assert!(!super::ask(&mut all, &fixture.path("r/x.log")).unwrap().0.ignored);
    }

    fn line_endings_are_judged_as_git_does(fixture) {
        // Every file as it is added, and as it is then written over it.
        let kinds = [("lf", "a\\nb\\n"), ("crlf", "a\\r\\nb\\r\\n"), ("mixed", "a\\r\\nb\\n"), ("lone", "a\\rb\\r\\n"), ("binary", "x\\0\\r\\n")];
        let mut add = String::new();
        let mut edit = String::new();
        for (first, before) in kinds {
            for (second, after) in kinds {
                add += &format!("printf '{before}' >{first}-{second}; ");
                edit += &format!("printf '{after}' >{first}-{second}; ");
            }
        }
        let mut all = Vec::new();
        for attributes in ["* text=auto", "* text", "* -text", "* text eol=crlf", "* text=auto eol=crlf", "* eol=lf", "* crlf=input",
            "* crlf", "* -crlf", "* text=auto eol=lf", "lf-* binary", "", "* !text", "* text=strange"]
        {
            for config in ["true", "git config core.autocrlf true", "git config core.autocrlf input",
                "printf '[core]\\n autocrlf\\n' >>.git/config", "git config core.eol crlf"]
            {
                // Where attributes decide, the configuration matters little.
                if config == "true" || config.ends_with("autocrlf true") || attributes.contains("auto") || attributes.is_empty() {
                    let name = format!("{attributes} | {config}").replace('/', "-");
                    all.push((name, format!("{config}; echo '{attributes}' >.gitattributes; {add} git add .; git commit -qm 1; {edit}")));
                }
            }
        }
        let all: Vec<(&str, &str)> = all.iter().map(|(name, script)| (name.as_str(), script.as_str())).collect();
        compare_all(fixture, &all);
    }

    fn the_pin_of_a_stat_clean_file_is_its_blob_byte_by_byte(fixture) {
        compare_all(fixture, &[
            ("crlf_in_the_tree", "echo '* text=auto' >.gitattributes; printf 'a\\r\\n' >f; printf 'a\\n' >g; git add .; git commit -qm 1"),
            ("crlf_on_checkout", "echo '* text eol=crlf' >.gitattributes; printf 'a\\n' >f; git add .; git commit -qm 1; rm f; git checkout f"),
            ("ident", "echo '* ident' >.gitattributes; echo '$Id$' >f; echo plain >g; git add .; git commit -qm 1; rm f; git checkout -q f; touch f g"),
            ("ident_kept", "echo '* ident' >.gitattributes; echo '$Id$ x' >f; git add .; git commit -qm 1; echo '$Id: abc $ x' >f"),
            ("ident_longer", "echo '* ident' >.gitattributes; echo '$Id$ x' >f; git add .; git commit -qm 1; echo '$Id: abc $ y' >f"),
            ("utf16", "echo '*.u working-tree-encoding=UTF-16LE-BOM' >.gitattributes; printf '\\377\\376a\\0b\\0' >f.u; git add .; git commit -qm 1; touch f.u; cp f.u g.u"),
            ("utf16_swapped", "echo '*.u working-tree-encoding=UTF-16' >.gitattributes; printf '\\376\\377\\0a\\0b' >f.u; git add .; git commit -qm 1
                printf '\\377\\376a\\0b\\0' >f.u"),
            ("utf16_edited", "echo '*.u working-tree-encoding=UTF-16LE' >.gitattributes; printf 'a\\0b\\0' >f.u; git add .; git commit -qm 1; printf 'a\\0c\\0' >f.u"),
            ("utf16_marked", "echo '*.u working-tree-encoding=UTF-16LE' >.gitattributes; printf 'a\\0b\\0' >f.u; git add .; git commit -qm 1; printf '\\377\\376a\\0' >f.u"),
            ("utf16_unmarked", "echo '*.u working-tree-encoding=UTF-16' >.gitattributes; printf '\\377\\376a\\0' >f.u; git add .; git commit -qm 1; printf 'a\\0b\\0' >f.u"),
            // Whether Git looks into a file that was checked out in the second in which the index was
            // written depends on the moment and on how Git was built: here it does, for sure.
            ("attributes_removed_since", "echo 'f ident' >.gitattributes; echo '$Id$' >f; git add .; git commit -qm 1; rm f; git checkout -q f; git rm -q .gitattributes
                touch -d '-1 minute' .git/index"),
        ]);
    }

    fn attributes_weigh_as_git_has_it(fixture) {
        let edit = "printf 'a\\r\\nb\\n' >f; mkdir -p d/e; cp f d/f; cp f d/e/f; git add .; git commit -qm 1; printf 'a\\nb\\r\\n' | tee f d/f >d/e/f; touch f";
        compare_all(fixture, &[
            ("nearer", &format!("echo '* -text' >.gitattributes; mkdir -p d; echo 'f text' >d/.gitattributes; {edit}")),
            ("nearest", &format!("echo '* text' >.gitattributes; mkdir -p d/e; echo 'f !text' >d/.gitattributes; echo '* -text' >d/e/.gitattributes; {edit}")),
            ("info", &format!("echo '* text' >.git/info/attributes; echo '* -text' >.gitattributes; {edit}")),
            ("info_over_nearest", &format!("echo 'd/f -text' >.git/info/attributes; mkdir -p d; echo '* text' >d/.gitattributes; {edit}")),
            ("attributes_file", &format!("git config core.attributesFile ~/attributes; echo '* text' >~/attributes; {edit}")),
            ("attributes_file_default", &format!("mkdir -p ~/.config/git; echo 'd/** text' >~/.config/git/attributes; {edit}")),
            ("macro", &format!("rm -f ~/.config/git/attributes; printf '[attr]lines text\\nf lines\\n' >.gitattributes; {edit}")),
            ("macro_unset", &format!("printf '[attr]lines text eol=lf\\n* lines\\nd/f -lines\\nd/e/f !lines\\n' >.gitattributes; {edit}")),
            ("linked", &format!("echo '* text' >rules; ln -s rules .gitattributes; {edit}")),
            ("only_in_the_index", &format!("echo '* text' >.gitattributes; {edit}; rm .gitattributes")),
            ("in_the_index_and_not_used", &format!("echo '* text' >.gitattributes; {edit}; echo '* -text' >.gitattributes")),
            ("quoted", &format!("printf '\"d/f\" text\\n' >.gitattributes; {edit}")),
        ]);
    }

    fn filter_drivers_are_not_run(fixture) {
        fixture.sh(
            "mkdir r; cd r; git init -q; git config filter.upper.clean 'touch ../ran; tr a-z A-Z'; git config filter.upper.required true
             git config filter.proc.process 'touch ../ran; false'
             printf '*.u filter=upper\\n*.p filter=unconfigured\\n' >.gitattributes
             echo abc >a.u; echo abc >b.u; echo ABC >same.u; echo abc >c.p; git add .; git commit -qm 1; rm ../ran
             git update-index --refresh -q; rm -f ../ran
             touch b.u c.p; printf '*.q filter=proc\\n' >>.gitattributes",
        );
        let mut repositories = super::Repositories::new();
        let mut ask = |name: &str| super::ask(&mut repositories, &fixture.path(name)).unwrap().0;
        let (unchanged, touched, same) = (ask("r/a.u"), ask("r/b.u"), ask("r/same.u"));
        assert_eq!((unchanged.dirty, unchanged.oid), (false, None), "its stat data is the index's");
        assert_eq!((touched.dirty, touched.oid), (true, None), "only the driver could tell");
        assert!(!same.dirty && same.oid.is_some(), "the bytes are those of the blob");
        let unconfigured = ask("r/c.p");
        assert!(!unconfigured.dirty && unconfigured.oid.is_some());
        // As if written at the moment of the file: its stat data proves nothing, and is all there is.
        fixture.sh("cd r; touch -r a.u .git/index");
        let racy = super::ask(&mut super::Repositories::new(), &fixture.path("r/a.u")).unwrap().0;
        assert_eq!((racy.dirty, racy.oid), (false, None));
        assert!(!fixture.path("ran").exists(), "a filter driver was run");
    }

    fn a_file_that_was_added_through_a_driver_is_not_its_blob_when_the_driver_is_named_no_more(fixture) {
        // The index is written long after the files, it seems: Git looks into none of them.
        let add = "git config filter.rot.clean 'tr a-z n-za-m'; git config filter.rot.smudge cat; echo '*.txt filter=rot' >.gitattributes
            echo hello >f.txt; echo plain >plain; git add .; git commit -qm 1; touch -d '+1 minute' .git/index";
        for (name, before, after, changed) in [
            ("before", ": >.gitattributes", "true", vec![]),
            ("since", "true", ": >.gitattributes; git config --remove-section filter.rot", vec![".gitattributes", ".git/config"]),
            ("of_the_user", "git config --remove-section filter.rot; git config --global filter.rot.clean 'tr a-z n-za-m'
                echo '*.txt filter=rot' >.gitattributes", "rm ~/.gitconfig", vec!["~/.gitconfig"]),
        ] {
            fixture.sh(&format!("git init -q {name}; cd {name}; {add}; {before}"));
            let root = fixture.path(name);
            let mut all = super::Repositories::new();
            assert!(super::ask(&mut all, &root.join("plain")).unwrap().0.oid.is_some());
            fixture.sh(&format!("cd {name}; {after}"));
            for changed in changed {
                let of_home = changed.strip_prefix("~/").map(|name| fixture.root.parent().unwrap().join(name));
                let path = of_home.unwrap_or_else(|| root.join(changed));
                all.note_change(path.as_os_str().as_encoded_bytes());
            }
            let said = super::ask(&mut all, &root.join("f.txt")).unwrap().0;
            assert_eq!((said.tracked, said.dirty, said.oid), (true, false, None), "{name}");
            assert!(super::ask(&mut all, &root.join("plain")).unwrap().0.oid.is_some());
        }
    }

    fn a_file_of_a_driver_whose_configuration_is_gone_is_pinned_by_its_bytes_alone(fixture) {
        // The driver keeps the length, and the stat data in the index is believed.
        fixture.sh("git init -q r; cd r; git config filter.rot.clean 'tr a-z n-za-m'; printf '*.txt filter=rot\n*.set filter\n' >.gitattributes
            echo hello >f.txt; echo 1234 >same.txt; echo plain >plain; echo set >f.set; git add .; git commit -qm 1
            git config --remove-section filter.rot; touch -d '+1 minute' .git/index; git diff --quiet");
        let mut all = super::Repositories::new();
        for (name, pinned) in [("f.txt", false), ("same.txt", true), ("plain", true), ("f.set", true)] {
            let said = super::ask(&mut all, &fixture.path("r").join(name)).unwrap().0;
            assert_eq!((said.tracked, said.dirty, said.oid.is_some()), (true, false, pinned), "{name}");
        }
    }

    fn an_lfs_file_is_clean_and_not_pinned(fixture) {
        fixture.sh(
            "mkdir r; cd r; git init -q
             cat >../git-lfs-clean <<'END'
             #!/bin/sh
             f=$(mktemp); cat >$f
             if [ -s $f ]; then printf 'version https://git-lfs.github.com/spec/v1\\noid sha256:%s\\nsize %s\\n' \"$(sha256sum <$f | cut -d' ' -f1)\" \"$(wc -c <$f)\"; fi
             rm $f
END
             sed -i 's/^ *//' ../git-lfs-clean; chmod +x ../git-lfs-clean
             git config filter.lfs.clean ../git-lfs-clean
             printf '*.bin filter=lfs -text\\n' >.gitattributes
             printf 'content\\r\\n' >a.bin; : >empty.bin; printf 'more' >b.bin; printf x >c.bin; git add .; git commit -qm 1
             git show HEAD:b.bin >b.bin; touch a.bin empty.bin; printf y >c.bin",
        );
        let mut repositories = super::Repositories::new();
        for (name, dirty, pinned) in
            [("a.bin", false, false), ("empty.bin", false, true), ("c.bin", true, false)]
        {
            let said = super::ask(&mut repositories, &fixture.path("r").join(name)).unwrap().0;
            assert_eq!((said.dirty, said.oid.is_some()), (dirty, pinned), "{name}");
        }
        // A pointer in the working tree, as without the program: its bytes are the blob's.
        let pointer = super::ask(&mut repositories, &fixture.path("r/b.bin")).unwrap().0;
        assert!(pointer.oid.is_some());
    }

    fn modes_and_links_are_compared_as_configured(fixture) {
        let base = "echo a >f; echo b >x; chmod +x x; ln -s f l; git add .; git commit -qm 1";
        compare_all(fixture, &[
            ("modes", &format!("{base}; chmod +x f; chmod -x x")),
            ("no_file_mode", &format!("{base}; git config core.fileMode false; chmod +x f; chmod -x x")),
            ("no_file_mode_edited", &format!("{base}; git config core.fileMode false; chmod +x f; echo c >f")),
            ("other_bits", &format!("{base}; chmod 600 f; chmod 711 x")),
            ("group_exec_only", &format!("{base}; chmod 654 f")),
            ("link_for_file", &format!("{base}; rm f; ln -s x f")),
            ("link_with_same_bytes", &format!("{base}; printf x >f; git add f; git commit -qm 2; rm f; ln -s x f")),
            ("executable_becomes_link", &format!("{base}; rm x; ln -s b x")),
            ("file_for_link", &format!("{base}; rm l; printf f >l")),
            ("no_symlinks", &format!("{base}; git config core.symlinks false; rm l; printf f >l")),
            ("no_symlinks_edited", &format!("{base}; git config core.symlinks false; rm l; printf g >l")),
            ("other_target", &format!("{base}; rm l; ln -s x l")),
            ("directory_for_file", &format!("{base}; rm f; mkdir f; touch f/y")),
            ("file_for_directory", "mkdir d; touch d/a; git add .; git commit -qm 1; rm -r d; touch d"),
            ("fifo_for_file", &format!("{base}; rm f; mkfifo f")),
            ("untracked_fifo", &format!("{base}; mkfifo p; echo p >.gitignore")),
            ("trust_ctime", &format!("{base}; git config core.trustctime false; chmod 600 f; chmod 644 f; echo c >x")),
            ("check_stat", &format!("{base}; git config core.checkStat minimal; touch f; echo c >x")),
        ]);
    }

    fn configuration_is_read_from_where_git_reads_it(fixture) {
        let base = "echo a >f; git add .; git commit -qm 1; chmod +x f";
        compare_all(fixture, &[
            ("included", &format!("{base}; git config include.path ../more; printf '[core]\\nfileMode=false\\n' >more")),
            ("included_if", &format!("{base}; git config includeIf.gitdir:r/.path ../more; git config --unset core.fileMode; printf '[core]\\nfileMode=false\\n' >more")),
            ("included_not", &format!("{base}; git config includeIf.gitdir:other/.path ../more; git config --unset core.fileMode; printf '[core]\\nfileMode=false\\n' >more")),
            ("of_the_worktree", &format!("{base}; git config extensions.worktreeConfig true; git config --unset core.fileMode; git config --worktree core.fileMode false")),
            ("of_the_user", &format!("{base}; git config --unset core.fileMode; git config --global core.fileMode false")),
        ]);
    }
}
