//! What files tell beyond their bytes: each change that a run alone would show is no hit.

use std::os::fd::AsRawFd as _;
use std::process::Command;

use super::{finish, recalling};
use crate::support::{Place, SmallFilesystem, is_root};

/// Something that may change between two runs.
struct Change {
    /// What is there before the first run.
    prepare: &'static str,
    /// The command.
    command: &'static str,
    /// What takes its outputs away.
    reset: &'static str,
    /// What becomes another.
    change: &'static str,
    /// What the recall may make of it.
    recall: May,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum May {
    /// It is recalled as long as nothing has changed.
    Recall,
    /// The same, and only root can change it.
    RecallAsRoot,
    /// It is never recalled.
    Refuse,
}

const CHANGES: &[Change] = &[
    // Where an output is made.
    Change {
        prepare: "mkdir d",
        command: "mkdir d/sub; echo x > d/out",
        reset: "rm -rf d/*",
        change: "chmod g+s d",
        recall: May::Recall,
    },
    // It is removed, or another name of it is.
    Change {
        prepare: "mkdir d; echo f > d/f",
        command: "rm -r d",
        reset: "mkdir d; echo f > d/f",
        change: "chmod g+s d",
        recall: May::Recall,
    },
    Change {
        prepare: "mkdir d; echo f > d/f",
        command: "mv d e",
        reset: "rm -rf e; mkdir d; echo f > d/f",
        change: "echo g > d/f",
        recall: May::Recall,
    },
    Change {
        prepare: "mkdir d",
        command: "echo x > d/out",
        reset: "rm -rf d/*",
        change: "chmod 555 d",
        recall: May::Recall,
    },
    Change {
        prepare: "mkdir d; chmod g+s d",
        command: "echo x > d/out",
        reset: "rm -rf d/*",
        change: "chgrp 1 d; chmod g+s d",
        recall: May::RecallAsRoot,
    },
    Change {
        prepare: "mkdir d",
        command: "echo x > d/out",
        reset: "rm -rf d/*",
        // user::rwx, group::r-x, other::rwx
        change: "setfattr -n system.posix_acl_default \
                 -v 0x0200000001000700ffffffff04000500ffffffff20000700ffffffff d",
        recall: May::Recall,
    },
    Change {
        prepare: "mkdir d",
        command: "echo x > d/out",
        reset: "chattr -i d; rm -rf d/*",
        change: "chattr +i d",
        recall: May::RecallAsRoot,
    },
    Change {
        prepare: "echo old > out",
        command: "echo x > out",
        reset: "chattr -i out; echo old > out",
        change: "chattr +i out",
        recall: May::RecallAsRoot,
    },
    // What is put there.
    Change {
        prepare: "echo f > f",
        command: "cp f g; setfattr -n user.a -v b g",
        reset: "rm g",
        change: "true",
        recall: May::Recall,
    },
    Change {
        prepare: "true",
        command: "echo x > g; setfattr -n user.a -v b g",
        reset: "true",
        change: "setfattr -x user.a g",
        recall: May::Recall,
    },
    Change {
        prepare: "echo f > f",
        command: "stat -c '%h %y' f; ln f g",
        reset: "rm g",
        change: "touch -d @5 f",
        recall: May::Recall,
    },
    // What a file tells.
    Change {
        prepare: "echo f > f; setfattr -n user.a -v 1 f",
        command: "getfattr -n user.a f",
        reset: "true",
        change: "setfattr -n user.a -v 2 f",
        recall: May::Recall,
    },
    Change {
        prepare: "echo f > f",
        command: "getfattr -d f",
        reset: "true",
        change: "setfattr -n user.a -v 2 f",
        recall: May::Recall,
    },
    Change {
        prepare: "echo f > f",
        command: "cp --preserve=mode,xattr f g",
        reset: "rm g",
        change: "setfattr -n user.a -v 2 f",
        recall: May::Recall,
    },
    Change {
        prepare: "echo f > f",
        command: "lsattr f",
        reset: "true",
        change: "chattr +d f",
        recall: May::Recall,
    },
    Change {
        prepare: "echo f > f",
        command: "stat -c '%z' f",
        reset: "true",
        change: "chmod 600 f; chmod 644 f",
        recall: May::Recall,
    },
    Change {
        prepare: "head -c 65536 /dev/zero > f; touch -d @5 f; sync f",
        command: "stat -c %b f",
        reset: "true",
        change: "fallocate -d f; touch -d @5 f",
        recall: May::Recall,
    },
    Change {
        prepare: "head -c 65536 /dev/zero > f; touch -d @5 f; sync f",
        command: "cp f g; stat -c %b g",
        reset: "rm g",
        change: "fallocate -d f; touch -d @5 f",
        recall: May::Recall,
    },
    Change {
        prepare: "echo f > f",
        command: "stat -c %h - < f",
        reset: "true",
        change: "ln f other",
        recall: May::Recall,
    },
    Change {
        prepare: "echo f > f",
        command: "stat -c %X f",
        reset: "true",
        change: "touch -a -d @7 f",
        recall: May::Refuse,
    },
    Change {
        prepare: "echo f > f; sync f",
        command: "PATH=$PATH:/usr/sbin; filefrag -v f",
        reset: "true",
        change: "cp f g; sync g; cat g > f; sync f",
        recall: May::Refuse,
    },
];

impl Change {
    fn recall(&self, place: &Place) -> super::Recalled {
        finish(recalling(place, &["--recall-failures"], self.command))
    }

