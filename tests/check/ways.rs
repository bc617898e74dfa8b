//! Ways out of the workspace that are not single calls: links, renames, descriptors, rules of omission.

use std::fs;

use super::findings;
use crate::support::{BINARY, LEVELS, Place, Run, User, give_away, has, needs_root};

/// Records `sh -c script` in the workspace `work`, with an `outside` beside it and another directory that a rule
/// leaves out; what `check --allow-write @workspace` finds.
fn found(user: User, script: &str) -> Vec<String> {
    let place = Place::of(user);
    for name in ["outside", "left"] {
        fs::create_dir(place.base().join(name)).unwrap();
        fs::write(place.base().join(name).join("old"), "old").unwrap();
    }
    if user == User::Nobody {
        give_away(place.base());
    }
    let output = place.record_with(&["--ignore", "../left"], script);
    assert!(output.status.success(), "{script}: {output:?}");
    findings(&place, &place.verb("check", &["--allow-write", "@workspace", "--json"]))
}

#[test]
fn no_change_outside_goes_unseen() {
    for (script, expected) in [
        ("echo x > a; mkdir b; mv a b; rm -r b; cat ../outside/old; ls ..", &[][..]),
        ("echo x > /dev/null; echo x > /dev/zero; ls /dev", &[]),
        ("mkfifo p; cat p & echo x > p; wait", &[]),
        ("echo x > ../outside/new", &["outside/new write"]),
        (": > ../outside/old", &["outside/old write"]),
        ("echo x > ../outside/t; rm ../outside/t", &["outside/t write,delete"]),
        // A symlink leads out, or to a symlink that does.
        ("ln -s ../outside l; echo x > l/new", &["outside/new write"]),
        ("ln -s ../outside/old l; ln -s l m; echo x >> m", &["outside/old write"]),
        ("cd -P /proc/self/cwd/../outside; echo x > new", &["outside/new write"]),
        // A hard link into the workspace is another name of a file outside.
        ("ln ../outside/old l; echo x >> l", &["outside/old write,metadata"]),
        ("ln ../outside/old l; chmod 600 l", &["outside/old metadata"]),
        // Into the workspace, and out of it.
        ("mv ../outside/old .", &["outside/old delete"]),
        ("echo x > a; mv a ../outside/a", &["outside/a write"]),
        ("mv ../outside o", &["outside delete", "outside/old delete"]),
        ("mkdir d; echo x > d/f; mv d ../outside/d", &["outside/d write", "outside/d/f write"]),
        // The parent moves while the file is written.
        ("mkdir d; exec 3> d/f; mv d ../outside/d; echo x >&3", &["outside/d write", "outside/d/f write"]),
        // What a rule leaves out, and what passes through it.
        ("echo x > ../left/new", &["left/new write"]),
        ("rm ../left/old; mkdir ../left/d", &["left/d write", "left/old delete"]),
        ("ln -s ../left l; echo x > l/new", &["left/new write"]),
        ("mv ../left/old .", &["left/old delete"]),
        ("mv ../left/old ../outside/old", &["left/old delete", "outside/old write"]),
        ("mv ../left l", &["left delete", "left/old delete"]),
        (
            "mv ../outside ../left/o",
            &["left/o write", "left/o/old write", "outside delete", "outside/old delete"],
        ),
        ("echo x > /dev/shm/agent-snapshot-$$; rm /dev/shm/agent-snapshot-$$", &["/dev/shm/"]),
        ("cd ..; rm -r work/../left", &["left delete", "left/old delete"]),
    ] {
        for &user in User::all() {
            let mut found = found(user, script);
            for line in &mut found {
                let short = line.strip_prefix("allow-write ").unwrap_or_else(|| panic!("{line}"));
                // The number of the process.
                *line =
                    if short.starts_with("/dev/shm/") { "/dev/shm/".to_owned() } else { short.to_owned() };
            }
            assert_eq!(found, expected, "{script} as {user:?}");
        }
    }
}