    fn shell(place: &Place, script: &str) -> String {
        let output = place.program("sh").args(["-c", script]).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        format!("{:?} {} {}", output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    fn left(place: &Place) -> String {
        Change::shell(
            place,
            "find . -printf '%P %M %U %G %l %n\\n' | sort; getfattr -Rdm - .; cat g out d/out",
        )
    }
}

#[test]
fn change_of_what_files_tell_is_no_hit() {
    for change in CHANGES.iter().filter(|change| change.recall != May::RecallAsRoot || is_root()) {
        let place = Place::new();
        let name = format!("{} after {}", change.command, change.change);
        if !place.can_run(&["sh", "-c", change.prepare]) {
            continue;
        }
        change.recall(&place);
        Change::shell(&place, change.reset);
        let unchanged = change.recall(&place);
        assert_eq!(
            unchanged.from.is_some(),
            change.recall != May::Refuse,
            "{name}, unchanged: {unchanged:#?}"
        );
        if change.change != "true" {
            Change::shell(&place, change.reset);
        }
        let changed = Change::shell(&place, change.change);
        if !changed.starts_with("Some(0)") {
            println!("skipped {name}: {changed}");
            continue;
        }
        let recalled = change.recall(&place);
        let left = Change::left(&place);
        // Another change would be another ctime.
        if change.reset != "true" {
            Change::shell(&place, change.reset);
            Change::shell(&place, change.change);
        }
        let alone = place.program("sh").args(["-c", change.command]).output().unwrap();
        let left_alone = Change::left(&place);
        Change::shell(&place, "chattr -i d out; chmod 755 d");
        assert_eq!(recalled.run.stdout, String::from_utf8_lossy(&alone.stdout), "{name}");
        assert_eq!(Some(recalled.run.status), alone.status.code(), "{name}");
        assert_eq!(left, left_alone, "{name}");
    }
}

#[test]
fn mount_that_is_read_only_or_noexec_now_is_no_hit() {
    let place = Place::new();
    let Some(_mount) = SmallFilesystem::at(&place.at("mnt"), "size=1m") else { return };
    place.write("mnt/tool", "#!/bin/sh\necho made\n");
    place.prepare("chmod +x mnt/tool; mkdir mnt/d");
    let commands = ["echo x > mnt/d/out", "mnt/tool"];
    let run = |command| finish(recalling(&place, &["--recall-failures"], command));
    for command in commands {
        run(command).expect_miss(if command == "mnt/tool" { "made\n" } else { "" });
    }
    place.prepare("rm mnt/d/out");
    for command in commands {
        run(command).expect_hit(if command == "mnt/tool" { "made\n" } else { "" });
    }
    place.prepare("rm mnt/d/out");
    let remount = |options| {
        let mut mount = Command::new("mount");
        assert!(mount.args(["-o", options]).arg(place.at("mnt")).status().unwrap().success());
    };
    remount("remount,noexec");
    assert_ne!(run(commands[1]).expect_miss("").run.status, 0);
    remount("remount,ro");
    assert_ne!(run(commands[0]).expect_miss("").run.status, 0);
}

/// A page that is changed already may be changed again, and no time tells.
#[test]
fn content_that_a_mapping_has_changed_is_no_hit() {
    let place = Place::new();
    place.write("f", vec![b'a'; 4096]);
    let file = std::fs::File::options().read(true).write(true).open(place.at("f")).unwrap();
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping, of a file that is as long.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, file.as_raw_fd(), 0) };
    assert_ne!(page, libc::MAP_FAILED);
    // SAFETY: the mapping is writable and lasts as long as the process.
    let write = |byte: u8| unsafe { page.cast::<u8>().write_volatile(byte) };
    write(b'b');
    let command = "head -c 2 f";
    let run = || finish(recalling(&place, &[], command));
    run().expect_miss("ba");
    run().expect_hit("ba");
    write(b'c');
    run().expect_miss("ca");
    run().expect_hit("ca");
    write(b'd');
    run().expect_miss("da");
}