#[test]
fn a_symlink_that_the_command_makes_allows_nothing() {
    let place = Place::new();
    fs::create_dir(place.base().join("outside")).unwrap();
    let output = place.record_with(&[], "ln -s ../outside build; echo x > build/new");
    assert!(output.status.success(), "{output:?}");
    let run = place.verb("check", &["--allow-write", "./build", "--json"]);
    assert_eq!(findings(&place, &run), ["allow-write outside/new write"]);
    place.verb("check", &["--allow-write", ".", "--deny-write", "./build"]).expect(1);
}

#[test]
fn a_file_that_is_changed_by_its_other_name_first_is_changed() {
    for keep in LEVELS {
        let place = Place::new();
        fs::create_dir(place.base().join("outside")).unwrap();
        fs::write(place.base().join("outside/old"), "old").unwrap();
        place.hard_link("../outside/old", "link");
        let output = place.record_with(&["--keep", keep], "echo x >> link; cat ../outside/old");
        assert!(output.status.success(), "{output:?}");
        let run = place.verb("check", &["--allow-write", "@workspace", "--json"]);
        assert_eq!(findings(&place, &run), ["allow-write outside/old write"], "{keep}");
        assert!(run.stdout.contains("\"through\":"), "{run:#?}");
    }
}

#[test]
fn a_git_directory_elsewhere_is_outside() {
    if !has("git") {
        return;
    }
    for (script, expected) in [
        ("git commit --quiet --allow-empty --message two; git gc --quiet", &[][..]),
        (
            "cd ../other; git config x.y z; git config --unset x.y",
            &["other/.git/config", "other/.git/config.lock"],
        ),
        ("echo x > ../other/.git/hooks/post-commit", &["other/.git/hooks/post-commit"]),
        ("echo x > ../other/.git/objects/xx", &["other/.git/objects/xx"]),
    ] {
        let place = Place::new();
        place.prepare("git init --quiet .; git init --quiet ../other; rm -rf ../other/.git/hooks/*; git config user.name a; git config user.email b");
        let output = place.record_with(&[], script);
        assert!(output.status.success(), "{script}: {output:?}");
        let run = place.verb("check", &["--allow-write", "@workspace", "--json"]);
        let found: Vec<String> =
            findings(&place, &run).iter().map(|line| line.split(' ').nth(1).unwrap().to_owned()).collect();
        assert_eq!(found, expected, "{script}");
    }
}

#[test]
fn a_command_cannot_make_its_workspace_larger() {
    if !has("git") {
        return;
    }
    let place = Place::new();
    let output = place.record_with(&[], "cd ..; git init --quiet .; echo x > new; git add new");
    assert!(output.status.success(), "{output:?}");
    let found = findings(&place, &place.verb("check", &["--allow-write", "@workspace", "--json"]));
    assert!(found.contains(&"allow-write new write".to_owned()), "{found:?}");
}

#[test]
fn so_many_changes_that_a_rule_left_out_that_they_are_not_listed_are_judged() {
    let place = Place::new();
    fs::create_dir(place.base().join("left")).unwrap();
    let output = place.record_with(
        &["--ignore", "../left"],
        "i=0; while [ $i -lt 1100 ]; do : > ../left/$i; i=$((i + 1)); done",
    );
    assert!(output.status.success(), "{output:?}");
    let check = |glob: &str| place.verb("check", &["--allow-write", glob, "--json"]);
    let found = findings(&place, &check("@workspace"));
    assert_eq!(found.len(), 1001);
    assert_eq!(found[0], "allow-write left ");
    assert_eq!(findings(&place, &check("../left")), Vec::<String>::new());
    assert_eq!(findings(&place, &check("../left/?*")).len(), 1);
}

#[test]
fn where_the_output_was_redirected_to_is_not_the_commands_doing() {
    for (script, expected) in [
        ("echo x", &[][..]),
        ("echo x; echo y > ../log", &["allow-write log write"]),
        ("echo x; rm ../log", &["allow-write log write,delete"]),
        ("echo x; echo y > /proc/self/fd/1", &[]),
    ] {
        let place = Place::new();
        let log = fs::File::create(place.base().join("log")).unwrap();
        let status = place.recording().args(["sh", "-c", script]).stdout(log).status().unwrap();
        assert!(status.success(), "{script}");
        let found = findings(&place, &place.verb("check", &["--allow-write", "@workspace", "--json"]));
        assert_eq!(found, expected, "{script}");
    }
}

#[test]
fn a_block_device_is_changed_by_what_is_written_to_it() {
    // The number of a loop device: nothing has to be behind it.
    if !needs_root("a block device") {
        return;
    }
    let place = Place::new();
    let device = place.base().join("disk");
    let number = nix::sys::stat::makedev(7, 0);
    let mode = nix::sys::stat::Mode::from_bits_truncate(0o600);
    if nix::sys::stat::mknod(&device, nix::sys::stat::SFlag::S_IFBLK, mode, number).is_err()
        || fs::OpenOptions::new().write(true).open(&device).is_err()
    {
        println!("skipped: there is no block device to write to");
        return;
    }
    for options in [&[][..], &["--ignore", "../disk"]] {
        let output = place.record_with(options, ": >> ../disk");
        assert!(output.status.success(), "{output:?}");
        let found = findings(&place, &place.verb("check", &["--allow-write", "@workspace", "--json"]));
        assert_eq!(found, ["allow-write disk write"]);
    }
}

#[test]
fn what_is_not_all_recorded_does_not_pass() {
    let place = Place::new();
    fs::write(place.at("big"), vec![0; 4096]).unwrap();
    let output = place.record_with(&["--max-blob-bytes", "1k"], "rm big");
    assert!(output.status.success(), "{output:?}");
    let check = |flags: &[&str]| place.verb("check", &[&["--allow-write", "@workspace"], flags].concat());
    let run = check(&[]).expect(1);
    assert!(
        run.stdout.contains("incomplete  content_omitted") && run.stdout.contains("\nunknown: "),
        "{run:#?}"
    );
    check(&["--allow-incomplete"]).expect(0);
    let run = check(&["--json"]).expect(1);
    assert!(run.stdout.contains("\"verdict\":\"unknown\""), "{run:#?}");
}

#[test]
fn what_our_own_program_changed_in_a_recording_is_not_known() {
    let place = Place::new();
    place.write("a", "old");
    place.prepare(&format!("{BINARY} --snapshot-dir ../first sh -c 'echo new > a'"));
    let output = place.record_with(&[], &format!("{BINARY} restore --before ../first/"));
    assert!(output.status.success(), "{output:?}");
    let run: Run = place.verb("check", &["--deny-write", "/etc"]).expect(1);
    assert!(run.stdout.contains("is agent-snapshot: what it changes is not recorded"), "{run:#?}");
}

/// What `check` finds with these rules where there are `../secret`, `../alias`, another name of that, and `../d/secret`.
fn found_by_rule(user: User, script: &str, rules: &[&str]) -> (i32, Vec<String>) {
    let place = Place::of(user);
    place.prepare(
        "echo s > ../secret; ln ../secret ../alias; ln ../secret linked; mkdir ../d; echo s > ../d/secret; echo o > own",
    );
    if user == User::Nobody {
        give_away(place.base());
    }
    let output = place.record_with(&[], script);
    assert!(output.status.success(), "{script}: {output:?}");
    let run = place.verb("check", &[rules, &["--json"]].concat());
    (run.status, findings(&place, &run))
}

#[test]
fn a_rule_that_names_a_file_means_it_by_any_name() {
    for &user in User::all() {
        for (script, rule, expected) in [
            // By a hard link from before the command, or of its own.
            ("cat linked", ["--deny-read", "../secret"], &["deny-read secret read"][..]),
            ("mv linked x; cat x", ["--deny-read", "../secret"], &["deny-read secret read"]),
            (
                "ln ../d/secret h; cat h",
                ["--deny-read", "../d/secret"],
                &["deny-read d/secret read,metadata"],
            ),
            ("ln ../d/secret h; cat h", ["--deny-read", "../d/*"], &["deny-read d/secret read,metadata"]),
            // That is gone at the end, or another file.
            (
                "ln ../d/secret h; cat h; rm h",
                ["--deny-read", "../d/secret"],
                &["deny-read d/secret read,metadata"],
            ),
            (
                "ln ../d/secret h; cat h; rm h",
                ["--deny-read", "../d/*"],
                &["deny-read d/secret read,metadata"],
            ),
            (
                "echo x > h; ln -f ../d/secret h; cat h; rm h; echo y > h",
                ["--deny-read", "../d/*"],
                &["deny-read d/secret read,metadata"],
            ),
            (
                "ln ../d/secret h; ln h g; rm h; mv g e; cat e; rm e",
                ["--deny-read", "../d/*"],
                &["deny-read d/secret read,metadata"],
            ),
            (
                "rm own; ln ../d/secret own; cat own; rm own; echo y > own",
                ["--deny-read", "../d/*"],
                &["deny-read d/secret read,metadata"],
            ),
            (
                "ln ../d/secret h; cat h; echo x > y; ln y z; mv y h",
                ["--deny-read", "../d/*"],
                &["deny-read d/secret read,metadata"],
            ),
            // Renamed and back, and away.
            (
                "mv ../secret x; cat x; mv x ../secret",
                ["--deny-read", "../secret"],
                &["deny-read secret read,delete"],
            ),
            (
                "mv ../d/secret x; cat x; rm x; echo > a; mv a x",
                ["--deny-read", "../d"],
                &["deny-read d/secret read,delete"],
            ),
            (
                "mv ../d e; cat e/secret; mv e ../d",
                ["--deny-read", "../d/secret"],
                &["deny-read d/secret read,delete"],
            ),
            // Written through another name.
            ("echo x >> linked", ["--deny-write", "../secret"], &["deny-write secret write"]),
            ("chmod 600 linked", ["--deny-write", "../secret"], &["deny-write secret metadata"]),
            ("mv linked x; echo x >> x", ["--deny-write", "../secret"], &["deny-write secret write"]),
            // Other files, and names that come and go.
            (
                "echo x > a; ln a h; cat a; rm h; ln ../secret h; rm h",
                ["--deny-read", "../secret"],
                &["deny-read secret metadata"],
            ),
            ("mv linked x; rm x; echo x > linked", ["--deny-write", "../secret"], &[]),
            ("echo x > y; cat y; mv y linked", ["--deny-read", "../secret"], &[]),
            // Most filesystems give the number of the file that has gone to the new one.
            ("rm ../d/secret; echo x > a; ln a b; cat a", ["--deny-read", "../d/secret"], &[]),
            ("rm ../d/secret; echo x > a; ln a b; mv b c; cat c", ["--deny-read", "../d/*"], &[]),
            (
                "rm ../d/secret; echo x > ../e; cat ../e; ln ../e a; chmod 600 a",
                ["--deny-write", "../d/*"],
                &["deny-write d/secret delete"],
            ),
            (
                "mv ../d/secret a; ln a b; rm a; echo x > ../d/secret; cat b",
                ["--deny-read", "../d/*"],
                &["deny-read d/secret read,delete"],
            ),
            ("echo x > t; mv t linked; echo y > t; mv t other; cat linked", ["--deny-read", "other"], &[]),
            ("echo x > y; cat y; rm y; echo x > z; cat z", ["--deny-read", "../secret"], &[]),
        ] {
            let (status, found) = found_by_rule(user, script, &rule);
            assert_eq!(found, expected, "{script} {rule:?} as {user:?}");
            assert_eq!(status, i32::from(!expected.is_empty()), "{script} {rule:?} as {user:?}");
        }
    }
}

#[test]
fn a_change_of_a_file_with_unknown_names_does_not_pass() {
    let user = User::all()[0];
    for (script, status) in [
        ("echo x >> linked", 1),
        ("chmod 600 linked", 1),
        ("echo x >> linked; rm linked", 1),
        ("mv linked x; echo x >> x", 1),
        ("rm linked; echo x > linked; cat linked", 0),
        ("mv linked x", 0),
        ("echo x > a; ln a b; echo y > b", 0),
        ("echo x >> own; ln own other", 0),
        ("echo x >> own; ln own other; rm own", 0),
        ("rm linked", 0),
        ("cat linked", 0),
    ] {
        let (found, findings) = found_by_rule(user, script, &["--allow-write", "@workspace"]);
        assert_eq!((found, findings), (status, Vec::new()), "{script}");
    }
    let written_and_removed =
        found_by_rule(user, "echo x >> linked; rm linked", &["--deny-write", "../secret"]);
    assert_eq!(written_and_removed, (1, Vec::new()));
}
